//! `agl train`: the training loop with the user's own agent, data and model.

use std::path::{Path, PathBuf};

use agl_trainer::run::ValidationResult;
use agl_trainer::{Outcome, RunFolder, RunState};
use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;

use super::Ended;
use crate::run_file::{self, RunFile};
use crate::session::Session;
use crate::terminal::{Display, Ending, FinalSummary, NextCommand, Progress, ValidationSummary, final_summary};

/// Train your own agent on your own data.
///
/// The run file says which model, agent and data, and how to train; docs/reference/run-file.md has every key. Any key can be
/// given on the command line as well: `agl train --config run.yaml trainer.steps=10`.
#[derive(Parser)]
pub struct Args {
    /// The run file.
    #[arg(long, value_name = "RUN.YAML", required_unless_present = "resume")]
    config: Option<PathBuf>,
    /// Go on with a run that was stopped: its folder (runs/NAME). Overrides may follow, to train longer for example.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["config", "name"])]
    resume: Option<PathBuf>,
    /// Name of the run: its folder is runs/NAME.
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object with the result, alone on stdout.
    #[arg(long)]
    json: bool,
    /// Keys to change, as `key=value`.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Ended> {
    if let Some(run_dir) = args.resume {
        let config = run_dir.join(run_file::RESOLVED);
        if !config.exists() {
            bail!("--resume {}: there is no {} in it; is it a run folder?", run_dir.display(), run_file::RESOLVED);
        }
        let run_file = run_file::load(&config, &args.overrides)?;
        return launch(Launch { run_file, run_dir, resume: true, json: args.json, next: after_training });
    }
    let config = args.config.context("give the run file: --config run.yaml")?;
    let run_file = run_file::load(&config, &args.overrides)?;
    let run_dir = match args.name {
        Some(name) => Path::new(run_file::RUNS).join(name),
        None => run_file::free_run_dir(&run_file::name_of(&config)),
    };
    launch(Launch { run_file, run_dir, resume: false, json: args.json, next: after_training })
}

/// A session to run and how to tell of its end.
pub(super) struct Launch {
    pub(super) run_file: RunFile,
    pub(super) run_dir: PathBuf,
    pub(super) resume: bool,
    pub(super) json: bool,
    /// What the user may want to do when it is done.
    pub(super) next: fn(&Path, &RunState) -> Vec<NextCommand>,
}

fn after_training(run_dir: &Path, state: &RunState) -> Vec<NextCommand> {
    let more = format!("train --resume {} trainer.steps={}", quoted(run_dir), state.completed_steps * 2);
    vec![show_report(run_dir), agl(&more, "train longer"), serve(run_dir, state)]
}

/// Opens the report.
pub(super) fn show_report(run_dir: &Path) -> NextCommand {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    NextCommand {
        command: format!("{opener} {}", quoted(&run_dir.join("report.html"))),
        purpose: "the curve, and trajectories before and after".to_owned(),
    }
}

/// Serves the newest checkpoint.
pub(super) fn serve(run_dir: &Path, state: &RunState) -> NextCommand {
    let checkpoint = RunFolder::checkpoint_path(run_dir, state.completed_steps);
    agl(&format!("engine serve --model {}", quoted(&checkpoint)), "talk to the trained policy")
}

/// A path as a shell reads it back.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    // Refuses only a NUL, which no path holds.
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), std::borrow::Cow::into_owned)
}

/// A command of ours, spelled as this process was started.
pub(super) fn agl(arguments: &str, purpose: &str) -> NextCommand {
    let program = if std::env::var_os("CARGO_MANIFEST_DIR").is_some() { "cargo run --release --" } else { "agl" };
    NextCommand { command: format!("{program} {arguments}"), purpose: purpose.to_owned() }
}

/// Runs a session and prints its summary: words on stderr, JSON on stdout if asked for.
pub(super) fn launch(launch: Launch) -> Result<Ended> {
    let Launch { run_file, run_dir, resume, json, next } = launch;
    let steps = run_file.trainer.steps;
    let session =
        Session { run_file, run_dir: run_dir.clone(), resume, progress: Progress::on_stderr(Display::of_stderr()) };
    let end = session.run()?;
    let (state, ended) = match end.outcome {
        Outcome::Completed(state) => (state, Ended::Done),
        Outcome::Stopped(state) => (state, Ended::Stopped),
    };
    if json {
        let before = state.before.unwrap_or_default();
        let after = state.latest.unwrap_or(before);
        let summary = json!({
            "success_before": before.success_rate,
            "success_after": after.success_rate,
            "reward_before": before.reward,
            "reward_after": after.reward,
            "steps": state.completed_steps,
            "rollouts": state.rollouts,
            "tokens": state.tokens,
            "seconds": state.seconds,
            "run_dir": run_dir,
        });
        println!("{summary}");
    }
    let ending = if ended == Ended::Done { Ending::Completed } else { Ending::Stopped };
    let next = match ended {
        // No step, no checkpoint: there is a report to look at, and nothing to go on from.
        _ if state.completed_steps == 0 => vec![show_report(&run_dir)],
        Ended::Done => next(&run_dir, &state),
        Ended::Stopped => vec![agl(&format!("train --resume {}", quoted(&run_dir)), "go on from the last step")],
    };
    let total_steps = steps.max(state.completed_steps);
    let (before, after) =
        (state.before.map(|v| summary_of(v, total_steps)), state.latest.map(|v| summary_of(v, total_steps)));
    let summary = FinalSummary {
        ending,
        steps: state.completed_steps,
        rollouts: state.rollouts,
        tokens: state.tokens,
        seconds: state.seconds,
        before: before.as_ref(),
        after: after.as_ref(),
        step_rewards: &end.rewards,
        run_dir: &run_dir,
        next: &next,
    };
    eprintln!("\n{}", final_summary(&summary));
    Ok(ended)
}

fn summary_of(result: ValidationResult, steps: usize) -> ValidationSummary {
    ValidationSummary {
        step: result.step,
        steps,
        reward_mean: Some(result.reward),
        success_rate: Some(result.success_rate),
        rollouts: result.rollouts,
        failed: 0,
        seconds: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        let state = RunState { completed_steps: 3, ..RunState::default() };
        let commands = after_training(Path::new("runs/my agent"), &state);
        for command in &commands {
            let words = shlex::split(&command.command).unwrap();
            assert!(words.iter().any(|word| word.starts_with("runs/my agent")), "{words:?}");
        }
        assert_eq!(quoted(Path::new("runs/quickstart")), "runs/quickstart");
    }
}
