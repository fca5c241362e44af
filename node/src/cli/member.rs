//! `tieline member`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use tieline_proto::api::{ApiError, Code, MemberAct, NewMember, Request};
use tieline_proto::entry::{MemberKind, Policy};
use tieline_proto::view::{ChannelShow, Member, MemberState};

use super::client::read;
use super::table::{columns, span};
use super::{Context, Done, Exit};

/// Manage members of a channel.
#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Add an agent
    Add(Add),
    /// List the members
    List {
        /// Channel, by name or id
        #[arg(env = "TIELINE_CHANNEL", hide_env_values = true)]
        channel: String,
    },
    /// Give a member another handle
    Rename {
        #[command(flatten)]
        who: Who,
        /// The handle from now on
        to: String,
    },
    /// Keep a member's queue and start nothing
    Pause(Who),
    /// Let a paused member go on
    Resume(Who),
    /// Stop a member's turn; its queue goes on
    Interrupt(Who),
    /// End a member's process; its queue is kept
    Kill(Who),
    /// Let a killed member go on
    Revive(Who),
    /// Take a member out of the channel
    Remove(Who),
    /// Change a member's settings; the next turn uses them
    Configure {
        #[command(flatten)]
        who: Who,
        #[command(flatten)]
        settings: Settings,
    },
}

/// A member of a channel.
#[derive(Args, Debug)]
pub struct Who {
    /// Channel, by name or id
    channel: String,
    /// The member's handle
    handle: String,
}

/// What can be changed later.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct Settings {
    /// The model
    #[arg(long)]
    model: Option<String>,
    /// What it may do unasked
    #[arg(long)]
    policy: Option<PolicyArg>,
    /// The folder it works in, on its own box
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
}

/// Add an agent.
#[derive(Args, Debug)]
pub struct Add {
    /// Channel, by name or id
    channel: String,
    /// The new member's handle: a-z, 0-9 and -
    handle: String,
    /// What runs it: scripted, codex, claude-code, or a name that its box's owner made with `tieline harness add`
    #[arg(long, value_name = "NAME")]
    harness: String,
    /// The node it lives on, by name or id [default: this one]
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
    /// The folder it works in, on its own box
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// The model
    #[arg(long)]
    model: Option<String>,
    /// What it may do unasked [default: ask]
    #[arg(long)]
    policy: Option<PolicyArg>,
}

/// What an agent may do without asking.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PolicyArg {
    /// Read only; everything else is refused
    ReadOnly,
    /// Ask before anything is changed
    Ask,
    /// Change files in its folder unasked; ask for the rest
    Edit,
    /// Do everything unasked
    Full,
}

impl From<PolicyArg> for Policy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::ReadOnly => Self::ReadOnly,
            PolicyArg::Ask => Self::Ask,
            PolicyArg::Edit => Self::Edit,
            PolicyArg::Full => Self::Full,
        }
    }
}

/// Runs it.
pub async fn run(context: &Context, command: MemberCommand) -> Done {
    let (who, act) = match command {
        MemberCommand::Add(args) => return add(context, args).await,
        MemberCommand::List { channel } => return list(context, channel).await,
        MemberCommand::Rename { who, to } => (who, MemberAct::Rename { to }),
        MemberCommand::Pause(who) => (who, MemberAct::Pause),
        MemberCommand::Resume(who) => (who, MemberAct::Resume),
        MemberCommand::Interrupt(who) => (who, MemberAct::Interrupt),
        MemberCommand::Kill(who) => (who, MemberAct::Kill),
        MemberCommand::Revive(who) => (who, MemberAct::Revive),
        MemberCommand::Remove(who) => (who, MemberAct::Remove),
        MemberCommand::Configure { who, settings: Settings { model, policy, cwd } } => {
            // Whose box it is, only the channel's home knows.
            let cwd = cwd.map(|cwd| folder(Path::new(&cwd), true)).transpose()?;
            (who, MemberAct::Configure { model, policy: policy.map(Policy::from), cwd })
        }
    };
    let did = match &act {
        MemberAct::Rename { to } => format!("is called {to} now"),
        MemberAct::Pause => "is paused; its queue is kept".to_owned(),
        MemberAct::Resume | MemberAct::Revive => "goes on".to_owned(),
        MemberAct::Interrupt => "was asked to stop its turn".to_owned(),
        MemberAct::Kill => "was killed; its queue is kept".to_owned(),
        MemberAct::Remove => "left the channel".to_owned(),
        MemberAct::Configure { .. } => "has new settings, from its next turn on".to_owned(),
    };
    let Who { channel, handle } = who;
    let request = Request::MemberAct { channel, handle: handle.clone(), act };
    let answer = context.dial().connect().await?.call(request).await?;
    if context.out.json {
        context.out.value(&answer)?;
    } else {
        let handle = context.out.style.handle(&tieline_proto::text::one_line(&handle, 40));
        context.out.text(&format!("{handle} {did}"))?;
    }
    Ok(Exit::OK)
}

async fn add(context: &Context, args: Add) -> Done {
    let cwd = args.cwd.as_deref().map(|cwd| folder(cwd, args.on.is_some())).transpose()?;
    let member = NewMember {
        handle: args.handle,
        kind: MemberKind::Agent,
        harness: Some(args.harness),
        on: args.on,
        cwd,
        model: args.model,
        policy: args.policy.map(Policy::from),
    };
    let request = Request::MemberAdd { channel: args.channel.clone(), member, client: Some(super::new_client_id()?) };
    let answer = context.dial().connect().await?.call(request).await?;
    if context.out.json {
        context.out.value(&answer)?;
        return Ok(Exit::OK);
    }
    let member: Member = read(answer)?;
    context.out.text(&columns(&[row(&member, false)]))?;
    context.out.note(&format!("next: tieline post {} \"@{} hello\" --wait", args.channel, member.handle));
    Ok(Exit::OK)
}

/// A folder as the member's box names it. Here a relative one is taken from where the command runs.
fn folder(cwd: &Path, is_elsewhere: bool) -> Result<String, ApiError> {
    let invalid = |what: String| ApiError::new(Code::Invalid, what);
    let whole = if cwd.is_absolute() {
        cwd.to_owned()
    } else if is_elsewhere {
        return Err(invalid(format!("{} is relative", cwd.display()))
            .hint("name the folder as the other box knows it, from / on"));
    } else {
        std::path::absolute(cwd).map_err(|error| invalid(format!("{}: {error}", cwd.display())))?
    };
    let text = whole.to_str().map(str::to_owned);
    text.ok_or_else(|| invalid(format!("{} is not UTF-8", whole.display())))
}

async fn list(context: &Context, channel: String) -> Done {
    let answer = context.dial().connect().await?.call(Request::ChannelShow { channel }).await?;
    if context.out.json {
        context.out.value(&answer["members"])?;
        return Ok(Exit::OK);
    }
    let shown: ChannelShow = read(answer)?;
    if shown.members.is_empty() {
        context.out.note(&format!("nobody yet: tieline member add {} echo --harness scripted", shown.channel.name));
    }
    context.out.text(&columns(&shown.members.iter().map(|m| row(m, false)).collect::<Vec<_>>()))?;
    Ok(Exit::OK)
}

/// A member as a row of a table.
pub fn row(member: &Member, with_channel: bool) -> Vec<String> {
    let state = match member.state {
        MemberState::Idle => "idle",
        MemberState::Busy => "busy",
        MemberState::Asking => "asking",
        MemberState::Held => "held",
        MemberState::Paused => "paused",
        MemberState::Killed => "killed",
        MemberState::Unreachable => "unreachable",
    };
    let kind = serde_json::to_value(member.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned));
    let what = member.harness.as_ref().map_or_else(|| kind.unwrap_or_default(), ToString::to_string);
    let node = member.node_name.clone().or_else(|| member.node.map(|node| node.short()));
    let place = node.map_or_else(String::new, |node| format!("on {node}"));
    let run = member.run.map_or_else(String::new, |run| format!("#{run}"));
    let queue = match member.queue.depth {
        0 => String::new(),
        depth => format!("{depth} waiting, oldest {}", span(member.queue.oldest_ms)),
    };
    let settings = [
        member.model.clone(),
        member.policy.and_then(|p| serde_json::to_value(p).ok()?.as_str().map(str::to_owned)),
        member.cwd.clone(),
    ];
    let settings = settings.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let mut row = vec![member.handle.to_string(), what, state.to_owned(), run, place, queue, settings];
    if with_channel {
        row.insert(0, member.channel.clone());
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_elsewhere_must_be_whole() {
        assert_eq!(folder(Path::new("/work"), true).unwrap(), "/work");
        assert_eq!(folder(Path::new("work"), true).unwrap_err().code, Code::Invalid);
        assert!(folder(Path::new("work"), false).unwrap().ends_with("/work"));
    }
}
