//! e^x in plain arithmetic, so that the compiler turns loops over it into vector instructions.
//!
//! The library's `f32::exp` is a call per element, and softmax and `SwiGLU` together take several hundred per token and
//! layer. Method: Cephes' `expf` (range reduction by powers of two, then a polynomial of degree five on ±ln2/2).

/// e^x to within 3e-7 of relative error for x in [-87, 88]; clamped outside, NaN stays NaN.
// A call in its place would keep the loops around it from being vectorised.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, and leaves that integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let r = x - power * LN_2_HIGH - power * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let e_r = p * r * r + r + 1.0;
    let two_to_power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    e_r * two_to_power
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn agrees_with_the_exact_function() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "exp({x}): relative error {error}");
            x += 0.003_1;
        }
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
    }

    #[test]
    fn extremes_are_clamped_and_nan_is_kept() {
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(1e9).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }
}
