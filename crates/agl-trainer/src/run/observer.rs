//! What a run tells whoever watches it.

use super::{MetricsRecord, Phase};
use crate::manager::BatchProgress;

/// Something that happened, in the order in which it happened.
#[derive(Clone, Copy, Debug)]
pub enum RunEvent<'a> {
    /// Rollouts are being asked for.
    RolloutsStarted {
        /// What for.
        phase: Phase,
        /// Training steps completed.
        step: usize,
    },
    /// Some have ended.
    Rollouts(BatchProgress),
    /// The gateway is being drained, then the policy is updated.
    UpdateStarted {
        /// The step that will be completed by it, from 1.
        step: usize,
    },
    /// Rows have been through forward and backward.
    UpdateProgress {
        /// How many.
        done: usize,
        /// Of how many.
        total: usize,
    },
    /// A phase is over and its record is in `metrics.jsonl`.
    Recorded {
        /// The record.
        record: &'a MetricsRecord,
        /// Steps of the whole run.
        total_steps: usize,
    },
}
