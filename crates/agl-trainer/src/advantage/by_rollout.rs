//! One advantage a rollout, however many rows it was split into.

use std::collections::HashMap;

use super::{AdvantageError, AdvantageRow, AdvantageSettings, Advantages, Estimator, check_shapes, compute, spread};
use crate::metrics::Metrics;
use crate::precision::is_close;

/// How rollouts were split into rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutLevelStats {
    /// Rows.
    pub rows: usize,
    /// Rollouts.
    pub rollouts: usize,
    /// Rollouts of more than one row.
    pub multi_row_rollouts: usize,
    /// Rows of the rollout that has most.
    pub max_rows_per_rollout: usize,
}

impl RolloutLevelStats {
    /// Under the original's names.
    pub fn metrics(&self) -> Metrics {
        Metrics::from([
            ("training/rollout_level_advantage/n_rows", self.rows as f64),
            ("training/rollout_level_advantage/n_rollouts", self.rollouts as f64),
            ("training/rollout_level_advantage/n_multi_row_rollouts", self.multi_row_rollouts as f64),
            ("training/rollout_level_advantage/max_rows_per_rollout", self.max_rows_per_rollout as f64),
        ])
    }
}

/// Advantages with each rollout as one sample of its group: computed on its first row, given to all of its rows.
///
/// Refuses rollouts whose rows differ in group or in total reward, and estimators that give tokens of one rollout different
/// numbers (GAE, discounted REINFORCE++), since then no single number could be given to its other rows.
///
/// Source: the original's `compute_rollout_level_advantage`.
pub fn compute_by_rollout(
    estimator: Estimator,
    rows: &[AdvantageRow<'_>],
    settings: &AdvantageSettings,
) -> Result<(Advantages, RolloutLevelStats), AdvantageError> {
    check_shapes(rows)?;
    let rollouts = Rollouts::new(rows);
    let sums: Vec<f32> = rows.iter().map(|row| settings.precision.sum(row.rewards.iter().copied())).collect();
    rollouts.check_agreement(rows, &sums)?;

    let first_rows: Vec<AdvantageRow<'_>> = rollouts.rows.iter().map(|of_rollout| rows[of_rollout[0]]).collect();
    let first = compute(estimator, &first_rows, settings)?;
    let advantages = rollouts.broadcast("advantages", &first.advantages, &first_rows, rows)?;
    let returns = rollouts.broadcast("returns", &first.returns, &first_rows, rows)?;
    Ok((Advantages { advantages, returns }, rollouts.stats()))
}

/// Which rows belong to which rollout, rollouts by first appearance.
struct Rollouts {
    /// The rows of each rollout; never empty.
    rows: Vec<Vec<usize>>,
    /// The rollout of each row.
    of_row: Vec<usize>,
}

impl Rollouts {
    fn new(rows: &[AdvantageRow<'_>]) -> Self {
        let mut places = HashMap::new();
        let mut grouped: Vec<Vec<usize>> = Vec::new();
        let mut of_row = Vec::with_capacity(rows.len());
        for (row, AdvantageRow { rollout_id, .. }) in rows.iter().enumerate() {
            let place = *places.entry(*rollout_id).or_insert_with(|| {
                grouped.push(Vec::new());
                grouped.len() - 1
            });
            grouped[place].push(row);
            of_row.push(place);
        }
        Self { rows: grouped, of_row }
    }

    fn check_agreement(&self, rows: &[AdvantageRow<'_>], sums: &[f32]) -> Result<(), AdvantageError> {
        for of_rollout in &self.rows {
            let first = of_rollout[0];
            let rollout_id = || rows[first].rollout_id.to_owned();
            if of_rollout.iter().any(|row| rows[*row].group != rows[first].group) {
                return Err(AdvantageError::SeveralGroups { rollout_id: rollout_id() });
            }
            if !of_rollout.iter().all(|row| is_close(sums[*row], sums[first])) {
                return Err(AdvantageError::SeveralRewards { rollout_id: rollout_id() });
            }
        }
        Ok(())
    }

    /// The one number of each rollout, on the sampled tokens of all its rows.
    fn broadcast(
        &self,
        key: &'static str,
        values: &[Vec<f32>],
        first_rows: &[AdvantageRow<'_>],
        rows: &[AdvantageRow<'_>],
    ) -> Result<Vec<Vec<f32>>, AdvantageError> {
        let scalars = values
            .iter()
            .zip(first_rows)
            .map(|(values, row)| {
                let mut sampled = values.iter().zip(row.mask).filter(|(_, sampled)| **sampled).map(|(value, _)| *value);
                let rollout_id = || row.rollout_id.to_owned();
                let first =
                    sampled.next().ok_or_else(|| AdvantageError::EmptyRollout { key, rollout_id: rollout_id() })?;
                if is_close(first, first) && sampled.all(|value| is_close(value, first)) {
                    Ok(first)
                } else {
                    Err(AdvantageError::NotScalar { key, rollout_id: rollout_id() })
                }
            })
            .collect::<Result<Vec<f32>, AdvantageError>>()?;
        Ok(rows.iter().zip(&self.of_row).map(|(row, rollout)| spread(scalars[*rollout], row.mask)).collect())
    }

    fn stats(&self) -> RolloutLevelStats {
        RolloutLevelStats {
            rows: self.of_row.len(),
            rollouts: self.rows.len(),
            multi_row_rollouts: self.rows.iter().filter(|rows| rows.len() > 1).count(),
            max_rows_per_rollout: self.rows.iter().map(Vec::len).max().unwrap_or(0),
        }
    }
}
