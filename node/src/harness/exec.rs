//! `exec` harnesses: a command that the box's owner fixed. The prompt is its stdin, its stdout is the answer.

use std::ffi::OsString;
use std::path::PathBuf;

use tieline_proto::event::{Event, Outcome, Status};
use tokio::sync::OwnedSemaphorePermit;

use super::TurnSpec;
use super::host::Setting;
use super::process::{Launch, Process, ReadError, describe};
use super::turn::{TurnIo, failed, interrupted};

/// Runs one turn: the program runs once for each.
pub(super) async fn run(
    (program, args): (PathBuf, Vec<OsString>),
    setting: &Setting,
    spec: &TurnSpec,
    permit: OwnedSemaphorePermit,
    io: &mut TurnIo,
) -> Outcome {
    let mut env = setting.env(spec);
    // A command can't be told of late changes in any other way.
    if let Some(model) = &spec.model {
        env.entry("TIELINE_MODEL".to_owned()).or_insert_with(|| model.clone());
    }
    if let Ok(serde_json::Value::String(policy)) = serde_json::to_value(spec.policy) {
        env.entry("TIELINE_POLICY".to_owned()).or_insert(policy);
    }
    let launch = Launch { keeper: &setting.keeper, program: &program, args: &args, cwd: &spec.cwd, env: &env };
    let mut process = match Process::start(&launch, permit) {
        Ok(process) => process,
        Err(error) => return failed(format!("can't run {}: {error}", program.display())),
    };
    process.write(spec.prompt.clone().into_bytes());
    process.close_stdin();
    io.emit(Event::Started { model: spec.model.clone() }).await;

    let mut stopped = false;
    let read = loop {
        tokio::select! {
            biased;
            () = io.interrupted(), if !stopped => {
                stopped = true;
                process.end();
            }
            piece = process.text() => match piece {
                Ok(Some(text)) => io.emit(Event::Text { text }).await,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            },
        }
    };
    // A program may close its stdout and work on; it is stopped as well as any.
    let status = loop {
        tokio::select! {
            biased;
            () = io.interrupted(), if !stopped => {
                stopped = true;
                process.end();
            }
            status = process.wait() => break status,
        }
    };
    if status.is_some_and(|status| status.success()) && read.is_ok() {
        return Outcome { status: Status::Completed, text: String::new(), error: None, usage: None };
    }
    if stopped {
        return interrupted();
    }
    let name = program.file_name().unwrap_or(program.as_os_str()).display();
    let how = read.map_or_else(|error: ReadError| error.to_string(), |()| describe(status));
    let stderr = process.stderr().await;
    let said = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
    failed(format!("{name} {how}{said}"))
}
