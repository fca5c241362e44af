//! `tieline up`.

use std::future::Future;
use std::path::PathBuf;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tieline_proto::api::{ApiError, Code};

use super::{Context, Done, Exit};
use crate::config::{Config, Flags};
use crate::logging;

/// Descriptors wanted: two thousand connections of either door, links, logs and harnesses. Many systems start a
/// process with 1024.
const DESCRIPTORS: u64 = 8192;

/// Start the node.
#[derive(Args, Debug)]
pub struct Up {
    /// Where the page and the API listen; loopback, port 0 takes any [default: 127.0.0.1:8137, else a free port]
    #[arg(long, value_name = "ADDR:PORT")]
    api: Option<String>,

    /// Where other nodes reach this one [default: all interfaces, TCP and QUIC, 8138, else a free port]
    #[arg(long, value_name = "MULTIADDR")]
    listen: Vec<String>,

    /// A node to join the network through
    #[arg(long, value_name = "MULTIADDR")]
    bootstrap: Vec<String>,

    /// A relay to be reachable through; refused, for this version has no relays yet
    #[arg(long, value_name = "MULTIADDR")]
    relay: Vec<String>,

    /// Don't look for nodes on the LAN; this version never does
    #[arg(long)]
    no_mdns: bool,

    /// Serve the page and the device door on the LAN too; refused, for this version can't yet
    #[arg(long)]
    lan: bool,

    /// What to call this node [default: the host's name]
    #[arg(long)]
    name: Option<String>,

    /// Write a JSON file once the node answers; it is removed when the node stops
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
}

impl Up {
    /// Resolves the configuration, starts the logs, and runs the node to its end.
    pub fn run<F>(self, context: &Context, run: impl FnOnce(Config) -> F) -> Done
    where
        F: Future<Output = Result<(), ApiError>> + Send + 'static,
    {
        let flags = Flags {
            api: self.api,
            listen: self.listen,
            bootstrap: self.bootstrap,
            relay: self.relay,
            no_mdns: self.no_mdns,
            lan: self.lan,
            name: self.name,
            ready_file: self.ready_file,
            ..Flags::default()
        };
        let config = context.load(flags)?.config;
        config.check_supported()?;
        logging::init_node(&config).map_err(|error| ApiError::new(Code::Internal, format!("no logs: {error}")))?;
        raise_descriptors();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| ApiError::new(Code::Internal, format!("no runtime: {error}")))?;
        // As a task of the runtime: on a thread of its own, each word between the loop and a socket would wake a thread.
        let done = runtime.block_on(async { runtime.spawn(run(config)).await });
        let done =
            done.unwrap_or_else(|error| Err(ApiError::new(Code::Internal, format!("the node panicked: {error}"))));
        runtime.shutdown_background();
        done.map(|()| Exit::OK)
    }
}

fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files stays low");
        }
    }
}
