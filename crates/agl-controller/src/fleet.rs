//! The agents we run, as plain data: which phase each is in, and how it moves on.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::Outcome;

/// Why we stop an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It ran longer than its `timeout_seconds`.
    TimedOut,
    /// Somebody else ended or deleted its rollout.
    Cancelled,
    /// The controller was told to stop.
    ControllerStopped,
}

impl From<StopReason> for Outcome {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::TimedOut => Self::TimedOut,
            StopReason::Cancelled => Self::Cancelled,
            StopReason::ControllerStopped => Self::ControllerStopped,
        }
    }
}

/// Where one agent is in its life.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// Its rollout is being claimed, its process is being made.
    Starting,
    /// Its process runs.
    Running {
        /// When it has run long enough; `None`: it may run for ever.
        deadline: Option<Instant>,
    },
    /// It was asked to end (SIGTERM).
    Stopping {
        /// Why.
        why: StopReason,
        /// When it is made to end.
        kill_at: Instant,
    },
    /// It was made to end (SIGKILL), and will be gone any moment.
    Killed {
        /// Why.
        why: StopReason,
    },
    /// It is gone; the gateway does not know yet.
    Ended {
        /// How.
        outcome: Outcome,
        /// The end of its output.
        last_output: String,
    },
    /// The gateway is being told.
    Reporting,
    /// Nothing is left to do. Kept until a listing that was asked for later than `at`: an earlier one may still
    /// show the rollout as it was.
    Settled {
        /// Since when.
        at: Instant,
    },
}

impl Phase {
    /// Whether the agent holds one of the pool's slots.
    pub fn holds_slot(&self) -> bool {
        matches!(self, Self::Starting | Self::Running { .. } | Self::Stopping { .. } | Self::Killed { .. })
    }
}

/// One agent of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// When its rollout was created (unix seconds): tells whether a cut-off listing had to show it.
    pub created_at: f64,
    /// Where it is in its life.
    pub phase: Phase,
}

/// All agents of ours, by rollout id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    agents: BTreeMap<String, Agent>,
}

impl Fleet {
    /// Agents by rollout id, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Agent)> {
        self.agents.iter().map(|(rollout_id, agent)| (rollout_id.as_str(), agent))
    }

    /// Whether this rollout has an agent of ours, in whatever phase.
    pub fn contains(&self, rollout_id: &str) -> bool {
        self.agents.contains_key(rollout_id)
    }

    /// How many of the pool's slots are taken.
    pub fn slots_held(&self) -> usize {
        self.agents.values().filter(|agent| agent.phase.holds_slot()).count()
    }

    /// Whether every agent is settled.
    pub fn is_settled(&self) -> bool {
        self.agents.values().all(|agent| matches!(agent.phase, Phase::Settled { .. }))
    }

    /// Takes in an agent.
    pub fn insert(&mut self, rollout_id: &str, agent: Agent) {
        self.agents.insert(rollout_id.to_owned(), agent);
    }

    /// Moves an agent to `phase`; one that we don't know is left alone.
    pub fn set_phase(&mut self, rollout_id: &str, phase: Phase) {
        if let Some(agent) = self.agents.get_mut(rollout_id) {
            agent.phase = phase;
        }
    }

    /// Its process is gone. What we stopped ended for our reason, whatever its exit code says.
    pub fn ended(&mut self, rollout_id: &str, outcome: Outcome, last_output: String) {
        let Some(agent) = self.agents.get_mut(rollout_id) else { return };
        let outcome = match agent.phase {
            Phase::Stopping { why, .. } | Phase::Killed { why } => why.into(),
            _ => outcome,
        };
        agent.phase = Phase::Ended { outcome, last_output };
    }

    /// Takes out an agent's outcome for the gateway to be told.
    pub fn begin_report(&mut self, rollout_id: &str) -> Option<(Outcome, String)> {
        let agent = self.agents.get_mut(rollout_id)?;
        match std::mem::replace(&mut agent.phase, Phase::Reporting) {
            Phase::Ended { outcome, last_output } => Some((outcome, last_output)),
            other => {
                agent.phase = other;
                None
            }
        }
    }

    /// Drops what was settled before a listing was asked for: that listing shows the rollout as it is now.
    pub fn forget_settled(&mut self, listing_asked_at: Instant) {
        self.agents.retain(|_, agent| !matches!(agent.phase, Phase::Settled { at } if at < listing_asked_at));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fleet(phase: Phase) -> Fleet {
        let mut fleet = Fleet::default();
        fleet.insert("r", Agent { created_at: 0.0, phase });
        fleet
    }

    #[test]
    fn what_we_stopped_ended_for_our_reason() {
        let now = Instant::now();
        for (phase, expected) in [
            (Phase::Running { deadline: None }, Outcome::Exited(0)),
            (Phase::Starting, Outcome::Exited(0)),
            (Phase::Stopping { why: StopReason::TimedOut, kill_at: now }, Outcome::TimedOut),
            (Phase::Killed { why: StopReason::ControllerStopped }, Outcome::ControllerStopped),
        ] {
            let mut fleet = fleet(phase);
            fleet.ended("r", Outcome::Exited(0), "out".into());
            assert_eq!(fleet.begin_report("r"), Some((expected, "out".into())));
            assert_eq!(fleet.begin_report("r"), None, "told once");
        }
    }

    #[test]
    fn a_settled_agent_is_remembered_until_a_later_listing() {
        let now = Instant::now();
        let mut fleet = fleet(Phase::Settled { at: now });
        fleet.forget_settled(now);
        assert!(fleet.contains("r"));
        fleet.forget_settled(now + Duration::from_millis(1));
        assert!(!fleet.contains("r"));
    }
}
