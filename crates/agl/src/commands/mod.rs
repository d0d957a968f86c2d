//! One module a command.

pub mod controller;
pub mod engine;
mod hydra;
pub mod quickstart;
pub mod report;
pub mod rollouts;
pub mod server;
pub mod train;

/// How a command ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It did all it was asked for.
    Done,
    /// The user stopped it.
    Stopped,
}
