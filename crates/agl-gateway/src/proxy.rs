//! The path of a call: shape, route, forward, retry, capture.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agl_protocol::Mode;
use agl_protocol::pyjson::Integer;
use agl_store::{ModelServer, Store};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use crate::capture::{Capture, NotAnObject};
use crate::record::Recorder;
use crate::relay::Relay;
use crate::shape::{ShapeError, Shaped, Shaper};
use crate::upstream::{AttemptError, Outcome, Reply, Upstream, target};
use crate::{Gate, GateState, GatewaySettings, retry, route};

/// What of a model server's API agents may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamPath {
    /// `chat/completions`
    ChatCompletions,
    /// `completions`
    Completions,
}

impl UpstreamPath {
    /// Reads what stands after `/openai/v1/`.
    pub fn parse(path: &str) -> Option<Self> {
        [Self::ChatCompletions, Self::Completions].into_iter().find(|known| known.as_str() == path)
    }

    /// The path below the endpoint.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Completions => "completions",
        }
    }
}

/// A model call of an agent.
#[derive(Clone, Debug)]
pub struct Call {
    /// The rollout it belongs to.
    pub rollout_id: String,
    /// The attempt it belongs to.
    pub attempt_id: String,
    /// Train or validation.
    pub mode: Mode,
    /// Which API.
    pub path: UpstreamPath,
    /// The request as the agent sent it.
    pub body: Bytes,
}

/// What the agent gets: the model server's answer.
#[derive(Debug)]
pub struct Answer {
    /// The model server's status.
    pub status: StatusCode,
    /// Those of its headers that mean something to the agent.
    pub headers: HeaderMap,
    /// Its body.
    pub body: AnswerBody,
}

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// All of it.
    Whole(Bytes),
    /// As it comes.
    Stream(Box<Relay>),
}

/// Why a call was not answered by a model server.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No such rollout.
    #[error("Rollout not found: {0}")]
    RolloutNotFound(String),
    /// The request can't be sent.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The trainer has registered no server for the model.
    #[error("No servers available for model '{0}'")]
    NoServers(String),
    /// Weights are changing; the agent should come back.
    #[error("gateway paused")]
    Paused {
        /// Seconds.
        retry_after: Integer,
        /// In the words of whoever paused.
        reason: Option<String>,
    },
    /// The agent wants a stream and may not have one.
    #[error("Streaming responses are not supported")]
    StreamingOff,
    /// Every attempt took too long, or the last one did.
    #[error("Upstream model server timed out")]
    Timeout,
    /// The model server answered with what it calls JSON, but is none.
    #[error("Upstream {0}")]
    Unreadable(#[from] NotAnObject),
    /// No connection, or a broken one.
    #[error("Upstream model server request failed")]
    Unreachable,
}

impl From<GateState> for CallError {
    fn from(state: GateState) -> Self {
        Self::Paused { retry_after: state.retry_after_seconds, reason: state.reason }
    }
}

/// The data plane.
#[derive(Debug)]
pub struct Gateway {
    settings: GatewaySettings,
    shaper: Shaper,
    upstream: Upstream,
    store: Store,
    gate: Gate,
}

impl Gateway {
    /// A gateway that finds model servers and keeps calls in `store`.
    pub fn new(settings: GatewaySettings, store: Store) -> Self {
        Self {
            shaper: Shaper::new(&settings),
            upstream: Upstream::new(&settings),
            gate: Gate::default(),
            settings,
            store,
        }
    }

    /// The gate, for pausing and counting.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The settings.
    pub fn settings(&self) -> &GatewaySettings {
        &self.settings
    }

    /// Answers a call, and keeps it. Dropping the future cancels the call: nothing is kept, nobody is counted.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        if !self.store.read(|state| state.contains(&call.rollout_id)) {
            return Err(CallError::RolloutNotFound(call.rollout_id));
        }
        let Shaped { body, stream } = self.shaper.shape(&call.body, call.mode)?;
        let server = self.route(&call.rollout_id)?;
        let pass = self.gate.enter()?;
        if stream.is_some() && !self.settings.allow_streaming {
            return Err(CallError::StreamingOff);
        }
        let started = Instant::now();
        let (outcome, retry_count) = self.forward(&server, call.path, &body, stream.is_some()).await?;
        let recorder = |http_status: StatusCode| Recorder {
            store: self.store.clone(),
            rollout_id: call.rollout_id,
            attempt_id: call.attempt_id,
            server,
            request: body,
            started,
            retry_count,
            http_status,
            pass,
        };
        match outcome {
            Outcome::Whole(reply) => whole(reply, recorder),
            Outcome::Stream(response) => {
                let (parts, upstream) = response.into_parts();
                let hide_usage = !stream.is_some_and(|wish| wish.usage);
                let relay = Relay::new(upstream, recorder(parts.status), hide_usage, self.settings.attempt_timeout);
                let headers = for_agent(parts.status, &parts.headers);
                Ok(Answer { status: parts.status, headers, body: AnswerBody::Stream(Box::new(relay)) })
            }
        }
    }

    fn route(&self, rollout_id: &str) -> Result<Arc<ModelServer>, CallError> {
        let model = &self.settings.model_name;
        let servers = self.store.read(|state| state.servers(model)).unwrap_or_default();
        let pinned = route::pinned(rollout_id, servers.len()).and_then(|index| servers.get(index));
        pinned.cloned().ok_or_else(|| CallError::NoServers(model.clone()))
    }

    /// Tries until there is an answer that need not be retried, or the attempts are used up. A pause ends the retries,
    /// so that a drain never waits for a call that sleeps.
    async fn forward(
        &self,
        server: &ModelServer,
        path: UpstreamPath,
        body: &Bytes,
        wants_stream: bool,
    ) -> Result<(Outcome, u32), CallError> {
        let target = target(&server.endpoint, path.as_str()).map_err(|error| refuse(&server.endpoint, &error))?;
        let retries = &self.settings.retry;
        let mut attempt = 0;
        loop {
            let last = attempt + 1 >= retries.max_attempts;
            let mut asked = Duration::ZERO;
            let why = match self.upstream.send(&target, body.clone(), wants_stream).await {
                Ok(Outcome::Whole(reply)) if !last && retry::is_retryable(reply.status) => {
                    asked = retry::asked(retries, &reply.headers);
                    format!("status {}", reply.status)
                }
                Ok(outcome) => return Ok((outcome, attempt)),
                Err(error) if last => return Err(refuse(&server.endpoint, &error)),
                Err(error) => error.to_string(),
            };
            let delay = retry::delay(retries, attempt, rand::random()).max(asked);
            tracing::warn!(%target, attempt = attempt + 1, delay_ms = delay.as_millis(), why, "retrying a model call");
            tokio::select! {
                () = tokio::time::sleep(delay) => attempt += 1,
                state = self.gate.paused() => return Err(state.into()),
            }
        }
    }
}

/// An answer that came in one piece. One that says that it is JSON and is none is not kept: there is nothing to learn
/// from it.
fn whole(reply: Reply, recorder: impl FnOnce(StatusCode) -> Recorder) -> Result<Answer, CallError> {
    let (status, headers) = (reply.status, for_agent(reply.status, &reply.headers));
    match Capture::read(status, &reply.headers, &reply.body) {
        Ok(capture) => {
            let body = AnswerBody::Whole(recorder(status).keep_whole(capture));
            Ok(Answer { status, headers, body })
        }
        Err(error) => {
            tracing::warn!(%status, %error, "a model call is not kept");
            let answer = Answer { status, headers, body: AnswerBody::Whole(reply.body) };
            if status.is_success() { Err(error.into()) } else { Ok(answer) }
        }
    }
}

/// What the agent is told of a failed attempt; the log says more.
fn refuse(endpoint: &str, error: &AttemptError) -> CallError {
    tracing::warn!(endpoint, %error, "a model call failed");
    match error {
        AttemptError::Timeout(_) => CallError::Timeout,
        AttemptError::Transport(_) | AttemptError::BadEndpoint { .. } => CallError::Unreachable,
    }
}

/// The headers that say how to read the body and, if the call failed, when to come back.
fn for_agent(status: StatusCode, headers: &HeaderMap) -> HeaderMap {
    let failed = status.as_u16() >= 400;
    let passed =
        [header::CONTENT_TYPE, header::CONTENT_ENCODING].into_iter().chain(failed.then_some(header::RETRY_AFTER));
    passed.filter_map(|name| headers.get(&name).map(|value| (name, value.clone()))).collect()
}
