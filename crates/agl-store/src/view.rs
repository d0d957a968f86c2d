//! The two views of events, written straight to JSON: as recorded, and as triplets.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use agl_protocol::pyjson::{self, Value};
use agl_protocol::{EventKind, RawJson};

use crate::call::{PostedCall, PromptKey, Routes};
use crate::rollout::value_of;
use crate::{CallTokens, Event, EventData, ModelCall, TokenIds};

/// Which events to show, and how.
#[derive(Clone, Debug)]
pub struct EventView {
    /// Only events of this type.
    pub event_type: Option<String>,
    /// Of model calls only what training needs; of calls with the same prompt only the last.
    pub triplets: bool,
    /// Show the expert routes.
    pub routes: bool,
}

impl Default for EventView {
    /// Everything as recorded.
    fn default() -> Self {
        Self { event_type: None, triplets: false, routes: true }
    }
}

/// Writes the events as a JSON list. Whatever an event holds, it is shown: none can break the list.
pub fn write_events(events: &[Arc<Event>], view: &EventView) -> String {
    let wanted = |event: &&Arc<Event>| view.event_type.as_ref().is_none_or(|wanted| event.event_type == *wanted);
    let mut shown: Vec<&Event> = events.iter().filter(wanted).map(Arc::as_ref).collect();
    if view.triplets {
        drop_displaced(&mut shown);
    }
    let mut out = String::from("[");
    for (index, event) in shown.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        event.write(&mut out, view);
    }
    out.push(']');
    out
}

/// Of the calls that ask the same prompt, keeps the last; but one that sampled nothing never displaces one that did.
fn drop_displaced(events: &mut Vec<&Event>) {
    let mut kept: HashMap<PromptKey<'_>, (usize, bool)> = HashMap::new();
    let mut displaced = vec![false; events.len()];
    for (index, event) in events.iter().enumerate() {
        let Some(tokens) = event.data.tokens() else { continue };
        let Some(key) = tokens.prompt_key() else { continue };
        let sampled = event.data.has_answer();
        match kept.get(&key) {
            Some((_, true)) if !sampled => {
                displaced[index] = true;
                continue;
            }
            Some((earlier, _)) => displaced[*earlier] = true,
            None => {}
        }
        kept.insert(key, (index, sampled));
    }
    let mut index = 0;
    events.retain(|_| {
        index += 1;
        !displaced[index - 1]
    });
}

impl Event {
    /// Appends the event as JSON.
    pub fn write(&self, out: &mut String, view: &EventView) {
        out.push_str("{\"event_type\":");
        pyjson::write_string(out, &self.event_type);
        out.push_str(",\"rollout_id\":");
        pyjson::write_string(out, &self.rollout_id);
        out.push_str(",\"attempt_id\":");
        pyjson::write_string(out, &self.attempt_id);
        out.push_str(",\"timestamp\":");
        push_float(out, self.timestamp);
        out.push_str(",\"data\":");
        match &self.data {
            EventData::Json(data) if view.triplets && EventKind::of(&self.event_type) == EventKind::Reward => {
                write_reward(out, data);
            }
            EventData::Json(data) => out.push_str(data.text()),
            EventData::PostedCall(call) if view.triplets => call.write_triplet(out, view.routes),
            EventData::PostedCall(call) if view.routes => out.push_str(call.data.text()),
            EventData::PostedCall(call) => out.push_str(&call.data_without_routes()),
            EventData::Call(call) if view.triplets => call.write_triplet(out, view.routes),
            EventData::Call(call) => call.write(out, view.routes),
        }
        out.push('}');
    }
}

/// The scalar of a reward, and where it comes from.
fn write_reward(out: &mut String, data: &RawJson) {
    let fields = value_of(data);
    let mut shown = pyjson::Dict::new();
    shown.insert("value".into(), fields.get("value").cloned().unwrap_or_default());
    for key in ["source", "reason"] {
        if let Some(value) = fields.get(key) {
            shown.insert(key.into(), value.clone());
        }
    }
    Value::Dict(shown).write(out, pyjson::Spelling::Pydantic);
}

impl PostedCall {
    fn write_triplet(&self, out: &mut String, routes: bool) {
        write_tokens(out, &self.tokens);
        push_field(out, ",\"server\":{\"model\":", self.model.text());
        push_field(out, ",\"version\":", self.version.text());
        out.push('}');
        write_kept_routes(out, &self.routes, routes);
        for (key, value) in [("http_status", &self.http_status), ("status", &self.status), ("error", &self.error)] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":{}", value.text());
            }
        }
        out.push('}');
    }
}

impl ModelCall {
    /// Of a call that broke off, the tokens sampled so far are not shown: no trainer, ours or another, may learn from them.
    fn write_triplet(&self, out: &mut String, routes: bool) {
        if self.status.is_whole() {
            write_tokens(out, &self.tokens);
        } else {
            write_tokens(out, &CallTokens { prompt: self.tokens.prompt.clone(), ..CallTokens::default() });
        }
        out.push_str(",\"server\":{\"model\":");
        pyjson::write_string(out, &self.server.model);
        push_field(out, ",\"version\":", self.server.version.digits());
        out.push('}');
        write_kept_routes(out, &self.routes, routes);
        let _ = write!(out, ",\"http_status\":{},\"status\":\"{}\"", self.http_status, self.status.as_str());
        if let Some(error) = &self.error {
            push_field(out, ",\"error\":", error.text());
        }
        out.push('}');
    }

    fn write(&self, out: &mut String, routes: bool) {
        let version = self.server.version.digits();
        out.push_str("{\"model\":");
        pyjson::write_string(out, &self.server.model);
        push_field(out, ",\"model_version\":", version);
        push_field(out, ",\"request\":", text_of(&self.request));
        push_field(out, ",\"response\":", text_of(&self.response));
        out.push_str(",\"server\":{\"model\":");
        pyjson::write_string(out, &self.server.model);
        out.push_str(",\"endpoint\":");
        pyjson::write_string(out, &self.server.endpoint);
        push_field(out, ",\"version\":", version);
        out.push_str("},\"latency_ms\":");
        push_float(out, self.latency_ms);
        let (http_status, status, retries) = (self.http_status, self.status.as_str(), self.retry_count);
        let _ = write!(out, ",\"http_status\":{http_status},\"status\":\"{status}\",\"retry_count\":{retries}");
        match &self.routes {
            Routes::Kept(kept) if routes => push_field(out, ",\"routed_experts\":", kept.text()),
            Routes::None if routes => out.push_str(",\"routed_experts\":null"),
            _ => {}
        }
        push_field(out, ",\"usage\":", self.usage.as_ref().map_or("null", RawJson::text));
        out.push_str(",\"finish_reason\":");
        match &self.finish_reason {
            Some(reason) => pyjson::write_string(out, reason),
            None => out.push_str("null"),
        }
        out.push('}');
    }
}

fn write_tokens(out: &mut String, tokens: &CallTokens) {
    out.push_str("{\"prompt_token_ids\":");
    write_ids(out, &tokens.prompt);
    out.push_str(",\"response_token_ids\":");
    write_ids(out, &tokens.response);
    out.push_str(",\"response_log_probs\":");
    match &tokens.log_probs {
        None => out.push_str("null"),
        Some(log_probs) => write_list(out, log_probs, |out, number| push_float(out, *number)),
    }
}

fn write_ids(out: &mut String, ids: &TokenIds) {
    match ids {
        TokenIds::Odd(raw) => out.push_str(raw.text()),
        TokenIds::Tokens(tokens) => write_list(out, tokens, |out, id| {
            let _ = write!(out, "{id}");
        }),
    }
}

fn write_list<T>(out: &mut String, items: &[T], write: impl Fn(&mut String, &T)) {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

fn write_kept_routes(out: &mut String, routes: &Routes, shown: bool) {
    if let Some(kept) = routes.kept().filter(|_| shown) {
        push_field(out, ",\"routed_experts\":", kept.text());
    }
}

fn push_field(out: &mut String, key: &str, value: &str) {
    out.push_str(key);
    out.push_str(value);
}

/// The shortest spelling that reads back as the same number.
fn push_float(out: &mut String, number: f64) {
    Value::Float(number).write(out, pyjson::Spelling::Pydantic);
}

/// The gateway keeps only bodies that it has found to be JSON, so they are text.
fn text_of(body: &[u8]) -> &str {
    std::str::from_utf8(body).unwrap_or("{}")
}
