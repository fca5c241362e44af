//! Commands about the node itself: stop, status, org, config.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::view::{Link, LinkPath, LinkState, Org, Status};
use tokio::time::Instant;

use super::client::read;
use super::table::{columns, span};
use super::{Context, Done, Exit, member};
use crate::config::Flags;
use crate::data_dir::DataDir;
use crate::node::offline;

/// How long a node may take to end its turns' processes and write what is left.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// Pause between looks whether it is gone.
const STOP_PAUSE: Duration = Duration::from_millis(20);

/// Show or found the org.
#[derive(Debug, Subcommand)]
pub enum OrgCommand {
    /// Show the org; found it when there is none yet
    Show,
}

/// Show the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each value and where it comes from
    Show,
}

/// `tieline stop`: returns when the process is gone, so that the next `up` finds the folder free.
pub async fn stop(context: &Context) -> Done {
    let dial = context.dial();
    dial.connect().await?.call(Request::Stop {}).await?;
    let data = context.data();
    let asked_at = Instant::now();
    loop {
        // The lock goes with the process; the socket goes before.
        if !DataDir::is_held(&data) && !dial.is_up().await {
            break;
        }
        if asked_at.elapsed() > STOP_WAIT {
            return Err(ApiError::new(Code::Timeout, format!("the node still runs after {} s", STOP_WAIT.as_secs()))
                .hint("tieline logs shows what it waits for"));
        }
        tokio::time::sleep(STOP_PAUSE).await;
    }
    if context.out.json {
        context.out.value(&json!({"stopped": true}))?;
    } else {
        context.out.note("stopped");
    }
    Ok(Exit::OK)
}

/// `tieline status`.
pub async fn status(context: &Context) -> Done {
    let answer = context.dial().connect().await?.call(Request::Status {}).await?;
    if context.out.json {
        context.out.value(&answer)?;
    } else {
        context.out.text(&render(context, &read(answer)?))?;
    }
    Ok(Exit::OK)
}

fn render(context: &Context, status: &Status) -> String {
    let style = context.out.style;
    let node = &status.node;
    let name = tieline_proto::text::one_line(&node.name, 63);
    let mut text = format!("{}  {}  tieline {}\n", style.bold(&name), node.id.short(), node.version);
    let mut place = |label: &str, value: &str| {
        let value = tieline_proto::text::one_line(value, 200);
        text.push_str(&format!("  {} {value}\n", style.dim(&format!("{label:7}"))));
    };
    if let Some(api) = &node.api {
        place("page", api);
    }
    for addr in &node.addrs {
        place("reach", addr);
    }
    for note in &status.notes {
        let note = tieline_proto::text::one_line(note, 200);
        text.push_str(&format!("  {}\n", style.warn(&note)));
    }
    let mut section = |title: &str, rows: Vec<Vec<String>>, empty: &str| {
        text.push_str(&format!("\n{}\n", style.bold(title)));
        if rows.is_empty() {
            text.push_str(&format!("  {}\n", style.dim(empty)));
        }
        for line in columns(&rows).lines() {
            text.push_str(&format!("  {line}\n"));
        }
    };
    let channels = status.channels.iter().map(super::channel::row).collect();
    section("Channels", channels, "none yet: tieline channel create lobby");
    let links = status.links.iter().map(link_row).collect();
    section("Links", links, "none: tieline pair adds a box");
    let members = status.members.iter().map(|m| member::row(m, true)).collect();
    section("Members", members, "none yet: tieline member add lobby echo --harness scripted");
    text
}

fn link_row(link: &Link) -> Vec<String> {
    let state = match link.state {
        LinkState::Up => "up",
        LinkState::Suspect => "suspect",
        LinkState::Down => "down",
    };
    let path = match link.path {
        Some(LinkPath::Direct) => "direct",
        Some(LinkPath::Lan) => "lan",
        Some(LinkPath::Relayed) => "relayed",
        None => "",
    };
    let proof = link.last_proof_ms.map_or_else(String::new, |ms| format!("proved {} ago", span(ms)));
    vec![link.name.clone(), link.node.short(), state.to_owned(), path.to_owned(), proof, link.reason.clone()]
}

/// `tieline org show`.
pub async fn org(context: &Context, OrgCommand::Show: OrgCommand) -> Done {
    let answer: Value = if DataDir::is_held(&context.data()) {
        context.dial().connect().await?.call(Request::OrgShow {}).await?
    } else {
        json!(offline::org_show(&context.load(Flags::default())?.config)?)
    };
    if context.out.json {
        context.out.value(&answer)?;
    } else {
        let org: Org = read(answer)?;
        let role = serde_json::to_value(org.role).ok().and_then(|role| role.as_str().map(str::to_owned));
        let name = tieline_proto::text::one_line(&org.name, 63);
        let name = context.out.style.bold(&name);
        context.out.text(&format!("{name}  {}  you are {}", org.fingerprint, role.unwrap_or_default()))?;
    }
    Ok(Exit::OK)
}

/// `tieline config show`.
pub fn config(context: &Context, ConfigCommand::Show: ConfigCommand) -> Done {
    let loaded = context.load(Flags::default())?;
    if context.out.json {
        context.out.value(&loaded.settings)?;
        return Ok(Exit::OK);
    }
    let rows: Vec<_> = loaded
        .settings
        .iter()
        .map(|setting| {
            let value = match &setting.value {
                Value::String(text) => text.clone(),
                Value::Array(items) if items.is_empty() => "none".to_owned(),
                Value::Array(items) => {
                    items.iter().map(|item| item.as_str().unwrap_or_default()).collect::<Vec<_>>().join(" ")
                }
                other => other.to_string(),
            };
            (setting.key.clone(), value, setting.source.to_string())
        })
        .collect();
    // The value is whole, whatever its length: it is what one came for.
    let width = rows.iter().map(|(key, ..)| key.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value, source) in rows {
        let value = tieline_proto::text::visible(&value).into_owned();
        let source = tieline_proto::text::one_line(&source, 200);
        text.push_str(&format!("{key:width$}  {value}  {}\n", context.out.style.dim(&format!("({source})"))));
    }
    context.out.text(&text)?;
    Ok(Exit::OK)
}
