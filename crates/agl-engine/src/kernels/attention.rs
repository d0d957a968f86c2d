//! Causal attention with grouped queries over packed sequences, forward and backward.
//!
//! One task is one sequence and one key/value head with the query heads that share it. Long sequences go through blocks of
//! query rows, so that the scores of a block stay in cache and the keys after it are never touched; the backward pass computes
//! the weights again from the kept log-sums instead of keeping them (Dao et al. 2022, arXiv:2205.14135).

#![expect(clippy::needless_pass_by_value, reason = "a view is a pointer and a shape: it is passed by value")]

use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;

use super::matmul::{Write, block, matmul_serial, matrix, matrix_mut};
use super::rows::{add_scaled, dot};
use super::softmax::{softmax_from_log_sum, softmax_scaled, softmax_scaled_backward};

/// Query rows handled at a time.
const BLOCK_ROWS: usize = 64;
/// Query rows up to which plain loops over the keys beat matrix products: a decoded token is one row.
const FEW_ROWS: usize = 2;
/// Multiplications and additions of a batch below which one thread is faster than two.
const PARALLEL_FLOPS: usize = 1 << 18;

/// Numbers and sizes of heads. A row of `qkv` holds all queries, then all keys, then all values, head after head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) queries: usize,
    pub(crate) kv: usize,
    pub(crate) dim: usize,
}

impl Heads {
    pub(crate) fn query_width(self) -> usize {
        self.queries * self.dim
    }

    pub(crate) fn kv_width(self) -> usize {
        self.kv * self.dim
    }

    pub(crate) fn qkv_width(self) -> usize {
        self.query_width() + 2 * self.kv_width()
    }

    /// Query heads that share one key/value head.
    fn group(self) -> usize {
        self.queries / self.kv
    }

    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Work of one pass: two products over every pair of a query row and a key.
    fn flops(self, spans: &[Span<'_>]) -> usize {
        let pairs: usize = spans.iter().map(|span| span.rows * span.keys.len() / self.kv_width()).sum();
        4 * pairs * self.query_width()
    }
}

/// One sequence of a batch: how many rows are its own, and all keys and values it sees, those of its rows last.
pub(crate) struct Span<'a> {
    pub(crate) rows: usize,
    /// `[past + rows, kv_width]`
    pub(crate) keys: &'a [f32],
    /// `[past + rows, kv_width]`
    pub(crate) values: &'a [f32],
}

/// Runs the tasks, on all threads when there is enough to do.
fn run<T: Send>(tasks: Vec<T>, flops: usize, work: impl Fn(T) + Sync + Send) {
    if flops < PARALLEL_FLOPS {
        tasks.into_iter().for_each(work);
    } else {
        tasks.into_par_iter().for_each(work);
    }
}

/// Columns of head `head`.
fn columns(head: usize, dim: usize) -> std::ops::Range<usize> {
    head * dim..(head + 1) * dim
}

/// Attends from every row of `qkv` (rotated) and writes `[rows, query_width]` to `out`.
///
/// `log_sums`, one per row and query head, is what [`backward`] needs; its order is private to this module.
pub(crate) fn forward(heads: Heads, qkv: &[f32], spans: &[Span<'_>], out: &mut [f32], log_sums: &mut [f32]) {
    let mut tasks = Vec::with_capacity(spans.len() * heads.kv);
    let (mut qkv, mut out, mut log_sums) = (qkv, matrix_mut(out, heads.query_width()), log_sums);
    for span in spans {
        let (span_qkv, rest) = qkv.split_at(span.rows * heads.qkv_width());
        qkv = rest;
        let (mut span_out, rest) = out.split_at(Axis(0), span.rows);
        out = rest;
        for kv_head in 0..heads.kv {
            let (head_out, rest) = span_out.split_at(Axis(1), heads.group() * heads.dim);
            span_out = rest;
            let (head_log_sums, rest) = log_sums.split_at_mut(heads.group() * span.rows);
            log_sums = rest;
            tasks.push(Forward { span, qkv: span_qkv, kv_head, out: head_out, log_sums: head_log_sums });
        }
    }
    run(tasks, heads.flops(spans), |task| task.attend(heads));
}

struct Forward<'a> {
    span: &'a Span<'a>,
    qkv: &'a [f32],
    kv_head: usize,
    out: ArrayViewMut2<'a, f32>,
    log_sums: &'a mut [f32],
}

impl Forward<'_> {
    fn attend(mut self, heads: Heads) {
        let rows = self.span.rows;
        for in_group in 0..heads.group() {
            let query_head = self.kv_head * heads.group() + in_group;
            let out = block(self.out.view_mut(), 0..rows, columns(in_group, heads.dim));
            let log_sums = &mut self.log_sums[in_group * rows..][..rows];
            if rows <= FEW_ROWS {
                attend_few(heads, self.span, self.qkv, (query_head, self.kv_head), out, log_sums);
            } else {
                let queries = block(matrix(self.qkv, heads.qkv_width()), 0..rows, columns(query_head, heads.dim));
                attend_blocks(heads, self.span, queries, self.kv_head, out, log_sums);
            }
        }
    }
}

/// Row by row, for decoding.
fn attend_few(
    heads: Heads,
    span: &Span<'_>,
    qkv: &[f32],
    (query_head, kv_head): (usize, usize),
    mut out: ArrayViewMut2<f32>,
    log_sums: &mut [f32],
) {
    let (width, kv_columns) = (heads.kv_width(), columns(kv_head, heads.dim));
    let past = span.keys.len() / width - span.rows;
    let mut scores = Vec::with_capacity(past + span.rows);
    let mut mixed = vec![0.0f32; heads.dim];
    for (row, (qkv, log_sum)) in qkv.chunks_exact(heads.qkv_width()).zip(log_sums).enumerate() {
        let query = &qkv[columns(query_head, heads.dim)];
        let seen = past + row + 1;
        scores.clear();
        scores.extend(span.keys.chunks_exact(width).take(seen).map(|key| dot(query, &key[kv_columns.clone()])));
        *log_sum = softmax_scaled(&mut scores, heads.scale());
        mixed.fill(0.0);
        for (weight, value) in scores.iter().zip(span.values.chunks_exact(width)) {
            add_scaled(&mut mixed, *weight, &value[kv_columns.clone()]);
        }
        out.row_mut(row).iter_mut().zip(&mixed).for_each(|(o, m)| *o = *m);
    }
}

/// In blocks of rows, for prompts and training.
fn attend_blocks(
    heads: Heads,
    span: &Span<'_>,
    queries: ArrayView2<f32>,
    kv_head: usize,
    mut out: ArrayViewMut2<f32>,
    log_sums: &mut [f32],
) {
    let past = span.keys.len() / heads.kv_width() - span.rows;
    let (keys, values) = (matrix(span.keys, heads.kv_width()), matrix(span.values, heads.kv_width()));
    let head = columns(kv_head, heads.dim);
    let mut buffer = vec![0.0f32; BLOCK_ROWS.min(span.rows) * (past + span.rows)];
    for first in (0..span.rows).step_by(BLOCK_ROWS) {
        let end = span.rows.min(first + BLOCK_ROWS);
        let visible = past + end;
        let scores = &mut buffer[..(end - first) * visible];
        let queries = block(queries, first..end, 0..heads.dim);
        let (keys, values) = (block(keys, 0..visible, head.clone()), block(values, 0..visible, head.clone()));
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

/// Adds the derivative with respect to `qkv` (rotated) to `d_qkv`, for sequences that started with no past.
///
/// `rows` are the lengths of the sequences; `out` and `log_sums` are what [`forward`] wrote.
pub(crate) fn backward<'a>(
    heads: Heads,
    rows: &[usize],
    qkv: &'a [f32],
    out: &'a [f32],
    log_sums: &'a [f32],
    d_out: &'a [f32],
    d_qkv: &'a mut [f32],
) {
    let mut tasks = Vec::with_capacity(rows.len() * heads.kv);
    let (mut d_qkv, mut log_sums, mut start) = (matrix_mut(d_qkv, heads.qkv_width()), log_sums, 0);
    let (qkv, out, d_out) =
        (matrix(qkv, heads.qkv_width()), matrix(out, heads.query_width()), matrix(d_out, heads.query_width()));
    let group_width = heads.group() * heads.dim;
    let mut flops = 0;
    for &rows in rows {
        flops += 10 * rows * rows * heads.query_width();
        let span = |all: ArrayView2<'a, f32>| block(all, start..start + rows, 0..all.ncols());
        let (span_d_qkv, rest) = d_qkv.split_at(Axis(0), rows);
        d_qkv = rest;
        let (mut d_queries, d_kv) = span_d_qkv.split_at(Axis(1), heads.query_width());
        let (mut d_keys, mut d_values) = d_kv.split_at(Axis(1), heads.kv_width());
        for kv_head in 0..heads.kv {
            let (head_log_sums, rest) = log_sums.split_at(heads.group() * rows);
            log_sums = rest;
            let (d_q, rest) = d_queries.split_at(Axis(1), group_width);
            d_queries = rest;
            let (d_k, rest) = d_keys.split_at(Axis(1), heads.dim);
            d_keys = rest;
            let (d_v, rest) = d_values.split_at(Axis(1), heads.dim);
            d_values = rest;
            tasks.push(Backward {
                qkv: span(qkv),
                out: span(out),
                d_out: span(d_out),
                log_sums: head_log_sums,
                kv_head,
                d_q,
                d_k,
                d_v,
            });
        }
        start += rows;
    }
    run(tasks, flops, |task| task.run(heads));
}

/// One sequence and key/value head.
struct Backward<'a> {
    qkv: ArrayView2<'a, f32>,
    out: ArrayView2<'a, f32>,
    d_out: ArrayView2<'a, f32>,
    log_sums: &'a [f32],
    kv_head: usize,
    d_q: ArrayViewMut2<'a, f32>,
    d_k: ArrayViewMut2<'a, f32>,
    d_v: ArrayViewMut2<'a, f32>,
}

impl Backward<'_> {
    fn run(mut self, heads: Heads) {
        let (rows, dim, scale) = (self.qkv.nrows(), heads.dim, heads.scale());
        let keys = columns(heads.queries + self.kv_head, dim);
        let values = columns(heads.queries + heads.kv + self.kv_head, dim);
        let mut weights_buffer = vec![0.0f32; BLOCK_ROWS.min(rows) * rows];
        let mut d_weights_buffer = weights_buffer.clone();
        for in_group in 0..heads.group() {
            let head = columns(self.kv_head * heads.group() + in_group, dim);
            let log_sums = &self.log_sums[in_group * rows..][..rows];
            for first in (0..rows).step_by(BLOCK_ROWS) {
                let end = rows.min(first + BLOCK_ROWS);
                let weights = &mut weights_buffer[..(end - first) * end];
                let d_weights = &mut d_weights_buffer[..(end - first) * end];
                let queries = block(self.qkv, first..end, head.clone());
                let (keys, values) = (block(self.qkv, 0..end, keys.clone()), block(self.qkv, 0..end, values.clone()));
                let (out, d_out) =
                    (block(self.out, first..end, head.clone()), block(self.d_out, first..end, head.clone()));

                matmul_serial(queries, keys.reversed_axes(), Write::Replace, matrix_mut(weights, end));
                matmul_serial(d_out, values.reversed_axes(), Write::Replace, matrix_mut(d_weights, end));
                let row_pairs = weights.chunks_exact_mut(end).zip(d_weights.chunks_exact_mut(end));
                for ((weights, d_weights), (row, (out, d_out))) in
                    row_pairs.zip((first..end).zip(out.rows().into_iter().zip(d_out.rows())))
                {
                    let delta: f32 = out.iter().zip(&d_out).map(|(o, d)| o * d).sum();
                    let seen = row + 1;
                    softmax_from_log_sum(&mut weights[..seen], scale, log_sums[row]);
                    softmax_scaled_backward(&mut d_weights[..seen], &weights[..seen], delta, scale);
                    weights[seen..].fill(0.0);
                    d_weights[seen..].fill(0.0);
                }
                let (weights, d_scores) = (matrix(weights, end), matrix(d_weights, end));
                let d_q = block(self.d_q.view_mut(), first..end, columns(in_group, dim));
                let d_k = block(self.d_k.view_mut(), 0..end, 0..dim);
                let d_v = block(self.d_v.view_mut(), 0..end, 0..dim);
                matmul_serial(d_scores, keys, Write::Accumulate, d_q);
                matmul_serial(d_scores.reversed_axes(), queries, Write::Accumulate, d_k);
                matmul_serial(weights.reversed_axes(), d_out, Write::Accumulate, d_v);
            }
        }
    }
}
