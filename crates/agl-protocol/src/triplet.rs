//! Triplets: what the trainer gets of a model call, which is its ids and log-probabilities and nothing else.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Event, EventKind, RawJson};

/// The data of a `model_request` event in the triplet view (`GET …/events?format=triplet`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TripletCall {
    /// Token ids of the prompt, as the model server saw them.
    #[serde(default)]
    pub prompt_token_ids: Vec<u32>,
    /// Token ids that were sampled, the stop token included.
    #[serde(default)]
    pub response_token_ids: Vec<u32>,
    /// One log-probability a sampled token; `None` when the call recorded none that can be used.
    #[serde(default)]
    pub response_log_probs: Option<Vec<f64>>,
    /// Which model server answered: `{"model", "version"}`.
    #[serde(default)]
    pub server: Value,
    /// Mixture-of-experts routes, as the model server sent them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<RawJson>,
    /// HTTP status of the model server's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<i64>,
    /// `ok`, `error`, or, of a call that broke off, `stream_error` or `aborted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

/// Why a model call of the triplet view can't be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TripletError {
    /// The event is not a model call.
    #[error("event of type `{0}` is not a model call")]
    NotAModelCall(String),
    /// Its data is not what a model call holds.
    #[error("model call with malformed data: {0}")]
    Malformed(String),
    /// The model server answered with an error.
    #[error("model call failed (status {status}, HTTP {http_status})")]
    Failed {
        /// The event's `status`.
        status: String,
        /// The event's `http_status`, or "unknown".
        http_status: String,
    },
    /// No token was sampled, or the call recorded none.
    #[error("model call without response token ids")]
    NoResponse,
    /// There are ids and log-probabilities, but not one for one.
    #[error("model call with {ids} token ids but {log_probs} log-probabilities")]
    CountsDiffer {
        /// How many ids.
        ids: usize,
        /// How many log-probabilities.
        log_probs: usize,
    },
}

impl TripletCall {
    /// Reads an event of the triplet view. Says why if the call can't be trained on; nothing is guessed or padded.
    pub fn from_event(event: &Event) -> Result<Self, TripletError> {
        if EventKind::of(&event.event_type) != EventKind::ModelRequest {
            return Err(TripletError::NotAModelCall(event.event_type.clone()));
        }
        let call: Self = event.data.parse().map_err(|e| TripletError::Malformed(e.to_string()))?;
        if call.status.as_deref().is_some_and(|status| status != "ok")
            || call.http_status.is_some_and(|status| status >= 400)
        {
            return Err(TripletError::Failed {
                status: call.status.unwrap_or_else(|| "unknown".into()),
                http_status: call.http_status.map_or_else(|| "unknown".into(), |status| status.to_string()),
            });
        }
        if call.response_token_ids.is_empty() {
            return Err(TripletError::NoResponse);
        }
        match &call.response_log_probs {
            Some(log_probs) if log_probs.len() != call.response_token_ids.len() => {
                Err(TripletError::CountsDiffer { ids: call.response_token_ids.len(), log_probs: log_probs.len() })
            }
            _ => Ok(call),
        }
    }

    /// The policy version that sampled the response, if the event says.
    pub fn policy_version(&self) -> Option<i64> {
        self.server.get("version").and_then(Value::as_i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_type: &str, data: &str) -> Event {
        Event {
            event_type: event_type.into(),
            rollout_id: "r".into(),
            attempt_id: "0".into(),
            timestamp: 0.0,
            data: RawJson::from_text(data.into()).unwrap(),
        }
    }

    #[test]
    fn a_good_call_keeps_its_ids_and_log_probs() {
        let data = r#"{"prompt_token_ids":[1,2],"response_token_ids":[7,8],"response_log_probs":[-0.1,-0.2],"server":{"model":"m","version":4},"http_status":200,"status":"ok"}"#;
        let call = TripletCall::from_event(&event("model_request", data)).unwrap();
        assert_eq!(call.prompt_token_ids, [1, 2]);
        assert_eq!(call.response_token_ids, [7, 8]);
        assert_eq!(call.response_log_probs, Some(vec![-0.1, -0.2]));
        assert_eq!(call.policy_version(), Some(4));
    }

    #[test]
    fn a_call_that_cannot_train_says_why() {
        let refused = |data: &str| TripletCall::from_event(&event("model_request", data)).unwrap_err();
        assert_eq!(refused(r#"{"response_token_ids":[]}"#), TripletError::NoResponse);
        assert_eq!(
            refused(r#"{"response_token_ids":[1,2],"response_log_probs":[-1.0]}"#),
            TripletError::CountsDiffer { ids: 2, log_probs: 1 }
        );
        assert!(matches!(refused(r#"{"response_token_ids":[1],"http_status":503}"#), TripletError::Failed { .. }));
        assert!(matches!(refused(r#"{"response_token_ids":["x"]}"#), TripletError::Malformed(_)));
        assert!(matches!(TripletCall::from_event(&event("reward", "{}")), Err(TripletError::NotAModelCall(_))));
    }
}
