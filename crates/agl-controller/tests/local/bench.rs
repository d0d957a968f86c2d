//! A controller at work, and questions to the system about processes.

use std::time::{Duration, Instant};

use agl_controller::{ControllerError, ControllerSettings, WATCHDOG_SUBCOMMAND};
use agl_protocol::LocalConfig;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::gateway::{Feed, Gateway};

pub(crate) const PROBE: &str = env!("CARGO_BIN_EXE_controller-probe");
/// Longest a test waits for something to become true.
const PATIENCE: Duration = Duration::from_secs(30);

/// A controller at work on a gateway of its own.
pub(crate) struct Bench {
    pub(crate) gateway: Gateway,
    pub(crate) folder: TempDir,
    shutdown: CancellationToken,
    controller: JoinHandle<Result<(), ControllerError>>,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::with(Gateway::start(Feed::Offered).await, |_| {})
    }

    pub(crate) fn with(gateway: Gateway, change: impl FnOnce(&mut ControllerSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = ControllerSettings {
            server_url: gateway.url.clone(),
            key: Some("s3cret".into()),
            log_dir: folder.path().join("logs"),
            grace: Duration::from_millis(300),
            watchdog_command: vec![PROBE.into(), WATCHDOG_SUBCOMMAND.into()],
            ..ControllerSettings::default()
        };
        change(&mut settings);
        let shutdown = CancellationToken::new();
        let controller = tokio::spawn(agl_controller::run(settings, shutdown.clone()));
        Self { gateway, folder, shutdown, controller }
    }

    /// Enqueues a shell script that may run for a minute.
    pub(crate) fn script(&self, rollout_id: &str, script: &str) {
        self.gateway.enqueue(rollout_id, Some(shell(script)), 60);
    }

    pub(crate) fn log(&self, rollout_id: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("logs/{rollout_id}.log"))).unwrap_or_default()
    }

    /// Waits until an agent has printed so many lines, each the id of a process, and gives these.
    pub(crate) async fn pids(&self, rollout_id: &str, count: usize) -> Vec<u32> {
        until("the agent prints its process ids", || {
            let log = self.log(rollout_id);
            let pids: Vec<u32> = log.lines().filter_map(|line| line.parse().ok()).collect();
            (pids.len() == count && log.ends_with('\n')).then_some(pids)
        })
        .await
    }

    /// Stops the controller and waits until it has ended.
    pub(crate) async fn stop(self) -> (Gateway, TempDir) {
        self.shutdown.cancel();
        self.controller.await.unwrap().unwrap();
        (self.gateway, self.folder)
    }
}

pub(crate) fn command(words: &[&str]) -> LocalConfig {
    LocalConfig { command: Some(words.iter().map(|word| (*word).to_owned()).collect()), ..LocalConfig::default() }
}

pub(crate) fn shell(script: &str) -> LocalConfig {
    command(&["sh", "-c", script])
}

/// Polls until the condition gives something.
pub(crate) async fn until<T>(what: &str, condition: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until none of these processes runs.
pub(crate) async fn until_gone(pids: &[u32]) {
    until(&format!("{pids:?} are gone"), || (!pids.iter().any(|pid| is_alive(*pid))).then_some(())).await;
}

/// Whether a process runs; a zombie does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which is in parentheses and may hold anything.
    !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    children.flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}
