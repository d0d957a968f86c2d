//! Losses that are a sum over tokens: one driver that weighs, adds up and counts.

use super::{LossRow, PolicyLoss};

/// One trained token.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// Place of its row.
    pub(super) row: usize,
    /// Place in its row.
    pub(super) place: usize,
    /// Log-probability under the present policy.
    pub(super) log_prob: f32,
    /// Log-probability under the old policy.
    pub(super) old_log_prob: f32,
    /// The advantage.
    pub(super) advantage: f32,
}

/// Most losses keep log ρ within ±this, so that ρ stays finite.
const MAX_LOG_RATIO: f32 = 20.0;

impl Token {
    /// log ρ = log p − log `p_old`.
    pub(super) fn log_ratio(self) -> f32 {
        self.log_prob - self.old_log_prob
    }

    /// log ρ within ±20.
    pub(super) fn clamped_log_ratio(self) -> f32 {
        self.log_ratio().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    }

    /// d clamped log ρ / d log p: 0 where it was clamped.
    pub(super) fn d_clamped_log_ratio(self) -> f32 {
        if self.log_ratio().abs() <= MAX_LOG_RATIO { 1.0 } else { 0.0 }
    }
}

/// The loss of one token before weights.
#[derive(Clone, Copy, Default)]
pub(super) struct TokenLoss {
    pub(super) loss: f32,
    pub(super) d_log_prob: f32,
    /// What the metric `ppo_kl` is the mean of.
    pub(super) kl: f32,
    /// Its gradient is cut off, or its ratio was clipped.
    pub(super) clipped: bool,
    /// It is at the bound of dual clip.
    pub(super) clipped_lower: bool,
}

/// Σ over rows of weight · Σ over trained tokens of loss · importance weight.
///
/// Sums are in double precision: rows may have tens of thousands of tokens.
pub(super) fn sum_over_tokens(
    rows: &[LossRow<'_>],
    row_weights: &[f32],
    mut token_loss: impl FnMut(Token) -> TokenLoss,
) -> PolicyLoss {
    let mut d_log_probs: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.mask.len()]).collect();
    let mut metrics = TokenMetrics::default();
    let mut row_losses = vec![0.0_f64; rows.len()];
    for token in trained_tokens(rows) {
        let importance = importance(&rows[token.row], token.place);
        let of_token = token_loss(token);
        row_losses[token.row] += f64::from(of_token.loss * importance);
        d_log_probs[token.row][token.place] = of_token.d_log_prob * importance * row_weights[token.row];
        metrics.count(of_token);
    }
    // The mean over no token at all is 0 · ∞: NaN, as in verl, with a gradient of 0.
    let loss: f64 = row_losses.iter().zip(row_weights).map(|(loss, weight)| loss * f64::from(*weight)).sum();
    PolicyLoss { loss: loss as f32, d_log_probs, tokens: metrics.tokens, metrics: metrics.means() }
}

/// Every token that is trained on, row by row.
pub(super) fn trained_tokens<'a>(rows: &'a [LossRow<'a>]) -> impl Iterator<Item = Token> + 'a {
    rows.iter().enumerate().flat_map(|(row, slices)| {
        let trained = slices.mask.iter().enumerate().filter(|(_, trained)| **trained);
        trained.map(move |(place, _)| Token {
            row,
            place,
            log_prob: slices.log_probs[place],
            old_log_prob: slices.old_log_probs[place],
            advantage: slices.advantages[place],
        })
    })
}

fn importance(row: &LossRow<'_>, place: usize) -> f32 {
    row.rollout_is_weights.map_or(1.0, |weights| weights[place])
}

/// Sums of what is told of each token.
#[derive(Default)]
pub(super) struct TokenMetrics {
    kl: f64,
    clipped: usize,
    clipped_lower: usize,
    pub(super) tokens: usize,
}

impl TokenMetrics {
    pub(super) fn count(&mut self, token: TokenLoss) {
        self.kl += f64::from(token.kl);
        self.clipped += usize::from(token.clipped);
        self.clipped_lower += usize::from(token.clipped_lower);
        self.tokens += 1;
    }

    /// verl's `masked_mean`s: 0 for no token, since it adds 1e-8 to the count (in single precision, where that changes
    /// nothing else).
    pub(super) fn means(&self) -> crate::metrics::Metrics {
        let count = f64::from(self.tokens as f32 + 1e-8);
        [
            ("actor/ppo_kl", self.kl / count),
            ("actor/pg_clipfrac", self.clipped as f64 / count),
            ("actor/pg_clipfrac_lower", self.clipped_lower as f64 / count),
        ]
        .into()
    }
}
