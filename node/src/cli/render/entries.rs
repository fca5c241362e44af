//! Entries of the log.

use tieline_proto::entry::{Body, MemberChange, MemberKind, MemberSpec, Post, Routed};
use tieline_proto::event::{Ask, AskKind, Status, Usage};
use tieline_proto::id::{MemberId, MessageId};
use tieline_proto::text::one_line;

use super::super::table;
use super::{EntryFrame, Kind, REASON_LEN_MAX, Renderer, STREAMS_MAX, Turn, numbers, short};
use crate::config::shell_word;

impl Renderer {
    pub(super) fn entry(&mut self, frame: &EntryFrame) {
        let entry = &frame.line;
        let ts = entry.ts;
        let author = short(&frame.author);
        match &entry.body {
            Body::Posted { message, post, routed, .. } => self.posted(*message, ts, &frame.author, post, routed),
            Body::TurnStarted { message, member, batch, attempt, .. } => {
                let by = self.handle_of(*member);
                let about = numbers(batch);
                if self.turns.len() >= STREAMS_MAX {
                    self.turns.pop_first();
                }
                let turn = Turn { by, about, started_ts: ts, next: 0, whole: true, has_text: false, held: false };
                self.turns.insert(*message, turn);
                if self.live || attempt.0 > 1 {
                    self.enter(*message, Some(ts));
                }
                if attempt.0 > 1 {
                    self.write_line(&self.style.warn(&format!("once more: attempt {attempt}")));
                }
            }
            Body::AttemptAccepted { message, .. } => {
                if self.details && self.live {
                    self.enter(*message, Some(ts));
                    self.write_line(&self.style.dim("handed over"));
                }
            }
            Body::TurnFinished { message, status, text, error, usage, .. } => {
                self.finished(*message, ts, &frame.author, *status, text, error.as_deref(), usage.as_ref());
            }
            Body::TurnHeld { message, reason, .. } => {
                self.enter(*message, Some(ts));
                self.write_line(&self.style.warn(&format!("? outcome unknown: {}", short(reason))));
                self.write_line(
                    &self.style.dim(&self.command(&format!("hold release|drop {} {message}", self.channel))),
                );
                if let Some(turn) = self.turns.get_mut(message) {
                    turn.held = true;
                }
            }
            Body::DeliveryHeld { message, member, card, reason } => {
                let who = self.handle_of(*member);
                self.heading(*card, Some(ts), &who, &self.style.warn(&format!("does not get #{message}")));
                self.write_line(&short(reason));
                self.write_line(&self.style.dim(&self.command(&format!("hold release|drop {} {card}", self.channel))));
            }
            Body::CardRaised { message, run, ask, .. } => self.asked(*message, *run, ts, &frame.author, ask),
            Body::CardAnswered { card, choice, text } => {
                let said = choice.iter().chain(text).map(|said| short(said)).collect::<Vec<_>>().join(": ");
                self.remark(ts, &format!("#{card} answered by {author}: {said}"));
            }
            Body::CardClosed { card, reason } => self.remark(ts, &format!("#{card} closed: {}", short(reason))),
            Body::HoldReleased { message, retry, .. } => {
                let what = if *retry { "released" } else { "dropped" };
                if !retry {
                    self.turns.remove(message);
                }
                self.remark(ts, &format!("#{message} {what} by {author}"));
            }
            Body::DeliveryReleased { message, member, deliver } => {
                let what = if *deliver { "goes to" } else { "does not go to" };
                self.remark(ts, &format!("#{message} {what} {}, says {author}", self.handle_of(*member)));
            }
            Body::StopRequested { message } => self.remark(ts, &format!("{author} asks #{message} to stop")),
            Body::MemberAdded { member, .. } => {
                self.names.insert(MemberId(entry.seq.0), member.handle.to_string());
                self.remark(ts, &format!("+ {} joined: {}", member.handle, self.describe(member)));
            }
            Body::MemberChanged { member, change } => self.changed(ts, *member, change),
            Body::MemberRemoved { member } => {
                self.remark(ts, &format!("- {} left", self.handle_of(*member)));
            }
            Body::ChannelCreated { .. } => self.remark(ts, "the channel begins"),
            Body::ChannelArchived {} => self.remark(ts, "the channel is archived: it stays readable"),
            Body::ConfigChanged { .. } => self.remark(ts, &format!("{author} changed the channel's settings")),
            Body::RoundClosed { message, .. } if self.details => {
                self.remark(ts, &format!("the round of #{message} is closed without all answers"));
            }
            Body::RoundClosed { .. } => {}
            _ => self.newer(frame.message, &frame.kind, &frame.author),
        }
    }

    /// A quiet line with its time.
    fn remark(&mut self, ts: u64, what: &str) {
        let line = self.style.dim(&format!("{}  {what}", self.time(ts)));
        self.quiet_line(&line);
    }

    fn posted(&mut self, message: MessageId, ts: u64, author: &str, post: &Post, routed: &Routed) {
        let mut about = String::new();
        if let Some(reply_to) = post.reply_to {
            about.push_str(&self.style.dim(&format!("answers #{reply_to}")));
        }
        if !routed.to.is_empty() {
            let to: Vec<_> = routed.to.iter().map(|to| self.style.handle(&short(&self.handle_of(to.member)))).collect();
            if !about.is_empty() {
                about.push(' ');
            }
            about.push_str(&format!("→ {}", to.join(", ")));
        }
        self.heading(message, Some(ts), author, &about);
        self.write(Kind::Text, &post.text);
        for attachment in &post.attachments {
            let line = format!("attached: {} ({})", short(&attachment.name), table::size(attachment.size));
            self.write_line(&self.style.dim(&line));
        }
        self.leave();
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one entry")]
    fn finished(
        &mut self,
        message: MessageId,
        ts: u64,
        author: &str,
        status: Status,
        text: &str,
        error: Option<&str>,
        usage: Option<&Usage>,
    ) {
        let turn = self.turns.remove(&message);
        let streamed = turn.as_ref().is_some_and(|turn| turn.whole && turn.has_text);
        let took = turn.as_ref().map(|turn| ts.saturating_sub(turn.started_ts));
        if self.open.as_ref().is_none_or(|open| open.message != message) {
            let (by, about) = match &turn {
                Some(turn) if streamed => (turn.by.as_str(), "is done".to_owned()),
                Some(turn) => (turn.by.as_str(), format!("answers {}", turn.about)),
                None => (author, String::new()),
            };
            self.heading(message, Some(ts), by, &self.style.dim(&about));
        }
        if !streamed {
            if turn.as_ref().is_some_and(|turn| turn.has_text) {
                self.write_line(&self.style.dim("pieces were missed; all of it:"));
            }
            self.write(Kind::Text, text);
        }
        let took = took.map_or_else(String::new, |ms| format!(" in {}", table::span(ms)));
        let line = match status {
            Status::Completed => self.style.good(&format!("✓ completed{took}")),
            Status::Failed => {
                let why = error.map_or_else(String::new, |error| format!(": {}", one_line(error, REASON_LEN_MAX)));
                self.style.bad(&format!("✗ failed{took}{why}"))
            }
            Status::Interrupted => self.style.warn(&format!("■ interrupted{took}")),
        };
        let usage = usage.filter(|_| self.details).map_or_else(String::new, |usage| self.style.dim(&used(usage)));
        self.write_line(&(line + &usage));
        self.leave();
    }

    fn asked(&mut self, card: MessageId, run: MessageId, ts: u64, author: &str, ask: &Ask) {
        let by = self.turns.get(&run).map_or_else(|| author.to_owned(), |turn| turn.by.clone());
        let what = match ask.kind {
            AskKind::Question => "asks",
            AskKind::Approval => "wants to",
        };
        self.heading(card, Some(ts), &by, &self.style.warn(what));
        if let Some(tool) = &ask.tool {
            self.write_line(&self.style.bold(&short(tool)));
        }
        self.write(Kind::Text, &ask.prompt);
        if let Some(action) = &ask.action {
            self.write(Kind::Text, &format!("\n{action}"));
        }
        for option in &ask.options {
            let detail = if option.detail.is_empty() { String::new() } else { format!(": {}", short(&option.detail)) };
            self.write_line(&format!("• {}{detail}", self.style.bold(&short(&option.label))));
        }
        let label = ask.options.first().map_or("LABEL", |option| option.label.as_str());
        let label = shell_word(&short(label));
        let next = self.command(&format!("answer {} {card} --choose {label}", self.channel));
        self.write_line(&self.style.dim(&next));
        self.leave();
    }

    /// `agent, codex, in /work, model o4`.
    fn describe(&self, member: &MemberSpec) -> String {
        let kind = match member.kind {
            MemberKind::Human => "person",
            MemberKind::Agent => "agent",
            MemberKind::Extension => "sub-agent",
            MemberKind::System => "system",
            MemberKind::Bridge => "bridge",
            MemberKind::Voice => "voice",
        };
        let mut parts = vec![kind.to_owned()];
        parts.extend(member.harness.as_ref().map(ToString::to_string));
        parts.extend(
            member
                .node
                .map(|node| format!("on {}", self.nodes.get(&node).map_or_else(|| node.short(), |name| short(name)))),
        );
        parts.extend(member.cwd.as_ref().map(|cwd| format!("in {}", short(cwd))));
        parts.extend(member.model.as_ref().map(|model| format!("model {}", short(model))));
        parts.join(", ")
    }

    fn changed(&mut self, ts: u64, member: MemberId, change: &MemberChange) {
        let who = self.handle_of(member);
        let what = match change {
            MemberChange::Renamed { handle } => {
                self.names.insert(member, handle.to_string());
                format!("{who} is called {handle} from now on")
            }
            MemberChange::Configured { model, policy, cwd } => {
                let policy = policy.map(|policy| serde_json::to_string(&policy).unwrap_or_default());
                let parts = [("model", model.clone()), ("policy", policy), ("folder", cwd.clone())];
                let parts: Vec<_> = parts
                    .into_iter()
                    .filter_map(|(name, value)| Some(format!("{name} {}", short(value?.trim_matches('"')))))
                    .collect();
                format!("{who} has new settings: {}", parts.join(", "))
            }
            MemberChange::Paused => format!("{who} is paused: its queue is kept"),
            MemberChange::Resumed => format!("{who} goes on"),
            MemberChange::Killed => format!("{who} was killed: its queue is kept"),
            MemberChange::Revived => format!("{who} is back"),
            MemberChange::SessionCleared => format!("{who} starts over with a new session"),
        };
        self.remark(ts, &what);
    }
}

fn used(usage: &Usage) -> String {
    let cost = usage.cost_usd.map_or_else(String::new, |usd| format!(", ${usd:.4}"));
    format!(" · {} tokens in, {} out{cost}", usage.input, usage.output)
}
