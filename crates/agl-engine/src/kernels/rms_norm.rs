//! Root-mean-square layer normalisation: `y = w · x / sqrt(mean(x²) + eps)` (Zhang and Sennrich 2019, arXiv:1910.07467).

use rayon::prelude::*;

use super::rows::{add_assign, dot, for_each_row};

/// Rows whose weight gradients are summed before the sums are added up: fixed, so that the result is.
const BLOCK_ROWS: usize = 256;

fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Normalises each row of `x` into `out`; both are `[rows, weight.len()]`.
pub(crate) fn forward(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for_each_row(out, width, |row, out| {
        let x = &x[row * width..][..width];
        let inverse = inverse_rms(x, eps);
        for ((y, x), w) in out.iter_mut().zip(x).zip(weight) {
            *y = x * inverse * w;
        }
    });
}

/// Adds the derivative with respect to `x` to `d_x` and the one with respect to `weight` to `d_weight`.
pub(crate) fn backward(d_out: &[f32], x: &[f32], weight: &[f32], eps: f32, d_x: &mut [f32], d_weight: &mut [f32]) {
    let width = weight.len();
    let block = BLOCK_ROWS * width;
    let mut partial = vec![0.0f32; d_x.len().div_ceil(block) * width];
    let blocks =
        (d_x.par_chunks_mut(block), d_out.par_chunks(block), x.par_chunks(block), partial.par_chunks_mut(width));
    blocks.into_par_iter().for_each(|(d_x, d_out, x, d_weight)| {
        let rows = d_x.chunks_exact_mut(width).zip(d_out.chunks_exact(width)).zip(x.chunks_exact(width));
        for ((d_x, d_out), x) in rows {
            row_backward(d_out, x, weight, eps, d_x, d_weight);
        }
    });
    partial.chunks_exact(width).for_each(|sum| add_assign(d_weight, sum));
}

fn row_backward(d_out: &[f32], x: &[f32], weight: &[f32], eps: f32, d_x: &mut [f32], d_weight: &mut [f32]) {
    let inverse = inverse_rms(x, eps);
    let mut projection = 0.0;
    for (((dw, d), x), w) in d_weight.iter_mut().zip(d_out).zip(x).zip(weight) {
        *dw += d * x * inverse;
        projection += d * w * x;
    }
    let pull = projection * inverse * inverse * inverse / x.len() as f32;
    for (((dx, d), x), w) in d_x.iter_mut().zip(d_out).zip(x).zip(weight) {
        *dx += d * w * inverse - x * pull;
    }
}
