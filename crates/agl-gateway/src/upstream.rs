//! One attempt at a model server: a pooled HTTP/1.1 client.

use std::fmt::Write as _;
use std::io::Read as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::GatewaySettings;

/// The largest answer that is taken from a model server.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// What a model server answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its HTTP status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// What came of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// A whole answer.
    Whole(Reply),
    /// The head of a stream.
    Stream(Response<Incoming>),
}

/// Why an attempt got no answer.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// It took too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection could not be made, or broke.
    #[error("{0}")]
    Transport(String),
    /// The endpoint is no `http://` URL, so that trying again can't help.
    #[error("endpoint {endpoint:?} is not a URL that can be called: {why}")]
    BadEndpoint {
        /// As it was registered.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The client. Connections are kept and shared; their number has no cap of its own, since every one of them is a call
/// that the gate counts.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    attempt_timeout: Duration,
}

impl Upstream {
    /// A client with an empty pool.
    pub fn new(settings: &GatewaySettings) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(settings.idle_timeout)
            .build(connector);
        Self { client, attempt_timeout: settings.attempt_timeout }
    }

    /// Sends a request and waits for the whole answer or, if the agent `wants_stream` and the model server agrees, for
    /// its head. Dropping the future closes the connection, which is how a model server learns that nobody waits any more.
    pub async fn send(&self, target: &Uri, body: Bytes, wants_stream: bool) -> Result<Outcome, AttemptError> {
        tokio::time::timeout(self.attempt_timeout, self.exchange(target, body, wants_stream))
            .await
            .unwrap_or(Err(AttemptError::Timeout(self.attempt_timeout)))
    }

    async fn exchange(&self, target: &Uri, body: Bytes, wants_stream: bool) -> Result<Outcome, AttemptError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.clone();
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = self.client.request(request).await.map_err(|error| AttemptError::Transport(chain(&error)))?;
        if wants_stream && is_stream(&response) {
            return Ok(Outcome::Stream(response));
        }
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| AttemptError::Transport(error.to_string()))?.to_bytes();
        Ok(Outcome::Whole(plain(Reply { status: parts.status, headers: parts.headers, body })))
    }
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    response.status().is_success() && content_type.to_ascii_lowercase().starts_with(b"text/event-stream")
}

/// Unpacks an answer that came compressed though nobody asked for that. What can't be unpacked stays as it came.
fn plain(mut reply: Reply) -> Reply {
    let is_gzip = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"gzip");
    if !reply.headers.get(header::CONTENT_ENCODING).is_some_and(is_gzip) {
        return reply;
    }
    let mut unpacked = Vec::new();
    let mut reader = GzDecoder::new(&reply.body[..]).take(MAX_ANSWER_BYTES as u64);
    if reader.read_to_end(&mut unpacked).is_ok() {
        reply.body = unpacked.into();
        reply.headers.remove(header::CONTENT_ENCODING);
    }
    reply
}

/// An error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// `{endpoint}/{path}`, with whatever may not stand in a URL percent-encoded, as the original's client does.
pub fn target(endpoint: &str, path: &str) -> Result<Uri, AttemptError> {
    let bad = |why: String| AttemptError::BadEndpoint { endpoint: endpoint.to_owned(), why };
    let url = format!("{}/{path}", endpoint.trim_end_matches('/'));
    let url = url.split('#').next().unwrap_or_default();
    let mut encoded = String::with_capacity(url.len());
    for byte in url.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    let uri: Uri = encoded.parse().map_err(|error: http::uri::InvalidUri| bad(error.to_string()))?;
    match uri.scheme_str() {
        Some("http") => Ok(uri),
        Some(scheme) => Err(bad(format!("scheme {scheme:?} is not supported, use http://"))),
        None => Err(bad("it must start with http://".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_spelled_as_the_original_spells_them() {
        let url = |endpoint: &str| target(endpoint, "chat/completions").unwrap().to_string();
        assert_eq!(url("http://h:1/v1///"), "http://h:1/v1/chat/completions");
        assert_eq!(url("http://h"), "http://h/chat/completions");
        assert_eq!(url("http://h/v 1"), "http://h/v%201/chat/completions");
        assert_eq!(url("http://h/vé"), "http://h/v%C3%A9/chat/completions");
        assert_eq!(url("http://h/v%2F1"), "http://h/v%2F1/chat/completions");
        assert_eq!(url("http://h/v1?x=1"), "http://h/v1?x=1/chat/completions");
        assert_eq!(url("http://h/v1#f"), "http://h/v1");
    }

    #[test]
    fn endpoints_that_are_no_url_say_so() {
        for endpoint in ["", "e", "not-a-url/v1", "ftp://h/v1", "http://[bad/v1"] {
            assert!(matches!(target(endpoint, "completions"), Err(AttemptError::BadEndpoint { .. })), "{endpoint}");
        }
    }
}
