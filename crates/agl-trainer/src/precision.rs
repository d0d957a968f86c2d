//! The floating-point format that rewards and advantages are computed in.
//!
//! verl keeps token-level scores as bfloat16, so every reward and everything derived from it has 8 significant bits
//! there: a reward of 0.1 is 0.100097…, and each operation on it rounds again. [`Precision::Bf16`] does the same,
//! operation by operation; [`Precision::F32`] does not throw the bits away.

use half::bf16;

/// The format that each operation rounds its result to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Single precision: the rewards as they were posted.
    #[default]
    F32,
    /// bfloat16, as verl's `token_level_scores`.
    Bf16,
}

impl Precision {
    /// The nearest number of this format (ties to even).
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Sum in single precision, rounded once at the end, as torch sums bfloat16.
    pub fn sum(self, values: impl IntoIterator<Item = f32>) -> f32 {
        self.round(values.into_iter().map(f64::from).sum::<f64>() as f32)
    }

    /// Mean, rounded once at the end. NaN for no values.
    pub fn mean(self, values: &[f32]) -> f32 {
        let sum: f64 = values.iter().copied().map(f64::from).sum();
        self.round((sum / values.len() as f64) as f32)
    }

    /// Standard deviation with Bessel's correction, rounded once at the end. NaN for fewer than two values.
    pub fn std(self, values: &[f32]) -> f32 {
        let n = values.len() as f64;
        let mean = values.iter().copied().map(f64::from).sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum();
        self.round((squares / (n - 1.0)).sqrt() as f32)
    }
}

/// `torch.allclose` of one pair: |a − b| ≤ 1e-8 + 1e-5·|b|; NaN is close to nothing, infinities to themselves only.
pub(crate) fn is_close(a: f32, b: f32) -> bool {
    if a.is_infinite() || b.is_infinite() {
        return a.to_bits() == b.to_bits();
    }
    (f64::from(a) - f64::from(b)).abs() <= 1e-8 + 1e-5 * f64::from(b).abs()
}

#[cfg(test)]
mod tests {
    use super::Precision::{Bf16, F32};

    #[test]
    fn bf16_keeps_eight_bits_and_rounds_ties_to_even() {
        assert_eq!(Bf16.round(0.1).to_bits(), (205.0_f32 / 2048.0).to_bits());
        let (one, ulp) = (1.0_f32, 1.0 / 128.0);
        assert_eq!(Bf16.round(one + 0.5 * ulp).to_bits(), one.to_bits());
        assert_eq!(Bf16.round(one + 1.5 * ulp).to_bits(), (one + 2.0 * ulp).to_bits());
        assert_eq!(F32.round(0.1).to_bits(), 0.1_f32.to_bits());
    }

    #[test]
    fn std_is_of_the_sample_not_the_population() {
        assert!((F32.std(&[1.0, 2.0, 3.0, 4.0]) - 1.290_994_4).abs() < 1e-6);
        assert!(F32.std(&[1.0]).is_nan());
        assert_eq!(F32.std(&[0.3, 0.3, 0.3]).to_bits(), 0.0_f32.to_bits());
    }
}
