//! Metrics of a batch, the KL penalty in the rewards and learning rate schedules, vector by vector.

use agl_trainer::kl::{KlController, KlRow, penalise_rewards};
use agl_trainer::metrics::{Metrics, MetricsRow, Widths, data_metrics, group_metrics, same_reward_rows};
use agl_trainer::precision::Precision;
use agl_trainer::schedule::Schedule;
use serde_json::Value;

use crate::vectors::{check_all, close, close_matrix_at_scale, masks, matrix, number, numbers, strings};

#[test]
fn helpers_are_those_of_the_original() {
    check_all(
        "helpers",
        |v| format!("{} {}", v["kind"], v["name"]),
        |vector| match vector["kind"].as_str().unwrap() {
            "groups" => check_groups(vector),
            "lr_schedule" => check_schedule(vector),
            // The optimiser is the engine's, and tested there.
            "adamw" => Ok(()),
            kind => Err(format!("unknown kind {kind}")),
        },
    );
}

fn check_groups(vector: &Value) -> Result<(), String> {
    let groups = strings(&vector["uid"]);
    let scores = matrix(&vector["token_level_scores_bf16"]);
    let sums: Vec<f32> = scores.iter().map(|row| Precision::Bf16.sum(row.iter().copied())).collect();
    let same = Value::from(same_reward_rows(&groups, &sums));
    if same != vector["same_reward_indices"] {
        return Err(format!("same_reward_indices: {same} instead of {}", vector["same_reward_indices"]));
    }
    check_metrics(&group_metrics(&groups, &sums), &vector["group_metrics"])?;

    let advantages = matrix(&vector["advantages"]);
    let (mask, prompts) = (masks(&vector["response_mask"]), masks(&vector["prompt_mask"]));
    let attended = masks(&vector["response_attention"]);
    let count = |mask: &[bool]| mask.iter().filter(|token| **token).count();
    let rows: Vec<MetricsRow<'_>> = (0..mask.len())
        .map(|row| MetricsRow {
            prompt_length: count(&prompts[row]),
            response_length: count(&attended[row]),
            score: sums[row],
            reward: sums[row],
            advantages: &advantages[row],
            returns: &advantages[row],
            mask: &mask[row],
        })
        .collect();
    let widths = Widths { max_prompt_length: prompts[0].len(), max_response_length: mask[0].len() };
    check_metrics(&data_metrics(&rows, widths, Precision::Bf16), &vector["data_metrics"])?;

    let (log_probs, reference) = (matrix(&vector["old_log_probs"]), matrix(&vector["ref_log_prob"]));
    let rows: Vec<KlRow<'_>> = (0..mask.len())
        .map(|row| KlRow {
            scores: &scores[row],
            log_probs: &log_probs[row],
            ref_log_probs: &reference[row],
            mask: &mask[row],
        })
        .collect();
    for penalty in ["kl", "low_var_kl"] {
        for kind in ["fixed", "adaptive"] {
            let recorded = &vector[format!("kl_in_reward_{penalty}_{kind}")];
            let coefficient = number(&recorded["metrics"]["actor/reward_kl_penalty_coeff"]);
            let mut controller = match kind {
                "fixed" => KlController::Fixed { coefficient },
                // verl's own defaults.
                _ => KlController::Adaptive { coefficient, target: 0.1, horizon: HORIZON },
            };
            let (rewards, metrics) = penalise_rewards(&rows, penalty.parse().unwrap(), &mut controller).unwrap();
            // A reward of about 1 less a small penalty: torch's own rounding of e^d shows in the penalty.
            close_matrix_at_scale("rewards", &rewards, &matrix(&recorded["rewards"]), 1e-6, 1.0)?;
            check_metrics(&metrics, &recorded["metrics"])?;
            close("coef_after", controller.coefficient(), number(&recorded["coef_after"]), 1e-9, 1e-3)?;
        }
    }
    Ok(())
}

/// What the recorded adaptive controllers were made with: 13 rows move the coefficient by 2.6 %.
const HORIZON: f64 = 100.0;

fn check_metrics(found: &Metrics, recorded: &Value) -> Result<(), String> {
    let recorded = recorded.as_object().unwrap();
    if found.len() != recorded.len() {
        return Err(format!("metrics {:?} instead of {:?}", found.keys(), recorded.keys()));
    }
    recorded.iter().try_for_each(|(name, recorded)| {
        let found = found.get(name.as_str()).ok_or_else(|| format!("no metric {name}"))?;
        close(name, *found, number(recorded), 1e-6, 1e-2)
    })
}

/// The vectors don't say what the schedules were made with: some settings must give the same curve.
fn check_schedule(vector: &Value) -> Result<(), String> {
    let recorded = numbers(&vector["lrs"]);
    let base = number(&vector["base_lr"]);
    let fits = |schedule: Schedule| {
        recorded.iter().enumerate().all(|(step, recorded)| {
            close("lr", base * schedule.ratio(step), f64::from(*recorded), 1e-6, base * 1e-3).is_ok()
        })
    };
    let cosine = |min_ratio| {
        (0..=60_usize).flat_map(move |warmup_steps| {
            (warmup_steps..=120).map(move |total_steps| Schedule::Cosine {
                warmup_steps,
                total_steps,
                min_ratio,
                cycles: 0.5,
                initial_ratio: 0.0,
            })
        })
    };
    let constant = (0..=60).map(|warmup_steps| Schedule::Constant { warmup_steps });
    let mut candidates = constant.chain((0..=10).flat_map(|tenths| cosine(f64::from(tenths) / 10.0)));
    if candidates.any(fits) { Ok(()) } else { Err("no schedule of ours has this curve".into()) }
}
