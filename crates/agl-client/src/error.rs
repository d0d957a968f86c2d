//! What can go wrong between a caller and the gateway.

use reqwest::StatusCode;
use serde_json::Value;

/// A call that did not bring an answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client or the request could not be built: most often a URL that is none.
    #[error("cannot call `{base_url}`: {source}; give the gateway's URL as http://host:port")]
    Setup {
        /// The URL as it was given.
        base_url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// No answer: refused, reset, timed out.
    #[error("{method} {url}: no answer from the gateway: {}", root_cause(.source))]
    Transport {
        /// HTTP method.
        method: String,
        /// Full URL.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// An answer other than 2xx.
    #[error("{method} {url}: the gateway answered {status}: {detail}")]
    Status {
        /// HTTP method.
        method: String,
        /// Full URL.
        url: String,
        /// Its status.
        status: StatusCode,
        /// Its words.
        detail: String,
    },
    /// A 2xx answer that is not what this route answers.
    #[error("{url}: the gateway's answer is not understood: {source}; are client and server of the same version?")]
    Decode {
        /// Full URL.
        url: String,
        /// Where it stopped making sense.
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Whether the same call may succeed later: no answer, or a 5xx.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Transport { .. } => true,
            Self::Status { status, .. } => status.is_server_error(),
            Self::Setup { .. } | Self::Decode { .. } => false,
        }
    }
}

/// reqwest's own text repeats the URL; the innermost cause ("connection refused") is what people look for.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The server's words: `detail` of a FastAPI-shaped error, else the body's beginning, else a hint for the status.
pub(crate) fn detail_of(status: StatusCode, body: &str) -> String {
    const LONGEST: usize = 500;
    let detail = serde_json::from_str::<Value>(body).ok().and_then(|value| match value.get("detail") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
        None => None,
    });
    let text = detail.unwrap_or_else(|| body.trim().to_owned());
    let mut text: String = text.chars().take(LONGEST).collect();
    if text.is_empty() {
        text.push_str("no reason given");
    }
    if status == StatusCode::UNAUTHORIZED {
        text.push_str(" (set the same key as the server's: `key=` or AGL_KEY)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_come_first() {
        assert_eq!(detail_of(StatusCode::NOT_FOUND, r#"{"detail":"Rollout not found: x"}"#), "Rollout not found: x");
        assert_eq!(
            detail_of(StatusCode::UNPROCESSABLE_ENTITY, r#"{"detail":[{"loc":["body"]}]}"#),
            r#"[{"loc":["body"]}]"#
        );
        assert_eq!(detail_of(StatusCode::BAD_GATEWAY, ""), "no reason given");
        assert!(detail_of(StatusCode::UNAUTHORIZED, r#"{"detail":"Invalid or missing API key"}"#).contains("AGL_KEY"));
    }
}
