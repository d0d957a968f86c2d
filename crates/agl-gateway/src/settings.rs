//! What can be set about the data plane, with the original's defaults.

use std::time::Duration;

/// `default_proxy.*`, and the limits of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewaySettings {
    /// The one model that calls go to, whatever the agent names.
    pub model_name: String,
    /// Temperature of every train call.
    pub train_temperature: f64,
    /// Temperature of every validation call.
    pub val_temperature: f64,
    /// Ask for log-probabilities in train mode.
    pub include_log_probs: bool,
    /// Ask for expert routes in train mode.
    pub include_routed_experts: bool,
    /// Pass `stream: true` on; off answers 400, as the original does.
    pub allow_streaming: bool,
    /// How long one attempt may take, from connecting to the last byte.
    pub attempt_timeout: Duration,
    /// How long an unused connection is kept. Below uvicorn's 5 s, after which it would close under us.
    pub idle_timeout: Duration,
    /// Retries.
    pub retry: RetrySettings,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            model_name: "Qwen/Qwen2.5-7B-Instruct".into(),
            train_temperature: 1.0,
            val_temperature: 0.7,
            include_log_probs: true,
            include_routed_experts: false,
            allow_streaming: true,
            attempt_timeout: Duration::from_mins(5),
            idle_timeout: Duration::from_secs(4),
            retry: RetrySettings::default(),
        }
    }
}

/// How often and how slowly a call is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct RetrySettings {
    /// Attempts in all.
    pub max_attempts: u32,
    /// Pause before the second attempt; it doubles with each further one.
    pub base_delay: Duration,
    /// The longest pause.
    pub max_delay: Duration,
    /// Pauses are stretched or shortened by up to this part.
    pub jitter: f64,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            max_attempts: 6,
            base_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(8),
            jitter: 0.25,
        }
    }
}
