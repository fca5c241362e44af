//! Enrolling devices: `tieline pair`, `join`, `device`.

use std::io::BufRead;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use tieline_proto::api::{ApiError, Code, PairStep, Request, Residency};
use tieline_proto::entry::Policy;
use tieline_proto::id::Handle;
use tieline_proto::text::one_line;
use tieline_proto::view::Device;
use tokio::sync::mpsc;

use crate::config::Flags;
use crate::data_dir::DataDir;
use crate::node::offline;

use super::client::{Client, Said, read};
use super::member::PolicyArg;
use super::table::{columns, span};
use super::{Context, Done, Exit, Out};

mod qr;

/// Longest link, in bytes.
const LINK_LEN_MAX: usize = 4096;

/// Enrol another device.
#[derive(Args, Debug)]
pub struct Pair {
    /// What the new device may do
    #[arg(long)]
    role: Option<RoleArg>,
    /// A channel it may read; all of them, later ones too, when left out
    #[arg(long, value_name = "CHANNEL")]
    channel: Vec<String>,
}

/// Roles that pairing can give.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RoleArg {
    /// Reads
    Observer,
    /// Reads, posts and answers
    Member,
}

/// Enrol this box.
#[derive(Args, Debug)]
pub struct Join {
    /// The link that `tieline pair` printed; - reads it from stdin
    link: String,
    /// What to call this box [default: the host's name]
    #[arg(long)]
    name: Option<String>,
    /// Consent to run turns of members here
    #[arg(long, requires_all = ["harness", "cwd"])]
    resident: bool,
    /// Harnesses that may run here
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "resident")]
    harness: Vec<String>,
    /// Folders that members may work in
    #[arg(long, value_name = "DIR", requires = "resident")]
    cwd: Vec<PathBuf>,
    /// The most that members may do unasked here [default: ask]
    #[arg(long, value_name = "POLICY", requires = "resident")]
    ceiling: Option<PolicyArg>,
}

/// Manage the org's devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// List the devices
    List,
}

/// `tieline pair`.
pub async fn pair(context: &Context, args: Pair) -> Done {
    let role = args.role.map(|role| match role {
        RoleArg::Observer => "observer".to_owned(),
        RoleArg::Member => "member".to_owned(),
    });
    let mut client = context.dial().connect().await?;
    let (call, _) = client.open(Request::PairOffer { role, channels: args.channel }).await?;
    let (typed, mut lines) = mpsc::channel(1);
    let mut typed = Some(typed);
    let mut listening = true;
    let mut confirmed = false;
    loop {
        let step = tokio::select! {
            step = next_step(&mut client, call) => step?,
            line = lines.recv(), if listening => {
                match line {
                    Some(digits) => {
                        confirmed = true;
                        client.send(Request::PairConfirm { digits }).await?;
                    }
                    // The refusal that comes of it is how the command ends.
                    None if !confirmed => {
                        listening = false;
                        context.out.note("stdin ended before six digits came: the offer is taken back");
                        client.send(Request::PairCancel {}).await?;
                    }
                    None => listening = false,
                }
                continue;
            }
            _ = tokio::signal::ctrl_c() => {
                let _ = client.call(Request::PairCancel {}).await;
                return Err(ApiError::new(Code::Refused, "the offer was taken back").hint("start again with tieline pair"));
            }
        };
        if let Some(exit) = report(context, step.as_ref())? {
            return exit;
        }
        if matches!(step, Some(PairStep::Claim { .. }))
            && let Some(typed) = typed.take()
        {
            read_digits(typed, context.out);
        }
    }
}

/// `tieline join`.
pub async fn join(context: &Context, args: Join) -> Done {
    let link = if args.link == "-" { read_link()? } else { args.link };
    let resident = if args.resident { Some(residency(&args.harness, &args.cwd, args.ceiling)?) } else { None };
    if !DataDir::is_held(&context.data()) {
        let config = context.load(Flags::default())?.config;
        let show = |step: PairStep| {
            let _ = report(context, Some(&step));
        };
        let last = offline::join(&config, &link, args.name, resident, show).await?;
        return report(context, Some(&last))?.unwrap_or(Ok(Exit::OK));
    }
    let mut client = context.dial().connect().await?;
    let (call, _) = client.open(Request::Join { link, name: args.name, resident }).await?;
    loop {
        let step = next_step(&mut client, call).await?;
        if let Some(exit) = report(context, step.as_ref())? {
            return exit;
        }
    }
}

/// The consent that the command line gives. Folders are taken from where the command runs.
fn residency(harnesses: &[String], folders: &[PathBuf], ceiling: Option<PolicyArg>) -> Result<Residency, ApiError> {
    let invalid = |what: String| ApiError::new(Code::Invalid, what);
    let harnesses = harnesses
        .iter()
        .map(|name| Handle::lexical(name, "harness name").map_err(|error| invalid(error.to_string())))
        .collect::<Result<_, _>>()?;
    let folders = folders
        .iter()
        .map(|folder| {
            let whole = folder.canonicalize().map_err(|error| invalid(format!("{}: {error}", folder.display())))?;
            whole.to_str().map(str::to_owned).ok_or_else(|| invalid(format!("{} is not UTF-8", whole.display())))
        })
        .collect::<Result<_, _>>()?;
    Ok(Residency { harnesses, folders, ceiling: ceiling.map(Policy::from) })
}

/// `tieline device`.
pub async fn device(context: &Context, DeviceCommand::List: DeviceCommand) -> Done {
    let answer = context.dial().connect().await?.call(Request::DeviceList {}).await?;
    if context.out.json {
        context.out.value(&answer)?;
        return Ok(Exit::OK);
    }
    let devices: Vec<Device> = read(answer)?;
    let rows = devices.iter().map(|device| {
        let role = serde_json::to_value(device.role).ok().and_then(|role| role.as_str().map(str::to_owned));
        let seen = device.last_seen_ms.map_or_else(|| "never seen".to_owned(), |ms| format!("seen {} ago", span(ms)));
        let member = device.member.as_ref().map_or_else(String::new, |member| format!("speaks for {member}"));
        vec![device.id.short(), device.name.clone(), role.unwrap_or_default(), member, seen]
    });
    context.out.text(&columns(&rows.collect::<Vec<_>>()))?;
    Ok(Exit::OK)
}

/// The next step of the subscription; `None` at its end.
async fn next_step(client: &mut Client, call: u64) -> Result<Option<PairStep>, ApiError> {
    loop {
        match client.next().await? {
            Said::Frame(id, frame) if id == call => {
                let value: Value = serde_json::from_str(frame.get()).unwrap_or_default();
                match value["type"].as_str() {
                    Some("pair") => return read(value).map(Some),
                    Some("end") => return Ok(None),
                    _ => {}
                }
            }
            // The answer to the digits: what is wrong with them.
            Said::Answer(_, Err(error)) => return Err(error),
            _ => {}
        }
    }
}

/// Tells how it goes. Returns how the command ends when that was the last step.
pub fn report(context: &Context, step: Option<&PairStep>) -> Result<Option<Done>, ApiError> {
    let out = context.out;
    let Some(step) = step else {
        let error = ApiError::new(Code::Refused, "pairing ended before the device was enrolled");
        return Ok(Some(Err(error.hint("start again with tieline pair"))));
    };
    if out.json {
        out.value(step)?;
    } else {
        match step {
            PairStep::Offer { link, expires_ms } => {
                if let Some(code) = qr::render(link) {
                    out.text(&code)?;
                }
                out.text(&format!("{}\n", one_line(link, LINK_LEN_MAX)))?;
                out.note(&format!("good for {}; on the other box: tieline join LINK", span(*expires_ms)));
            }
            PairStep::Claim { name } => {
                out.prompt(&format!("type the six digits that {} shows: ", one_line(name, 63)));
            }
            PairStep::Digits { digits } => {
                out.text(&format!("{}\n", out.style.bold(&one_line(digits, 12))))?;
                out.note("type these digits at the box that showed the link");
            }
            PairStep::Enrolled { device, name, .. } => {
                out.text(&format!("{} {} enrolled\n", out.style.bold(&one_line(name, 63)), device.short()))?;
            }
            PairStep::Refused { .. } => {}
        }
    }
    Ok(match step {
        PairStep::Enrolled { .. } => Some(Ok(Exit::OK)),
        // With JSON the refusal is the last event, and the exit status says the rest.
        PairStep::Refused { .. } if out.json => Some(Ok(Exit(Code::Refused.exit()))),
        PairStep::Refused { reason } => {
            Some(Err(ApiError::new(Code::Refused, format!("refused: {reason}")).hint("start again with tieline pair")))
        }
        _ => None,
    })
}

/// Reads lines of stdin on a thread of its own: they may never come.
fn read_digits(typed: mpsc::Sender<String>, out: Out) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            match six_digits(&line) {
                Some(digits) => {
                    if typed.blocking_send(digits).is_err() {
                        return;
                    }
                }
                None if line.trim().is_empty() => {}
                // It costs no try.
                None => out.note("the digits are six, as the device shows them"),
            }
        }
    });
}

/// The six digits of a line, whatever a person put between them.
fn six_digits(line: &str) -> Option<String> {
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    (digits.len() == 6).then_some(digits)
}

fn read_link() -> Result<String, ApiError> {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| ApiError::new(Code::Internal, format!("stdin can't be read: {error}")))?;
    let link = line.trim();
    if link.is_empty() || link.len() > LINK_LEN_MAX {
        return Err(ApiError::new(Code::Invalid, "no link came on stdin").hint("on the other box: tieline pair"));
    }
    Ok(link.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_six_digits_are_sent() {
        assert_eq!(six_digits(" 123 456\r").as_deref(), Some("123456"));
        assert_eq!(six_digits("123-456").as_deref(), Some("123456"));
        for line in ["", "12345", "1234567", "y", "abcdef"] {
            assert_eq!(six_digits(line), None, "{line:?}");
        }
    }
}
