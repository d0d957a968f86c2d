//! Every metric of a run in one line: how it began, how it ended, its bounds and its course.

use std::fmt::Write;

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;

use super::run_folder::{Phase, Record};
use super::text;
use crate::numbers;

/// Most metrics that are shown of a phase.
const MAX_ROWS: usize = 200;
/// Most corners of the small curve of a metric.
const MAX_CORNERS: usize = 60;
/// Its size in pixels.
const TREND_WIDTH: f64 = 96.0;
const TREND_HEIGHT: f64 = 20.0;

/// What a metric means, for those who are new to reinforcement learning.
const MEANINGS: [(&str, &str); 18] = [
    ("reward", "mean reward of the rollouts"),
    ("success_rate", "share of rollouts that succeeded"),
    ("n_rollouts", "rollouts that ended"),
    ("n_rollouts_failed", "rollouts whose agent failed"),
    ("n_rollouts_w_reward", "rollouts that got a reward"),
    ("n_rollouts_w_trace", "rollouts with at least one usable model call"),
    ("n_turns", "model calls"),
    ("n_tokens", "tokens that the policy sampled"),
    ("n_rows", "rows that the update trained on"),
    ("n_refused_calls", "model calls that could not be trained on"),
    ("staleness_mean", "updates between sampling a row and training on it"),
    ("ppo_kl", "how far the update moved the policy"),
    ("grad_norm", "length of the gradient before clipping"),
    ("entropy", "how undecided the policy is, in nats per token"),
    ("pg_loss", "policy-gradient loss"),
    ("pg_clipfrac", "share of tokens whose update was clipped"),
    ("rollout", "seconds for the rollouts"),
    ("update", "seconds for the update"),
];

/// The metrics of one phase.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    title: &'static str,
    rows: Vec<Row>,
    /// Metrics beyond [`MAX_ROWS`].
    left_out: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    meaning: Option<&'static str>,
    first: String,
    last: String,
    least: String,
    greatest: String,
    /// Corners of the small curve, as an SVG polyline wants them.
    trend: Option<String>,
}

/// One table for each phase that was recorded.
pub(super) fn tables(records: &[Record]) -> Vec<Table> {
    let phases = [(Phase::Train, "Training steps"), (Phase::Validation, "Validation"), (Phase::Other, "Other phases")];
    let table = |(phase, title): (Phase, &'static str)| Table::of(title, records.iter().filter(|r| r.phase == phase));
    phases.into_iter().map(table).filter(|table| !table.rows.is_empty()).collect()
}

impl Table {
    fn of<'a>(title: &'static str, records: impl Iterator<Item = &'a Record>) -> Self {
        let mut series: IndexMap<&str, Vec<&Value>> = IndexMap::new();
        for (name, value) in records.flat_map(|record| &record.metrics) {
            series.entry(name).or_default().push(value);
        }
        let left_out = series.len().saturating_sub(MAX_ROWS);
        let rows = series.iter().take(MAX_ROWS).map(|(name, values)| Row::of(name, values)).collect();
        Self { title, rows, left_out }
    }
}

impl Row {
    fn of(name: &str, values: &[&Value]) -> Self {
        let finite: Vec<f64> =
            values.iter().filter_map(|value| value.as_f64()).filter(|number| number.is_finite()).collect();
        let (least, greatest) = bounds(&finite);
        let word = name.rsplit('/').next().unwrap_or(name);
        Self {
            name: text::name(name),
            meaning: MEANINGS.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning),
            first: values.first().map_or_else(numbers::missing, |value| spell(value)),
            last: values.last().map_or_else(numbers::missing, |value| spell(value)),
            least: numbers::metric(least),
            greatest: numbers::metric(greatest),
            trend: (finite.len() > 2).then(|| trend(&finite, least, greatest)),
        }
    }
}

/// Least and greatest; infinite, which reads as missing, if there are none.
fn bounds(finite: &[f64]) -> (f64, f64) {
    finite.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), n| (least.min(*n), greatest.max(*n)))
}

fn spell(value: &Value) -> String {
    match value {
        Value::Null => numbers::missing(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), numbers::metric),
        Value::String(text) => text::name(text),
        other => text::name(&other.to_string()),
    }
}

/// Means of equal parts, from left to right.
fn trend(finite: &[f64], least: f64, greatest: f64) -> String {
    let corners = finite.len().min(MAX_CORNERS);
    let mut points = String::new();
    for corner in 0..corners {
        let part = &finite[corner * finite.len() / corners..(corner + 1) * finite.len() / corners];
        // Divided first: neither the sum nor the range of very large numbers is finite.
        let scaled = part.iter().map(|n| (n / 2.0 - least / 2.0) / part.len() as f64).sum::<f64>();
        let range = greatest / 2.0 - least / 2.0;
        let height = if range > 0.0 { scaled / range } else { 0.5 };
        let x = TREND_WIDTH * corner as f64 / (corners - 1) as f64;
        let y = 1.0 + (TREND_HEIGHT - 2.0) * (1.0 - height);
        // Writing to a string does not fail.
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(value: &Value) -> Record {
        serde_json::from_value(json!({"phase": "train", "step": 1, "metrics": {"actor/grad_norm": value}})).unwrap()
    }

    fn row(values: &[Value]) -> Row {
        let records: Vec<Record> = values.iter().map(record).collect();
        tables(&records).pop().unwrap().rows.pop().unwrap()
    }

    #[test]
    fn a_row_tells_ends_bounds_and_course() {
        let row = row(&[json!(2), json!(null), json!(8), json!(4)]);
        assert_eq!([&row.first, &row.last, &row.least, &row.greatest], ["2", "4", "2", "8"]);
        assert_eq!(row.trend.unwrap(), "0.0,19.0 48.0,1.0 96.0,13.0 ");
        assert!(row.meaning.unwrap().contains("gradient"));
    }

    #[test]
    fn what_is_no_number_is_shown_as_it_is() {
        let row = row(&[json!("warm-up"), json!(null)]);
        assert_eq!([&row.first, &row.last, &row.least, &row.greatest], ["warm-up", "–", "–", "–"]);
        assert_eq!(row.trend, None);
    }

    #[test]
    fn extreme_numbers_have_a_course_too() {
        let row = row(&[json!(f64::MIN), json!(f64::MAX), json!(0.0)]);
        assert_eq!(row.trend.unwrap(), "0.0,19.0 48.0,1.0 96.0,10.0 ");
        assert!(super::trend(&vec![1.0; 10_000], 1.0, 1.0).len() < 800);
    }
}
