//! One node: a `tieline up` process on a data folder of its own.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{Finished, Process};
use crate::wait::{DEADLINE, until};

/// How long a node may take to end by itself before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Holds `data/`, `home/`, `config/` and the log.
    pub dir: PathBuf,
    /// Arguments after `up --ready-file …`. Loopback and free ports by default.
    pub args: Vec<OsString>,
    /// Environment beside PATH, HOME and the node's folders.
    pub env: Vec<(OsString, OsString)>,
    /// Command that the node runs under, such as `strace`, with its arguments.
    pub under: Vec<OsString>,
    /// Command that the node and its commands run inside and that becomes them, such as `nsenter`.
    pub inside: Vec<OsString>,
}

impl Setup {
    /// A node below `dir`, on loopback and free ports, silent on the LAN.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let args = ["--api", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0", "--no-mdns"];
        Self {
            dir: dir.to_owned(),
            args: args.into_iter().map(OsString::from).collect(),
            env: Vec::new(),
            under: Vec::new(),
            inside: Vec::new(),
        }
    }

    /// Adds to the environment of the node and of its commands.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Replaces the arguments of `up`.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<OsString>>(mut self, args: I) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The HOME of the node and of its harnesses.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// A `tieline` command with this node's environment and nothing else of ours.
    #[must_use]
    pub fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Command {
        let mut command = program(&self.inside);
        self.prepare(&mut command);
        command.args(args);
        command
    }

    fn prepare(&self, command: &mut Command) {
        for folder in [self.data(), self.home(), self.dir.join("config")] {
            fs::create_dir_all(folder).expect("the test's folders can be made");
        }
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LANG", "C.UTF-8")
            .env("HOME", self.home())
            .env("XDG_CONFIG_HOME", self.dir.join("config"))
            .env("TIELINE_DATA", self.data())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir);
    }

    /// Runs a `tieline` command on this data folder.
    ///
    /// # Panics
    /// When it does not end within [`DEADLINE`].
    pub fn cli<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Finished {
        self.spawn_cli(args).finish()
    }

    /// Starts a `tieline` command on this data folder.
    pub fn spawn_cli<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Process {
        Process::spawn(self.command(args))
    }

    /// Starts `up` and gives what it printed when it does not come up.
    ///
    /// # Panics
    /// When it has not ended within [`DEADLINE`].
    pub fn up_fails(&self) -> Finished {
        let mut args = vec![OsString::from("up")];
        args.extend(self.args.iter().cloned());
        self.spawn_cli(args).finish()
    }

    /// Starts the node and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up; the message has its log.
    #[must_use]
    pub fn start(self) -> Node {
        let mut node = Node { setup: self, child: None, ready: Value::Null };
        node.start();
        node
    }
}

/// A node that runs. Dropping it stops it.
#[derive(Debug)]
pub struct Node {
    setup: Setup,
    child: Option<Child>,
    ready: Value,
}

impl Node {
    /// Starts a node below `dir` with the usual setup.
    ///
    /// # Panics
    /// As [`Setup::start`].
    #[must_use]
    pub fn up(dir: &Path) -> Self {
        Setup::new(dir).start()
    }

    /// Starts it (again) and waits until it answers.
    ///
    /// # Panics
    /// When it runs already or does not come up.
    pub fn start(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Starts it (again) and does not wait.
    ///
    /// # Panics
    /// When it runs already or cannot be started.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the node runs already");
        // A crash leaves the old file: what is waited for must be the new one.
        let _ = fs::remove_file(self.ready_file());
        let mut command = program(&[&self.setup.inside[..], &self.setup.under].concat());
        self.setup.prepare(&mut command);
        let log = File::options().create(true).append(true).open(self.log_file()).expect("the log can be written");
        command.arg("up").arg("--ready-file").arg(self.ready_file()).args(&self.setup.args);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.child = Some(command.spawn().expect("tieline can be started"));
    }

    /// Waits until it answers.
    ///
    /// # Panics
    /// When it ends instead, or does neither within [`DEADLINE`].
    pub fn wait_ready(&mut self) {
        let began = Instant::now();
        loop {
            if let Ok(text) = fs::read_to_string(self.ready_file()) {
                self.ready = serde_json::from_str(&text).expect("the ready file is one JSON value");
                return;
            }
            let child = self.child.as_mut().expect("the node was started");
            if let Ok(Some(status)) = child.try_wait() {
                self.child = None;
                panic!("the node ended with {status}:\n{}", self.log());
            }
            assert!(began.elapsed() < DEADLINE, "the node is not ready:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it at once, as a power cut would, but for what the kernel still writes.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Under `strace` the node is a grandchild.
            if !self.setup.under.is_empty() {
                self.signal(Signal::KILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it in order.
    ///
    /// # Panics
    /// When it does not end by itself, or not with 0.
    pub fn stop(&mut self) {
        assert!(self.end_in_order(), "the node did not stop in order:\n{}", self.log());
    }

    fn end_in_order(&mut self) -> bool {
        let Some(mut child) = self.child.take() else { return true };
        if self.setup.under.is_empty() {
            signal(child.id(), Signal::TERM);
        } else {
            self.signal(Signal::TERM);
        }
        let began = Instant::now();
        while began.elapsed() < STOP_PATIENCE {
            if let Ok(Some(status)) = child.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    /// Kills it and starts it again.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn crash(&mut self) {
        self.kill9();
        self.start();
    }

    /// Stops it in order and starts it again.
    ///
    /// # Panics
    /// When it does not stop or not come up.
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Whether its process runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Sends the node's own process a signal.
    pub fn signal(&self, which: Signal) {
        if let Some(pid) = self.ready["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) {
            signal(pid, which);
        }
    }

    /// Runs a command on this node.
    ///
    /// # Panics
    /// When it does not end within [`DEADLINE`].
    pub fn cli<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Finished {
        self.setup.cli(args)
    }

    /// Starts a command on this node.
    pub fn spawn_cli<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Process {
        self.setup.spawn_cli(args)
    }

    /// `status --json`.
    ///
    /// # Panics
    /// When the node does not answer.
    #[must_use]
    pub fn status(&self) -> Value {
        self.cli(["status", "--json"]).ok().json()
    }

    /// Waits until the link to the other node is up.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn wait_link(&self) {
        until("the link to be up", || {
            let status = self.cli(["status", "--json"]);
            (status.code == Some(0))
                .then(|| status.json())?
                .get("links")?
                .as_array()?
                .iter()
                .any(|link| link["state"] == "up")
                .then_some(())
        });
    }

    /// What the ready file said.
    #[must_use]
    pub const fn ready(&self) -> &Value {
        &self.ready
    }

    /// Its id.
    ///
    /// # Panics
    /// When the ready file named none.
    #[must_use]
    pub fn id(&self) -> String {
        self.ready["node"].as_str().expect("the ready file names the node").to_owned()
    }

    /// The process id of the node itself.
    ///
    /// # Panics
    /// When the ready file named none.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.ready["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("the ready file has the pid")
    }

    /// What it was started with.
    #[must_use]
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// To change what its next start uses.
    pub const fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// Its data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.setup.data()
    }

    /// All it has logged to its streams.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_file()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.setup.dir.join("node.log")
    }

    fn ready_file(&self) -> PathBuf {
        self.setup.dir.join("ready.json")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // In order where possible: it ends the harness processes that it started.
        let _ = self.end_in_order();
        if std::thread::panicking() {
            eprintln!("---- log of {}:\n{}", self.setup.dir.display(), tail(&self.log(), 60));
        }
    }
}

/// The path of one of our binaries: `TIELINE_BIN` for `tieline` when it is set, else beside the test's own build.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os("TIELINE_BIN").filter(|_| name == "tieline") {
        return PathBuf::from(path);
    }
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.ancestors().find(|folder| folder.join(name).is_file());
    let folder = folder.unwrap_or_else(|| panic!("{name} is not built: cargo build --profile ci --bins"));
    folder.join(name)
}

/// `tieline`, behind the commands that it runs inside or under.
fn program(outer: &[OsString]) -> Command {
    match outer.split_first() {
        None => Command::new(binary("tieline")),
        Some((first, args)) => {
            let mut command = Command::new(first);
            command.args(args).arg(binary("tieline"));
            command
        }
    }
}

fn signal(pid: u32, which: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, which);
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}
