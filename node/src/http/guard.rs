//! What every request passes before a handler sees it: Host, Origin, credentials, content type, body.
//!
//! The order matters. Host first, so that a name that was rebound to this box learns nothing; Origin before
//! credentials, so that a page of somebody else can't even try; the body last, so that only a caller who may speak is
//! listened to.

use std::net::{IpAddr, SocketAddr};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use tieline_proto::api::Code;

use super::App;
use super::error::Failure;
use super::serve::{Connection, Door};
use crate::handle::Caller;

/// Longest body of a request, in bytes: a post of 64 KiB whose every byte is escaped (`\u0000`), and what is around it.
pub(super) const BODY_LEN_MAX: usize = 512 * 1024;

/// The browser session's cookie.
pub(super) const COOKIE: &str = "tieline_session";

/// The header with the session's key; the cookie alone proves nothing, for other ports of this host get it too.
pub(super) const KEY_HEADER: &str = "x-tieline-session";

/// The subprotocol of a WebSocket, and how the one begins that carries the key: a page can't set its headers.
pub(super) const PROTOCOL: &str = "tieline";
const KEY_PROTOCOL: &str = "tieline.session.";

/// Paths that need no login. They tell nothing about the node but that it is one.
const PUBLIC: [&str; 5] = ["/", "/assets/page.css", "/healthz", "/openapi.json", "/v1/session"];

/// How the caller proved who it is; asked again whenever it matters.
#[derive(Clone, Debug)]
pub(super) enum Access {
    /// The Unix socket's own word: a process of the box's owner.
    Local,
    /// The API token, as of a generation.
    Token(u64),
    /// A browser session: its cookie and its key.
    Session(String, String),
    /// An agent's token.
    Agent(String),
}

impl Access {
    /// Who that is now; `None` when the proof is no longer good.
    pub(super) fn caller(&self, app: &App) -> Option<Caller> {
        match self {
            Self::Local => Some(Caller::Owner),
            Self::Token(generation) => (app.token.generation() == *generation).then_some(Caller::Owner),
            Self::Session(id, key) => app.token.session_is(id, key).then_some(Caller::Owner),
            Self::Agent(token) => app.backend.tokens.agent(token),
        }
    }
}

/// The exact `Host` values that mean this door.
pub(super) fn hosts(addr: SocketAddr) -> Vec<String> {
    let port = addr.port();
    let mut names = vec![format!("localhost:{port}"), addr.to_string()];
    if addr.ip() == IpAddr::from([127, 0, 0, 1]) && port == 80 {
        names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    }
    names
}

/// The middleware.
pub(super) async fn check(State(app): State<App>, request: Request, next: Next) -> Result<Response, Failure> {
    let (door, is_agents) = match request.extensions().get::<Connection>() {
        Some(connection) => (connection.door, connection.is_agents),
        // Only connections make requests; the stricter door for what has none.
        None => (Door::Tcp, false),
    };
    if door == Door::Tcp {
        let host = host(&app, &request)?;
        origin(host, &request)?;
    }
    let public = PUBLIC.contains(&request.uri().path());
    if has_token_in_url(&request) {
        return Err(unauthorized("a token in a URL is never accepted: URLs end in logs and histories"));
    }
    let access = if public { None } else { Some(access(&app, door, request.headers())?) };
    // The socket's word is the owner's. What an agent starts has a token, and leaving it out lifts no limit.
    if is_agents && !public && !matches!(access, Some(Access::Agent(_))) {
        return Err(Failure::with(
            StatusCode::FORBIDDEN,
            Code::Refused,
            "a program that an agent started speaks as that agent",
            "leave TIELINE_TOKEN as the turn was given it",
        ));
    }
    let mut request = body(&app, request).await?;
    if let Some(access) = access {
        let caller = access.caller(&app).ok_or_else(|| unauthorized("the token is no longer good"))?;
        request.extensions_mut().insert(access);
        request.extensions_mut().insert(caller);
    }
    Ok(next.run(request).await)
}

/// The one `Host` of the request, if it is ours.
fn host<'a>(app: &'a App, request: &Request) -> Result<&'a str, Failure> {
    let ours = |value: &[u8]| app.hosts.iter().find(|host| host.as_bytes().eq_ignore_ascii_case(value));
    let mut named = request.headers().get_all(header::HOST).iter();
    let found = match (named.next(), named.next()) {
        (Some(value), None) => ours(value.as_bytes()),
        _ => None,
    };
    // A request line with a whole URL names a host of its own.
    let line_agrees = request.uri().authority().is_none_or(|authority| ours(authority.as_str().as_bytes()).is_some());
    found.filter(|_| line_agrees).map(String::as_str).ok_or_else(|| {
        Failure::with(
            StatusCode::MISDIRECTED_REQUEST,
            Code::Refused,
            "this host name is not served here",
            "use the address that tieline status prints",
        )
    })
}

/// Pages of other origins are refused whatever they ask; a request that may change something must name ours.
fn origin(host: &str, request: &Request) -> Result<(), Failure> {
    let must = !matches!(*request.method(), Method::GET | Method::HEAD)
        || request.headers().contains_key(header::UPGRADE)
        || request.uri().path() == "/v1/ws";
    let mut named = request.headers().get_all(header::ORIGIN).iter();
    // A browser names the page's origin in all that may change something, and sets no bearer for a page of others.
    let is_program = request.headers().contains_key(header::AUTHORIZATION);
    let allowed = match (named.next(), named.next()) {
        (None, _) => !must || is_program,
        (Some(value), None) => value.as_bytes().strip_prefix(b"http://").is_some_and(|o| o == host.as_bytes()),
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    Err(Failure::with(
        StatusCode::FORBIDDEN,
        Code::Refused,
        "the Origin header must be this page's own",
        "programs send Origin: http:// with the host and port they call, or use the Unix socket",
    ))
}

fn has_token_in_url(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').filter_map(|pair| pair.split('=').next()).any(|key| {
        ["token", "access_token", "api_token", "api-token", "bearer"].contains(&key.to_ascii_lowercase().as_str())
    })
}

fn access(app: &App, door: Door, headers: &HeaderMap) -> Result<Access, Failure> {
    let mut named = headers.get_all(header::AUTHORIZATION).iter();
    if let Some(value) = named.next() {
        let token = named.next().is_none().then(|| bearer(value)).flatten();
        let token = token.ok_or_else(|| unauthorized("the Authorization header must be Bearer and the token"))?;
        if let Some(generation) = app.token.matches(token) {
            return Ok(Access::Token(generation));
        }
        // An agent's process runs on this box, or its socket is brought here by our own resident.
        let access = Access::Agent(token.to_owned());
        return match (door, access.caller(app)) {
            (Door::Unix, Some(_)) => Ok(access),
            _ => Err(unauthorized("this token is not known")),
        };
    }
    if door == Door::Unix {
        return Ok(Access::Local);
    }
    match (cookie(headers), session_key(headers)) {
        (Some(id), Some(key)) if app.token.session_is(id, key) => Ok(Access::Session(id.to_owned(), key.to_owned())),
        (Some(_), Some(_)) => Err(unauthorized("this session has ended")),
        (Some(_), None) => Err(unauthorized("a cookie without its session's key is no login")),
        (None, _) => Err(unauthorized("this needs a login")),
    }
}

/// What the page got when it logged in.
fn session_key(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(KEY_HEADER).and_then(|value| value.to_str().ok());
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut protocols = protocols.flat_map(|value| value.split(','));
    header.map(str::trim).or_else(|| protocols.find_map(|name| name.trim().strip_prefix(KEY_PROTOCOL)))
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The session cookie's value.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, id)| id)
}

/// Reads the whole body of a request that has one, within its limits of kind, length and time.
async fn body(app: &App, request: Request) -> Result<Request, Failure> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let sent_json = match parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes) {
        Some(kind) => {
            let kind = kind.to_ascii_lowercase();
            kind == b"application/json"
                || kind == b"application/json; charset=utf-8"
                || kind == b"application/json;charset=utf-8"
        }
        None => false,
    };
    if !sent_json {
        return Err(Failure::with(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::Invalid,
            "only application/json is read",
            "send Content-Type: application/json",
        ));
    }
    let read = tokio::time::timeout(app.limits.body, axum::body::to_bytes(body, BODY_LEN_MAX)).await;
    let bytes: Bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            return Err(Failure::with(
                StatusCode::PAYLOAD_TOO_LARGE,
                Code::Limit,
                format!("a body of more than {BODY_LEN_MAX} bytes is not read, nor one that breaks off"),
                "send large texts as attachments",
            ));
        }
        Err(_) => {
            return Err(Failure::with(StatusCode::REQUEST_TIMEOUT, Code::Limit, "the body did not come in time", ""));
        }
    };
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// Headers that every answer carries.
pub(super) async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let mut set = |name, value| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::CACHE_CONTROL, "no-store");
    set(header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    response
}

fn unauthorized(message: &str) -> Failure {
    Failure::with(
        StatusCode::UNAUTHORIZED,
        Code::Refused,
        message,
        "send Authorization: Bearer with the content of api-token in the data folder",
    )
}
