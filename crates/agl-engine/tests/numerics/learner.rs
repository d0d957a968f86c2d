//! Scores, gradients and optimiser steps: against PyTorch's recording, and against finite differences.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use agl_engine::model::ForwardError;
use agl_engine::score::ScoreError;
use agl_engine::{
    AdamWConfig, KvCache, Learner, LlamaConfig, LogitsFor, Model, Scores, Segment, Sequence, Weights, load_model,
    log_softmax,
};
use safetensors::SafeTensors;

use crate::support::{Golden, assert_close, small_config, small_model, tiny_llama, tokens};

/// The recorded rows without their padding. The columns are those of the response, as the recording counts them.
fn recorded_sequences(golden: &Golden) -> Vec<(Sequence, Vec<usize>)> {
    let row = |row: usize| {
        let real = golden.real_columns(row);
        let start = real.iter().position(|column| *column >= golden.prompt_length).unwrap();
        let columns = real[start..].iter().map(|column| column - golden.prompt_length).collect();
        (Sequence { tokens: golden.tokens(row), scored: start..real.len() }, columns)
    };
    (0..golden.input_ids.len()).map(row).collect()
}

/// PPO's clipped loss, averaged over the tokens the policy wrote, and its derivative.
fn clipped_loss(golden: &Golden, columns: &[Vec<usize>], scores: &[Scores]) -> (f32, Vec<Vec<f32>>) {
    let count = golden.response_mask.iter().flatten().filter(|mask| **mask == 1).count() as f32;
    let mut loss = 0.0;
    let token = |row: usize, column: usize, log_prob: f32, loss: &mut f32| {
        if golden.response_mask[row][column] == 0 {
            return 0.0;
        }
        let advantage = golden.advantages[row][column];
        let ratio = (log_prob - golden.old_log_probs[row][column]).exp();
        let clipped = ratio.clamp(1.0 - golden.clip.low, 1.0 + golden.clip.high);
        let (free, bound) = (-advantage * ratio, -advantage * clipped);
        *loss += free.max(bound) / count;
        if free >= bound { free / count } else { 0.0 }
    };
    let gradients = scores.iter().enumerate().map(|(row, scores)| {
        let columns = columns[row].iter().zip(&scores.log_probs);
        columns.map(|(column, log_prob)| token(row, *column, *log_prob, &mut loss)).collect()
    });
    let gradients = gradients.collect();
    (loss, gradients)
}

fn read_tensors(path: &Path) -> HashMap<String, Vec<f32>> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    file.iter().map(|(name, tensor)| (name.to_owned(), values(tensor.data()))).collect()
}

fn optimizer(golden: &Golden) -> AdamWConfig {
    // The shortest decimal of an f32 is what the recording was given.
    let exact = |value: f32| value.to_string().parse::<f64>().unwrap();
    let [beta1, beta2] = golden.optimizer.betas.map(exact);
    AdamWConfig { beta1, beta2, eps: exact(golden.optimizer.eps), weight_decay: exact(golden.optimizer.weight_decay) }
}

#[test]
fn scores_gradients_and_four_steps_match_the_recording() {
    let golden = Golden::read();
    let (sequences, columns): (Vec<_>, Vec<_>) = recorded_sequences(&golden).into_iter().unzip();
    let mut learner = Learner::new(load_model(&tiny_llama()).unwrap(), optimizer(&golden));
    for (step, expected) in golden.steps.iter().enumerate() {
        let loss = learner.accumulate(&sequences, 1.0, |scores| {
            for (row, scores) in scores.iter().enumerate() {
                let pick = |values: &[f32]| columns[row].iter().map(|column| values[*column]).collect::<Vec<_>>();
                let what = format!("step {step}, row {row}");
                assert_close(&scores.log_probs, &pick(&expected.log_probs[row]), 1e-4, &format!("{what}: log-probs"));
                if step == 0 {
                    assert_close(&scores.entropy, &pick(&golden.entropy_step0[row]), 2e-5, &format!("{what}: entropy"));
                }
            }
            clipped_loss(&golden, &columns, scores)
        });
        assert_close(&[loss.unwrap()], &[expected.loss], 2e-5, &format!("step {step}: loss"));
        if step == 0 {
            let recorded = read_tensors(&tiny_llama().join("grads_step0.safetensors"));
            let model = learner.model();
            for spec in model.weights.layout().tensors() {
                assert_close(&learner.gradients()[spec.range.clone()], &recorded[&spec.name], 2e-5, &spec.name);
            }
        }
        let report = learner.step(golden.optimizer.lr, golden.optimizer.max_grad_norm);
        let tolerance = 1e-4 * expected.grad_norm.max(1.0);
        assert_close(&[report.grad_norm], &[expected.grad_norm], tolerance, &format!("step {step}: norm"));
        assert!(report.finite && report.clipped == (expected.grad_norm > golden.optimizer.max_grad_norm));
    }
    let recorded = read_tensors(&tiny_llama().join("model_after4.safetensors"));
    for (name, expected) in recorded {
        assert_close(learner.model().weights.tensor(&name).unwrap(), &expected, 2e-5, &name);
    }
}

/// Sequences of several lengths, one longer than a block of attention rows, and a loss that weighs tokens unevenly.
fn sample() -> (Vec<Sequence>, Vec<Vec<f32>>) {
    let sequences = vec![
        Sequence { tokens: tokens(9, 23, 1), scored: 1..9 },
        Sequence { tokens: tokens(70, 23, 2), scored: 30..68 },
        Sequence { tokens: tokens(2, 23, 3), scored: 1..2 },
    ];
    let weights = |sequence: &Sequence| sequence.scored.clone().map(|i| ((i * 5) % 7) as f32 / 7.0 - 0.4).collect();
    let weights = sequences.iter().map(weights).collect();
    (sequences, weights)
}

fn weighted_sum(scores: &[Scores], weights: &[Vec<f32>]) -> f64 {
    let pairs = scores.iter().zip(weights).flat_map(|(scores, weights)| scores.log_probs.iter().zip(weights));
    pairs.map(|(log_prob, weight)| f64::from(*log_prob) * f64::from(*weight)).sum()
}

/// Moves each tensor along its own gradient and along a fixed direction, and compares the loss with what the gradient says.
fn check_every_gradient(model: &Model, temperature: f32) {
    let (sequences, weights) = sample();
    let mut learner = Learner::new(model.clone(), AdamWConfig::default());
    learner.accumulate(&sequences, temperature, |_| (0.0, weights.clone())).unwrap();
    let loss_of = |weights_of_model: Weights| {
        let moved = Model { config: model.config.clone(), weights: weights_of_model.into() };
        let scores = moved.score(&sequences, temperature).unwrap();
        weighted_sum(&scores, &weights)
    };
    for spec in model.weights.layout().tensors() {
        let gradient = &learner.gradients()[spec.range.clone()];
        let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        assert!(norm > 0.05, "{}: the gradient is {norm}, too small to say anything", spec.name);
        let along = gradient.iter().map(|g| g / norm).collect::<Vec<_>>();
        let fixed = (0..gradient.len()).map(|i| ((i * 13 + 5) % 11) as f32 / 5.0 - 1.0).collect::<Vec<_>>();
        let fixed_norm = fixed.iter().map(|x| x * x).sum::<f32>().sqrt();
        let fixed = fixed.iter().map(|x| x / fixed_norm).collect::<Vec<_>>();
        for direction in [along, fixed] {
            let expected: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d)).sum();
            let moved = |by: f32| {
                let mut weights = Weights::clone(&model.weights);
                let values = weights.values_mut()[spec.range.clone()].iter_mut();
                values.zip(&direction).for_each(|(value, d)| *value += by * d);
                loss_of(weights)
            };
            // Five points: the error is of fourth order, so that a step large enough for f32 is small enough.
            let h = 0.02;
            let difference =
                (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * f64::from(h));
            let error = (difference - expected).abs();
            assert!(
                error < 2e-3 * f64::from(norm),
                "{}: {difference} by differences, {expected} by gradient",
                spec.name
            );
        }
    }
}

#[test]
fn every_gradient_agrees_with_finite_differences() {
    for (kv_heads, tied, model_type) in [(2, true, "llama"), (4, false, "llama"), (1, false, "qwen2")] {
        check_every_gradient(&small_model(small_config(kv_heads, tied, model_type), 11), 1.0);
    }
    check_every_gradient(&small_model(small_config(2, false, "llama"), 12), 0.7);
}

#[test]
fn micro_batches_add_up_to_the_whole_batch() {
    let model = small_model(small_config(2, true, "llama"), 4);
    let (sequences, weights) = sample();
    let mut whole = Learner::new(model.clone(), AdamWConfig::default());
    whole.accumulate(&sequences, 1.0, |_| (0.0, weights.clone())).unwrap();
    let mut parts = Learner::new(model, AdamWConfig::default());
    for (sequence, weights) in sequences.iter().zip(&weights) {
        parts.accumulate(std::slice::from_ref(sequence), 1.0, |_| (0.0, vec![weights.clone()])).unwrap();
    }
    assert_close(parts.gradients(), whole.gradients(), 1e-4, "gradients");
}

#[test]
fn log_probs_when_sampling_and_when_training_agree() {
    let model = small_model(small_config(2, true, "llama"), 8);
    let (temperature, prompt) = (0.8, tokens(12, 23, 4));
    let mut caches = vec![KvCache::new(&model.config); 3];
    let mut sequences = vec![prompt.clone(); 3];
    let mut sampled = vec![Vec::new(); 3];
    let mut next: Vec<Vec<u32>> = vec![prompt.clone(); 3];
    for step in 0..60 {
        let mut batch: Vec<Segment<'_>> = next
            .iter()
            .zip(&mut caches)
            .map(|(tokens, cache)| Segment { tokens, cache, logits_for: LogitsFor::Last })
            .collect();
        let logits = model.forward(&mut batch).unwrap();
        next = Vec::new();
        for (index, row) in logits.rows().enumerate() {
            let mut row = row.to_vec();
            log_softmax(&mut row, temperature);
            let token = ((step * 7 + index * 5) % 23) as u32;
            sampled[index].push(row[token as usize]);
            sequences[index].push(token);
            next.push(vec![token]);
        }
    }
    let scored: Vec<Sequence> =
        sequences.into_iter().map(|tokens| Sequence { scored: prompt.len()..tokens.len(), tokens }).collect();
    let scores = model.score(&scored, temperature).unwrap();
    for (scores, sampled) in scores.iter().zip(&sampled) {
        assert_close(&scores.log_probs, sampled, 1e-4, "log-probs");
    }
}

#[test]
fn scoring_in_several_passes_keeps_the_order() {
    let learner = Learner::new(small_model(small_config(2, true, "llama"), 8), AdamWConfig::default());
    let sequences: Vec<Sequence> =
        (0..40).map(|i| Sequence { tokens: tokens(200 + i, 23, i), scored: 190..200 }).collect();
    let together = learner.score(&sequences, 1.0).unwrap();
    assert_eq!(together.len(), sequences.len());
    for (sequence, scores) in sequences.iter().zip(&together) {
        let alone = learner.score(std::slice::from_ref(sequence), 1.0).unwrap();
        assert_close(&scores.log_probs, &alone[0].log_probs, 1e-5, "log-probs");
    }
}

/// Large enough that products, rows, attention and the optimiser all go to several threads.
#[test]
fn training_gives_the_same_bits_on_any_number_of_threads() {
    let config =
        LlamaConfig { hidden_size: 96, intermediate_size: 256, head_dim: 24, ..small_config(2, false, "qwen2") };
    let model = small_model(config, 2);
    let sequences: Vec<Sequence> =
        (0..12).map(|i| Sequence { tokens: tokens(80 + 9 * i, 23, i), scored: 1..80 }).collect();
    let train = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut learner = Learner::new(model.clone(), AdamWConfig::default());
            learner.accumulate(&sequences, 1.0, |_| (0.0, vec![vec![-0.01; 79]; 12])).unwrap();
            learner.step(1e-3, 1.0);
            learner.model().weights.values().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        })
    };
    let one = train(1);
    for threads in [2, 3, 5] {
        assert!(one == train(threads), "{threads} threads");
    }
}

#[test]
fn a_few_steps_learn_a_sequence_by_heart() {
    let mut learner = Learner::new(small_model(small_config(2, true, "llama"), 6), AdamWConfig::default());
    let sequences = [Sequence { tokens: tokens(30, 23, 1), scored: 1..30 }];
    let mut losses = Vec::new();
    for _ in 0..60 {
        let loss = learner.accumulate(&sequences, 1.0, |scores| {
            let count = scores[0].log_probs.len() as f32;
            (-scores[0].log_probs.iter().sum::<f32>() / count, vec![vec![-1.0 / count; 29]])
        });
        losses.push(loss.unwrap());
        learner.step(1e-2, 1.0);
    }
    assert!(losses[0] > 2.5 && losses[59] < 0.05, "{losses:?}");
}

#[test]
fn a_non_finite_gradient_changes_nothing() {
    let model = small_model(small_config(2, true, "llama"), 8);
    let mut learner = Learner::new(model.clone(), AdamWConfig::default());
    let sequences = [Sequence { tokens: vec![1, 2, 3], scored: 1..3 }];
    learner.accumulate(&sequences, 1.0, |_| (0.0, vec![vec![f32::NAN, 1.0]])).unwrap();
    let report = learner.step(0.1, 1.0);
    assert!(!report.finite && !report.clipped && report.grad_norm.is_nan());
    assert_eq!(*learner.model().weights, *model.weights);
    assert_eq!(learner.steps(), 0);
    assert!(learner.gradients().iter().all(|g| *g == 0.0));
}

#[test]
fn a_snapshot_stays_as_it_is_while_training_goes_on() {
    let mut learner = Learner::new(small_model(small_config(2, true, "llama"), 8), AdamWConfig::default());
    let snapshot = learner.model();
    let before = snapshot.weights.values().to_vec();
    let sequences = [Sequence { tokens: vec![1, 2, 3], scored: 1..3 }];
    learner.accumulate(&sequences, 1.0, |_| (0.0, vec![vec![-1.0, -1.0]])).unwrap();
    assert!(learner.step(0.01, 1.0).finite);
    assert_eq!(snapshot.weights.values(), before);
    assert_ne!(learner.model().weights.values(), before);
}

#[test]
fn what_cannot_be_scored_is_refused_by_name() {
    let mut learner = Learner::new(small_model(small_config(2, true, "llama"), 8), AdamWConfig::default());
    let score = |tokens: &[u32], scored, temperature| {
        learner.score(&[Sequence { tokens: tokens.to_vec(), scored }], temperature).unwrap_err()
    };
    for scored in [0..2, 1..4, 2..2] {
        assert_eq!(score(&[1, 2, 3], scored.clone(), 1.0), ScoreError::Range { sequence: 0, scored, len: 3 });
    }
    assert_eq!(score(&[1, 2], 1..2, 0.0), ScoreError::Temperature(0.0));
    let out_of_range = ForwardError::TokenOutOfRange { segment: 0, token: 23, vocab_size: 23 };
    assert_eq!(score(&[1, 23], 1..2, 1.0), ScoreError::Forward(out_of_range));
    let sequences = [Sequence { tokens: vec![1, 2, 3], scored: 1..3 }];
    let error = learner.accumulate(&sequences, 1.0, |_| (0.0, vec![vec![1.0]])).unwrap_err();
    assert_eq!(error, ScoreError::GradientShape { found: vec![1], expected: vec![2] });
}
