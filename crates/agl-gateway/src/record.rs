//! Keeping a call: what was asked, what came back, and how it went.

use std::sync::Arc;
use std::time::Instant;

use agl_protocol::pyjson::Value;
use agl_store::{CallStatus, CallTokens, EventData, ModelCall, ModelServer, NewEvent, Routes, Store};
use bytes::Bytes;
use http::StatusCode;

use crate::capture::Capture;
use crate::gate::Pass;

/// What is known of a call before its answer. It counts as inside the gate until it is kept or dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) store: Store,
    pub(crate) rollout_id: String,
    pub(crate) attempt_id: String,
    pub(crate) server: Arc<ModelServer>,
    pub(crate) request: Bytes,
    pub(crate) started: Instant,
    pub(crate) retry_count: u32,
    pub(crate) http_status: StatusCode,
    pub(crate) pass: Pass,
}

impl Recorder {
    /// Keeps an answer that came in one piece; what of it the agent gets.
    pub(crate) fn keep_whole(self, capture: Capture) -> Bytes {
        let answer = capture.answer.clone();
        let status = if is_aborted(capture.finish_reason.as_deref()) { CallStatus::Aborted } else { capture.status };
        self.keep(Capture { status, ..capture });
        answer
    }

    /// Keeps what a stream amounted to.
    pub(crate) fn keep_stream(self, answer: &Value, complete: bool) {
        let choices = answer.get("choices").and_then(Value::as_list).unwrap_or_default();
        let reason_of = |choice: &Value| choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned);
        let routes =
            choices.iter().filter_map(|choice| choice.get("routed_experts")).find(|routes| **routes != Value::Null);
        let status = match complete {
            false => CallStatus::StreamError,
            true if choices.iter().any(|choice| is_aborted(reason_of(choice).as_deref())) => CallStatus::Aborted,
            true => CallStatus::Ok,
        };
        let raw = |key: &str| answer.get(key).filter(|value| matches!(value, Value::Dict(_))).map(Value::to_raw);
        self.keep(Capture {
            answer: Bytes::new(),
            response: answer.to_raw().text().to_owned().into(),
            status,
            tokens: CallTokens::of_response(answer),
            routes: routes.map_or(Routes::None, |routes| Routes::Kept(routes.to_raw())),
            usage: raw("usage"),
            finish_reason: choices.first().and_then(reason_of).filter(|reason| !reason.is_empty()),
            error: answer.get("error").map(Value::to_raw),
        });
    }

    /// Appends the event. If its rollout was deleted meanwhile there is nobody left who would ask for it.
    fn keep(self, capture: Capture) {
        let call = ModelCall {
            server: self.server,
            request: self.request,
            response: capture.response,
            latency_ms: self.started.elapsed().as_secs_f64() * 1e3,
            http_status: self.http_status.as_u16(),
            status: capture.status,
            retry_count: self.retry_count,
            routes: capture.routes,
            usage: capture.usage,
            finish_reason: capture.finish_reason,
            error: capture.error,
            tokens: capture.tokens,
        };
        let (rollout_id, attempt_id, event_type) = (self.rollout_id, self.attempt_id, "model_request".to_owned());
        let event = NewEvent { rollout_id, attempt_id, event_type, data: EventData::Call(Box::new(call)) };
        if let Err(refusal) = self.store.record(event) {
            tracing::warn!(%refusal, "a model call is dropped");
        }
        drop(self.pass);
    }
}

/// A model server that was paused gives up its answers half-way, with status 200.
fn is_aborted(finish_reason: Option<&str>) -> bool {
    finish_reason == Some("abort")
}
