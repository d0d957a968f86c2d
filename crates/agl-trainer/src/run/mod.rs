//! A training run: validate, then collect rollouts and update the policy step by step, then validate.
//!
//! The loop knows the gateway (through [`RolloutManager`] and the client), a [`Policy`] and a [`RunFolder`], and tells an
//! observer what happens. It does not know which engine the policy is, nor who runs the agents.

mod collect;
mod folder;
mod observer;
mod update;

pub use collect::Trajectory;
pub use folder::{FolderError, MetricsRecord, Phase, RunFolder, RunState, ValidationResult};
pub use observer::RunEvent;
pub use update::UpdateError;

use std::time::{Duration, Instant};

use agl_client::{Client, ClientError};
use agl_protocol::{ModelServer, PauseRequest, RolloutConfig};
use tokio_util::sync::CancellationToken;

use crate::dataset::Dataset;
use crate::manager::{ManagerError, RolloutManager};
use crate::policy::Policy;
use crate::settings::{SettingsError, TrainerSettings};
use collect::Collected;

/// Everything that a run needs, made by its caller.
pub struct Run<P> {
    /// How to train.
    pub settings: TrainerSettings,
    /// Training tasks.
    pub train: Dataset,
    /// Validation tasks.
    pub validation: Dataset,
    /// How the controller starts an agent.
    pub rollout_config: RolloutConfig,
    /// The gateway.
    pub client: Client,
    /// Where the policy is served, registered anew with each version.
    pub model_servers: Vec<ModelServer>,
    /// The policy.
    pub policy: P,
    /// Where results go.
    pub folder: RunFolder,
    /// Where the run stands: default for a new one.
    pub state: RunState,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// All steps were done.
    Completed(RunState),
    /// The user stopped it; what was completed is kept.
    Stopped(RunState),
}

/// Why a run ended early. What was completed before is kept.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting can't be meant.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Rollouts could not be collected.
    #[error(transparent)]
    Rollouts(#[from] ManagerError),
    /// The gateway could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The run folder could not be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The update failed.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The engine failed outside an update.
    #[error("policy: {0}")]
    Policy(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No rollout of a batch made a single model call that counts.
    #[error("{phase} at step {step}: none of {rollouts} rollouts is usable; {reasons}")]
    NothingUsable {
        /// Which phase.
        phase: &'static str,
        /// At which step.
        step: usize,
        /// Of how many rollouts.
        rollouts: usize,
        /// The reasons, counted.
        reasons: String,
    },
    /// A rollout has no reward, and the settings make that an error.
    #[error("rollout {rollout_id} ended without a reward ({why}); trainer.on_missing_reward=error")]
    MissingReward {
        /// The rollout.
        rollout_id: String,
        /// What is known about it.
        why: String,
    },
    /// Calls in flight did not end.
    #[error(
        "{inflight} model calls were still in flight {seconds} s after the gateway was paused (trainer.drain_seconds)"
    )]
    Drain {
        /// How many.
        inflight: u64,
        /// After how long.
        seconds: u64,
    },
}

impl<P: Policy> Run<P> {
    /// Runs to the end, or until `stop`. Needs a multi-threaded tokio runtime: updates block their thread for seconds.
    pub async fn train(
        mut self,
        mut observe: impl FnMut(RunEvent<'_>),
        stop: &CancellationToken,
    ) -> Result<Outcome, RunError> {
        self.settings.validate()?;
        let started = Instant::now();
        let earlier_seconds = self.state.seconds;
        let outcome = self.steps(&mut observe, stop).await;
        self.state.seconds = earlier_seconds + started.elapsed().as_secs_f64();
        // Whatever ended the run, the last completed step is kept; an error in keeping it counts only if there is no other.
        let kept = self.keep_last_step();
        match outcome {
            Ok(()) => kept.map(|()| Outcome::Completed(self.state)),
            Err(RunError::Rollouts(ManagerError::Stopped)) => kept.map(|()| Outcome::Stopped(self.state)),
            Err(error) => Err(error),
        }
    }

    async fn steps(
        &mut self,
        observe: &mut impl FnMut(RunEvent<'_>),
        stop: &CancellationToken,
    ) -> Result<(), RunError> {
        self.publish().await?;
        let stall = Duration::from_secs(self.settings.stall_seconds);
        let mut manager = RolloutManager::new(self.client.clone(), self.rollout_config.clone(), stall).await?;
        if self.state.before.is_none() {
            let result = self.validate(&mut manager, observe, stop).await?;
            self.state.before = Some(result);
        }
        while self.state.completed_steps < self.settings.steps {
            self.train_step(&mut manager, observe, stop).await?;
            let done = self.state.completed_steps;
            let every = self.settings.validate_every;
            if done == self.settings.steps || (every > 0 && done.is_multiple_of(every)) {
                self.validate(&mut manager, observe, stop).await?;
            }
            if done.is_multiple_of(self.settings.save_every) {
                self.save()?;
            }
        }
        // A run that was stopped between its last step and its last validation still owes that one.
        if self.state.latest.is_none_or(|latest| latest.step != self.state.completed_steps) {
            self.validate(&mut manager, observe, stop).await?;
        }
        Ok(())
    }

    /// One step: rollouts, rows, advantages, update, new version served.
    async fn train_step(
        &mut self,
        manager: &mut RolloutManager,
        observe: &mut impl FnMut(RunEvent<'_>),
        stop: &CancellationToken,
    ) -> Result<(), RunError> {
        let started = Instant::now();
        let step = self.state.completed_steps;
        let tasks = self.train.batch(self.settings.seed, step, self.settings.samples_per_step);
        let collected = self.collect(manager, &tasks, Phase::Train, observe, stop).await?;
        let rollout_seconds = started.elapsed().as_secs_f64();

        let updating = Instant::now();
        observe(RunEvent::UpdateStarted { step: step + 1 });
        self.drain().await?;
        let updated = tokio::task::block_in_place(|| {
            update::update(&mut self.policy, &collected, &self.settings, step, |done, total| {
                observe(RunEvent::UpdateProgress { done, total });
            })
        });
        if updated.is_ok() {
            self.state.completed_steps += 1;
            self.state.policy_version += 1;
            self.publish().await?;
        }
        // Whatever became of the update, the gateway is not left shut.
        self.client.resume().await?;
        let update = updated?;
        let update_seconds = updating.elapsed().as_secs_f64();

        let mut metrics = collected.metrics(&self.settings, self.state.policy_version - 1);
        metrics.extend(update);
        metrics.insert("timing_s/rollout".into(), rollout_seconds.into());
        metrics.insert("timing_s/update".into(), update_seconds.into());
        metrics.insert("timing_s/step".into(), started.elapsed().as_secs_f64().into());
        self.record(Phase::Train, started, metrics, observe)
    }

    /// Measures the policy on the validation tasks.
    async fn validate(
        &mut self,
        manager: &mut RolloutManager,
        observe: &mut impl FnMut(RunEvent<'_>),
        stop: &CancellationToken,
    ) -> Result<ValidationResult, RunError> {
        let started = Instant::now();
        let count = self.settings.validation_samples.unwrap_or(usize::MAX);
        let tasks = self.validation.first(count).to_vec();
        let collected = self.collect(manager, &tasks, Phase::Validation, observe, stop).await?;
        for trajectory in collected.trajectories(self.state.completed_steps) {
            self.folder.keep_trajectory(&trajectory)?;
        }
        let result = collected.validation_result(&self.settings, self.state.completed_steps);
        let metrics = collected.metrics(&self.settings, self.state.policy_version);
        self.state.latest = Some(result);
        self.record(Phase::Validation, started, metrics, observe)?;
        Ok(result)
    }

    fn record(
        &mut self,
        phase: Phase,
        started: Instant,
        metrics: serde_json::Map<String, serde_json::Value>,
        observe: &mut impl FnMut(RunEvent<'_>),
    ) -> Result<(), RunError> {
        let record = MetricsRecord {
            phase,
            step: self.state.completed_steps,
            policy_version: self.state.policy_version,
            seconds: started.elapsed().as_secs_f64(),
            metrics,
        };
        self.folder.record(&record)?;
        observe(RunEvent::Recorded { record: &record, total_steps: self.settings.steps });
        Ok(())
    }

    /// Collects one batch and refuses it only if nothing in it is usable.
    async fn collect(
        &mut self,
        manager: &mut RolloutManager,
        tasks: &[agl_protocol::RawJson],
        phase: Phase,
        observe: &mut impl FnMut(RunEvent<'_>),
        stop: &CancellationToken,
    ) -> Result<Collected, RunError> {
        observe(RunEvent::RolloutsStarted { phase, step: self.state.completed_steps });
        let collected = collect::collect(manager, tasks, phase, &self.settings, &self.state, observe, stop).await?;
        self.state.rollouts += collected.rollouts.len() as u64;
        self.state.tokens += collected.sampled_tokens();
        Ok(collected)
    }

    /// Pauses the gateway and waits until no call is in flight, so that no answer mixes two policies.
    async fn drain(&self) -> Result<(), RunError> {
        const POLL: Duration = Duration::from_millis(20);
        let reason = Some("weights are being updated".to_owned());
        let mut state = self.client.pause(&PauseRequest { retry_after_seconds: 1, reason }).await?;
        let deadline = Instant::now() + Duration::from_secs(self.settings.drain_seconds);
        while state.inflight > 0 {
            if Instant::now() > deadline {
                // The policy is unchanged: let the calls go on rather than leave the gateway shut.
                self.client.resume().await?;
                return Err(RunError::Drain { inflight: state.inflight, seconds: self.settings.drain_seconds });
            }
            tokio::time::sleep(POLL).await;
            state = self.client.proxy_state().await?;
        }
        Ok(())
    }

    /// Serves the present weights and tells the gateway their version.
    async fn publish(&mut self) -> Result<(), RunError> {
        let version = self.state.policy_version;
        tokio::task::block_in_place(|| self.policy.publish(version)).map_err(|e| RunError::Policy(Box::new(e)))?;
        for server in &mut self.model_servers {
            server.version = version;
        }
        self.client.register_models(&self.model_servers).await?;
        Ok(())
    }

    fn save(&mut self) -> Result<(), RunError> {
        let Self { folder, policy, state, settings, .. } = self;
        tokio::task::block_in_place(|| {
            folder.checkpoint(state, settings.keep_checkpoints, |path| {
                policy.save(path).map_err(|e| RunError::Policy(Box::new(e)))
            })
        })?;
        Ok(())
    }

    /// A checkpoint of the last completed step, with the final figures in its state.
    fn keep_last_step(&mut self) -> Result<(), RunError> {
        if self.state.completed_steps == 0 { Ok(()) } else { self.save() }
    }
}
