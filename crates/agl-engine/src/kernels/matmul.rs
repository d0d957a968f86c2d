//! Matrix products: `ndarray` over `matrixmultiply`, cut over rayon's threads when large.
//!
//! Measured against the alternatives on two cores with AVX2 (see `docs/reference/engine-performance.md`): the `gemm` crate
//! is 1–15 % faster at the sizes of these models but can only be called with `unsafe`; `faer` is safe and fastest but takes
//! over a minute of cold build. This pair is safe, and builds in seconds. Its weakness, products with very few rows, where it
//! spends its time packing the weights, is what [`linear`] handles by itself.

#![expect(clippy::needless_pass_by_value, reason = "a view is a pointer and a shape: it is passed by value")]

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayBase, ArrayView2, ArrayViewMut2, Axis, Ix2, RawData, Slice};
use rayon::prelude::*;

use super::rows::dot;

/// What happens to the values that are already in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Replace,
    Accumulate,
}

/// Multiplications and additions below which one thread is faster than two.
const PARALLEL_FLOPS: usize = 1 << 20;
/// Rows of `x` up to which a dot product per output beats packing the weights.
const FEW_ROWS: usize = 4;
/// Outputs one task of [`few_rows`] computes: their weights stay in the second-level cache over the rows of `x`.
const FEW_ROWS_OUTPUTS: usize = 64;

/// A slice as a row-major matrix of `width` columns.
#[expect(clippy::expect_used, reason = "a slice that is not whole rows is a mistake in this crate, never in its input")]
pub(crate) fn matrix(data: &[f32], width: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((data.len() / width, width), data).expect("the slice holds whole rows")
}

/// A mutable slice as a row-major matrix of `width` columns.
#[expect(clippy::expect_used, reason = "a slice that is not whole rows is a mistake in this crate, never in its input")]
pub(crate) fn matrix_mut(data: &mut [f32], width: usize) -> ArrayViewMut2<'_, f32> {
    ArrayViewMut2::from_shape((data.len() / width, width), data).expect("the slice holds whole rows")
}

/// The block of a matrix at these rows and columns. (ndarray's `s![]` does the same but expands to `unsafe`.)
pub(crate) fn block<S: RawData>(
    mut matrix: ArrayBase<S, Ix2>,
    rows: Range<usize>,
    columns: Range<usize>,
) -> ArrayBase<S, Ix2> {
    matrix.slice_axis_inplace(Axis(0), Slice::from(rows));
    matrix.slice_axis_inplace(Axis(1), Slice::from(columns));
    matrix
}

/// Cuts a matrix along `axis` into pieces of these lengths, so that each can go to another thread.
pub(crate) fn cut(
    matrix: ArrayViewMut2<'_, f32>,
    axis: Axis,
    lengths: impl IntoIterator<Item = usize>,
) -> Vec<ArrayViewMut2<'_, f32>> {
    let mut pieces = Vec::new();
    let mut rest = matrix;
    for length in lengths {
        let (piece, after) = rest.split_at(axis, length);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// `out = a b` on the calling thread.
pub(crate) fn matmul_serial(a: ArrayView2<f32>, b: ArrayView2<f32>, write: Write, mut out: ArrayViewMut2<f32>) {
    let beta = if write == Write::Accumulate { 1.0 } else { 0.0 };
    general_mat_mul(1.0, &a, &b, beta, &mut out);
}

/// `out = a b`, over all threads when the product is large.
pub(crate) fn matmul(a: ArrayView2<f32>, b: ArrayView2<f32>, write: Write, out: ArrayViewMut2<f32>) {
    let flops = 2 * a.nrows() * a.ncols() * b.ncols();
    let pieces = rayon::current_num_threads().min(flops / PARALLEL_FLOPS);
    matmul_pieces(a, b, write, out, pieces);
}

/// Cuts the longer side of the output in `pieces`. The sums are never cut, so the result doesn't depend on `pieces`.
fn matmul_pieces(a: ArrayView2<f32>, b: ArrayView2<f32>, write: Write, out: ArrayViewMut2<f32>, pieces: usize) {
    let (rows, columns) = out.dim();
    // Whole tiles of the micro-kernel: a ragged edge costs as much as a full tile.
    let cut = |length: usize| (length * (pieces / 2) / pieces).next_multiple_of(8);
    if pieces < 2 || cut(rows.max(columns)) >= rows.max(columns) {
        return matmul_serial(a, b, write, out);
    }
    let (left, right) = (pieces / 2, pieces - pieces / 2);
    if rows >= columns {
        let (a_top, a_bottom) = a.split_at(Axis(0), cut(rows));
        let (top, bottom) = out.split_at(Axis(0), cut(rows));
        rayon::join(|| matmul_pieces(a_top, b, write, top, left), || matmul_pieces(a_bottom, b, write, bottom, right));
    } else {
        let (b_left, b_right) = b.split_at(Axis(1), cut(columns));
        let (out_left, out_right) = out.split_at(Axis(1), cut(columns));
        rayon::join(
            || matmul_pieces(a, b_left, write, out_left, left),
            || matmul_pieces(a, b_right, write, out_right, right),
        );
    }
}

/// `out = x weightᵀ`: `x` is `[rows, inputs]`, `weight` is `[outputs, inputs]` as checkpoints store it.
pub(crate) fn linear(x: &[f32], weight: &[f32], inputs: usize, out: &mut [f32]) {
    let (rows, outputs) = (x.len() / inputs, weight.len() / inputs);
    if rows <= FEW_ROWS {
        few_rows(x, weight, inputs, matrix_mut(out, outputs));
    } else {
        matmul(matrix(x, inputs), matrix(weight, inputs).t(), Write::Replace, matrix_mut(out, outputs));
    }
}

fn few_rows(x: &[f32], weight: &[f32], inputs: usize, mut out: ArrayViewMut2<f32>) {
    let flops = 2 * x.len() * out.ncols();
    let block = |(mut out, weight): (ArrayViewMut2<f32>, &[f32])| {
        for (mut out, x) in out.rows_mut().into_iter().zip(x.chunks_exact(inputs)) {
            for (value, weight) in out.iter_mut().zip(weight.chunks_exact(inputs)) {
                *value = dot(x, weight);
            }
        }
    };
    let blocks = out.axis_chunks_iter_mut(Axis(1), FEW_ROWS_OUTPUTS).zip(weight.chunks(FEW_ROWS_OUTPUTS * inputs));
    if flops < PARALLEL_FLOPS / 4 {
        blocks.for_each(block);
    } else {
        blocks.collect::<Vec<_>>().into_par_iter().for_each(block);
    }
}

/// `d_x = d_out weight`: the derivative of [`linear`] with respect to its input.
pub(crate) fn linear_input_grad(d_out: &[f32], weight: &[f32], inputs: usize, d_x: &mut [f32]) {
    let outputs = weight.len() / inputs;
    matmul(matrix(d_out, outputs), matrix(weight, inputs), Write::Replace, matrix_mut(d_x, inputs));
}

/// `d_weight += d_outᵀ x`: the derivative of [`linear`] with respect to its weight, added up.
pub(crate) fn linear_weight_grad(d_out: &[f32], x: &[f32], inputs: usize, d_weight: &mut [f32]) {
    let outputs = d_weight.len() / inputs;
    matmul(matrix(d_out, outputs).reversed_axes(), matrix(x, inputs), Write::Accumulate, matrix_mut(d_weight, inputs));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * step).collect()
    }

    fn reference(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
        x.chunks(inputs).flat_map(|x| weight.chunks(inputs).map(move |w| dot(x, w))).collect()
    }

    #[test]
    fn linear_agrees_with_the_definition_for_few_and_many_rows() {
        for (rows, inputs, outputs) in [(1, 64, 192), (4, 7, 130), (5, 16, 3), (130, 65, 70), (1, 576, 1536)] {
            let (x, weight) = (ramp(rows * inputs, 0.01), ramp(outputs * inputs, 0.02));
            let mut out = vec![f32::NAN; rows * outputs];
            linear(&x, &weight, inputs, &mut out);
            for (got, expected) in out.iter().zip(reference(&x, &weight, inputs)) {
                assert!((f64::from(*got) - expected).abs() < 1e-3, "{rows}x{inputs}x{outputs}: {got} {expected}");
            }
        }
    }

    #[test]
    fn the_number_of_pieces_does_not_change_a_bit() {
        let (m, k, n) = (61, 300, 75);
        let (a, b) = (ramp(m * k, 0.013), ramp(k * n, 0.017));
        for (rows, columns) in [(m, n), (n, m)] {
            let results: Vec<Vec<u32>> = [1, 2, 3, 7]
                .map(|pieces| {
                    let mut out = ramp(rows * columns, 0.5);
                    let (a, b) = (matrix(&a[..rows.min(m) * k], k), matrix(&b[..k * columns.min(n)], columns.min(n)));
                    let out_view = matrix_mut(&mut out[..a.nrows() * b.ncols()], b.ncols());
                    matmul_pieces(a, b, Write::Accumulate, out_view, pieces);
                    out.iter().map(|v| v.to_bits()).collect()
                })
                .into();
            assert!(results.iter().all(|r| *r == results[0]), "{rows}x{columns}");
        }
    }
}
