//! Named numbers of a training step, under verl's and the original's names.

use std::collections::{BTreeMap, HashMap};

use crate::precision::{Precision, is_close};

/// Metrics by name. Counts are floats here too.
pub type Metrics = BTreeMap<&'static str, f64>;

/// What the metrics of a batch need of one row.
#[derive(Clone, Copy, Debug)]
pub struct MetricsRow<'a> {
    /// Tokens of the prompt.
    pub prompt_length: usize,
    /// Tokens of the response, sampled or not.
    pub response_length: usize,
    /// Sum of the rewards before a KL penalty (verl: `token_level_scores`).
    pub score: f32,
    /// Sum of the rewards (verl: `token_level_rewards`).
    pub reward: f32,
    /// One per response token.
    pub advantages: &'a [f32],
    /// One per response token.
    pub returns: &'a [f32],
    /// One per response token: whether it was sampled.
    pub mask: &'a [bool],
}

/// Widths of the padded batch, in tokens: a row of that length was probably cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// Longest prompt.
    pub max_prompt_length: usize,
    /// Longest response.
    pub max_response_length: usize,
}

/// `critic/*`, `prompt_length/*`, `response_length/*`, `response/*`: mean, max and min over rows (scores, rewards, lengths)
/// or sampled tokens (advantages, returns). NaN where there is nothing to average over. `precision` is that of the rewards.
///
/// Source: verl `compute_data_metrics` without a critic.
pub fn data_metrics(rows: &[MetricsRow<'_>], widths: Widths, precision: Precision) -> Metrics {
    let mut metrics = Metrics::new();
    let answered = || rows.iter().filter(|row| row.response_length > 0);
    let mut put = |names: [&'static str; 3], values: Vec<f32>, precision: Precision| {
        let or_nan = |value: Option<f32>| f64::from(value.unwrap_or(f32::NAN));
        metrics.insert(names[0], f64::from(precision.mean(&values)));
        metrics.insert(names[1], or_nan(values.iter().copied().reduce(f32::max)));
        metrics.insert(names[2], or_nan(values.iter().copied().reduce(f32::min)));
    };
    put(
        ["critic/score/mean", "critic/score/max", "critic/score/min"],
        answered().map(|row| row.score).collect(),
        precision,
    );
    put(
        ["critic/rewards/mean", "critic/rewards/max", "critic/rewards/min"],
        answered().map(|row| row.reward).collect(),
        precision,
    );
    put(
        ["critic/advantages/mean", "critic/advantages/max", "critic/advantages/min"],
        rows.iter().flat_map(|row| sampled(row.advantages, row.mask)).collect(),
        Precision::F32,
    );
    put(
        ["critic/returns/mean", "critic/returns/max", "critic/returns/min"],
        rows.iter().flat_map(|row| sampled(row.returns, row.mask)).collect(),
        Precision::F32,
    );
    put(
        ["prompt_length/mean", "prompt_length/max", "prompt_length/min"],
        rows.iter().map(|row| row.prompt_length as f32).collect(),
        Precision::F32,
    );
    put(
        ["response_length/mean", "response_length/max", "response_length/min"],
        rows.iter().map(|row| row.response_length as f32).collect(),
        Precision::F32,
    );
    put(
        ["response_length_non_aborted/mean", "response_length_non_aborted/max", "response_length_non_aborted/min"],
        answered().map(|row| row.response_length as f32).collect(),
        Precision::F32,
    );
    let is_full = |row: &MetricsRow<'_>| row.response_length == widths.max_response_length;
    metrics.extend([
        ("prompt_length/clip_ratio", share(rows.iter().map(|row| row.prompt_length == widths.max_prompt_length))),
        ("response_length/clip_ratio", share(rows.iter().map(is_full))),
        ("response_length_non_aborted/clip_ratio", share(answered().map(is_full))),
        ("response/aborted_ratio", share(rows.iter().map(|row| row.response_length == 0))),
    ]);
    metrics
}

fn sampled<'a>(values: &'a [f32], mask: &'a [bool]) -> impl Iterator<Item = f32> + 'a {
    values.iter().zip(mask).filter(|(_, sampled)| **sampled).map(|(value, _)| *value)
}

fn share(holds: impl Iterator<Item = bool>) -> f64 {
    let (count, of) = holds.fold((0_usize, 0_usize), |(count, of), holds| (count + usize::from(holds), of + 1));
    count as f64 / of as f64
}

/// How many groups there are, and in how many all scores are the same, so that GRPO learns nothing from them.
///
/// Source: the original's `_grpo_group_metrics`.
pub fn group_metrics(groups: &[&str], scores: &[f32]) -> Metrics {
    let by_group = rows_by_group(groups, scores.len());
    let is_flat = |rows: &&Vec<usize>| rows.iter().all(|row| scores[*row] - scores[rows[0]] == 0.0);
    Metrics::from([
        ("training/n_groups", by_group.len() as f64),
        ("training/n_zero_adv_groups", by_group.iter().filter(is_flat).count() as f64),
    ])
}

/// Rows of groups whose scores are all the same (within `torch.allclose`): the first to go when a batch is cut to a
/// multiple of the mini-batch, and those that DAPO's dynamic sampling drops (<https://arxiv.org/abs/2503.14476>).
///
/// Source: the original's `_same_reward_uid_indices`.
pub fn same_reward_rows(groups: &[&str], scores: &[f32]) -> Vec<usize> {
    let by_group = rows_by_group(groups, scores.len());
    let is_flat = |rows: &Vec<usize>| rows.iter().all(|row| is_close(scores[*row], scores[rows[0]]));
    by_group.into_iter().filter(is_flat).flatten().collect()
}

/// The rows of each group, groups by first appearance.
fn rows_by_group(groups: &[&str], count: usize) -> Vec<Vec<usize>> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut by_group: Vec<Vec<usize>> = Vec::new();
    for (row, group) in groups.iter().enumerate().take(count) {
        let place = *places.entry(group).or_insert(by_group.len());
        if place == by_group.len() {
            by_group.push(Vec::new());
        }
        by_group[place].push(row);
    }
    by_group
}
