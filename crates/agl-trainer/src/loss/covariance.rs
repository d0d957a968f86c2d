//! Losses that hold back the few tokens whose log-probability goes along most with their advantage, since these are what
//! makes entropy collapse (<https://arxiv.org/abs/2505.22617>).

use std::collections::HashSet;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::ppo::clipped_token;
use super::token::{Token, TokenLoss, sum_over_tokens, trained_tokens};
use super::{LossRow, LossSettings, PolicyLoss};

/// Which tokens Clip-Cov takes out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CovarianceBand {
    pub(super) ratio: f32,
    pub(super) lower: f32,
    pub(super) upper: f32,
    pub(super) seed: u64,
}

/// Clip-Cov: PPO's clipped loss, but 0 for a few tokens (`ratio` of all, at least one) picked at random from those that are
/// not clipped and whose covariance (A − mean A)·(log p − mean log p) lies between `lower` and `upper`.
///
/// Source: verl `compute_policy_loss_clip_cov`, which picks with torch's global generator.
pub(super) fn clip_cov(
    rows: &[LossRow<'_>],
    row_weights: &[f32],
    settings: &LossSettings,
    band: CovarianceBand,
) -> PolicyLoss {
    let tokens: Vec<(Token, f32)> = with_covariance(rows);
    let within = |(token, covariance): &&(Token, f32)| {
        let clipped = clipped_token(token.advantage, token.log_ratio().exp(), settings).clipped;
        !clipped && *covariance < band.upper && *covariance > band.lower
    };
    let mut candidates: Vec<(usize, usize)> =
        tokens.iter().filter(within).map(|(token, _)| (token.row, token.place)).collect();
    candidates.shuffle(&mut ChaCha8Rng::seed_from_u64(band.seed));
    candidates.truncate(share(tokens.len(), band.ratio));
    let taken_out: HashSet<(usize, usize)> = candidates.into_iter().collect();

    let mut loss = sum_over_tokens(rows, row_weights, |token| {
        let is_out = taken_out.contains(&(token.row, token.place));
        let of_token = clipped_token(token.advantage, token.log_ratio().exp(), settings);
        let kept = if is_out { TokenLoss::default() } else { of_token };
        TokenLoss { kl: -token.log_ratio(), clipped: is_out, ..kept }
    });
    loss.metrics.remove("actor/pg_clipfrac_lower");
    loss
}

/// KL-Cov: −A·ρ, plus `coefficient`·|log ρ| for the tokens (`ratio` of all, at least one) of highest covariance.
///
/// Source: verl `compute_policy_loss_kl_cov`.
pub(super) fn kl_cov(rows: &[LossRow<'_>], row_weights: &[f32], ratio: f32, coefficient: f32) -> PolicyLoss {
    let mut tokens: Vec<(Token, f32)> = with_covariance(rows);
    let count = share(tokens.len(), ratio).min(tokens.len());
    tokens.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let held_back: HashSet<(usize, usize)> =
        tokens[..count].iter().map(|(token, _)| (token.row, token.place)).collect();

    let mut loss = sum_over_tokens(rows, row_weights, |token| {
        let log_ratio = token.log_ratio();
        let plain = -token.advantage * log_ratio.exp();
        let penalty = if held_back.contains(&(token.row, token.place)) { coefficient } else { 0.0 };
        TokenLoss {
            loss: plain + penalty * log_ratio.abs(),
            d_log_prob: plain + penalty * sign(log_ratio),
            kl: log_ratio.abs(),
            ..TokenLoss::default()
        }
    });
    loss.metrics.retain(|name, _| *name == "actor/ppo_kl");
    loss
}

/// Trained tokens with (A − mean A)·(log p − mean log p).
fn with_covariance(rows: &[LossRow<'_>]) -> Vec<(Token, f32)> {
    let tokens: Vec<Token> = trained_tokens(rows).collect();
    let mean = |value: fn(&Token) -> f32| {
        let sum: f64 = tokens.iter().map(value).map(f64::from).sum();
        (sum / tokens.len() as f64) as f32
    };
    let (advantage, log_prob) = (mean(|token| token.advantage), mean(|token| token.log_prob));
    tokens.iter().map(|token| (*token, (token.advantage - advantage) * (token.log_prob - log_prob))).collect()
}

/// That share of `count`, at least 1.
fn share(count: usize, ratio: f32) -> usize {
    ((f64::from(ratio) * count as f64) as usize).max(1)
}

fn sign(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { value.signum() }
}
