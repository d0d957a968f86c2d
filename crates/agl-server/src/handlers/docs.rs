//! What the server says about itself.

use http::StatusCode;

use crate::reply::{Reply, json, with_type};

/// The OpenAPI description of every route.
pub(crate) fn openapi() -> Reply {
    json(StatusCode::OK, include_str!("../../assets/openapi.json"))
}

/// A page that shows it.
pub(crate) fn page() -> Reply {
    with_type(StatusCode::OK, "text/html; charset=utf-8", include_str!("../../assets/docs.html"))
}
