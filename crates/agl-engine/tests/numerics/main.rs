//! What the model computes, against recordings of PyTorch and against itself. One binary, so that it links once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod checkpoint;
mod forward;
mod learner;
mod optimizer;
mod support;
