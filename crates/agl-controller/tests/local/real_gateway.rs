//! The controller on the gateway it was made for.

use std::net::Ipv4Addr;
use std::time::Duration;

use agl_client::{Client, ClientOptions};
use agl_controller::{ControllerError, ControllerSettings, WATCHDOG_SUBCOMMAND};
use agl_protocol::RolloutState::{Failed, Succeeded};
use agl_protocol::{LocalConfig, RawJson, RolloutConfig, RolloutCreate, RolloutState, StatusPatch, TerminalRollout};
use agl_server::{Server, ServerOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bench::{PROBE, command, shell};

const KEY: &str = "s3cret";
const PATIENCE: Duration = Duration::from_mins(1);

struct Stack {
    client: Client,
    stop_controller: CancellationToken,
    controller: JoinHandle<Result<(), ControllerError>>,
    folder: TempDir,
    _stop_gateway: DropGuard,
}

impl Stack {
    async fn start(pool_size: usize) -> Self {
        let options =
            ServerOptions { host: Ipv4Addr::LOCALHOST.into(), port: 0, key: KEY.into(), ..ServerOptions::default() };
        let server = Server::bind(options).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let settings = ControllerSettings {
            server_url: server.url(),
            key: Some(KEY.into()),
            log_dir: folder.path().into(),
            pool_size,
            watchdog_command: vec![PROBE.into(), WATCHDOG_SUBCOMMAND.into()],
            ..ControllerSettings::default()
        };
        let client = Client::new(&server.url(), Some(KEY), ClientOptions::default()).unwrap();
        let (stop_gateway, stop_controller) = (CancellationToken::new(), CancellationToken::new());
        tokio::spawn(server.serve(stop_gateway.clone()));
        let controller = tokio::spawn(agl_controller::run(settings, stop_controller.clone()));
        Self { client, stop_controller, controller, folder, _stop_gateway: stop_gateway.drop_guard() }
    }

    async fn enqueue(&self, ids: impl Iterator<Item = String>, local: &LocalConfig) {
        let rollouts: Vec<RolloutCreate> = ids
            .map(|rollout_id| RolloutCreate {
                input: RawJson::from_value("task").unwrap(),
                config: Some(RolloutConfig { local: Some(local.clone()), ..RolloutConfig::default() }),
                rollout_id: Some(rollout_id),
                ..RolloutCreate::default()
            })
            .collect();
        self.client.create_rollouts(&rollouts).await.unwrap();
    }

    /// Waits until so many rollouts have ended.
    async fn ended(&self, count: usize) -> Vec<TerminalRollout> {
        let mut ended = Vec::new();
        let mut after = 0;
        while ended.len() < count {
            let page = self.client.terminal(after, 1000, PATIENCE).await.unwrap();
            assert!(!page.items.is_empty(), "waited in vain, {} of {count} have ended", ended.len());
            after = page.next_after;
            ended.extend(page.items);
        }
        ended
    }

    async fn state(&self, rollout_id: &str) -> RolloutState {
        self.client.rollout(rollout_id).await.unwrap().rollout.status.state
    }

    /// Waits until a rollout runs.
    async fn running(&self, rollout_id: &str) {
        let (states, mut since) = ([RolloutState::Running], None);
        loop {
            let listing = self.client.wait_rollouts(&states, 1000, since, PATIENCE).await.unwrap();
            if listing.rollouts.iter().any(|rollout| rollout.rollout_id == rollout_id) {
                return;
            }
            since = listing.position;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_rollouts_settle() {
    let stack = Stack::start(20).await;
    let mut names_its_task = command(&["sh", "-c", "test \"$TASK\" = task"]);
    names_its_task.env_map.insert("TASK".into(), "input".into());
    stack.enqueue((0..300).map(|number| format!("r{number}")), &names_its_task).await;
    let ended = stack.ended(300).await;
    assert!(ended.iter().all(|rollout| rollout.state == Succeeded), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_agent_makes_room_while_the_queue_is_long() {
    let stack = Stack::start(1).await;
    stack.enqueue(["hangs".to_owned()].into_iter(), &shell("sleep 600")).await;
    stack.running("hangs").await;
    stack.enqueue((0..10).map(|number| format!("r{number}")), &shell("true")).await;
    let cancel = StatusPatch::state(Failed).because("changed my mind");
    stack.client.patch_rollout("hangs", cancel).await.unwrap();
    assert_eq!(stack.ended(11).await.iter().filter(|rollout| rollout.state == Succeeded).count(), 10);
    assert_eq!(stack.state("hangs").await, Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_is_told_to_the_gateway() {
    let stack = Stack::start(2).await;
    stack.enqueue(["r".to_owned()].into_iter(), &shell("echo begun; sleep 600")).await;
    stack.running("r").await;
    stack.stop_controller.cancel();
    stack.controller.await.unwrap().unwrap();
    let status = stack.client.rollout("r").await.unwrap().rollout.status;
    assert_eq!(status.state, Failed);
    assert_eq!(status.error_message.unwrap().lines().next(), Some("local controller shutdown"));
    drop(stack.folder);
}
