//! The learning curve as SVG: reward over training steps.
//!
//! Drawn by a template of our own: `plotters` would save none of the code (scales, thinning, labels are ours anyway) and
//! has no title for screen readers, no classes for a dark page, no legend that knows how a curve was smoothed. Colours are
//! attributes, so that the file stands alone in any viewer; a page that embeds it overrides them by class.

mod axis;
mod layout;

use super::run_folder::{Phase, Record};
use super::template;
use crate::numbers;
use layout::Drawing;

/// Most dots and line corners that are drawn; of more steps, every so many-th is.
const MAX_DRAWN: usize = 400;

/// A reward at a training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Training steps completed.
    pub(super) step: f64,
    /// Mean reward, finite.
    pub(super) reward: f64,
}

/// The rewards of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// Of each training step, in order.
    pub(super) training: Vec<Point>,
    /// Of each validation, in order.
    pub(super) validation: Vec<Point>,
}

/// How large a curve is drawn, in CSS pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Tells several curves on one page apart.
    pub(super) name: &'static str,
    /// Width.
    pub(super) width: f64,
    /// Height.
    pub(super) height: f64,
}

impl Size {
    /// For a page.
    pub(super) const WIDE: Self = Self { name: "wide", width: 760.0, height: 380.0 };
    /// For a phone, where the wide one's letters would be too small.
    pub(super) const NARROW: Self = Self { name: "narrow", width: 360.0, height: 300.0 };
}

impl Curve {
    /// The curve that a run's records make. Records without a finite reward have no place on it.
    pub(super) fn of(records: &[Record]) -> Self {
        let points = |phase: Phase, metric: &str| {
            let of_phase = records.iter().filter(|record| record.phase == phase);
            of_phase
                .filter_map(|record| Some(Point { step: record.step as f64, reward: record.number(metric)? }))
                .collect()
        };
        Self { training: points(Phase::Train, "training/reward"), validation: points(Phase::Validation, "val/reward") }
    }

    /// Draws the curve.
    pub(super) fn svg(&self, size: Size) -> Result<String, minijinja::Error> {
        template::render("curve.svg", &Drawing::new(self, size))
    }

    /// What the curve shows, in a sentence or two.
    pub(super) fn description(&self) -> String {
        let mut sentences = match self.validation.as_slice() {
            [] => Vec::new(),
            [only] => vec![format!("Validation reward {} at step {}.", numbers::reward(only.reward), only.step)],
            [first, .., last] => vec![format!(
                "Validation reward went from {} at step {} to {} at step {}.",
                numbers::reward(first.reward),
                first.step,
                numbers::reward(last.reward),
                last.step,
            )],
        };
        if let [first, .., last] = self.training.as_slice() {
            sentences.push(format!(
                "The mean reward of a training step went from {} to {}.",
                numbers::reward(first.reward),
                numbers::reward(last.reward),
            ));
        }
        if sentences.is_empty() { "No reward has been recorded yet.".to_owned() } else { sentences.join(" ") }
    }
}

/// A centred moving mean over [`window`] points; near the ends, over those that there are.
fn smooth(points: &[Point]) -> Vec<Point> {
    let half = window(points.len()) / 2;
    let mean_around = |at: usize| {
        let around = &points[at.saturating_sub(half)..(at + half + 1).min(points.len())];
        // Divided first and clamped last: the sum of very large numbers is not finite.
        let mean: f64 = around.iter().map(|point| point.reward / around.len() as f64).sum();
        mean.clamp(f64::MIN, f64::MAX)
    };
    points.iter().enumerate().map(|(at, point)| Point { step: point.step, reward: mean_around(at) }).collect()
}

/// How many steps the smoothed line averages: about a sixth of a short run, a hundred of a long one, an odd number.
fn window(steps: usize) -> usize {
    (steps / 6).clamp(3, 101) | 1
}

/// Every how many-th point is drawn.
fn stride(points: usize) -> usize {
    points.div_ceil(MAX_DRAWN).max(1)
}

/// Every [`stride`]-th point, and the last.
fn thin(points: &[Point]) -> Vec<Point> {
    let kept = points.iter().step_by(stride(points.len()));
    let last = points.last().filter(|_| !(points.len().max(1) - 1).is_multiple_of(stride(points.len())));
    kept.chain(last).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(rewards: impl IntoIterator<Item = f64>) -> Vec<Point> {
        rewards.into_iter().enumerate().map(|(at, reward)| Point { step: at as f64 + 1.0, reward }).collect()
    }

    fn rising(steps: usize) -> Curve {
        Curve {
            training: points((0..steps).map(|step| step as f64 / steps as f64)),
            validation: vec![Point { step: 0.0, reward: 0.31 }, Point { step: steps as f64, reward: 0.94 }],
        }
    }

    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("well-formed");
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect()
    }

    #[test]
    fn a_constant_stays_and_a_spike_is_spread() {
        assert_eq!(smooth(&points([0.5; 4])), points([0.5; 4]));
        let spike = smooth(&points([0.0, 0.0, 3.0, 0.0, 0.0]));
        assert_eq!(spike, points([0.0, 1.0, 1.0, 1.0, 0.0]));
        assert_eq!(smooth(&[]), []);
        assert!(smooth(&points([f64::MAX; 9])).iter().all(|point| point.reward.is_finite()));
        assert_eq!([3, 30, 60, 10_000].map(window), [3, 5, 11, 101]);
    }

    #[test]
    fn thinning_keeps_both_ends() {
        assert_eq!(thin(&points([1.0, 2.0])).len(), 2);
        let thinned = thin(&points((0..10_000).map(f64::from)));
        assert_eq!(thinned.len(), MAX_DRAWN + 1);
        assert_eq!((thinned[0].step, thinned[MAX_DRAWN].step), (1.0, 10_000.0));
    }

    #[test]
    fn a_curve_says_what_it_shows() {
        let texts = texts(&rising(40).svg(Size::WIDE).unwrap());
        for text in
            ["0.310", "0.940", "training step", "reward", "validation", "each step", "mean of 7 steps", "0.2", "40"]
        {
            assert!(texts.iter().any(|drawn| drawn == text), "{text:?} is not among {texts:?}");
        }
        let svg = rising(40).svg(Size::WIDE).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let root = document.root_element();
        let labels: Vec<&str> = root.attribute("aria-labelledby").unwrap().split(' ').collect();
        for (tag, id) in ["title", "desc"].iter().zip(labels) {
            let node = root.children().find(|node| node.has_tag_name(*tag)).unwrap();
            assert_eq!(node.attribute("id"), Some(id));
        }
        assert!(svg.contains("from 0.310 at step 0 to 0.940 at step 40"));
    }

    #[test]
    fn curves_of_nothing_and_of_one_point() {
        let empty = Curve::default().svg(Size::WIDE).unwrap();
        assert!(texts(&empty).contains(&"No reward has been recorded yet.".to_owned()));
        let only_before = Curve { validation: vec![Point { step: 0.0, reward: 0.31 }], ..Curve::default() };
        assert!(texts(&only_before.svg(Size::NARROW).unwrap()).contains(&"0.310".to_owned()));
        let constant = Curve { training: points([5.0; 3]), ..Curve::default() };
        assert!(texts(&constant.svg(Size::WIDE).unwrap()).contains(&"5.0".to_owned()));
    }

    #[test]
    fn ten_thousand_steps_stay_small() {
        let svg = rising(10_000).svg(Size::WIDE).unwrap();
        assert!(svg.len() < 40_000, "{} bytes", svg.len());
        assert!(texts(&svg).contains(&"every 25th step".to_owned()));
    }

    proptest! {
        /// Whatever was rewarded, the file is well-formed and each mark is on the sheet.
        #[test]
        fn marks_stay_on_the_sheet(
            rewards in proptest::collection::vec(proptest::num::f64::NORMAL | proptest::num::f64::ZERO, 0..50),
            measured in proptest::collection::vec((0u32..100_000, -10.0..10.0), 0..20),
        ) {
            let validation = measured.into_iter().map(|(step, reward)| Point { step: f64::from(step), reward }).collect();
            let svg = Curve { training: points(rewards), validation }.svg(Size::WIDE).unwrap();
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let document = roxmltree::Document::parse(&svg).unwrap();
            for circle in document.descendants().filter(|node| node.has_tag_name("circle")) {
                let at = |name: &str| circle.attribute(name).unwrap().parse::<f64>().unwrap();
                prop_assert!((0.0..=Size::WIDE.width).contains(&at("cx")) && (0.0..=Size::WIDE.height).contains(&at("cy")));
            }
        }
    }
}
