//! Training, decoding and long prompts, in tokens per second: `cargo bench -p agl-engine`.
//!
//! `tiny` is the size of the quickstart's policy (0.2M parameters), `smol` that of SmolLM2-135M.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use agl_engine::{AdamWConfig, KvCache, Learner, LlamaConfig, LogitsFor, Model, Segment, Sequence};
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

fn tiny() -> LlamaConfig {
    config(
        r#"{"model_type": "llama", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 192,
        "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": true}"#,
    )
}

fn smol() -> LlamaConfig {
    config(
        r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048,
        "tie_word_embeddings": true}"#,
    )
}

fn config(json: &str) -> LlamaConfig {
    LlamaConfig::from_json(json).unwrap()
}

fn tokens(len: usize, vocab: usize, seed: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * i * 31 + i * 17 + seed * 13) % vocab) as u32).collect()
}

fn train(bencher: Bencher<'_, '_>, config: LlamaConfig, sequences: usize, len: usize) {
    let vocab = config.vocab_size;
    let sequences: Vec<Sequence> =
        (0..sequences).map(|i| Sequence { tokens: tokens(len + 1, vocab, i), scored: 1..len + 1 }).collect();
    let mut learner = Learner::new(Model::random(config, 0.02, 1), AdamWConfig::default());
    bencher.counter(ItemsCount::new(sequences.len() * len)).bench_local(|| {
        let uniform = |scores: &[agl_engine::Scores]| {
            (0.0, scores.iter().map(|scores| vec![-1.0 / len as f32; scores.log_probs.len()]).collect())
        };
        learner.accumulate(&sequences, 1.0, uniform).unwrap();
        learner.step(1e-4, 1.0)
    });
}

fn decode(bencher: Bencher<'_, '_>, config: LlamaConfig, sequences: usize, past: usize) {
    let model = Model::random(config, 0.02, 1);
    let mut caches = vec![KvCache::new(&model.config); sequences];
    let forward = |tokens: &[u32], caches: &mut [KvCache]| {
        let segment = |cache| Segment { tokens, cache, logits_for: LogitsFor::Last };
        model.forward(&mut caches.iter_mut().map(segment).collect::<Vec<_>>()).unwrap()
    };
    forward(&tokens(past, model.config.vocab_size, 1), &mut caches);
    bencher.counter(ItemsCount::new(sequences)).bench_local(|| {
        for cache in &mut caches {
            cache.truncate(past);
        }
        forward(&[5], &mut caches)
    });
}

fn prefill(bencher: Bencher<'_, '_>, config: LlamaConfig, len: usize) {
    let model = Model::random(config, 0.02, 1);
    let tokens = tokens(len, model.config.vocab_size, 1);
    bencher.counter(ItemsCount::new(len)).bench_local(|| {
        let mut cache = KvCache::new(&model.config);
        model.forward(&mut [Segment { tokens: &tokens, cache: &mut cache, logits_for: LogitsFor::Last }]).unwrap()
    });
}

#[divan::bench(sample_count = 20)]
fn train_tiny_64_sequences_of_100(bencher: Bencher<'_, '_>) {
    train(bencher, tiny(), 64, 100);
}

#[divan::bench(args = [1, 8, 64])]
fn decode_tiny_after_100(bencher: Bencher<'_, '_>, sequences: usize) {
    decode(bencher, tiny(), sequences, 100);
}

#[divan::bench(sample_count = 10)]
fn prefill_tiny_4096_mostly_attention(bencher: Bencher<'_, '_>) {
    prefill(bencher, tiny(), 4096);
}

#[divan::bench(sample_count = 2, sample_size = 1)]
fn train_smol_4_sequences_of_128(bencher: Bencher<'_, '_>) {
    train(bencher, smol(), 4, 128);
}

#[divan::bench(args = [1, 16], sample_count = 10, sample_size = 1)]
fn decode_smol_after_100(bencher: Bencher<'_, '_>, sequences: usize) {
    decode(bencher, smol(), sequences, 100);
}

#[divan::bench(sample_count = 3, sample_size = 1)]
fn prefill_smol_512(bencher: Bencher<'_, '_>) {
    prefill(bencher, smol(), 512);
}
