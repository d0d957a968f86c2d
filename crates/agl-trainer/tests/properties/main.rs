//! What must hold of rows, advantages and gradients whatever the rollouts were.
#![expect(clippy::unwrap_used, reason = "a refusal where none is due must stop the test")]

mod numbers;
mod rows;
