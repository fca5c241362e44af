//! `tieline-relay`: where nodes that can't be reached from outside meet. Anyone can host one; it knows no content.
//!
//! This version is a DHT bootstrap node: it answers the mesh's private Kademlia and forwards nothing.
//!
//! | module | is |
//! |---|---|
//! | `args` | the command line |
//! | `crowd` | the share of connections that one host has |
//! | `key` | the transport key on disk |
//! | `ready` | the ready file |
//! | `records` | announcements kept, within bounds |
//! | `server` | the swarm and its loop |

mod args;
mod crowd;
mod key;
mod ready;
mod records;
mod server;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    let args = args::Args::parse();
    if let Some(option) = args.unserved() {
        args::Args::command()
            .error(
                clap::error::ErrorKind::ArgumentConflict,
                format!("{option} is not served by this version: it lets nodes find each other and forwards nothing"),
            )
            .exit();
    }
    args.init_logs();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => match runtime.block_on(server::run(&args)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Err(error) => fail(&error),
    }
}

/// Says an error and all its causes, for a person.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    eprintln!("{text}");
    ExitCode::FAILURE
}
