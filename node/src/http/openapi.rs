//! `GET /openapi.json`: the REST routes, described by the annotations of their handlers.
//!
//! The types here only describe: the answers themselves are [`tieline_proto::view`]'s. A test holds the two together.

#![allow(dead_code, reason = "read by the schema derive alone")]

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use super::{guard, rest};

/// `GET /openapi.json`.
pub(super) async fn serve() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document().to_json().unwrap_or_default()));

/// The whole description.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Routes::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Tieline node", description = "Local HTTP of a node. What goes on is followed over the WebSocket /v1/ws."),
    paths(
        rest::healthz,
        rest::metrics,
        rest::session_start,
        rest::session_end,
        rest::status,
        rest::inbox,
        rest::channels,
        rest::channel,
        rest::history::messages,
        rest::post_message,
        rest::run,
        rest::answer,
        rest::attachment,
    ),
    modifiers(&Logins),
    security(("token" = []), ("session" = [], "session_key" = []))
)]
struct Routes;

struct Logins;

impl Modify for Logins {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The content of api-token in the data folder."))
            .build();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        let cookie = ApiKeyValue::with_description(guard::COOKIE, "Set by POST /v1/session.");
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        let key = "What POST /v1/session answered: browsers send the cookie to other ports of the host too. A WebSocket \
            offers the subprotocols `tieline` and `tieline.session.KEY` instead.";
        let key = ApiKeyValue::with_description(guard::KEY_HEADER, key);
        components.add_security_scheme("session_key", SecurityScheme::ApiKey(ApiKey::Header(key)));
    }
}

/// Every error
#[derive(ToSchema)]
pub(super) struct ErrorBody {
    error: ErrorDetail,
}

#[derive(ToSchema)]
pub(super) struct ErrorDetail {
    /// Stable
    code: String,
    /// What is wrong, with values
    message: String,
    /// What to do about it
    hint: Option<String>,
}

#[derive(ToSchema)]
pub(super) struct Session {
    /// For the page to keep in its own origin's sessionStorage
    key: String,
}

#[derive(ToSchema)]
pub(super) struct Health {
    ok: bool,
    version: String,
}

#[derive(ToSchema)]
pub(super) struct Status {
    node: Node,
    channels: Vec<Channel>,
    links: Vec<Link>,
    members: Vec<Member>,
    /// What a person should know, in words
    notes: Option<Vec<String>>,
}

#[derive(ToSchema)]
pub(super) struct Node {
    id: String,
    name: String,
    version: String,
    peer_id: String,
    api: Option<String>,
    addrs: Option<Vec<String>>,
}

#[derive(ToSchema)]
pub(super) struct Channel {
    id: String,
    name: String,
    /// `home`, `resident` or `device`
    role: String,
    home: String,
    head: Head,
    lamport: u64,
    archived: Option<bool>,
    /// Why it takes no writes now
    read_only: Option<String>,
}

#[derive(ToSchema)]
pub(super) struct Head {
    seq: u64,
    hash: String,
}

#[derive(ToSchema)]
pub(super) struct Link {
    node: String,
    name: String,
    /// `up`, `suspect` or `down`
    state: String,
    /// `direct`, `lan` or `relayed`
    path: Option<String>,
    last_proof_ms: Option<u64>,
    reason: String,
}

#[derive(ToSchema)]
pub(super) struct Member {
    channel: String,
    id: u64,
    handle: String,
    kind: String,
    /// `idle`, `busy`, `asking`, `held`, `paused`, `killed` or `unreachable`
    state: String,
    node: Option<String>,
    node_name: Option<String>,
    harness: Option<String>,
    cwd: Option<String>,
    model: Option<String>,
    policy: Option<String>,
    run: Option<u64>,
    queue: Queue,
}

#[derive(ToSchema)]
pub(super) struct Queue {
    depth: u64,
    oldest_ms: u64,
}

#[derive(ToSchema)]
pub(super) struct ChannelShow {
    #[serde(flatten)]
    #[schema(inline)]
    channel: Channel,
    members: Vec<Member>,
    runs: Vec<Run>,
    cards: Vec<Card>,
}

#[derive(ToSchema)]
pub(super) struct Run {
    message: u64,
    by: String,
    attempt: u32,
    batch: Vec<u64>,
    /// `sent`, `accepted`, `started`, `asking` or `held`
    state: String,
}

#[derive(ToSchema)]
pub(super) struct Card {
    channel: String,
    card: u64,
    /// `question`, `approval`, `turn-held` or `delivery-held`
    kind: String,
    by: String,
    /// The turn or the message it is about
    about: u64,
    prompt: String,
    options: Vec<AskOption>,
    multi: Option<bool>,
    tool: Option<String>,
    action: Option<String>,
    answer: Option<Vec<String>>,
    answered_by: Option<String>,
}

#[derive(ToSchema)]
pub(super) struct AskOption {
    label: String,
    detail: Option<String>,
}

#[derive(ToSchema)]
pub(super) struct Posted {
    message: u64,
    seq: u64,
    /// Always `saved`
    state: String,
    receipt: String,
    /// Mentions that nobody answers to
    unknown: Option<Vec<String>>,
    /// Whom it goes to
    to: Vec<String>,
}

#[derive(ToSchema)]
pub(super) struct Attachment {
    name: String,
    size: u64,
    /// BLAKE3 of the content, in hexadecimal
    hash: String,
}

#[derive(ToSchema)]
pub(super) struct Events {
    message: u64,
    from: u64,
    events: Vec<serde_json::Value>,
    /// Where to go on; absent when this is all there is now
    next: Option<u64>,
}

#[derive(ToSchema)]
pub(super) struct Page {
    entries: Vec<EntryFrame>,
    /// Ask with this `before` for what stands above
    before: u64,
    /// Ask with this `after` for what stands below
    after: u64,
}

#[derive(ToSchema)]
pub(super) struct EntryFrame {
    /// Always `entry`
    r#type: String,
    seq: u64,
    message: Option<u64>,
    kind: String,
    author: String,
    /// The log's exact line
    line: serde_json::Value,
}
