//! One batch of rollouts: collected, sorted into usable and not, and counted.

use std::collections::BTreeMap;

use agl_protocol::{Event, RawJson, RolloutState};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{Phase, RunError, RunEvent, RunState, ValidationResult};
use crate::manager::{BatchKind, RolloutManager, RolloutTrace, Sample};
use crate::rollout::CompletedRollout;
use crate::settings::{OnMissingReward, TrainerSettings};

/// A batch of rollouts that have all ended.
pub(super) struct Collected {
    phase: Phase,
    /// What trains.
    pub(super) rollouts: Vec<CompletedRollout>,
    /// What people want to know, one a rollout.
    traces: Vec<RolloutTrace>,
    keep_trajectories: usize,
}

/// One line of `trajectories.jsonl`: a whole trajectory, for people to read.
#[derive(Clone, Debug, Serialize)]
pub struct Trajectory {
    /// Phase it was collected in.
    pub phase: Phase,
    /// Training steps completed before it.
    pub step: usize,
    /// The rollout.
    pub rollout_id: String,
    /// The task.
    pub input: RawJson,
    /// Its reward, if it has one.
    pub reward: Option<f64>,
    /// How it ended.
    pub state: RolloutState,
    /// Why it failed.
    pub error_message: Option<String>,
    /// Every event, in order.
    pub events: Vec<Event>,
}

/// Runs the batch of one phase.
pub(super) async fn collect(
    manager: &mut RolloutManager,
    tasks: &[RawJson],
    phase: Phase,
    settings: &TrainerSettings,
    state: &RunState,
    observe: &mut impl FnMut(RunEvent<'_>),
    stop: &CancellationToken,
) -> Result<Collected, RunError> {
    let samples: Vec<Sample> =
        tasks.iter().enumerate().map(|(index, input)| Sample { input: input.clone(), index }).collect();
    let is_train = phase == Phase::Train;
    let kind = BatchKind {
        is_train,
        step: state.completed_steps,
        rollouts_per_sample: if is_train { settings.rollouts_per_sample } else { 1 },
    };
    let keep_trajectories = if is_train { 0 } else { settings.keep_trajectories };
    let finished = manager
        .run_batch(
            &samples,
            kind,
            |sample| sample < keep_trajectories,
            |progress| observe(RunEvent::Rollouts(progress)),
            stop,
        )
        .await?;
    let (rollouts, traces) = finished.into_iter().map(|rollout| (rollout.completed, rollout.trace)).unzip();
    let collected = Collected { phase, rollouts, traces, keep_trajectories };
    collected.refuse_if_useless(state.completed_steps)?;
    collected.refuse_missing_rewards(settings)?;
    Ok(collected)
}

impl Collected {
    /// A training batch of these rollouts, with nothing else known of them.
    #[cfg(test)]
    pub(super) fn of(rollouts: Vec<CompletedRollout>) -> Self {
        Self { phase: Phase::Train, rollouts, traces: Vec::new(), keep_trajectories: 0 }
    }

    /// Tokens that the policy sampled.
    pub(super) fn sampled_tokens(&self) -> u64 {
        let calls = self.rollouts.iter().flat_map(|rollout| &rollout.triplets);
        calls.map(|call| call.response_ids.len() as u64).sum()
    }

    /// Whole trajectories of the first samples.
    pub(super) fn trajectories(&self, step: usize) -> impl Iterator<Item = Trajectory> + '_ {
        let pairs = self.rollouts.iter().zip(&self.traces);
        let kept = pairs.filter(|(rollout, _)| rollout.sample_idx_in_step < self.keep_trajectories);
        kept.map(move |(rollout, trace)| Trajectory {
            phase: self.phase,
            step,
            rollout_id: rollout.rollout_id.clone(),
            input: trace.input.clone(),
            reward: rollout.final_reward,
            state: rollout.state,
            error_message: rollout.error_message.clone(),
            events: trace.events.clone(),
        })
    }

    /// Mean reward and success rate; a rollout without a reward counts with the fill value, as in the original.
    pub(super) fn validation_result(&self, settings: &TrainerSettings, step: usize) -> ValidationResult {
        let count = self.rollouts.len().max(1) as f64;
        let rewards = self.rollouts.iter().map(|rollout| rollout.final_reward.unwrap_or(settings.reward_fill_value));
        let (mut sum, mut successes) = (0.0, 0usize);
        for reward in rewards {
            sum += reward;
            successes += usize::from(reward >= settings.success_reward);
        }
        ValidationResult {
            step,
            reward: sum / count,
            success_rate: successes as f64 / count,
            rollouts: self.rollouts.len(),
        }
    }

    /// Counts of the batch: how rollouts ended, what they hold, and how old the policy was that answered them.
    pub(super) fn metrics(&self, settings: &TrainerSettings, policy_version: i64) -> Map<String, Value> {
        let prefix = match self.phase {
            Phase::Train => "training",
            Phase::Validation => "val",
        };
        let result = self.validation_result(settings, 0);
        let count =
            |test: &dyn Fn(&CompletedRollout) -> bool| self.rollouts.iter().filter(|rollout| test(rollout)).count();
        let versions = self.traces.iter().flat_map(|trace| &trace.policy_versions);
        let ages: Vec<i64> = versions.map(|version| policy_version - version).collect();
        let turns: usize = self.rollouts.iter().map(|rollout| rollout.triplets.len()).sum();
        let refused: usize = self.traces.iter().map(|trace| trace.refused_calls.len()).sum();

        let mut metrics = Map::new();
        let mut put = |name: &str, value: Value| metrics.insert(format!("{prefix}/{name}"), value);
        put("reward", result.reward.into());
        put("success_rate", result.success_rate.into());
        put("n_rollouts", self.rollouts.len().into());
        put("n_rollouts_w_trace", count(&|r| !r.triplets.is_empty()).into());
        put("n_rollouts_w_reward", count(&|r| r.final_reward.is_some()).into());
        put("n_rollouts_failed", count(&|r| r.state == RolloutState::Failed).into());
        put("n_turns", turns.into());
        put("n_refused_calls", refused.into());
        put("n_tokens", self.sampled_tokens().into());
        if !ages.is_empty() {
            put("staleness_mean", (ages.iter().sum::<i64>() as f64 / ages.len() as f64).into());
            put("staleness_max", ages.iter().max().copied().into());
        }
        metrics
    }

    fn refuse_if_useless(&self, step: usize) -> Result<(), RunError> {
        if self.rollouts.iter().any(|rollout| !rollout.triplets.is_empty()) {
            return Ok(());
        }
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for (rollout, trace) in self.rollouts.iter().zip(&self.traces) {
            *reasons.entry(why_useless(rollout, trace)).or_default() += 1;
        }
        let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let reasons: Vec<String> =
            reasons.into_iter().take(3).map(|(reason, count)| format!("{count} × {reason}")).collect();
        Err(RunError::NothingUsable {
            phase: match self.phase {
                Phase::Train => "training",
                Phase::Validation => "validation",
            },
            step,
            rollouts: self.rollouts.len(),
            reasons: reasons.join("; "),
        })
    }

    fn refuse_missing_rewards(&self, settings: &TrainerSettings) -> Result<(), RunError> {
        if settings.on_missing_reward != OnMissingReward::Error {
            return Ok(());
        }
        match self.rollouts.iter().find(|rollout| rollout.final_reward.is_none()) {
            None => Ok(()),
            Some(rollout) => Err(RunError::MissingReward {
                rollout_id: rollout.rollout_id.clone(),
                why: rollout.error_message.clone().unwrap_or_else(|| "its agent ended well".into()),
            }),
        }
    }
}

/// Why a rollout holds no call that can be trained on.
fn why_useless(rollout: &CompletedRollout, trace: &RolloutTrace) -> String {
    match (&rollout.error_message, trace.refused_calls.first()) {
        (Some(message), _) => message.clone(),
        (None, Some(refusal)) => refusal.to_string(),
        (None, None) => "the agent ended well but made no model call (does it use AGL_OPENAI_BASE_URL?)".to_owned(),
    }
}
