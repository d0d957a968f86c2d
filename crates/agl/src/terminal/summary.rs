//! What stands in the terminal when a run is over.

use std::fmt::{self, Write};
use std::path::Path;

use super::sparkline::{Range, sparkline};
use super::step::{ValidationSummary, or_missing};
use crate::numbers;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All steps were made.
    Completed,
    /// Stopped before that, by the user or by a failure; what was finished is kept.
    Stopped,
}

/// A command to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextCommand {
    /// What to type.
    pub command: String,
    /// What it is good for, in a few words.
    pub purpose: String,
}

/// What a run achieved.
#[derive(Clone, Debug)]
pub struct FinalSummary<'a> {
    /// How it ended.
    pub ending: Ending,
    /// Training steps completed.
    pub steps: usize,
    /// Rollouts that ended, validation included.
    pub rollouts: u64,
    /// Tokens that the policy sampled, validation included.
    pub tokens: u64,
    /// Wall time of the run.
    pub seconds: f64,
    /// The validation before the first step.
    pub before: Option<&'a ValidationSummary>,
    /// The validation after the last step.
    pub after: Option<&'a ValidationSummary>,
    /// Mean reward of each training step, oldest first; NaN where a step had none.
    pub step_rewards: &'a [f64],
    /// The run folder.
    pub run_dir: &'a Path,
    /// What to do next.
    pub next: &'a [NextCommand],
}

/// The summary, several lines, without a newline at the end.
pub fn final_summary(summary: &FinalSummary) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_summary(&mut text, summary);
    text.truncate(text.trim_end().len());
    text
}

fn write_summary(text: &mut String, summary: &FinalSummary) -> fmt::Result {
    let verb = match summary.ending {
        Ending::Completed => "Trained",
        Ending::Stopped => "Stopped after",
    };
    writeln!(
        text,
        "{verb} {} {} in {} ({} rollouts, {} tokens)\n",
        numbers::count(summary.steps as u64),
        if summary.steps == 1 { "step" } else { "steps" },
        numbers::duration(summary.seconds),
        numbers::count(summary.rollouts),
        numbers::compact(summary.tokens),
    )?;
    write_before_and_after(text, summary)?;
    if !summary.step_rewards.is_empty() {
        writeln!(text, "  reward per step  {}\n", spark(summary.step_rewards))?;
    }
    writeln!(text, "  run folder  {}\n", summary.run_dir.display())?;
    write_next(text, summary.next)
}

fn write_before_and_after(text: &mut String, summary: &FinalSummary) -> fmt::Result {
    let Some(before) = summary.before else { return Ok(()) };
    writeln!(text, "  {:<10}{:>8}{:>9}", "validation", "before", "after")?;
    let mut row = |name: &str, value: fn(&ValidationSummary) -> String| {
        let after = summary.after.map_or_else(numbers::missing, value);
        writeln!(text, "  {name:<10}{:>8}{after:>9}", value(before))
    };
    row("reward", |validation| or_missing(validation.reward_mean, numbers::reward))?;
    row("success", |validation| or_missing(validation.success_rate, numbers::percent))?;
    writeln!(text)
}

/// Rates are drawn from 0 to 1, other rewards over their own range, which is then named.
fn spark(rewards: &[f64]) -> String {
    let finite = || rewards.iter().copied().filter(|reward| reward.is_finite());
    if finite().all(|reward| (0.0..=1.0).contains(&reward)) {
        return format!("{}  (0 to 1)", sparkline(rewards, Range::Unit));
    }
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    format!("{}  ({} to {})", sparkline(rewards, Range::Data), numbers::metric(low), numbers::metric(high))
}

fn write_next(text: &mut String, next: &[NextCommand]) -> fmt::Result {
    if next.is_empty() {
        return Ok(());
    }
    writeln!(text, "Next")?;
    let width = next.iter().map(|next| next.command.chars().count()).max().unwrap_or(0);
    next.iter().try_for_each(|next| writeln!(text, "  {:<width$}  {}", next.command, next.purpose))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation(reward: f64, success: f64) -> ValidationSummary {
        ValidationSummary {
            step: 0,
            steps: 8,
            reward_mean: Some(reward),
            success_rate: Some(success),
            rollouts: 128,
            failed: 0,
            seconds: 3.0,
        }
    }

    fn text(summary: &FinalSummary) -> String {
        final_summary(summary).replace('\u{a0}', " ")
    }

    #[test]
    fn a_completed_run() {
        let (before, after) = (validation(0.3125, 0.297), validation(0.9531, 0.9453));
        let next = [("agl report runs/first", "write the report again"), ("agl train --help", "train your own agent")]
            .map(|(command, purpose)| NextCommand { command: command.into(), purpose: purpose.into() });
        let summary = FinalSummary {
            ending: Ending::Completed,
            steps: 8,
            rollouts: 1280,
            tokens: 123_456,
            seconds: 125.0,
            before: Some(&before),
            after: Some(&after),
            step_rewards: &[0.3, 0.4, f64::NAN, 0.6, 0.7, 0.8, 0.9, 0.95],
            run_dir: Path::new("runs/first"),
            next: &next,
        };
        insta::assert_snapshot!(text(&summary), @"
        Trained 8 steps in 2 min 05 s (1,280 rollouts, 123.5k tokens)

          validation  before    after
          reward       0.312    0.953
          success      29.7%    94.5%

          reward per step  ▃▄·▅▆▇██  (0 to 1)

          run folder  runs/first

        Next
          agl report runs/first  write the report again
          agl train --help       train your own agent
        ");
    }

    #[test]
    fn a_run_stopped_early_shows_what_there_is() {
        let before = validation(-2.5, 0.0);
        let mut summary = FinalSummary {
            ending: Ending::Stopped,
            steps: 1,
            rollouts: 140,
            tokens: 900,
            seconds: 4.2,
            before: Some(&before),
            after: None,
            step_rewards: &[-2.5, 3.25],
            run_dir: Path::new("runs/first"),
            next: &[],
        };
        insta::assert_snapshot!(text(&summary), @"
        Stopped after 1 step in 4.2 s (140 rollouts, 900 tokens)

          validation  before    after
          reward      -2.500        –
          success       0.0%        –

          reward per step  ▁█  (-2.5 to 3.25)

          run folder  runs/first
        ");
        summary.before = None;
        summary.step_rewards = &[];
        summary.steps = 0;
        insta::assert_snapshot!(text(&summary), @"
        Stopped after 0 steps in 4.2 s (140 rollouts, 900 tokens)

          run folder  runs/first
        ");
    }
}
