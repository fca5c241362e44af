//! `tieline channel verify` and `export`: a channel read from its files alone, whether a node runs or not.
//!
//! | module | holds |
//! |---|---|
//! | [`audit`] | what makes a channel good: chain, seals, authors, journals |
//! | [`source`] | where lines come from: a data folder or an exported file |
//! | [`export`] | the file that holds all it takes to verify |

use std::path::Path;

use serde::Serialize;
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::id::{ChannelId, OrgId, Seq};
use tieline_proto::view::Head;

use super::{Context, Done, Exit};
use crate::data_dir::DataDir;

mod audit;
mod export;
mod source;

use audit::Audit;
use source::{Folder, Source};

/// What was found.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
struct Report {
    /// Good entries, up to the first bad one.
    entries: u64,
    ok: bool,
    /// Where the good part ends.
    head: Head,
    /// Seq of the first entry that is not as it was sealed.
    first_bad: Option<Seq>,
    /// What is wrong, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The org whose chain says who may seal.
    org: OrgId,
    trusted: Trust,
    channel: ChannelId,
    name: String,
}

/// Why the org is believed to be the one that is meant.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Trust {
    /// Its fingerprint was given, or it is the org of this box.
    Pinned,
    /// The channel agrees with itself; who its org is, nobody said.
    SelfConsistent,
}

/// `tieline channel verify`.
pub async fn verify(context: &Context, what: &Path, org: Option<&str>) -> Done {
    let pinned = org.map(str::parse::<OrgId>).transpose().map_err(|error| {
        ApiError::new(Code::Invalid, error.to_string()).hint("tieline org show prints a fingerprint")
    })?;
    let folder = Folder::open(&context.data())?;
    let mut source = Source::find(what, folder.as_ref())?;
    let own = folder.as_ref().and_then(Folder::own_org);
    let report = judge(context, &mut source, pinned, own).await?;
    if context.out.json {
        context.out.value(&report)?;
    } else {
        context.out.text(&render(context, &report))?;
    }
    Ok(if report.ok { Exit::OK } else { Exit::FAILED })
}

async fn judge(
    context: &Context,
    source: &mut Source,
    pinned: Option<OrgId>,
    own: Option<OrgId>,
) -> Result<Report, ApiError> {
    let vouched = if source.is_live(&context.data()) { head_now(context, source.channel()).await } else { None };
    let mut audit = Audit::new(source.channel(), source.org_chain())?;
    let mut bad = source.read(&mut audit)?.err();
    // A node that runs may be in the middle of a write. What it had saved when we began is good; the rest is not yet said.
    if let (Some(vouched), Some(found)) = (vouched, &bad)
        && audit.head().seq >= vouched
        && found.seq > vouched
    {
        bad = None;
    }
    if bad.is_none() {
        bad = source.journals(&audit)?.err();
    }
    let org = audit.org();
    let trusted = if pinned.or(own) == Some(org) { Trust::Pinned } else { Trust::SelfConsistent };
    let is_other_org = pinned.is_some_and(|pinned| pinned != org);
    let reason = match &bad {
        Some(bad) => Some(bad.to_string()),
        None if is_other_org => {
            Some(format!("the channel belongs to the org {org}, which is not the one that was named"))
        }
        None => None,
    };
    let head = audit.head();
    Ok(Report {
        entries: bad.as_ref().map_or(head.seq.0, |bad| bad.seq.0.saturating_sub(1).min(head.seq.0)),
        ok: reason.is_none(),
        head,
        first_bad: bad.map(|bad| bad.seq),
        reason,
        org,
        trusted,
        channel: source.channel(),
        name: audit.name(),
    })
}

/// The last entry that the running node has saved.
async fn head_now(context: &Context, channel: ChannelId) -> Option<Seq> {
    let mut client = context.dial().connect().await.ok()?;
    let shown = client.call(Request::ChannelShow { channel: channel.to_string() }).await.ok()?;
    shown["head"]["seq"].as_u64().map(Seq)
}

fn render(context: &Context, report: &Report) -> String {
    let style = context.out.style;
    let name = style.bold(&tieline_proto::text::one_line(&report.name, 63));
    let verdict = match (&report.reason, report.first_bad) {
        (None, _) => style.good(&format!("✓ {} entries are as they were sealed", report.entries)),
        (Some(reason), Some(seq)) => {
            let reason = tieline_proto::text::one_line(reason, 400);
            style.bad(&format!("✗ seq {seq} is bad: {reason}"))
        }
        (Some(reason), None) => style.bad(&format!("✗ {reason}")),
    };
    let trust = match report.trusted {
        Trust::Pinned => "pinned".to_owned(),
        Trust::SelfConsistent => "self-consistent: compare it, or give it with --org".to_owned(),
    };
    format!("{name}  {verdict}\n  org {} ({trust})\n  head {} {}\n", report.org, report.head.seq, report.head.hash)
}

/// `tieline channel export`.
pub fn export(context: &Context, channel: &str, file: &Path) -> Done {
    let folder = Folder::open(&context.data())?.ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("there is no data in {}", context.data().display()))
            .hint("name the folder with --data")
    })?;
    let done = export::write(&folder, channel, file)?;
    if context.out.json {
        context.out.value(&done)?;
    } else {
        let name = context.out.style.bold(&done.name);
        context.out.text(&format!("{name}: {} entries in {}\n", done.entries, file.display()))?;
        context.out.note(&format!("check it anywhere: tieline channel verify {} --org {}", file.display(), done.org));
    }
    Ok(Exit::OK)
}

/// Whether a node may be writing into a data folder.
fn is_held(data: &Path) -> bool {
    DataDir::is_held(data)
}

#[cfg(test)]
mod tests;
