//! The numeric building blocks of the Llama family, each with its hand-written derivative.
//!
//! A model of 0.2M parameters spends its time between operations, not in them: a general tensor library pays for shapes,
//! allocations and a graph at each of them and comes out several times slower here (see
//! `docs/reference/engine-performance.md`). So these kernels work on plain slices: an activation is `rows × width` f32 in
//! row-major order, one row a token, sequences packed one after the other with no padding.
//!
//! Every kernel gives the same floats on every run, whatever the number of threads: work is cut over outputs, never over
//! the terms of a sum, and where a sum runs over all tokens its blocks have a fixed size.

pub(crate) mod attention;
pub(crate) mod exp;
pub(crate) mod matmul;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod swiglu;
