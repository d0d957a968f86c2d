//! Attention from new rows to everything before them.

#![expect(clippy::needless_pass_by_value, reason = "a view is a pointer and a shape: it is passed by value")]

use ndarray::{ArrayView2, ArrayViewMut2, Axis};

use super::{BLOCK_ROWS, Heads, run};
use crate::kernels::matmul::{Write, block, cut, matmul_serial, matrix, matrix_mut};
use crate::kernels::rows::{add_scaled, dot};
use crate::kernels::softmax::softmax_scaled;

/// Query rows up to which plain loops over the keys beat matrix products: a decoded token is one row.
const FEW_ROWS: usize = 2;

/// One sequence of a batch: how many rows are its own, and all keys and values it sees, those of its rows last.
pub(crate) struct Span<'a> {
    pub(crate) rows: usize,
    /// `[past + rows, kv_width]`
    pub(crate) keys: &'a [f32],
    /// `[past + rows, kv_width]`
    pub(crate) values: &'a [f32],
}

impl Span<'_> {
    fn past(&self, heads: Heads) -> usize {
        self.keys.len() / heads.kv_width() - self.rows
    }
}

/// Attends from every row of `qkv` (rotated) and writes `[rows, query_width]` to `out`.
///
/// `log_sums`, one per row and query head, is what the backward pass needs; its order is private to this module.
pub(crate) fn forward(heads: Heads, qkv: &[f32], spans: &[Span<'_>], out: &mut [f32], log_sums: &mut [f32]) {
    let mut tasks = Vec::with_capacity(spans.len() * heads.kv);
    let (mut qkv, mut log_sums, mut flops) = (qkv, log_sums, 0);
    let outs = cut(matrix_mut(out, heads.query_width()), Axis(0), spans.iter().map(|span| span.rows));
    for (span, out) in spans.iter().zip(outs) {
        flops += 4 * span.rows * (span.past(heads) + span.rows) * heads.query_width();
        let (span_qkv, rest) = qkv.split_at(span.rows * heads.qkv_width());
        qkv = rest;
        let head_outs = cut(out, Axis(1), (0..heads.kv).map(|_| heads.group() * heads.dim));
        for (kv_head, out) in head_outs.into_iter().enumerate() {
            let (head_log_sums, rest) = log_sums.split_at_mut(heads.group() * span.rows);
            log_sums = rest;
            tasks.push(Task { heads, span, qkv: span_qkv, kv_head, out, log_sums: head_log_sums });
        }
    }
    run(tasks, flops, Task::run);
}

/// One sequence and key/value head.
struct Task<'a> {
    heads: Heads,
    span: &'a Span<'a>,
    qkv: &'a [f32],
    kv_head: usize,
    /// Columns of the query heads of this group.
    out: ArrayViewMut2<'a, f32>,
    /// Of each query head of this group, one per row.
    log_sums: &'a mut [f32],
}

impl Task<'_> {
    fn run(mut self) {
        let Task { heads, span, qkv, kv_head, .. } = self;
        let outs = cut(self.out.view_mut(), Axis(1), (0..heads.group()).map(|_| heads.dim));
        for ((in_group, out), log_sums) in outs.into_iter().enumerate().zip(self.log_sums.chunks_exact_mut(span.rows)) {
            let query_head = kv_head * heads.group() + in_group;
            if span.rows <= FEW_ROWS {
                few_rows(heads, span, qkv, (query_head, kv_head), out, log_sums);
            } else {
                let queries = block(matrix(qkv, heads.qkv_width()), 0..span.rows, heads.columns(query_head));
                in_blocks(heads, span, queries, kv_head, out, log_sums);
            }
        }
    }
}

/// Row by row, for decoding.
fn few_rows(
    heads: Heads,
    span: &Span<'_>,
    qkv: &[f32],
    (query_head, kv_head): (usize, usize),
    mut out: ArrayViewMut2<f32>,
    log_sums: &mut [f32],
) {
    let (width, head, past) = (heads.kv_width(), heads.columns(kv_head), span.past(heads));
    let mut scores = Vec::with_capacity(past + span.rows);
    let mut mixed = vec![0.0f32; heads.dim];
    for (row, (qkv, log_sum)) in qkv.chunks_exact(heads.qkv_width()).zip(log_sums).enumerate() {
        let query = &qkv[heads.columns(query_head)];
        let seen = past + row + 1;
        scores.clear();
        scores.extend(span.keys.chunks_exact(width).take(seen).map(|key| dot(query, &key[head.clone()])));
        *log_sum = softmax_scaled(&mut scores, heads.scale());
        mixed.fill(0.0);
        for (weight, value) in scores.iter().zip(span.values.chunks_exact(width)) {
            add_scaled(&mut mixed, *weight, &value[head.clone()]);
        }
        out.row_mut(row).iter_mut().zip(&mixed).for_each(|(o, m)| *o = *m);
    }
}

/// In blocks of rows, for prompts and training.
fn in_blocks(
    heads: Heads,
    span: &Span<'_>,
    queries: ArrayView2<f32>,
    kv_head: usize,
    mut out: ArrayViewMut2<f32>,
    log_sums: &mut [f32],
) {
    let past = span.past(heads);
    let (keys, values) = (matrix(span.keys, heads.kv_width()), matrix(span.values, heads.kv_width()));
    let mut buffer = vec![0.0f32; BLOCK_ROWS.min(span.rows) * (past + span.rows)];
    for first in (0..span.rows).step_by(BLOCK_ROWS) {
        let end = span.rows.min(first + BLOCK_ROWS);
        let visible = past + end;
        let scores = &mut buffer[..(end - first) * visible];
        let queries = block(queries, first..end, 0..heads.dim);
        let keys = block(keys, 0..visible, heads.columns(kv_head));
        let values = block(values, 0..visible, heads.columns(kv_head));
        matmul_serial(queries, keys.reversed_axes(), Write::Replace, matrix_mut(scores, visible));
        for (row, scores) in (first..end).zip(scores.chunks_exact_mut(visible)) {
            let (seen, masked) = scores.split_at_mut(past + row + 1);
            log_sums[row] = softmax_scaled(seen, heads.scale());
            masked.fill(0.0);
        }
        let out = block(out.view_mut(), first..end, 0..heads.dim);
        matmul_serial(matrix(scores, visible), values, Write::Replace, out);
    }
}
