//! Causal attention with grouped queries over packed sequences, forward and backward.
//!
//! One task is one sequence and one key/value head with the query heads that share it. Long sequences go through blocks of
//! query rows, so that the scores of a block stay in cache and the keys after it are never touched; the backward pass computes
//! the weights again from the kept log-sums instead of keeping them (Dao et al. 2022, arXiv:2205.14135).

mod backward;
mod forward;

pub(crate) use backward::backward;
pub(crate) use forward::{Span, forward};

use std::ops::Range;

use rayon::prelude::*;

/// Query rows handled at a time.
const BLOCK_ROWS: usize = 64;
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

    /// Columns of head `head`, where heads lie side by side.
    fn columns(self, head: usize) -> Range<usize> {
        head * self.dim..(head + 1) * self.dim
    }

    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }
}

/// Runs the tasks, on all threads when there is enough to do.
fn run<T: Send>(tasks: Vec<T>, flops: usize, work: impl Fn(T) + Sync + Send) {
    if flops < PARALLEL_FLOPS {
        tasks.into_iter().for_each(work);
    } else {
        tasks.into_par_iter().for_each(work);
    }
}
