//! Talking with the gateway: watching what it wants, claiming a rollout, telling how one ended.
//!
//! A claim is the move queuing → running, which the gateway grants once. It comes before the process, so that a rollout
//! never has two agents, and what a killed controller left behind shows as `running`.

use std::time::{Duration, Instant};

use agl_client::{Client, ClientError};
use agl_protocol::{Rollout, RolloutState, StatusPatch};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::Desired;
use crate::controller::Event;

/// Least time between two listings: a burst of changes is then one listing, not one each.
const LISTING_GAP: Duration = Duration::from_millis(5);
/// Most that listings may move: long ones are asked for less often, while the last one's queue feeds free slots.
const LISTING_BYTES_PER_SECOND: f64 = 8.0 * 1024.0 * 1024.0;
/// About what a rollout takes in a listing, beyond its task.
const ROLLOUT_BYTES: usize = 1024;

const BACK_OFF_FIRST: Duration = Duration::from_millis(50);
const BACK_OFF_MOST: Duration = Duration::from_secs(5);

/// Waiting times that double, for calls that fail.
#[derive(Debug)]
struct BackOff(Duration);

impl BackOff {
    fn new() -> Self {
        Self(BACK_OFF_FIRST)
    }

    fn is_fresh(&self) -> bool {
        self.0 == BACK_OFF_FIRST
    }

    fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(BACK_OFF_MOST);
        wait
    }
}

/// What a failed PATCH means for who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It may go through later: no answer, an overloaded or failing gateway, a key that is being changed.
    Later,
    /// The rollout is in a state that does not allow it, or is gone: nothing is left to say.
    Overtaken,
    /// The gateway will never take it.
    Never,
}

fn verdict(error: &ClientError) -> Verdict {
    match error.status().map(|status| status.as_u16()) {
        Some(404 | 409) => Verdict::Overtaken,
        Some(401 | 403 | 408 | 429) => Verdict::Later,
        Some(status) if status < 500 => Verdict::Never,
        _ if error.may_pass() => Verdict::Later,
        _ => Verdict::Never,
    }
}

/// Keeps asking what is queued and running, and hands on each answer. Ends with its receiver.
pub(crate) async fn watch(client: Client, pool_size: usize, poll_interval: Duration, events: mpsc::Sender<Event>) {
    // Running rollouts fill at most one pool, so that another pool's worth is always known to come next.
    let limit = u32::try_from(pool_size.saturating_mul(2)).unwrap_or(u32::MAX).max(1);
    let mut since = None;
    let mut back_off = BackOff::new();
    loop {
        let asked_at = Instant::now();
        let states = [RolloutState::Queuing, RolloutState::Running];
        let pause = match client.wait_rollouts(&states, limit, since, poll_interval).await {
            Ok(listing) => {
                if !back_off.is_fresh() {
                    tracing::info!(server = client.base_url(), "the gateway answers again");
                    back_off = BackOff::new();
                }
                since = listing.position;
                let pause = since.map_or(poll_interval, |_| Duration::ZERO).max(listing_pause(&listing.rollouts));
                let truncated = listing.rollouts.len() >= limit as usize;
                let desired = Desired { rollouts: listing.rollouts, truncated, asked_at };
                if events.send(Event::Listed(desired)).await.is_err() {
                    return;
                }
                pause
            }
            Err(error) => {
                if back_off.is_fresh() {
                    tracing::warn!(%error, "cannot list rollouts; trying again until the gateway answers");
                }
                since = None;
                back_off.next()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn listing_pause(rollouts: &[Rollout]) -> Duration {
    let bytes: usize = rollouts.iter().map(|rollout| ROLLOUT_BYTES + rollout.input.text().len()).sum();
    LISTING_GAP.max(Duration::from_secs_f64(bytes as f64 / LISTING_BYTES_PER_SECOND))
}

/// Claims a queued rollout. False: it was ended or claimed by someone else, or `shutdown` came first.
pub(crate) async fn claim(client: &Client, rollout_id: &str, attempt_id: &str, shutdown: &CancellationToken) -> bool {
    let mut back_off = BackOff::new();
    loop {
        let patch = StatusPatch::state(RolloutState::Running).attempt(attempt_id);
        let Err(error) = client.patch_rollout(rollout_id, patch).await else { return true };
        let retried = !back_off.is_fresh();
        match verdict(&error) {
            // The first answer was lost, and the claim may well be ours: nobody else claims.
            Verdict::Overtaken if retried && is_running(client, rollout_id).await => return true,
            Verdict::Later => tracing::warn!(rollout_id, %error, "cannot claim the rollout; trying again"),
            Verdict::Overtaken | Verdict::Never => {
                tracing::info!(rollout_id, %error, "rollout was not to be had");
                return false;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(back_off.next()) => {}
            () = shutdown.cancelled() => return false,
        }
    }
}

async fn is_running(client: &Client, rollout_id: &str) -> bool {
    client.rollout(rollout_id).await.is_ok_and(|detail| detail.rollout.status.state == RolloutState::Running)
}

/// Tells how a rollout ended, again and again until the gateway has answered.
pub(crate) async fn report(client: &Client, rollout_id: &str, patch: &StatusPatch) {
    let mut back_off = BackOff::new();
    loop {
        let Err(error) = client.patch_rollout(rollout_id, patch.clone()).await else { return };
        match verdict(&error) {
            Verdict::Later if back_off.is_fresh() => {
                tracing::warn!(rollout_id, %error, "cannot report how the agent ended; trying again until the gateway answers");
            }
            Verdict::Later => {}
            Verdict::Overtaken => {
                tracing::info!(rollout_id, %error, "rollout had ended already");
                return;
            }
            Verdict::Never => {
                tracing::error!(rollout_id, %error, "the gateway refuses the report of how the agent ended");
                return;
            }
        }
        tokio::time::sleep(back_off.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::rollout;

    #[test]
    fn long_listings_are_asked_for_less_often() {
        let mut large = rollout("r", RolloutState::Queuing, 0.0);
        assert_eq!(listing_pause(&[]), LISTING_GAP);
        assert_eq!(listing_pause(std::slice::from_ref(&large)), LISTING_GAP);
        assert!(listing_pause(&vec![large.clone(); 100]) > LISTING_GAP);
        large.input = agl_protocol::RawJson::from_value(&"x".repeat(1024 * 1024)).unwrap();
        let pause = listing_pause(&[large.clone(), large]);
        assert!((0.24..0.26).contains(&pause.as_secs_f64()), "{pause:?}");
    }

    #[test]
    fn waiting_times_double_up_to_a_limit() {
        let mut back_off = BackOff::new();
        assert!(back_off.is_fresh());
        assert_eq!(back_off.next(), Duration::from_millis(50));
        assert!(!back_off.is_fresh());
        assert_eq!(back_off.next(), Duration::from_millis(100));
        assert_eq!((0..20).map(|_| back_off.next()).last(), Some(BACK_OFF_MOST));
    }
}
