//! `report.html`: one file that needs nothing else, readable without scripts.

use serde::Serialize;

use super::curve::{Curve, Point, Size};
use super::metrics_table::{self, Table};
use super::run_folder::{Phase, Run, Trajectory, Warning};
use super::tasks::Tasks;
use super::template;
use super::text;
use crate::numbers;

/// All that the template shows.
#[derive(Serialize)]
struct Page {
    name: String,
    headline: String,
    facts: Vec<Fact>,
    warnings: Vec<String>,
    /// Two drawings of one curve; the page shows the one that fits.
    curves: [String; 2],
    description: String,
    before_title: String,
    after_title: String,
    tasks: Tasks,
    tables: Vec<Table>,
    config: Option<String>,
}

/// A figure of the summary.
#[derive(Serialize)]
struct Fact {
    name: &'static str,
    value: String,
    /// What it was before training, if that is worth comparing.
    before: Option<String>,
}

/// Makes the page.
pub(super) fn render(run: &Run) -> Result<String, minijinja::Error> {
    let curve = Curve::of(&run.records);
    let steps = steps(run);
    template::render(
        "report.html",
        &Page {
            name: text::name(&run.name),
            headline: headline(&curve.validation, steps),
            facts: facts(run, &curve.validation),
            warnings: run.warnings.iter().map(Warning::without_folder).collect(),
            curves: [curve.svg(Size::WIDE)?, curve.svg(Size::NARROW)?],
            description: curve.description(),
            before_title: side_title(&run.before),
            after_title: side_title(&run.after),
            tasks: Tasks::pair(&run.before, &run.after),
            tables: metrics_table::tables(&run.records),
            config: run.config.as_deref().map(text::whole),
        },
    )
}

/// Training steps completed.
fn steps(run: &Run) -> u64 {
    run.records.iter().filter(|record| record.phase == Phase::Train).map(|record| record.step).max().unwrap_or(0)
}

fn spell_steps(steps: u64) -> String {
    format!("{} training {}", numbers::count(steps), if steps == 1 { "step" } else { "steps" })
}

/// When a validation took place.
fn side_title(trajectories: &[Trajectory]) -> String {
    match trajectories.first().map_or(0, |trajectory| trajectory.step) {
        0 => "Before training".to_owned(),
        steps => format!("After {}", spell_steps(steps)),
    }
}

fn headline(validation: &[Point], steps: u64) -> String {
    match validation {
        [] => format!("{} recorded, no validation yet.", spell_steps(steps)),
        [only] => format!(
            "{} recorded; one validation so far, with a mean reward of {}.",
            spell_steps(steps),
            numbers::reward(only.reward)
        ),
        [first, .., last] => format!(
            "In {} the mean reward on the validation tasks went from {} to {}.",
            spell_steps(steps),
            numbers::reward(first.reward),
            numbers::reward(last.reward)
        ),
    }
}

fn facts(run: &Run, rewards: &[Point]) -> Vec<Fact> {
    let of_validation = run.records.iter().filter(|record| record.phase == Phase::Validation);
    let successes: Vec<f64> = of_validation.filter_map(|record| record.number("val/success_rate")).collect();
    let rewards: Vec<f64> = rewards.iter().map(|point| point.reward).collect();
    let total = |names: [&str; 2], spell: fn(u64) -> String| {
        let counts: Vec<f64> =
            run.records.iter().flat_map(|record| names.map(|name| record.number(name))).flatten().collect();
        if counts.is_empty() { numbers::missing() } else { spell(counts.iter().sum::<f64>() as u64) }
    };
    let seconds: f64 = run.records.iter().filter_map(|record| record.seconds).sum();
    let plain = |name, value| Fact { name, value, before: None };
    vec![
        compared("validation reward", &rewards, numbers::reward),
        compared("validation success", &successes, numbers::percent),
        plain("training steps", numbers::count(steps(run))),
        plain("rollouts", total(["val/n_rollouts", "training/n_rollouts"], numbers::count)),
        plain("tokens sampled", total(["val/n_tokens", "training/n_tokens"], numbers::compact)),
        plain("time", numbers::duration(seconds)),
    ]
}

/// The last of several measurements, beside the first.
fn compared(name: &'static str, measured: &[f64], spell: fn(f64) -> String) -> Fact {
    let value = measured.last().map_or_else(numbers::missing, |last| spell(*last));
    let before = measured.first().filter(|_| measured.len() > 1).map(|first| spell(*first));
    Fact { name, value, before }
}
