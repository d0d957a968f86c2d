//! The process that tests kill: a controller, its watchdog, or an agent that tells the time.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agl_controller::{ControllerSettings, WATCHDOG_SUBCOMMAND, run, watchdog_main};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [role] if role == WATCHDOG_SUBCOMMAND => watchdog_main(),
        [role, server_url, log_dir] if role == "controller" => controller(ControllerSettings {
            server_url: server_url.to_string_lossy().into_owned(),
            log_dir: log_dir.into(),
            grace: Duration::from_millis(200),
            ..ControllerSettings::default()
        }),
        [role] if role == "tell-time" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            println!("{}", now.as_secs_f64());
            ExitCode::SUCCESS
        }
        _ => ExitCode::FAILURE,
    }
}

/// As the command line does: SIGTERM stops it.
#[tokio::main]
async fn controller(settings: ControllerSettings) -> ExitCode {
    let shutdown = CancellationToken::new();
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return ExitCode::FAILURE };
    let stop = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    if run(settings, shutdown).await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
