//! Model servers as the store keeps them.

use agl_protocol::pyjson::Integer;

/// One endpoint that serves a model. Unique by (model, endpoint).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelServer {
    /// The model's name.
    pub model: String,
    /// Base URL up to and including `/v1`.
    pub endpoint: String,
    /// Policy version that it serves. Any integer: the contract sets no bound.
    pub version: Integer,
}
