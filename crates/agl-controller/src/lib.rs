//! Turns queued rollouts into running agents and reports how they end.
//!
//! [`plan`](plan::plan) decides, over plain data, what has to happen: the gateway's listing on one side, our agents on
//! the other. [`run`] is the loop around it: it waits on the gateway's feed, on agents that end and on deadlines,
//! and carries the actions out. `local/` knows how an agent becomes a process, and how nothing of it is left behind.

mod controller;
mod env;
mod fleet;
mod gateway;
mod local;
mod outcome;
mod plan;
mod python_json;
mod settings;

pub use controller::{ControllerError, run};
pub use env::{EnvMapError, resolve_env_map};
pub use fleet::{Agent, Fleet, Phase, StopReason};
pub use local::{WatchdogError, watchdog_main};
pub use outcome::Outcome;
pub use plan::{Action, Desired, Mode, Observed, plan};
pub use settings::{ControllerSettings, WATCHDOG_SUBCOMMAND};
