//! Losses that bend instead of clip, or clip a whole row.

use super::token::{Token, TokenLoss, TokenMetrics, sum_over_tokens, trained_tokens};
use super::{LossRow, LossSettings, PolicyLoss};

/// SAPO: −A·(4/τ)·σ(τ·(ρ − 1)), where τ is `tau_pos` for A > 0 and `tau_neg` otherwise.
///
/// Sources: <https://arxiv.org/abs/2511.20347>; verl `compute_policy_loss_sapo`.
pub(super) fn sapo(rows: &[LossRow<'_>], row_weights: &[f32], tau_pos: f32, tau_neg: f32) -> PolicyLoss {
    sum_over_tokens(rows, row_weights, |token| {
        let log_ratio = token.clamped_log_ratio();
        let ratio = log_ratio.exp();
        let tau = if token.advantage > 0.0 { tau_pos } else { tau_neg };
        let gate = 1.0 / (1.0 + (-tau * (ratio - 1.0)).exp());
        TokenLoss {
            loss: -gate * (4.0 / tau) * token.advantage,
            d_log_prob: -4.0 * gate * (1.0 - gate) * ratio * token.advantage * token.d_clamped_log_ratio(),
            kl: -log_ratio,
            ..TokenLoss::default()
        }
    })
}

/// GMPO: mean over rows of −Ā·exp(mean over its tokens of clipped log ρ), Ā the mean advantage. log ρ is clipped to
/// [−ε_low, ε_high], only in the direction in which the advantage pushes. Importance weights count with their geometric
/// mean. Rows without a trained token count in the mean over rows.
///
/// Sources: <https://arxiv.org/abs/2507.20673>; verl `compute_policy_loss_geo_mean`.
pub(super) fn geo_mean(rows: &[LossRow<'_>], settings: &LossSettings) -> PolicyLoss {
    let mut metrics = TokenMetrics::default();
    let mut sums = vec![RowSums::default(); rows.len()];
    for token in trained_tokens(rows) {
        let clipped = is_clipped(token, settings);
        metrics.count(TokenLoss {
            kl: -token.log_ratio(),
            clipped: clipped && token.advantage > 0.0,
            clipped_lower: clipped && token.advantage < 0.0,
            ..TokenLoss::default()
        });
        let weights = rows[token.row].rollout_is_weights;
        sums[token.row].add(token, weights.map_or(1.0, |weights| weights[token.place]), settings);
    }
    let count = rows.len() as f32;
    let losses: Vec<f32> = sums.iter().map(RowSums::loss).collect();
    let mut d_log_probs: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.mask.len()]).collect();
    for token in trained_tokens(rows).filter(|token| follows_ratio(*token, settings)) {
        d_log_probs[token.row][token.place] = losses[token.row] / (count * (sums[token.row].tokens as f32 + 1e-8));
    }
    let loss = losses.iter().copied().map(f64::from).sum::<f64>() / f64::from(count);
    PolicyLoss { loss: loss as f32, d_log_probs, tokens: metrics.tokens, metrics: metrics.means() }
}

/// Sums over the trained tokens of one row.
#[derive(Clone, Copy, Default)]
struct RowSums {
    log_ratio: f64,
    advantage: f64,
    log_weight: f64,
    tokens: usize,
}

impl RowSums {
    fn add(&mut self, token: Token, weight: f32, settings: &LossSettings) {
        let log_ratio =
            if follows_ratio(token, settings) { token.log_ratio() } else { clip(token.log_ratio(), settings) };
        // An advantage of 0 has no direction: verl multiplies by its sign.
        self.log_ratio += if token.advantage == 0.0 { 0.0 } else { f64::from(log_ratio) };
        self.advantage += f64::from(token.advantage);
        self.log_weight += f64::from((weight + 1e-10).ln());
        self.tokens += 1;
    }

    fn loss(&self) -> f32 {
        let mean = |sum: f64| sum as f32 / (self.tokens as f32 + 1e-8);
        -mean(self.advantage) * mean(self.log_ratio).exp() * mean(self.log_weight).exp()
    }
}

fn clip(log_ratio: f32, settings: &LossSettings) -> f32 {
    log_ratio.clamp(-settings.clip_ratio_low, settings.clip_ratio_high)
}

fn is_clipped(token: Token, settings: &LossSettings) -> bool {
    !(-settings.clip_ratio_low..=settings.clip_ratio_high).contains(&token.log_ratio())
}

/// Whether log ρ itself, and not its clipped value, is the smaller gain.
fn follows_ratio(token: Token, settings: &LossSettings) -> bool {
    let gain = token.advantage * token.log_ratio();
    token.advantage != 0.0 && gain <= token.advantage * clip(token.log_ratio(), settings)
}
