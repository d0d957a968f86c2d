//! The weights of the per-rollout losses, put into the advantages before the update.

use std::collections::HashMap;

use super::{LossError, check_length};

/// Divides each row's advantages by the trained tokens of its whole rollout (all its rows together) times
/// `num_trained_rows`, so that the plain sum over all tokens of a training step is the mean over rows of what each rollout
/// says on average a token. In place.
///
/// The divisor is at least 1, as in the original; and it is that of the whole step, so each of several mini-batches carries
/// only its share of the weight.
///
/// Source: the original's `normalize_advantages_by_rollout`.
pub fn normalize_advantages_by_rollout(
    advantages: &mut [Vec<f32>],
    masks: &[&[bool]],
    rollout_ids: &[&str],
    num_trained_rows: usize,
) -> Result<(), LossError> {
    for (field, found) in [("masks", masks.len()), ("rollout_ids", rollout_ids.len())] {
        if found != advantages.len() {
            return Err(LossError::Rows { field, found, rows: advantages.len() });
        }
    }
    if num_trained_rows == 0 {
        return Err(LossError::Setting { name: "num_trained_rows", rule: "positive", value: 0.0 });
    }
    for (row, (advantages, mask)) in advantages.iter().zip(masks).enumerate() {
        check_length(row, "advantages", advantages.len(), mask.len())?;
    }
    let mut tokens: HashMap<&str, usize> = HashMap::new();
    for (mask, rollout_id) in masks.iter().zip(rollout_ids) {
        *tokens.entry(rollout_id).or_default() += mask.iter().filter(|trained| **trained).count();
    }
    for (row, rollout_id) in advantages.iter_mut().zip(rollout_ids) {
        let divisor = ((tokens[rollout_id] * num_trained_rows) as f32).max(1.0);
        for advantage in row {
            *advantage /= divisor;
        }
    }
    Ok(())
}
