//! The forward pass against recorded logits, and against itself when a sequence comes in pieces.

use crate::support::{Golden, assert_close, small_config, small_model, tiny_llama, tokens};
use agl_engine::model::ForwardError;
use agl_engine::{KvCache, LogitsFor, Model, Segment, load_model};
use proptest::prelude::*;

/// Logits of every token of each sequence, each from an empty cache.
fn full(model: &Model, sequences: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let mut caches = vec![KvCache::new(&model.config); sequences.len()];
    let mut batch: Vec<Segment<'_>> = sequences
        .iter()
        .zip(&mut caches)
        .map(|(tokens, cache)| Segment { tokens, cache, logits_for: LogitsFor::All })
        .collect();
    let logits = model.forward(&mut batch).unwrap();
    logits.rows().map(<[f32]>::to_vec).collect()
}

#[test]
fn logits_match_the_recording() {
    let (golden, model) = (Golden::read(), load_model(&tiny_llama()).unwrap());
    let sequences: Vec<Vec<u32>> = (0..golden.input_ids.len()).map(|row| golden.tokens(row)).collect();
    let mut logits = full(&model, &sequences).into_iter();
    for row in 0..sequences.len() {
        for column in golden.real_columns(row) {
            let expected = &golden.logits_step0[row][column];
            assert_close(&logits.next().unwrap(), expected, 2e-5, &format!("row {row}, column {column}"));
        }
    }
}

#[test]
fn greedy_continuation_matches_the_recording() {
    #[derive(serde::Deserialize)]
    struct Greedy {
        prompt: Vec<u32>,
        greedy: Vec<u32>,
    }
    let text = std::fs::read_to_string(tiny_llama().join("greedy.json")).unwrap();
    let Greedy { prompt, greedy } = serde_json::from_str(&text).unwrap();
    let model = load_model(&tiny_llama()).unwrap();
    let mut cache = KvCache::new(&model.config);
    let (mut all, mut next) = (prompt.clone(), prompt);
    while all.len() < greedy.len() {
        let mut batch = [Segment { tokens: &next, cache: &mut cache, logits_for: LogitsFor::Last }];
        let logits = model.forward(&mut batch).unwrap();
        let best = logits.row(0).unwrap().iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        next = vec![best as u32];
        all.push(best as u32);
    }
    assert_eq!(all, greedy);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Sequences cut at any places, their pieces batched with those of other sequences, give what each gives whole.
    #[test]
    fn any_split_gives_the_same_logits(
        kv_heads in prop::sample::select(vec![1usize, 2, 4]),
        lens in prop::collection::vec(1usize..150, 1..4),
        cuts in prop::collection::vec(1usize..80, 1..12),
    ) {
        let model = small_model(small_config(kv_heads, true, "llama"), 5);
        let sequences: Vec<Vec<u32>> = lens.iter().enumerate().map(|(i, len)| tokens(*len, 23, i)).collect();
        let expected = full(&model, &sequences);
        let starts: Vec<usize> = lens.iter().scan(0, |sum, len| { *sum += len; Some(*sum - len) }).collect();

        let mut caches = vec![KvCache::new(&model.config); sequences.len()];
        let mut cuts = cuts.iter().cycle();
        while caches.iter().zip(&sequences).any(|(cache, tokens)| cache.len() < tokens.len()) {
            let mut wanted = Vec::new();
            let mut batch = Vec::new();
            for (index, cache) in caches.iter_mut().enumerate() {
                let rest = &sequences[index][cache.len()..];
                let len = rest.len().min(*cuts.next().unwrap());
                if len > 0 {
                    let first = starts[index] + cache.len();
                    wanted.extend(first..first + len);
                    batch.push(Segment { tokens: &rest[..len], cache, logits_for: LogitsFor::All });
                }
            }
            let logits = model.forward(&mut batch).unwrap();
            for (row, index) in logits.rows().zip(wanted) {
                assert_close(row, &expected[index], 1e-5, &format!("token {index}"));
            }
        }
    }
}

#[test]
fn decoding_one_by_one_and_truncating_gives_the_same_logits() {
    let model = small_model(small_config(2, false, "qwen2"), 9);
    let sequence = tokens(40, 23, 3);
    let expected = full(&model, std::slice::from_ref(&sequence));
    let mut cache = KvCache::new(&model.config);
    for round in 0..2 {
        cache.truncate(round * 10);
        for index in cache.len()..sequence.len() {
            let mut batch =
                [Segment { tokens: &sequence[index..=index], cache: &mut cache, logits_for: LogitsFor::Last }];
            let logits = model.forward(&mut batch).unwrap();
            assert_close(logits.row(0).unwrap(), &expected[index], 1e-5, &format!("round {round}, token {index}"));
        }
    }
    assert_eq!(cache.len(), 40);
}

#[test]
fn logits_come_only_for_the_rows_that_were_asked_for() {
    let model = small_model(small_config(4, true, "llama"), 1);
    let sequences = [tokens(5, 23, 0), tokens(3, 23, 1), tokens(4, 23, 2)];
    let all = full(&model, &sequences);
    let mut caches = vec![KvCache::new(&model.config); 3];
    let asked = [LogitsFor::Last, LogitsFor::None, LogitsFor::All];
    let mut batch: Vec<Segment<'_>> = sequences
        .iter()
        .zip(&mut caches)
        .zip(asked)
        .map(|((tokens, cache), logits_for)| Segment { tokens, cache, logits_for })
        .collect();
    let logits = model.forward(&mut batch).unwrap();
    let expected = [4, 8, 9, 10, 11];
    assert_eq!(logits.len(), expected.len());
    for (row, index) in logits.rows().zip(expected) {
        assert_close(row, &all[index], 1e-5, &format!("token {index}"));
    }
}

#[test]
fn a_chunk_that_asks_for_no_logits_still_fills_its_cache() {
    let model = small_model(small_config(2, true, "llama"), 1);
    let mut cache = KvCache::new(&model.config);
    let mut batch = [Segment { tokens: &[1, 2, 3], cache: &mut cache, logits_for: LogitsFor::None }];
    assert!(model.forward(&mut batch).unwrap().is_empty());
    assert_eq!((cache.len(), cache.bytes()), (3, 3 * 2 * 2 * 2 * 6 * 4));
    assert!(model.forward(&mut []).unwrap().is_empty());
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let model = Model::random(
        agl_engine::LlamaConfig {
            hidden_size: 64,
            intermediate_size: 192,
            head_dim: 16,
            ..small_config(2, true, "llama")
        },
        0.1,
        3,
    );
    let sequences: Vec<Vec<u32>> = (0..20).map(|i| tokens(30 + 5 * i, 23, i)).collect();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| full(&model, &sequences))
    };
    let one = with(1);
    for threads in [2, 3, 5] {
        let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&one) == bits(&with(threads)), "{threads} threads");
    }
}

#[test]
fn a_refused_batch_leaves_the_caches_alone() {
    let model = small_model(small_config(2, true, "llama"), 1);
    let refuse = |bad: &[u32]| {
        let (mut good_cache, mut bad_cache) = (KvCache::new(&model.config), KvCache::new(&model.config));
        let mut batch = [
            Segment { tokens: &[1, 2], cache: &mut good_cache, logits_for: LogitsFor::Last },
            Segment { tokens: bad, cache: &mut bad_cache, logits_for: LogitsFor::Last },
        ];
        let error = model.forward(&mut batch).unwrap_err();
        assert!(good_cache.is_empty() && good_cache.bytes() == 0, "{error}");
        error
    };
    assert_eq!(refuse(&[]), ForwardError::EmptySegment { segment: 1 });
    assert_eq!(refuse(&[3, 23]), ForwardError::TokenOutOfRange { segment: 1, token: 23, vocab_size: 23 });
    assert_eq!(refuse(&[0; 513]), ForwardError::TooLong { segment: 1, len: 513, max: 512 });
    let mut foreign = KvCache::new(&small_config(4, true, "llama"));
    let mut batch = [Segment { tokens: &[1], cache: &mut foreign, logits_for: LogitsFor::Last }];
    assert_eq!(model.forward(&mut batch), Err(ForwardError::ForeignCache { segment: 0 }));
}
