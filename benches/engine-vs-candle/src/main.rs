//! The engine against candle on the same model, weights and tokens, in turns in one process: see README.md.

mod candle;

use std::time::{Duration, Instant};

use agl_engine::{AdamWConfig, KvCache, Learner, LlamaConfig, LogitsFor, Model, Scores, Segment, Sequence};
use anyhow::{Result, ensure};
use candle_core::D;
use candle_nn::Optimizer;

/// The quickstart's size: 0.2M parameters.
const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 192,
    "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 512, "tie_word_embeddings": true}"#;
const LR: f32 = 1e-3;
const SEQUENCES: usize = 64;
const TOKENS: usize = 100;
const DECODED: usize = 32;
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let model = Model::random(LlamaConfig::from_json(CONFIG)?, 0.05, 1);
    let rows: Vec<Vec<u32>> = (0..SEQUENCES).map(row).collect();
    println!(
        "{} parameters, {SEQUENCES} sequences of {TOKENS} tokens, median of {ROUNDS} rounds\n",
        model.weights.values().len()
    );
    println!("| tokens/s | candle 0.11.1 | agl-engine | ratio |\n|---|---:|---:|---:|");
    train(&model, &rows)?;
    for batch in [1, 8, 64] {
        decode(&model, &rows[..batch])?;
    }
    Ok(())
}

/// Tokens of one sequence, by a rule that a model can partly learn.
fn row(seed: usize) -> Vec<u32> {
    (0..=TOKENS).map(|i| ((i * i * 31 + i * 17 + seed * 13) % 128) as u32).collect()
}

fn report(what: &str, tokens: usize, mut theirs: Vec<Duration>, mut ours: Vec<Duration>) {
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        tokens as f64 / times[times.len() / 2].as_secs_f64()
    };
    let (theirs, ours) = (median(&mut theirs), median(&mut ours));
    println!("| {what} | {theirs:.0} | {ours:.0} | {:.1} |", ours / theirs);
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed(), result))
}

fn train(model: &Model, rows: &[Vec<u32>]) -> Result<()> {
    let theirs = candle::Llama::new(model)?;
    let mut their_optimizer = theirs.adamw(f64::from(LR))?;
    let inputs = candle::ids(rows.iter().map(|row| &row[..TOKENS]))?;
    let targets = candle::ids(rows.iter().map(|row| &row[1..]))?;
    let mut their_step = || -> Result<f32> {
        let loss = theirs.loss(&inputs, &targets)?;
        their_optimizer.step(&loss.backward()?)?;
        Ok(loss.to_scalar()?)
    };

    let mut learner = Learner::new(model.clone(), AdamWConfig::default());
    let sequences: Vec<Sequence> =
        rows.iter().map(|row| Sequence { tokens: row.clone(), scored: 1..TOKENS + 1 }).collect();
    let mut our_step = || -> Result<f32> {
        let loss = learner.accumulate(&sequences, 1.0, mean_nll)?;
        learner.step(LR, f32::MAX);
        Ok(loss)
    };

    let (mut their_times, mut our_times) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (their_time, their_loss) = timed(&mut their_step)?;
        let (our_time, our_loss) = timed(&mut our_step)?;
        ensure!((their_loss - our_loss).abs() < 2e-3, "round {round}: candle's loss is {their_loss}, ours {our_loss}");
        their_times.push(their_time);
        our_times.push(our_time);
    }
    report("training", SEQUENCES * TOKENS, their_times, our_times);
    Ok(())
}

/// Mean negative log-probability and its derivative.
fn mean_nll(scores: &[Scores]) -> (f32, Vec<Vec<f32>>) {
    let count = (SEQUENCES * TOKENS) as f32;
    let loss = scores.iter().flat_map(|scores| &scores.log_probs).sum::<f32>() / -count;
    (loss, scores.iter().map(|scores| vec![-1.0 / count; scores.log_probs.len()]).collect())
}

fn decode(model: &Model, rows: &[Vec<u32>]) -> Result<()> {
    let theirs = candle::Llama::new(model)?;
    let prompts = candle::ids(rows.iter().map(|row| &row[..TOKENS]))?;
    let (mut their_times, mut our_times) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut caches = theirs.caches(TOKENS + DECODED);
        let mut next = theirs.next(&prompts, 0, &mut caches)?.argmax(D::Minus1)?;
        let (time, their_last) = timed(|| {
            for token in 0..DECODED {
                next = theirs.next(&next, TOKENS + token, &mut caches)?.argmax(D::Minus1)?;
            }
            Ok(next.flatten_all()?.to_vec1::<u32>()?)
        })?;
        their_times.push(time);

        let mut caches = vec![KvCache::new(&model.config); rows.len()];
        let prompts: Vec<Vec<u32>> = rows.iter().map(|row| row[..TOKENS].to_vec()).collect();
        let mut next = our_next(model, &prompts, &mut caches)?;
        let (time, our_last) = timed(|| {
            for _ in 0..DECODED {
                next = our_next(model, &next, &mut caches)?;
            }
            Ok(next.concat())
        })?;
        our_times.push(time);
        ensure!(their_last == our_last, "round {round}: candle decodes {their_last:?}, we {our_last:?}");
    }
    report(&format!("decoding, batch of {}", rows.len()), rows.len() * DECODED, their_times, our_times);
    Ok(())
}

/// Most likely next token of each sequence, as a segment of one token.
fn our_next(model: &Model, tokens: &[Vec<u32>], caches: &mut [KvCache]) -> Result<Vec<Vec<u32>>> {
    let segments = tokens.iter().zip(caches);
    let mut batch: Vec<Segment<'_>> =
        segments.map(|(tokens, cache)| Segment { tokens, cache, logits_for: LogitsFor::Last }).collect();
    let logits = model.forward(&mut batch)?;
    let best =
        |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token as u32);
    Ok(logits.rows().map(|row| vec![best(row)]).collect())
}
