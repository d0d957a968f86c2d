//! Positions that tell a waiter whether something has changed since it last looked.

use agl_protocol::RolloutState;

/// A set of rollout states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSet([bool; RolloutState::ALL.len()]);

impl StateSet {
    /// The states in the set, in the order of a life.
    pub fn iter(self) -> impl Iterator<Item = RolloutState> {
        RolloutState::ALL.into_iter().filter(move |state| self.0[*state as usize])
    }
}

impl FromIterator<RolloutState> for StateSet {
    fn from_iter<I: IntoIterator<Item = RolloutState>>(states: I) -> Self {
        let mut set = Self::default();
        for state in states {
            set.0[state as usize] = true;
        }
        set
    }
}

/// How far the feed is. Positions start at 0 with an empty store and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedMarks {
    /// Counts every change of which rollout is in which state.
    pub position: u64,
    /// For each state, the position at which a rollout last came into it or left it.
    changed: [u64; RolloutState::ALL.len()],
    /// How many rollouts have ended so far: the length of the terminal list, deleted ones included.
    pub ended: u64,
}

impl FeedMarks {
    /// Whether a rollout has come into or left one of the states after `since`. A position from the future (of a store
    /// that has since been started again) counts as changed, so that nobody waits for a count to catch up.
    pub fn changed_after(&self, states: StateSet, since: u64) -> bool {
        since > self.position || states.iter().any(|state| self.changed[state as usize] > since)
    }

    /// Notes a move from one state (or from nowhere) to another (or away).
    pub(crate) fn note(&mut self, from: Option<RolloutState>, to: Option<RolloutState>) {
        self.position += 1;
        for state in from.into_iter().chain(to) {
            self.changed[state as usize] = self.position;
        }
        self.ended += u64::from(to.is_some_and(RolloutState::is_terminal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RolloutState::{Failed, Queuing, Running};

    #[test]
    fn only_the_states_that_changed_wake() {
        let mut marks = FeedMarks::default();
        marks.note(None, Some(Queuing));
        let seen = marks.position;
        marks.note(Some(Queuing), Some(Running));
        let of = |states: &[RolloutState]| states.iter().copied().collect::<StateSet>();
        assert!(marks.changed_after(of(&[Queuing]), seen));
        assert!(marks.changed_after(of(&[Running, Failed]), seen));
        assert!(!marks.changed_after(of(&[Failed]), seen));
        assert!(!marks.changed_after(of(&[Queuing, Running]), marks.position));
        assert!(marks.changed_after(of(&[Failed]), marks.position + 1), "a position from the future never waits");
        assert_eq!(marks.ended, 0);
    }
}
