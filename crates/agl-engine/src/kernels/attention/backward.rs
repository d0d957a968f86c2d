//! The derivative of attention.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayViewMut2, Axis};

use super::{BLOCK_ROWS, Heads, run};
use crate::kernels::matmul::{Write, block, cut, matmul_serial, matrix, matrix_mut};
use crate::kernels::softmax::{softmax_from_log_sum, softmax_scaled_backward};

/// Adds the derivative with respect to `qkv` (rotated) to `d_qkv`, for sequences that started with no past.
///
/// `rows` are the lengths of the sequences; `out` and `log_sums` are what the forward pass wrote.
pub(crate) fn backward(
    heads: Heads,
    rows: &[usize],
    qkv: &[f32],
    out: &[f32],
    log_sums: &[f32],
    d_out: &[f32],
    d_qkv: &mut [f32],
) {
    let mut tasks = Vec::with_capacity(rows.len() * heads.kv);
    let (mut log_sums, mut start, mut flops) = (log_sums, 0, 0);
    let qkv = matrix(qkv, heads.qkv_width());
    let (out, d_out) = (matrix(out, heads.query_width()), matrix(d_out, heads.query_width()));
    let d_qkvs = cut(matrix_mut(d_qkv, heads.qkv_width()), Axis(0), rows.iter().copied());
    for (&rows, d_qkv) in rows.iter().zip(d_qkvs) {
        flops += 10 * rows * rows * heads.query_width();
        let group_widths = (0..heads.kv).map(|_| heads.group() * heads.dim);
        let kv_widths = (0..2 * heads.kv).map(|_| heads.dim);
        let mut d_queries = cut(d_qkv, Axis(1), group_widths.chain(kv_widths));
        let mut d_keys = d_queries.split_off(heads.kv);
        let d_values = d_keys.split_off(heads.kv);
        for (kv_head, ((d_queries, d_keys), d_values)) in d_queries.into_iter().zip(d_keys).zip(d_values).enumerate() {
            let (head_log_sums, rest) = log_sums.split_at(heads.group() * rows);
            log_sums = rest;
            tasks.push(Task {
                heads,
                kv_head,
                qkv: block(qkv, start..start + rows, 0..heads.qkv_width()),
                out: block(out, start..start + rows, 0..heads.query_width()),
                d_out: block(d_out, start..start + rows, 0..heads.query_width()),
                log_sums: head_log_sums,
                d_queries,
                d_keys,
                d_values,
            });
        }
        start += rows;
    }
    run(tasks, flops, Task::run);
}

/// One sequence and key/value head.
struct Task<'a> {
    heads: Heads,
    kv_head: usize,
    /// The rows of this sequence, all heads.
    qkv: ArrayView2<'a, f32>,
    out: ArrayView2<'a, f32>,
    d_out: ArrayView2<'a, f32>,
    /// Of each query head of this group, one per row.
    log_sums: &'a [f32],
    /// Columns of the query heads of this group.
    d_queries: ArrayViewMut2<'a, f32>,
    /// Columns of this head.
    d_keys: ArrayViewMut2<'a, f32>,
    d_values: ArrayViewMut2<'a, f32>,
}

impl Task<'_> {
    fn run(mut self) {
        let rows = self.qkv.nrows();
        let mut weights = vec![0.0f32; BLOCK_ROWS.min(rows) * rows];
        let mut d_scores = weights.clone();
        for in_group in 0..self.heads.group() {
            for first in (0..rows).step_by(BLOCK_ROWS) {
                let end = rows.min(first + BLOCK_ROWS);
                let scores = (end - first) * end;
                self.block(in_group, first..end, &mut weights[..scores], &mut d_scores[..scores]);
            }
        }
    }

    /// Adds what some rows of one query head contribute. The buffers hold a row of scores per query row.
    fn block(&mut self, in_group: usize, rows: Range<usize>, weights: &mut [f32], d_scores: &mut [f32]) {
        let Task { heads, kv_head, qkv, .. } = *self;
        let (scale, end) = (heads.scale(), rows.end);
        let head = heads.columns(kv_head * heads.group() + in_group);
        let queries = block(qkv, rows.clone(), head.clone());
        let keys = block(qkv, 0..end, heads.columns(heads.queries + kv_head));
        let values = block(qkv, 0..end, heads.columns(heads.queries + heads.kv + kv_head));
        let out = block(self.out, rows.clone(), head.clone());
        let d_out = block(self.d_out, rows.clone(), head);

        matmul_serial(queries, keys.reversed_axes(), Write::Replace, matrix_mut(weights, end));
        matmul_serial(d_out, values.reversed_axes(), Write::Replace, matrix_mut(d_scores, end));
        let log_sums = &self.log_sums[in_group * qkv.nrows()..][rows.clone()];
        let score_rows = weights.chunks_exact_mut(end).zip(d_scores.chunks_exact_mut(end));
        for (index, (weights, d_scores)) in score_rows.enumerate() {
            let seen = rows.start + index + 1;
            let delta = out.row(index).dot(&d_out.row(index));
            softmax_from_log_sum(&mut weights[..seen], scale, log_sums[index]);
            softmax_scaled_backward(&mut d_scores[..seen], &weights[..seen], delta, scale);
            weights[seen..].fill(0.0);
            d_scores[seen..].fill(0.0);
        }
        let (weights, d_scores) = (matrix(weights, end), matrix(d_scores, end));
        let d_queries = block(self.d_queries.view_mut(), rows, heads.columns(in_group));
        let d_keys = block(self.d_keys.view_mut(), 0..end, 0..heads.dim);
        let d_values = block(self.d_values.view_mut(), 0..end, 0..heads.dim);
        matmul_serial(d_scores, keys, Write::Accumulate, d_queries);
        matmul_serial(d_scores.reversed_axes(), queries, Write::Accumulate, d_keys);
        matmul_serial(weights.reversed_axes(), d_out, Write::Accumulate, d_values);
    }
}
