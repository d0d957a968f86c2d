//! Rollout correction: tokens were sampled by one policy (the server's numerics, an older version) and are trained on with
//! another. Importance weights make up for the difference, and rejection leaves out what differs too much.
//!
//! With log-ratio d = log p_train − log p_rollout of a token. Works on ragged rows; only sampled tokens count.
//!
//! Source: verl `rollout_corr_helper.py`. One difference: where every weight is 0 the effective sample size is 0 here, and
//! an error there.

mod diagnostics;
mod rejection;
mod settings;
mod stats;
mod weights;

pub use settings::{
    Bounds, Correction, CorrectionConfig, CorrectionSettingsError, Criterion, Divergence, ImportanceLevel,
    ImportanceSampling, Scope, Threshold,
};

use std::collections::BTreeMap;

/// Metrics whose names depend on the settings.
pub type CorrectionMetrics = BTreeMap<String, f64>;

/// What correction needs of one row; each slice has one entry per response token.
#[derive(Clone, Copy, Debug)]
pub struct CorrectionRow<'a> {
    /// Log-probabilities under the policy that is trained.
    pub log_probs: &'a [f32],
    /// Log-probabilities when the tokens were sampled.
    pub rollout_log_probs: &'a [f32],
    /// Whether the token was sampled.
    pub mask: &'a [bool],
}

impl CorrectionRow<'_> {
    /// (place, d) of each sampled token.
    fn log_ratios(&self) -> impl Iterator<Item = (usize, f32)> {
        let sampled = self.mask.iter().enumerate().filter(|(_, sampled)| **sampled);
        sampled.map(|(place, _)| (place, self.log_probs[place] - self.rollout_log_probs[place]))
    }

    fn sampled_tokens(&self) -> usize {
        self.mask.iter().filter(|sampled| **sampled).count()
    }
}

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrected {
    /// The weight of each response token, 0 where none was sampled; `None` without importance sampling.
    pub weights: Option<Vec<Vec<f32>>>,
    /// The masks without what was rejected.
    pub masks: Vec<Vec<bool>>,
    /// verl's `rollout_corr/*` metrics.
    pub metrics: CorrectionMetrics,
}

/// Why a batch can't be corrected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorrectionError {
    /// There is nothing to correct.
    #[error("response_mask must contain at least one valid token (1).")]
    NoTokens,
    /// A row's slices are not one per token.
    #[error("row {row}: {field} has {found} numbers for a mask of {tokens} tokens")]
    Shape {
        /// Place of the row.
        row: usize,
        /// Which of its fields.
        field: &'static str,
        /// How many it has.
        found: usize,
        /// How many it should have.
        tokens: usize,
    },
}

/// Weights, rejections and diagnostics of a batch.
///
/// Source: verl `compute_rollout_correction_and_rejection_mask`.
pub fn correct(rows: &[CorrectionRow<'_>], correction: &Correction) -> Result<Corrected, CorrectionError> {
    for (place, row) in rows.iter().enumerate() {
        let tokens = row.mask.len();
        for (field, found) in [("log_probs", row.log_probs.len()), ("rollout_log_probs", row.rollout_log_probs.len())] {
            if found != tokens {
                return Err(CorrectionError::Shape { row: place, field, found, tokens });
            }
        }
    }
    if rows.iter().all(|row| row.sampled_tokens() == 0) {
        return Err(CorrectionError::NoTokens);
    }
    let mut metrics = Named::default();
    let weights =
        correction.importance_sampling.map(|sampling| weights::importance_weights(rows, &sampling, &mut metrics));
    let masks = if correction.rejection.is_empty() {
        rows.iter().map(|row| row.mask.to_vec()).collect()
    } else {
        rejection::reject(rows, &correction.rejection, &mut metrics)
    };
    diagnostics::diagnose(rows, &mut metrics);
    Ok(Corrected { weights, masks, metrics: metrics.0 })
}

/// Metrics under `rollout_corr/`.
#[derive(Default)]
struct Named(CorrectionMetrics);

impl Named {
    fn put(&mut self, name: &str, value: f64) {
        self.0.insert(format!("rollout_corr/{name}"), value);
    }
}
