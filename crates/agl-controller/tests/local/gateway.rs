//! A gateway of a few lines: rollouts, their legal moves and the feed, with faults on demand.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agl_protocol::{
    LocalConfig, RawJson, Rollout, RolloutConfig, RolloutDetail, RolloutPatch, RolloutState, RolloutStatus, routes,
};
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

/// What is wrong with the next PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not taken, and answered 503.
    Refused,
    /// It is taken, and answered 503: to the caller, the answer was lost.
    AnswerLost,
}

/// Whether waiting on changes is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feed {
    Offered,
    /// As the original's server.
    Unknown,
}

#[derive(Debug, Default)]
struct Data {
    rollouts: Vec<Rollout>,
    faults: VecDeque<Fault>,
}

#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    data: Arc<Mutex<Data>>,
    position: watch::Sender<u64>,
    feed: Feed,
    pub(crate) url: String,
}

impl Gateway {
    pub(crate) async fn start(feed: Feed) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway = Self { data: Arc::default(), position: watch::Sender::new(0), feed, url };
        let app = axum::Router::new()
            .route(routes::ROLLOUTS, get(list))
            .route("/api/rollouts/{id}", get(show).patch(patch))
            .with_state(gateway.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        gateway
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Data) -> T) -> T {
        let changed = change(&mut self.data());
        self.position.send_modify(|position| *position += 1);
        changed
    }

    /// Adds a queued rollout.
    pub(crate) fn enqueue(&self, rollout_id: &str, local: Option<LocalConfig>, timeout_seconds: i64) {
        let now = now();
        let status = RolloutStatus {
            state: RolloutState::Queuing,
            k8s_job_name: None,
            last_attempt_id: None,
            error_message: None,
            version: 0,
            created_at: now,
            updated_at: now,
        };
        let rollout = Rollout {
            rollout_id: rollout_id.to_owned(),
            input: RawJson::from_text(r#"{"question":"why?"}"#.to_owned()).unwrap(),
            is_train: true,
            config: RolloutConfig { timeout_seconds, local, k8s: None },
            metadata: RawJson::empty_object(),
            status,
        };
        self.change(|data| data.rollouts.push(rollout));
    }

    /// Moves a rollout as somebody else would.
    pub(crate) fn set_state(&self, rollout_id: &str, state: RolloutState, error_message: Option<&str>) {
        self.change(|data| {
            let rollout = data.rollouts.iter_mut().find(|rollout| rollout.rollout_id == rollout_id).unwrap();
            rollout.status.state = state;
            rollout.status.error_message = error_message.map(str::to_owned);
        });
    }

    pub(crate) fn delete(&self, rollout_id: &str) {
        self.change(|data| data.rollouts.retain(|rollout| rollout.rollout_id != rollout_id));
    }

    /// What is wrong with the next PATCHes, one each.
    pub(crate) fn fail_next(&self, faults: &[Fault]) {
        self.data().faults.extend(faults);
    }

    pub(crate) fn status(&self, rollout_id: &str) -> RolloutStatus {
        let data = self.data();
        data.rollouts.iter().find(|rollout| rollout.rollout_id == rollout_id).unwrap().status.clone()
    }

    /// Waits until a rollout is in this state, and gives its status.
    pub(crate) async fn until(&self, rollout_id: &str, state: RolloutState) -> RolloutStatus {
        self.until_changed_to(|| Some(self.status(rollout_id)).filter(|status| status.state == state)).await
    }

    /// Waits until every rollout has ended.
    pub(crate) async fn until_all_ended(&self) -> Vec<RolloutStatus> {
        self.until_changed_to(|| {
            let data = self.data();
            let ended = data.rollouts.iter().all(|rollout| rollout.status.state.is_terminal());
            ended.then(|| data.rollouts.iter().map(|rollout| rollout.status.clone()).collect())
        })
        .await
    }

    async fn until_changed_to<T>(&self, condition: impl Fn() -> Option<T>) -> T {
        let mut position = self.position.subscribe();
        let wait = async {
            loop {
                if let Some(found) = condition() {
                    return found;
                }
                position.changed().await.unwrap();
            }
        };
        let patience = Duration::from_mins(1);
        timeout(patience, wait).await.unwrap_or_else(|_| panic!("still waiting; rollouts: {:#?}", self.data().rollouts))
    }
}

pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

async fn list(State(gateway): State<Gateway>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let values = |name: &str| -> Vec<String> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect()
    };
    let states = values("state_in");
    let limit = values("limit")[0].parse().unwrap();
    if gateway.feed == Feed::Offered
        && let [since] = &values(routes::SINCE)[..]
    {
        let since: u64 = since.parse().unwrap();
        let wait = Duration::from_secs_f64(values(routes::WAIT_SECONDS)[0].parse().unwrap());
        let mut position = gateway.position.subscribe();
        let _ = timeout(wait, position.wait_for(|position| *position > since)).await;
    }
    let position = *gateway.position.borrow();
    let data = gateway.data();
    let wanted = |rollout: &&Rollout| states.iter().any(|state| *state == rollout.status.state.as_str());
    let rollouts: Vec<&Rollout> = data.rollouts.iter().filter(wanted).take(limit).collect();
    match gateway.feed {
        Feed::Offered => ([(routes::FEED_POSITION_HEADER, position.to_string())], Json(rollouts)).into_response(),
        Feed::Unknown => Json(rollouts).into_response(),
    }
}

async fn show(State(gateway): State<Gateway>, Path(id): Path<String>) -> Response {
    match gateway.data().rollouts.iter().find(|rollout| rollout.rollout_id == id) {
        Some(rollout) => Json(RolloutDetail { rollout: rollout.clone(), attempts: Vec::new() }).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn patch(State(gateway): State<Gateway>, Path(id): Path<String>, Json(patch): Json<RolloutPatch>) -> Response {
    let fault = gateway.data().faults.pop_front();
    if fault == Some(Fault::Refused) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let answer = gateway.change(|data| {
        let Some(rollout) = data.rollouts.iter_mut().find(|rollout| rollout.rollout_id == id) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let (patch, status) = (patch.status.unwrap_or_default(), &mut rollout.status);
        if let Some(state) = patch.state {
            match status.state.advance(state) {
                Ok(state) => status.state = state,
                Err(error) => return (StatusCode::CONFLICT, error.to_string()).into_response(),
            }
        }
        status.last_attempt_id = patch.last_attempt_id.unwrap_or(status.last_attempt_id.take());
        status.error_message = patch.error_message.unwrap_or(status.error_message.take());
        status.version += 1;
        status.updated_at = now();
        Json(rollout.clone()).into_response()
    });
    if fault == Some(Fault::AnswerLost) { StatusCode::SERVICE_UNAVAILABLE.into_response() } else { answer }
}
