//! The OpenAI-compatible server of the embedded policy. Answers have the shape of vLLM 0.20.2's, key for key.

mod chat;
mod choice;
mod completions;
mod error;
mod request;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::chat::ChatTemplate;
use crate::model::{LlamaConfig, Model};
use crate::sampler::LogProbs;
use crate::scheduler::{Generation, Scheduler, SchedulerLimits, SubmitError};
use crate::tokenizer::Tokenizer;
use error::ApiError;
use request::Wish;

/// Largest request body.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// How a policy is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// The name that requests must give, if they give one.
    pub model_name: String,
    /// Tokens of prompt and response together; the model's own limit when absent or larger.
    pub max_model_len: Option<usize>,
    /// Seed of sampling for requests without one.
    pub seed: u64,
    /// Which distribution log-probabilities are of.
    pub log_probs: LogProbs,
    /// Bounds of the scheduler.
    pub limits: SchedulerLimits,
}

/// Why a policy can't be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The scheduler's thread can't be started.
    #[error("cannot start the scheduler: {0}")]
    Thread(std::io::Error),
    /// The tokenizer can make ids that the model has no embedding for.
    #[error(
        "the tokenizer has {tokenizer} tokens, but the model's vocab_size is {model}; \
         tokenizer.json and config.json are not of the same model"
    )]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
}

/// A policy being served. Dropping it stops the server.
#[derive(Debug)]
pub struct PolicyServer {
    served: Arc<Served>,
    address: SocketAddr,
    shutdown: CancellationToken,
}

/// What handlers share.
pub(crate) struct Served {
    scheduler: Scheduler,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    config: Arc<LlamaConfig>,
    options: ServeOptions,
    version: AtomicI64,
    /// Requests so far: makes default seeds differ.
    requests: AtomicU64,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("options", &self.options).finish_non_exhaustive()
    }
}

impl PolicyServer {
    /// Listens and serves, on the runtime it is called on.
    pub async fn start(
        model: Model,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        options: ServeOptions,
    ) -> Result<Self, ServeError> {
        if tokenizer.vocab_size() > model.config.vocab_size {
            let (tokenizer, model) = (tokenizer.vocab_size(), model.config.vocab_size);
            return Err(ServeError::Vocabulary { tokenizer, model });
        }
        let bind = |source| ServeError::Bind { address: options.address, source };
        let listener = TcpListener::bind(options.address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let config = Arc::clone(&model.config);
        let scheduler =
            Scheduler::start(model, options.limits.clone(), options.log_probs).map_err(ServeError::Thread)?;
        let served = Arc::new(Served {
            scheduler,
            tokenizer,
            template,
            config,
            options,
            version: AtomicI64::new(0),
            requests: AtomicU64::new(0),
        });
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone().cancelled_owned();
        let app = router(Arc::clone(&served));
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
            // Small answers must not wait for the peer's acknowledgement.
            let _ = stream.set_nodelay(true);
        });
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).with_graceful_shutdown(stop).await {
                tracing::error!(%error, "the policy server ended");
            }
        });
        Ok(Self { served, address, shutdown })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves other weights from now on, as policy version `version`; answers once that holds. Requests under way end with
    /// `finish_reason: abort`, so that no answer mixes two policies. Blocks: call it off the async threads.
    pub fn swap(&self, model: Model, version: i64) -> Result<(), SubmitError> {
        self.served.scheduler.swap_blocking(model)?;
        self.served.version.store(version, Ordering::Release);
        Ok(())
    }

    /// The scheduler's counts.
    pub fn stats(&self) -> &crate::scheduler::SchedulerStats {
        self.served.scheduler.stats()
    }
}

impl Drop for PolicyServer {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route("/health", get(|| async {}))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/completions", post(completions::answer))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(served)
}

async fn models(State(served): State<Arc<Served>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [served.card()]}))
}

async fn model(State(served): State<Arc<Served>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    served.check_model(Some(&name))?;
    Ok(Json(served.card()))
}

/// The parts of an answer that all kinds share.
pub(crate) struct Heading {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

impl Served {
    fn card(&self) -> Value {
        json!({
            "id": self.options.model_name,
            "object": "model",
            "created": unix_seconds(),
            "owned_by": "agl",
            "root": self.options.model_name,
            "parent": null,
            "max_model_len": self.max_model_len(),
        })
    }

    fn max_model_len(&self) -> usize {
        let own = self.config.max_position_embeddings;
        self.options.max_model_len.map_or(own, |limit| limit.min(own))
    }

    pub(crate) fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(model) if !model.is_empty() && model != self.options.model_name => Err(ApiError::unknown_model(model)),
            _ => Ok(()),
        }
    }

    /// The model's own end tokens: those of its configuration, and the chat format's.
    pub(crate) fn eos(&self) -> &[u32] {
        &self.config.eos_token_ids
    }

    pub(crate) fn heading(&self, prefix: &str, model: Option<String>) -> Heading {
        Heading {
            id: format!("{prefix}-{}", random_hex()),
            created: unix_seconds(),
            model: model.filter(|model| !model.is_empty()).unwrap_or_else(|| self.options.model_name.clone()),
            fingerprint: format!("policy-{}", self.version.load(Ordering::Acquire)),
        }
    }

    /// Starts one generation a choice.
    pub(crate) fn generate(&self, prompt: &[u32], wish: &Wish) -> Result<Vec<Generation>, ApiError> {
        let room = self.room(prompt, wish.max_tokens)?;
        let mut sampling = wish.sampling.clone();
        sampling.max_tokens = room;
        if !wish.ignore_eos {
            sampling.stop_token_ids.extend_from_slice(self.eos());
        }
        // Requests without a seed differ from each other, and are the same from run to run where they come in the same order.
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let seed = wish
            .seed
            .unwrap_or_else(|| self.options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number << 8));
        (0..wish.n as u64)
            .map(|choice| {
                let sampling = crate::sampler::SamplingParams { seed: seed.wrapping_add(choice), ..sampling.clone() };
                Ok(self.scheduler.submit(prompt.to_vec(), sampling)?)
            })
            .collect()
    }

    /// How many tokens may be sampled after this prompt.
    fn room(&self, prompt: &[u32], max_tokens: Option<usize>) -> Result<usize, ApiError> {
        let limit = self.max_model_len();
        if prompt.is_empty() {
            return Err(ApiError::bad_request("prompt", "The decoder prompt cannot be empty"));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= self.config.vocab_size) {
            return Err(ApiError::bad_request("prompt", format!("Token id {id} is out of vocabulary")));
        }
        let (used, asked) = (prompt.len(), max_tokens.unwrap_or(1));
        if used + asked > limit {
            let message = format!(
                "This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and \
                 your prompt contains {used} input tokens, for a total of {} tokens. Please reduce the length of the input \
                 prompt or the number of requested output tokens. (parameter=input_tokens, value={used})",
                used + asked
            );
            return Err(ApiError::bad_request("input_tokens", message));
        }
        Ok(max_tokens.unwrap_or(limit - used))
    }
}

fn usage(prompt: usize, completion: usize) -> Value {
    json!({"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, "prompt_tokens_details": null})
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// 16 hexadecimal digits for ids.
fn random_hex() -> String {
    format!("{:016x}", rand::random::<u64>())
}
