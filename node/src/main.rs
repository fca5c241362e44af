//! The `tieline` binary.

use std::process::ExitCode;

use tieline_proto::api::{ApiError, Code};

fn main() -> ExitCode {
    tieline::cli::main(|_config| async { Err(ApiError::new(Code::Internal, "the node's loop is not linked in")) })
}
