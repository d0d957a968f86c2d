//! Typed HTTP client of the gateway: one method a route.
//!
//! Works against our server and against the original's. What is ours alone (waiting on the feed) degrades by
//! itself: an old server answers at once and gives no feed position, which the caller can see.
//!
//! Calls that are safe to repeat (reads, deletes, creation with own ids, registration) are retried with back-off
//! on transport errors and 5xx, bounded by [`ClientOptions::max_retries`]. A PATCH is not: after a lost answer only its
//! caller can tell whether a 409 means "done already".

mod error;
mod retry;

use std::time::Duration;

pub use error::ClientError;

use agl_protocol::{
    Event, EventCreate, ModelServer, PauseRequest, ProxyState, Rollout, RolloutCreate, RolloutDetail, RolloutPatch,
    RolloutState, StatusPatch, TerminalPage, routes,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::error::detail_of;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Longest time for one call, beyond what the call itself asks the server to wait.
    pub timeout: Duration,
    /// How often a repeatable call is tried again after it failed.
    pub max_retries: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_mins(2), max_retries: 5 }
    }
}

/// Client of one gateway. Cloning shares the connection pool.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base_url: String,
    key: Option<String>,
    options: ClientOptions,
}

impl std::fmt::Debug for Client {
    /// Never shows the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

/// A listing, and the feed position it reflects.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The rollouts, oldest first.
    pub rollouts: Vec<Rollout>,
    /// Pass as `since` to wait for the next change. `None`: this server has no feed, poll instead.
    pub position: Option<u64>,
}

impl Client {
    /// A client for the gateway at `base_url` (`http://host:port`); an empty key means no key.
    pub fn new(base_url: &str, key: Option<&str>, options: ClientOptions) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .tcp_nodelay(true)
            // Under uvicorn's keep-alive of 5 s, so that the original's server never closes a socket we are about to use.
            .pool_idle_timeout(Duration::from_secs(4))
            .build()
            .map_err(|source| ClientError::Setup { base_url: base_url.to_owned(), source })?;
        Ok(Self {
            http,
            base_url: base_url.trim_end_matches('/').to_owned(),
            key: key.filter(|key| !key.is_empty()).map(str::to_owned),
            options,
        })
    }

    /// The gateway's base URL, without a trailing slash.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Whether the gateway answers at all.
    pub async fn health(&self) -> Result<(), ClientError> {
        self.send(self.request(Method::GET, routes::HEALTHZ)).await.map(drop)
    }

    /// Creates rollouts, whole or not at all. Retried only when every rollout has an id of its own.
    pub async fn create_rollouts(&self, rollouts: &[RolloutCreate]) -> Result<Vec<Rollout>, ClientError> {
        let request = self.request(Method::POST, routes::ROLLOUTS).json(rollouts);
        if rollouts.iter().all(|rollout| rollout.rollout_id.is_some()) {
            self.repeatable(request).await
        } else {
            Self::decode(self.send(request).await?).await
        }
    }

    /// Rollouts in any of `states`, oldest first, at most `limit`.
    pub async fn list_rollouts(&self, states: &[RolloutState], limit: u32) -> Result<Listing, ClientError> {
        self.wait_rollouts(states, limit, None, Duration::ZERO).await
    }

    /// As [`Self::list_rollouts`], but answers only once a listed state has changed after feed position `since`,
    /// or `wait` is over.
    pub async fn wait_rollouts(
        &self,
        states: &[RolloutState],
        limit: u32,
        since: Option<u64>,
        wait: Duration,
    ) -> Result<Listing, ClientError> {
        let mut query: Vec<(&str, String)> = states.iter().map(|state| ("state_in", state.to_string())).collect();
        query.push(("limit", limit.to_string()));
        if let Some(since) = since {
            query.push((routes::SINCE, since.to_string()));
            query.push((routes::WAIT_SECONDS, wait.as_secs_f64().to_string()));
        }
        let request = self.request(Method::GET, routes::ROLLOUTS).query(&query).timeout(self.options.timeout + wait);
        let response = self.retried(request).await?;
        let position =
            response.headers().get(routes::FEED_POSITION_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Listing { rollouts: Self::decode(response).await?, position })
    }

    /// One rollout and its attempts.
    pub async fn rollout(&self, rollout_id: &str) -> Result<RolloutDetail, ClientError> {
        self.repeatable(self.request(Method::GET, &routes::rollout(rollout_id))).await
    }

    /// Patches a rollout's status. Not retried.
    pub async fn patch_rollout(&self, rollout_id: &str, status: StatusPatch) -> Result<Rollout, ClientError> {
        let body = RolloutPatch { status: Some(status) };
        let request = self.request(Method::PATCH, &routes::rollout(rollout_id)).json(&body);
        Self::decode(self.send(request).await?).await
    }

    /// Forgets a rollout and its events; one that is gone already is fine.
    pub async fn delete_rollout(&self, rollout_id: &str) -> Result<(), ClientError> {
        self.retried(self.request(Method::DELETE, &routes::rollout(rollout_id))).await.map(drop)
    }

    /// Rollouts that ended after the cursor `after`, in the order in which they ended; waits up to `wait` for the first.
    pub async fn terminal(&self, after: u64, limit: u32, wait: Duration) -> Result<TerminalPage, ClientError> {
        let query = [
            ("after", after.to_string()),
            ("limit", limit.to_string()),
            (routes::WAIT_SECONDS, wait.as_secs_f64().to_string()),
        ];
        let request = self.request(Method::GET, routes::TERMINAL).query(&query).timeout(self.options.timeout + wait);
        self.repeatable(request).await
    }

    /// Adds an event to an attempt. Not retried: the store would keep it twice.
    pub async fn post_event(
        &self,
        rollout_id: &str,
        attempt_id: &str,
        event: &EventCreate,
    ) -> Result<Event, ClientError> {
        let request = self.request(Method::POST, &routes::attempt_events(rollout_id, attempt_id)).json(event);
        Self::decode(self.send(request).await?).await
    }

    /// The events of a rollout's last attempt, whole, in order.
    pub async fn events(&self, rollout_id: &str) -> Result<Vec<Event>, ClientError> {
        self.repeatable(self.request(Method::GET, &routes::events(rollout_id))).await
    }

    /// The same, model calls trimmed to ids and log-probabilities ([`agl_protocol::TripletCall`]).
    pub async fn triplets(&self, rollout_id: &str) -> Result<Vec<Event>, ClientError> {
        let request = self.request(Method::GET, &routes::events(rollout_id)).query(&[("format", "triplet")]);
        self.repeatable(request).await
    }

    /// Registers model servers, or updates their version.
    pub async fn register_models(&self, servers: &[ModelServer]) -> Result<Vec<ModelServer>, ClientError> {
        self.repeatable(self.request(Method::POST, routes::MODELS).json(servers)).await
    }

    /// Forgets every model server.
    pub async fn delete_models(&self) -> Result<(), ClientError> {
        self.retried(self.request(Method::DELETE, routes::MODELS)).await.map(drop)
    }

    /// Refuses new model calls from now on; calls in flight go on.
    pub async fn pause(&self, request: &PauseRequest) -> Result<ProxyState, ClientError> {
        self.repeatable(self.request(Method::POST, routes::PAUSE).json(request)).await
    }

    /// Takes model calls again.
    pub async fn resume(&self) -> Result<ProxyState, ClientError> {
        self.repeatable(self.request(Method::POST, routes::RESUME)).await
    }

    /// Whether the proxy is paused, and how many calls are in flight.
    pub async fn proxy_state(&self) -> Result<ProxyState, ClientError> {
        self.repeatable(self.request(Method::GET, routes::PROXY_STATE)).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base_url)).timeout(self.options.timeout);
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends once; any status but 2xx is an error that carries the server's own words.
    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let request =
            request.build().map_err(|source| ClientError::Setup { base_url: self.base_url.clone(), source })?;
        let (method, url) = (request.method().to_string(), request.url().to_string());
        let response = match self.http.execute(request).await {
            Ok(response) => response,
            Err(source) => return Err(ClientError::Transport { method, url, source }),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.text().await.unwrap_or_default();
        Err(ClientError::Status { method, url, status, detail: detail_of(status, &body) })
    }

    /// Sends, and sends again while the failure may pass.
    async fn retried(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let mut tries = 0;
        loop {
            // A body that can't be cloned is a stream; none of ours is.
            let Some(attempt) = request.try_clone() else { return self.send(request).await };
            match self.send(attempt).await {
                Err(error) if error.may_pass() && tries < self.options.max_retries => {
                    tokio::time::sleep(retry::delay(tries)).await;
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    async fn repeatable<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        Self::decode(self.retried(request).await?).await
    }

    async fn decode<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
        let url = response.url().to_string();
        let bytes = response.bytes().await.map_err(|source| ClientError::Transport {
            method: "read".into(),
            url: url.clone(),
            source,
        })?;
        serde_json::from_slice(&bytes).map_err(|source| ClientError::Decode { url, source })
    }
}

impl ClientError {
    /// The HTTP status, if the server answered at all.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}
