//! The harnesses of this box: the built-in ones, and commands that its owner gave a name.
//!
//! A channel's home names a harness; only this box's owner says which program that is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tieline_proto::id::{Handle, ParseIdError};
use tokio::io::AsyncReadExt as _;

use crate::keys;

/// The owner's commands, in the data folder.
const FILE: &str = "harnesses.json";

/// Harnesses an owner can define; far more than a box has.
const OWN_MAX: usize = 256;

/// Names that mean the same on every box, so an owner can't give them to a command. Those that this version has no
/// adapter for are kept for the one that will.
const RESERVED: [&str; 8] = ["scripted", CLAUDE_CODE, CODEX, "opencode", "gemini", "copilot", "pi", "acp"];

const CLAUDE_CODE: &str = "claude-code";
const CODEX: &str = "codex";

/// How long a program may take to say its version. A cold start on a busy small box takes seconds.
const VERSION_WAIT: Duration = Duration::from_secs(15);

/// Bytes read of what a program says to `--version`.
const VERSION_LEN_MAX: u64 = 4096;

/// Why the list of harnesses can't be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The file can't be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is not what this program writes.
    #[error("{}: {error}; mend it or delete it and add your harnesses again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// The name breaks its grammar.
    #[error(transparent)]
    Name(#[from] ParseIdError),
    /// The name is a built-in harness's.
    #[error("harness `{0}` is built in; choose another name")]
    Reserved(String),
    /// No command was given.
    #[error("a harness needs a command: tieline harness add NAME -- COMMAND [ARGUMENT…]")]
    NoCommand,
    /// The command is not a program of this box.
    #[error("no program `{0}` on this box")]
    NoProgram(String),
    /// There are too many.
    #[error("this box has {OWN_MAX} harnesses already")]
    TooMany,
    /// There is none of that name.
    #[error("this box has no harness `{0}` of its own")]
    NotFound(String),
}

/// The harnesses of a box.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    own: BTreeMap<Handle, Own>,
    commands: BTreeMap<String, Vec<String>>,
}

/// A command with a name.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Own {
    command: Vec<String>,
}

/// What drives a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Adapter {
    /// No program: the node itself.
    Scripted,
    /// Prompt on stdin, answer on stdout.
    Exec,
    /// Claude Code's stream of JSON lines.
    ClaudeCode,
    /// Codex' app-server.
    Codex,
}

/// A harness that can be started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Resolved {
    /// What drives it.
    pub adapter: Adapter,
    /// Its program; empty for the scripted harness.
    pub program: PathBuf,
    /// Arguments that come before the adapter's own.
    pub args: Vec<OsString>,
}

/// One harness, as `tieline harness list` shows it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// What drives it.
    pub adapter: Adapter,
    /// The command; empty for the scripted harness.
    pub command: Vec<String>,
    /// Whether it can be started.
    pub available: bool,
    /// What it says to `--version`; built-in harnesses only.
    pub version: Option<String>,
    /// Why it can't be started and what to do about it.
    pub problem: Option<String>,
}

impl Registry {
    /// Reads the owner's commands from the data folder. `commands` are the configured commands of built-in harnesses.
    ///
    /// # Errors
    /// When the file is there and can't be read.
    pub fn load(data: &Path, commands: BTreeMap<String, Vec<String>>) -> Result<Self, RegistryError> {
        Ok(Self { own: read(data)?, commands })
    }

    /// Gives a command a name and saves it. A bare program name is looked up in `path` each time it runs; any other
    /// is made absolute now.
    ///
    /// # Errors
    /// When the name or the command is not usable, or the file can't be written.
    pub fn add(data: &Path, name: &str, mut command: Vec<String>, path: &str) -> Result<(), RegistryError> {
        let handle = Handle::lexical(name, "harness name")?;
        if RESERVED.contains(&name) {
            return Err(RegistryError::Reserved(name.to_owned()));
        }
        let program = command.first_mut().filter(|program| !program.is_empty()).ok_or(RegistryError::NoCommand)?;
        let missing = || RegistryError::NoProgram(program.clone());
        if program.contains('/') {
            // A program beneath a member's folder must not depend on which folder that is.
            let absolute = std::path::absolute(&*program).map_err(|_| missing())?;
            let absolute = absolute.to_str().filter(|path| is_program(Path::new(path))).ok_or_else(missing)?;
            *program = absolute.to_owned();
        } else if find(program, path).is_none() {
            return Err(missing());
        }
        let mut own = read(data)?;
        if own.len() >= OWN_MAX && !own.contains_key(&handle) {
            return Err(RegistryError::TooMany);
        }
        own.insert(handle, Own { command });
        write(data, &own)
    }

    /// Forgets a command and saves that.
    ///
    /// # Errors
    /// When there is none of that name, or the file can't be written.
    pub fn remove(data: &Path, name: &str) -> Result<(), RegistryError> {
        let mut own = read(data)?;
        let known = Handle::lexical(name, "harness name").ok().and_then(|handle| own.remove(&handle));
        known.ok_or_else(|| RegistryError::NotFound(name.to_owned()))?;
        write(data, &own)
    }

    /// The names of all harnesses.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let built_in =
            [Adapter::Scripted, Adapter::ClaudeCode, Adapter::Codex].map(|adapter| adapter.name().to_owned());
        built_in.into_iter().chain(self.own.keys().map(ToString::to_string)).collect()
    }

    /// Whether there is a harness of that name, installed or not.
    #[must_use]
    pub fn has(&self, name: &Handle) -> bool {
        Adapter::built_in(name.as_str()).is_some() || self.own.contains_key(name)
    }

    /// Finds the program of a harness in the `PATH` of `env`.
    ///
    /// # Errors
    /// Why it can't be started, in words, with what to do about it.
    pub fn resolve(&self, name: &Handle, env: &BTreeMap<String, String>) -> Result<Resolved, String> {
        let Some((adapter, command)) = self.command(name.as_str()) else {
            return Err(format!(
                "this box has no harness `{name}`; it has {}; tieline harness add {name} -- COMMAND",
                self.names().join(", ")
            ));
        };
        let Some((program, args)) = command.split_first() else {
            return Ok(Resolved { adapter, program: PathBuf::new(), args: Vec::new() });
        };
        let path = env.get("PATH").map(String::as_str).unwrap_or_default();
        let found = find(program, path).ok_or_else(|| adapter.missing(name, program))?;
        Ok(Resolved { adapter, program: found, args: args.iter().map(OsString::from).collect() })
    }

    /// Looks at every harness, asking the built-in programs for their version all at once.
    pub async fn probe(&self, env: &BTreeMap<String, String>) -> Vec<Report> {
        let looks = self.names().into_iter().map(|name| self.look(name, env));
        futures::future::join_all(looks).await
    }

    async fn look(&self, name: String, env: &BTreeMap<String, String>) -> Report {
        let (adapter, command) = self.command(&name).unwrap_or((Adapter::Scripted, Vec::new()));
        let resolved = match Handle::lexical(&name, "harness name") {
            Ok(handle) => self.resolve(&handle, env),
            Err(error) => Err(error.to_string()),
        };
        let version = match &resolved {
            Ok(found) if matches!(adapter, Adapter::ClaudeCode | Adapter::Codex) => version(found, env).await.map(Some),
            Ok(_) => Ok(None),
            Err(problem) => Err(problem.clone()),
        };
        let (version, problem) = match version {
            Ok(version) => (version, None),
            Err(problem) => (None, Some(problem)),
        };
        Report { name, adapter, command, available: problem.is_none(), version, problem }
    }

    fn command(&self, name: &str) -> Option<(Adapter, Vec<String>)> {
        if let Some(adapter) = Adapter::built_in(name) {
            let configured = self.commands.get(name).filter(|command| !command.is_empty()).cloned();
            return Some((adapter, configured.unwrap_or_else(|| adapter.default_command())));
        }
        let own = Handle::lexical(name, "harness name").ok().and_then(|handle| self.own.get(&handle))?;
        Some((Adapter::Exec, own.command.clone()))
    }
}

impl Adapter {
    fn built_in(name: &str) -> Option<Self> {
        [Self::Scripted, Self::ClaudeCode, Self::Codex].into_iter().find(|adapter| adapter.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Scripted => "scripted",
            Self::Exec => "exec",
            Self::ClaudeCode => CLAUDE_CODE,
            Self::Codex => CODEX,
        }
    }

    fn default_command(self) -> Vec<String> {
        match self {
            Self::Scripted | Self::Exec => Vec::new(),
            Self::ClaudeCode => vec!["claude".to_owned()],
            Self::Codex => vec!["codex".to_owned()],
        }
    }

    fn missing(self, name: &Handle, program: &str) -> String {
        let install = match self {
            Self::ClaudeCode => "npm i -g @anthropic-ai/claude-code".to_owned(),
            Self::Codex => "npm i -g @openai/codex".to_owned(),
            Self::Scripted | Self::Exec => {
                return format!("the program `{program}` of harness `{name}` is not on this box");
            }
        };
        format!(
            "harness `{name}` is not installed on this box (no `{program}` in PATH): {install}, or set \
             harness.{name}.command in the configuration"
        )
    }
}

async fn version(found: &Resolved, env: &BTreeMap<String, String>) -> Result<String, String> {
    let name = found.program.display();
    let mut child = tokio::process::Command::new(&found.program)
        .args(&found.args)
        .arg("--version")
        .env_clear()
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("can't run {name}: {error}"))?;
    let mut said = String::new();
    let asked = async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(VERSION_LEN_MAX).read_to_string(&mut said).await?;
        }
        child.wait().await
    };
    match tokio::time::timeout(VERSION_WAIT, asked).await {
        Ok(Ok(status)) if status.success() => Ok(said.lines().next().unwrap_or_default().trim().to_owned()),
        Ok(Ok(status)) => Err(format!("{name} --version failed: {status}")),
        Ok(Err(error)) => Err(format!("can't run {name}: {error}")),
        Err(_) => Err(format!("{name} --version took more than {} s", VERSION_WAIT.as_secs())),
    }
}

/// The file of a program: itself when absolute, else the first in `path`. Relative folders in `path` are skipped: they
/// would mean another program in every folder.
fn find(program: &str, path: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_absolute() && is_program(file));
    }
    let folders = path.split(':').map(Path::new).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(program)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn read(data: &Path) -> Result<BTreeMap<Handle, Own>, RegistryError> {
    let path = data.join(FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| RegistryError::Malformed { path, error }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(RegistryError::Io { path, error }),
    }
}

fn write(data: &Path, own: &BTreeMap<Handle, Own>) -> Result<(), RegistryError> {
    let path = data.join(FILE);
    let json =
        serde_json::to_vec_pretty(own).map_err(|error| RegistryError::Malformed { path: path.clone(), error })?;
    keys::write(&path, &json).map_err(|error| RegistryError::Io { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

    fn handle(name: &str) -> Handle {
        Handle::lexical(name, "harness name").expect("a name")
    }

    fn env(path: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("PATH".to_owned(), path.to_owned())])
    }

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn what_is_added_is_there_after_a_restart_and_private() {
        let data = tempfile::tempdir().expect("a folder");
        Registry::add(data.path(), "upper", command(&["tr", "a-z", "A-Z"]), PATH).expect("added");
        let registry = Registry::load(data.path(), BTreeMap::new()).expect("loaded");
        let found = registry.resolve(&handle("upper"), &env(PATH)).expect("found");
        assert_eq!(found.adapter, Adapter::Exec);
        assert_eq!(found.args, ["a-z", "A-Z"]);
        assert!(found.program.is_absolute());
        let mode = fs::metadata(data.path().join(FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        Registry::remove(data.path(), "upper").expect("removed");
        assert!(matches!(Registry::remove(data.path(), "upper"), Err(RegistryError::NotFound(_))));
        assert!(!Registry::load(data.path(), BTreeMap::new()).expect("loaded").has(&handle("upper")));
    }

    #[test]
    fn names_and_commands_are_checked_before_anything_is_saved() {
        let data = tempfile::tempdir().expect("a folder");
        let add = |name: &str, words: &[&str]| Registry::add(data.path(), name, command(words), PATH);
        assert!(matches!(add("codex", &["cat"]), Err(RegistryError::Reserved(_))));
        assert!(matches!(add("gemini", &["cat"]), Err(RegistryError::Reserved(_))));
        assert!(matches!(add("No", &["cat"]), Err(RegistryError::Name(_))));
        assert!(matches!(add("mine", &[]), Err(RegistryError::NoCommand)));
        assert!(matches!(add("mine", &["no-such-program-here"]), Err(RegistryError::NoProgram(_))));
        assert!(matches!(add("mine", &["/etc/passwd"]), Err(RegistryError::NoProgram(_))));
        assert!(!data.path().join(FILE).exists());
    }

    #[test]
    fn a_missing_program_is_told_with_the_command_that_installs_it() {
        let registry = Registry::default();
        let problem = registry.resolve(&handle("codex"), &env("/nonexistent")).expect_err("not installed");
        assert!(problem.contains("npm i -g @openai/codex"), "{problem}");
        let problem = registry.resolve(&handle("nothing"), &env(PATH)).expect_err("unknown");
        assert!(problem.contains("scripted, claude-code, codex"), "{problem}");
    }

    #[test]
    fn relative_folders_of_the_path_are_never_searched() {
        assert_eq!(find("cat", ".:bin:"), None);
        assert!(find("cat", PATH).is_some());
    }

    #[test]
    fn a_configured_command_wins_over_the_path() {
        let commands = BTreeMap::from([(CODEX.to_owned(), command(&["/bin/cat", "-u"]))]);
        let registry = Registry { own: BTreeMap::new(), commands };
        let found = registry.resolve(&handle("codex"), &env("")).expect("found");
        assert_eq!((found.program.as_path(), found.args), (Path::new("/bin/cat"), vec![OsString::from("-u")]));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_list() {
        let data = tempfile::tempdir().expect("a folder");
        fs::write(data.path().join(FILE), "{").expect("written");
        assert!(matches!(Registry::load(data.path(), BTreeMap::new()), Err(RegistryError::Malformed { .. })));
    }

    #[tokio::test]
    async fn probing_says_what_is_there_and_why_the_rest_is_not() {
        let reports = Registry::default().probe(&env("/nonexistent")).await;
        let available: Vec<_> = reports.iter().map(|report| (report.name.as_str(), report.available)).collect();
        assert_eq!(available, [("scripted", true), ("claude-code", false), ("codex", false)]);
        assert!(reports.iter().all(|report| report.available == report.problem.is_none()));
    }
}
