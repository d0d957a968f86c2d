//! One update of the policy: rows, advantages, then mini-batches through forward, loss, backward and the optimiser.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

use super::collect::Collected;
use crate::advantage::{AdvantageError, AdvantageRow, AdvantageSettings, Estimator, compute_by_rollout};
use crate::loss::{
    GlobalBatch, LossAggregation, LossError, LossMode, LossRow, LossSettings, normalize_advantages_by_rollout,
    policy_loss,
};
use crate::policy::{LossGradient, Policy, Scores, Sequence};
use crate::precision::Precision;
use crate::rows::{Aggregated, Aggregation, Row, aggregate};
use crate::settings::{OnMissingReward, TrainerSettings};

/// Why the policy could not be updated. It is as it was before the step, or, if the engine failed between two mini-batches,
/// as the last whole one left it.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The rollouts gave no row.
    #[error("step {step} has no row to train on: {reasons}")]
    NoRows {
        /// Training step, from 1.
        step: usize,
        /// Refusals, counted by reason.
        reasons: String,
    },
    /// Rewards could not become advantages.
    #[error(transparent)]
    Advantage(#[from] AdvantageError),
    /// Advantages could not become a loss.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// The engine failed.
    #[error("policy: {0}")]
    Policy(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A row with all that the loss needs of it.
struct TrainRow {
    row: Row,
    /// Normalised so that the sum over all tokens is the mean over rollouts.
    advantages: Vec<f32>,
    old_log_probs: Vec<f32>,
}

impl TrainRow {
    fn sequence(&self) -> Sequence {
        let tokens = self.row.token_ids();
        Sequence { scored: self.row.prompt_ids.len()..tokens.len(), tokens }
    }

    fn length(&self) -> usize {
        self.row.prompt_ids.len() + self.row.response_ids.len()
    }
}

/// Updates `policy` once with what was collected; returns the metrics of the update. `progress` hears of rows done.
pub(super) fn update<P: Policy>(
    policy: &mut P,
    collected: &Collected,
    settings: &TrainerSettings,
    step: usize,
    mut progress: impl FnMut(usize, usize),
) -> Result<Map<String, Value>, UpdateError> {
    let mut metrics = Map::new();
    let aggregated = aggregate(&collected.rollouts, &aggregation(settings));
    put_all(&mut metrics, aggregated.metrics(settings.trace_aggregator.level));
    put_all(&mut metrics, aggregated.refusal_metrics());

    let mut rows = train_rows(aggregated, settings, step, &mut metrics)?;
    // PPO's gradient is proportional to the advantage: a group whose rewards are all equal has none, and costs nothing.
    rows.retain(|row| row.advantages.iter().any(|advantage| *advantage != 0.0));
    metrics.insert("training/n_rows_with_signal".into(), rows.len().into());
    fill_old_log_probs(policy, &mut rows, settings, &mut metrics)?;

    let mut tally = Tally::default();
    let total = rows.len() * settings.actor.epochs;
    let mut done = 0;
    for epoch in 0..settings.actor.epochs {
        shuffle(&mut rows, settings.seed, step, epoch);
        for mini_batch in rows.chunks(settings.actor.mini_batch_rows.unwrap_or(rows.len()).max(1)) {
            tally.weights_are_those_sampled_from = epoch == 0 && done < mini_batch.len();
            for micro_batch in micro_batches(mini_batch, settings.actor.micro_batch_tokens) {
                accumulate(policy, micro_batch, settings, &mut tally)?;
                done += micro_batch.len();
                progress(done, total);
            }
            let rate = learning_rate(settings, step);
            let report = policy
                .step(rate as f32, settings.actor.max_grad_norm as f32)
                .map_err(|e| UpdateError::Policy(Box::new(e)))?;
            tally.grad_norms.push(f64::from(report.grad_norm));
            tally.skipped_steps += usize::from(!report.applied);
        }
    }
    metrics.insert("actor/lr".into(), learning_rate(settings, step).into());
    tally.into_metrics(&mut metrics);
    Ok(metrics)
}

fn aggregation(settings: &TrainerSettings) -> Aggregation {
    Aggregation {
        missing_reward: match settings.on_missing_reward {
            OnMissingReward::Fill => Some(settings.reward_fill_value),
            OnMissingReward::Drop | OnMissingReward::Error => None,
        },
        on_failed: settings.on_failed,
        ..Aggregation::new(&settings.trace_aggregator)
    }
}

/// Rows with their advantages: computed a rollout, given to its rows, and normalised over all rows that are trained on.
fn train_rows(
    aggregated: Aggregated,
    settings: &TrainerSettings,
    step: usize,
    metrics: &mut Map<String, Value>,
) -> Result<Vec<TrainRow>, UpdateError> {
    let collected = aggregated.rows.len();
    let rows: Vec<Row> = aggregated.rows.into_iter().filter(|row| !row.is_drop).collect();
    metrics.insert("training/n_sample_collected".into(), collected.into());
    metrics.insert("training/n_sample_dropped/marked".into(), (collected - rows.len()).into());
    metrics.insert("training/n_sample_trained".into(), rows.len().into());
    metrics.insert("training/n_rows".into(), rows.len().into());
    if rows.is_empty() {
        let refusals = aggregated.refusals.iter().take(3);
        let reasons: Vec<String> =
            refusals.map(|refused| format!("rollout {}: {}", refused.rollout_id, refused.reason)).collect();
        return Err(UpdateError::NoRows { step: step + 1, reasons: reasons.join("; ") });
    }
    let rewards: Vec<Vec<f32>> = rows.iter().map(|row| row.token_level_rewards(Precision::F32)).collect();
    let views: Vec<AdvantageRow<'_>> =
        rows.iter().zip(&rewards).map(|(row, rewards)| AdvantageRow::of(row, rewards)).collect();
    let advantage_settings = AdvantageSettings {
        norm_adv_by_std_in_grpo: settings.algorithm.norm_adv_by_std_in_grpo,
        ..AdvantageSettings::default()
    };
    let (advantages, stats) = compute_by_rollout(Estimator::Grpo, &views, &advantage_settings)?;
    put_all(metrics, stats.metrics());

    let mut advantages = advantages.advantages;
    let masks: Vec<&[bool]> = rows.iter().map(|row| row.response_mask.as_slice()).collect();
    let rollout_ids: Vec<&str> = rows.iter().map(|row| row.rollout_id.as_str()).collect();
    normalize_advantages_by_rollout(&mut advantages, &masks, &rollout_ids, rows.len())?;
    Ok(rows
        .into_iter()
        .zip(advantages)
        .map(|(row, advantages)| TrainRow { row, advantages, old_log_probs: Vec::new() })
        .collect())
}

/// The log-probabilities that ratios are taken against: those recorded when the tokens were sampled. Rows without are scored
/// under the present weights, as verl does for all, and counted.
fn fill_old_log_probs<P: Policy>(
    policy: &mut P,
    rows: &mut [TrainRow],
    settings: &TrainerSettings,
    metrics: &mut Map<String, Value>,
) -> Result<(), UpdateError> {
    let mut rescored = 0usize;
    for train_row in rows {
        train_row.old_log_probs = if let Some(recorded) = train_row.row.rollout_log_probs.take() {
            recorded
        } else {
            rescored += 1;
            let scores = policy
                .score(&[train_row.sequence()], settings.train_temperature as f32)
                .map_err(|e| UpdateError::Policy(Box::new(e)))?;
            scores.into_iter().next().unwrap_or_default().log_probs
        };
    }
    metrics.insert("training/n_rows_without_log_probs".into(), rescored.into());
    Ok(())
}

/// Forward, loss and backward of some rows.
fn accumulate<P: Policy>(
    policy: &mut P,
    rows: &[TrainRow],
    settings: &TrainerSettings,
    tally: &mut Tally,
) -> Result<(), UpdateError> {
    let sequences: Vec<Sequence> = rows.iter().map(TrainRow::sequence).collect();
    let loss_settings = LossSettings {
        mode: LossMode::PerRolloutMean,
        aggregation: LossAggregation::default(),
        clip_ratio_low: settings.actor.clip_ratio_low as f32,
        clip_ratio_high: settings.actor.clip_ratio_high as f32,
        clip_ratio_c: settings.actor.clip_ratio_c as f32,
        global_batch: GlobalBatch::default(),
    };
    let mut failure = None;
    policy
        .accumulate(&sequences, settings.train_temperature as f32, &mut |scores| {
            let views: Vec<LossRow<'_>> = rows.iter().zip(scores).map(|(row, scores)| loss_row(row, scores)).collect();
            match policy_loss(&views, &loss_settings) {
                Ok(loss) => {
                    tally.count(rows, scores, &loss);
                    LossGradient { loss: loss.loss, d_log_probs: loss.d_log_probs }
                }
                Err(error) => {
                    failure = Some(error);
                    let zeros = scores.iter().map(|scores| vec![0.0; scores.log_probs.len()]).collect();
                    LossGradient { loss: 0.0, d_log_probs: zeros }
                }
            }
        })
        .map_err(|e| UpdateError::Policy(Box::new(e)))?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

fn loss_row<'a>(row: &'a TrainRow, scores: &'a Scores) -> LossRow<'a> {
    LossRow {
        old_log_probs: &row.old_log_probs,
        log_probs: &scores.log_probs,
        advantages: &row.advantages,
        mask: &row.row.response_mask,
        rollout_is_weights: None,
    }
}

/// Cuts a mini-batch into runs of rows of at most `tokens` tokens; a single longer row is a run of its own.
fn micro_batches(rows: &[TrainRow], tokens: usize) -> impl Iterator<Item = &[TrainRow]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fits = rest
            .iter()
            .take_while(|row| {
                sum += row.length();
                sum <= tokens
            })
            .count();
        let (batch, after) = rest.split_at(fits.max(1).min(rest.len()));
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

fn shuffle(rows: &mut [TrainRow], seed: u64, step: usize, epoch: usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(((step as u64) << 16) | epoch as u64);
    rows.shuffle(&mut rng);
}

/// Rises from 0 over the warm-up, then stays.
fn learning_rate(settings: &TrainerSettings, step: usize) -> f64 {
    let warmup = settings.actor.warmup_steps;
    let rising = if warmup == 0 { 1.0 } else { ((step + 1) as f64 / warmup as f64).min(1.0) };
    settings.actor.learning_rate * rising
}

fn put_all(metrics: &mut Map<String, Value>, more: crate::metrics::Metrics) {
    metrics.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
}

/// What an update adds up over its micro-batches.
#[derive(Default)]
struct Tally {
    loss: f64,
    tokens: usize,
    entropy: f64,
    /// Sums of verl's `actor/*` means, each weighted with its tokens.
    weighted: crate::metrics::Metrics,
    grad_norms: Vec<f64>,
    skipped_steps: usize,
    /// Before the first optimiser step the policy is the one that sampled: log-probabilities must agree.
    weights_are_those_sampled_from: bool,
    largest_difference: f32,
}

impl Tally {
    fn count(&mut self, rows: &[TrainRow], scores: &[Scores], loss: &crate::loss::PolicyLoss) {
        self.loss += f64::from(loss.loss);
        self.tokens += loss.tokens;
        for (name, mean) in &loss.metrics {
            *self.weighted.entry(name).or_default() += mean * loss.tokens as f64;
        }
        for (row, scores) in rows.iter().zip(scores) {
            for (place, _) in row.row.response_mask.iter().enumerate().filter(|(_, trained)| **trained) {
                self.entropy += f64::from(scores.entropy[place]);
                if self.weights_are_those_sampled_from {
                    let difference = (scores.log_probs[place] - row.old_log_probs[place]).abs();
                    self.largest_difference = self.largest_difference.max(difference);
                }
            }
        }
    }

    fn into_metrics(self, metrics: &mut Map<String, Value>) {
        let tokens = self.tokens.max(1) as f64;
        let mut put = |name: &str, value: f64| metrics.insert(name.to_owned(), value.into());
        put("actor/pg_loss", self.loss);
        put("actor/entropy", self.entropy / tokens);
        for (name, sum) in &self.weighted {
            put(name, sum / tokens);
        }
        put("actor/grad_norm", self.grad_norms.iter().sum::<f64>() / self.grad_norms.len().max(1) as f64);
        put("actor/n_skipped_updates", self.skipped_steps as f64);
        put("training/n_tokens_trained", self.tokens as f64);
        put("training/rollout_log_prob_diff_max", f64::from(self.largest_difference));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::StepReport;
    use crate::rollout::{CompletedRollout, Triplet};
    use agl_protocol::RolloutState;

    fn train_row(prompt: usize, response: usize) -> TrainRow {
        TrainRow {
            row: Row {
                rollout_id: "r".into(),
                data_id: "d".into(),
                turn_index: 0,
                prompt_ids: vec![1; prompt],
                response_ids: vec![2; response],
                response_mask: vec![true; response],
                rollout_log_probs: None,
                reward: 1.0,
                is_drop: false,
            },
            advantages: vec![1.0; response],
            old_log_probs: vec![-1.0; response],
        }
    }

    #[test]
    fn micro_batches_hold_every_row_once_and_respect_the_limit() {
        let rows: Vec<TrainRow> = [3, 5, 20, 1, 1, 9].iter().map(|length| train_row(1, length - 1 + 1)).collect();
        let sizes: Vec<usize> = micro_batches(&rows, 10).map(<[TrainRow]>::len).collect();
        assert_eq!(sizes, [2, 1, 2, 1], "4+6 | 21 alone | 2+2 | 10");
        assert_eq!(micro_batches(&[], 10).count(), 0);
    }

    #[test]
    fn the_learning_rate_rises_over_the_warm_up() {
        let mut settings = TrainerSettings::default();
        settings.actor.learning_rate = 1.0;
        assert!((learning_rate(&settings, 0) - 1.0).abs() < 1e-6);
        settings.actor.warmup_steps = 4;
        let rates: Vec<f64> = (0..6).map(|step| learning_rate(&settings, step)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    }

    /// A policy with one logit per token, whatever precedes it: enough to see which way an update goes.
    struct Bandit {
        logits: [f32; 4],
        gradient: [f32; 4],
    }

    impl Bandit {
        fn log_probs(&self, temperature: f32) -> [f32; 4] {
            let scaled = self.logits.map(|logit| logit / temperature);
            let sum: f32 = scaled.iter().map(|logit| logit.exp()).sum();
            scaled.map(|logit| logit - sum.ln())
        }
    }

    impl Policy for Bandit {
        type Error = std::convert::Infallible;

        fn score(&mut self, sequences: &[Sequence], temperature: f32) -> Result<Vec<Scores>, Self::Error> {
            let log_probs = self.log_probs(temperature);
            let score = |sequence: &Sequence| {
                let tokens = &sequence.tokens[sequence.scored.clone()];
                Scores {
                    log_probs: tokens.iter().map(|token| log_probs[*token as usize]).collect(),
                    entropy: vec![-log_probs.iter().map(|p| p * p.exp()).sum::<f32>(); tokens.len()],
                }
            };
            Ok(sequences.iter().map(score).collect())
        }

        fn accumulate(
            &mut self,
            sequences: &[Sequence],
            temperature: f32,
            loss: &mut dyn FnMut(&[Scores]) -> LossGradient,
        ) -> Result<f32, Self::Error> {
            let LossGradient { loss, d_log_probs } = loss(&self.score(sequences, temperature)?);
            let log_probs = self.log_probs(temperature);
            for (sequence, gradients) in sequences.iter().zip(d_log_probs) {
                for (token, gradient) in sequence.tokens[sequence.scored.clone()].iter().zip(gradients) {
                    for (place, log_prob) in log_probs.iter().enumerate() {
                        let indicator = f32::from(place == *token as usize);
                        self.gradient[place] += gradient * (indicator - log_prob.exp()) / temperature;
                    }
                }
            }
            Ok(loss)
        }

        fn step(&mut self, rate: f32, _max_grad_norm: f32) -> Result<StepReport, Self::Error> {
            let gradient = std::mem::take(&mut self.gradient);
            self.logits.iter_mut().zip(gradient).for_each(|(logit, gradient)| *logit -= rate * gradient);
            Ok(StepReport { grad_norm: gradient.iter().map(|g| g * g).sum::<f32>().sqrt(), applied: true })
        }

        fn publish(&mut self, _version: i64) -> Result<(), Self::Error> {
            Ok(())
        }

        fn save(&mut self, _directory: &std::path::Path) -> Result<(), Self::Error> {
            Ok(())
        }

        fn load(&mut self, _directory: &std::path::Path) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    /// Two groups: in the first, token 2 is rewarded and token 1 is not; the second has no difference to learn from.
    fn two_groups() -> Collected {
        let rollout = |rollout_id: &str, data_id: &str, token: u32, reward: f64| CompletedRollout {
            rollout_id: rollout_id.into(),
            data_id: data_id.into(),
            step: 0,
            sample_idx_in_step: 0,
            final_reward: Some(reward),
            triplets: vec![Triplet {
                prompt_ids: vec![0],
                response_ids: vec![token],
                log_probs: Some(vec![-(4.0_f32.ln())]),
            }],
            state: RolloutState::Succeeded,
            error_message: None,
        };
        Collected::of(vec![
            rollout("a", "first", 2, 1.0),
            rollout("b", "first", 1, 0.0),
            rollout("c", "second", 3, 1.0),
            rollout("d", "second", 3, 1.0),
        ])
    }

    #[test]
    fn an_update_raises_what_was_rewarded_and_counts_what_had_no_signal() {
        let mut settings = TrainerSettings::default();
        settings.actor.learning_rate = 1.0;
        let mut bandit = Bandit { logits: [0.0; 4], gradient: [0.0; 4] };
        let metrics = update(&mut bandit, &two_groups(), &settings, 0, |_, _| {}).unwrap();
        let [_, unrewarded, rewarded, indifferent] = bandit.log_probs(1.0);
        assert!(rewarded > indifferent && indifferent > unrewarded, "{:?}", bandit.logits);
        assert_eq!(metrics["training/n_rows"], 4);
        assert_eq!(metrics["training/n_rows_with_signal"], 2);
        assert_eq!(metrics["training/n_rows_without_log_probs"], 0);
        assert!(metrics["training/rollout_log_prob_diff_max"].as_f64().unwrap() < 1e-6);
    }

    #[test]
    fn micro_batches_do_not_change_the_update() {
        let updated = |micro_batch_tokens| {
            let mut settings = TrainerSettings::default();
            settings.actor.micro_batch_tokens = micro_batch_tokens;
            settings.actor.learning_rate = 1.0;
            let mut bandit = Bandit { logits: [0.0; 4], gradient: [0.0; 4] };
            update(&mut bandit, &two_groups(), &settings, 0, |_, _| {}).unwrap();
            bandit.logits
        };
        for (one, many) in updated(1).iter().zip(updated(1000)) {
            assert!((one - many).abs() < 1e-6);
        }
    }

    #[test]
    fn a_row_is_scored_on_its_response() {
        let sequence = train_row(3, 2).sequence();
        assert_eq!((sequence.tokens, sequence.scored), (vec![1, 1, 1, 2, 2], 3..5));
    }
}
