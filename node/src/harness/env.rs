//! The environment of agent programs: a short list of variables of the node's own, and what the owner adds to it.
//!
//! The node's environment may hold keys of other services. A program gets only what it needs to find its files, its
//! login, its language and the network.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// Passed to every program when the node has it.
const PASSED: [&str; 18] = [
    "HOME",
    "PATH",
    "LANG",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
];

/// Where programs are looked for when the node itself was given no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// The variables of `node` that programs get: the short list of this module and the owner's `env_pass`.
///
/// Variables that are not UTF-8 are left out. `TIELINE_*` is never passed on: those are the node's own settings, and a
/// program gets its own set of them.
#[must_use]
pub fn base(node: impl IntoIterator<Item = (OsString, OsString)>, env_pass: &[String]) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = node
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !name.starts_with("TIELINE_"))
        .filter(|(name, _)| PASSED.contains(&name.as_str()) || env_pass.contains(name))
        .collect();
    env.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_list_and_what_the_owner_passes_reaches_programs() {
        let node = ["HOME", "USER", "https_proxy", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "TIELINE_DATA"]
            .map(|name| (name.into(), "x".into()));
        let env = base(node, &["OPENAI_API_KEY".to_owned(), "TIELINE_DATA".to_owned()]);
        let names: Vec<&str> = env.keys().map(String::as_str).collect();
        assert_eq!(names, ["HOME", "OPENAI_API_KEY", "PATH", "https_proxy"]);
    }
}
