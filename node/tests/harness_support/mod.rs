//! Runs turns on a real host, as a resident does.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tieline::harness::{Command, Host, HostConfig, Limits, Output, Registry, SessionKey, Turn, TurnSpec, env};
use tieline_proto::entry::Policy;
use tieline_proto::event::{Answer, Ask, Event, Outcome};
use tieline_proto::id::{Attempt, ChannelId, Handle, MemberId, MessageId};
use tieline_proto::link::AttemptId;

/// Longer than any step of a test may take on a busy box; only a test that hangs meets it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A box with a host, a home folder and a folder to work in.
pub struct Rig {
    pub host: Host,
    pub root: PathBuf,
    pub cwd: PathBuf,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// A box with the given harnesses of its own. `extra` is added to the environment of programs.
    pub fn new(own: &[(&str, &[&str])], extra: &[(&str, String)]) -> Self {
        Self::with(own, extra, Limits::default())
    }

    /// A box of its own limits. Its `codex` is `app_server.py`, unless `PATH` has another one.
    pub fn with(own: &[(&str, &[&str])], extra: &[(&str, String)], limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = std::fs::canonicalize(folder.path()).expect("a path");
        let cwd = root.join("work");
        std::fs::create_dir_all(&cwd).expect("a folder");
        let mut env = env::base(std::env::vars_os(), &[]);
        env.insert("HOME".to_owned(), root.display().to_string());
        for (name, value) in extra {
            env.insert((*name).to_owned(), value.clone());
        }
        let path = env.get("PATH").cloned().unwrap_or_default();
        for (name, command) in own {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            Registry::add(&root, name, command, &path).expect("added");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness_support/app_server.py");
        let codex = vec!["python3".to_owned(), script.display().to_string()];
        let stands_in = !extra.iter().any(|(name, _)| *name == "PATH");
        let commands = stands_in.then(|| ("codex".to_owned(), codex)).into_iter().collect();
        let registry = Registry::load(&root, commands).expect("loaded");
        let keeper = PathBuf::from(env!("CARGO_BIN_EXE_tieline"));
        let host = Host::new(HostConfig { keeper, env, witness: Some(root.join("witness")), limits }, registry);
        Self { host, root, cwd, _folder: folder }
    }

    pub fn spec(&self, prompt: &str) -> TurnSpec {
        TurnSpec {
            id: AttemptId { channel: ChannelId([7; 32]), run: MessageId(1), attempt: Attempt(1) },
            member: MemberId(2),
            prompt: prompt.to_owned(),
            cwd: self.cwd.clone(),
            model: None,
            policy: Policy::Ask,
            session: None,
            again: false,
            env: BTreeMap::new(),
        }
    }

    pub fn start(&self, harness: &str, spec: TurnSpec) -> Running {
        Running { turn: self.host.start(&handle(harness), spec), seen: Vec::new(), session: None }
    }

    /// Runs a turn to its end.
    pub async fn run(&self, harness: &str, spec: TurnSpec) -> Done {
        self.start(harness, spec).done().await
    }

    pub const fn key(&self) -> SessionKey {
        (ChannelId([7; 32]), MemberId(2))
    }
}

pub fn handle(name: &str) -> Handle {
    Handle::lexical(name, "harness name").expect("a name")
}

/// A turn that runs.
pub struct Running {
    pub turn: Turn,
    pub seen: Vec<Event>,
    pub session: Option<String>,
}

/// A turn that ended.
#[derive(Debug)]
pub struct Done {
    pub events: Vec<Event>,
    pub session: Option<String>,
    pub outcome: Outcome,
}

impl Running {
    async fn output(&mut self) -> Output {
        let output = tokio::time::timeout(PATIENCE, self.turn.outputs.recv()).await;
        output.unwrap_or_else(|_| panic!("nothing more after {:?}", self.seen)).expect("an outcome comes last")
    }

    /// Waits for an event.
    pub async fn until(&mut self, wanted: impl Fn(&Event) -> bool) {
        loop {
            match self.output().await {
                Output::Event(event) => {
                    self.seen.push(event);
                    if self.seen.last().is_some_and(&wanted) {
                        return;
                    }
                }
                Output::Session(session) => self.session = Some(session),
                Output::Finished(outcome) => panic!("ended with {outcome:?} after {:?}", self.seen),
            }
        }
    }

    /// Waits for a text event.
    pub async fn until_text(&mut self) {
        self.until(|event| matches!(event, Event::Text { .. })).await;
    }

    /// Waits for a question.
    pub async fn asked(&mut self) -> Ask {
        self.until(|event| matches!(event, Event::Asked { .. })).await;
        match self.seen.last() {
            Some(Event::Asked { ask }) => ask.clone(),
            other => panic!("{other:?}"),
        }
    }

    pub async fn answer(&self, ask: &Ask, label: &str) {
        let answer = Answer { choice: vec![label.to_owned()], text: None };
        self.turn.commands.send(Command::Answer { ask: ask.id.clone(), answer }).await.expect("the turn runs");
    }

    pub async fn interrupt(&self) {
        // A turn that has ended by itself has nobody who listens.
        let _ended = self.turn.commands.send(Command::Interrupt).await;
    }

    pub async fn done(mut self) -> Done {
        loop {
            match self.output().await {
                Output::Event(event) => self.seen.push(event),
                Output::Session(session) => self.session = Some(session),
                Output::Finished(outcome) => {
                    let after = self.turn.outputs.recv().await;
                    assert!(after.is_none(), "{after:?} after the outcome");
                    return Done { events: self.seen, session: self.session, outcome };
                }
            }
        }
    }
}

impl Done {
    /// All text events in one.
    pub fn text(&self) -> String {
        let texts = self.events.iter().filter_map(|event| match event {
            Event::Text { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

/// Processes whose environment or command line holds `mark`.
pub fn processes(mark: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("a proc file system").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let holds = |file: &str| {
            let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(mark)
        };
        // A zombie has neither.
        if holds("environ") || holds("cmdline") {
            found.push(pid);
        }
    }
    found
}

/// Waits until no process holds `mark`.
pub async fn gone(mark: &str) {
    let wait = async {
        while !processes(mark).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
    assert!(waited.is_ok(), "still there: {:?}", processes(mark));
}

/// Waits until a file has a text that `ready` takes.
pub async fn file_with<T>(path: &Path, ready: impl Fn(&str) -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = std::fs::read_to_string(path).ok().and_then(|text| ready(&text)) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the file is written")
}

/// Waits until something is so.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "waited {PATIENCE:?} for {what}");
}
