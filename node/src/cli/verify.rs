//! `tieline channel verify` and `export`: a channel read from its files alone, whether a node runs or not.
//!
//! | module | holds |
//! |---|---|
//! | [`audit`] | what makes a channel good: chain, seals, authors, journals |
//! | [`source`] | where lines come from: a data folder or an exported file |
//! | [`mod@export`] | the file that holds all it takes to verify |

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

use audit::{Audit, Bad};
use source::{Folder, Source, Standing};

/// How often a log is read again that a node is writing.
const LOOKS_MAX: u32 = 5;

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
    /// How far that chain goes: two people who compare this know whether one of them was shown less.
    org_seq: Seq,
    trusted: Trust,
    channel: ChannelId,
    name: String,
}

/// Why the org is believed to be the one that is meant.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Trust {
    /// Its fingerprint was given, or it is the org of this box, which has its whole chain.
    Pinned,
    /// The channel agrees with itself; who its org is, or whether its chain is whole, nobody said.
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
    let (audit, mut bad) = read(context, source).await?;
    if bad.is_none() {
        bad = source.journals(&audit)?.err();
    }
    let org = audit.org();
    let is_own = own == Some(org) && source.standing() == Standing::Known;
    let trusted = if pinned.map_or(is_own, |pinned| pinned == org) { Trust::Pinned } else { Trust::SelfConsistent };
    let is_other_org = pinned.is_some_and(|pinned| pinned != org);
    let reason = match &bad {
        Some(bad) => Some(bad.to_string()),
        None if is_other_org => {
            Some(format!("the channel belongs to the org {org}, which is not the one that was named"))
        }
        None if source.standing() == Standing::Contradicts => Some(
            "its org's chain is not the one that this box has: the org's home has signed two, or was copied".to_owned(),
        ),
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
        org_seq: audit.org_seq(),
        trusted,
        channel: source.channel(),
        name: audit.name(),
    })
}

/// Reads a source's whole log: what was found, and what is wrong with it.
///
/// A node that runs may be in the middle of a write: lines behind what it had saved when we began are not yet said, and
/// are left out. That holds for a torn tail alone. Damage stays where it is when one looks again, has good seals behind
/// it, or has made the node take no more writes.
async fn read(context: &Context, source: &mut Source) -> Result<(Audit, Option<Bad>), ApiError> {
    let mut before = None;
    for _ in 0..LOOKS_MAX {
        let vouched = if source.is_live() { vouched(context, source.channel()).await } else { None };
        if vouched.is_some() {
            source.renew()?;
        }
        let mut audit = Audit::new(source.channel(), source.org_chain())?;
        let bad = source.read(&mut audit)?.err();
        let head = audit.head().seq;
        let Some(bad) = bad else { return Ok((audit, None)) };
        if vouched.is_none_or(|saved| head < saved || bad.seq <= saved) || before == Some(bad.seq) {
            return Ok((audit, Some(bad)));
        }
        if !source.is_sealed_behind(&audit)? {
            return Ok((audit, None));
        }
        // The node may have gone on while we read: then it is good the next time.
        before = Some(bad.seq);
    }
    // Each time it was good beyond the place where it had seemed bad.
    let mut audit = Audit::new(source.channel(), source.org_chain())?;
    let _torn = source.read(&mut audit)?;
    Ok((audit, None))
}

/// The last entry that the running node has saved; `None` when it does not answer, or takes no writes and so is not in
/// the middle of one.
async fn vouched(context: &Context, channel: ChannelId) -> Option<Seq> {
    let mut client = context.dial().connect().await.ok()?;
    let shown = client.call(Request::ChannelShow { channel: channel.to_string() }).await.ok()?;
    shown["read_only"].is_null().then(|| shown["head"]["seq"].as_u64().map(Seq)).flatten()
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
    let Report { org, org_seq, head, .. } = report;
    format!("{name}  {verdict}\n  org {org} to entry {org_seq} ({trust})\n  head {} {}\n", head.seq, head.hash)
}

/// `tieline channel export`.
pub async fn export(context: &Context, channel: &str, file: &Path) -> Done {
    let done = exported(context, channel, file).await?;
    if context.out.json {
        context.out.value(&done)?;
    } else {
        let name = context.out.style.bold(&done.name);
        context.out.text(&format!("{name}: {} entries in {}\n", done.entries, file.display()))?;
        context.out.note(&format!("check it anywhere: tieline channel verify {} --org {}", file.display(), done.org));
    }
    Ok(Exit::OK)
}

/// Exports what is good as a whole, up to its last seal.
async fn exported(context: &Context, named: &str, file: &Path) -> Result<export::Exported, ApiError> {
    let folder = Folder::open(&context.data())?.ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("there is no data in {}", context.data().display()))
            .hint("name the folder with --data")
    })?;
    let mut source = Source::of(&folder, folder.channel_here(named)?);
    match read(context, &mut source).await? {
        (audit, None) => export::write(&source, named, audit.head(), file),
        (_, Some(bad)) => Err(export::broken(named, &bad)),
    }
}

/// Whether a node may be writing into a data folder.
fn is_held(data: &Path) -> bool {
    DataDir::is_held(data)
}

#[cfg(test)]
mod lies;
#[cfg(test)]
mod tests;
