//! Row-wise work, spread over threads only where it is long enough to pay for waking them.

use rayon::prelude::*;

/// Elements below which one thread is faster than two: an element costs about a nanosecond, a wake-up several thousand.
const PARALLEL_ELEMENTS: usize = 32 * 1024;
/// Elements one task handles at least.
const TASK_ELEMENTS: usize = 8 * 1024;

/// Calls `work(index, row)` for each row of `data`, in no particular order.
pub(crate) fn for_each_row(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if data.len() < PARALLEL_ELEMENTS {
        data.chunks_exact_mut(width).enumerate().for_each(|(index, row)| work(index, row));
        return;
    }
    let rows_per_task = TASK_ELEMENTS.div_ceil(width);
    data.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, rows)| {
        let first = task * rows_per_task;
        rows.chunks_exact_mut(width).enumerate().for_each(|(index, row)| work(first + index, row));
    });
}

/// `target += source`, element by element.
pub(crate) fn add_assign(target: &mut [f32], source: &[f32]) {
    for (t, s) in target.iter_mut().zip(source) {
        *t += s;
    }
}

/// `target += factor * source`, element by element.
pub(crate) fn add_scaled(target: &mut [f32], factor: f32, source: &[f32]) {
    for (t, s) in target.iter_mut().zip(source) {
        *t += factor * s;
    }
}

/// Running sums of a long reduction: independent, so that they fill the vector registers.
const LANES: usize = 16;

/// Sum of products.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((a_blocks, a_rest), (b_blocks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    total(lanes) + rest
}

/// Sum of `term` over all values.
#[inline]
pub(crate) fn sum_of(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += term(*value);
        }
    }
    let rest: f32 = rest.iter().map(|value| term(*value)).sum();
    total(lanes) + rest
}

/// Sum of the running sums, as a tree: four short chains instead of one long one.
fn total(lanes: [f32; LANES]) -> f32 {
    let four: [f32; 4] = std::array::from_fn(|i| (lanes[i] + lanes[i + 4]) + (lanes[i + 8] + lanes[i + 12]));
    (four[0] + four[1]) + (four[2] + four[3])
}

/// Largest value; negative infinity for none. A NaN is passed over: it shows in the sums instead.
pub(crate) fn max(values: &[f32]) -> f32 {
    // Not `f32::max`: its handling of NaN keeps it from becoming one vector instruction.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, *value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_cover_blocks_and_rest() {
        for len in [0usize, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..len).map(|i| i as f32 - 20.0).collect();
            let expected: f32 = values.iter().sum();
            assert!((sum_of(&values, |v| v) - expected).abs() < 1e-4, "sum of {len}");
            let expected: f32 = values.iter().map(|v| v * v).sum();
            assert!((dot(&values, &values) - expected).abs() < 1e-2, "dot of {len}");
            assert_eq!(max(&values).to_bits(), values.last().copied().unwrap_or(f32::NEG_INFINITY).to_bits());
        }
    }

    #[test]
    fn every_row_is_visited_once_with_its_index() {
        for rows in [3usize, 5000] {
            let mut data = vec![0.0f32; rows * 9];
            for_each_row(&mut data, 9, |index, row| row.iter_mut().for_each(|v| *v += index as f32 + 1.0));
            for (index, row) in data.chunks_exact(9).enumerate() {
                assert!(row.iter().all(|v| (*v - index as f32 - 1.0).abs() < 0.5), "row {index} of {rows}");
            }
        }
    }
}
