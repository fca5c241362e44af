//! What only root can show: small disks, networks of one's own.

/// Whether this is root. If not, says so in words that the table of a test run repeats: nothing was shown.
///
/// As root a missing ability is no excuse: what then cannot be done fails the test.
#[must_use]
pub fn is_root_for(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("NOT SHOWN: {what} (needs root)");
    }
    root
}
