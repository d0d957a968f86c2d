//! Many values for one key: `a,b`, `choice(…)`, `range(…)`, `glob(…)`. They are for `--multirun`.

use crate::element::Element;
use crate::value::Value;

/// Most values that one sweep may stand for.
pub const MAX_SWEEP: usize = 100_000;

/// Values to run with, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub enum Sweep {
    /// `a,b`: looks like a mistake without `--multirun`, so it is told apart from `choice(a,b)`.
    SimpleChoice(Vec<Element>),
    /// `choice(a,b)`
    Choice(Vec<Element>),
    /// `range(1,5)`
    Range(Range),
    /// `interval(0,1)`: no list of values; only optimisers can use it.
    Interval {
        /// Lower end, included.
        start: f64,
        /// Upper end, excluded.
        end: f64,
    },
    /// `glob(*,exclude=b*)`: options of a config group.
    Glob {
        /// Patterns to take.
        include: Vec<String>,
        /// Patterns to leave out.
        exclude: Vec<String>,
    },
}

/// Numbers from `start` on, `step` apart, before `stop`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// First number.
    pub start: Number,
    /// Where it ends; not included.
    pub stop: Number,
    /// Distance; negative to count down.
    pub step: Number,
}

/// A whole number or one with a fraction: Python keeps them apart, and so does what it prints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Whole.
    Int(i128),
    /// With a fraction.
    Float(f64),
}

impl Number {
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }

    pub(crate) fn to_value(self) -> Value {
        match self {
            Self::Int(number) => Value::Int(number),
            Self::Float(number) => Value::Float(number),
        }
    }

    /// `self + other * times`, whole as long as all are.
    fn plus(self, other: Self, times: i128) -> Option<Self> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(Self::Int(a.checked_add(b.checked_mul(times)?)?)),
            (a, b) => Some(Self::Float(a.as_f64() + b.as_f64() * times as f64)),
        }
    }

    pub(crate) fn abs(self) -> Self {
        match self {
            Self::Int(number) => Self::Int(number.saturating_abs()),
            Self::Float(number) => Self::Float(number.abs()),
        }
    }

    pub(crate) fn negated(self) -> Self {
        match self {
            Self::Int(number) => Self::Int(number.saturating_neg()),
            Self::Float(number) => Self::Float(-number),
        }
    }
}

impl Range {
    /// In ascending or descending order: a range that runs the other way is turned round.
    pub(crate) fn sorted(self, descending: bool) -> Option<Self> {
        let (start, stop) = (self.start.as_f64(), self.stop.as_f64());
        let turn = if descending { start < stop } else { start > stop };
        if !turn {
            return Some(self);
        }
        let toward = if descending { self.step.abs().negated() } else { self.step.abs() };
        Some(Self { start: self.stop.plus(toward, 1)?, stop: self.start.plus(toward, 1)?, step: self.step.negated() })
    }

    fn values(self) -> Result<Vec<Element>, String> {
        let step = self.step.as_f64();
        if step == 0.0 || step.is_nan() {
            return Err("the step of a range can't be 0".to_owned());
        }
        let mut values = Vec::new();
        loop {
            let next = self.start.plus(self.step, values.len() as i128).ok_or("the range is too long")?;
            let inside =
                if step > 0.0 { next.as_f64() < self.stop.as_f64() } else { next.as_f64() > self.stop.as_f64() };
            if !inside {
                return Ok(values);
            }
            if values.len() == MAX_SWEEP {
                return Err(format!("the range has more than {MAX_SWEEP} values"));
            }
            values.push(Element::Scalar(next.to_value()));
        }
    }
}

impl Sweep {
    /// The values; `options` are those of the config group, for `glob`.
    pub fn values(&self, options: &[String]) -> Result<Vec<Element>, String> {
        match self {
            Self::SimpleChoice(items) | Self::Choice(items) => Ok(items.clone()),
            Self::Range(range) => range.values(),
            Self::Interval { .. } => Err("an interval has no list of values; use range(start,stop,step)".to_owned()),
            Self::Glob { include, exclude } => Ok(options
                .iter()
                .filter(|name| include.iter().any(|glob| glob_matches(glob, name)))
                .filter(|name| !exclude.iter().any(|glob| glob_matches(glob, name)))
                .map(|name| Element::Text(name.clone()))
                .collect()),
        }
    }
}

/// `*` stands for anything, `?` for one character.
fn glob_matches(glob: &str, name: &str) -> bool {
    match glob.chars().next() {
        None => name.is_empty(),
        Some('*') => {
            name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| glob_matches(&glob[1..], &name[at..]))
        }
        Some(wanted) => name.chars().next().is_some_and(|found| {
            (wanted == '?' || wanted == found) && glob_matches(&glob[wanted.len_utf8()..], &name[found.len_utf8()..])
        }),
    }
}
