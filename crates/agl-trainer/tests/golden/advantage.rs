//! Advantages against verl's estimators and the original's rollout-level computation, vector by vector.

use crate::vectors::{close_matrix, close_matrix_at_scale, masks, matrix, number, numbers, strings};
use agl_trainer::advantage::{AdvantageRow, AdvantageSettings, Estimator, compute, compute_by_rollout};
use agl_trainer::metrics::Metrics;
use agl_trainer::precision::Precision;
use serde_json::Value;

#[test]
fn advantages_are_those_of_verl() {
    crate::vectors::check_all(
        "advantage",
        |v| {
            format!(
                "{} {} {} gamma={} by_std={}",
                v["name"], v["estimator"], v["mode"], v["gamma"], v["norm_adv_by_std_in_grpo"]
            )
        },
        check,
    );
}

fn check(vector: &Value) -> Result<(), String> {
    let groups = vector.get("uid").filter(|uid| !uid.is_null()).map(strings);
    let rollout_ids = vector.get("rollout_id").filter(|ids| !ids.is_null()).map(strings);
    let recorded_error = vector.pointer("/error/message").and_then(Value::as_str);
    // A row here always has its group and its rollout, one each.
    let unthinkable = ["requires rollout_id_list", "requires uid or data_id_list", "must match batch length"];
    if recorded_error.is_some_and(|message| unthinkable.iter().any(|part| message.contains(part))) {
        return Ok(());
    }
    let (Some(groups), Some(rollout_ids)) = (groups, rollout_ids) else { return Err("no ids".into()) };
    let masks = masks(&vector["response_mask"]);
    let rewards = matrix(&vector["token_level_rewards_bf16"]);
    let values = vector.get("values").map(matrix);
    let baselines = vector.get("reward_baselines").map(numbers);
    let rows: Vec<AdvantageRow<'_>> = (0..masks.len())
        .map(|row| AdvantageRow {
            group: groups[row],
            rollout_id: rollout_ids[row],
            mask: &masks[row],
            rewards: &rewards[row],
            values: values.as_ref().map(|values| values[row].as_slice()),
            reward_baseline: baselines.as_ref().map(|baselines| baselines[row]),
        })
        .collect();
    let estimator: Estimator = serde_json::from_value(vector["estimator"].clone()).map_err(|e| e.to_string())?;
    let settings = AdvantageSettings {
        norm_adv_by_std_in_grpo: vector["norm_adv_by_std_in_grpo"].as_bool().unwrap_or(true),
        gamma: vector["gamma"].as_f64().unwrap_or(1.0) as f32,
        lam: vector["lam"].as_f64().unwrap_or(1.0) as f32,
        precision: Precision::Bf16,
    };
    let found = match vector["mode"].as_str().unwrap() {
        "row" => compute(estimator, &rows, &settings).map(|advantages| (advantages, Metrics::new())),
        _ => compute_by_rollout(estimator, &rows, &settings).map(|(found, stats)| (found, stats.metrics())),
    };
    match (found, recorded_error) {
        (Err(error), Some(recorded)) if error.to_string() == recorded => Ok(()),
        (Err(error), _) => Err(format!("{error} instead of {recorded_error:?}")),
        (Ok(_), Some(recorded)) => Err(format!("not refused: {recorded}")),
        (Ok((found, metrics)), None) => {
            // GAE is whitened in single precision: torch's error in the mean shows in what is close to it.
            let share = if estimator == Estimator::Gae { 1.0 } else { 1e-3 };
            close_matrix_at_scale("advantages", &found.advantages, &matrix(&vector["advantages"]), 1e-6, share)?;
            close_matrix("returns", &found.returns, &matrix(&vector["returns"]), 1e-6)?;
            let recorded = vector["metrics"].as_object().unwrap();
            let same = metrics.len() == recorded.len()
                && metrics.iter().all(|(name, found)| recorded.get(*name).map(number) == Some(*found));
            if same { Ok(()) } else { Err(format!("metrics {metrics:?} instead of {recorded:?}")) }
        }
    }
}
