//! Errors as HTTP shows them.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tieline_proto::api::{ApiError, Code};

/// The body of every error, over HTTP as on the command line: `{"error":{"code","message","hint"}}`.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ApiError,
}

/// An [`ApiError`] on its way out as a response.
#[derive(Debug)]
pub(super) struct Failure(StatusCode, ApiError);

impl Failure {
    /// An error whose status says more than its code.
    pub(super) fn with(status: StatusCode, code: Code, message: impl Into<String>, hint: &str) -> Self {
        Self(status, ApiError::new(code, message).hint(hint))
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(status_of(error.code), error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

/// The status that goes with a code.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::Invalid => StatusCode::BAD_REQUEST,
        Code::Refused => StatusCode::FORBIDDEN,
        Code::Limit => StatusCode::TOO_MANY_REQUESTS,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Conflict | Code::AlreadyRunning => StatusCode::CONFLICT,
        Code::Unreachable => StatusCode::BAD_GATEWAY,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Code::ReadOnly | Code::NotRunning => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
