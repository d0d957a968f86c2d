//! The gate that every call passes: it can be closed while weights change, and counts who is inside.

use std::sync::Arc;

use agl_protocol::pyjson::Integer;
use tokio::sync::watch;

/// What the gate looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateState {
    /// Whether new calls are refused.
    pub paused: bool,
    /// What they are told in `Retry-After`. Any integer: the contract sets no bound.
    pub retry_after_seconds: Integer,
    /// Why, in the words of whoever paused.
    pub reason: Option<String>,
    /// Calls inside.
    pub inflight: u64,
}

/// Counts calls, and refuses new ones while paused. Both under one lock, so that a pause that reads zero calls has
/// seen the last of them. Cloning it gives another handle to the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<GateState>>);

impl Default for Gate {
    fn default() -> Self {
        let open = GateState { paused: false, retry_after_seconds: Integer::from(5), reason: None, inflight: 0 };
        Self(Arc::new(watch::Sender::new(open)))
    }
}

impl Gate {
    /// What it looks like now.
    pub fn state(&self) -> GateState {
        self.0.borrow().clone()
    }

    /// Refuses new calls from now on. Calls inside go on; their number is in the answer.
    pub fn pause(&self, retry_after_seconds: Integer, reason: Option<String>) -> GateState {
        self.0.send_modify(|state| {
            state.paused = true;
            state.retry_after_seconds = retry_after_seconds;
            state.reason = reason;
        });
        self.state()
    }

    /// Takes calls again.
    pub fn resume(&self) -> GateState {
        self.0.send_modify(|state| {
            state.paused = false;
            state.reason = None;
        });
        self.state()
    }

    /// Lets a call in, or says why not. It is inside until the pass is dropped, however it ends.
    pub fn enter(&self) -> Result<Pass, GateState> {
        let mut refused = None;
        self.0.send_if_modified(|state| {
            if state.paused {
                refused = Some(state.clone());
            } else {
                state.inflight += 1;
            }
            false
        });
        match refused {
            Some(state) => Err(state),
            None => Ok(Pass(self.clone())),
        }
    }

    /// Resolves when the gate is paused, with its state.
    pub async fn paused(&self) -> GateState {
        let mut states = self.0.subscribe();
        let paused = states.wait_for(|state| state.paused).await.ok().map(|state| state.clone());
        match paused {
            Some(state) => state,
            // The sender is `self`, so it is still there.
            None => std::future::pending().await,
        }
    }
}

/// A call is inside the gate as long as it holds this.
#[derive(Debug)]
pub struct Pass(Gate);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|state| {
            state.inflight -= 1;
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_nobody_in_but_everybody_out() {
        let gate = Gate::default();
        let first = gate.enter().unwrap();
        assert_eq!(gate.pause(Integer::from(30), Some("weights".into())).inflight, 1);
        let refusal = gate.enter().unwrap_err();
        assert_eq!((refusal.retry_after_seconds, refusal.reason), (Integer::from(30), Some("weights".into())));
        drop(first);
        assert_eq!(gate.state().inflight, 0);
        let resumed = gate.resume();
        assert_eq!((resumed.paused, resumed.reason, resumed.retry_after_seconds), (false, None, Integer::from(30)));
        assert!(gate.enter().is_ok());
    }

    #[tokio::test]
    async fn whoever_waits_for_a_pause_hears_of_it() {
        let gate = Gate::default();
        let (state, _) = tokio::join!(gate.paused(), async { gate.pause(Integer::from(1), None) });
        assert!(state.paused);
    }
}
