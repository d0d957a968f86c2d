//! From logits to log-probabilities, and the derivative of a chosen token's log-probability.

use super::exp::exp;
use super::rows::{for_each_row, max, sum_of};

/// Turns a row of logits into log-probabilities of `softmax(logits / temperature)`, in place.
pub fn log_softmax(logits: &mut [f32], temperature: f32) {
    let inverse = 1.0 / temperature;
    let top = max(logits);
    for z in logits.iter_mut() {
        *z = (*z - top) * inverse;
    }
    let log_sum = sum_of(logits, exp).ln();
    for z in logits.iter_mut() {
        *z -= log_sum;
    }
}

/// Entropy in nats of a row of log-probabilities.
pub fn entropy(log_probs: &[f32]) -> f32 {
    -sum_of(log_probs, |z| exp(z) * z)
}

/// [`log_softmax`] of each row of `[rows, vocab]`.
pub(crate) fn log_softmax_rows(logits: &mut [f32], vocab: usize, temperature: f32) {
    for_each_row(logits, vocab, |_, row| log_softmax(row, temperature));
}

/// Turns rows of log-probabilities into gradients with respect to the logits, in place.
///
/// `targets[i]` is the token chosen in row `i` and `d_log_probs[i]` the derivative of the loss with respect to its
/// log-probability; d log p(target) / d logit(j) = ([j = target] - p(j)) / temperature.
pub(crate) fn chosen_log_prob_backward(
    log_probs: &mut [f32],
    vocab: usize,
    temperature: f32,
    targets: &[u32],
    d_log_probs: &[f32],
) {
    for_each_row(log_probs, vocab, |index, row| {
        let d = d_log_probs[index] / temperature;
        if d == 0.0 {
            row.fill(0.0);
            return;
        }
        for z in row.iter_mut() {
            *z = -d * exp(*z);
        }
        row[targets[index] as usize] += d;
    });
}

/// Turns attention scores into weights, in place: `softmax(scale · scores)`. Returns the log of the sum of exponentials.
pub(crate) fn softmax_scaled(scores: &mut [f32], scale: f32) -> f32 {
    let top = max(scores) * scale;
    for s in scores.iter_mut() {
        *s = exp(*s * scale - top);
    }
    let total = sum_of(scores, |s| s);
    let inverse = 1.0 / total;
    for s in scores.iter_mut() {
        *s *= inverse;
    }
    top + total.ln()
}

/// [`softmax_scaled`] again, from the log of the sum that it returned.
pub(crate) fn softmax_from_log_sum(scores: &mut [f32], scale: f32, log_sum: f32) {
    for s in scores.iter_mut() {
        *s = exp(*s * scale - log_sum);
    }
}

/// Derivative of [`softmax_scaled`], in place of `d_weights`; `delta` is `Σ weights · d_weights`.
pub(crate) fn softmax_scaled_backward(d_weights: &mut [f32], weights: &[f32], delta: f32, scale: f32) {
    for (d, w) in d_weights.iter_mut().zip(weights) {
        *d = w * (*d - delta) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_and_entropy_agree_with_the_definition() {
        let logits: Vec<f32> = (0..37).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        for temperature in [0.5f32, 1.0, 2.0] {
            let mut row = logits.clone();
            log_softmax(&mut row, temperature);
            let scaled: Vec<f64> = logits.iter().map(|z| f64::from(*z) / f64::from(temperature)).collect();
            let log_sum = scaled.iter().map(|z| z.exp()).sum::<f64>().ln();
            let expected: f64 = scaled.iter().map(|z| -(z - log_sum).exp() * (z - log_sum)).sum();
            for (got, z) in row.iter().zip(&scaled) {
                assert!((f64::from(*got) - (z - log_sum)).abs() < 1e-5);
            }
            assert!((f64::from(entropy(&row)) - expected).abs() < 1e-5, "entropy at {temperature}");
        }
    }

    #[test]
    fn huge_logits_stay_finite() {
        let mut row = vec![1e30, 0.0, -1e30];
        log_softmax(&mut row, 1.0);
        assert_eq!(row[0].to_bits(), 0.0f32.to_bits());
        assert!(row.iter().all(|z| z.is_finite()));
    }
}
