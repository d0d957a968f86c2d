//! From logits to the next token and its log-probability.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::kernels::softmax::log_softmax;

/// Below this temperature the likeliest token is taken, as in vLLM: dividing by less would only overflow.
const SMALLEST_TEMPERATURE: f32 = 1e-5;

/// Which distribution reported log-probabilities are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogProbs {
    /// softmax(logits / temperature), before top-p and top-k cut it: what training computes. The default here. At temperature
    /// 0 there is no such distribution, and it is softmax(logits).
    #[default]
    Processed,
    /// softmax(logits), whatever the temperature: vLLM's default.
    Raw,
}

/// How one request samples.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 (or next to it) takes the likeliest token.
    pub temperature: f32,
    /// Only the likeliest tokens whose probabilities add up to this.
    pub top_p: f32,
    /// Only so many of the likeliest tokens; 0: all.
    pub top_k: usize,
    /// Tokens to sample at most.
    pub max_tokens: usize,
    /// Tokens that end the response.
    pub stop_token_ids: Vec<u32>,
    /// Alternatives reported at each place.
    pub top_log_probs: usize,
    /// The same seed, prompt and weights give the same tokens, whatever else is in the batch.
    pub seed: u64,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Its log-probability, of the distribution that [`LogProbs`] names.
    pub log_prob: f32,
    /// The likeliest tokens at this place, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// The model gave numbers that no distribution can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's logits are not finite numbers: its weights are damaged, most likely by a diverged update")]
pub struct NotFinite;

/// Samples the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    reported: LogProbs,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// A sampler at the start of its random sequence.
    pub fn new(params: SamplingParams, reported: LogProbs) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(params.seed);
        Self { params, reported, rng }
    }

    /// What it samples by.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The next token given the logits of its place.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, NotFinite> {
        let greedy = self.params.temperature < SMALLEST_TEMPERATURE;
        let mut log_probs = logits.to_vec();
        log_softmax(&mut log_probs, if greedy { 1.0 } else { self.params.temperature });
        if !log_probs.iter().any(|log_prob| log_prob.is_finite()) || log_probs.iter().any(|p| p.is_nan()) {
            return Err(NotFinite);
        }
        let token = if greedy { argmax(&log_probs) } else { self.draw(&log_probs) };
        if self.reported == LogProbs::Raw && !greedy {
            log_probs.copy_from_slice(logits);
            log_softmax(&mut log_probs, 1.0);
        }
        let top = likeliest(&log_probs, self.params.top_log_probs);
        Ok(Sampled { token, log_prob: log_probs[token as usize], top })
    }

    /// Inverse transform sampling over the tokens that top-k and top-p leave.
    fn draw(&mut self, log_probs: &[f32]) -> u32 {
        let uniform: f64 = self.rng.random();
        let (top_k, top_p) = (self.params.top_k, self.params.top_p);
        let cut = (top_k > 0 && top_k < log_probs.len()) || top_p < 1.0;
        let candidates = if cut { nucleus(log_probs, top_k, top_p) } else { (0..log_probs.len() as u32).collect() };
        let mass: f64 = candidates.iter().map(|token| f64::from(log_probs[*token as usize]).exp()).sum();
        let mut left = uniform * mass;
        for token in &candidates {
            left -= f64::from(log_probs[*token as usize]).exp();
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a sliver beyond the last.
        candidates.last().copied().unwrap_or_else(|| argmax(log_probs))
    }
}

/// The `top_k` likeliest tokens (0: all), cut where their probabilities reach `top_p`; at least one.
fn nucleus(log_probs: &[f32], top_k: usize, top_p: f32) -> Vec<u32> {
    let limit = if top_k == 0 { log_probs.len() } else { top_k };
    let mut kept: Vec<u32> = likeliest(log_probs, limit).into_iter().map(|(token, _)| token).collect();
    let mut mass = 0.0;
    let reach = kept.iter().position(|token| {
        mass += f64::from(log_probs[*token as usize]).exp();
        mass >= f64::from(top_p)
    });
    kept.truncate(reach.map_or(kept.len(), |place| place + 1));
    kept
}

fn likeliest(log_probs: &[f32], count: usize) -> Vec<(u32, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let mut order: Vec<u32> = (0..log_probs.len() as u32).collect();
    let descending = |a: &u32, b: &u32| log_probs[*b as usize].total_cmp(&log_probs[*a as usize]).then(a.cmp(b));
    if count < order.len() {
        order.select_nth_unstable_by(count - 1, descending);
        order.truncate(count);
    }
    order.sort_unstable_by(descending);
    order.into_iter().map(|token| (token, log_probs[token as usize])).collect()
}

fn argmax(log_probs: &[f32]) -> u32 {
    likeliest(log_probs, 1).first().map_or(0, |(token, _)| *token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            max_tokens: 10,
            stop_token_ids: vec![],
            top_log_probs: 0,
            seed: 7,
        }
    }

    fn frequencies(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
        const DRAWS: usize = 20_000;
        let mut sampler = Sampler::new(params.clone(), LogProbs::Processed);
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..DRAWS {
            counts[sampler.sample(logits).unwrap().token as usize] += 1;
        }
        counts.into_iter().map(|count| count as f64 / DRAWS as f64).collect()
    }

    #[test]
    fn tokens_come_as_often_as_their_probability_says() {
        let logits = [1.0, 0.0, -1.0, 2.0];
        for temperature in [0.5_f32, 1.0, 2.0] {
            let found = frequencies(&SamplingParams { temperature, ..params() }, &logits);
            let mut expected = logits.to_vec();
            log_softmax(&mut expected, temperature);
            for (found, log_prob) in found.iter().zip(expected) {
                assert!((found - f64::from(log_prob.exp())).abs() < 0.015, "{temperature}: {found} {}", log_prob.exp());
            }
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let top_k = frequencies(&SamplingParams { top_k: 2, ..params() }, &logits);
        assert!(top_k[2] == 0.0 && top_k[3] == 0.0 && top_k[1] > 0.0);
        let top_p = frequencies(&SamplingParams { top_p: 0.1, ..params() }, &logits);
        assert_eq!(top_p, [1.0, 0.0, 0.0, 0.0], "at least one token is left");
    }

    #[test]
    fn the_reported_log_prob_is_of_the_named_distribution() {
        let logits = [1.0, 0.0];
        let sample = |temperature: f32, reported| {
            let sampled = Sampler::new(SamplingParams { temperature, ..params() }, reported).sample(&logits).unwrap();
            (sampled.token, sampled.log_prob)
        };
        let of = |token: u32, temperature: f32| {
            let mut row = logits;
            log_softmax(&mut row, temperature);
            row[token as usize]
        };
        let (token, log_prob) = sample(0.5, LogProbs::Processed);
        assert!((log_prob - of(token, 0.5)).abs() < 1e-6);
        let (token, log_prob) = sample(0.5, LogProbs::Raw);
        assert!((log_prob - of(token, 1.0)).abs() < 1e-6);
        for nothing in [0.0, 1e-30] {
            let (token, log_prob) = sample(nothing, LogProbs::Processed);
            assert_eq!(token, 0, "temperature {nothing} is greedy");
            assert!((log_prob - of(token, 1.0)).abs() < 1e-6, "and its log-probabilities are raw");
        }
    }

    #[test]
    fn alternatives_come_likeliest_first() {
        let sampled = Sampler::new(SamplingParams { top_log_probs: 2, ..params() }, LogProbs::Processed)
            .sample(&[0.0, 2.0, 1.0])
            .unwrap();
        assert_eq!(sampled.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        let mut sampler = Sampler::new(params(), LogProbs::Processed);
        assert_eq!(sampler.sample(&[f32::NAN, 0.0]), Err(NotFinite));
        assert_eq!(sampler.sample(&[f32::INFINITY, 0.0]), Err(NotFinite));
        assert!(sampler.sample(&[f32::NEG_INFINITY, 0.0]).is_ok(), "a masked token is fine");
    }
}
