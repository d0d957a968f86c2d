//! A curve in one line of text.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Stands for values that are not finite.
const GAP: char = '·';
/// Widest sparkline, in characters; longer series are averaged down to it.
const MAX_WIDTH: usize = 40;

/// What the lowest and the highest block stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// 0 and 1, so that sparklines of rates can be compared. Values outside are drawn at the edge.
    Unit,
    /// The least and the greatest of the values.
    Data,
}

/// Draws `values`, oldest first, one block each; more than 40 are averaged in 40 equal parts.
/// NaN and infinity leave a gap (`·`).
pub fn sparkline(values: &[f64], range: Range) -> String {
    let means: Vec<f64> = parts(values).map(mean).collect();
    let finite = || means.iter().copied().filter(|mean| mean.is_finite());
    let (low, high) = match range {
        Range::Unit => (0.0, 1.0),
        Range::Data => (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max)),
    };
    means.iter().map(|&mean| block(mean, low, high)).collect()
}

/// At most [`MAX_WIDTH`] consecutive parts of nearly equal length.
fn parts(values: &[f64]) -> impl Iterator<Item = &[f64]> {
    let width = values.len().min(MAX_WIDTH);
    (0..width).map(move |part| &values[part * values.len() / width..(part + 1) * values.len() / width])
}

/// Mean of the finite values; NaN if there is none.
fn mean(values: &[f64]) -> f64 {
    let (sum, finite) = values.iter().filter(|v| v.is_finite()).fold((0.0, 0.0), |(sum, n), v| (sum + v, n + 1.0));
    sum / finite
}

fn block(value: f64, low: f64, high: f64) -> char {
    if !value.is_finite() {
        return GAP;
    }
    // Constant data has no height of its own: draw it in the middle.
    let height = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
    let top = BLOCKS.len() - 1;
    BLOCKS[((height * BLOCKS.len() as f64) as usize).min(top)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_range_is_absolute() {
        assert_eq!(sparkline(&[0.0, 0.3, 0.5, 0.7, 1.0], Range::Unit), "▁▃▅▆█");
        assert_eq!(sparkline(&[-3.0, 7.0], Range::Unit), "▁█");
    }

    #[test]
    fn data_range_stretches_to_the_data() {
        assert_eq!(sparkline(&[0.30, 0.31, 0.32], Range::Data), "▁▅█");
        assert_eq!(sparkline(&[-10.0, 90.0], Range::Data), "▁█");
    }

    #[test]
    fn degenerate_series() {
        for range in [Range::Unit, Range::Data] {
            assert_eq!(sparkline(&[], range), "");
            assert_eq!(sparkline(&[f64::NAN, f64::INFINITY], range), "··");
            assert_eq!(sparkline(&[0.0, f64::NAN, 1.0], range), "▁·█");
        }
        assert_eq!(sparkline(&[0.5], Range::Unit), "▅");
        assert_eq!(sparkline(&[123.0], Range::Data), "▅");
        assert_eq!(sparkline(&[7.0, 7.0, 7.0], Range::Data), "▅▅▅");
    }

    #[test]
    fn long_series_are_averaged() {
        let rising: Vec<f64> = (0..10_000).map(f64::from).collect();
        let line = sparkline(&rising, Range::Data);
        assert_eq!(line, "▁▁▁▁▁▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇█████");
        assert_eq!(sparkline(&rising[..41], Range::Data).chars().count(), MAX_WIDTH);
    }
}
