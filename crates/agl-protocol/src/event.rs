//! Events: what happened during an attempt, in the order in which it was recorded.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::RawJson;

/// The event types that the product itself understands; everything else passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A model call, recorded by the gateway.
    ModelRequest,
    /// A reward, posted by the agent or an evaluator.
    Reward,
    /// Anything a user made up.
    Other,
}

impl EventKind {
    /// Reads an `event_type`.
    pub fn of(event_type: &str) -> Self {
        match event_type {
            "model_request" => Self::ModelRequest,
            "reward" => Self::Reward,
            _ => Self::Other,
        }
    }
}

/// One event of one attempt. Its place in the list is its identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// `model_request`, `reward`, or any word of the user's.
    pub event_type: String,
    /// The rollout it belongs to.
    pub rollout_id: String,
    /// The attempt it belongs to.
    pub attempt_id: String,
    /// Unix seconds at which the store took it.
    pub timestamp: f64,
    /// What happened: a JSON object whose shape depends on the type.
    pub data: RawJson,
}

/// The body of `POST …/attempt/{a}/events`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventCreate {
    /// `model_request`, `reward`, or any word of the user's.
    pub event_type: String,
    /// A JSON object.
    #[serde(default = "RawJson::empty_object")]
    pub data: RawJson,
}

/// Why a reward event carries no reward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewardError {
    /// `value` is absent or null (JSON has no NaN: a NaN that was posted is stored as null).
    #[error("the reward event has no number in `value` (NaN and infinity arrive as null); post a finite number")]
    Missing,
    /// `value` is text, a list, true or false.
    #[error("the reward event's `value` is {0}, not a number")]
    NotANumber(String),
}

/// The scalar of a reward event, as the original reads it: a JSON number; true and false are not numbers.
pub fn reward_value(data: &RawJson) -> Result<f64, RewardError> {
    let fields: Map<String, Value> = data.parse().unwrap_or_default();
    match fields.get("value").unwrap_or(&Value::Null) {
        Value::Number(number) => number.as_f64().filter(|v| v.is_finite()).ok_or(RewardError::Missing),
        Value::Null => Err(RewardError::Missing),
        other => Err(RewardError::NotANumber(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_is_a_finite_number() {
        let read = |text: &str| reward_value(&RawJson::from_text(text.to_owned()).unwrap());
        assert_eq!(read(r#"{"value":0.5}"#), Ok(0.5));
        assert_eq!(read(r#"{"value":1,"source":"agent"}"#), Ok(1.0));
        assert_eq!(read(r#"{"value":null}"#), Err(RewardError::Missing));
        assert_eq!(read("{}"), Err(RewardError::Missing));
        assert_eq!(read("[1]"), Err(RewardError::Missing));
        assert_eq!(read(r#"{"value":true}"#), Err(RewardError::NotANumber("true".into())));
        assert_eq!(read(r#"{"value":"1.0"}"#), Err(RewardError::NotANumber("\"1.0\"".into())));
    }
}
