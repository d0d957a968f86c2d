//! What the `agl` command line is made of; the programs themselves only parse their arguments.

pub mod address;
pub mod cli;
pub mod commands;
pub mod example;
pub mod logging;
pub mod numbers;
pub mod report;
pub mod run_file;
pub mod session;
pub mod terminal;

/// Bodies of hundreds of kilobytes come and go with every model call, and activations with every update: an allocator that
/// keeps freed memory at hand for both pays.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
