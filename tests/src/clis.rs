//! The pinned command lines of real agents, put into a cache by `tests/harness-clis/install.sh`.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::mesh::Plan;

/// Where `install.sh` puts the command lines: `TIELINE_TEST_CACHE`, else `target/harness-clis` of this tree.
#[must_use]
pub fn folder() -> PathBuf {
    std::env::var_os("TIELINE_TEST_CACHE")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/harness-clis")), PathBuf::from)
}

/// Puts the command lines on the resident's PATH.
///
/// # Panics
/// When they are not installed.
#[must_use]
pub fn on_path(mut plan: Plan) -> Plan {
    let bin = folder().join("node_modules/.bin");
    assert!(bin.join("codex").exists(), "run tests/harness-clis/install.sh first: no codex in {}", bin.display());
    let mut path: OsString = bin.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    plan.resident = plan.resident.env("PATH", path);
    plan
}
