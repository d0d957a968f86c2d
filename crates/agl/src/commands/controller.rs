//! `agl-controller`, and `agl controller`: the controller alone.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use agl_config::{ControllerConfig, LogFormat, RunnerType, Secret};
use agl_controller::ControllerSettings;
use anyhow::{Context, Result, bail};
use clap::Parser;

use super::hydra;

/// Run the controller alone, as `agl-controller` does.
///
/// Settings are given as `key=value`, with Hydra's grammar: `agl controller runner_type=local agl_server.url=http://host:8080`.
/// The key is best given in AGL_KEY or with agl_server.key_file=PATH. `agl-controller --help` lists every key.
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
    hydra::main::<ControllerConfig>(words, |config| {
        crate::logging::to_stderr_as(config.log.format == LogFormat::Json);
        let settings = settings(&config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
        runtime.block_on(async {
            let stop = crate::session::stop_on_signal().context("listen for Ctrl-C")?;
            Ok(agl_controller::run(settings, stop).await?)
        })
    })
}

fn settings(config: &ControllerConfig) -> Result<ControllerSettings> {
    let runner = match (&config.runner_type, &config.local_runner) {
        (RunnerType::Local, Some(runner)) => runner,
        (RunnerType::Local, None) => bail!("runner_type=local needs the section local_runner"),
        (RunnerType::K8s, _) => {
            bail!("runner_type=k8s is not built yet; run agents as local processes with runner_type=local")
        }
    };
    Ok(ControllerSettings {
        server_url: config.agl_server.url.clone(),
        agent_url: config.agl_server.agent_url.clone(),
        key: config.agl_server.key.as_ref().map(Secret::expose).map(str::to_owned),
        pool_size: runner.maximum_size,
        poll_interval: Duration::from_secs_f64(runner.poll_interval),
        log_dir: runner.log_dir.clone(),
        log_limit_bytes: runner.max_log_bytes,
        ..ControllerSettings::default()
    })
}
