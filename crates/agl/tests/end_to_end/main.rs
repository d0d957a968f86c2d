//! The real `agl` program, end to end: real agent processes, real sockets, real files.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a step that fails is the failure of its test")]

mod program;
mod quickstart;
mod trouble;
