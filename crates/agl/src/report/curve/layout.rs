//! Where everything goes on the sheet.

use serde::Serialize;

use super::axis::{Axis, Tick};
use super::{Curve, Point, Size, smooth, stride, thin, window};
use crate::numbers;

const LEFT: f64 = 60.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 48.0;
/// Average width of a letter of the legend: 12 px sans-serif.
const LETTER_WIDTH: f64 = 6.3;
/// From the start of a legend's mark to its words.
const MARK_WIDTH: f64 = 24.0;
const LEGEND_GAP: f64 = 16.0;
/// With more validations than this, only the first and the last are labelled.
const MOST_LABELS: usize = 6;
/// From a mark to the baseline of a label below it, and above it.
const LABEL_BELOW: f64 = 21.0;
const LABEL_ABOVE: f64 = 11.0;
/// Half the width of a label.
const LABEL_REACH: f64 = 18.0;

/// All that the template draws.
#[derive(Serialize)]
pub(super) struct Drawing {
    name: &'static str,
    description: String,
    is_empty: bool,
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x_ticks: Vec<Tick>,
    y_ticks: Vec<Tick>,
    dots: Vec<(f64, f64)>,
    line: Vec<(f64, f64)>,
    marks: Vec<Mark>,
    legend: Vec<LegendEntry>,
}

/// A validation.
#[derive(Serialize)]
struct Mark {
    x: f64,
    y: f64,
    label: Option<Label>,
}

#[derive(Serialize)]
struct Label {
    text: String,
    y: f64,
    anchor: &'static str,
}

#[derive(Serialize)]
struct LegendEntry {
    shape: Shape,
    x: f64,
    text_x: f64,
    text: String,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Shape {
    Dot,
    Line,
    Mark,
}

impl Drawing {
    pub(super) fn new(curve: &Curve, size: Size) -> Self {
        let (left, right, top, bottom) = (LEFT, size.width - RIGHT, TOP, size.height - BOTTOM);
        let all = || curve.training.iter().chain(&curve.validation);
        let x = Axis::of_steps(all().map(|point| point.step).fold(0.0, f64::max), left, right);
        let y = Axis::of_rewards(all().map(|point| point.reward), bottom, top);
        let place = |points: &[Point]| points.iter().map(|p| (x.px(p.step), y.px(p.reward))).collect::<Vec<_>>();
        Self {
            name: size.name,
            description: curve.description(),
            is_empty: all().next().is_none(),
            width: size.width,
            height: size.height,
            left,
            right,
            top,
            bottom,
            x_ticks: x.ticks(),
            y_ticks: y.ticks(),
            dots: place(&thin(&curve.training)),
            line: place(&thin(&smooth(&curve.training))),
            marks: marks(curve, &x, &y),
            legend: legend(curve, size),
        }
    }
}

/// The validations that are drawn. The first one's value stands below it and the others' above: rewards tend to rise, and
/// so labels keep clear of the line.
fn marks(curve: &Curve, x: &Axis, y: &Axis) -> Vec<Mark> {
    let drawn = thin(&curve.validation);
    let last = drawn.len().saturating_sub(1);
    let has_label = |nth: usize| drawn.len() <= MOST_LABELS || nth == 0 || nth == last;
    let mark = |(nth, point): (usize, &Point)| {
        let (px, py) = (x.px(point.step), y.px(point.reward));
        let below = nth == 0 && py + LABEL_BELOW < y.start_px();
        let label = has_label(nth).then(|| Label {
            text: numbers::reward(point.reward),
            y: if below { py + LABEL_BELOW } else { py - LABEL_ABOVE },
            anchor: match px {
                px if px < x.start_px() + LABEL_REACH => "start",
                px if px > x.end_px() - LABEL_REACH => "end",
                _ => "middle",
            },
        });
        Mark { x: px, y: py, label }
    };
    drawn.iter().enumerate().map(mark).collect()
}

/// Names what is drawn, and only that.
fn legend(curve: &Curve, size: Size) -> Vec<LegendEntry> {
    let steps = curve.training.len();
    let mut entries = Vec::new();
    if steps > 0 {
        let dots = if stride(steps) == 1 { "each step".to_owned() } else { format!("every {}th step", stride(steps)) };
        entries.push((Shape::Dot, dots));
        entries.push((Shape::Line, format!("mean of {} steps", window(steps))));
    }
    if !curve.validation.is_empty() {
        entries.push((Shape::Mark, "validation".to_owned()));
    }
    let width = |text: &str| MARK_WIDTH + text.chars().count() as f64 * LETTER_WIDTH + LEGEND_GAP;
    let total: f64 = entries.iter().map(|(_, text)| width(text)).sum();
    // Left-aligned with the sheet if it fits, else as far left as needed.
    let mut x = LEFT.min(size.width - total).max(LEGEND_GAP / 2.0);
    let place = |(shape, text): (Shape, String)| {
        let entry = LegendEntry { shape, x, text_x: x + MARK_WIDTH, text };
        x += width(&entry.text);
        entry
    };
    entries.into_iter().map(place).collect()
}
