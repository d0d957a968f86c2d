//! What a run tells, shown in the terminal.

use std::path::Path;

use agl_trainer::RunEvent;
use agl_trainer::run::{MetricsRecord, Phase as RunPhase};
use anyhow::Result;

use crate::terminal::{Phase, PhaseProgress, Progress, StepSummary, Tick, ValidationSummary, validation_line};

/// Shows a run's events as bars and lines, and keeps the rewards for the summary.
pub(super) struct View {
    progress: Progress,
    steps: usize,
    phase: Option<(Phase, Option<PhaseProgress>)>,
    rewards: Vec<f64>,
}

impl View {
    /// `run_dir` of a resumed run holds the rewards of its earlier steps.
    pub(super) fn new(progress: Progress, steps: usize, run_dir: &Path) -> Result<Self> {
        let rewards = earlier_rewards(run_dir)?;
        Ok(Self { progress, steps, phase: None, rewards })
    }

    pub(super) fn into_rewards(self) -> Vec<f64> {
        self.rewards
    }

    pub(super) fn show(&mut self, event: RunEvent<'_>) {
        match event {
            RunEvent::RolloutsStarted { phase, .. } => {
                let phase = match phase {
                    RunPhase::Validation => Phase::Validate,
                    RunPhase::Train => Phase::Rollouts,
                };
                self.phase = Some((phase, None));
            }
            RunEvent::Rollouts(batch) => {
                let mean = (batch.rewards > 0).then(|| batch.reward_sum / batch.rewards as f64);
                self.tick(
                    batch.total,
                    Tick { done: batch.ended as u64, failed: batch.failed as u64, mean_reward: mean },
                );
            }
            RunEvent::UpdateStarted { .. } => self.phase = Some((Phase::Update, None)),
            RunEvent::UpdateProgress { done, total } => {
                self.tick(total, Tick { done: done as u64, ..Tick::default() });
            }
            RunEvent::Recorded { record, .. } => {
                // The bar goes before the line that replaces it.
                self.phase = None;
                self.line(record);
            }
        }
    }

    /// The bar appears with the first tick, which knows the total.
    fn tick(&mut self, total: usize, tick: Tick) {
        if let Some((phase, shown)) = &mut self.phase {
            shown.get_or_insert_with(|| self.progress.begin(*phase, total as u64)).update(tick);
        }
    }

    fn line(&mut self, record: &MetricsRecord) {
        let number = |name: &str| record.metrics.get(name).and_then(serde_json::Value::as_f64);
        let count = |name: &str| number(name).unwrap_or(0.0) as usize;
        match record.phase {
            RunPhase::Validation => self.progress.print_line(&validation_line(&ValidationSummary {
                step: record.step,
                steps: self.steps,
                reward_mean: number("val/reward"),
                success_rate: number("val/success_rate"),
                rollouts: count("val/n_rollouts"),
                failed: count("val/n_rollouts_failed"),
                seconds: record.seconds,
            })),
            RunPhase::Train => {
                self.rewards.push(number("training/reward").unwrap_or(f64::NAN));
                self.progress.print_step(&StepSummary {
                    step: record.step,
                    steps: self.steps,
                    reward_mean: number("training/reward"),
                    success_rate: number("training/success_rate"),
                    rows: count("training/n_rows"),
                    tokens: count("training/n_tokens") as u64,
                    staleness: number("training/staleness_mean").unwrap_or(0.0),
                    rollout_seconds: number("timing_s/rollout").unwrap_or(0.0),
                    update_seconds: number("timing_s/update").unwrap_or(0.0),
                });
                if count("training/n_rows_with_signal") == 0 {
                    let note = "  no group had different rewards in this step: there was nothing to learn from";
                    self.progress.print_line(note);
                }
            }
        }
    }
}

/// Training rewards that an earlier session of the run recorded.
fn earlier_rewards(run_dir: &Path) -> Result<Vec<f64>> {
    let text = std::fs::read_to_string(run_dir.join("metrics.jsonl"))?;
    let records = text.lines().filter_map(|line| serde_json::from_str::<MetricsRecord>(line).ok());
    Ok(records
        .filter(|record| record.phase == RunPhase::Train)
        .filter_map(|record| record.metrics.get("training/reward")?.as_f64())
        .collect())
}
