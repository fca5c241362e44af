//! What waits for a person: `tieline inbox`, `answer`, `hold`.

use clap::{Args, Subcommand};
use serde_json::Value;
use tieline_proto::api::Request;
use tieline_proto::id::MessageId;
use tieline_proto::text::{one_line, visible};
use tieline_proto::view::{Card, CardKind};

use super::client::read;
use super::{Context, Done, Exit};
use crate::config::shell_word;

/// List what waits for a person.
#[derive(Args, Debug)]
pub struct Inbox {
    /// Channel, by name or id; all when left out
    #[arg(env = "TIELINE_CHANNEL", hide_env_values = true)]
    channel: Option<String>,
}

/// Answer a question or an approval.
#[derive(Args, Debug)]
pub struct Answer {
    /// Channel, by name or id
    channel: String,
    /// The card's number
    card: u64,
    /// A label it offers; several where it allows that
    #[arg(long, value_name = "LABEL", required_unless_present = "text", allow_hyphen_values = true)]
    choose: Vec<String>,
    /// Say something with it
    #[arg(long, allow_hyphen_values = true)]
    text: Option<String>,
}

/// Decide deliveries and turns that are held.
#[derive(Debug, Subcommand)]
pub enum HoldCommand {
    /// List what is held
    List {
        /// Channel, by name or id
        #[arg(env = "TIELINE_CHANNEL", hide_env_values = true)]
        channel: String,
    },
    /// Let it go on: deliver it, or try the turn once more
    Release {
        #[command(flatten)]
        held: Held,
        /// Accept that the first attempt may have run on another node
        #[arg(long)]
        may_run_twice: bool,
    },
    /// Let it be
    Drop(Held),
}

/// Something that is held.
#[derive(Args, Debug)]
pub struct Held {
    /// Channel, by name or id
    channel: String,
    /// Number of the held turn or message, or of its card
    message: u64,
}

/// `tieline inbox`.
pub async fn inbox(context: &Context, args: Inbox) -> Done {
    list(context, args.channel, |_| true, "nothing waits for you").await
}

/// `tieline answer`.
pub async fn answer(context: &Context, args: Answer) -> Done {
    let Answer { channel, card, choose, text } = args;
    let said = if choose.is_empty() { text.clone().unwrap_or_default() } else { choose.join(", ") };
    let request = Request::Answer { channel, card: MessageId(card), choose, text };
    let answer = context.dial().connect().await?.call(request).await?;
    if context.out.json {
        context.out.value(&answer)?;
    } else {
        context.out.text(&format!("#{card} answered: {}", one_line(&said, 200)))?;
    }
    Ok(Exit::OK)
}

/// `tieline hold`.
pub async fn hold(context: &Context, command: HoldCommand) -> Done {
    let (Held { channel, message }, release, may_run_twice) = match command {
        HoldCommand::List { channel } => {
            return list(context, Some(channel), CardKind::is_hold, "nothing is held").await;
        }
        HoldCommand::Release { held, may_run_twice } => (held, true, may_run_twice),
        HoldCommand::Drop(held) => (held, false, false),
    };
    let request = Request::Hold { channel, message: MessageId(message), release, may_run_twice };
    let answer = context.dial().connect().await?.call(request).await?;
    if context.out.json {
        context.out.value(&answer)?;
    } else {
        context.out.text(&format!("#{message} {}", if release { "released" } else { "dropped" }))?;
    }
    Ok(Exit::OK)
}

async fn list(context: &Context, channel: Option<String>, is_wanted: impl Fn(CardKind) -> bool, empty: &str) -> Done {
    let answer = context.dial().connect().await?.call(Request::Inbox { channel }).await?;
    let cards: Vec<Card> = read(answer.clone())?;
    if context.out.json {
        let Value::Array(items) = answer else { return Ok(Exit::OK) };
        let wanted: Vec<_> =
            items.into_iter().zip(&cards).filter(|(_, card)| is_wanted(card.kind)).map(|(item, _)| item).collect();
        context.out.value(&wanted)?;
        return Ok(Exit::OK);
    }
    let shown: String = cards.iter().filter(|card| is_wanted(card.kind)).map(|card| render(context, card)).collect();
    if shown.is_empty() {
        context.out.note(empty);
    }
    context.out.text(&shown)?;
    Ok(Exit::OK)
}

/// A card, with what to type.
pub fn render(context: &Context, card: &Card) -> String {
    let style = context.out.style;
    let channel = one_line(&card.channel, 63);
    let what = match card.kind {
        CardKind::Question => "asks",
        CardKind::Approval => "wants to",
        CardKind::TurnHeld => "is held: outcome unknown",
        CardKind::DeliveryHeld => "waits: a delivery is held",
    };
    let number = style.bold(&format!("#{}", card.card));
    let mut text = format!("{channel} {number} {} {}\n", style.handle(card.by.as_str()), style.warn(what));
    let mut indented = |lines: &str| {
        for line in visible(lines).lines() {
            text.push_str(&format!("    {line}\n"));
        }
    };
    if let Some(tool) = &card.tool {
        indented(tool);
    }
    indented(&card.prompt);
    if let Some(action) = &card.action {
        indented(action);
    }
    for option in &card.options {
        let detail =
            if option.detail.is_empty() { String::new() } else { format!(": {}", one_line(&option.detail, 200)) };
        indented(&format!("• {}{detail}", one_line(&option.label, 40)));
    }
    let number = card.card;
    let next = if card.kind.is_hold() {
        format!("tieline hold release|drop {channel} {number}")
    } else {
        let label =
            card.options.first().map_or_else(|| "LABEL".to_owned(), |option| shell_word(&one_line(&option.label, 160)));
        format!("tieline answer {channel} {number} --choose {label}")
    };
    let next = context.out.commands(&next);
    text.push_str(&format!("    {}\n", style.dim(&next)));
    text
}
