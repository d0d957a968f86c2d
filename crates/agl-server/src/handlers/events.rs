//! Events: post and look.

use agl_store::{EventData, EventView, NewEvent, Refusal, write_events};
use http::StatusCode;

use crate::app::{App, Ask};
use crate::body;
use crate::reply::{Refused, Reply, json};
use crate::validate::{self, Query};

/// `POST /api/rollouts/{id}/attempt/{attempt}/events`: appends an event and answers it.
pub(crate) fn post(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let (event_type, data) = validate::event(&body::json(&ask.headers, &ask.body)?)?;
    let data = EventData::posted(&event_type, data);
    let (rollout_id, attempt_id) = (ask.segment(0).to_owned(), ask.segment(1).to_owned());
    let event = app.store.record(NewEvent { rollout_id, attempt_id, event_type, data })?;
    let mut text = String::new();
    event.write(&mut text, &EventView::default());
    Ok(json(StatusCode::OK, text))
}

/// `GET /api/rollouts/{id}/events`: the events of the attempt that counts, as recorded or as triplets.
pub(crate) fn get(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let mut query = Query::new(&ask.query);
    let view = EventView {
        event_type: query.text("event_type"),
        triplets: query.text("format").as_deref() == Some("triplet"),
        routes: query.boolean("include_routed_experts", true),
    };
    let view = query.finish(view)?;
    let rollout_id = ask.segment(0);
    let events = app.store.read(|state| state.events(rollout_id));
    let events = events.ok_or_else(|| Refusal::NotFound(rollout_id.to_owned()))?;
    Ok(json(StatusCode::OK, write_events(&events, &view)))
}
