//! The commands of `agl`, and what their exit codes mean: 0 done, 1 failed (one message says why), 2 wrong usage,
//! 130 stopped by Ctrl-C.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands;

/// Train any agent with reinforcement learning, without touching the agent.
#[derive(Parser)]
#[command(name = "agl", version, about, long_about = LONG_ABOUT, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const LONG_ABOUT: &str = "\
Train any agent with reinforcement learning, without touching the agent.

The agent talks to an OpenAI-compatible URL. Behind it, agl keeps the exact token ids and log-probabilities of every \
call, runs the agents, turns their rewards into policy updates, and serves the new policy.

Start with `agl quickstart`: one command, a few minutes, no GPU.";

#[derive(Subcommand)]
enum Command {
    /// See the whole loop at work: an agent learns to use a calculator, in a few minutes on two cores.
    Quickstart(commands::quickstart::Args),
    /// Train your own agent on your own data: `agl train --config run.yaml`.
    Train(commands::train::Args),
    /// Run the gateway alone (as `agl-server`).
    Server(commands::server::Args),
    /// Run the controller alone (as `agl-controller`).
    Controller(commands::controller::Args),
    /// The embedded policy: serve, pretrain or import a model.
    Engine(commands::engine::Args),
    /// Look at the rollouts of a running gateway.
    Rollouts(commands::rollouts::Args),
    /// Make the report of a run folder again.
    Report(commands::report::Args),
    /// Ends agents whose controller was killed; started by the controller itself.
    #[command(hide = true)]
    ControllerWatchdog,
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Quickstart(args) => commands::quickstart::run(args),
        Command::Train(args) => commands::train::run(args),
        Command::Server(args) => return commands::server::run(&args),
        Command::Controller(args) => return commands::controller::run(&args),
        Command::Engine(args) => commands::engine::run(args),
        Command::Rollouts(args) => commands::rollouts::run(args),
        Command::Report(args) => commands::report::run(&args),
        Command::ControllerWatchdog => return agl_controller::watchdog_main(),
    };
    exit_code(result)
}

/// Turns the end of a command into an exit code; an error is one message on stderr.
pub fn exit_code(result: anyhow::Result<commands::Ended>) -> ExitCode {
    match result {
        Ok(commands::Ended::Done) => ExitCode::SUCCESS,
        Ok(commands::Ended::Stopped) => ExitCode::from(130),
        Err(error) => {
            eprintln!("agl: {error:#}");
            ExitCode::FAILURE
        }
    }
}
