//! What aggregation costs as conversations grow: time should follow the tokens read, memory the tokens written.
//!
//! `cargo bench -p agl-trainer --bench aggregation`

use agl_protocol::RolloutState;
use agl_trainer::padding::{Padding, pad};
use agl_trainer::rollout::{CompletedRollout, Triplet};
use agl_trainer::rows::{Aggregation, LogProbCheck, aggregate};
use agl_trainer::settings::{AggregationLevel, OnFailed};
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Calls of a rollout.
const TURNS: usize = 30;
/// Tokens that a call samples.
const RESPONSE: usize = 200;
/// Rollouts aggregated at once.
const ROLLOUTS: usize = 64;

/// One row a call: every prompt is copied.
#[divan::bench(args = [3_000, 10_000, 30_000])]
fn transition(bencher: Bencher<'_, '_>, longest: usize) {
    bench(bencher, AggregationLevel::Transition, longest);
}

/// One row a rollout: every prompt is compared with the one before, and the last is copied.
#[divan::bench(args = [3_000, 10_000, 30_000])]
fn trajectory(bencher: Bencher<'_, '_>, longest: usize) {
    bench(bencher, AggregationLevel::Trajectory, longest);
}

/// Trajectory rows as padded tensors.
#[divan::bench(args = [3_000, 10_000, 30_000])]
fn padded(bencher: Bencher<'_, '_>, longest: usize) {
    let rows = aggregate(&rollouts(longest), &aggregation(AggregationLevel::Trajectory, longest)).rows;
    let padding = Padding { prompt_length: longest, response_length: longest, pad_token_id: 0 };
    let tokens: usize = rows.iter().map(|row| row.prompt_ids.len() + row.response_ids.len()).sum();
    bencher.counter(ItemsCount::new(tokens)).bench(|| pad(&rows, AggregationLevel::Trajectory, padding));
}

fn bench(bencher: Bencher<'_, '_>, level: AggregationLevel, longest: usize) {
    let rollouts = rollouts(longest);
    let aggregation = aggregation(level, longest);
    let tokens: usize = rollouts
        .iter()
        .flat_map(|rollout| &rollout.triplets)
        .map(|call| call.prompt_ids.len() + call.response_ids.len())
        .sum();
    bencher.counter(ItemsCount::new(tokens)).bench(|| aggregate(&rollouts, &aggregation));
}

fn aggregation(level: AggregationLevel, longest: usize) -> Aggregation {
    Aggregation {
        level,
        max_prompt_length: longest,
        max_response_length: longest,
        max_total_length: None,
        missing_reward: Some(0.0),
        on_failed: OnFailed::Train,
        log_prob_check: LogProbCheck::EachCall,
    }
}

/// Rollouts whose prompt grows evenly to `longest` tokens, each call with the whole conversation so far as its prompt.
fn rollouts(longest: usize) -> Vec<CompletedRollout> {
    let observation = (longest / TURNS).saturating_sub(RESPONSE);
    (0..ROLLOUTS)
        .map(|place| {
            let mut conversation: Vec<u32> = (0..observation as u32).collect();
            let mut triplets = Vec::with_capacity(TURNS);
            for turn in 0..TURNS as u32 {
                let response_ids: Vec<u32> = (0..RESPONSE as u32).map(|token| token * 7 + turn).collect();
                let prompt_ids = conversation.clone();
                conversation.extend(&response_ids);
                conversation.extend((0..observation as u32).map(|token| token * 3 + turn));
                triplets.push(Triplet { prompt_ids, response_ids, log_probs: Some(vec![-0.5; RESPONSE]) });
            }
            CompletedRollout {
                rollout_id: format!("r{place}"),
                data_id: format!("d{}", place / 8),
                step: 0,
                sample_idx_in_step: place / 8,
                final_reward: Some(1.0),
                triplets,
                state: RolloutState::Succeeded,
                error_message: None,
            }
        })
        .collect()
}
