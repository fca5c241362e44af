//! The `tieline` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: this process may be a keeper of an agent program and not a node.
    if let Some(code) = tieline::harness::keeper::run_if_asked() {
        return code;
    }
    tieline::cli::main(tieline::node::up)
}
