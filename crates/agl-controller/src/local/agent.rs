//! One agent from its claim to its end: the task that the controller starts for each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agl_client::Client;
use agl_protocol::{DEFAULT_ATTEMPT_ID, Rollout};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::launch::Launch;
use super::output::{Output, log_path};
use super::process::AgentProcess;
use super::strays::{self, MARK, Sweeper};
use super::watchdog::{Watchdog, WatchdogError};
use crate::controller::Event;
use crate::{ControllerSettings, Outcome, gateway};

/// What all agents of one controller share.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) settings: ControllerSettings,
    pub(crate) client: Client,
    pub(crate) shutdown: CancellationToken,
    controller_id: String,
    agents_started: AtomicU64,
    watchdog: Watchdog,
    sweeper: Sweeper,
}

impl Runner {
    /// Readies what agents need; the handle ends once the watchdog is dismissed, after the runner is dropped.
    pub(crate) async fn start(
        settings: ControllerSettings,
        client: Client,
        shutdown: CancellationToken,
    ) -> Result<(Self, Option<JoinHandle<()>>), WatchdogError> {
        let controller_id = uuid::Uuid::new_v4().simple().to_string();
        let (watchdog, dismissed) = Watchdog::start(&settings.watchdog_command, &controller_id).await?;
        let sweeper = Sweeper::start();
        let agents_started = AtomicU64::new(0);
        Ok((Self { settings, client, shutdown, controller_id, agents_started, watchdog, sweeper }, dismissed))
    }

    /// Ends what agents left behind, all at once: the last thing a controller does.
    pub(crate) async fn sweep_all(&self) {
        let prefix = format!("{}.", self.controller_id);
        let sweep = move || strays::kill_marked(|mark| mark.starts_with(&prefix));
        // Fails only if the runtime is on its way out, where the watchdog does the same.
        let _ = tokio::task::spawn_blocking(sweep).await;
    }

    fn next_mark(&self) -> String {
        format!("{}.{}", self.controller_id, self.agents_started.fetch_add(1, Ordering::Relaxed))
    }
}

/// Claims the rollout, runs its agent, and tells the controller of each step.
pub(crate) async fn run_agent(
    runner: &Runner,
    rollout: Rollout,
    mut signals: mpsc::Receiver<Signal>,
    events: mpsc::Sender<Event>,
) {
    let last = match start(runner, &rollout).await {
        Ok(Some(started)) => {
            let deadline = deadline(rollout.config.timeout_seconds);
            // Fails only when the controller is gone, which is about to end this task.
            let _ = events.send(Event::Started { rollout_id: rollout.rollout_id.clone(), deadline }).await;
            let (outcome, last_output) = started.run(runner, &mut signals).await;
            tracing::info!(rollout_id = rollout.rollout_id, ?outcome, "agent ended");
            Event::Ended { rollout_id: rollout.rollout_id, outcome, last_output }
        }
        Ok(None) => Event::Lost { rollout_id: rollout.rollout_id },
        Err(outcome) => {
            tracing::warn!(rollout_id = rollout.rollout_id, ?outcome, "agent not started");
            Event::Ended { rollout_id: rollout.rollout_id, outcome, last_output: String::new() }
        }
    };
    let _ = events.send(last).await;
}

/// A timeout of 0 is none, as in the original.
fn deadline(timeout_seconds: i64) -> Option<Instant> {
    let allowed = Duration::from_secs(timeout_seconds.max(0).unsigned_abs());
    if timeout_seconds == 0 { None } else { Instant::now().checked_add(allowed) }
}

struct Started {
    process: AgentProcess,
    output: Output,
    mark: String,
}

/// `Ok(None)`: the rollout was not to be had.
async fn start(runner: &Runner, rollout: &Rollout) -> Result<Option<Started>, Outcome> {
    let spawn_failed = |reason: &dyn std::fmt::Display| Outcome::SpawnFailed(reason.to_string());
    let settings = &runner.settings;
    let launch = Launch::of(rollout, DEFAULT_ATTEMPT_ID, settings).map_err(|error| spawn_failed(&error))?;
    let log = log_path(&settings.log_dir, &rollout.rollout_id);
    let output = Output::create(&log, settings.log_limit_bytes)
        .map_err(|error| spawn_failed(&format_args!("cannot keep its output in `{}`: {error}", log.display())))?;
    if !gateway::claim(&runner.client, &rollout.rollout_id, DEFAULT_ATTEMPT_ID, &runner.shutdown).await {
        return Ok(None);
    }
    if runner.shutdown.is_cancelled() {
        return Err(Outcome::ControllerStopped);
    }
    let mark = runner.next_mark();
    let process = AgentProcess::spawn(&launch, (MARK, &mark)).map_err(|error| {
        let directory = launch.directory.display();
        spawn_failed(&format_args!("{error} (program `{}`, in `{directory}`)", launch.program.display()))
    })?;
    runner.watchdog.watch(process.group()).await;
    let pid = process.group().as_raw_pid();
    tracing::info!(rollout_id = rollout.rollout_id, pid, log = %log.display(), "agent started");
    Ok(Some(Started { process, output, mark }))
}

impl Started {
    async fn run(self, runner: &Runner, signals: &mut mpsc::Receiver<Signal>) -> (Outcome, String) {
        let Self { process, mut output, mark } = self;
        let group = process.group();
        let outcome = process.supervise(signals, &mut output).await.unwrap_or_else(|error| {
            // Waiting for a child of ours does not fail; if it does, its end is unknown, which is a failure.
            Outcome::SpawnFailed(format!("cannot wait for process {}: {error}", group.as_raw_pid()))
        });
        runner.watchdog.forget(group).await;
        runner.sweeper.ended(mark).await;
        (outcome, output.finish(runner.settings.key.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_of_zero_is_none() {
        assert_eq!(deadline(0), None);
        assert!(deadline(-5).unwrap() <= Instant::now());
        assert!(deadline(60).unwrap() > Instant::now());
        assert_eq!(deadline(i64::MAX), None, "beyond what a clock can say");
    }
}
