//! `agl quickstart`: the whole loop on the calculator example.

use std::path::{Path, PathBuf};

use agl_trainer::RunState;
use anyhow::{Context, Result};
use clap::Parser;

use super::Ended;
use super::train::{self, Launch};
use crate::terminal::NextCommand;
use crate::{example, run_file};

/// See the whole loop at work: an agent learns to use a calculator.
///
/// Starts the gateway, the embedded engine, the controller and the trainer in one process; validates, trains, and validates
/// again. Every rollout is a real process running examples/calculator/agent.py, which knows nothing of agl.
#[derive(Parser)]
pub struct Args {
    /// Seed of the order of tasks and of sampling.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Training steps; the example's own number when absent.
    #[arg(long)]
    steps: Option<usize>,
    /// Port of the gateway; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Print one JSON object with the result, alone on stdout.
    #[arg(long)]
    json: bool,
    /// Where the run folder is made: runs/quickstart, or with the next free number behind it.
    #[arg(long, value_name = "FOLDER")]
    run_dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Ended> {
    let folder = example::folder().context("unpack the calculator example")?;
    let mut run_file = run_file::load(&folder.join("run.yaml"), &[])?;
    run_file.trainer.seed = args.seed;
    run_file.engine.seed = args.seed;
    run_file.gateway.port = args.port;
    if let Some(steps) = args.steps {
        run_file.trainer.steps = steps;
    }
    let run_dir = args.run_dir.unwrap_or_else(|| run_file::free_run_dir("quickstart"));
    eprintln!(
        "agl quickstart: {} teaches a small policy to use its calculator; run folder {}",
        folder.join("agent.py").display(),
        run_dir.display()
    );
    train::launch(Launch { run_file, run_dir, resume: false, json: args.json, next: after_quickstart })
}

/// What a user may want to do next: look, put an own agent there, try the policy.
fn after_quickstart(run_dir: &Path, state: &RunState) -> Vec<NextCommand> {
    let own = "put your own agent in agent.py's place (docs/guides/train-your-agent.md)";
    vec![
        train::show_report(run_dir),
        train::agl(&format!("train --config {}", example::RUN_FILE), own),
        train::serve(run_dir, state),
    ]
}
