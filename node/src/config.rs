//! What a node is told at its start: flags over environment over the config file over defaults.
//!
//! [`load`] is a function of its inputs alone (flags, an environment, the user's folders), so precedence is tested without
//! touching the process. Everything is parsed here once; past this module a [`Config`] is valid by type.

mod file;
mod keys;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use libp2p::Multiaddr;
use serde::Serialize;
use serde_json::Value;
use tieline_proto::api::{ApiError, Code};

pub use keys::{API_PORT, LISTEN_PORT, log_filter};

/// Everything the node is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The folder that holds all of the node's data; absolute.
    pub data: PathBuf,
    /// Whether somebody chose it: then commands must be told of it.
    pub data_chosen: bool,
    /// What people call this node; the host's name by default.
    pub name: String,
    /// Whether somebody chose it. Otherwise the name that it was enrolled under counts.
    pub name_chosen: bool,
    /// Where the loopback page and API listen.
    pub api: ApiAddr,
    /// Where other nodes reach this one.
    pub listen: Listen,
    /// Nodes to join the network through.
    pub bootstrap: Vec<Multiaddr>,
    /// Relays to be reachable through.
    pub relay: Vec<Multiaddr>,
    /// Whether nodes on the same LAN find each other by multicast.
    pub mdns: bool,
    /// Whether the page and the device door are served on the LAN too.
    pub lan: bool,
    /// Names of variables that children of this node get from its own environment.
    pub env_pass: Vec<String>,
    /// Harnesses that the box's owner defined, by name.
    pub harness: BTreeMap<String, HarnessConfig>,
    /// How logs are written to stderr.
    pub log: LogFormat,
    /// What is logged: a `tracing` filter such as `info` or `tieline=debug,warn`.
    pub log_level: String,
    /// Where to write the ready file.
    pub ready_file: Option<PathBuf>,
    /// Stdout holds JSON alone.
    pub json: bool,
}

/// How `tieline` is called for a data folder that somebody chose.
#[must_use]
pub fn program(data: &Path) -> String {
    format!("tieline --data {}", shell_word(&data.to_string_lossy()))
}

/// A text as a word of a shell's command line.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Where the loopback API listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ApiAddr {
    /// A loopback address; port 0 takes any free one.
    pub addr: SocketAddr,
    /// Whether somebody chose it. A default that is busy is replaced by a free port, a chosen one is an error.
    pub chosen: bool,
}

/// Where the node listens for other nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listen {
    /// The addresses.
    pub addrs: Vec<Multiaddr>,
    /// Whether somebody chose them. Defaults that are busy are replaced by free ports, chosen ones are an error.
    pub chosen: bool,
}

/// An `exec` harness: the command is fixed by the box's owner.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct HarnessConfig {
    /// Program and arguments; never empty, never given to a shell.
    pub command: Vec<String>,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// What the command line says. `None` and empty lists say nothing.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--data`.
    pub data: Option<PathBuf>,
    /// `--api`.
    pub api: Option<String>,
    /// `--listen`.
    pub listen: Vec<String>,
    /// `--bootstrap`.
    pub bootstrap: Vec<String>,
    /// `--relay`.
    pub relay: Vec<String>,
    /// `--no-mdns`.
    pub no_mdns: bool,
    /// `--lan`.
    pub lan: bool,
    /// `--name`.
    pub name: Option<String>,
    /// `--log`.
    pub log: Option<String>,
    /// `--log-level`.
    pub log_level: Option<String>,
    /// `--ready-file`.
    pub ready_file: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// The user's folders and the host's name.
#[derive(Clone, Debug)]
pub struct Places {
    /// Where data is when nobody says otherwise.
    pub data: PathBuf,
    /// The folder of the config file; `None` on a box without a home.
    pub config: Option<PathBuf>,
    /// The host's name.
    pub host: String,
}

impl Config {
    /// A command of `tieline` as a person types it for this data folder.
    #[must_use]
    pub fn command(&self, args: &str) -> String {
        if self.data_chosen { format!("{} {args}", program(&self.data)) } else { format!("tieline {args}") }
    }

    /// Refuses what this version accepts in a configuration and does not do: it would be believed to work.
    ///
    /// # Errors
    /// When a relay or the LAN door is asked for.
    pub fn check_supported(&self) -> Result<(), ApiError> {
        let later = |what: &str, hint: &str| {
            Err(ApiError::new(Code::Invalid, format!("{what} in this version yet")).hint(hint))
        };
        if !self.relay.is_empty() {
            let hint =
                "leave relay out (--relay, TIELINE_RELAY, the config file); name an address others reach with --listen";
            return later("nodes can't be reached through relays", hint);
        }
        if self.lan {
            let hint = "leave lan out (--lan, TIELINE_LAN, the config file); other boxes join with tieline pair";
            return later("the page and the device door are not served on the LAN", hint);
        }
        Ok(())
    }
}

impl Places {
    /// The folders of the user who runs this process, by the XDG rules or the platform's own.
    #[must_use]
    pub fn of_user() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        match directories::ProjectDirs::from("", "", "tieline") {
            Some(dirs) => Self { data: dirs.data_dir().to_owned(), config: Some(dirs.config_dir().to_owned()), host },
            None => Self { data: PathBuf::from(".tieline"), config: None, host },
        }
    }
}

/// A configuration and where each of its values comes from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values, for the node.
    pub config: Config,
    /// The values, for people.
    pub settings: Vec<Setting>,
}

/// One value with its source, as `config show` prints it. Secrets are masked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The key, as the config file spells it.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Where it comes from.
    #[serde(flatten)]
    pub source: Source,
}

/// Where a value comes from, strongest first.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "source", content = "at", rename_all = "kebab-case")]
pub enum Source {
    /// The command line: the flag.
    Flag(String),
    /// The environment: the variable.
    Env(String),
    /// The config file: its path.
    File(PathBuf),
    /// Nobody said anything.
    Default,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Env(name) => write!(f, "${name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The config file can't be read.
    #[error("config file {path} can't be read: {error}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The config file is not TOML.
    #[error("config file {path} is not valid TOML: {error}", path = .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser says, with line and column.
        error: toml::de::Error,
    },
    /// The config file has a key that nobody reads.
    #[error("unknown key {key:?} in {path}", path = .path.display())]
    UnknownKey {
        /// The key.
        key: String,
        /// The file.
        path: PathBuf,
        /// The valid key that is spelled most like it.
        nearest: Option<String>,
    },
    /// A value is not what its key takes.
    #[error("{key} is {value}, from {source_text}: {reason}")]
    Value {
        /// The key.
        key: String,
        /// The value, as JSON.
        value: String,
        /// Where it comes from.
        source_text: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        let hint = match &error {
            ConfigError::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest:?}?"),
            ConfigError::UnknownKey { nearest: None, .. } => {
                format!("the keys are {}", keys::NAMES.join(", "))
            }
            ConfigError::Read { .. } | ConfigError::Syntax { .. } => "correct the file or move it away".to_owned(),
            ConfigError::Value { .. } => "tieline config show prints every key with its value".to_owned(),
        };
        Self::new(Code::Invalid, error.to_string()).hint(hint)
    }
}

/// The data folder alone: what commands need that talk to a running node. Reads no file.
///
/// It is absolute: agents that work in other folders get paths below it.
#[must_use]
pub fn data_dir(flag: Option<&Path>, env: &dyn Fn(&str) -> Option<String>, places: &Places) -> (PathBuf, Source) {
    let (dir, source) = match (flag, env("TIELINE_DATA").filter(|dir| !dir.is_empty())) {
        (Some(dir), _) => (dir.to_owned(), Source::Flag("--data".to_owned())),
        (None, Some(dir)) => (PathBuf::from(dir), Source::Env("TIELINE_DATA".to_owned())),
        (None, None) => (places.data.clone(), Source::Default),
    };
    // An empty path has no absolute form; it is refused where it is used.
    (std::path::absolute(&dir).unwrap_or(dir), source)
}

/// Resolves the configuration.
///
/// The config file is `config.toml` in the user's config folder, else in the data folder; at most one is read.
///
/// # Errors
/// When the file can't be read or parsed, has an unknown key, or a value from anywhere is not what its key takes.
pub fn load(flags: &Flags, env: &dyn Fn(&str) -> Option<String>, places: &Places) -> Result<Loaded, ConfigError> {
    let (data, data_source) = data_dir(flags.data.as_deref(), env, places);
    let file = file::read(places.config.as_deref(), &data)?;
    keys::resolve(flags, env, places, (data, data_source), file)
}

#[cfg(test)]
mod tests;
