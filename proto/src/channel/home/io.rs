//! What goes into a home and what comes out of it.

use rand_core::Rng;

use crate::api::ApiError;
use crate::entry::{Attachment, Auth, Body, JournalMark, MemberSpec, NewEntry, Policy, Post};
use crate::event::{Answer, Status};
use crate::id::{Attempt, ClientId, Handle, Hash, Lamport, MemberId, MessageId, NodeId, Seq};
use crate::link::Message;
use crate::time::Now;

/// Names a request so that its answer finds its way back.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ticket(pub u64);

/// Why an operation was not done. Shown at every door as it is.
pub type OpError = ApiError;

/// Everything that can happen to a channel's home.
#[derive(Debug)]
pub enum Input {
    /// Somebody asks for something.
    Op {
        /// Repeated by the answer.
        ticket: Ticket,
        /// Who asks.
        by: Option<MemberId>,
        /// How that is known.
        auth: Auth,
        /// What.
        op: Op,
    },
    /// A resident can be reached; its journal is this far.
    LinkUp(NodeId, JournalMark),
    /// A resident cannot be reached.
    LinkDown(NodeId),
    /// A resident says something about an attempt of this channel.
    Frame {
        /// The resident.
        node: NodeId,
        /// What.
        message: Message,
        /// The frame's tail.
        tail: Vec<u8>,
    },
    /// A run's journal is durable up to this length.
    JournalSynced {
        /// The run.
        run: MessageId,
        /// The try whose journal it is.
        attempt: Attempt,
        /// Bytes.
        length: u64,
    },
    /// Entries are durable and indexed up to this one.
    Durable(Seq),
    /// The deadline of [`Home::poll_timeout`](super::Home::poll_timeout) passed.
    Timeout,
}

/// What can be asked of a channel.
#[derive(Clone, Debug)]
pub enum Op {
    /// Post a message.
    Post {
        /// The post.
        post: Post,
        /// The poster's id for it.
        client: Option<ClientId>,
        /// The turn it is posted from.
        run: Option<MessageId>,
    },
    /// Add a member.
    MemberAdd {
        /// The member.
        spec: MemberSpec,
        /// The request's id.
        client: Option<ClientId>,
    },
    /// Give a member another handle.
    MemberRename(MemberId, Handle),
    /// Change settings; `None` leaves as it is.
    MemberConfigure {
        /// Which member.
        member: MemberId,
        /// The model.
        model: Option<String>,
        /// The policy.
        policy: Option<Policy>,
        /// The folder.
        cwd: Option<String>,
    },
    /// Start nothing more for the member.
    MemberPause(MemberId),
    /// The opposite of pause.
    MemberResume(MemberId),
    /// Stop the member's turn.
    MemberInterrupt(MemberId),
    /// End the member's process and start nothing more.
    MemberKill(MemberId),
    /// The opposite of kill.
    MemberRevive(MemberId),
    /// Take the member out.
    MemberRemove(MemberId),
    /// Answer a card.
    Answer(MessageId, Answer),
    /// Decide a held turn or delivery.
    Hold {
        /// The run, the card or the held message.
        message: MessageId,
        /// Release or drop.
        release: bool,
        /// The person accepts that the attempt may have run.
        may_run_twice: bool,
    },
    /// End the channel.
    Archive,
}

/// What became of an [`Op`].
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Posted, now or by an earlier request with the same id.
    Posted {
        /// Its number.
        message: MessageId,
        /// Its entry.
        seq: Seq,
        /// Mentions that nobody answers to.
        unknown: Vec<String>,
        /// The agents and people it goes to.
        to: Vec<Handle>,
    },
    /// Added, now or by an earlier request with the same id.
    Added(MemberId),
    /// Done, at this entry.
    Done(Seq),
}

/// What the shell must do once the step's bytes are durable.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "effects live briefly and one at a time")]
pub enum Effect {
    /// Answer a request.
    Reply(Ticket, Result<Ask, OpError>),
    /// Send a frame to a resident, this node's own included.
    Send(NodeId, Message, Vec<u8>),
}

/// Bytes to append to a run's journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalAppend {
    /// The run.
    pub run: MessageId,
    /// The try.
    pub attempt: Attempt,
    /// Index of the first line.
    pub first: u64,
    /// Length of the journal before. 0 begins it: what stands there already is of a log that went back, and is set
    /// aside.
    pub at: u64,
    /// Whole lines.
    pub lines: Vec<u8>,
    /// Must be durable before the step's entries are.
    pub sync: bool,
}

/// What one input led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Bytes that entries name by hash; durable before them.
    pub blobs: Vec<(Hash, Vec<u8>)>,
    /// Run journals; durable before the entries when they say so.
    pub journals: Vec<JournalAppend>,
    /// Entries to append, in order.
    pub entries: Vec<NewEntry>,
    /// What to do after that, in order.
    pub effects: Vec<Effect>,
}

/// A message as others cite it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cited {
    /// Who wrote it.
    pub by: Option<MemberId>,
    /// Its text; a turn's final text.
    pub text: String,
    /// Files with it.
    pub attachments: Vec<Attachment>,
    /// Whom it went to.
    pub to: Vec<MemberId>,
    /// The message it answers.
    pub reply_to: Option<MessageId>,
}

impl Cited {
    /// Stands for a message that the index cannot find: the turn still runs, and says what is missing.
    pub(super) fn lost() -> Self {
        let text = "[this message cannot be read on its home node]".to_owned();
        Self { by: None, text, attachments: Vec::new(), to: Vec::new(), reply_to: None }
    }

    /// What an entry makes citable: a post's or a finished turn's number and text.
    #[must_use]
    pub fn of(by: Option<MemberId>, body: &Body) -> Option<(MessageId, Self)> {
        match body {
            Body::Posted { message, post, routed, .. } => Some((
                *message,
                Self {
                    by,
                    text: post.text.clone(),
                    attachments: post.attachments.clone(),
                    to: routed.to.iter().map(|delivery| delivery.member).collect(),
                    reply_to: post.reply_to,
                },
            )),
            Body::TurnFinished { message, status, text, error, routed, .. } => {
                let text = match status {
                    Status::Completed => text.clone(),
                    Status::Failed => format!("[the turn failed: {}]\n{text}", error.as_deref().unwrap_or("no reason")),
                    Status::Interrupted => format!("[the turn was interrupted]\n{text}"),
                };
                let to = routed.to.iter().map(|delivery| delivery.member).collect();
                Some((*message, Self { by, text, attachments: Vec::new(), to, reply_to: None }))
            }
            _ => None,
        }
    }
}

/// Looks up what the fold does not hold.
pub trait History {
    /// The post that an author made under a client id. A signing device is the author of what it signed.
    fn posted(&self, by: Option<MemberId>, auth: &Auth, client: &ClientId) -> Option<(MessageId, Seq)>;
    /// A message by number.
    fn cited(&self, message: MessageId) -> Option<Cited>;
}

/// What an input is judged with.
pub struct Context<'a> {
    /// The clocks.
    pub now: Now,
    /// The home's logical clock, shared by its channels.
    pub lamport: &'a mut Lamport,
    /// Head of the org's chain.
    pub org: Hash,
    /// Randomness for fences.
    pub rng: &'a mut dyn Rng,
    /// Old messages.
    pub history: &'a dyn History,
}
