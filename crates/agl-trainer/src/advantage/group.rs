//! Estimators that compare the outcomes of one group: a number per row, from its total reward alone.

use std::collections::HashMap;

use super::{AdvantageError, AdvantageRow};
use crate::precision::Precision;

/// Keeps divisions by a standard deviation of 0 finite.
const EPSILON: f32 = 1e-6;

/// Total reward of each row, and which rows form a group.
pub(super) struct Outcomes<'a> {
    /// Total reward of each row.
    pub(super) scores: Vec<f32>,
    /// Sampled tokens of each row.
    lengths: Vec<f32>,
    /// The groups by first appearance: name, rows.
    groups: Vec<(&'a str, Vec<usize>)>,
    precision: Precision,
}

impl<'a> Outcomes<'a> {
    pub(super) fn new(rows: &[AdvantageRow<'a>], precision: Precision) -> Self {
        let mut places = HashMap::new();
        let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
        for (row, AdvantageRow { group, .. }) in rows.iter().enumerate() {
            let place = *places.entry(*group).or_insert_with(|| {
                groups.push((group, Vec::new()));
                groups.len() - 1
            });
            groups[place].1.push(row);
        }
        let scores = rows.iter().map(|row| precision.sum(row.rewards.iter().copied())).collect();
        let lengths = rows.iter().map(|row| row.mask.iter().filter(|sampled| **sampled).count() as f32).collect();
        Self { scores, lengths, groups, precision }
    }

    fn scores_of(&self, rows: &[usize]) -> Vec<f32> {
        rows.iter().map(|row| self.scores[*row]).collect()
    }

    /// Applies `f(score, scores of the group)` to each row.
    fn map(&self, mut f: impl FnMut(f32, &GroupScores) -> f32) -> Vec<f32> {
        let mut out = vec![0.0; self.scores.len()];
        for (_, rows) in &self.groups {
            let group = GroupScores::new(self.scores_of(rows), self.precision);
            for row in rows {
                out[*row] = f(self.scores[*row], &group);
            }
        }
        out
    }

    /// GRPO: (r − mean) / (std + ε), or r − mean without `by_std` (Dr. GRPO). A row alone in its group: mean 0, std 1.
    ///
    /// Source: <https://arxiv.org/abs/2402.03300>; verl `compute_grpo_outcome_advantage`.
    pub(super) fn grpo(&self, by_std: bool) -> Vec<f32> {
        let round = |value| self.precision.round(value);
        self.map(|score, group| {
            if group.is_single() {
                return if by_std { round(score / (1.0 + EPSILON)) } else { score };
            }
            let centred = round(score - group.mean);
            if by_std { round(centred / round(group.std + EPSILON)) } else { centred }
        })
    }

    /// GRPO in single precision whatever the rewards are in.
    ///
    /// Source: verl `compute_grpo_vectorized_outcome_advantage`.
    pub(super) fn grpo_vectorized(&self, by_std: bool) -> Vec<f32> {
        let mut out = vec![0.0; self.scores.len()];
        for (_, rows) in &self.groups {
            let group = GroupScores::new(self.scores_of(rows), Precision::F32);
            let (mean, std) = if group.is_single() { (0.0, 1.0) } else { (group.mean, group.std) };
            for row in rows {
                let centred = self.scores[*row] - mean;
                out[*row] = if by_std { centred / (std + EPSILON) } else { centred };
            }
        }
        out
    }

    /// Pass@k: only the best of a group gets something, by how much it beats the second best, over std + ε with `by_std`.
    ///
    /// Source: <https://arxiv.org/abs/2503.19595>; verl `compute_grpo_passk_outcome_advantage`.
    pub(super) fn grpo_passk(&self, by_std: bool) -> Result<Vec<f32>, AdvantageError> {
        let round = |value| self.precision.round(value);
        let mut out = vec![0.0; self.scores.len()];
        for (name, rows) in &self.groups {
            let mut ranked = rows.clone();
            ranked.sort_by(|a, b| self.scores[*b].total_cmp(&self.scores[*a]));
            let [best, second, ..] = ranked[..] else {
                return Err(AdvantageError::GroupTooSmall { group: (*name).to_owned(), size: rows.len() });
            };
            let lead = round(self.scores[best] - self.scores[second]);
            let std = self.precision.std(&self.scores_of(rows));
            out[best] = if by_std { round(lead / round(std + EPSILON)) } else { lead };
        }
        Ok(out)
    }

    /// RLOO: r·n/(n−1) − mean·n/(n−1), which is r minus the mean of the others. A row alone in its group: r.
    ///
    /// Source: <https://arxiv.org/abs/2402.14740>; verl `compute_rloo_outcome_advantage`.
    pub(super) fn rloo(&self) -> Vec<f32> {
        let round = |value| self.precision.round(value);
        self.map(|score, group| {
            if group.is_single() {
                return score;
            }
            let n = group.scores.len() as f32;
            let scaled = |value: f32| round(round(value * n) / (n - 1.0));
            round(scaled(score) - scaled(group.mean))
        })
    }

    /// RLOO from sums in double precision; 0 for a row alone in its group.
    ///
    /// Source: verl `compute_rloo_vectorized_outcome_advantage`.
    pub(super) fn rloo_vectorized(&self) -> Vec<f32> {
        self.map(|score, group| {
            if group.is_single() {
                return 0.0;
            }
            let n = self.precision.round(group.scores.len() as f32);
            let sum: f64 = group.scores.iter().copied().map(f64::from).sum();
            let others = f64::from(self.precision.round(n - 1.0)).max(1.0);
            ((f64::from(self.precision.round(n * score)) - sum) / others) as f32
        })
    }

    /// OPO: r minus the mean reward weighted by length. A row alone in its group: r.
    ///
    /// Source: <https://arxiv.org/abs/2505.23585>; verl `compute_opo_outcome_advantage`.
    pub(super) fn opo(&self) -> Vec<f32> {
        let round = |value| self.precision.round(value);
        let mut out = self.scores.clone();
        for (_, rows) in self.groups.iter().filter(|(_, rows)| rows.len() > 1) {
            let weighted = self.precision.sum(rows.iter().map(|row| round(self.lengths[*row] * self.scores[*row])));
            let tokens: f32 = rows.iter().map(|row| self.lengths[*row]).sum();
            let baseline = round(weighted / round(tokens));
            for row in rows {
                out[*row] = round(self.scores[*row] - baseline);
            }
        }
        out
    }

    /// GPG: α·(r − mean), α = rows / rows with a reward other than 0. A row alone in its group: α·r.
    ///
    /// Source: <https://arxiv.org/abs/2504.02546>; verl `compute_gpg_outcome_advantage`.
    pub(super) fn gpg(&self) -> Vec<f32> {
        let rewarded = self.scores.iter().filter(|score| **score != 0.0).count().max(1);
        let alpha = self.scores.len() as f32 / rewarded as f32;
        self.map(|score, group| {
            let centred = if group.is_single() { score } else { self.precision.round(score - group.mean) };
            self.precision.round(alpha * centred)
        })
    }

    /// r − mean of the group. A row alone in its group: r.
    pub(super) fn centred(&self) -> Vec<f32> {
        self.map(|score, group| if group.is_single() { score } else { self.precision.round(score - group.mean) })
    }
}

/// The total rewards of one group.
struct GroupScores {
    scores: Vec<f32>,
    mean: f32,
    std: f32,
}

impl GroupScores {
    fn new(scores: Vec<f32>, precision: Precision) -> Self {
        let (mean, std) = (precision.mean(&scores), precision.std(&scores));
        Self { scores, mean, std }
    }

    /// There is nothing to compare it with.
    fn is_single(&self) -> bool {
        self.scores.len() == 1
    }
}
