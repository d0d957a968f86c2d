//! Rows: every sampled token is trained exactly once, after exactly what the policy was shown.

use agl_protocol::RolloutState;
use agl_trainer::padding::{Padding, pad};
use agl_trainer::rollout::{CompletedRollout, Triplet};
use agl_trainer::rows::{Aggregation, LogProbCheck, Row, aggregate};
use agl_trainer::settings::{AggregationLevel, OnFailed};
use proptest::collection::vec;
use proptest::prelude::*;

/// Few different tokens, so that prompts begin like earlier ones by chance too.
fn tokens(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    vec(0..3_u32, 0..=longest)
}

/// How a call follows the one before: with what came in between, or with a prompt of its own.
fn calls() -> impl Strategy<Value = Vec<Triplet>> {
    let call = (any::<bool>(), tokens(4), tokens(4), prop_oneof![4 => Just(0_i64), 1 => -1..=1_i64], any::<u8>());
    vec(call, 0..6).prop_map(|calls| {
        let mut triplets: Vec<Triplet> = Vec::new();
        for (continues, shown, response_ids, surplus, recorded) in calls {
            let history = triplets.last().filter(|_| continues);
            let mut prompt_ids =
                history.map_or(Vec::new(), |call| [call.prompt_ids.clone(), call.response_ids.clone()].concat());
            prompt_ids.extend(shown);
            let count = (response_ids.len() as i64 + surplus).max(0) as usize;
            // A number of its own for each token, so that a shifted one shows.
            let log_probs = (0..count).map(|place| -(1.0 + triplets.len() as f32 * 10.0 + place as f32)).collect();
            let log_probs = (recorded > 20).then_some(log_probs);
            triplets.push(Triplet { prompt_ids, response_ids, log_probs });
        }
        triplets
    })
}

fn rollouts() -> impl Strategy<Value = Vec<CompletedRollout>> {
    let rollout = (0..3_usize, calls(), proptest::option::of(-1.0..1.0_f64), any::<bool>());
    vec(rollout, 0..6).prop_map(|rollouts| {
        let complete =
            |(place, (sample, triplets, final_reward, succeeded)): (usize, (_, _, _, bool))| CompletedRollout {
                rollout_id: format!("r{place}"),
                data_id: format!("d{sample}"),
                step: 0,
                sample_idx_in_step: sample,
                final_reward,
                triplets,
                state: if succeeded { RolloutState::Succeeded } else { RolloutState::Failed },
                error_message: None,
            };
        rollouts.into_iter().enumerate().map(complete).collect()
    })
}

fn aggregation(level: AggregationLevel) -> Aggregation {
    Aggregation {
        level,
        max_prompt_length: 1000,
        max_response_length: 1000,
        max_total_length: None,
        missing_reward: Some(0.0),
        on_failed: OnFailed::Train,
        log_prob_check: LogProbCheck::EachCall,
    }
}

fn levels() -> impl Strategy<Value = AggregationLevel> {
    prop_oneof![Just(AggregationLevel::Transition), Just(AggregationLevel::Trajectory)]
}

/// The tokens of a row that are trained on.
fn trained(row: &Row) -> Vec<u32> {
    row.response_ids.iter().zip(&row.response_mask).filter(|(_, sampled)| **sampled).map(|(id, _)| *id).collect()
}

proptest! {
    #[test]
    fn every_sampled_token_is_trained_once_and_nothing_else(rollouts in rollouts(), level in levels()) {
        let rows = aggregate(&rollouts, &aggregation(level)).rows;
        for rollout in &rollouts {
            let sampled: Vec<u32> = rollout.triplets.iter().flat_map(|call| call.response_ids.clone()).collect();
            let of_rollout = rows.iter().filter(|row| row.rollout_id == rollout.rollout_id);
            prop_assert_eq!(of_rollout.flat_map(trained).collect::<Vec<u32>>(), sampled);
        }
    }

    #[test]
    fn each_trained_token_follows_what_its_call_was_shown(rollouts in rollouts(), level in levels()) {
        for row in aggregate(&rollouts, &aggregation(level)).rows {
            let rollout = rollouts.iter().find(|rollout| rollout.rollout_id == row.rollout_id).unwrap();
            let ids = row.token_ids();
            let mut end = row.prompt_ids.len();
            for call in &rollout.triplets[row.turn_index..] {
                let start = call.prompt_ids.len();
                if !ids.starts_with(&call.prompt_ids) || start < end || start + call.response_ids.len() > ids.len() {
                    break;
                }
                end = start + call.response_ids.len();
                prop_assert_eq!(&ids[start..end], call.response_ids.as_slice());
                prop_assert!(row.response_mask[start - row.prompt_ids.len()..end - row.prompt_ids.len()].iter().all(|m| *m));
                if level == AggregationLevel::Transition || end == ids.len() {
                    break;
                }
            }
            prop_assert_eq!(end, ids.len(), "the row ends with its last call");
        }
    }

    #[test]
    fn log_probs_are_each_their_own_tokens_or_absent(rollouts in rollouts(), level in levels()) {
        for row in aggregate(&rollouts, &aggregation(level)).rows {
            prop_assert_eq!(row.response_mask.len(), row.response_ids.len());
            let rollout = rollouts.iter().find(|rollout| rollout.rollout_id == row.rollout_id).unwrap();
            let mut sampled = trained(&row).len();
            let mut recorded = Vec::new();
            let mut whole = true;
            for call in &rollout.triplets[row.turn_index..] {
                if level == AggregationLevel::Trajectory && sampled == 0 && call.response_ids.is_empty() {
                    break;
                }
                whole &= call.log_probs.as_ref().is_some_and(|values| values.len() == call.response_ids.len());
                recorded.extend(call.log_probs.clone().unwrap_or_default());
                sampled = sampled.saturating_sub(call.response_ids.len());
                if sampled == 0 {
                    break;
                }
            }
            if let Some(log_probs) = &row.rollout_log_probs {
                prop_assert!(whole, "log-probabilities of {row:?} were made up");
                let of_sampled: Vec<f32> =
                    log_probs.iter().zip(&row.response_mask).filter(|(_, m)| **m).map(|(value, _)| *value).collect();
                prop_assert_eq!(of_sampled, recorded);
                prop_assert!(log_probs.iter().zip(&row.response_mask).all(|(value, sampled)| *sampled || *value == 0.0));
            }
        }
    }

    #[test]
    fn limits_hold_and_cut_at_the_end_only(
        rollouts in rollouts(), level in levels(), prompt in 1..8_usize, response in 1..8_usize, total in proptest::option::of(1..12_usize),
    ) {
        let whole = aggregation(level);
        let limited = Aggregation {
            max_prompt_length: prompt, max_response_length: response, max_total_length: total, ..whole.clone()
        };
        let (all, cut) = (aggregate(&rollouts, &whole).rows, aggregate(&rollouts, &limited).rows);
        for row in &cut {
            let same = |other: &&Row| other.rollout_id == row.rollout_id && other.turn_index == row.turn_index;
            let uncut = all.iter().find(same).unwrap();
            prop_assert!(row.prompt_ids.len() <= prompt && row.response_ids.len() <= response);
            prop_assert!(total.is_none_or(|total| row.prompt_ids.len() + row.response_ids.len() <= total));
            prop_assert_eq!(row.is_drop, uncut.prompt_ids.len() > prompt);
            prop_assert!(uncut.prompt_ids.starts_with(&row.prompt_ids));
            prop_assert!(uncut.response_ids.starts_with(&row.response_ids));
            prop_assert!(uncut.response_mask.starts_with(&row.response_mask));
            prop_assert!(row.train_token_count() > 0);
        }
        if !cut.is_empty() {
            let padding = Padding { prompt_length: prompt, response_length: response, pad_token_id: 9 };
            let batch = pad(&cut, level, padding).unwrap();
            let tokens: usize = cut.iter().map(|row| row.token_ids().len()).sum();
            prop_assert_eq!(batch.attention_mask.iter().sum::<i64>(), tokens as i64);
            prop_assert_eq!(batch.input_ids.len(), cut.len() * (prompt + response));
            prop_assert_eq!(batch.position_ids.len(), batch.input_ids.len());
        }
    }

    #[test]
    fn each_rollout_gives_rows_or_a_reason(rollouts in rollouts(), level in levels(), drop_failed in any::<bool>(), fill in any::<bool>()) {
        let rule = Aggregation {
            max_prompt_length: 3,
            missing_reward: fill.then_some(0.0),
            on_failed: if drop_failed { OnFailed::Drop } else { OnFailed::Train },
            ..aggregation(level)
        };
        let aggregated = aggregate(&rollouts, &rule);
        for rollout in &rollouts {
            let has_row = aggregated.rows.iter().any(|row| row.rollout_id == rollout.rollout_id && !row.is_drop);
            let refusals = aggregated.refusals.iter().filter(|refused| refused.rollout_id == rollout.rollout_id).count();
            prop_assert_eq!(refusals, usize::from(!has_row));
        }
    }
}
