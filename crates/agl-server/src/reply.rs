//! Answers, and errors in the shape that callers know: `{"detail": …}`.

use agl_gateway::Relay;
use agl_protocol::pyjson;
use agl_store::Refusal;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{Either, Full};

use crate::validate::Problems;

/// The body of every answer: whole, or a model server's stream on its way.
pub(crate) type Body = Either<Full<Bytes>, Relay>;
/// Every answer.
pub(crate) type Reply = Response<Body>;

/// An answer with JSON in it.
pub(crate) fn json(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    with_type(status, "application/json", text)
}

/// An answer of any type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body.into())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// An answer without a body. The original calls even that JSON, except when it redirects.
pub(crate) fn empty(status: StatusCode) -> Reply {
    if status == StatusCode::TEMPORARY_REDIRECT {
        let mut reply = Response::new(Either::Left(Full::default()));
        *reply.status_mut() = status;
        return reply;
    }
    json(status, Bytes::new())
}

/// `{"detail": "…"}`.
pub(crate) fn detail(status: StatusCode, message: &str) -> Reply {
    let mut text = String::from("{\"detail\":");
    pyjson::write_string(&mut text, message);
    text.push('}');
    json(status, text)
}

/// Sets a header, if the value is one.
pub(crate) fn with_header(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
    reply
}

/// Why a request was not served as asked.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The request's parts are not what the route takes: 422 with the list.
    Invalid(Problems),
    /// The store says no.
    Store(Refusal),
    /// Anything else, said in one sentence.
    Status(StatusCode, String),
}

impl From<Problems> for Refused {
    fn from(problems: Problems) -> Self {
        Self::Invalid(problems)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Store(refusal)
    }
}

impl Refused {
    /// The answer that says so.
    pub(crate) fn into_reply(self) -> Reply {
        match self {
            Self::Invalid(problems) => json(StatusCode::UNPROCESSABLE_ENTITY, problems.to_json()),
            Self::Status(status, message) => detail(status, &message),
            Self::Store(refusal) => {
                let status = match refusal {
                    Refusal::NotFound(_) => StatusCode::NOT_FOUND,
                    Refusal::InvalidTransition { .. } => StatusCode::CONFLICT,
                    Refusal::RoutesWithoutTokens => StatusCode::UNPROCESSABLE_ENTITY,
                };
                detail(status, &refusal.to_string())
            }
        }
    }
}
