//! `tieline post`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Posted, Request};
use tieline_proto::channel::ATTACHMENTS_MAX;
use tieline_proto::id::{ClientId, MessageId};
use tieline_proto::log::verify_receipt;
use tieline_proto::text;
use tokio::time::Instant;

use super::client::{Client, Dial, is_gone, read};
use super::{Context, Done, Exit, attach};

mod wait;

/// How often a post whose answer was lost is sent again. The client id makes that safe.
const TRIES_MAX: u32 = 5;

/// Pause before it is.
const TRY_PAUSE: Duration = Duration::from_millis(500);

/// Longest wait, in seconds: a hundred years, so that no clock overflows.
const TIMEOUT_MAX: u64 = 100 * 365 * 24 * 3600;

/// Longest text read from stdin, in bytes; the node's own limit is far below, and says so better.
const STDIN_LEN_MAX: u64 = 4 * 1024 * 1024;

/// Post a message.
#[derive(Args, Debug)]
pub struct Post {
    /// Channel and text; - reads the text from stdin. Inside a turn the channel may be left out
    #[arg(required = true, num_args = 1..=2, value_names = ["CHANNEL", "TEXT"])]
    words: Vec<String>,

    /// Your own id for the post: sent again, it is answered with the first result
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Attach a file
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,

    /// Say which message it answers
    #[arg(long, value_name = "N")]
    reply_to: Option<u64>,

    /// Wait until everyone it goes to has answered
    #[arg(long)]
    wait: bool,

    /// Stop waiting after this many seconds, with exit status 5; the message stays
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u64>,
}

/// What `post --wait --json` prints.
#[derive(Serialize)]
struct Waited {
    #[serde(flatten)]
    posted: Value,
    turns: Vec<wait::Turn>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    /// Why nobody knows what became of the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ApiError>,
}

/// Runs it.
pub async fn run(context: &Context, args: Post) -> Done {
    let (channel, text) = channel_and_text(&args.words, !args.attach.is_empty(), &Context::env)?;
    if args.attach.is_empty() && text.trim().is_empty() {
        return Err(ApiError::new(Code::Invalid, "an empty post without attachments says nothing")
            .hint("tieline post CHANNEL TEXT, or with --attach FILE"));
    }
    if args.attach.len() > ATTACHMENTS_MAX {
        return Err(ApiError::new(Code::Limit, format!("a post has at most {} attachments", ATTACHMENTS_MAX))
            .hint("pack them into one file, or post the rest after it"));
    }
    let client_id = match &args.id {
        Some(id) => ClientId::new(id)
            .map_err(|error| ApiError::new(Code::Invalid, error.to_string()).hint("leave --id out and one is made"))?,
        None => super::new_client_id()?,
    };
    let deadline = args.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds.min(TIMEOUT_MAX)));
    let dial = context.dial();
    let mut client = dial.connect().await?;
    let mut attachments = Vec::new();
    for path in &args.attach {
        attachments.push(attach::store(&mut client, &channel, path).await?);
    }
    let request = Request::Post {
        channel: channel.clone(),
        text,
        reply_to: args.reply_to.map(MessageId),
        attachments,
        client: Some(client_id),
    };
    let answer = send(&dial, &mut client, request).await?;
    let posted: Posted = read(answer.clone())?;
    check_receipt(&posted)?;
    let out = context.out;
    if !out.json {
        out.text(&receipt(context, &posted))?;
    }
    if !args.wait {
        if out.json {
            out.value(&answer)?;
        }
        return Ok(Exit::OK);
    }
    drop(client);
    let waited = wait::turns(context, &dial, &channel, &posted, deadline).await?;
    let exit = waited.exit();
    if out.json {
        let wait::Waited { turns, timed_out, lost: error } = waited;
        out.value(&Waited { posted: answer, turns, timed_out, error })?;
    } else if waited.timed_out {
        out.note("still unfinished; the message stays. tieline tail shows what becomes of it");
    } else if let Some(error) = waited.lost {
        out.note(&format!("#{} is saved; what became of it is not known here", posted.message));
        out.error(&error);
    }
    Ok(exit)
}

/// Posts; when the connection breaks before the answer, again under the same id.
async fn send(dial: &Dial, client: &mut Client, request: Request) -> Result<Value, ApiError> {
    let mut tries = 1;
    loop {
        match client.call(request.clone()).await {
            Err(error) if is_gone(&error) && tries < TRIES_MAX => {
                tokio::time::sleep(TRY_PAUSE).await;
                tries += 1;
                match dial.connect().await {
                    Ok(again) => *client = again,
                    Err(error) if is_gone(&error) && tries < TRIES_MAX => {}
                    Err(error) => return Err(error),
                }
            }
            answer => return answer,
        }
    }
}

/// Inside a turn one word is the text and the channel is the turn's; elsewhere it is the channel, if a file says it all.
fn channel_and_text(
    words: &[String],
    has_files: bool,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(String, String), ApiError> {
    let (channel, text) = match words {
        [channel, text] => (channel.clone(), text),
        [text] => match env("TIELINE_CHANNEL").filter(|channel| !channel.is_empty()) {
            Some(channel) => (channel, text),
            None if has_files => return Ok((text.clone(), String::new())),
            None => {
                return Err(
                    ApiError::new(Code::Invalid, "a post needs a channel and a text").hint("tieline post CHANNEL TEXT")
                );
            }
        },
        _ => return Err(ApiError::new(Code::Invalid, "a post needs a channel and a text")),
    };
    if text != "-" {
        return Ok((channel, text.clone()));
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(STDIN_LEN_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| ApiError::new(Code::Internal, format!("stdin can't be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        ApiError::new(Code::Invalid, "the text from stdin is not UTF-8").hint("send it as a file with --attach")
    })?;
    Ok((channel, text))
}

/// "Saved" is said of what can be proved.
fn check_receipt(posted: &Posted) -> Result<(), ApiError> {
    let why = match verify_receipt(&posted.receipt) {
        Ok(proof) if proof.seq == posted.seq => return Ok(()),
        Ok(_) => "it is of another entry".to_owned(),
        Err(error) => error.to_string(),
    };
    let what = format!("the receipt proves nothing ({why}): whether the post was saved is not known");
    Err(ApiError::new(Code::Internal, what).hint("tieline tail CHANNEL"))
}

/// `#12 saved, to gpu and ops`.
fn receipt(context: &Context, posted: &Posted) -> String {
    let style = context.out.style;
    let to = match posted.to.split_last() {
        None => "to nobody: no agent is mentioned, and none is the default".to_owned(),
        Some((last, [])) => format!("to {}", style.handle(last.as_str())),
        Some((last, others)) => {
            let others: Vec<_> = others.iter().map(|handle| style.handle(handle.as_str())).collect();
            format!("to {} and {}", others.join(", "), style.handle(last.as_str()))
        }
    };
    let mut text = format!("{} {}, {to}\n", style.bold(&format!("#{}", posted.message)), style.good("saved"));
    for handle in &posted.unknown {
        let handle = text::one_line(handle, 40);
        text.push_str(&style.warn(&format!("nobody here is called @{handle}\n")));
    }
    text
}

/// Members of a channel that run turns, by id.
async fn agents(dial: &Dial, channel: &str) -> Result<BTreeMap<u64, String>, ApiError> {
    let mut client = dial.connect().await?;
    let shown: Value = client.call(Request::ChannelShow { channel: channel.to_owned() }).await?;
    let empty = json!([]);
    let members = shown.get("members").unwrap_or(&empty).as_array().cloned().unwrap_or_default();
    let agents = members.into_iter().filter(|member| member["kind"] == "agent" || member["kind"] == "extension");
    Ok(agents.filter_map(|member| Some((member["id"].as_u64()?, member["handle"].as_str()?.to_owned()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str], channel: Option<&str>) -> Result<(String, String), ApiError> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let env = |name: &str| channel.filter(|_| name == "TIELINE_CHANNEL").map(str::to_owned);
        channel_and_text(&words, false, &env)
    }

    #[test]
    fn inside_a_turn_the_channel_may_be_left_out() {
        assert_eq!(check(&["lobby", "hi"], None).unwrap(), ("lobby".to_owned(), "hi".to_owned()));
        assert_eq!(check(&["hi"], Some("ops")).unwrap(), ("ops".to_owned(), "hi".to_owned()));
        assert_eq!(check(&["lobby", "hi"], Some("ops")).unwrap().0, "lobby");
        let error = check(&["hi"], None).unwrap_err();
        assert_eq!((error.code, error.hint.as_str()), (Code::Invalid, "tieline post CHANNEL TEXT"));
        let alone = channel_and_text(&["lobby".to_owned()], true, &|_| None).unwrap();
        assert_eq!(alone, ("lobby".to_owned(), String::new()), "a file may say it all");
    }
}
