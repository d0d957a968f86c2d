//! Losses, gradients and metrics against verl's and the original's, vector by vector.

use crate::vectors::{close, close_matrix, masks, matrix, number, strings};
use agl_trainer::correction::CorrectionConfig;
use agl_trainer::kl::{KlPenalty, UnknownKlPenalty};
use agl_trainer::loss::{
    BypassLoss, GlobalBatch, LossAggregation, LossMode, LossRow, LossSettings, PolicyLoss, aggregate_loss, bypass_loss,
    normalize_advantages_by_rollout, policy_loss,
};
use serde_json::{Value, json};

#[test]
fn losses_are_those_of_verl() {
    crate::vectors::check_all("loss", |v| name(v).join(" "), check);
}

fn name(vector: &Value) -> Vec<String> {
    ["kind", "loss_mode", "loss_type", "loss_agg_mode", "mode", "penalty", "clip", "global_batch_info", "rollout_is"]
        .iter()
        .filter_map(|key| vector.get(*key).map(ToString::to_string))
        .collect()
}

fn check(vector: &Value) -> Result<(), String> {
    match vector["kind"].as_str().unwrap() {
        "normalize" => check_normalize(vector),
        "policy_loss" => check_policy_loss(vector),
        "agg_loss" => check_aggregation(vector),
        "kl_penalty" => check_kl_penalty(vector),
        "bypass_loss" => check_bypass_loss(vector),
        kind => Err(format!("unknown kind {kind}")),
    }
}

fn check_normalize(vector: &Value) -> Result<(), String> {
    let mut advantages = matrix(&vector["advantages"]);
    let masks = masks(&vector["response_mask"]);
    let trained_rows = vector["num_trained_rows"].as_u64().unwrap() as usize;
    normalize_advantages_by_rollout(&mut advantages, &slices(&masks), &strings(&vector["rollout_ids"]), trained_rows)
        .map_err(|error| error.to_string())?;
    close_matrix("out", &advantages, &matrix(&vector["out"]), 1e-6)
}

fn check_policy_loss(vector: &Value) -> Result<(), String> {
    // verl's own defaults of the settings that only one mode has.
    match vector["loss_mode"].as_str().unwrap() {
        "sapo" => check_policy_loss_as(LossMode::Sapo { tau_pos: 1.0, tau_neg: 1.05 }, vector),
        "kl_cov" => check_policy_loss_as(LossMode::KlCov { ratio: 0.0002, coefficient: 0.1 }, vector),
        // verl picks with torch's generator: some pick of ours must give the same.
        "clip_cov" => (0..64)
            .map(|seed| LossMode::ClipCov { ratio: 0.0002, lower: 1.0, upper: 5.0, seed })
            .map(|mode| check_policy_loss_as(mode, vector))
            .reduce(Result::or)
            .unwrap(),
        name => check_policy_loss_as(serde_json::from_value(json!(name)).map_err(|error| error.to_string())?, vector),
    }
}

fn check_policy_loss_as(mode: LossMode, vector: &Value) -> Result<(), String> {
    let arrays = Arrays::new(vector);
    let settings = LossSettings { mode, ..settings(vector) };
    let found = policy_loss(&arrays.rows(), &settings).map_err(|error| error.to_string())?;
    check_loss(&found, vector)
}

fn check_bypass_loss(vector: &Value) -> Result<(), String> {
    let kind = match vector["loss_type"].as_str().unwrap() {
        "reinforce" => BypassLoss::Reinforce,
        _ => BypassLoss::PpoClip,
    };
    let correction: CorrectionConfig = serde_json::from_value(vector.clone()).map_err(|error| error.to_string())?;
    let correction = correction.parse().map_err(|error| error.to_string())?;
    let arrays = Arrays::new(vector);
    let (found, metrics) =
        bypass_loss(&arrays.rows(), kind, &correction, &settings(vector)).map_err(|e| e.to_string())?;
    check_loss(&found, vector)?;
    crate::correction::check_metrics(&metrics, &vector["metrics"])
}

/// The arrays of a loss vector.
struct Arrays {
    old: Vec<Vec<f32>>,
    new: Vec<Vec<f32>>,
    advantages: Vec<Vec<f32>>,
    masks: Vec<Vec<bool>>,
    weights: Option<Vec<Vec<f32>>>,
}

impl Arrays {
    fn new(vector: &Value) -> Self {
        let [old, new, advantages] = ["old_log_prob", "log_prob", "advantages"].map(|key| matrix(&vector[key]));
        let weights = vector.get("rollout_is_weights").filter(|weights| !weights.is_null()).map(matrix);
        Self { old, new, advantages, masks: masks(&vector["response_mask"]), weights }
    }

    fn rows(&self) -> Vec<LossRow<'_>> {
        (0..self.masks.len())
            .map(|row| LossRow {
                old_log_probs: &self.old[row],
                log_probs: &self.new[row],
                advantages: &self.advantages[row],
                mask: &self.masks[row],
                rollout_is_weights: self.weights.as_ref().map(|weights| weights[row].as_slice()),
            })
            .collect()
    }
}

fn settings(vector: &Value) -> LossSettings {
    let clip = |key: &str, default: f32| vector["clip"].get(key).map_or(default, |value| number(value) as f32);
    let width = vector["response_mask"][0].as_array().unwrap().len();
    LossSettings {
        mode: LossMode::default(),
        aggregation: aggregation(&vector["loss_agg_mode"], &Value::Null, width),
        clip_ratio_low: clip("clip_ratio_low", clip("clip_ratio", 0.2)),
        clip_ratio_high: clip("clip_ratio_high", clip("clip_ratio", 0.2)),
        clip_ratio_c: clip("clip_ratio_c", 3.0),
        global_batch: global_batch(&vector["global_batch_info"]),
    }
}

fn check_loss(found: &PolicyLoss, vector: &Value) -> Result<(), String> {
    let gradient = matrix(&vector["grad"]);
    close_matrix("grad", &found.d_log_probs, &gradient, 1e-6)?;
    // A sum is no more exact than its terms: where they cancel, torch's own rounding shows.
    let scale = 0.1 * gradient.iter().flatten().map(|value| f64::from(value.abs())).sum::<f64>();
    close("loss", f64::from(found.loss), number(&vector["loss"]), 1e-6, scale)?;
    let recorded = vector["metrics"].as_object().unwrap();
    let of_loss = || recorded.iter().filter(|(name, _)| name.starts_with("actor/"));
    if found.metrics.len() != of_loss().count() {
        return Err(format!("metrics {:?} instead of {recorded:?}", found.metrics));
    }
    of_loss().try_for_each(|(name, recorded)| {
        let found = found.metrics.get(name.as_str()).ok_or_else(|| format!("no metric {name}"))?;
        // The KL is a mean of numbers of either sign.
        close(name, *found, number(recorded), 1e-6, 0.05)
    })
}

fn check_aggregation(vector: &Value) -> Result<(), String> {
    let (losses, masks) = (matrix(&vector["loss_mat"]), masks(&vector["loss_mask"]));
    let losses: Vec<&[f32]> = losses.iter().map(Vec::as_slice).collect();
    let aggregation = aggregation(&vector["mode"], &vector["kwargs"], masks[0].len());
    let batch = global_batch(&vector["kwargs"]);
    let found = aggregate_loss(&losses, &slices(&masks), aggregation, &batch).map_err(|error| error.to_string())?;
    close("out", f64::from(found), number(&vector["out"]), 1e-6, 1e-3)
}

fn check_kl_penalty(vector: &Value) -> Result<(), String> {
    let penalty: KlPenalty =
        vector["penalty"].as_str().unwrap().parse().map_err(|e: UnknownKlPenalty| e.to_string())?;
    let (log_probs, reference) = (matrix(&vector["logprob"]), matrix(&vector["ref"]));
    let both: Vec<Vec<(f32, f32)>> = log_probs
        .iter()
        .zip(&reference)
        .map(|(log_probs, reference)| log_probs.iter().zip(reference).map(|(p, q)| penalty.of(*p, *q)).collect())
        .collect();
    let part = |pick: fn(&(f32, f32)) -> f32| both.iter().map(|row| row.iter().map(pick).collect()).collect::<Vec<_>>();
    close_matrix("out", &part(|both| both.0), &matrix(&vector["out"]), 1e-6)?;
    close_matrix("grad_of_sum", &part(|both| both.1), &matrix(&vector["grad_of_sum"]), 1e-6)
}

/// verl takes the padded width where no horizon is set.
fn aggregation(mode: &Value, kwargs: &Value, width: usize) -> LossAggregation {
    match mode.as_str().unwrap() {
        "seq-mean-token-sum-norm" => {
            let horizon =
                kwargs.get("loss_scale_factor").and_then(Value::as_u64).map_or(width, |factor| factor as usize);
            LossAggregation::SeqMeanTokenSumNorm { horizon }
        }
        mode => serde_json::from_value(json!(mode)).unwrap(),
    }
}

fn global_batch(info: &Value) -> GlobalBatch {
    let count = |key: &str| info.get(key).and_then(Value::as_u64).map(|count| count as usize);
    GlobalBatch {
        dp_size: count("dp_size").unwrap_or(1),
        tokens: count("batch_num_tokens"),
        rows: count("global_batch_size"),
    }
}

fn slices(masks: &[Vec<bool>]) -> Vec<&[bool]> {
    masks.iter().map(Vec::as_slice).collect()
}
