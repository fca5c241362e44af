//! `GET /`: what a person sees who opens the node's address.

use axum::http::header;
use axum::response::IntoResponse;

/// Nothing but this text and its own style: no script, no frame, no foreign request.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/page.css");

/// `GET /`.
pub(super) async fn index() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)], HTML)
}

/// `GET /assets/page.css`.
pub(super) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE)
}
