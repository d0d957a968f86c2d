//! The shared handle: one writer, many readers, and waiters on the feed.
//!
//! The writer is whoever holds the write lock, for as long as one `apply` takes (microseconds; it never awaits). A lock
//! rather than a task: a write costs no hand-over between threads, and reads see it as soon as it is answered. A durable
//! log goes behind the same call: it appends while the lock is held, so that its order is that of `apply`, and the write
//! is answered once the log has synced up to that record.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agl_protocol::StatusPatch;
use tokio::sync::watch;

use crate::{
    Command, Effect, Event, FeedMarks, ModelServer, NewEvent, NewRollout, Refusal, Rollout, State, StateSet,
    TerminalPage,
};

/// A handle to the one state of a process. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    marks: watch::Sender<FeedMarks>,
}

impl Default for Store {
    fn default() -> Self {
        Self::in_memory()
    }
}

impl Store {
    /// An empty store that forgets when the process ends.
    pub fn in_memory() -> Self {
        Self(Arc::new(Shared { state: RwLock::new(State::default()), marks: watch::Sender::new(FeedMarks::default()) }))
    }

    /// Makes a change, then wakes whoever waits for it.
    pub fn write(&self, command: Command) -> Result<Effect, Refusal> {
        // `apply` does not panic, so a poisoned lock is one whose state is whole.
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        let effect = state.apply(command, unix_now())?;
        let marks = state.marks();
        // While the lock is held, so that marks only grow.
        self.0.marks.send_if_modified(|current| std::mem::replace(current, marks) != marks);
        Ok(effect)
    }

    /// Looks at the state. Keep it short: writes wait meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Creates rollouts, all or none; one whose id exists is answered as it is.
    pub fn create(&self, batch: Vec<NewRollout>) -> Result<Vec<Arc<Rollout>>, Refusal> {
        match self.write(Command::Create(batch))? {
            Effect::Created(rollouts) => Ok(rollouts),
            other => unreachable!("Create answered {other:?}"),
        }
    }

    /// Changes the status of a rollout.
    pub fn patch(&self, rollout_id: &str, patch: StatusPatch) -> Result<Arc<Rollout>, Refusal> {
        match self.write(Command::Patch { rollout_id: rollout_id.to_owned(), patch })? {
            Effect::Patched(rollout) => Ok(rollout),
            other => unreachable!("Patch answered {other:?}"),
        }
    }

    /// Forgets a rollout and its events.
    pub fn delete(&self, rollout_id: &str) -> Result<(), Refusal> {
        self.write(Command::Delete { rollout_id: rollout_id.to_owned() }).map(drop)
    }

    /// Appends an event.
    pub fn record(&self, event: NewEvent) -> Result<Arc<Event>, Refusal> {
        match self.write(Command::Record(event))? {
            Effect::Recorded(event) => Ok(event),
            other => unreachable!("Record answered {other:?}"),
        }
    }

    /// Adds model servers, or replaces those of the same model and endpoint.
    pub fn register(&self, servers: Vec<ModelServer>) -> Result<(), Refusal> {
        self.write(Command::Register(servers)).map(drop)
    }

    /// Forgets all model servers.
    pub fn forget_servers(&self) -> Result<(), Refusal> {
        self.write(Command::ForgetServers).map(drop)
    }

    /// Waits, at most `wait`, until a rollout has come into or left one of the states after `since`.
    pub async fn wait_for_change(&self, states: StateSet, since: u64, wait: Duration) {
        self.wait_until(wait, |marks| marks.changed_after(states, since)).await;
    }

    /// Waits, at most `wait`, until more than `after` rollouts have ended.
    pub async fn wait_for_terminal(&self, after: u64, wait: Duration) {
        self.wait_until(wait, |marks| marks.ended > after).await;
    }

    /// How many callers wait now.
    pub fn waiters(&self) -> usize {
        self.0.marks.receiver_count()
    }

    async fn wait_until(&self, wait: Duration, ready: impl FnMut(&FeedMarks) -> bool) {
        let mut marks = self.0.marks.subscribe();
        // Both ends of the wait mean: answer with what there is. The sender lives as long as `self`.
        let _ = tokio::time::timeout(wait, marks.wait_for(ready)).await;
    }

    /// The terminal list from place `after` on, at most `limit` places.
    pub fn terminal(&self, after: usize, limit: usize) -> TerminalPage {
        self.read(|state| state.terminal(after, limit))
    }
}

/// Unix seconds. A clock before 1970 counts as 1970.
fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
