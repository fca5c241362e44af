//! What a request names in its path and query. What can't be read is an error like every other, and no plain text.

use axum::extract::{self, FromRequestParts};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use tieline_proto::api::{ApiError, Code};

use super::super::error::Failure;

/// Parts of the path.
pub(in super::super) struct Path<T>(pub T);

/// The query.
pub(in super::super) struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let read = extract::Path::from_request_parts(parts, state).await;
        read.map(|extract::Path(value)| Self(value)).map_err(|error| invalid(error.body_text()))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let read = extract::Query::from_request_parts(parts, state).await;
        read.map(|extract::Query(value)| Self(value)).map_err(|error| invalid(error.body_text()))
    }
}

fn invalid(what: String) -> Failure {
    ApiError::new(Code::Invalid, what).hint("GET /openapi.json lists what it takes").into()
}
