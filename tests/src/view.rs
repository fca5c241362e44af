//! What a channel shows, read through the command line.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::Value;

use crate::node::Node;
use crate::process::{Finished, Process};
use crate::wait::{DEADLINE, until, until_within};

/// One channel through one node's command line.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'a> {
    node: &'a Node,
    name: &'a str,
}

/// A message that was saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Its number.
    pub message: u64,
    /// Its entry.
    pub seq: u64,
    /// The whole answer.
    pub json: Value,
}

impl Saved {
    /// Reads the answer of `post --json`.
    ///
    /// # Panics
    /// When it does not have the fields of the contract.
    #[must_use]
    pub fn read(json: Value) -> Self {
        assert_eq!(json["state"], "saved", "{json}");
        assert!(json["receipt"].as_str().is_some_and(|r| !r.is_empty()), "no receipt in {json}");
        let number = |name: &str| json[name].as_u64().unwrap_or_else(|| panic!("no {name} in {json}"));
        Self { message: number("message"), seq: number("seq"), json }
    }

    /// The only turn that the wait reported.
    ///
    /// # Panics
    /// When it reported none or several.
    #[must_use]
    pub fn turn(&self) -> &Value {
        match self.json["turns"].as_array().map(Vec::as_slice) {
            Some([turn]) => turn,
            _ => panic!("not one turn in {}", self.json),
        }
    }

    /// The body of the only turn, which completed.
    ///
    /// # Panics
    /// When it did not complete.
    #[must_use]
    pub fn answer(&self) -> &str {
        let turn = self.turn();
        assert_eq!(turn["status"], "completed", "{}", self.json);
        turn["body"].as_str().unwrap_or_else(|| panic!("no body in {}", self.json))
    }
}

impl<'a> Channel<'a> {
    /// A channel by name.
    #[must_use]
    pub const fn new(node: &'a Node, name: &'a str) -> Self {
        Self { node, name }
    }

    /// Posts and returns once it is saved.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn post(&self, text: &str) -> Saved {
        Saved::read(self.post_with(text, &[]).ok().json())
    }

    /// Posts with more arguments.
    ///
    /// # Panics
    /// When the command does not end.
    #[must_use]
    pub fn post_with(&self, text: &str, more: &[&str]) -> Finished {
        self.spawn_post(text, more).finish_within(DEADLINE * 3)
    }

    /// Starts a post with more arguments.
    #[must_use]
    pub fn spawn_post(&self, text: &str, more: &[&str]) -> Process {
        let mut args: Vec<OsString> = ["post", self.name, text, "--json"].into_iter().map(OsString::from).collect();
        args.extend(more.iter().map(OsString::from));
        self.node.spawn_cli(args)
    }

    /// Posts and waits for the turns it causes.
    ///
    /// # Panics
    /// When the wait ends otherwise than with 0.
    #[must_use]
    pub fn ask(&self, text: &str) -> Saved {
        Saved::read(self.post_with(text, &["--wait", "--timeout", "100"]).ok().json())
    }

    /// All frames of the channel so far, the `synced` marker included.
    ///
    /// # Panics
    /// When `tail` fails.
    #[must_use]
    pub fn frames(&self) -> Vec<Value> {
        self.node.cli(["tail", self.name, "--once", "--json"]).ok().json_lines()
    }

    /// All entries so far, in order.
    ///
    /// # Panics
    /// When `tail` fails.
    #[must_use]
    pub fn entries(&self) -> Vec<Value> {
        self.frames().into_iter().filter(|frame| frame["type"] == "entry").collect()
    }

    /// Entries of one kind.
    ///
    /// # Panics
    /// When `tail` fails.
    #[must_use]
    pub fn entries_of(&self, kind: &str) -> Vec<Value> {
        self.entries().into_iter().filter(|entry| entry["kind"] == kind).collect()
    }

    /// Follows the channel live, with the events of running turns.
    #[must_use]
    pub fn follow(&self, since: u64) -> Process {
        self.node.spawn_cli(["tail", self.name, "--since", &since.to_string(), "--follow", "--events", "--json"])
    }

    /// Waits for an entry.
    ///
    /// # Panics
    /// When none that fits comes.
    #[must_use]
    pub fn wait_entry(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait_entry_within(DEADLINE, what, fits)
    }

    /// As [`Channel::wait_entry`], with a deadline of its own.
    ///
    /// # Panics
    /// When none that fits comes.
    #[must_use]
    pub fn wait_entry_within(&self, deadline: Duration, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until_within(deadline, what, || {
            let tail = self.node.cli(["tail", self.name, "--once", "--json"]);
            (tail.code == Some(0))
                .then(|| tail.json_lines())?
                .into_iter()
                .find(|frame| frame["type"] == "entry" && fits(frame))
        })
    }

    /// Waits until the turn of a member that answers `message` was handed to its resident, and gives its run message.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn wait_started(&self, message: u64) -> u64 {
        let started = self.wait_entry("the turn to start", |entry| {
            entry["kind"] == "turn-started" && contains(&body(entry)["batch"], message)
        });
        let run = body(&started)["message"].as_u64().expect("a turn has a run message");
        let _ = self.wait_entry("the resident to accept", |entry| {
            entry["kind"] == "attempt-accepted" && body(entry)["message"] == run
        });
        run
    }

    /// Waits until the turn of a run message ended, and gives the body of the entry that says so.
    ///
    /// # Panics
    /// When it does not end.
    #[must_use]
    pub fn wait_finished(&self, run: u64) -> Value {
        let entry = self
            .wait_entry("the turn to end", |entry| entry["kind"] == "turn-finished" && body(entry)["message"] == run);
        body(&entry).clone()
    }

    /// Waits until a turn was held, and gives the body of the entry that says so.
    ///
    /// # Panics
    /// When it is not held.
    #[must_use]
    pub fn wait_held(&self, run: u64) -> Value {
        let entry = self
            .wait_entry("the turn to be held", |entry| entry["kind"] == "turn-held" && body(entry)["message"] == run);
        body(&entry).clone()
    }

    /// Waits until a turn raises a card, and gives the body of the entry that says so.
    ///
    /// # Panics
    /// When none is raised.
    #[must_use]
    pub fn wait_card(&self, run: u64) -> Value {
        let entry = self.wait_entry("a card", |entry| entry["kind"] == "card-raised" && body(entry)["run"] == run);
        body(&entry).clone()
    }

    /// Answers a card.
    ///
    /// # Panics
    /// When it is refused.
    pub fn answer(&self, card: u64, choose: &str) {
        let _ = self.node.cli(["answer", self.name, &card.to_string(), "--choose", choose, "--json"]).ok();
    }

    /// Does something to a member: `interrupt`, `kill`, `revive` …
    ///
    /// # Panics
    /// When it is refused.
    pub fn member(&self, act: &str, handle: &str, more: &[&str]) {
        let mut args = vec!["member", act, self.name, handle];
        args.extend(more);
        args.push("--json");
        let _ = self.node.cli(args).ok();
    }

    /// What `status` says about a member.
    ///
    /// # Panics
    /// When there is no such member.
    #[must_use]
    pub fn member_status(&self, handle: &str) -> Value {
        let status = self.node.status();
        let members = status["members"].as_array().cloned().unwrap_or_default();
        members
            .into_iter()
            .find(|member| member["handle"] == handle)
            .unwrap_or_else(|| panic!("no member {handle} in {status}"))
    }

    /// Waits until a member is in a state.
    ///
    /// # Panics
    /// When it does not get there.
    pub fn wait_state(&self, handle: &str, state: &str) {
        until(&format!("{handle} to be {state}"), || (self.member_status(handle)["state"] == state).then_some(()));
    }

    /// `channel verify`, which must find everything in order; gives how many entries.
    ///
    /// # Panics
    /// When it finds something wrong.
    pub fn verify(&self) -> u64 {
        let verdict = self.node.cli(["channel", "verify", self.name, "--json"]).ok().json();
        assert_eq!(verdict["ok"], true, "{verdict}");
        assert_eq!(verdict["first_bad"], Value::Null, "{verdict}");
        verdict["entries"].as_u64().expect("verify counts entries")
    }
}

/// The body of an entry frame's log line.
#[must_use]
pub fn body(entry: &Value) -> &Value {
    &entry["line"]["body"]
}

/// Whether a JSON list has a number in it.
#[must_use]
pub fn contains(list: &Value, number: u64) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|item| item == number))
}

/// Asserts that entries are dense from 1 and that visible messages are dense from 1, in order.
///
/// # Panics
/// When there is a gap, a repeat or another order.
pub fn assert_dense(entries: &[Value]) {
    let numbers = |name: &str| entries.iter().filter_map(|entry| entry[name].as_u64()).collect::<Vec<_>>();
    let seqs = numbers("seq");
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "seqs have a gap or another order");
    let mut messages = numbers("message");
    // A run's number appears with its start and its end.
    messages.dedup();
    let mut sorted = messages.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, (1..=sorted.len() as u64).collect::<Vec<_>>(), "message numbers have a gap");
}
