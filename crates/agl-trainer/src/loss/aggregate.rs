//! How the losses of tokens become one number.

use serde::{Deserialize, Serialize};

use super::{LossError, check_length};

/// How token losses become one number (verl: `loss_agg_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossAggregation {
    /// Mean over all tokens.
    #[default]
    TokenMean,
    /// Sum over the tokens of a row, mean over rows.
    SeqMeanTokenSum,
    /// The same, divided by a constant length: Dr. GRPO.
    SeqMeanTokenSumNorm {
        /// The constant. verl takes the padded response length when none is set.
        horizon: usize,
    },
    /// Mean over the tokens of a row, mean over rows.
    SeqMeanTokenMean,
}

/// The batch that rows are part of, where they are not all of it (verl: `global_batch_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalBatch {
    /// Workers whose gradients are averaged: the loss is scaled up to make up for that.
    pub dp_size: usize,
    /// Trained tokens of the whole batch; those of the rows given when absent.
    pub tokens: Option<usize>,
    /// Rows of the whole batch; those given that have a trained token when absent.
    pub rows: Option<usize>,
}

impl Default for GlobalBatch {
    fn default() -> Self {
        Self { dp_size: 1, tokens: None, rows: None }
    }
}

impl LossAggregation {
    /// How much each trained token of a row counts: every mode is Σ over rows of weight · Σ over tokens of loss.
    pub(super) fn row_weights(self, masks: &[&[bool]], batch: &GlobalBatch) -> Result<Vec<f32>, LossError> {
        let trained: Vec<usize> = masks.iter().map(|mask| mask.iter().filter(|trained| **trained).count()).collect();
        let known = |global: Option<usize>, local: usize, field| match global {
            Some(count) => Ok(count as f32),
            None if batch.dp_size > 1 => Err(LossError::GlobalBatch { field }),
            None => Ok(local as f32),
        };
        let dp_size = batch.dp_size as f32;
        if self == Self::TokenMean {
            let tokens = known(batch.tokens, trained.iter().sum(), "tokens")?;
            return Ok(vec![dp_size / tokens; masks.len()]);
        }
        if self == (Self::SeqMeanTokenSumNorm { horizon: 0 }) {
            return Err(LossError::Setting { name: "horizon", rule: "at least 1", value: 0.0 });
        }
        let rows = known(batch.rows, trained.iter().filter(|tokens| **tokens > 0).count(), "rows")?;
        let per_row = dp_size / rows;
        Ok(match self {
            Self::TokenMean | Self::SeqMeanTokenSum => vec![per_row; masks.len()],
            Self::SeqMeanTokenSumNorm { horizon } => vec![per_row / horizon as f32; masks.len()],
            Self::SeqMeanTokenMean => trained.iter().map(|tokens| per_row / (*tokens as f32 + 1e-8)).collect(),
        })
    }
}

/// The losses of tokens as one number: NaN when there is none to average over.
///
/// Source: verl `agg_loss`.
pub fn aggregate_loss(
    losses: &[&[f32]],
    masks: &[&[bool]],
    aggregation: LossAggregation,
    batch: &GlobalBatch,
) -> Result<f32, LossError> {
    if losses.len() != masks.len() {
        return Err(LossError::Rows { field: "losses", found: losses.len(), rows: masks.len() });
    }
    let weights = aggregation.row_weights(masks, batch)?;
    let mut total = 0.0_f64;
    for (row, ((losses, mask), weight)) in losses.iter().zip(masks).zip(weights).enumerate() {
        check_length(row, "losses", losses.len(), mask.len())?;
        let trained = losses.iter().zip(*mask).filter(|(_, trained)| **trained);
        total += trained.map(|(loss, _)| f64::from(*loss)).sum::<f64>() * f64::from(weight);
    }
    Ok(total as f32)
}
