//! verl's notation of the settings, and what it means.

use serde::{Deserialize, Serialize};

/// A threshold as it is written: a number, `"2.0"`, or `"0.5_2.0"` for a lower and an upper bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Threshold {
    /// A truth value, which is refused.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A number or two in text, or several separated by commas.
    Text(String),
}

/// The settings as they are written (verl: `algorithm.rollout_correction`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorrectionConfig {
    /// `token` or `sequence`; no importance sampling when absent.
    pub rollout_is: Option<String>,
    /// One bound truncates weights to it (TIS); two set weights outside them to 0 (`IcePop`).
    pub rollout_is_threshold: Option<Threshold>,
    /// Divide weights by their mean.
    pub rollout_is_batch_normalize: bool,
    /// Rejection criteria separated by commas, for example `token_k1,seq_mean_k3`; all must pass.
    pub rollout_rs: Option<String>,
    /// One threshold for all criteria, or one for each, separated by commas.
    pub rollout_rs_threshold: Option<Threshold>,
}

impl Default for CorrectionConfig {
    fn default() -> Self {
        Self {
            rollout_is: None,
            rollout_is_threshold: Some(Threshold::Number(2.0)),
            rollout_is_batch_normalize: false,
            rollout_rs: None,
            rollout_rs_threshold: None,
        }
    }
}

/// What a batch is corrected by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correction {
    /// Importance weights, if any.
    pub importance_sampling: Option<ImportanceSampling>,
    /// What a token must pass to stay; empty: everything stays.
    pub rejection: Vec<Criterion>,
}

/// How importance weights are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImportanceSampling {
    /// A weight a token or a row.
    pub level: ImportanceLevel,
    /// What happens to large and small ones.
    pub bounds: Bounds,
    /// Divide by the mean, so that it is 1.
    pub batch_normalize: bool,
}

/// A weight a token or a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportanceLevel {
    /// e^d: biased, of low variance.
    Token,
    /// e^Σd, the same for all tokens of a row: unbiased, of high variance.
    Sequence,
}

/// What happens to weights that are large or small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bounds {
    /// Truncated importance sampling: no weight above `upper`.
    Truncate {
        /// The largest weight.
        upper: f64,
    },
    /// `IcePop`: weights outside `lower..=upper` become 0.
    Zero {
        /// The smallest weight.
        lower: f64,
        /// The largest weight.
        upper: f64,
    },
}

/// A bound on how far the two policies may differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criterion {
    /// What is looked at, and rejected, at once.
    pub scope: Scope,
    /// How difference is measured.
    pub divergence: Divergence,
    /// Lower bound of the measure. k1 only.
    pub lower: Option<f64>,
    /// Upper bound of the measure.
    pub upper: f64,
}

/// What is looked at, and rejected, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each token.
    Token,
    /// A row, by the sum over its tokens.
    SequenceSum,
    /// A row, by the mean.
    SequenceMean,
    /// A row, by its worst token.
    SequenceMax,
}

/// Estimates of the divergence, with d within ±20.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// −d. Its bounds are written as ratios and taken as logarithms.
    K1,
    /// d²/2.
    K2,
    /// e^d − 1 − d.
    K3,
}

/// The criteria that there are, by name.
const CRITERIA: [(&str, Scope, Divergence); 11] = [
    ("seq_max_k2", Scope::SequenceMax, Divergence::K2),
    ("seq_max_k3", Scope::SequenceMax, Divergence::K3),
    ("seq_mean_k1", Scope::SequenceMean, Divergence::K1),
    ("seq_mean_k2", Scope::SequenceMean, Divergence::K2),
    ("seq_mean_k3", Scope::SequenceMean, Divergence::K3),
    ("seq_sum_k1", Scope::SequenceSum, Divergence::K1),
    ("seq_sum_k2", Scope::SequenceSum, Divergence::K2),
    ("seq_sum_k3", Scope::SequenceSum, Divergence::K3),
    ("token_k1", Scope::Token, Divergence::K1),
    ("token_k2", Scope::Token, Divergence::K2),
    ("token_k3", Scope::Token, Divergence::K3),
];

impl Criterion {
    /// verl's name.
    pub fn name(&self) -> &'static str {
        let same = |(_, scope, divergence): &&(&str, Scope, Divergence)| {
            *scope == self.scope && *divergence == self.divergence
        };
        CRITERIA.iter().find(same).map_or("seq_max_k1", |(name, ..)| name)
    }
}

/// Why the settings can't be meant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CorrectionSettingsError {
    /// No such level.
    #[error("Invalid rollout_is: {0}. Must be one of {{'token', 'sequence'}}.")]
    UnknownLevel(String),
    /// A truth value where a number belongs.
    #[error("rollout_is_threshold must be specified as a float or a string threshold specification, not a boolean.")]
    FlagAsThreshold,
    /// Empty text.
    #[error("rollout_is_threshold must not be an empty string.")]
    EmptyThreshold,
    /// Not a number.
    #[error("Invalid rollout_is_threshold '{0}'.")]
    InvalidThreshold(String),
    /// Zero or less.
    #[error("rollout_is_threshold {bound} bound must be positive, got {value:?}.")]
    NotPositive {
        /// `upper` or `lower`.
        bound: &'static str,
        /// Its value.
        value: f64,
    },
    /// The wrong way round.
    #[error("rollout_is_threshold lower bound must be <= upper bound.")]
    BoundsSwapped,
    /// Rejection without a threshold.
    #[error(
        "rollout_rs_threshold must be explicitly provided when rollout_rs is enabled. Set rollout_rs_threshold to the \
         desired threshold value."
    )]
    NoRejectionThreshold,
    /// No criterion in the list.
    #[error("rollout_rs must contain at least one valid option.")]
    NoCriterion,
    /// No such criterion.
    #[error("Invalid rollout_rs option: {name}. Must be one of [{known}].")]
    UnknownCriterion {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// An empty list of thresholds.
    #[error("rollout_rs_threshold must contain at least one threshold value.")]
    NoThreshold,
    /// Neither one threshold nor one for each criterion.
    #[error(
        "rollout_rs_threshold expects either one threshold shared by all options or exactly {0} thresholds to match \
         the provided rollout_rs options."
    )]
    ThresholdCount(usize),
    /// Two bounds where there is one.
    #[error(
        "rollout_rs_threshold for option '{name}' must provide a single upper bound without '_'. Received '{spec}'."
    )]
    TwoBounds {
        /// The criterion.
        name: &'static str,
        /// What was written.
        spec: String,
    },
    /// Not a number.
    #[error("Invalid numeric threshold '{spec}' for option '{name}'.")]
    InvalidRejectionThreshold {
        /// The criterion.
        name: &'static str,
        /// What was written.
        spec: String,
    },
    /// Zero or less.
    #[error("Threshold for option '{name}' must be positive, got {spec}.")]
    RejectionNotPositive {
        /// The criterion.
        name: &'static str,
        /// What was written.
        spec: String,
    },
}

use CorrectionSettingsError as Error;

impl CorrectionConfig {
    /// What the settings mean.
    pub fn parse(&self) -> Result<Correction, Error> {
        let importance_sampling = match (&self.rollout_is, &self.rollout_is_threshold) {
            (Some(level), Some(threshold)) => Some(ImportanceSampling {
                level: match level.as_str() {
                    "token" => ImportanceLevel::Token,
                    "sequence" => ImportanceLevel::Sequence,
                    other => return Err(Error::UnknownLevel(other.to_owned())),
                },
                bounds: Bounds::parse(threshold)?,
                batch_normalize: self.rollout_is_batch_normalize,
            }),
            _ => None,
        };
        let rejection = match (&self.rollout_rs, &self.rollout_rs_threshold) {
            (None, _) => Vec::new(),
            (Some(_), None) => return Err(Error::NoRejectionThreshold),
            (Some(names), Some(threshold)) => parse_criteria(names, threshold)?,
        };
        Ok(Correction { importance_sampling, rejection })
    }
}

impl Bounds {
    /// Reads `2.0`, `"2.0"` or `"0.5_2.0"`.
    pub fn parse(threshold: &Threshold) -> Result<Self, Error> {
        let (lower, upper) = match threshold {
            Threshold::Flag(_) => return Err(Error::FlagAsThreshold),
            Threshold::Number(upper) => (None, *upper),
            Threshold::Text(text) => {
                let number = |part: &str| float(part).ok_or_else(|| Error::InvalidThreshold(text.clone()));
                match text.trim() {
                    "" => return Err(Error::EmptyThreshold),
                    spec => match spec.split_once('_') {
                        Some((lower, upper)) => (Some(number(lower)?), number(upper)?),
                        None => (None, number(spec)?),
                    },
                }
            }
        };
        if upper.is_nan() || upper <= 0.0 {
            return Err(Error::NotPositive { bound: "upper", value: upper });
        }
        match lower {
            None => Ok(Self::Truncate { upper }),
            Some(lower) if lower <= 0.0 => Err(Error::NotPositive { bound: "lower", value: lower }),
            Some(lower) if lower > upper => Err(Error::BoundsSwapped),
            Some(lower) => Ok(Self::Zero { lower, upper }),
        }
    }
}

fn parse_criteria(names: &str, threshold: &Threshold) -> Result<Vec<Criterion>, Error> {
    let mut known: Vec<&(&'static str, Scope, Divergence)> = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let Some(criterion) = CRITERIA.iter().find(|(known, ..)| *known == name) else {
            let all: Vec<String> = CRITERIA.iter().map(|(name, ..)| format!("'{name}'")).collect();
            return Err(Error::UnknownCriterion { name: name.to_owned(), known: all.join(", ") });
        };
        if !known.contains(&criterion) {
            known.push(criterion);
        }
    }
    if known.is_empty() {
        return Err(Error::NoCriterion);
    }
    let text = match threshold {
        Threshold::Flag(flag) => f64::from(u8::from(*flag)).to_string(),
        Threshold::Number(number) => number.to_string(),
        Threshold::Text(text) => text.clone(),
    };
    let specs: Vec<&str> = text.split(',').map(str::trim).filter(|spec| !spec.is_empty()).collect();
    if specs.is_empty() {
        return Err(Error::NoThreshold);
    }
    if specs.len() != 1 && specs.len() != known.len() {
        return Err(Error::ThresholdCount(known.len()));
    }
    known
        .iter()
        .zip(specs.iter().cycle())
        .map(|((name, scope, divergence), spec)| {
            let (lower, upper) = match divergence {
                Divergence::K1 => ratio_bounds(name, spec)?,
                Divergence::K2 | Divergence::K3 => (None, upper_bound(name, spec)?),
            };
            Ok(Criterion { scope: *scope, divergence: *divergence, lower, upper })
        })
        .collect()
}

/// Bounds of a ratio as bounds of its logarithm; one number r means 1/r to r.
fn ratio_bounds(name: &'static str, spec: &str) -> Result<(Option<f64>, f64), Error> {
    let number =
        |part: &str| float(part).ok_or_else(|| Error::InvalidRejectionThreshold { name, spec: spec.to_owned() });
    let (lower, upper) = match spec.split_once('_') {
        Some((lower, upper)) => (number(lower)?, number(upper)?),
        None => (1.0 / number(spec)?, number(spec)?),
    };
    if lower <= 0.0 || upper <= 0.0 {
        return Err(Error::RejectionNotPositive { name, spec: spec.to_owned() });
    }
    Ok((Some(lower.ln()), upper.ln()))
}

fn upper_bound(name: &'static str, spec: &str) -> Result<f64, Error> {
    if spec.contains('_') {
        return Err(Error::TwoBounds { name, spec: spec.to_owned() });
    }
    match float(spec) {
        None => Err(Error::InvalidRejectionThreshold { name, spec: spec.to_owned() }),
        Some(upper) if upper <= 0.0 => Err(Error::RejectionNotPositive { name, spec: spec.to_owned() }),
        Some(upper) => Ok(upper),
    }
}

fn float(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| !number.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rollout_rs: &str, threshold: &str) -> Result<Vec<Criterion>, Error> {
        let config = CorrectionConfig {
            rollout_rs: Some(rollout_rs.into()),
            rollout_rs_threshold: Some(Threshold::Text(threshold.into())),
            ..CorrectionConfig::default()
        };
        config.parse().map(|correction| correction.rejection)
    }

    #[test]
    fn one_threshold_serves_all_criteria_and_one_ratio_means_both_ways() {
        let criteria = parse("token_k1, seq_mean_k3,token_k1", "1.25").unwrap();
        assert_eq!(criteria.iter().map(Criterion::name).collect::<Vec<_>>(), ["token_k1", "seq_mean_k3"]);
        let ln = 1.25_f64.ln();
        assert!((criteria[0].upper - ln).abs() < 1e-12 && (criteria[0].lower.unwrap() + ln).abs() < 1e-12);
        assert_eq!((criteria[1].lower, criteria[1].upper), (None, 1.25));
    }

    #[test]
    fn nonsense_is_refused_with_what_was_written() {
        let refused = |rollout_rs: &str, threshold: &str| parse(rollout_rs, threshold).unwrap_err().to_string();
        assert_eq!(refused("token_k2", "x"), "Invalid numeric threshold 'x' for option 'token_k2'.");
        assert_eq!(refused("token_k1", "0_2"), "Threshold for option 'token_k1' must be positive, got 0_2.");
        assert!(refused("token_k2,token_k3,seq_sum_k2", "1,2").contains("exactly 3 thresholds"));
        assert!(refused(" , ", "1").contains("at least one valid option"));
        assert!(refused("token_k2", ",").contains("at least one threshold"));
        let bounds = |text: &str| Bounds::parse(&Threshold::Text(text.into()));
        assert_eq!(bounds(" 0.5_2 "), Ok(Bounds::Zero { lower: 0.5, upper: 2.0 }));
        assert_eq!(bounds("a_2").unwrap_err().to_string(), "Invalid rollout_is_threshold 'a_2'.");
        assert_eq!(bounds(" "), Err(Error::EmptyThreshold));
    }
}
