//! Interpolation (stub).
use crate::value::{Node, Value};
/// An interpolation that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InterpolationError(pub String);
pub(crate) fn check(_value: &Value) -> Result<(), String> {
    Ok(())
}
pub(crate) fn resolve(root: &Node) -> Result<Node, InterpolationError> {
    Ok(root.clone())
}
