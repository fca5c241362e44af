//! Pages of a channel's log.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::id::{COUNTER_MAX, Seq};
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::super::error::Failure;
use super::super::{App, openapi};
use crate::handle::{Caller, FRAMES_WAITING_MAX};

/// Entries on a page when nobody says how many.
const PAGE: u64 = 50;

/// Entries on a page at most.
const PAGE_MAX: u64 = 200;

/// How long the node may take for a page.
const WAIT: Duration = Duration::from_secs(10);

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Page {
    /// Only entries before this seq; the newest page when neither this nor `after` is given
    before: Option<u64>,
    /// Only entries after this seq
    after: Option<u64>,
    /// How many entries: 1 to 200, else 50
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u64>,
}

/// Read a page of a channel's log, in the order of the log
#[utoipa::path(get, path = "/v1/channels/{channel}/messages",
    params(("channel", description = "Name or id"), Page),
    responses(
        (status = 200, description = "A page of entries", body = openapi::Page),
        (status = 400, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(in super::super) async fn messages(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(channel): Path<String>,
    Query(page): Query<Page>,
) -> Result<Response, Failure> {
    let limit = page.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        let error = ApiError::new(Code::Invalid, format!("limit is {limit}"));
        return Err(error.hint(format!("a page has 1 to {PAGE_MAX} entries")).into());
    }
    let place = |seq: Option<u64>| match seq {
        Some(seq) if seq > COUNTER_MAX => Err(ApiError::new(Code::Invalid, format!("there is no entry {seq}"))),
        seq => Ok(seq),
    };
    let page = Page { after: place(page.after)?, before: place(page.before)?, ..page };
    // Seqs are dense, so a page is a range.
    let (after, before) = match (page.after, page.before) {
        (Some(after), before) => (after, before.unwrap_or(u64::MAX)),
        (None, Some(before)) => (before.saturating_sub(1).saturating_sub(limit), before),
        (None, None) => (head(&app, &caller, &channel).await?.saturating_sub(limit), u64::MAX),
    };
    let frames = tokio::time::timeout(WAIT, read(&app, caller, channel, after, before, limit))
        .await
        .map_err(|_| ApiError::new(Code::Timeout, "the node did not answer in time"))??;
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(render(&frames, after))).into_response())
}

async fn head(app: &App, caller: &Caller, channel: &str) -> Result<u64, ApiError> {
    let request = Request::ChannelShow { channel: channel.to_owned() };
    let shown = app.backend.node.call(caller.clone(), request).await?;
    shown["head"]["seq"].as_u64().ok_or_else(|| ApiError::new(Code::Internal, "the channel's head is not known"))
}

/// A frame's head: frames themselves are passed on as they stand.
#[derive(Deserialize)]
struct Glance<'a> {
    #[serde(borrow, rename = "type")]
    kind: std::borrow::Cow<'a, str>,
    #[serde(default)]
    seq: u64,
}

async fn read(
    app: &App,
    caller: Caller,
    channel: String,
    after: u64,
    before: u64,
    limit: u64,
) -> Result<Vec<(u64, Arc<str>)>, ApiError> {
    let (sender, mut feed) = mpsc::channel(FRAMES_WAITING_MAX);
    let request = Request::Subscribe { channel, since: Seq(after), events: false, once: true };
    app.backend.node.subscribe(caller, request, sender).await?;
    let mut frames = Vec::new();
    while frames.len() as u64 != limit {
        let Some(frame) = feed.recv().await else { return Err(broke_off()) };
        let Ok(glance) = serde_json::from_str::<Glance<'_>>(&frame) else { continue };
        let seq = glance.seq;
        match &*glance.kind {
            "entry" if seq >= before => break,
            "entry" => frames.push((seq, frame)),
            "synced" => break,
            "end" => return Err(broke_off()),
            _ => {}
        }
    }
    Ok(frames)
}

/// A page that is not whole is none: who reads it would take the rest for not written.
fn broke_off() -> ApiError {
    ApiError::new(Code::Unreachable, "what the channel's home says broke off").hint("ask again")
}

/// `{"entries":[…],"before":S,"after":S}`: what to ask for to go on in either direction.
fn render(frames: &[(u64, Arc<str>)], after: u64) -> String {
    let mut text = String::from(r#"{"entries":["#);
    for (index, (_, frame)) in frames.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(frame);
    }
    let first = frames.first().map_or(after.saturating_add(1), |(seq, _)| *seq);
    let last = frames.last().map_or(after, |(seq, _)| *seq);
    text.push_str(&format!(r#"],"before":{first},"after":{last}}}"#));
    text
}
