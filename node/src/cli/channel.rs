//! `tieline channel`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tieline_proto::api::Request;
use tieline_proto::view::{Channel, ChannelRole, ChannelShow};

use super::client::read;
use super::table::columns;
use super::{Context, Done, Exit, inbox, member, verify};

/// Manage channels.
#[derive(Debug, Subcommand)]
pub enum ChannelCommand {
    /// Make a channel whose home is this node
    Create {
        /// Its name: a-z, 0-9 and -
        name: String,
    },
    /// List the channels this node knows
    List,
    /// Show a channel with its members, open turns and cards
    Show(Which),
    /// Check every entry, seal, signature and journal of a channel or of an exported file; needs no running node
    Verify {
        /// Channel by name or id, or an exported file
        #[arg(value_name = "CHANNEL|FILE")]
        what: PathBuf,
        /// Fingerprint of the org that it must belong to
        #[arg(long, value_name = "FINGERPRINT")]
        org: Option<String>,
    },
    /// Write a channel, with all it takes to verify it, into a new file; needs no running node
    Export {
        /// Channel, by name or id
        channel: String,
        /// The file
        file: PathBuf,
    },
    /// End a channel; it stays readable
    Archive(Which),
}

/// One channel.
#[derive(Args, Debug)]
pub struct Which {
    /// Channel, by name or id
    channel: String,
}

/// Runs it.
pub async fn run(context: &Context, command: ChannelCommand) -> Done {
    let request = match command {
        ChannelCommand::Verify { what, org } => return verify::verify(context, &what, org.as_deref()).await,
        ChannelCommand::Export { channel, file } => return verify::export(context, &channel, &file).await,
        ChannelCommand::List => return list(context).await,
        ChannelCommand::Show(Which { channel }) => return show(context, channel).await,
        ChannelCommand::Create { name } => Request::ChannelCreate { name, client: Some(super::new_client_id()?) },
        ChannelCommand::Archive(Which { channel }) => Request::ChannelArchive { channel },
    };
    let is_new = matches!(request, Request::ChannelCreate { .. });
    let answer = context.dial().connect().await?.call(request).await?;
    if context.out.json {
        context.out.value(&answer)?;
        return Ok(Exit::OK);
    }
    let channel: Channel = read(answer)?;
    if is_new {
        context.out.text(&format!("{} made\n", context.out.style.bold(&channel.name)))?;
        context.out.note(&format!("next: tieline member add {} HANDLE --harness scripted", channel.name));
    } else {
        context.out.text(&format!("{} archived\n", context.out.style.bold(&channel.name)))?;
    }
    Ok(Exit::OK)
}

async fn list(context: &Context) -> Done {
    let answer = context.dial().connect().await?.call(Request::ChannelList {}).await?;
    if context.out.json {
        context.out.value(&answer)?;
        return Ok(Exit::OK);
    }
    let channels: Vec<Channel> = read(answer)?;
    if channels.is_empty() {
        context.out.note("no channels yet: tieline channel create lobby");
    }
    context.out.text(&columns(&channels.iter().map(row).collect::<Vec<_>>()))?;
    Ok(Exit::OK)
}

async fn show(context: &Context, channel: String) -> Done {
    let answer = context.dial().connect().await?.call(Request::ChannelShow { channel }).await?;
    if context.out.json {
        context.out.value(&answer)?;
        return Ok(Exit::OK);
    }
    let shown: ChannelShow = read(answer)?;
    let style = context.out.style;
    let mut text = columns(&[row(&shown.channel)]);
    text.push_str(&format!("{}\n", style.dim(&format!("id {}", shown.channel.id))));
    text.push_str(&format!("\n{}\n", style.bold("Members")));
    text.push_str(&columns(&shown.members.iter().map(|m| member::row(m, false)).collect::<Vec<_>>()));
    if !shown.runs.is_empty() {
        text.push_str(&format!("\n{}\n", style.bold("Open turns")));
        let rows = shown.runs.iter().map(|run| {
            let batch: Vec<_> = run.batch.iter().map(|message| format!("#{message}")).collect();
            let state = serde_json::to_value(run.state).ok().and_then(|state| state.as_str().map(str::to_owned));
            let about = format!("answers {}", batch.join(", "));
            vec![format!("#{}", run.message), run.by.to_string(), state.unwrap_or_default(), about]
        });
        text.push_str(&columns(&rows.collect::<Vec<_>>()));
    }
    if !shown.cards.is_empty() {
        text.push_str(&format!("\n{}\n", style.bold("Waiting for a person")));
        for card in &shown.cards {
            text.push_str(&inbox::render(context, card));
        }
    }
    context.out.text(&text)?;
    Ok(Exit::OK)
}

/// A channel as a row of a table.
pub fn row(channel: &Channel) -> Vec<String> {
    let role = match channel.role {
        ChannelRole::Home => "home".to_owned(),
        ChannelRole::Resident => format!("resident of {}", channel.home.short()),
        ChannelRole::Device => format!("device of {}", channel.home.short()),
    };
    let state = match (&channel.read_only, channel.archived) {
        (Some(reason), _) => format!("read-only: {reason}"),
        (None, true) => "archived".to_owned(),
        (None, false) => String::new(),
    };
    vec![channel.name.clone(), role, channel.head.map_or_else(String::new, |head| format!("seq {}", head.seq)), state]
}
