//! Plain HTTP: what a script or a page reads once, and posts. What goes on is followed over [`super::ws`].

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};
use tieline_proto::api::{ApiError, Code, Request};
use tieline_proto::entry::Attachment;
use tieline_proto::id::{ClientId, Hash, MessageId};
use tieline_proto::view::BlobPiece;
use utoipa::{IntoParams, ToSchema};

use super::error::Failure;
use super::{App, guard, openapi, page, ws};
use crate::base64url;
use crate::handle::Caller;

pub(super) mod history;

/// Seconds a browser session's cookie is kept. The node forgets sessions when it stops; this only bounds the browser's.
const COOKIE_SECONDS: u32 = 30 * 24 * 3600;

type Answer = Result<Json<Value>, Failure>;

/// Everything that is served, behind [`guard::check`].
pub(super) fn router(app: App) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/assets/page.css", get(page::style))
        .route("/healthz", get(healthz))
        .route("/openapi.json", get(openapi::serve))
        .route("/metrics", get(metrics))
        .route("/v1/session", post(session_start).delete(session_end))
        .route("/v1/ws", get(ws::upgrade))
        .route("/v1/status", get(status))
        .route("/v1/inbox", get(inbox))
        .route("/v1/channels", get(channels))
        .route("/v1/channels/{channel}", get(channel))
        .route("/v1/channels/{channel}/messages", get(history::messages))
        .route("/v1/channels/{channel}/posts", post(post_message))
        .route("/v1/channels/{channel}/runs/{message}", get(run))
        .route("/v1/channels/{channel}/cards/{card}/answer", post(answer))
        .route("/v1/channels/{channel}/attachments/{hash}", get(attachment))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), guard::check))
        .layer(middleware::map_response(guard::harden))
        .with_state(app)
}

async fn nothing_here() -> Failure {
    Failure::with(StatusCode::NOT_FOUND, Code::NotFound, "nothing is served here", "GET /openapi.json lists the paths")
}

async fn wrong_method() -> Failure {
    Failure::with(
        StatusCode::METHOD_NOT_ALLOWED,
        Code::Invalid,
        "this path does not take this method",
        "GET /openapi.json lists the methods",
    )
}

/// Tell that the node is there
#[utoipa::path(get, path = "/healthz", security(()), responses((status = 200, description = "It is", body = openapi::Health)))]
pub(super) async fn healthz() -> Json<Value> {
    Json(json!({"ok": true, "version": env!("CARGO_PKG_VERSION")}))
}

/// Count what happens, in Prometheus' text format
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "Samples", body = String, content_type = "text/plain"),
    (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    let mut text = String::new();
    app.backend.metrics.write(&mut text);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// What a login takes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    /// The content of `api-token` in the data folder
    token: String,
}

/// Log a browser in: the answer sets an HttpOnly, SameSite=Strict cookie and holds the key that must come with it
#[utoipa::path(post, path = "/v1/session", security(()), request_body = Login, responses(
    (status = 200, description = "Logged in", body = openapi::Session),
    (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn session_start(State(app): State<App>, body: Bytes) -> Result<Response, Failure> {
    let login: Login = parse(&body)?;
    if app.token.matches(login.token.trim()).is_none() {
        let hint = "the token is the content of api-token in the data folder";
        return Err(Failure::with(StatusCode::UNAUTHORIZED, Code::Refused, "this token is not known", hint));
    }
    let (id, key) = app.token.session_start();
    let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/; Max-Age={COOKIE_SECONDS}", guard::COOKIE, &*id);
    Ok(with_cookie(&cookie, Json(json!({ "key": *key }))))
}

/// Log a browser out
#[utoipa::path(delete, path = "/v1/session", security(()), responses((status = 204, description = "Logged out")))]
pub(super) async fn session_end(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Some(id) = guard::cookie(&headers) {
        app.token.session_end(id);
    }
    with_cookie(&format!("{}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0", guard::COOKIE), StatusCode::NO_CONTENT)
}

fn with_cookie(cookie: &str, answer: impl IntoResponse) -> Response {
    let mut response = answer.into_response();
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Show what the node is, has and is linked to
#[utoipa::path(get, path = "/v1/status", responses(
    (status = 200, description = "The state of the node", body = openapi::Status),
    (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn status(State(app): State<App>, Extension(caller): Extension<Caller>) -> Answer {
    app.call(caller, Request::Status {}).await
}

/// Which channel's inbox.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct Inbox {
    /// Name or id of one channel; all when absent
    channel: Option<String>,
}

/// List open questions, approvals and holds
#[utoipa::path(get, path = "/v1/inbox", params(Inbox), responses(
    (status = 200, description = "What waits for a person", body = Vec<openapi::Card>),
    (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
    (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn inbox(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(Inbox { channel }): Query<Inbox>,
) -> Answer {
    app.call(caller, Request::Inbox { channel }).await
}

/// List the channels
#[utoipa::path(get, path = "/v1/channels", responses(
    (status = 200, description = "The channels the node knows", body = Vec<openapi::Channel>),
    (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn channels(State(app): State<App>, Extension(caller): Extension<Caller>) -> Answer {
    app.call(caller, Request::ChannelList {}).await
}

/// Show a channel with its members, open turns and cards
#[utoipa::path(get, path = "/v1/channels/{channel}",
    params(("channel", description = "Name or id")),
    responses(
        (status = 200, description = "The channel", body = openapi::ChannelShow),
        (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn channel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(channel): Path<String>,
) -> Answer {
    app.call(caller, Request::ChannelShow { channel }).await
}

/// A post. Who the author is follows from the credentials.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PostBody {
    /// The text, stored byte for byte
    text: String,
    /// The message it answers
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    reply_to: Option<MessageId>,
    /// Files that were stored before
    #[serde(default)]
    #[schema(value_type = Vec<openapi::Attachment>)]
    attachments: Vec<Attachment>,
    /// The client's own id for it: a repeated post is answered with the first result
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    id: Option<ClientId>,
}

/// Post a message; answered after it is on disk
#[utoipa::path(post, path = "/v1/channels/{channel}/posts",
    params(("channel", description = "Name or id")),
    request_body = PostBody,
    responses(
        (status = 200, description = "Saved", body = openapi::Posted),
        (status = 400, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 403, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 503, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn post_message(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(channel): Path<String>,
    body: Bytes,
) -> Answer {
    refuse_claims(&body)?;
    let PostBody { text, reply_to, attachments, id } = parse(&body)?;
    app.call(caller, Request::Post { channel, text, reply_to, attachments, client: id }).await
}

/// Where to start in a run's journal.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    /// Index of the first event
    #[serde(default)]
    from: u64,
}

/// Read the events of a turn
#[utoipa::path(get, path = "/v1/channels/{channel}/runs/{message}",
    params(("channel", description = "Name or id"), ("message" = u64, Path, description = "The run message"), From),
    responses(
        (status = 200, description = "Events, in order", body = openapi::Events),
        (status = 400, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn run(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((channel, message)): Path<(String, u64)>,
    Query(From { from }): Query<From>,
) -> Answer {
    app.call(caller, Request::Events { channel, message: MessageId(message), from }).await
}

/// An answer to a card.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerBody {
    /// The labels chosen
    choose: Vec<String>,
    /// Free text with it
    #[serde(default)]
    text: Option<String>,
}

/// Answer a question or an approval; the first answer wins
#[utoipa::path(post, path = "/v1/channels/{channel}/cards/{card}/answer",
    params(("channel", description = "Name or id"), ("card" = u64, Path, description = "The card's number")),
    request_body = AnswerBody,
    responses(
        (status = 200, description = "Answered", body = openapi::Card),
        (status = 400, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 403, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 409, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn answer(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((channel, card)): Path<(String, u64)>,
    body: Bytes,
) -> Answer {
    refuse_claims(&body)?;
    let AnswerBody { choose, text } = parse(&body)?;
    app.call(caller, Request::Answer { channel, card: MessageId(card), choose, text }).await
}

/// Read an attachment
#[utoipa::path(get, path = "/v1/channels/{channel}/attachments/{hash}",
    params(("channel", description = "Name or id"), ("hash", description = "BLAKE3 of the content, in hexadecimal")),
    responses(
        (status = 200, description = "The content", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 401, description = "Why not, and what to do about it", body = openapi::ErrorBody),
        (status = 404, description = "Why not, and what to do about it", body = openapi::ErrorBody)))]
pub(super) async fn attachment(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((channel, hash)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let hash: Hash = hash
        .parse()
        .map_err(|error: tieline_proto::id::ParseIdError| ApiError::new(Code::Invalid, error.to_string()))?;
    // The first piece decides whether there is an answer; the rest is read as the client takes it.
    let (first, size) = piece(&app, &caller, &channel, hash, 0).await?;
    let read = first.len() as u64;
    let rest = futures::stream::try_unfold(read, move |at| {
        let (app, caller, channel) = (app.clone(), caller.clone(), channel.clone());
        async move {
            if at >= size {
                return Ok(None);
            }
            let (bytes, _) = piece(&app, &caller, &channel, hash, at).await?;
            if bytes.is_empty() {
                return Err(ApiError::new(Code::Internal, format!("the attachment ends at {at} of {size} bytes")));
            }
            let next = at + bytes.len() as u64;
            Ok(Some((bytes, next)))
        }
    });
    let body = futures::StreamExt::chain(futures::stream::iter([Ok(first)]), rest);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        // Never shown in the page's own origin, whatever it holds.
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

async fn piece(app: &App, caller: &Caller, channel: &str, hash: Hash, offset: u64) -> Result<(Bytes, u64), ApiError> {
    let request = Request::BlobGet { channel: channel.to_owned(), hash, offset };
    let value = app.backend.node.call(caller.clone(), request).await?;
    let wrong = |what: String| ApiError::new(Code::Internal, what);
    let piece: BlobPiece = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
    let bytes = base64url::decode(&piece.data).map_err(|()| wrong("a piece is not base64url".to_owned()))?;
    Ok((Bytes::from(bytes), piece.size))
}

impl App {
    async fn call(&self, caller: Caller, request: Request) -> Answer {
        Ok(Json(self.backend.node.call(caller, request).await?))
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::new(Code::Invalid, error.to_string()).hint("GET /openapi.json describes the body").into()
    })
}

/// Refuses a body that says who its author is: that is never the request's to say.
fn refuse_claims(body: &[u8]) -> Result<(), Failure> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else { return Ok(()) };
    let claims = ["author", "author_id", "by", "caller", "member", "member_id", "role", "scope"];
    match claims.iter().find(|claim| fields.contains_key(**claim)) {
        Some(claim) => Err(ApiError::new(Code::Refused, format!("a request can't say who its author is: {claim:?}"))
            .hint("the author is whoever holds the credentials")
            .into()),
        None => Ok(()),
    }
}
