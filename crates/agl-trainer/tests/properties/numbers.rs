//! Advantages and losses: what they must not depend on, and gradients against slopes.

use agl_trainer::advantage::{AdvantageRow, AdvantageSettings, Estimator, compute, compute_by_rollout};
use agl_trainer::loss::{
    LossAggregation, LossMode, LossRow, LossSettings, normalize_advantages_by_rollout, policy_loss,
};
use agl_trainer::precision::Precision;
use proptest::collection::vec;
use proptest::prelude::*;

/// How far a log-probability is moved to measure a slope.
const STEP: f32 = 4e-3;

proptest! {
    #[test]
    fn grpo_sees_differences_only(rewards in vec(-4..4_i8, 2..8), shift in -3..3_i8, factor in 1..5_u8) {
        let rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
        let settings = AdvantageSettings::default();
        let (_, plain) = grpo(&rewards, &settings);
        let shifted: Vec<f32> = rewards.iter().map(|reward| reward + f32::from(shift)).collect();
        let scaled: Vec<f32> = rewards.iter().map(|reward| reward * f32::from(factor)).collect();
        // ε = 1e-6 beside a standard deviation of 0.3 or more.
        assert_close(&grpo(&shifted, &settings).1, &plain, 1e-5)?;
        assert_close(&grpo(&scaled, &settings).1, &plain, 1e-5)?;

        let by_mean = AdvantageSettings { norm_adv_by_std_in_grpo: false, ..settings };
        let (_, unscaled) = grpo(&rewards, &by_mean);
        let stretched: Vec<f32> = unscaled.iter().map(|value| value * f32::from(factor)).collect();
        assert_close(&grpo(&scaled, &by_mean).1, &stretched, 1e-5)?;
        prop_assert!(unscaled.iter().sum::<f32>().abs() < 1e-4, "advantages of a group sum to 0");
    }

    #[test]
    fn advantages_do_not_depend_on_the_order_of_rows(rows in vec((0..3_u8, -4..4_i8, 1..4_usize), 1..10), turn in any::<usize>()) {
        for estimator in [Estimator::Grpo, Estimator::GrpoVectorized, Estimator::Rloo, Estimator::RlooVectorized, Estimator::Opo, Estimator::Gpg] {
            let place = turn % rows.len();
            let turned: Vec<_> = rows[place..].iter().chain(&rows[..place]).copied().collect();
            let (mut plain, moved) = (grouped(estimator, &rows), grouped(estimator, &turned));
            plain.rotate_left(place);
            assert_close(&moved, &plain, 1e-6)?;
        }
    }

    #[test]
    fn splitting_a_rollout_into_rows_changes_no_advantage(rewards in vec(-4..4_i8, 2..6), copies in vec(1..4_usize, 6)) {
        let rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
        let settings = AdvantageSettings::default();
        let (_, whole) = grpo(&rewards, &settings);
        let ids: Vec<String> = (0..rewards.len()).map(|place| format!("r{place}")).collect();
        let one_token: Vec<[f32; 1]> = rewards.iter().map(|reward| [*reward]).collect();
        let rows: Vec<AdvantageRow<'_>> = (0..rewards.len())
            .flat_map(|place| std::iter::repeat_n(place, copies[place]))
            .map(|place| AdvantageRow { rollout_id: &ids[place], ..row(&one_token[place]) })
            .collect();
        let (split, stats) = compute_by_rollout(Estimator::Grpo, &rows, &settings).unwrap();
        let expected: Vec<f32> =
            (0..rewards.len()).flat_map(|place| std::iter::repeat_n(whole[place], copies[place])).collect();
        assert_close(&split.advantages.concat(), &expected, 1e-6)?;
        prop_assert_eq!(stats.rollouts, rewards.len());
    }

    #[test]
    fn normalised_advantages_give_each_rollout_its_rows_share(rows in vec((0..3_u8, 1..5_usize), 1..8)) {
        let ids: Vec<String> = rows.iter().map(|(rollout, _)| format!("r{rollout}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let masks: Vec<Vec<bool>> = rows.iter().map(|(_, tokens)| vec![true; *tokens]).collect();
        let mut advantages: Vec<Vec<f32>> = rows.iter().map(|(_, tokens)| vec![1.0; *tokens]).collect();
        normalize_advantages_by_rollout(&mut advantages, &slices(&masks), &ids, rows.len()).unwrap();
        for rollout in &ids {
            let share: f32 = ids.iter().zip(&advantages).filter(|(id, _)| *id == rollout).flat_map(|(_, row)| row).sum();
            prop_assert!((share * rows.len() as f32 - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss(
        tokens in vec((-2.0..0.0_f32, -1.3..1.3_f32, -2.0..2.0_f32, any::<bool>()), 1..6), mode in differentiable(),
        aggregation in prop_oneof![Just(LossAggregation::TokenMean), Just(LossAggregation::SeqMeanTokenSum), Just(LossAggregation::SeqMeanTokenMean)],
    ) {
        let old: Vec<f32> = tokens.iter().map(|token| token.0).collect();
        let new: Vec<f32> = tokens.iter().map(|token| token.0 + token.1).collect();
        let advantages: Vec<f32> = tokens.iter().map(|token| token.2).collect();
        let mut mask: Vec<bool> = tokens.iter().map(|token| token.3).collect();
        mask[0] = true;
        let settings = LossSettings { mode, aggregation, ..LossSettings::default() };
        let loss = |log_probs: &[f32]| {
            let row = LossRow { old_log_probs: &old, log_probs, advantages: &advantages, mask: &mask, rollout_is_weights: None };
            policy_loss(&[row], &settings).unwrap()
        };
        let gradient = loss(&new).d_log_probs.concat();
        for place in (0..new.len()).filter(|place| !at_an_edge(tokens[*place].1)) {
            let at = |step: f32| {
                let mut moved = new.clone();
                moved[place] += step;
                f64::from(loss(&moved).loss)
            };
            let slope = (at(STEP) - at(-STEP)) / f64::from(2.0 * STEP);
            let found = f64::from(gradient[place]);
            prop_assert!((slope - found).abs() < 1e-3 * (1.0 + found.abs()), "{mode:?} {place}: {slope} but {found}");
        }
    }

    #[test]
    fn padding_changes_no_loss(tokens in vec((-2.0..0.0_f32, -2.0..0.0_f32, -2.0..2.0_f32, any::<bool>()), 1..6), mode in modes()) {
        let column = |pick: fn(&(f32, f32, f32, bool)) -> f32, pad: f32| {
            let mut values: Vec<f32> = tokens.iter().map(pick).collect();
            values.extend([pad; 3]);
            values
        };
        let (old, new, advantages) = (column(|t| t.0, 7.0), column(|t| t.1, f32::NAN), column(|t| t.2, 5.0));
        let mut mask: Vec<bool> = tokens.iter().map(|token| token.3).collect();
        mask[0] = true;
        mask.extend([false; 3]);
        let settings = LossSettings { mode, ..LossSettings::default() };
        let loss = |length: usize| {
            let row = LossRow {
                old_log_probs: &old[..length], log_probs: &new[..length], advantages: &advantages[..length],
                mask: &mask[..length], rollout_is_weights: None,
            };
            policy_loss(&[row], &settings).unwrap()
        };
        let (plain, padded) = (loss(tokens.len()), loss(mask.len()));
        prop_assert_eq!(plain.loss.to_bits(), padded.loss.to_bits());
        prop_assert_eq!(&plain.metrics, &padded.metrics);
        prop_assert_eq!(&plain.d_log_probs[0][..], &padded.d_log_probs[0][..tokens.len()]);
        prop_assert!(padded.d_log_probs[0][tokens.len()..].iter().all(|value| *value == 0.0));
    }
}

/// Whether the loss bends within reach of a step: where a clip of ρ, of log ρ, or dual clip begins.
fn at_an_edge(log_ratio: f32) -> bool {
    [0.8_f32.ln(), 1.2_f32.ln(), 3.0_f32.ln(), -0.2, 0.2].iter().any(|edge| (log_ratio - edge).abs() < 2.0 * STEP)
}

/// Losses whose gradient is that of the loss itself; the others hold parts constant.
fn differentiable() -> impl Strategy<Value = LossMode> {
    prop_oneof![
        Just(LossMode::PerRolloutMean),
        Just(LossMode::Vanilla),
        Just(LossMode::Gpg),
        Just(LossMode::GeoMean),
        Just(LossMode::Sapo { tau_pos: 1.0, tau_neg: 1.05 }),
    ]
}

fn modes() -> impl Strategy<Value = LossMode> {
    prop_oneof![
        differentiable(),
        Just(LossMode::Cispo),
        Just(LossMode::CispoPerRolloutMean),
        Just(LossMode::Gspo),
        Just(LossMode::DppoTv),
        Just(LossMode::DppoKl),
        Just(LossMode::KlCov { ratio: 0.2, coefficient: 0.1 }),
        Just(LossMode::ClipCov { ratio: 0.2, lower: 0.0, upper: 5.0, seed: 3 }),
    ]
}

fn row(rewards: &[f32]) -> AdvantageRow<'_> {
    AdvantageRow { group: "d", rollout_id: "r", mask: &[true], rewards, values: None, reward_baseline: None }
}

/// GRPO of one group of one-token rows.
fn grpo(rewards: &[f32], settings: &AdvantageSettings) -> (Vec<Vec<f32>>, Vec<f32>) {
    let one_token: Vec<[f32; 1]> = rewards.iter().map(|reward| [*reward]).collect();
    let rows: Vec<AdvantageRow<'_>> = one_token.iter().map(|rewards| row(rewards)).collect();
    let advantages = compute(Estimator::Grpo, &rows, settings).unwrap().advantages;
    let flat = advantages.concat();
    (advantages, flat)
}

/// Advantages of rows given as (group, reward, tokens), one number a row.
fn grouped(estimator: Estimator, rows: &[(u8, i8, usize)]) -> Vec<f32> {
    let groups: Vec<String> = rows.iter().map(|row| row.0.to_string()).collect();
    let masks: Vec<Vec<bool>> = rows.iter().map(|row| vec![true; row.2]).collect();
    let rewards: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| std::iter::repeat_n(0.0, row.2 - 1).chain([Precision::F32.round(f32::from(row.1))]).collect())
        .collect();
    let views: Vec<AdvantageRow<'_>> = (0..rows.len())
        .map(|place| AdvantageRow { group: &groups[place], mask: &masks[place], ..row(&rewards[place]) })
        .collect();
    let advantages = compute(estimator, &views, &AdvantageSettings::default()).unwrap().advantages;
    advantages.iter().map(|row| row[0]).collect()
}

fn slices(masks: &[Vec<bool>]) -> Vec<&[bool]> {
    masks.iter().map(Vec::as_slice).collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        prop_assert!((found - expected).abs() <= tolerance * expected.abs().max(1.0), "{found} is not {expected}");
    }
    Ok(())
}
