//! The `tieline` binary.

use std::process::ExitCode;

use tieline_proto::api::{ApiError, Code};

fn main() -> ExitCode {
    // Before anything else: this process may be a keeper of an agent program and not a node.
    if let Some(code) = tieline::harness::keeper::run_if_asked() {
        return code;
    }
    tieline::cli::main(|_config| async { Err(ApiError::new(Code::Internal, "the node's loop is not linked in")) })
}
