//! Axes: where a value lies on the sheet, and which round numbers are written beside it.

use serde::Serialize;

use crate::numbers;

/// Values beyond this are drawn at the edge: their differences would not be finite.
const LARGEST_DRAWN: f64 = 1e100;

/// Maps values to pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
    tick_step: f64,
}

/// A mark beside an axis.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

impl Axis {
    /// Training steps: from 0 to the last one.
    pub(super) fn of_steps(last_step: f64, from_px: f64, to_px: f64) -> Self {
        let high = last_step.max(1.0);
        // There is no half step.
        Self { low: 0.0, high, from_px, to_px, tick_step: round_step(high, most_ticks(to_px - from_px, 70.0)).max(1.0) }
    }

    /// Rewards: from 0 to 1 if all are there, so that curves can be compared; else to the next round numbers around them.
    pub(super) fn of_rewards(rewards: impl Iterator<Item = f64>, from_px: f64, to_px: f64) -> Self {
        let (least, greatest) = rewards
            .map(|reward| reward.clamp(-LARGEST_DRAWN, LARGEST_DRAWN))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), r| (least.min(r), greatest.max(r)));
        let (least, greatest) = match (least, greatest) {
            (least, greatest) if least > greatest || (least >= 0.0 && greatest <= 1.0) => (0.0, 1.0),
            // A constant gets some room on either side.
            (least, greatest) if greatest - least <= 1e-9 * greatest.abs() => {
                (least - 0.1 * least.abs(), least + 0.1 * least.abs())
            }
            range => range,
        };
        let tick_step = round_step(greatest - least, most_ticks(from_px - to_px, 45.0));
        let (low, high) = ((least / tick_step).floor() * tick_step, (greatest / tick_step).ceil() * tick_step);
        Self { low, high, from_px, to_px, tick_step }
    }

    /// The pixel of a value.
    pub(super) fn px(&self, value: f64) -> f64 {
        let share = ((value.clamp(-LARGEST_DRAWN, LARGEST_DRAWN) - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        to_tenth(self.from_px + share * (self.to_px - self.from_px))
    }

    /// The pixel where the axis starts.
    pub(super) fn start_px(&self) -> f64 {
        self.from_px
    }

    /// The pixel where the axis ends.
    pub(super) fn end_px(&self) -> f64 {
        self.to_px
    }

    /// Marks at round numbers.
    pub(super) fn ticks(&self) -> Vec<Tick> {
        let first = (self.low / self.tick_step).ceil();
        // A hair beyond the end still counts: 3 × 0.1 is more than 0.3.
        let count = ((self.high / self.tick_step + 1e-6).floor() - first).max(0.0) as usize;
        let values = (0..=count).map(|nth| (first + nth as f64) * self.tick_step);
        values.map(|value| Tick { at: self.px(value), label: label(value, self.tick_step) }).collect()
    }
}

/// A tenth of a pixel is finer than any screen.
fn to_tenth(px: f64) -> f64 {
    (px * 10.0).round() / 10.0
}

fn most_ticks(length_px: f64, room_px: f64) -> f64 {
    (length_px / room_px).floor().max(2.0)
}

/// The least of 1, 2 and 5 times a power of ten that leaves at most `most` steps in `span`.
fn round_step(span: f64, most: f64) -> f64 {
    let least = (span / most).max(f64::MIN_POSITIVE * 1e10);
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(least)
}

fn label(value: f64, tick_step: f64) -> String {
    if !(1e-6..1e9).contains(&tick_step) {
        return format!("{value:.1e}");
    }
    let decimals = (-tick_step.log10().floor()).max(0.0) as usize;
    numbers::fixed(value, decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| tick.label).collect()
    }

    fn rewards(values: &[f64]) -> Axis {
        Axis::of_rewards(values.iter().copied(), 300.0, 0.0)
    }

    #[test]
    fn steps_get_whole_round_numbers() {
        let steps = |last| labels(&Axis::of_steps(last, 0.0, 700.0));
        assert_eq!(steps(40.0), ["0", "5", "10", "15", "20", "25", "30", "35", "40"]);
        assert_eq!(steps(0.0), ["0", "1"]);
        assert_eq!(steps(3.0), ["0", "1", "2", "3"]);
        assert_eq!(
            steps(10_000.0),
            ["0", "1,000", "2,000", "3,000", "4,000", "5,000", "6,000", "7,000", "8,000", "9,000", "10,000"]
        );
        assert_eq!(steps(37.0).last().unwrap(), "35");
    }

    #[test]
    fn rewards_between_0_and_1_get_the_whole_unit() {
        assert_eq!(labels(&rewards(&[0.3, 0.9])), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&rewards(&[])), labels(&rewards(&[0.0, 1.0])));
    }

    #[test]
    fn other_rewards_get_round_numbers_around_them() {
        assert_eq!(labels(&rewards(&[-0.37, 0.42])), ["-0.4", "-0.2", "0.0", "0.2", "0.4", "0.6"]);
        assert_eq!(labels(&rewards(&[-1234.0, 5000.0])), ["-2,000", "0", "2,000", "4,000", "6,000"]);
        assert_eq!(labels(&rewards(&[5.0, 5.0])), ["4.4", "4.6", "4.8", "5.0", "5.2", "5.4", "5.6"]);
    }

    #[test]
    fn pixels_run_from_one_end_to_the_other() {
        let axis = rewards(&[0.5]);
        assert_eq!([0.0, 0.5, 1.0, 7.0].map(|value| axis.px(value).to_string()), ["300", "150", "0", "0"]);
    }
}
