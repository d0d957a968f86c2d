//! The state and the one way to change it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use agl_protocol::{RolloutState, StatusPatch};
use indexmap::IndexMap;
use serde::Serialize;

use crate::call::Routes;
use crate::{
    Command, Effect, Event, EventData, FeedMarks, ModelServer, NewEvent, NewRollout, Refusal, Rollout, StateSet,
};

/// The place of a rollout in the order of creation. A re-created id is a new rollout, with a new place.
type Seq = u64;

#[derive(Clone, Debug)]
struct Entry {
    rollout: Arc<Rollout>,
    /// Attempts that have events, in the order of their first.
    attempts: IndexMap<Arc<str>, Vec<Arc<Event>>>,
}

/// Every rollout, event and model server.
///
/// Invariants: `ids` and `entries` name the same rollouts; `members[s]` holds exactly the places of the rollouts in
/// state `s`; `terminal` holds each place once at most, appended when its rollout ends and never removed, so that a
/// cursor into it stays valid whatever is deleted; `marks.ended == terminal.len()`.
#[derive(Clone, Debug, Default)]
pub struct State {
    ids: HashMap<Arc<str>, Seq>,
    entries: HashMap<Seq, Entry>,
    next: Seq,
    members: [BTreeSet<Seq>; RolloutState::ALL.len()],
    terminal: Vec<Seq>,
    /// Servers of each model, sorted by endpoint.
    servers: BTreeMap<String, Arc<[Arc<ModelServer>]>>,
    marks: FeedMarks,
}

/// One line of the terminal list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TerminalItem {
    /// The rollout.
    pub rollout_id: Arc<str>,
    /// How it ended.
    pub state: RolloutState,
    /// What the caller calls the task.
    pub data_id: Arc<str>,
    /// Train or validation.
    pub is_train: bool,
}

/// A page of the terminal list.
#[derive(Clone, Debug, PartialEq)]
pub struct TerminalPage {
    /// Rollouts in the order in which they ended; deleted ones are left out.
    pub items: Vec<TerminalItem>,
    /// How many places of the list the page covers, deleted ones included.
    pub covered: usize,
    /// The length of the list, deleted ones included.
    pub total: usize,
}

impl State {
    /// Makes a change, or refuses it and stays as it is. `now` is in Unix seconds.
    pub fn apply(&mut self, command: Command, now: f64) -> Result<Effect, Refusal> {
        match command {
            Command::Create(batch) => {
                Ok(Effect::Created(batch.into_iter().map(|new| self.find_or_create(new, now)).collect()))
            }
            Command::Patch { rollout_id, patch } => self.patch(&rollout_id, patch, now).map(Effect::Patched),
            Command::Delete { rollout_id } => Ok(Effect::Deleted(self.delete(&rollout_id))),
            Command::Record(new) => self.record(new, now).map(Effect::Recorded),
            Command::Register(servers) => {
                for server in servers {
                    self.register(server);
                }
                Ok(Effect::ServersChanged)
            }
            Command::ForgetServers => {
                self.servers.clear();
                Ok(Effect::ServersChanged)
            }
        }
    }

    fn find_or_create(&mut self, new: NewRollout, now: f64) -> Arc<Rollout> {
        if let Some(entry) = self.entry(&new.rollout_id) {
            return Arc::clone(&entry.rollout);
        }
        let rollout = Arc::new(Rollout::new(new, now));
        let seq = self.next;
        self.next += 1;
        self.ids.insert(Arc::clone(&rollout.rollout_id), seq);
        self.entries.insert(seq, Entry { rollout: Arc::clone(&rollout), attempts: IndexMap::new() });
        self.move_to(seq, None, Some(rollout.status.state));
        rollout
    }

    fn patch(&mut self, rollout_id: &str, patch: StatusPatch, now: f64) -> Result<Arc<Rollout>, Refusal> {
        let (seq, entry) = self.entry_mut(rollout_id)?;
        if patch.is_empty() {
            return Ok(Arc::clone(&entry.rollout));
        }
        let from = entry.rollout.status.state;
        let to = match patch.state {
            None => from,
            Some(to) => from
                .advance(to)
                .map_err(|transition| Refusal::InvalidTransition { rollout_id: rollout_id.to_owned(), transition })?,
        };
        let mut rollout = Rollout::clone(&entry.rollout);
        let status = &mut rollout.status;
        status.state = to;
        status.version += 1;
        status.updated_at = now;
        set(&mut status.k8s_job_name, patch.k8s_job_name);
        set(&mut status.last_attempt_id, patch.last_attempt_id);
        set(&mut status.error_message, patch.error_message);
        entry.rollout = Arc::new(rollout);
        let rollout = Arc::clone(&entry.rollout);
        if from != to {
            self.move_to(seq, Some(from), Some(to));
        }
        Ok(rollout)
    }

    fn delete(&mut self, rollout_id: &str) -> bool {
        let Some(seq) = self.ids.remove(rollout_id) else { return false };
        if let Some(entry) = self.entries.remove(&seq) {
            self.move_to(seq, Some(entry.rollout.status.state), None);
        }
        true
    }

    fn move_to(&mut self, seq: Seq, from: Option<RolloutState>, to: Option<RolloutState>) {
        if let Some(from) = from {
            self.members[from as usize].remove(&seq);
        }
        if let Some(to) = to {
            self.members[to as usize].insert(seq);
            if to.is_terminal() {
                self.terminal.push(seq);
            }
        }
        self.marks.note(from, to);
    }

    fn record(&mut self, new: NewEvent, now: f64) -> Result<Arc<Event>, Refusal> {
        let (_, entry) = self.entry_mut(&new.rollout_id)?;
        let attempt_id = match entry.attempts.get_key_value(new.attempt_id.as_str()) {
            Some((attempt_id, _)) => Arc::clone(attempt_id),
            None => Arc::from(new.attempt_id),
        };
        if let Some(events) = entry.attempts.get_mut(&attempt_id) {
            supersede_routes(events, &new.data)?;
        }
        let event = Arc::new(Event {
            event_type: new.event_type,
            rollout_id: Arc::clone(&entry.rollout.rollout_id),
            attempt_id: Arc::clone(&attempt_id),
            timestamp: now,
            data: new.data,
        });
        entry.attempts.entry(attempt_id).or_default().push(Arc::clone(&event));
        Ok(event)
    }

    fn register(&mut self, server: ModelServer) {
        let known = self.servers.get(&server.model).map(|servers| servers.to_vec()).unwrap_or_default();
        let mut by_endpoint: BTreeMap<String, Arc<ModelServer>> =
            known.into_iter().map(|known| (known.endpoint.clone(), known)).collect();
        let model = server.model.clone();
        by_endpoint.insert(server.endpoint.clone(), Arc::new(server));
        self.servers.insert(model, by_endpoint.into_values().collect());
    }

    fn entry(&self, rollout_id: &str) -> Option<&Entry> {
        self.ids.get(rollout_id).and_then(|seq| self.entries.get(seq))
    }

    fn entry_mut(&mut self, rollout_id: &str) -> Result<(Seq, &mut Entry), Refusal> {
        let not_found = || Refusal::NotFound(rollout_id.to_owned());
        let seq = *self.ids.get(rollout_id).ok_or_else(not_found)?;
        self.entries.get_mut(&seq).map(|entry| (seq, entry)).ok_or_else(not_found)
    }
}

/// Reading. Everything returned is shared or small; nothing walks all rollouts.
impl State {
    /// How far the feed is.
    pub fn marks(&self) -> FeedMarks {
        self.marks
    }

    /// Whether the rollout exists.
    pub fn contains(&self, rollout_id: &str) -> bool {
        self.ids.contains_key(rollout_id)
    }

    /// A rollout, and the attempts that have events, in the order of their first.
    pub fn rollout(&self, rollout_id: &str) -> Option<(Arc<Rollout>, Vec<Arc<str>>)> {
        self.entry(rollout_id).map(|entry| (Arc::clone(&entry.rollout), entry.attempts.keys().cloned().collect()))
    }

    /// The rollouts in any of the states, oldest first, at most `limit`.
    pub fn list(&self, states: StateSet, limit: usize) -> Vec<Arc<Rollout>> {
        let oldest_of = |state: RolloutState| self.members[state as usize].iter().take(limit).copied();
        let mut places: Vec<Seq> = states.iter().flat_map(oldest_of).collect();
        places.sort_unstable();
        places.truncate(limit);
        places.iter().filter_map(|seq| self.entries.get(seq)).map(|entry| Arc::clone(&entry.rollout)).collect()
    }

    /// How many rollouts are in any of the states.
    pub fn count(&self, states: StateSet) -> usize {
        states.iter().map(|state| self.members[state as usize].len()).sum()
    }

    /// The terminal list from place `after` on, at most `limit` places.
    pub fn terminal(&self, after: usize, limit: usize) -> TerminalPage {
        let total = self.terminal.len();
        let places = &self.terminal[after.min(total)..after.saturating_add(limit).min(total)];
        let item = |entry: &Entry| TerminalItem {
            rollout_id: Arc::clone(&entry.rollout.rollout_id),
            state: entry.rollout.status.state,
            data_id: Arc::clone(&entry.rollout.data_id),
            is_train: entry.rollout.is_train,
        };
        let items = places.iter().filter_map(|seq| self.entries.get(seq)).map(item).collect();
        TerminalPage { items, covered: places.len(), total }
    }

    /// The events of the attempt that counts, oldest first; `None` if there is no such rollout.
    pub fn events(&self, rollout_id: &str) -> Option<Vec<Arc<Event>>> {
        let entry = self.entry(rollout_id)?;
        Some(entry.attempts.get(entry.rollout.attempt_id()).cloned().unwrap_or_default())
    }

    /// The servers of a model, sorted by endpoint.
    pub fn servers(&self, model: &str) -> Option<Arc<[Arc<ModelServer>]>> {
        self.servers.get(model).cloned()
    }
}

#[expect(clippy::option_option, reason = "absent and null mean different things in a patch")]
fn set(field: &mut Option<String>, patch: Option<Option<String>>) {
    if let Some(value) = patch {
        *field = value;
    }
}

/// Keeps expert routes only on the last call of a trajectory: a call whose prompt is that of the latest one, or begins
/// with its prompt and response, holds routes for all of it.
fn supersede_routes(events: &mut [Arc<Event>], new: &EventData) -> Result<(), Refusal> {
    let (Some(Routes::Kept(_)), Some(tokens)) = (new.routes(), new.tokens()) else { return Ok(()) };
    let Some(latest) = events.iter_mut().rev().find(|event| event.data.tokens().is_some()) else { return Ok(()) };
    let continues = latest.data.tokens().and_then(|earlier| tokens.continues(earlier));
    if continues.ok_or(Refusal::RoutesWithoutTokens)? {
        Arc::make_mut(latest).data.supersede_routes();
    }
    Ok(())
}
