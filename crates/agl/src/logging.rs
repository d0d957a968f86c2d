//! Where the program's own log goes: stderr for servers, a file in the run folder for runs, whose terminal shows progress.

use std::fs::{self, OpenOptions};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

/// Environment variable with a filter such as `debug` or `agl_gateway=debug,info`.
const FILTER_VARIABLE: &str = "AGL_LOG";

fn filter() -> EnvFilter {
    EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Logs to stderr as text.
pub fn to_stderr() {
    to_stderr_as(false);
}

/// Logs to stderr: JSON for machines, or text, with colour only on a terminal.
pub fn to_stderr_as(json: bool) {
    let log = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(std::io::stderr);
    // A second call, in a test say, keeps the first one's choice.
    let _ = if json {
        log.json().with_ansi(false).try_init()
    } else {
        let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        log.with_ansi(colour).try_init()
    };
}

/// Logs to `agl.log` in the run folder.
pub fn to_run_folder(run_dir: &Path) -> Result<()> {
    let path = run_dir.join("agl.log");
    fs::create_dir_all(run_dir).with_context(|| format!("create {}", run_dir.display()))?;
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter()).with_writer(Mutex::new(file)).with_ansi(false).try_init();
    Ok(())
}
