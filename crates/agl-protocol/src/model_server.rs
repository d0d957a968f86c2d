//! Model servers: where the policy can be called.

use serde::{Deserialize, Serialize};

/// One endpoint that serves a model. Unique by (model, endpoint).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelServer {
    /// The model's name, as `default_proxy.model_name` names it.
    pub model: String,
    /// Base URL up to and including `/v1`.
    pub endpoint: String,
    /// Policy version that it serves: the training step of its weights.
    #[serde(default, deserialize_with = "crate::json::saturating_i64")]
    pub version: i64,
}
