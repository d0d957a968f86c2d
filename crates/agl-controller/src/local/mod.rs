//! Agents as processes of this machine.
//!
//! An agent's life: its rollout's config becomes a [`launch`], the rollout is claimed, the [`process`] is made in a session
//! of its own, its [`output`] is kept, and when it is gone so is its group. [`strays`] finds what left the group;
//! the [`watchdog`] ends everything should the controller be killed.

mod agent;
mod launch;
mod output;
mod process;
mod strays;
mod watchdog;

pub use watchdog::{WatchdogError, watchdog_main};

pub(crate) use agent::{Runner, run_agent};
