//! The settings of a training run, with the defaults that hold when a key is absent.
//!
//! Names follow verl's and the original's where they have one; each field says so where they differ.

use serde::{Deserialize, Serialize};

/// How the policy is trained. The `trainer:` block of a run file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerSettings {
    /// Training steps: each collects rollouts and updates the policy once.
    pub steps: usize,
    /// Tasks a step (verl: `data.train_batch_size`).
    pub samples_per_step: usize,
    /// Rollouts of each task, whose rewards are compared (verl: `actor_rollout_ref.rollout.n`).
    pub rollouts_per_sample: usize,
    /// Seed of the order of tasks.
    pub seed: u64,
    /// Validation before the first and after the last step, and after every so many steps in between; 0: none in between.
    pub validate_every: usize,
    /// Validation tasks a time; all of the file when absent.
    pub validation_samples: Option<usize>,
    /// A checkpoint after every so many steps; the last step always has one.
    pub save_every: usize,
    /// How many checkpoints are kept, newest first.
    pub keep_checkpoints: usize,
    /// Sampling temperature of train rollouts, forced on every call.
    pub train_temperature: f64,
    /// Sampling temperature of validation rollouts, forced on every call.
    pub val_temperature: f64,
    /// What becomes of a rollout whose agent failed.
    pub on_failed: OnFailed,
    /// What becomes of a rollout without a reward.
    pub on_missing_reward: OnMissingReward,
    /// The reward of a rollout without one, where `on_missing_reward` is `fill` (original: `reward_fillna_value`).
    pub reward_fill_value: f64,
    /// A rollout with at least this reward counts as a success in the metrics.
    pub success_reward: f64,
    /// Seconds without any rollout ending after which the run stops and says so.
    pub stall_seconds: u64,
    /// Seconds that calls in flight may take to end before the weights change.
    pub drain_seconds: u64,
    /// How many whole trajectories of each validation are kept for the report.
    pub keep_trajectories: usize,
    /// How triplets become rows.
    pub trace_aggregator: TraceAggregatorSettings,
    /// How rewards become advantages.
    pub algorithm: AlgorithmSettings,
    /// How advantages become an update.
    pub actor: ActorSettings,
}

impl Default for TrainerSettings {
    fn default() -> Self {
        Self {
            steps: 100,
            samples_per_step: 16,
            rollouts_per_sample: 8,
            seed: 1,
            validate_every: 0,
            validation_samples: None,
            save_every: 10,
            keep_checkpoints: 2,
            train_temperature: 1.0,
            val_temperature: 0.7,
            on_failed: OnFailed::Train,
            on_missing_reward: OnMissingReward::Fill,
            reward_fill_value: 0.0,
            success_reward: 1.0,
            stall_seconds: 600,
            drain_seconds: 300,
            keep_trajectories: 8,
            trace_aggregator: TraceAggregatorSettings::default(),
            algorithm: AlgorithmSettings::default(),
            actor: ActorSettings::default(),
        }
    }
}

/// What becomes of a rollout whose agent failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailed {
    /// Its calls are trained on with whatever reward it has, as the original does.
    Train,
    /// It is left out, and counted.
    Drop,
}

/// What becomes of a rollout without a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMissingReward {
    /// It gets `reward_fill_value`, as in the original, and is counted.
    Fill,
    /// It is left out, and counted.
    Drop,
    /// The run stops and names it.
    Error,
}

/// How triplets become rows (original: `agentlightning.trace_aggregator`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceAggregatorSettings {
    /// One row a call, or one row a conversation.
    pub level: AggregationLevel,
    /// Longest prompt of a row, in tokens (original: `trajectory_max_prompt_length`); a longer one is left out of training.
    pub max_prompt_length: usize,
    /// Longest response of a row, in tokens (original: `trajectory_max_response_length`); a longer one is cut.
    pub max_response_length: usize,
    /// Longest row in all, in tokens (original: `trajectory_max_total_length`); a longer response is cut.
    pub max_total_length: Option<usize>,
}

impl Default for TraceAggregatorSettings {
    fn default() -> Self {
        Self {
            level: AggregationLevel::Trajectory,
            max_prompt_length: 2048,
            max_response_length: 8192,
            max_total_length: None,
        }
    }
}

/// One row a call, or one row a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AggregationLevel {
    /// Each model call is a row of its own.
    Transition,
    /// Calls whose prompt extends the conversation so far are merged into one row.
    Trajectory,
}

/// How rewards become advantages (verl: `algorithm`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlgorithmSettings {
    /// Divide by the standard deviation of the group (GRPO); without it, Dr. GRPO.
    pub norm_adv_by_std_in_grpo: bool,
}

impl Default for AlgorithmSettings {
    fn default() -> Self {
        Self { norm_adv_by_std_in_grpo: true }
    }
}

/// How advantages become an update (verl: `actor_rollout_ref.actor`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActorSettings {
    /// Learning rate of AdamW.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises from 0.
    pub warmup_steps: usize,
    /// Rows of one optimiser step; all rows of the training step when absent (verl: `ppo_mini_batch_size`).
    pub mini_batch_rows: Option<usize>,
    /// Passes over the rows of a step (verl: `ppo_epochs`).
    pub epochs: usize,
    /// Tokens of one forward and backward pass: bounds memory, changes nothing else (verl: `ppo_max_token_len_per_gpu`).
    pub micro_batch_tokens: usize,
    /// How far the ratio may fall below 1 before it is clipped.
    pub clip_ratio_low: f64,
    /// How far the ratio may rise above 1 before it is clipped.
    pub clip_ratio_high: f64,
    /// Bound of the loss for negative advantages (dual clip); above 1.
    pub clip_ratio_c: f64,
    /// Longest gradient (verl: `grad_clip`).
    pub max_grad_norm: f64,
}

impl Default for ActorSettings {
    fn default() -> Self {
        Self {
            learning_rate: 1e-6,
            warmup_steps: 0,
            mini_batch_rows: None,
            epochs: 1,
            micro_batch_tokens: 16_384,
            clip_ratio_low: 0.2,
            clip_ratio_high: 0.2,
            clip_ratio_c: 3.0,
            max_grad_norm: 1.0,
        }
    }
}

/// A setting that can't be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trainer.{key}={value}: {rule}")]
pub struct SettingsError {
    /// The key below `trainer`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub rule: &'static str,
}

impl TrainerSettings {
    /// Refuses what can't be meant, before anything is started.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let check = |holds: bool, key: &'static str, value: &dyn std::fmt::Display, rule: &'static str| {
            if holds { Ok(()) } else { Err(SettingsError { key, value: value.to_string(), rule }) }
        };
        check(self.samples_per_step > 0, "samples_per_step", &self.samples_per_step, "must be at least 1")?;
        check(self.rollouts_per_sample > 0, "rollouts_per_sample", &self.rollouts_per_sample, "must be at least 1")?;
        check(self.validation_samples != Some(0), "validation_samples", &0, "must be at least 1, or absent")?;
        check(self.stall_seconds > 0, "stall_seconds", &self.stall_seconds, "must be at least 1")?;
        check(self.save_every > 0, "save_every", &self.save_every, "must be at least 1")?;
        check(self.keep_checkpoints > 0, "keep_checkpoints", &self.keep_checkpoints, "must be at least 1")?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        check(positive(self.train_temperature), "train_temperature", &self.train_temperature, "must be above 0")?;
        check(
            self.val_temperature.is_finite() && self.val_temperature >= 0.0,
            "val_temperature",
            &self.val_temperature,
            "must be 0 or more",
        )?;
        check(self.reward_fill_value.is_finite(), "reward_fill_value", &self.reward_fill_value, "must be finite")?;
        let aggregator = &self.trace_aggregator;
        check(
            aggregator.max_prompt_length > 0,
            "trace_aggregator.max_prompt_length",
            &aggregator.max_prompt_length,
            "must be at least 1",
        )?;
        check(
            aggregator.max_response_length > 0,
            "trace_aggregator.max_response_length",
            &aggregator.max_response_length,
            "must be at least 1",
        )?;
        let actor = &self.actor;
        check(positive(actor.learning_rate), "actor.learning_rate", &actor.learning_rate, "must be above 0")?;
        check(actor.epochs > 0, "actor.epochs", &actor.epochs, "must be at least 1")?;
        check(actor.mini_batch_rows != Some(0), "actor.mini_batch_rows", &0, "must be at least 1, or absent")?;
        check(
            actor.micro_batch_tokens > 0,
            "actor.micro_batch_tokens",
            &actor.micro_batch_tokens,
            "must be at least 1",
        )?;
        check(
            (0.0..1.0).contains(&actor.clip_ratio_low),
            "actor.clip_ratio_low",
            &actor.clip_ratio_low,
            "must be in [0, 1)",
        )?;
        check(actor.clip_ratio_high >= 0.0, "actor.clip_ratio_high", &actor.clip_ratio_high, "must be 0 or more")?;
        check(actor.clip_ratio_c > 1.0, "actor.clip_ratio_c", &actor.clip_ratio_c, "must be above 1")?;
        check(positive(actor.max_grad_norm), "actor.max_grad_norm", &actor.max_grad_norm, "must be above 0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_and_nonsense_is_refused_by_name() {
        assert_eq!(TrainerSettings::default().validate(), Ok(()));
        let mut settings = TrainerSettings { samples_per_step: 0, ..TrainerSettings::default() };
        assert_eq!(settings.validate().unwrap_err().to_string(), "trainer.samples_per_step=0: must be at least 1");
        settings = TrainerSettings::default();
        settings.actor.learning_rate = f64::NAN;
        assert_eq!(settings.validate().unwrap_err().to_string(), "trainer.actor.learning_rate=NaN: must be above 0");
        assert!(serde_json::from_str::<TrainerSettings>(r#"{"stepz":1}"#).unwrap_err().to_string().contains("stepz"));
    }
}
