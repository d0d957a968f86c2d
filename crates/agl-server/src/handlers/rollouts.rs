//! Rollouts: create, look, wait, patch, delete.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use agl_protocol::pyjson::Integer;
use agl_protocol::routes::{FEED_POSITION_HEADER, SINCE, WAIT_SECONDS};
use agl_store::{NewRollout, Refusal, Rollout, StateSet};
use http::StatusCode;
use indexmap::IndexMap;
use serde::Serialize;

use crate::app::{App, Ask};
use crate::body;
use crate::reply::{Refused, Reply, detail, empty, json, with_header};
use crate::validate::{self, Query, RolloutSpec, StatusChange};

/// Rollouts in a list, unless the caller asks for another number.
const DEFAULT_LIST_LIMIT: i64 = 500;
/// The same of the terminal list.
const DEFAULT_TERMINAL_LIMIT: i64 = 1000;

/// `POST /api/rollouts`: creates a batch, whole or not at all. A rollout whose id exists is answered as it is.
pub(crate) fn create(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let specs = validate::new_rollouts(&body::json(&ask.headers, &ask.body)?)?;
    let rollouts = app.store.create(specs.into_iter().map(with_id).collect())?;
    serialized(StatusCode::CREATED, &rollouts)
}

fn with_id(spec: RolloutSpec) -> NewRollout {
    let given = spec.rollout_id.filter(|id| !id.is_empty());
    NewRollout {
        rollout_id: given.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string()),
        input: spec.input,
        is_train: spec.is_train,
        config: spec.config,
        metadata: spec.metadata.to_raw(),
    }
}

/// `GET /api/rollouts?state_in=…`: the rollouts in these states, oldest first. With `since` and `wait_seconds` (ours) it
/// first waits until one has come into or left these states after that feed position.
pub(crate) async fn list(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let mut query = Query::new(&ask.query);
    let states: StateSet = query.required_list("state_in", validate::state).into_iter().collect();
    let limit = query.integer("limit", DEFAULT_LIST_LIMIT).saturating_i64();
    let since = query.integer(SINCE, 0).saturating_i64();
    let wait = query.integer(WAIT_SECONDS, 0);
    let (states, limit, since, wait) = query.finish((states, limit, since, wait))?;
    if let Some(wait) = wait_time(app, &wait) {
        let since = u64::try_from(since).unwrap_or(0);
        or_shutdown(app, app.store.wait_for_change(states, since, wait)).await;
    }
    let (rollouts, position) = app.store.read(|state| {
        // As Python slices: a negative limit counts from the end.
        let limit = usize::try_from(limit).unwrap_or_else(|_| {
            let left_out = usize::try_from(limit.unsigned_abs()).unwrap_or(usize::MAX);
            state.count(states).saturating_sub(left_out)
        });
        (state.list(states, limit), state.marks().position)
    });
    Ok(with_header(serialized(StatusCode::OK, &rollouts)?, FEED_POSITION_HEADER, &position.to_string()))
}

/// `GET /api/rollouts/terminal?after=…`: rollouts in the order in which they ended. With `wait_seconds` (ours) it first
/// waits until there is one beyond `after`.
pub(crate) async fn list_terminal(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let mut query = Query::new(&ask.query);
    let after = query.integer("after", 0);
    let limit = query.integer("limit", DEFAULT_TERMINAL_LIMIT).saturating_i64();
    let wait = query.integer(WAIT_SECONDS, 0);
    let (after, limit, wait) = query.finish((after, limit, wait))?;
    let place = usize::try_from(after.saturating_i64()).unwrap_or(0);
    if let Some(wait) = wait_time(app, &wait) {
        or_shutdown(app, app.store.wait_for_terminal(place as u64, wait)).await;
    }
    let page = app.store.terminal(place, usize::try_from(limit).unwrap_or(1).max(1));
    let next = match after.as_i64() {
        Some(_) => (place + page.covered).to_string(),
        None if place == 0 => page.covered.to_string(),
        // Beyond any list: the cursor stays where the caller put it.
        None => after.digits().to_owned(),
    };
    let items = to_json(&page.items)?;
    Ok(json(StatusCode::OK, format!("{{\"items\":{items},\"next_after\":{next},\"total_terminal\":{}}}", page.total)))
}

/// How long a long poll may wait, if it is one.
fn wait_time(app: &App, asked_seconds: &Integer) -> Option<Duration> {
    let seconds = u64::try_from(asked_seconds.saturating_i64()).ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds).min(app.options.max_wait))
}

/// Waits, but not into a shutdown.
async fn or_shutdown(app: &App, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = app.shutdown.cancelled() => {}
    }
}

/// `GET /api/rollouts/{id}`: a rollout and its attempts that have events.
pub(crate) fn get(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let (rollout, attempts) = find(app, ask.segment(0))?;
    serialized(StatusCode::OK, &Detail { rollout: &rollout, attempts: &attempts })
}

#[derive(Serialize)]
struct Detail<'a> {
    rollout: &'a Rollout,
    attempts: &'a [Arc<str>],
}

/// `PATCH /api/rollouts/{id}`: changes the status. Only legal moves of the state are taken.
pub(crate) fn patch(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let change = validate::rollout_patch(&body::json(&ask.headers, &ask.body)?)?;
    let rollout_id = ask.segment(0);
    match change {
        StatusChange::Patch(patch) => serialized(StatusCode::OK, &app.store.patch(rollout_id, patch)?),
        StatusChange::StateToNull => {
            let from = find(app, rollout_id)?.0.status.state;
            Ok(detail(StatusCode::CONFLICT, &format!("Rollout {rollout_id}: cannot transition {from} -> None")))
        }
    }
}

/// `POST /api/rollouts/status`: the status of each rollout of a list, by id. One that does not exist refuses the whole.
pub(crate) fn statuses(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let ids = validate::rollout_ids(&body::json(&ask.headers, &ask.body)?)?;
    let mut statuses = IndexMap::new();
    for rollout_id in ids {
        let rollout = find(app, &rollout_id)?.0;
        statuses.insert(rollout_id, rollout.status.clone());
    }
    serialized(StatusCode::OK, &statuses)
}

/// `DELETE /api/rollouts/{id}`: forgets it and its events. One that does not exist is already forgotten.
pub(crate) fn delete(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    app.store.delete(ask.segment(0))?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn find(app: &App, rollout_id: &str) -> Result<(Arc<Rollout>, Vec<Arc<str>>), Refused> {
    let found = app.store.read(|state| state.rollout(rollout_id));
    found.ok_or_else(|| Refusal::NotFound(rollout_id.to_owned()).into())
}

fn serialized(status: StatusCode, value: &impl Serialize) -> Result<Reply, Refused> {
    to_json(value).map(|text| json(status, text))
}

fn to_json(value: &impl Serialize) -> Result<String, Refused> {
    serde_json::to_string(value).map_err(|error| Refused::Status(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
