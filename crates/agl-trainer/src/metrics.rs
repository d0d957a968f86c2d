//! Named numbers of a training step, under verl's and the original's names.

use std::collections::BTreeMap;

/// Metrics by name. Counts are whole numbers here too.
pub type Metrics = BTreeMap<&'static str, f64>;
