//! Rollout correction against verl's, vector by vector.

use agl_trainer::correction::{
    Bounds, Correction, CorrectionConfig, CorrectionMetrics, CorrectionRow, ImportanceSampling, correct,
};
use serde_json::Value;

use crate::vectors::{check_all, close, close_matrix, masks, matrix, number};

#[test]
fn corrections_are_those_of_verl() {
    check_all("rollout_correction", |v| format!("{} {}", v["data"], v["settings"]), check);
}

fn check(vector: &Value) -> Result<(), String> {
    let recorded_error = vector.pointer("/error/message").and_then(Value::as_str);
    let config: CorrectionConfig = serde_json::from_value(vector["settings"].clone()).map_err(|e| e.to_string())?;
    let masks = masks(&vector["response_mask"]);
    let (log_probs, rollout_log_probs) = (matrix(&vector["old_log_prob"]), matrix(&vector["rollout_log_prob"]));
    let rows: Vec<CorrectionRow<'_>> = (0..masks.len())
        .map(|row| CorrectionRow {
            log_probs: &log_probs[row],
            rollout_log_probs: &rollout_log_probs[row],
            mask: &masks[row],
        })
        .collect();
    // verl looks at the mask before it looks at the settings.
    let correction = match config.parse() {
        Ok(correction) => correction,
        Err(_) if masks.iter().flatten().all(|sampled| !sampled) => Correction::default(),
        Err(error) => return same_error(&error.to_string(), recorded_error),
    };
    let found = match correct(&rows, &correction) {
        Ok(found) => found,
        Err(error) => return same_error(&error.to_string(), recorded_error),
    };
    if let Some(recorded) = recorded_error {
        // Where all weights are 0 verl divides by 0; here the effective sample size is 0.
        let size = found.metrics.get("rollout_corr/rollout_is_eff_sample_size");
        let divided = recorded == "float division by zero" && size == Some(&0.0);
        return if divided { Ok(()) } else { Err(format!("not refused: {recorded}")) };
    }
    match (&found.weights, vector["weights"].is_null()) {
        (None, true) => {}
        (Some(weights), false) => close_matrix("weights", weights, &matrix(&vector["weights"]), 2e-6)?,
        _ => return Err(format!("weights {:?} instead of {}", found.weights, vector["weights"])),
    }
    if found.masks != crate::vectors::masks(&vector["modified_mask"]) {
        return Err(format!("mask {:?} instead of {}", found.masks, vector["modified_mask"]));
    }
    let mut recorded = vector["metrics"].clone();
    if let Some(ImportanceSampling { bounds: Bounds::Truncate { .. }, .. }) = correction.importance_sampling {
        // No mean of weights that were cut to a bound is above it, but for the rounding of verl's sum.
        recorded["rollout_corr/rollout_is_seq_fraction_high"] = 0.0.into();
    }
    check_metrics(&found.metrics, &recorded)
}

fn same_error(found: &str, recorded: Option<&str>) -> Result<(), String> {
    let recorded = recorded.unwrap_or("no error");
    // The names of a Python set come in any order.
    let same = found == recorded
        || (found.starts_with("Invalid rollout_is:") && found.split("Must").next() == recorded.split("Must").next());
    if same { Ok(()) } else { Err(format!("refused with `{found}` instead of `{recorded}`")) }
}

/// All metrics, and no other.
pub(crate) fn check_metrics(found: &CorrectionMetrics, recorded: &Value) -> Result<(), String> {
    let recorded = recorded.as_object().unwrap();
    let correction = || recorded.iter().filter(|(name, _)| name.starts_with("rollout_corr/"));
    if !found.keys().eq(correction().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>()) {
        return Err(format!("metrics {:?} instead of {:?}", found.keys(), recorded.keys()));
    }
    correction().try_for_each(|(name, recorded)| {
        let (found, recorded) = (found[name], number(recorded));
        if name.ends_with("_std") {
            // A small difference of squares: as exact as the squares are.
            return close(&format!("{name}²"), found * found, recorded * recorded, 1e-6, 1.0);
        }
        // Most are a mean of terms around 1, from which 1 is taken away; exponentials make twice as much of an error.
        close(name, found, recorded, 2e-6, 0.2)
    })
}
