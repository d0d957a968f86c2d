//! What `agl-server` and `agl-controller` can be told, as structs: the keys of agentlightning 1.0.2 and a few of our own.
//!
//! The defaults of the original's keys are in `conf/*.yaml`, as it prints them with `--cfg job`. A key of ours is not
//! printed until it is set; its default, in [`Default`] below, keeps the original's behaviour or adds a limit where it had none.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use crate::config::{Config, ConfigError};
use crate::secret::{self, Secret};
use crate::surroundings::Surroundings;

/// Keys of ours for the server, which may be set without `+`.
pub(crate) const SERVER_KEYS: &[&str] = &[
    "key_file",
    "default_proxy.allow_streaming",
    "limits",
    "limits.max_body_bytes",
    "limits.max_wait_seconds",
    "limits.shutdown_grace_seconds",
    "limits.head_timeout_seconds",
    "upstream",
    "upstream.attempt_timeout_seconds",
    "upstream.idle_timeout_seconds",
    "upstream.max_attempts",
    "upstream.base_delay_seconds",
    "upstream.max_delay_seconds",
    "upstream.jitter",
    "log",
    "log.format",
];

/// Keys of ours for the controller.
pub(crate) const CONTROLLER_KEYS: &[&str] =
    &["agl_server.key_file", "local_runner.log_dir", "local_runner.max_log_bytes", "log", "log.format"];

/// Settings of `agl-server`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Address or name to listen on.
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// What callers must show; without one everybody is let in.
    #[serde(deserialize_with = "secret::optional")]
    pub key: Option<Secret>,
    /// File with the key, used when `key` is empty. Ours.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// What the proxy forces on every call.
    pub default_proxy: DefaultProxy,
    /// Bounds on what callers can ask for. Ours.
    #[serde(default)]
    pub limits: Limits,
    /// Calls to model servers. Ours; the defaults are the original's constants.
    #[serde(default)]
    pub upstream: Upstream,
    /// Logging. Ours.
    #[serde(default)]
    pub log: Log,
}

/// `default_proxy`: the model behind every call, and how it is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DefaultProxy {
    /// The one model that calls go to, whatever the agent names.
    pub model_name: String,
    /// Ask for log-probabilities in train mode. Default true.
    #[serde(default = "yes", deserialize_with = "flag")]
    pub include_log_probs: bool,
    /// Ask for expert routes in train mode. Default false.
    #[serde(default, deserialize_with = "flag")]
    pub include_routed_experts: bool,
    /// Train calls.
    pub train: Sampling,
    /// Validation calls.
    pub val: Sampling,
    /// Pass `stream: true` on; false answers 400, as the original does. Default true. Ours.
    #[serde(default = "yes", deserialize_with = "flag")]
    pub allow_streaming: bool,
}

/// How tokens are sampled in a mode, whatever the agent asks for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Sampling temperature, 0 or more.
    #[serde(deserialize_with = "temperature")]
    pub temperature: f64,
}

/// `limits`: bounds on what callers can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body, in bytes. Default 64 MiB.
    pub max_body_bytes: usize,
    /// Longest that a long poll waits, in seconds. Default 60.
    #[serde(deserialize_with = "seconds")]
    pub max_wait_seconds: f64,
    /// How long requests may go on after shutdown has begun, in seconds. Default 10.
    #[serde(deserialize_with = "seconds")]
    pub shutdown_grace_seconds: f64,
    /// How long a connection may take to send a request's head, and stand idle between two, in seconds. Default 120.
    #[serde(deserialize_with = "seconds")]
    pub head_timeout_seconds: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 64 << 20,
            max_wait_seconds: 60.0,
            shutdown_grace_seconds: 10.0,
            head_timeout_seconds: 120.0,
        }
    }
}

/// `upstream`: calls to model servers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// How long one attempt may take, in seconds. Default 300.
    #[serde(deserialize_with = "seconds")]
    pub attempt_timeout_seconds: f64,
    /// How long an unused connection is kept, in seconds. Default 4: uvicorn closes its end after 5.
    #[serde(deserialize_with = "seconds")]
    pub idle_timeout_seconds: f64,
    /// Attempts in all. Default 6.
    pub max_attempts: u32,
    /// Pause before the second attempt, in seconds; it doubles with each further one. Default 0.5.
    #[serde(deserialize_with = "seconds")]
    pub base_delay_seconds: f64,
    /// Longest pause, in seconds. Default 8.
    #[serde(deserialize_with = "seconds")]
    pub max_delay_seconds: f64,
    /// Pauses are stretched or shortened by up to this part. Default 0.25.
    pub jitter: f64,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            attempt_timeout_seconds: 300.0,
            idle_timeout_seconds: 4.0,
            max_attempts: 6,
            base_delay_seconds: 0.5,
            max_delay_seconds: 8.0,
            jitter: 0.25,
        }
    }
}

/// `log`: how log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Text for people (the default) or JSON for machines.
    pub format: LogFormat,
}

/// `log.format`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line an event.
    #[default]
    Text,
    /// One JSON object an event.
    Json,
}

/// Settings of `agl-controller`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControllerConfig {
    /// Where agents run; of the two sections below only the one of that name is used.
    pub runner_type: RunnerType,
    /// The gateway.
    pub agl_server: AglServer,
    /// Kubernetes Jobs.
    #[serde(default)]
    pub k8s_runner: Option<K8sRunner>,
    /// Local processes.
    #[serde(default)]
    pub local_runner: Option<LocalRunner>,
    /// Logging. Ours.
    #[serde(default)]
    pub log: Log,
}

/// `runner_type`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunnerType {
    /// Each rollout is a Kubernetes Job.
    K8s,
    /// Each rollout is a process on this machine.
    Local,
}

/// `agl_server`: how the gateway is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AglServer {
    /// By the controller.
    pub url: String,
    /// By agents, if that differs from `url`.
    #[serde(default, deserialize_with = "text_or_none")]
    pub agent_url: Option<String>,
    /// The gateway's key, for the controller and its agents.
    #[serde(deserialize_with = "secret::optional")]
    pub key: Option<Secret>,
    /// File with the key, used when `key` is empty. Ours.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// `k8s_runner`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct K8sRunner {
    /// Namespace of the Jobs.
    pub namespace: String,
    /// How long Kubernetes keeps a finished Job, in seconds.
    pub ttl_after_finished: u32,
    /// Most Jobs that are created within a minute.
    pub max_jobs_per_minute: u32,
    /// Time between two looks at the gateway and the cluster, in seconds; 0 means without a pause.
    #[serde(deserialize_with = "pause")]
    pub poll_interval: f64,
}

/// `local_runner`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalRunner {
    /// Most agents at a time.
    pub maximum_size: usize,
    /// Longest time between two looks at the gateway, in seconds; 0 means without a pause.
    #[serde(deserialize_with = "pause")]
    pub poll_interval: f64,
    /// Folder for the output of each agent, as `<rollout id>.log`. Default `logs`. Ours.
    #[serde(default = "log_dir")]
    pub log_dir: PathBuf,
    /// About how much of one agent's output is kept, in bytes. Default 10 MiB. Ours.
    #[serde(default = "max_log_bytes")]
    pub max_log_bytes: u64,
}

impl ServerConfig {
    /// Reads the settings, and finds the key: in `key`, in `key_file`, in the environment variable `AGL_KEY`.
    pub fn read(config: &Config, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        secret::with_key(config, "key", "key_file", surroundings)?.deserialize_in(surroundings)
    }
}

impl ControllerConfig {
    /// Reads the settings, and finds the key: in `agl_server.key`, in `agl_server.key_file`, in the environment variable `AGL_KEY`.
    pub fn read(config: &Config, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        let config = secret::with_key(config, "agl_server.key", "agl_server.key_file", surroundings)?;
        let settings: Self = config.deserialize_in(surroundings)?;
        let section = match settings.runner_type {
            RunnerType::K8s if settings.k8s_runner.is_none() => "k8s_runner",
            RunnerType::Local if settings.local_runner.is_none() => "local_runner",
            _ => return Ok(settings),
        };
        Err(ConfigError::MissingSection {
            section,
            because: format!("runner_type={}", section.trim_end_matches("_runner")),
        })
    }

    /// The gateway's URL for agents.
    pub fn agent_url(&self) -> &str {
        self.agl_server.agent_url.as_deref().unwrap_or(&self.agl_server.url)
    }
}

fn yes() -> bool {
    true
}

fn log_dir() -> PathBuf {
    PathBuf::from("logs")
}

fn max_log_bytes() -> u64 {
    10 << 20
}

/// As in the original, null means false.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<bool>::deserialize(deserializer)?.unwrap_or(false))
}

fn temperature<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number_from(deserializer, "0 (always the likeliest token), or a positive finite number", |number| number >= 0.0)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number_from(deserializer, "a positive finite number of seconds", |number| number > 0.0)
}

fn pause<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number_from(deserializer, "a finite number of seconds, 0 or more", |number| number >= 0.0)
}

/// As in the original, null, false, 0 and empty text mean none.
fn text_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(secret::optional(deserializer)?.map(|text| text.expose().to_owned()))
}

fn number_from<'de, D: Deserializer<'de>>(
    deserializer: D,
    allowed: &str,
    fits: fn(f64) -> bool,
) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number.is_finite() && fits(number) {
        return Ok(number);
    }
    Err(serde::de::Error::custom(format_args!("must be {allowed}")))
}
