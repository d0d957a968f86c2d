//! The estimators by name, and verl's `compute_advantage`.

use serde::{Deserialize, Serialize};

use super::group::Outcomes;
use super::{AdvantageError, AdvantageRow, AdvantageSettings, Advantages, broadcast, check_shapes, token};

/// How rewards become advantages (verl: `algorithm.adv_estimator`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Compared with the mean of the group, in units of its standard deviation.
    #[default]
    Grpo,
    /// The same in single precision whatever the rewards are in.
    GrpoVectorized,
    /// Only the best of a group, by how much it beats the second best.
    GrpoPassk,
    /// Compared with the mean of the others.
    Rloo,
    /// The same, from sums in double precision; 0 for a row alone in its group.
    RlooVectorized,
    /// Compared with the mean weighted by length.
    Opo,
    /// Compared with the mean, scaled by how many rows have a reward at all.
    Gpg,
    /// Discounted returns, whitened over the batch.
    ReinforcePlusPlus,
    /// Compared with the mean of the group, whitened over the batch.
    ReinforcePlusPlusBaseline,
    /// Compared with the reward of the greedy response.
    Remax,
    /// Compared with a critic's value.
    Gae,
}

/// Advantages of rows, each a sample of its group.
///
/// Source: verl `compute_advantage`, which see for each estimator's formula at its function here.
pub fn compute(
    estimator: Estimator,
    rows: &[AdvantageRow<'_>],
    settings: &AdvantageSettings,
) -> Result<Advantages, AdvantageError> {
    check_shapes(rows)?;
    let by_std = settings.norm_adv_by_std_in_grpo;
    let outcomes = || Outcomes::new(rows, settings.precision);
    let scalars = match estimator {
        Estimator::Grpo => outcomes().grpo(by_std),
        Estimator::GrpoVectorized => outcomes().grpo_vectorized(by_std),
        Estimator::GrpoPassk => outcomes().grpo_passk(by_std)?,
        Estimator::Rloo => outcomes().rloo(),
        Estimator::RlooVectorized => outcomes().rloo_vectorized(),
        Estimator::Opo => outcomes().opo(),
        Estimator::Gpg => outcomes().gpg(),
        Estimator::ReinforcePlusPlusBaseline => {
            let mut advantages = broadcast(&outcomes().centred(), rows);
            token::whiten(&mut advantages, rows, settings.precision, "reinforce_plus_plus_baseline")?;
            token::clear_unsampled(&mut advantages, rows);
            return Ok(Advantages { returns: advantages.clone(), advantages });
        }
        Estimator::ReinforcePlusPlus => return token::reinforce_plus_plus(rows, settings),
        Estimator::Remax => return token::remax(rows, settings.precision),
        Estimator::Gae => return token::gae(rows, settings),
    };
    let advantages = broadcast(&scalars, rows);
    Ok(Advantages { returns: advantages.clone(), advantages })
}
