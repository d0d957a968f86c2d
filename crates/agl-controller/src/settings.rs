//! What a controller can be told, and what it does when it is told nothing.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The hidden subcommand under which the executable is its own watchdog ([`crate::watchdog_main`]).
pub const WATCHDOG_SUBCOMMAND: &str = "controller-watchdog";

/// Settings of a local controller. [`Default`] gives the original's values where it had the setting.
#[derive(Clone)]
pub struct ControllerSettings {
    /// The gateway as the controller reaches it. Default `http://localhost:8080`.
    pub server_url: String,
    /// The gateway as agents reach it; `server_url` when absent or empty.
    pub agent_url: Option<String>,
    /// The gateway's key, for the controller and its agents. Never logged, never in an argument list.
    pub key: Option<String>,
    /// Most agents at a time. Default 50.
    pub pool_size: usize,
    /// Longest time between two looks at the gateway: how long one wait on the feed lasts, and how often a gateway
    /// without a feed (the original's) is polled. Default 10 s.
    pub poll_interval: Duration,
    /// Where the output of each agent goes, as `<rollout id>.log`. Default `logs`.
    pub log_dir: PathBuf,
    /// About how much of one agent's output is kept: its beginning, and at most 64 KiB of its end. Default 10 MiB.
    pub log_limit_bytes: u64,
    /// Time between SIGTERM and SIGKILL. Default 5 s.
    pub grace: Duration,
    /// How long a controller that was told to stop goes on telling the gateway how its agents ended, beyond `grace`.
    /// Default 10 s.
    pub drain_timeout: Duration,
    /// Runs `config.local.agent_class`; looked up on PATH as any agent's program. Default `python3`.
    pub python: String,
    /// Starts the process that ends all agents should this one be killed: a program whose `main` calls
    /// [`crate::watchdog_main`]. Default: this executable with [`WATCHDOG_SUBCOMMAND`]. Empty: no watchdog, agents outlive `kill -9`.
    pub watchdog_command: Vec<OsString>,
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            server_url: "http://localhost:8080".into(),
            agent_url: None,
            key: None,
            pool_size: 50,
            poll_interval: Duration::from_secs(10),
            log_dir: "logs".into(),
            log_limit_bytes: 10 * 1024 * 1024,
            grace: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
            python: "python3".into(),
            watchdog_command: default_watchdog_command(),
        }
    }
}

/// Empty, hence no watchdog, only where the system cannot say which executable this is.
fn default_watchdog_command() -> Vec<OsString> {
    std::env::current_exe().map(|exe| vec![exe.into(), WATCHDOG_SUBCOMMAND.into()]).unwrap_or_default()
}

impl ControllerSettings {
    /// The base URL that agents get, without a trailing slash.
    pub fn agent_base_url(&self) -> &str {
        let url = self.agent_url.as_deref().filter(|url| !url.is_empty()).unwrap_or(&self.server_url);
        url.trim_end_matches('/')
    }
}

impl fmt::Debug for ControllerSettings {
    /// Never shows the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerSettings")
            .field("server_url", &self.server_url)
            .field("agent_url", &self.agent_url)
            .field("key", &self.key.as_ref().map(|_| "<redacted>"))
            .field("pool_size", &self.pool_size)
            .field("poll_interval", &self.poll_interval)
            .field("log_dir", &self.log_dir)
            .field("log_limit_bytes", &self.log_limit_bytes)
            .field("grace", &self.grace)
            .field("drain_timeout", &self.drain_timeout)
            .field("python", &self.python)
            .field("watchdog_command", &self.watchdog_command)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_get_their_own_url_or_the_servers() {
        let url = |agent_url: Option<&str>| {
            let settings = ControllerSettings {
                server_url: "http://s:1/".into(),
                agent_url: agent_url.map(str::to_owned),
                ..ControllerSettings::default()
            };
            settings.agent_base_url().to_owned()
        };
        assert_eq!(url(None), "http://s:1");
        assert_eq!(url(Some("")), "http://s:1");
        assert_eq!(url(Some("http://a:2//")), "http://a:2");
    }

    #[test]
    fn the_key_is_never_shown() {
        let settings = ControllerSettings { key: Some("s3cret".into()), ..ControllerSettings::default() };
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
