//! The gated feed-forward activation: `silu(gate) · up` (Shazeer 2020, arXiv:2002.05202).
//!
//! `gate_up` is `[rows, 2 · width]`: the gate in the first half of each row, as one product with both weights gives it.

use super::exp::exp;
use super::rows::for_each_row;

/// Writes the activation of each row to `out`, `[rows, width]`.
pub(crate) fn forward(gate_up: &[f32], width: usize, out: &mut [f32]) {
    for_each_row(out, width, |row, out| {
        let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
        for ((y, g), u) in out.iter_mut().zip(gate).zip(up) {
            *y = g / (1.0 + exp(-g)) * u;
        }
    });
}

/// Writes the derivative with respect to `gate_up` to `d_gate_up`, of the same shape.
pub(crate) fn backward(d_out: &[f32], gate_up: &[f32], width: usize, d_gate_up: &mut [f32]) {
    for_each_row(d_gate_up, 2 * width, |row, d_row| {
        let d_out = &d_out[row * width..][..width];
        let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
        let (d_gate, d_up) = d_row.split_at_mut(width);
        for ((((dg, du), d), g), u) in d_gate.iter_mut().zip(d_up).zip(d_out).zip(gate).zip(up) {
            let sigmoid = 1.0 / (1.0 + exp(-g));
            *du = d * g * sigmoid;
            *dg = d * u * sigmoid * (1.0 + g * (1.0 - sigmoid));
        }
    });
}
