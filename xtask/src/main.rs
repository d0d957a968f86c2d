//! Chores of the repository. `cargo xtask test` passes every test, on a fresh machine too.

mod edges;
mod stage;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of the repository")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything CI checks: formatting, crate edges, clippy, unit, golden, end-to-end, Python and doc tests.
    Test,
    /// Only the check that crates depend on each other as ARCHITECTURE.md says.
    Edges,
}

fn main() -> ExitCode {
    let result = match Cli::parse().chore {
        Chore::Test => test::run(),
        Chore::Edges => edges::check(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
