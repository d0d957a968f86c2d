//! `agl-server`, and `agl server`: the gateway alone.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use agl_config::{LogFormat, Secret, ServerConfig};
use agl_gateway::{GatewaySettings, RetrySettings};
use agl_server::{Server, ServerOptions};
use anyhow::{Context, Result};
use clap::Parser;

use super::hydra;

/// Run the gateway alone, as `agl-server` does.
///
/// Settings are given as `key=value`, with Hydra's grammar: `agl server port=8080 default_proxy.train.temperature=0.9`.
/// The key is best given in AGL_KEY or with key_file=PATH, where `ps` does not show it. `agl-server --help` lists every key.
#[derive(Parser)]
pub struct Args {
    /// Settings and Hydra's own options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "KEY=VALUE")]
    words: Vec<OsString>,
}

/// Runs the command of `agl`.
pub fn run(args: &Args) -> ExitCode {
    main(args.words.iter().cloned())
}

/// Runs the program: the words are those after its name.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    hydra::main::<ServerConfig>(words, |config| {
        crate::logging::to_stderr_as(config.log.format == LogFormat::Json);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
        runtime.block_on(serve(&config))
    })
}

async fn serve(config: &ServerConfig) -> Result<()> {
    let stop = crate::session::stop_on_signal().context("listen for Ctrl-C")?;
    let server = Server::bind(options(config)?).await?;
    server.serve(stop).await;
    Ok(())
}

fn options(config: &ServerConfig) -> Result<ServerOptions> {
    let seconds = Duration::from_secs_f64;
    let (proxy, limits, upstream) = (&config.default_proxy, &config.limits, &config.upstream);
    Ok(ServerOptions {
        host: crate::address::resolve("host", &config.host)?,
        port: config.port,
        key: config.key.as_ref().map(Secret::expose).unwrap_or_default().to_owned(),
        gateway: GatewaySettings {
            model_name: proxy.model_name.clone(),
            train_temperature: proxy.train.temperature,
            val_temperature: proxy.val.temperature,
            include_log_probs: proxy.include_log_probs,
            include_routed_experts: proxy.include_routed_experts,
            allow_streaming: proxy.allow_streaming,
            attempt_timeout: seconds(upstream.attempt_timeout_seconds),
            idle_timeout: seconds(upstream.idle_timeout_seconds),
            retry: RetrySettings {
                max_attempts: upstream.max_attempts,
                base_delay: seconds(upstream.base_delay_seconds),
                max_delay: seconds(upstream.max_delay_seconds),
                jitter: upstream.jitter,
            },
        },
        max_body_bytes: limits.max_body_bytes,
        max_wait: seconds(limits.max_wait_seconds),
        shutdown_grace: seconds(limits.shutdown_grace_seconds),
        head_timeout: seconds(limits.head_timeout_seconds),
    })
}
