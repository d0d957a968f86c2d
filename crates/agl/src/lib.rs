//! What the `agl` command line is made of; the programs themselves only parse their arguments.

pub mod cli;
pub mod commands;
pub mod example;
pub mod logging;
pub mod numbers;
pub mod report;
pub mod run_file;
pub mod session;
pub mod terminal;
