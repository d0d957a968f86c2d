//! Errors in the shape that OpenAI clients know, with vLLM's types.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::chat::TemplateError;
use crate::scheduler::SubmitError;
use crate::tokenizer::TokenizerError;

/// A request that is not answered as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    /// The request is wrong, in `param` if that can be told.
    pub(crate) fn bad_request(param: impl Into<Option<&'static str>>, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", param: param.into(), message: message.into() }
    }

    /// A value outside what is allowed.
    pub(crate) fn value(param: &'static str, rule: &str, value: &dyn std::fmt::Display) -> Self {
        Self::bad_request(param, format!("{param} must be {rule}, got {value}. (parameter={param}, value={value})"))
    }

    /// Something that vLLM has and this engine has not.
    pub(crate) fn unsupported(param: &'static str, what: &str) -> Self {
        Self::bad_request(param, format!("{param}: {what} is not supported by the embedded engine; leave it out"))
    }

    /// The model is not the one served here.
    pub(crate) fn unknown_model(model: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            param: Some("model"),
            message: format!("The model `{model}` does not exist."),
        }
    }

    /// The engine failed.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            param: None,
            message: message.into(),
        }
    }

    /// The same as JSON.
    pub(crate) fn body(&self) -> serde_json::Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16(),
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        Self::bad_request("messages", error.to_string())
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "ServiceUnavailableError",
            param: None,
            message: error.to_string(),
        }
    }
}
