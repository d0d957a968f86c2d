//! The loop around the plan: waits for something to change, asks what has to happen, does it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agl_client::{Client, ClientError, ClientOptions};
use agl_protocol::{DEFAULT_ATTEMPT_ID, Rollout};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use crate::fleet::{Agent, Fleet, Phase, StopReason};
use crate::local::{Runner, WatchdogError, run_agent};
use crate::plan::{Action, Desired, Mode, Observed, next_deadline, plan};
use crate::{ControllerSettings, Outcome, gateway};

/// Events on their way to the loop.
const EVENT_QUEUE: usize = 1024;
/// Signals on their way to one agent: SIGTERM, then SIGKILL.
const SIGNAL_QUEUE: usize = 4;
/// How long one call to the gateway may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a controller could not start.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The gateway's URL is none.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The folder for the agents' output can't be made.
    #[error("cannot make the folder `{path}` for the agents' output: {source}; choose another `log_dir`")]
    LogDir {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The agents can't be watched.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// The gateway told what it wants.
    Listed(Desired),
    /// An agent's process runs.
    Started { rollout_id: String, deadline: Option<Instant> },
    /// It is gone, or could not be made.
    Ended { rollout_id: String, outcome: Outcome, last_output: String },
    /// Its rollout was not to be had.
    Lost { rollout_id: String },
    /// The gateway knows how it ended.
    Settled { rollout_id: String },
}

/// Runs queued rollouts as local processes until `shutdown` is cancelled; then ends the agents, reports them, and returns.
///
/// A gateway that does not answer is no error: the controller tries again until it does.
pub async fn run(settings: ControllerSettings, shutdown: CancellationToken) -> Result<(), ControllerError> {
    std::fs::create_dir_all(&settings.log_dir)
        .map_err(|source| ControllerError::LogDir { path: settings.log_dir.clone(), source })?;
    // Retries are the controller's own: it must see every failure, to tell a lost answer from a refusal.
    let options = ClientOptions { timeout: CALL_TIMEOUT, max_retries: 0 };
    let client = Client::new(&settings.server_url, settings.key.as_deref(), options)?;
    let (runner, watchdog_dismissed) = Runner::start(settings, client.clone(), shutdown).await?;

    let (events, inbox) = mpsc::channel(EVENT_QUEUE);
    let mut tasks = JoinSet::new();
    let ControllerSettings { pool_size, poll_interval, .. } = runner.settings;
    tasks.spawn(gateway::watch(client, pool_size, poll_interval, events.clone()));
    tracing::info!(settings = ?runner.settings, "local controller starts");
    let mut controller = Controller {
        runner: Arc::new(runner),
        desired: Desired { rollouts: Vec::new(), truncated: true, asked_at: Instant::now() },
        fleet: Fleet::default(),
        signals: HashMap::new(),
        events,
        tasks,
    };
    controller.serve(inbox).await;
    controller.runner.sweep_all().await;
    controller.tasks.shutdown().await;
    drop(controller);
    if let Some(dismissed) = watchdog_dismissed {
        let _ = dismissed.await;
    }
    tracing::info!("local controller ends");
    Ok(())
}

struct Controller {
    runner: Arc<Runner>,
    desired: Desired,
    fleet: Fleet,
    /// How each agent's task is told to signal its process.
    signals: HashMap<String, mpsc::Sender<Signal>>,
    events: mpsc::Sender<Event>,
    /// The watch, and one task for each agent and each report; what is left ends with the controller.
    tasks: JoinSet<()>,
}

impl Controller {
    async fn serve(&mut self, mut inbox: mpsc::Receiver<Event>) {
        let shutdown = self.runner.shutdown.clone();
        let mut drain_until = None;
        loop {
            let now = Instant::now();
            let mode = if drain_until.is_some() { Mode::Draining } else { Mode::Serving };
            self.act(mode, now);
            if mode == Mode::Draining && self.fleet.is_settled() {
                return;
            }
            if drain_until.is_some_and(|until| until <= now) {
                tracing::error!("the gateway could not be told how every agent ended; their rollouts stay `running`");
                return;
            }
            let wake_at = next_deadline(&self.fleet).into_iter().chain(drain_until).min();
            tokio::select! {
                Some(event) = inbox.recv() => {
                    self.apply(event);
                    while let Ok(event) = inbox.try_recv() {
                        self.apply(event);
                    }
                }
                Some(_) = self.tasks.join_next() => {}
                () = shutdown.cancelled(), if mode == Mode::Serving => {
                    let settings = &self.runner.settings;
                    drain_until = Some(now + settings.grace + settings.drain_timeout);
                }
                () = sleep_until(wake_at.unwrap_or(now).into()), if wake_at.is_some() => {}
            }
        }
    }

    fn act(&mut self, mode: Mode, now: Instant) {
        let pool_size = self.runner.settings.pool_size;
        let actions = plan(&self.desired, &Observed { fleet: &self.fleet, pool_size, mode, now });
        for action in actions {
            match action {
                Action::Start(rollout_id) => self.start(&rollout_id),
                Action::Stop(rollout_id, why) => self.stop(&rollout_id, why, now),
                Action::Kill(rollout_id, why) => {
                    self.signal(&rollout_id, Signal::KILL);
                    self.fleet.set_phase(&rollout_id, Phase::Killed { why });
                }
                Action::Report(rollout_id) => self.report(&rollout_id, now),
                Action::Disown(rollout_id) => self.disown(&rollout_id, now),
            }
        }
    }

    fn start(&mut self, rollout_id: &str) {
        let Some(rollout) = self.listed(rollout_id).cloned() else { return };
        self.fleet.insert(rollout_id, Agent { created_at: rollout.status.created_at, phase: Phase::Starting });
        let (sender, signals) = mpsc::channel(SIGNAL_QUEUE);
        self.signals.insert(rollout_id.to_owned(), sender);
        let (runner, events) = (Arc::clone(&self.runner), self.events.clone());
        self.tasks.spawn(async move { run_agent(&runner, rollout, signals, events).await });
    }

    fn stop(&mut self, rollout_id: &str, why: StopReason, now: Instant) {
        tracing::info!(rollout_id, ?why, "stopping the agent");
        self.signal(rollout_id, Signal::TERM);
        self.fleet.set_phase(rollout_id, Phase::Stopping { why, kill_at: now + self.runner.settings.grace });
    }

    fn signal(&self, rollout_id: &str, signal: Signal) {
        if let Some(signals) = self.signals.get(rollout_id) {
            // Fails only for an agent that has just ended by itself.
            let _ = signals.try_send(signal);
        }
    }

    fn report(&mut self, rollout_id: &str, now: Instant) {
        let Some((outcome, last_output)) = self.fleet.begin_report(rollout_id) else { return };
        let Some(patch) = outcome.patch(DEFAULT_ATTEMPT_ID, &last_output) else {
            self.fleet.set_phase(rollout_id, Phase::Settled { at: now });
            return;
        };
        let (client, events, rollout_id) = (self.runner.client.clone(), self.events.clone(), rollout_id.to_owned());
        self.tasks.spawn(async move {
            gateway::report(&client, &rollout_id, &patch).await;
            // Fails only when the controller is gone.
            let _ = events.send(Event::Settled { rollout_id }).await;
        });
    }

    fn disown(&mut self, rollout_id: &str, now: Instant) {
        let Some(rollout) = self.listed(rollout_id) else { return };
        let phase = Phase::Ended { outcome: Outcome::NotRunning, last_output: String::new() };
        let created_at = rollout.status.created_at;
        self.fleet.insert(rollout_id, Agent { created_at, phase });
        self.report(rollout_id, now);
    }

    fn listed(&self, rollout_id: &str) -> Option<&Rollout> {
        self.desired.rollouts.iter().find(|rollout| rollout.rollout_id == rollout_id)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Listed(desired) => {
                self.fleet.forget_settled(desired.asked_at);
                self.desired = desired;
            }
            Event::Started { rollout_id, deadline } => {
                self.fleet.set_phase(&rollout_id, Phase::Running { deadline });
            }
            Event::Ended { rollout_id, outcome, last_output } => {
                self.signals.remove(&rollout_id);
                self.fleet.ended(&rollout_id, outcome, last_output);
            }
            Event::Lost { rollout_id } => {
                self.signals.remove(&rollout_id);
                self.fleet.set_phase(&rollout_id, Phase::Settled { at: Instant::now() });
            }
            Event::Settled { rollout_id } => {
                self.fleet.set_phase(&rollout_id, Phase::Settled { at: Instant::now() });
            }
        }
    }
}
