//! Rows, tensors and metrics against the original's `RolloutAdapter`, vector by vector.

use crate::vectors::{number, numbers};
use agl_protocol::RolloutState;
use agl_trainer::metrics::Metrics;
use agl_trainer::padding::{PaddedBatch, Padding, pad};
use agl_trainer::rollout::{CompletedRollout, Triplet};
use agl_trainer::rows::{
    Aggregated, Aggregation, LogProbCheck, RECORDS_PER_STEP, Row, RowRefusal, ValidationStats, aggregate,
    trajectory_records,
};
use agl_trainer::settings::{AggregationLevel, OnFailed};
use serde_json::{Value, json};

#[test]
fn rows_and_tensors_are_those_of_the_original() {
    crate::vectors::check_all("adapter", |v| format!("{} ({})", text(&v["name"]), text(&v["level"])), check);
}

fn check(vector: &Value) -> Result<(), String> {
    let rollouts: Vec<CompletedRollout> = vector["rollouts"].as_array().unwrap().iter().map(rollout).collect();
    let config = &vector["config"];
    let fill = number(&config["reward_fillna_value"]);
    check_metrics("test_metrics", ValidationStats::new(&rollouts, fill).metrics().as_ref(), &vector["test_metrics"])?;

    let level: Result<AggregationLevel, _> = serde_json::from_value(vector["level"].clone());
    let Ok(level) = level else {
        return recorded_error(vector, "Unknown trace_aggregator_level");
    };
    let length = |key: &str| config[key].as_u64().map(|length| length as usize);
    let aggregation = Aggregation {
        level,
        max_prompt_length: length("max_prompt_length").unwrap(),
        max_response_length: length("max_response_length").unwrap(),
        max_total_length: length("max_total_length"),
        missing_reward: Some(fill),
        on_failed: OnFailed::Train,
        log_prob_check: LogProbCheck::WholeRow,
    };
    let aggregated = aggregate(&rollouts, &aggregation);
    check_mismatches(&aggregated, &rollouts, vector)?;
    check_records(&rollouts, fill, &vector["trajectory_records"])?;
    check_warnings(&aggregated, vector["stdout"].as_array().unwrap())?;
    check_exactness(&aggregated, &rollouts, &aggregation)?;

    let padding = Padding {
        prompt_length: aggregation.max_prompt_length,
        response_length: aggregation.max_response_length,
        pad_token_id: length("pad_token_id").unwrap() as u32,
    };
    match pad(&aggregated.rows, level, padding) {
        Err(error) => recorded_error(vector, &error.to_string()),
        Ok(_) if vector.get("error").is_some() => Err(format!("not refused: {}", vector["error"])),
        Ok(batch) => {
            check_tensors(&batch, &vector["tensors"])?;
            check_ids(&aggregated.rows, &vector["non_tensor"])?;
            check_metrics("metrics", Some(&aggregated.metrics(level)), &vector["metrics"])
        }
    }
}

fn rollout(value: &Value) -> CompletedRollout {
    CompletedRollout {
        rollout_id: text(&value["rollout_id"]).to_owned(),
        data_id: text(&value["data_id"]).to_owned(),
        step: value["step"].as_u64().unwrap() as usize,
        sample_idx_in_step: value["sample_idx_in_step"].as_u64().unwrap() as usize,
        final_reward: (!value["final_reward"].is_null()).then(|| number(&value["final_reward"])),
        triplets: value["triplets"].as_array().into_iter().flatten().map(triplet).collect(),
        state: RolloutState::Succeeded,
        error_message: None,
    }
}

fn triplet(value: &Value) -> Triplet {
    let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    Triplet {
        prompt_ids: ids(&value["prompt"]["token_ids"]),
        response_ids: ids(&value["response"]["token_ids"]),
        log_probs: value["response"]["log_probs"].is_array().then(|| numbers(&value["response"]["log_probs"])),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn recorded_error(vector: &Value, message: &str) -> Result<(), String> {
    let recorded = vector.pointer("/error/message").and_then(Value::as_str).unwrap_or("no error");
    if recorded.contains(message) { Ok(()) } else { Err(format!("refused with `{message}` instead of `{recorded}`")) }
}

fn check_tensors(batch: &PaddedBatch, recorded: &Value) -> Result<(), String> {
    let ints = |values: &[i64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
    let scores: Vec<f32> = batch.token_level_scores.iter().map(|score| score.to_f32()).collect();
    let drops = batch.is_drop_mask.iter().map(|drop| f32::from(u8::from(*drop))).collect();
    let tensors = [
        ("prompts", Some(ints(&batch.prompts))),
        ("responses", Some(ints(&batch.responses))),
        ("input_ids", Some(ints(&batch.input_ids))),
        ("attention_mask", Some(ints(&batch.attention_mask))),
        ("position_ids", Some(ints(&batch.position_ids))),
        ("is_drop_mask", Some(drops)),
        ("token_level_scores", Some(scores)),
        ("response_mask", batch.response_mask.as_deref().map(ints)),
        ("rollout_log_probs", batch.rollout_log_probs.clone()),
    ];
    let unknown = recorded.as_object().unwrap().keys().find(|name| tensors.iter().all(|(known, _)| known != name));
    if let Some(name) = unknown {
        return Err(format!("no tensor {name}"));
    }
    for (name, found) in tensors {
        let data = recorded.get(name).map(|tensor| flatten(&tensor["data"]));
        let bits = |values: &Option<Vec<f32>>| {
            // Adding 0 makes one of both zeros.
            values.as_ref().map(|values| values.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<u32>>())
        };
        if bits(&found) != bits(&data) {
            return Err(format!("{name}: {found:?} instead of {data:?}"));
        }
    }
    Ok(())
}

fn flatten(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(values) => values.iter().flat_map(flatten).collect(),
        value => vec![number(value) as f32],
    }
}

fn check_ids(rows: &[Row], recorded: &Value) -> Result<(), String> {
    let rollout_ids: Vec<&str> = rows.iter().map(|row| row.rollout_id.as_str()).collect();
    let data_ids: Vec<&str> = rows.iter().map(|row| row.data_id.as_str()).collect();
    let turns: Vec<usize> = rows.iter().map(|row| row.turn_index).collect();
    let same = Value::from(rollout_ids) == recorded["rollout_id_list"]
        && Value::from(data_ids) == recorded["data_id_list"]
        && recorded.get("turn_index_list").is_none_or(|recorded| Value::from(turns) == *recorded);
    if same { Ok(()) } else { Err(format!("rows differ from {recorded}")) }
}

fn check_metrics(what: &str, found: Option<&Metrics>, recorded: &Value) -> Result<(), String> {
    let Some(found) = found else {
        return if recorded.get("error").is_some() { Ok(()) } else { Err(format!("no {what}")) };
    };
    let recorded = recorded.as_object().unwrap();
    if !found.keys().copied().eq(recorded.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>()) {
        return Err(format!("{what}: names {:?} instead of {:?}", found.keys(), recorded.keys()));
    }
    found
        .iter()
        .try_for_each(|(name, found)| crate::vectors::close(name, *found, number(&recorded[*name]), 1e-12, 1e-3))
}

/// The original keeps the first 100 breaks, and their ids as text.
fn check_mismatches(found: &Aggregated, rollouts: &[CompletedRollout], vector: &Value) -> Result<(), String> {
    let Some(recorded) = vector.get("mismatch_rows").and_then(Value::as_array) else { return Ok(()) };
    if found.mismatches.len().min(100) != recorded.len() {
        return Err(format!("{} breaks instead of {}", found.mismatches.len(), recorded.len()));
    }
    for (mismatch, recorded) in found.mismatches.iter().zip(recorded) {
        let trace = |turn: usize| {
            let call = &rollouts[mismatch.rollout].triplets[turn];
            as_text(&[call.prompt_ids.clone(), call.response_ids.clone()].concat())
        };
        let mut row = recorded.clone();
        row["rollout_id"] = mismatch.rollout_id.clone().into();
        row["data_id"] = mismatch.data_id.clone().into();
        row["turn_index"] = mismatch.turn_index.into();
        row["prompt_length"] = mismatch.prompt_length.into();
        row["response_length"] = mismatch.response_length.into();
        row["previous_trace_length"] = mismatch.previous_trace_length.into();
        row["current_trace_length"] = mismatch.current_trace_length.into();
        row["previous_trace"] = trace(mismatch.turn_index - 1).into();
        row["current_trace"] = trace(mismatch.turn_index).into();
        if row != *recorded {
            return Err(format!("break {row} instead of {recorded}"));
        }
    }
    Ok(())
}

fn check_records(rollouts: &[CompletedRollout], fill: f64, recorded: &Value) -> Result<(), String> {
    let records: Vec<Value> = trajectory_records(rollouts, fill, RECORDS_PER_STEP)
        .iter()
        .map(|record| {
            json!({
                "rollout_id": record.rollout_id,
                "reward": record.reward,
                "prompt": as_text(record.prompt_ids),
                "response": as_text(record.response_ids),
            })
        })
        .collect();
    if recorded.is_null() || Value::from(records.clone()) == *recorded {
        return Ok(());
    }
    Err(format!("trajectory_records: {records:?} instead of {recorded}"))
}

/// Ids as the original writes them when it has no tokenizer.
fn as_text(ids: &[u32]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// What the original prints is a refusal or a count here.
fn check_warnings(found: &Aggregated, recorded: &[Value]) -> Result<(), String> {
    let without_calls = found.refusals.iter().filter(|refused| refused.reason == RowRefusal::NoTriplets);
    let mut warnings: Vec<String> = without_calls
        .map(|refused| format!("Warning: No triplets found for training rollout {}, skipping.", refused.rollout_id))
        .collect();
    let missing = found.rows_without_log_probs();
    if 0 < missing && missing < found.rows.len() {
        warnings.push("Warning: Mixed rollout log_probs availability, omitting rollout_log_probs from batch.".into());
    }
    if warnings == recorded { Ok(()) } else { Err(format!("warnings {warnings:?} instead of {recorded:?}")) }
}

/// By our own rule a row is the same but for log-probabilities, and these are each its token's own.
fn check_exactness(original: &Aggregated, rollouts: &[CompletedRollout], rule: &Aggregation) -> Result<(), String> {
    let exact = aggregate(rollouts, &Aggregation { log_prob_check: LogProbCheck::EachCall, ..rule.clone() });
    for (row, exact) in original.rows.iter().zip(&exact.rows) {
        let kept = Row { rollout_log_probs: row.rollout_log_probs.clone(), ..exact.clone() };
        if *row != kept {
            return Err(format!("{exact:?} differs in more than log-probabilities from {row:?}"));
        }
        if exact.rollout_log_probs.is_some() && exact.rollout_log_probs != row.rollout_log_probs {
            return Err(format!("{exact:?} has other log-probabilities than {row:?}"));
        }
    }
    Ok(())
}
