//! The numbers of the trainer, held against vectors recorded from agentlightning 1.0.2 and verl 0.8.0.
//!
//! `AGL_GOLDEN=<folder>` puts other vectors of the same layout in the place of the committed ones.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a vector that can't be read must stop the test")]

mod adapter;
mod advantage;
mod correction;
mod helpers;
mod loss;
mod vectors;
