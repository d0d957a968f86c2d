//! What a cluster's nodes have ready: a leased inventory of images, published by a runner, read by whoever starts rollouts.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use agl_protocol::pyjson::Integer;
use http::StatusCode;

use crate::app::{App, Ask};
use crate::reply::{Refused, Reply, json};
use crate::validate::Inventory;
use crate::{body, validate};

/// The latest inventory, and until when it may be believed.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Inventory, Instant)>>);

impl Readiness {
    fn publish(&self, inventory: Inventory) {
        let until = Instant::now() + Duration::from_secs_f64(inventory.lease_seconds);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((inventory, until));
    }

    fn current(&self) -> Option<Inventory> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(inventory, _)| inventory.clone())
    }
}

/// `PUT /api/runner-readiness/k8s`: takes the place of the inventory before, for `lease_seconds`.
pub(crate) fn publish(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let mut inventory = validate::inventory(&body::json(&ask.headers, &ask.body)?)?;
    let images: BTreeSet<String> = inventory.images.iter().map(|image| canonical(image)).collect();
    inventory.images = images.into_iter().collect();
    app.readiness.publish(inventory.clone());
    shown(&inventory)
}

/// `GET /api/runner-readiness/k8s`: the inventory, as long as its lease runs.
pub(crate) fn get(app: &App) -> Result<Reply, Refused> {
    let message = "No runner has published its readiness, or its lease has run out";
    let missing = || Refused::Status(StatusCode::SERVICE_UNAVAILABLE, message.to_owned());
    shown(&app.readiness.current().ok_or_else(missing)?)
}

fn shown(inventory: &Inventory) -> Result<Reply, Refused> {
    let Inventory { images, node_count, lease_seconds } = inventory;
    let images = serde_json::to_string(images)
        .map_err(|error| Refused::Status(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let node_count = Integer::digits(node_count);
    let text = format!(r#"{{"images":{images},"node_count":{node_count},"lease_seconds":{lease_seconds}}}"#);
    Ok(json(StatusCode::OK, text))
}

/// The full name of an image, as Docker completes it: registry, `library/` for Docker's own, and tag.
fn canonical(image: &str) -> String {
    const DOCKER_HUB: &str = "docker.io";
    let (registry, name) = match image.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DOCKER_HUB, image),
    };
    let registry = if registry == "index.docker.io" { DOCKER_HUB } else { registry };
    let library = if registry == DOCKER_HUB && !name.contains('/') { "library/" } else { "" };
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = if last.contains([':', '@']) { "" } else { ":latest" };
    format!("{registry}/{library}{name}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_one_name() {
        for (image, full) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12", "docker.io/library/python:3.12"),
            ("me/agent", "docker.io/me/agent:latest"),
            ("index.docker.io/me/agent:1", "docker.io/me/agent:1"),
            ("docker.io/python", "docker.io/library/python:latest"),
            ("localhost/agent", "localhost/agent:latest"),
            ("registry:5000/team/agent", "registry:5000/team/agent:latest"),
            ("ghcr.io/team/agent@sha256:ab", "ghcr.io/team/agent@sha256:ab"),
        ] {
            assert_eq!(canonical(image), full);
            assert_eq!(canonical(full), full, "a full name is complete");
        }
    }

    #[test]
    fn a_lease_runs_out() {
        let readiness = Readiness::default();
        assert_eq!(readiness.current(), None);
        let inventory = |lease_seconds: f64| Inventory { images: Vec::new(), node_count: 1.into(), lease_seconds };
        readiness.publish(inventory(60.0));
        assert_eq!(readiness.current(), Some(inventory(60.0)));
        readiness.publish(inventory(1e-9));
        assert_eq!(readiness.current(), None);
    }
}
