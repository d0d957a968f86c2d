//! Means, extremes and deviations, summed in double precision and rounded to single as torch's are.

/// d beyond this is taken as this, so that e^d stays finite.
pub(super) const SAFETY_BOUND: f32 = 20.0;

/// verl's `masked_mean`: 0 for no value.
pub(super) fn masked_mean(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, count) = values.fold((0.0_f64, 0_usize), |(sum, count), value| (sum + f64::from(value), count + 1));
    sum as f32 / (count as f32 + 1e-8)
}

/// Plain mean; NaN for no value.
pub(super) fn mean(values: &[f32]) -> f32 {
    (values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64) as f32
}

/// Standard deviation with Bessel's correction, 0 for a single value.
pub(super) fn std(values: &[f32]) -> f32 {
    if values.len() > 1 { crate::precision::Precision::F32.std(values) } else { 0.0 }
}

/// Share of values for which it holds.
pub(super) fn share(values: &[f32], holds: impl Fn(f32) -> bool) -> f64 {
    values.iter().filter(|value| holds(**value)).count() as f64 / values.len() as f64
}

/// Largest value.
pub(super) fn max(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Smallest value.
pub(super) fn min(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::INFINITY, f32::min)
}

/// √(mean of squares − square of mean) of values within bounds, 0 for fewer than two: in single precision, cancellation
/// included, as verl computes it.
pub(super) fn clamped_std(values: &[f32], lower: f32, upper: f32) -> f32 {
    if values.len() < 2 {
        return 0.0;
    }
    let clamped = || values.iter().map(|value| value.max(lower).min(upper));
    let mean = masked_mean(clamped());
    let squares = masked_mean(clamped().map(|value| value * value));
    (squares - mean * mean).max(0.0).sqrt()
}
