//! `tieline up`: a node in the foreground, from its first line to its last.

use tieline_proto::api::{ApiError, Code};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::open::{self, StartError};
use crate::config::Config;
use crate::data_dir::DirError;
use crate::keys::KeyFileError;
use crate::net::NetError;

/// Runs a node until a signal or a request ends it.
///
/// # Errors
/// When it cannot start; the error says what to do about it.
pub async fn up(config: Config) -> Result<(), ApiError> {
    let stop = CancellationToken::new();
    let internal = |error: std::io::Error| ApiError::new(Code::Internal, format!("no signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(internal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(internal)?;
    let asked = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        asked.cancel();
    });
    Box::pin(open::run(config, stop)).await.map_err(|error| explain(&error))
}

/// What a person can do about a node that does not start.
#[must_use]
pub fn explain(error: &StartError) -> ApiError {
    let words = error.to_string();
    match error {
        StartError::Data(DirError::AlreadyRunning { .. }) => {
            ApiError::new(Code::AlreadyRunning, words).hint("tieline status, or use another folder: --data DIR")
        }
        StartError::Data(DirError::Newer { .. }) => ApiError::new(Code::Internal, words)
            .hint("install the newer version again, or use another folder: --data DIR"),
        StartError::Data(DirError::NotData { .. }) => {
            ApiError::new(Code::Refused, words).hint("name an empty folder, or one that does not exist yet: --data DIR")
        }
        StartError::Key(KeyFileError::Open { path, .. }) => {
            ApiError::new(Code::Refused, words).hint(format!("chmod 600 {}", path.display()))
        }
        StartError::Chain { .. } => ApiError::new(Code::Internal, words)
            .hint("restore org/log from a backup; a box that has joined can set its folder org aside and join anew"),
        StartError::Net(NetError::Listen { .. }) => ApiError::new(Code::Internal, words)
            .hint("choose another port with --listen, or leave it out for a free one"),
        StartError::Door(error) => error.into(),
        _ => ApiError::new(Code::Internal, words),
    }
}
