//! The rollout manager: asks the gateway for rollouts, waits for them on its feed, and fetches what they left.

use std::collections::HashMap;
use std::time::Duration;

use agl_client::{Client, ClientError};
use agl_protocol::{
    Event, EventKind, RawJson, RolloutConfig, RolloutCreate, RolloutState, TripletCall, TripletError, reward_value,
};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rollout::{CompletedRollout, Triplet};

/// Longest single wait on the feed; a stop or a stall is noticed at once all the same.
const FEED_WAIT: Duration = Duration::from_secs(20);
/// Between two questions to a server that can't wait.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Rollouts fetched at the same time.
const FETCHES_AT_ONCE: usize = 16;
/// Rollouts created by one request.
const CREATES_AT_ONCE: usize = 256;

/// A task and the place it has in its step: what a group of rollouts shares.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The task.
    pub input: RawJson,
    /// Place in the step, from 0.
    pub index: usize,
}

/// What a batch of rollouts is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchKind {
    /// Train or validation.
    pub is_train: bool,
    /// Training step it belongs to.
    pub step: usize,
    /// Rollouts of each sample.
    pub rollouts_per_sample: usize,
}

/// A rollout that ended.
#[derive(Clone, Debug)]
pub struct FinishedRollout {
    /// What training needs of it: ids, log-probabilities and reward.
    pub completed: CompletedRollout,
    /// What people want to know of it.
    pub trace: RolloutTrace,
}

/// What a rollout left beside the numbers that train.
#[derive(Clone, Debug)]
pub struct RolloutTrace {
    /// The task.
    pub input: RawJson,
    /// Its raw events; empty unless asked for.
    pub events: Vec<Event>,
    /// Model calls that can't be trained on, each with its reason.
    pub refused_calls: Vec<TripletError>,
    /// Policy versions that answered its calls, in order.
    pub policy_versions: Vec<i64>,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchProgress {
    /// Rollouts asked for.
    pub total: usize,
    /// Rollouts that ended.
    pub ended: usize,
    /// Of these, how many failed.
    pub failed: usize,
    /// Sum of the rewards so far.
    pub reward_sum: f64,
    /// How many rewards that are.
    pub rewards: usize,
}

/// Why a batch did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The gateway could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Nothing has ended for too long.
    #[error(
        "no rollout has ended for {seconds} s ({ended} of {total} ended, {queuing} wait, {running} run); \
         is a controller connected to this gateway, and is `agent.timeout_seconds` below `trainer.stall_seconds`?"
    )]
    Stalled {
        /// How long.
        seconds: u64,
        /// Rollouts that ended.
        ended: usize,
        /// Rollouts asked for.
        total: usize,
        /// Rollouts that wait for an agent.
        queuing: usize,
        /// Rollouts whose agent runs.
        running: usize,
    },
    /// The user stopped the run.
    #[error("stopped")]
    Stopped,
    /// A fetch was torn down with the runtime.
    #[error("a fetch was interrupted: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Runs batches of rollouts, one after another, through one gateway.
pub struct RolloutManager {
    client: Client,
    config: RolloutConfig,
    stall: Duration,
    /// Where this manager is in the gateway's list of ended rollouts.
    cursor: u64,
}

impl RolloutManager {
    /// A manager for rollouts that all run as `config` says. Rollouts that ended before now don't concern it.
    pub async fn new(client: Client, config: RolloutConfig, stall: Duration) -> Result<Self, ManagerError> {
        // Any page tells how many rollouts have ended so far, which is where the list goes on.
        let cursor = client.terminal(0, 1, Duration::ZERO).await?.total_terminal;
        Ok(Self { client, config, stall, cursor })
    }

    /// Enqueues `rollouts_per_sample` rollouts of each sample, waits until all have ended, and fetches what they left.
    /// The answer is in the order in which they were asked for. Rollouts are deleted from the gateway once fetched.
    ///
    /// `keep_events` tells of which samples the raw events are wanted too.
    pub async fn run_batch(
        &mut self,
        samples: &[Sample],
        kind: BatchKind,
        keep_events: impl Fn(usize) -> bool,
        mut on_progress: impl FnMut(BatchProgress),
        stop: &CancellationToken,
    ) -> Result<Vec<FinishedRollout>, ManagerError> {
        let plan = plan_batch(samples, kind);
        let outcome = self.run_planned(&plan, &keep_events, &mut on_progress, stop).await;
        if outcome.is_err() {
            self.cancel(&plan).await;
        }
        outcome
    }

    async fn run_planned(
        &mut self,
        plan: &[Planned],
        keep_events: &impl Fn(usize) -> bool,
        on_progress: &mut impl FnMut(BatchProgress),
        stop: &CancellationToken,
    ) -> Result<Vec<FinishedRollout>, ManagerError> {
        let mut waiting: HashMap<&str, usize> =
            plan.iter().enumerate().map(|(place, planned)| (planned.rollout_id.as_str(), place)).collect();
        let mut finished: Vec<Option<FinishedRollout>> = vec![None; plan.len()];
        let mut progress = BatchProgress { total: plan.len(), ..BatchProgress::default() };
        let mut fetches = JoinSet::new();
        let mut last_end = Instant::now();
        on_progress(progress);

        for chunk in plan.chunks(CREATES_AT_ONCE) {
            let requests: Vec<RolloutCreate> = chunk.iter().map(|planned| self.request(planned)).collect();
            unless_stopped(stop, self.client.create_rollouts(&requests)).await??;
        }
        // One wait on the feed at a time, kept across turns: dropping it would close its connection.
        let feed = |cursor| {
            let client = self.client.clone();
            async move {
                let asked = Instant::now();
                let page = client.terminal(cursor, FETCHES_AT_ONCE as u32, FEED_WAIT).await;
                // A server that does not know `wait_seconds` (the original's) answers at once: poll it.
                if page.as_ref().is_ok_and(|page| page.items.is_empty()) && asked.elapsed() < POLL_INTERVAL {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                page
            }
        };
        let mut next_page = Box::pin(feed(self.cursor));
        while progress.ended < plan.len() {
            let fetch_room = fetches.len() < FETCHES_AT_ONCE;
            let page = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(ManagerError::Stopped),
                Some(fetched) = fetches.join_next(), if !fetches.is_empty() => {
                    let (place, rollout): (usize, FinishedRollout) = fetched??;
                    progress.count(&rollout.completed);
                    finished[place] = Some(rollout);
                    on_progress(progress);
                    continue;
                }
                () = tokio::time::sleep_until(last_end + self.stall) => return Err(self.stalled(progress).await),
                page = &mut next_page, if fetch_room && !waiting.is_empty() => page?,
            };
            self.cursor = page.next_after;
            next_page.set(feed(self.cursor));
            for ended in page.items {
                let Some(place) = waiting.remove(ended.rollout_id.as_str()) else { continue };
                last_end = Instant::now();
                let (client, planned, events) =
                    (self.client.clone(), plan[place].clone(), keep_events(plan[place].sample.index));
                fetches.spawn(async move { fetch(&client, planned, events).await.map(|rollout| (place, rollout)) });
            }
        }
        Ok(finished.into_iter().flatten().collect())
    }

    fn request(&self, planned: &Planned) -> RolloutCreate {
        let metadata = serde_json::json!({
            "batch_idx": planned.kind.step,
            "sample_idx_in_batch": planned.sample.index,
        });
        RolloutCreate {
            input: planned.sample.input.clone(),
            is_train: planned.kind.is_train,
            config: Some(self.config.clone()),
            metadata: RawJson::from_value(&metadata).ok(),
            rollout_id: Some(planned.rollout_id.clone()),
        }
    }

    /// Ends what is left of a batch: the controller kills the agents of rollouts that are gone.
    async fn cancel(&self, plan: &[Planned]) {
        for planned in plan {
            // Best effort: the gateway may be what failed.
            if self.client.delete_rollout(&planned.rollout_id).await.is_err() {
                return;
            }
        }
    }

    async fn stalled(&self, progress: BatchProgress) -> ManagerError {
        let count = async |state| self.client.list_rollouts(&[state], 10_000).await.map_or(0, |l| l.rollouts.len());
        ManagerError::Stalled {
            seconds: self.stall.as_secs(),
            ended: progress.ended,
            total: progress.total,
            queuing: count(RolloutState::Queuing).await,
            running: count(RolloutState::Running).await,
        }
    }
}

impl BatchProgress {
    fn count(&mut self, rollout: &CompletedRollout) {
        self.ended += 1;
        self.failed += usize::from(rollout.state == RolloutState::Failed);
        if let Some(reward) = rollout.final_reward {
            self.reward_sum += reward;
            self.rewards += 1;
        }
    }
}

/// A rollout that is to be asked for.
#[derive(Clone, Debug)]
struct Planned {
    rollout_id: String,
    data_id: String,
    sample: Sample,
    kind: BatchKind,
}

/// The rollouts of a batch, groups together, each with an id of its own so that asking twice creates once.
fn plan_batch(samples: &[Sample], kind: BatchKind) -> Vec<Planned> {
    samples
        .iter()
        .flat_map(|sample| {
            let data_id = uuid::Uuid::new_v4().to_string();
            (0..kind.rollouts_per_sample).map(move |_| Planned {
                rollout_id: uuid::Uuid::new_v4().simple().to_string(),
                data_id: data_id.clone(),
                sample: sample.clone(),
                kind,
            })
        })
        .collect()
}

async fn unless_stopped<T>(stop: &CancellationToken, work: impl Future<Output = T>) -> Result<T, ManagerError> {
    stop.run_until_cancelled(work).await.ok_or(ManagerError::Stopped)
}

/// Fetches what a rollout left, then has the gateway forget it.
async fn fetch(client: &Client, planned: Planned, keep_events: bool) -> Result<FinishedRollout, ManagerError> {
    let detail = client.rollout(&planned.rollout_id).await?;
    let triplet_events = client.triplets(&planned.rollout_id).await?;
    let events = if keep_events { client.events(&planned.rollout_id).await? } else { Vec::new() };
    client.delete_rollout(&planned.rollout_id).await?;

    let left = what_it_left(&triplet_events);
    Ok(FinishedRollout {
        completed: CompletedRollout {
            rollout_id: planned.rollout_id,
            data_id: planned.data_id,
            step: planned.kind.step,
            sample_idx_in_step: planned.sample.index,
            final_reward: left.final_reward,
            triplets: left.triplets,
            state: detail.rollout.status.state,
            error_message: detail.rollout.status.error_message,
        },
        trace: RolloutTrace {
            input: planned.sample.input,
            events,
            refused_calls: left.refused_calls,
            policy_versions: left.policy_versions,
        },
    })
}

/// What the triplet view of a rollout says.
struct Left {
    triplets: Vec<Triplet>,
    refused_calls: Vec<TripletError>,
    policy_versions: Vec<i64>,
    final_reward: Option<f64>,
}

/// Sorts the triplet view into what can be trained on and what can't. The last reward event counts, as in the original.
fn what_it_left(events: &[Event]) -> Left {
    let mut left =
        Left { triplets: Vec::new(), refused_calls: Vec::new(), policy_versions: Vec::new(), final_reward: None };
    for event in events {
        match EventKind::of(&event.event_type) {
            EventKind::ModelRequest => match TripletCall::from_event(event) {
                Ok(call) => {
                    left.policy_versions.extend(call.policy_version());
                    left.triplets.push(Triplet::from(call));
                }
                Err(refusal) => left.refused_calls.push(refusal),
            },
            EventKind::Reward => left.final_reward = reward_value(&event.data).ok(),
            EventKind::Other => {}
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_type: &str, data: &str) -> Event {
        Event {
            event_type: event_type.into(),
            rollout_id: "r".into(),
            attempt_id: "0".into(),
            timestamp: 0.0,
            data: RawJson::from_text(data.into()).unwrap(),
        }
    }

    #[test]
    fn groups_stay_together_and_share_their_data_id() {
        let samples: Vec<Sample> = (0..3).map(|index| Sample { input: RawJson::null(), index }).collect();
        let plan = plan_batch(&samples, BatchKind { is_train: true, step: 2, rollouts_per_sample: 4 });
        assert_eq!(plan.len(), 12);
        for group in plan.chunks(4) {
            assert!(group.iter().all(|planned| planned.data_id == group[0].data_id));
        }
        let ids: std::collections::HashSet<_> = plan.iter().map(|planned| &planned.rollout_id).collect();
        assert_eq!(ids.len(), 12);
    }

    #[test]
    fn the_last_reward_counts_and_bad_calls_keep_their_reason() {
        let left = what_it_left(&[
            event(
                "model_request",
                r#"{"prompt_token_ids":[1],"response_token_ids":[2],"response_log_probs":[-0.5],"server":{"version":3}}"#,
            ),
            event("model_request", r#"{"response_token_ids":[],"status":"ok"}"#),
            event("reward", r#"{"value":1.0}"#),
            event("note", r#"{"value":9}"#),
            event("reward", r#"{"value":0.25}"#),
        ]);
        assert_eq!(left.triplets.len(), 1);
        assert_eq!(left.policy_versions, [3]);
        assert_eq!(left.refused_calls, [TripletError::NoResponse]);
        assert_eq!(left.final_reward, Some(0.25));
        let nan_last = what_it_left(&[event("reward", r#"{"value":1.0}"#), event("reward", r#"{"value":null}"#)]);
        assert_eq!(nan_last.final_reward, None, "a NaN is not passed over in favour of an older reward");
    }
}
