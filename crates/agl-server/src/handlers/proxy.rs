//! Model calls, and the gate in front of them.

use std::fmt::Write as _;

use agl_gateway::{Answer, AnswerBody, Call, CallError, GateState, UpstreamPath};
use agl_protocol::{Mode, pyjson};
use agl_store::Refusal;
use http::StatusCode;
use http_body_util::{Either, Full};

use crate::app::{App, Ask};
use crate::reply::{Refused, Reply, detail, empty, json, with_header};
use crate::{body, validate};

/// `POST /proxy/rollout/{id}/attempt/{attempt}/mode/{mode}/openai/v1/…`: a model call of an agent.
pub(crate) async fn call(app: &App, ask: Ask) -> Result<Reply, Refused> {
    let mode = mode_of(&ask)?;
    let path = ask.segment(3);
    let path = UpstreamPath::parse(path).ok_or_else(|| not_found(format!("Unsupported upstream path: {path}")))?;
    let (rollout_id, attempt_id) = (ask.segment(0).to_owned(), ask.segment(1).to_owned());
    let answered = app.gateway.call(Call { rollout_id, attempt_id, mode, path, body: ask.body }).await;
    Ok(answered.map_or_else(|error| refuse(&error), pass))
}

/// `GET …/openai/v1/models`: the one model there is, since SDKs may ask.
pub(crate) fn list_models(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    mode_of(ask)?;
    let rollout_id = ask.segment(0);
    if !app.store.read(|state| state.contains(rollout_id)) {
        return Err(Refusal::NotFound(rollout_id.to_owned()).into());
    }
    let mut model = String::new();
    pyjson::write_string(&mut model, &app.gateway.settings().model_name);
    let model = format!(r#"{{"id":{model},"object":"model","created":0,"owned_by":"agl"}}"#);
    Ok(json(StatusCode::OK, format!(r#"{{"object":"list","data":[{model}]}}"#)))
}

fn mode_of(ask: &Ask) -> Result<Mode, Refused> {
    let mode = ask.segment(2);
    let known = [Mode::Train, Mode::Val].into_iter().find(|known| known.as_str() == mode);
    known.ok_or_else(|| not_found(format!("Unsupported proxy mode: {mode}")))
}

fn not_found(message: String) -> Refused {
    Refused::Status(StatusCode::NOT_FOUND, message)
}

fn pass(answer: Answer) -> Reply {
    if matches!(answer.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return empty(answer.status);
    }
    let mut reply = Reply::new(match answer.body {
        AnswerBody::Whole(body) => Either::Left(Full::new(body)),
        AnswerBody::Stream(relay) => Either::Right(*relay),
    });
    *reply.status_mut() = answer.status;
    *reply.headers_mut() = answer.headers;
    reply
}

fn refuse(error: &CallError) -> Reply {
    let status = match error {
        CallError::Paused { retry_after, reason } => return paused(retry_after.digits(), reason.as_deref()),
        CallError::RolloutNotFound(_) => StatusCode::NOT_FOUND,
        CallError::Shape(_) | CallError::StreamingOff => StatusCode::BAD_REQUEST,
        CallError::NoServers(_) => StatusCode::SERVICE_UNAVAILABLE,
        CallError::Timeout => StatusCode::GATEWAY_TIMEOUT,
        CallError::Unreachable | CallError::Unreadable(_) => StatusCode::BAD_GATEWAY,
    };
    detail(status, &error.to_string())
}

/// Tells an agent when to come back. The body is spelled as the original's: with blanks, and nothing but ASCII.
fn paused(retry_after: &str, reason: Option<&str>) -> Reply {
    let mut reason_json = String::from("null");
    if let Some(reason) = reason {
        reason_json.clear();
        pyjson::write_string(&mut reason_json, reason);
    }
    let mut text = String::from("{\"error\": \"gateway paused\", \"reason\": ");
    for unit in reason_json.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() => text.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => _ = write!(text, "\\u{unit:04x}"),
        }
    }
    text.push('}');
    let reply = with_header(json(StatusCode::TOO_MANY_REQUESTS, text), "retry-after", retry_after);
    with_header(reply, "x-agl-paused", "true")
}

/// `POST /proxy/pause`: refuses new calls; those inside go on.
pub(crate) fn pause(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let (retry_after_seconds, reason) = validate::pause(&body::json(&ask.headers, &ask.body)?)?;
    Ok(gate(&app.gateway.gate().pause(retry_after_seconds, reason)))
}

/// `POST /proxy/resume`: takes calls again.
pub(crate) fn resume(app: &App) -> Reply {
    gate(&app.gateway.gate().resume())
}

/// `GET /proxy/state`: whether paused, and how many calls are inside.
pub(crate) fn state(app: &App) -> Reply {
    gate(&app.gateway.gate().state())
}

fn gate(state: &GateState) -> Reply {
    let GateState { paused, retry_after_seconds, reason, inflight } = state;
    let mut text =
        format!("{{\"paused\":{paused},\"retry_after_seconds\":{},\"reason\":", retry_after_seconds.digits());
    match reason {
        Some(reason) => pyjson::write_string(&mut text, reason),
        None => text.push_str("null"),
    }
    // Writing to a String cannot fail.
    let _ = write!(text, ",\"inflight\":{inflight}}}");
    json(StatusCode::OK, text)
}
