//! One line a training step, in aligned columns.

use crate::numbers;

/// What a training step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    /// This step, from 1.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// Mean reward of the step's rollouts; `None` if none had a reward.
    pub reward_mean: Option<f64>,
    /// Share of the rollouts that succeeded, 0 to 1; `None` if none had a reward.
    pub success_rate: Option<f64>,
    /// Rows that the update trained on.
    pub rows: usize,
    /// Tokens that the policy sampled.
    pub tokens: u64,
    /// Mean number of updates between the policy that sampled a row and the one that it trained.
    pub staleness: f64,
    /// Wall time of the rollouts.
    pub rollout_seconds: f64,
    /// Wall time of the update.
    pub update_seconds: f64,
}

/// What a validation measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationSummary {
    /// Training steps completed before it.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// Mean reward; `None` if no rollout had one.
    pub reward_mean: Option<f64>,
    /// Share of the rollouts that succeeded, 0 to 1.
    pub success_rate: Option<f64>,
    /// Rollouts that ended.
    pub rollouts: usize,
    /// How many of them failed.
    pub failed: usize,
    /// Wall time.
    pub seconds: f64,
}

/// The names of the columns of [`step_line`].
pub fn step_header() -> String {
    columns(["step", "reward", "success", "rows", "tokens", "staleness", "rollouts", "update"])
}

/// One step, one line.
pub fn step_line(step: &StepSummary) -> String {
    columns([
        &progress(step.step, step.steps),
        &or_missing(step.reward_mean, numbers::reward),
        &or_missing(step.success_rate, numbers::percent),
        &numbers::count(step.rows as u64),
        &numbers::compact(step.tokens),
        &numbers::fixed(step.staleness, 2),
        &numbers::duration(step.rollout_seconds),
        &numbers::duration(step.update_seconds),
    ])
}

/// One validation, one line.
pub fn validation_line(validation: &ValidationSummary) -> String {
    let failed = match validation.failed {
        0 => String::new(),
        failed => format!(", {} failed", numbers::count(failed as u64)),
    };
    format!(
        "validation at step {}: reward {}, success {} ({} rollouts{failed}, {})",
        progress(validation.step, validation.steps),
        or_missing(validation.reward_mean, numbers::reward),
        or_missing(validation.success_rate, numbers::percent),
        numbers::count(validation.rollouts as u64),
        numbers::duration(validation.seconds),
    )
}

pub(super) fn or_missing(value: Option<f64>, spell: impl Fn(f64) -> String) -> String {
    value.map_or_else(numbers::missing, spell)
}

fn progress(step: usize, steps: usize) -> String {
    format!("{step}/{steps}")
}

/// Right-aligned, 79 characters wide, so that a step stays on one line of a small terminal.
fn columns([step, reward, success, rows, tokens, staleness, rollouts, update]: [&str; 8]) -> String {
    format!("{step:>9} {reward:>8} {success:>8} {rows:>7} {tokens:>8} {staleness:>10} {rollouts:>11} {update:>10}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> StepSummary {
        StepSummary {
            step: 7,
            steps: 40,
            reward_mean: Some(0.4375),
            success_rate: Some(0.421_875),
            rows: 187,
            tokens: 12_345,
            staleness: 0.0,
            rollout_seconds: 2.14,
            update_seconds: 0.87,
        }
    }

    #[test]
    fn columns_line_up() {
        let slow = StepSummary {
            step: 1000,
            steps: 1000,
            reward_mean: None,
            success_rate: Some(f64::NAN),
            rows: 16_384,
            tokens: 33_000_000,
            staleness: 1.256,
            rollout_seconds: 754.0,
            update_seconds: 75.0,
        };
        let table = [step_header(), step_line(&step()), step_line(&slow)].join("\n").replace('\u{a0}', " ");
        insta::assert_snapshot!(table, @"
             step   reward  success    rows   tokens  staleness    rollouts     update
             7/40    0.438    42.2%     187    12.3k       0.00       2.1 s     0.87 s
        1000/1000        –        –  16,384    33.0M       1.26 12 min 34 s 1 min 15 s
        ");
    }

    #[test]
    fn a_validation_names_what_failed() {
        let mut validation = ValidationSummary {
            step: 0,
            steps: 40,
            reward_mean: Some(0.3125),
            success_rate: Some(0.3125),
            rollouts: 1280,
            failed: 0,
            seconds: 3.12,
        };
        let line = |validation: &ValidationSummary| validation_line(validation).replace('\u{a0}', " ");
        assert_eq!(line(&validation), "validation at step 0/40: reward 0.312, success 31.2% (1,280 rollouts, 3.1 s)");
        validation.failed = 2;
        validation.reward_mean = None;
        assert_eq!(
            line(&validation),
            "validation at step 0/40: reward –, success 31.2% (1,280 rollouts, 2 failed, 3.1 s)"
        );
    }
}
