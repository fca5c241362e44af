//! A home and a resident on one box, paired by the command line, with a channel `lobby`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::node::{Node, Setup};
use crate::view::Channel;
use crate::wait::until;

/// Name that the resident gives itself.
pub const RESIDENT: &str = "lab";

/// Two paired nodes. Dropping it stops both and removes their folders.
#[derive(Debug)]
pub struct Mesh {
    /// Writes the logs.
    pub home: Node,
    /// Runs the members.
    pub resident: Node,
    dir: TempDir,
}

/// What a mesh is made of.
#[derive(Debug)]
pub struct Plan {
    dir: TempDir,
    /// The home's setup.
    pub home: Setup,
    /// The resident's setup.
    pub resident: Setup,
    /// Commands that the resident's owner defines: name and command.
    pub commands: Vec<(String, Vec<String>)>,
    /// Harnesses that the resident's owner consents to, beside the commands.
    pub harnesses: Vec<String>,
    /// `env_pass` of the resident's owner: variables that harnesses see.
    pub env_pass: Vec<String>,
}

impl Default for Plan {
    fn default() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let home = Setup::new(&dir.path().join("home"));
        let resident = Setup::new(&dir.path().join(RESIDENT));
        let harnesses = vec!["scripted".to_owned()];
        Self { dir, home, resident, commands: Vec::new(), harnesses, env_pass: Vec::new() }
    }
}

impl Plan {
    /// Adds a command that the resident's owner defines under a name.
    #[must_use]
    pub fn command<I: IntoIterator<Item = S>, S: Into<String>>(mut self, name: &str, command: I) -> Self {
        self.commands.push((name.to_owned(), command.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds a harness that the resident's owner consents to.
    #[must_use]
    pub fn harness(mut self, name: &str) -> Self {
        self.harnesses.push(name.to_owned());
        self
    }

    /// Sets a variable at the resident and lets harnesses see it.
    #[must_use]
    pub fn pass(mut self, name: &str, value: impl Into<std::ffi::OsString>) -> Self {
        self.resident = self.resident.env(name, value);
        self.env_pass.push(name.to_owned());
        self
    }

    /// The folder that the resident's members may work in.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// A script in the mesh's folder, executable.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn script(&self, name: &str, text: &str) -> String {
        write_script(self.dir.path(), name, text)
    }

    /// Starts both nodes, pairs them, and makes the channel `lobby`.
    ///
    /// # Panics
    /// When a step fails.
    #[must_use]
    pub fn start(self) -> Mesh {
        let work = self.work();
        fs::create_dir_all(&work).expect("the work folder can be made");
        if !self.env_pass.is_empty() {
            let list: Vec<_> = self.env_pass.iter().map(|name| format!("{name:?}")).collect();
            let config = self.resident.data().join("config.toml");
            fs::create_dir_all(self.resident.data()).expect("the data folder can be made");
            fs::write(config, format!("env_pass = [{}]\n", list.join(", "))).expect("the configuration can be written");
        }
        for (name, command) in &self.commands {
            let mut args = vec!["harness".to_owned(), "add".to_owned(), name.clone(), "--".to_owned()];
            args.extend(command.iter().cloned());
            let _ = self.resident.cli(args).ok();
        }
        let home = self.home.start();
        let mut harnesses = self.harnesses;
        harnesses.extend(self.commands.into_iter().map(|(name, _)| name));
        let _ = pair(&home, &self.resident, &harnesses.join(","), &work);
        let resident = self.resident.start();
        let mesh = Mesh { home, resident, dir: self.dir };
        mesh.home.wait_link();
        let _ = mesh.home.cli(["channel", "create", "lobby", "--json"]).ok();
        mesh
    }
}

/// Enrols a resident that does not run yet, and gives the home's last word: `{"event":"enrolled",…}`.
///
/// # Panics
/// When a step fails.
pub fn pair(home: &Node, resident: &Setup, harnesses: &str, work: &Path) -> Value {
    let mut pair = home.spawn_cli(["pair", "--role", "member", "--json"]);
    let offer = pair.wait_json("an offer", |value| value["event"] == "offer");
    let link = offer["link"].as_str().expect("an offer has a link");
    let args = ["join", "-", "--name", RESIDENT, "--resident", "--harness", harnesses, "--cwd"];
    let mut args: Vec<&OsStr> = args.into_iter().map(OsStr::new).collect();
    args.extend([work.as_os_str(), OsStr::new("--json")]);
    let mut join = resident.spawn_cli(args);
    join.write_line(link);
    join.close_stdin();
    let digits = join.wait_json("the digits", |value| value["event"] == "digits");
    pair.wait_json("the claim", |value| value["event"] == "claim");
    pair.write_line(digits["digits"].as_str().expect("digits are text"));
    let enrolled = pair.wait_json("the enrolment", |value| value["event"] == "enrolled");
    join.wait_json("the certificate", |value| value["event"] == "enrolled");
    let _ = join.finish().ok();
    let _ = pair.finish().ok();
    enrolled
}

impl Mesh {
    /// A mesh whose resident's owner consents to the scripted harness.
    ///
    /// # Panics
    /// When a step fails.
    #[must_use]
    pub fn start() -> Self {
        Plan::default().start()
    }

    /// Adds a member that lives on the resident.
    ///
    /// # Panics
    /// When it is refused.
    pub fn add(&self, handle: &str, harness: &str) {
        self.add_with(handle, harness, &[]);
    }

    /// As [`Mesh::add`], with more arguments.
    ///
    /// # Panics
    /// When it is refused.
    pub fn add_with(&self, handle: &str, harness: &str, more: &[&str]) {
        let work = self.work();
        let mut args: Vec<&OsStr> = ["member", "add", "lobby", handle, "--harness", harness, "--on", RESIDENT, "--cwd"]
            .into_iter()
            .map(OsStr::new)
            .collect();
        args.push(work.as_os_str());
        args.extend(more.iter().map(OsStr::new));
        args.push(OsStr::new("--json"));
        let _ = self.home.cli(args).ok();
    }

    /// Adds a member that runs the scripted harness on the resident.
    ///
    /// # Panics
    /// When it is refused.
    pub fn add_scripted(&self, handle: &str) {
        self.add(handle, "scripted");
    }

    /// The channel `lobby`, as the home shows it.
    #[must_use]
    pub const fn lobby(&self) -> Channel<'_> {
        Channel::new(&self.home, "lobby")
    }

    /// The folder that the resident's members work in.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// The folder of everything.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until both nodes say that their link is up.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn wait_links(&self) {
        self.home.wait_link();
        self.resident.wait_link();
    }

    /// Waits until a file in the work folder has the given text in it, and gives all of it.
    ///
    /// # Panics
    /// When it does not come.
    #[expect(clippy::must_use_candidate, reason = "often only the waiting is wanted")]
    pub fn wait_file(&self, name: &str, text: &str) -> String {
        let path = self.work().join(name);
        until(&format!("{text:?} in {name}"), || {
            let all = fs::read_to_string(&path).ok()?;
            all.contains(text).then_some(all)
        })
    }
}

/// Writes an executable script and gives its path.
///
/// # Panics
/// When it cannot be written.
#[must_use]
pub fn write_script(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).expect("a script can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
    path.to_str().expect("temporary folders have plain names").to_owned()
}
