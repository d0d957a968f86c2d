//! Random commands against the state and against a naive model of it: both must always show the same.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use agl_protocol::{RawJson, RolloutState, StatusPatch};
use agl_store::{Command, EventData, NewEvent, NewRollout, Refusal, State, StateSet};
use proptest::prelude::*;

/// A rollout of the model: everything ever created, in order; deleted ones stay as holes.
#[derive(Clone, Debug)]
struct Modelled {
    id: String,
    state: RolloutState,
    version: u64,
    alive: bool,
    events: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Model {
    created: Vec<Modelled>,
    /// Indexes into `created`, in the order in which they ended.
    ended: Vec<usize>,
}

impl Model {
    fn find(&self, id: &str) -> Option<usize> {
        self.created.iter().position(|rollout| rollout.alive && rollout.id == id)
    }

    fn in_state(&self, state: RolloutState) -> Vec<&str> {
        self.created.iter().filter(|rollout| rollout.alive && rollout.state == state).map(|r| r.id.as_str()).collect()
    }

    /// The original's rules, written down as plainly as possible. The answer says whether the command is taken.
    fn apply(&mut self, command: &Command) -> bool {
        match command {
            Command::Create(batch) => {
                for new in batch {
                    if self.find(&new.rollout_id).is_none() {
                        let (id, state) = (new.rollout_id.clone(), RolloutState::Queuing);
                        self.created.push(Modelled { id, state, version: 1, alive: true, events: Vec::new() });
                    }
                }
                true
            }
            Command::Patch { rollout_id, patch } => {
                let Some(index) = self.find(rollout_id) else { return false };
                if patch.is_empty() {
                    return true;
                }
                let rollout = &mut self.created[index];
                if let Some(to) = patch.state {
                    if rollout.state.advance(to).is_err() {
                        return false;
                    }
                    rollout.state = to;
                    if to.is_terminal() {
                        self.ended.push(index);
                    }
                }
                rollout.version += 1;
                true
            }
            Command::Delete { rollout_id } => {
                if let Some(index) = self.find(rollout_id) {
                    self.created[index].alive = false;
                }
                true
            }
            Command::Record(event) => {
                let Some(index) = self.find(&event.rollout_id) else { return false };
                self.created[index].events.push((event.attempt_id.clone(), event.event_type.clone()));
                true
            }
            Command::Register(_) | Command::ForgetServers => true,
        }
    }
}

fn new_rollout(rollout_id: String) -> NewRollout {
    let raw = RawJson::null;
    NewRollout { rollout_id, input: raw(), is_train: true, config: raw(), metadata: raw() }
}

fn commands() -> impl Strategy<Value = Command> {
    let id = || prop::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned);
    let state = prop::sample::select(RolloutState::ALL.to_vec());
    prop_oneof![
        3 => prop::collection::vec(id().prop_map(new_rollout), 0..4).prop_map(Command::Create),
        6 => (id(), state).prop_map(|(rollout_id, state)| Command::Patch { rollout_id, patch: StatusPatch::state(state) }),
        1 => id().prop_map(|rollout_id| Command::Patch { rollout_id, patch: StatusPatch::default() }),
        1 => id().prop_map(|rollout_id| Command::Patch { rollout_id, patch: StatusPatch::default().because("why") }),
        2 => id().prop_map(|rollout_id| Command::Delete { rollout_id }),
        2 => (id(), prop::sample::select(vec!["0", "1"])).prop_map(|(rollout_id, attempt)| {
            let data = EventData::posted("reward", RawJson::empty_object());
            Command::Record(NewEvent { rollout_id, attempt_id: attempt.to_owned(), event_type: "reward".to_owned(), data })
        }),
    ]
}

fn set(state: RolloutState) -> StateSet {
    [state].into_iter().collect()
}

fn check(state: &State, model: &Model) -> Result<(), TestCaseError> {
    for of in RolloutState::ALL {
        let listed = state.list(set(of), usize::MAX);
        let ids: Vec<&str> = listed.iter().map(|rollout| &*rollout.rollout_id).collect();
        prop_assert_eq!(&ids, &model.in_state(of));
        prop_assert_eq!(state.count(set(of)), ids.len());
    }
    let all: StateSet = RolloutState::ALL.into_iter().collect();
    let listed = state.list(all, 3);
    let first: Vec<&str> = listed.iter().map(|rollout| &*rollout.rollout_id).collect();
    let alive: Vec<&Modelled> = model.created.iter().filter(|rollout| rollout.alive).collect();
    prop_assert_eq!(first, alive.iter().take(3).map(|rollout| rollout.id.as_str()).collect::<Vec<_>>());
    for modelled in alive {
        let (rollout, attempts) = state.rollout(&modelled.id).unwrap();
        prop_assert_eq!(rollout.status.version, modelled.version);
        let mut expected: Vec<&str> = Vec::new();
        for (attempt, _) in &modelled.events {
            if !expected.contains(&attempt.as_str()) {
                expected.push(attempt);
            }
        }
        prop_assert_eq!(attempts.iter().map(|attempt| &**attempt).collect::<Vec<_>>(), expected);
        let of_first = modelled.events.iter().filter(|(attempt, _)| attempt == "0").count();
        prop_assert_eq!(state.events(&modelled.id).unwrap().len(), of_first);
    }
    // Every page of the terminal list, whatever its size, covers its places and shows the living ones.
    for limit in [1, 2, usize::MAX] {
        let mut after = 0;
        let mut seen = Vec::new();
        loop {
            let page = state.terminal(after, limit);
            prop_assert_eq!(page.total, model.ended.len());
            seen.extend(page.items.iter().map(|item| item.rollout_id.to_string()));
            after += page.covered;
            if page.covered == 0 {
                break;
            }
        }
        let expected = model.ended.iter().map(|index| &model.created[*index]).filter(|rollout| rollout.alive);
        prop_assert_eq!(seen, expected.map(|rollout| rollout.id.clone()).collect::<Vec<_>>());
    }
    prop_assert_eq!(state.marks().ended, model.ended.len() as u64);
    Ok(())
}

proptest! {
    #[test]
    fn state_and_model_agree(commands in prop::collection::vec(commands(), 1..60)) {
        let mut state = State::default();
        let mut model = Model::default();
        for (now, command) in commands.into_iter().enumerate() {
            let before = state.marks();
            let earlier = RolloutState::ALL.map(|of| members(&state, of));
            let taken = model.apply(&command);
            let result = state.apply(command, now as f64);
            prop_assert_eq!(result.is_ok(), taken, "{:?}", result);
            check(&state, &model)?;
            // No state's members change without a waiter on that state being woken.
            for (of, earlier) in RolloutState::ALL.into_iter().zip(earlier) {
                let changed = members(&state, of) != earlier;
                prop_assert!(!changed || state.marks().changed_after(set(of), before.position), "{of} changed unnoticed");
            }
            if result.is_err() {
                prop_assert_eq!(state.marks(), before, "a refused command changes nothing");
            }
        }
    }
}

fn members(state: &State, of: RolloutState) -> Vec<Arc<str>> {
    state.list(set(of), usize::MAX).iter().map(|rollout| Arc::clone(&rollout.rollout_id)).collect()
}

#[test]
fn refusals_say_what_and_why() {
    let mut state = State::default();
    let patch = |to| Command::Patch { rollout_id: "r".into(), patch: StatusPatch::state(to) };
    assert_eq!(state.apply(patch(RolloutState::Running), 0.0).unwrap_err(), Refusal::NotFound("r".into()));
    state.apply(Command::Create(vec![new_rollout("r".into())]), 0.0).unwrap();
    let refusal = state.apply(patch(RolloutState::Succeeded), 0.0).unwrap_err();
    assert_eq!(refusal.to_string(), "Rollout r: cannot transition queuing -> succeeded");
}
