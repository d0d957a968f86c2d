//! The body of a request: read within its limit, then taken as JSON or not, by the original's rules.

use agl_protocol::pyjson::{self, ParseError, Value};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use crate::reply::Refused;
use crate::validate::{At, Problems};

/// Reads the whole body.
pub(crate) async fn read(body: Incoming, max_bytes: usize) -> Result<Bytes, Refused> {
    match Limited::new(body, max_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refused::Status(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("Request body is larger than {max_bytes} bytes (max_body_bytes)"),
        )),
        Err(error) => Err(Refused::Status(StatusCode::BAD_REQUEST, format!("Request body ended early: {error}"))),
    }
}

/// The JSON value that a body stands for: what it holds, if it says that it is JSON, else its text.
pub(crate) fn json(headers: &HeaderMap, body: &[u8]) -> Result<Value, Refused> {
    if body.is_empty() {
        let mut problems = Problems::default();
        problems.add("missing", &At::BODY, "Field required", &Value::Null);
        return Err(problems.into());
    }
    let unreadable = || Refused::Status(StatusCode::BAD_REQUEST, "There was an error parsing the body".to_owned());
    if !is_json(headers) {
        return std::str::from_utf8(body).map(|text| Value::Str(text.to_owned())).map_err(|_| unreadable());
    }
    pyjson::parse(body).map_err(|error| match error {
        ParseError::Syntax { message, position } => Problems::not_json(message, position).into(),
        ParseError::Decode(_) | ParseError::Limit(_) => unreadable(),
    })
}

/// `application/json` or `application/*+json`, whatever the case and the parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type.strip_prefix("application/").is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_says_so() {
        let says =
            |value: &'static str| is_json(&[(header::CONTENT_TYPE, value.parse().unwrap())].into_iter().collect());
        for yes in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(says(yes), "{yes}");
        }
        for no in ["text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonl", ""] {
            assert!(!says(no), "{no}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
