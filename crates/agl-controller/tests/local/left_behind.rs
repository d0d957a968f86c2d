//! Nothing is left behind: not by agents that end, not by controllers that are killed.

use std::process::{Child, Command, Stdio};

use agl_protocol::RolloutState::{Failed, Running, Succeeded};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::bench::{Bench, PROBE, children_of, shell, until, until_gone};
use crate::gateway::{Feed, Gateway};

/// Prints its own id and those of two children: one in its group, one in a session of its own.
const FAMILY: &str = "echo $$; sleep 600 & echo $!; \
    python3 -c 'import subprocess; print(subprocess.Popen([\"sleep\", \"600\"], start_new_session=True).pid)'; ";

#[tokio::test]
async fn children_go_with_their_agent() {
    let bench = Bench::start().await;
    bench.script("r", &format!("{FAMILY} exit 0"));
    bench.gateway.until("r", Succeeded).await;
    let pids = bench.pids("r", 3).await;
    until_gone(&pids).await;
}

/// A controller as a process of its own, killed with the test.
struct Controller {
    process: Child,
    folder: TempDir,
}

impl Controller {
    fn start(gateway: &Gateway) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new(PROBE)
            .args(["controller", &gateway.url])
            .arg(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    async fn pids(&self, rollout_id: &str, count: usize) -> Vec<u32> {
        let log = self.folder.path().join(format!("{rollout_id}.log"));
        until("the agent prints its process ids", || {
            let log = std::fs::read_to_string(&log).ok()?;
            let pids: Vec<u32> = log.lines().filter_map(|line| line.parse().ok()).collect();
            (pids.len() == count && log.ends_with('\n')).then_some(pids)
        })
        .await
    }

    /// The children of the controller that are not these.
    fn watchdog(&self, agents: &[u32]) -> Option<u32> {
        children_of(self.process.id()).into_iter().find(|pid| !agents.contains(pid))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn no_agent_survives_a_controller_that_is_killed() {
    let gateway = Gateway::start(Feed::Offered).await;
    for rollout_id in ["a", "b"] {
        gateway.enqueue(rollout_id, Some(shell(&format!("trap '' TERM; {FAMILY} wait"))), 60);
    }
    let mut controller = Controller::start(&gateway);
    let mut pids = controller.pids("a", 3).await;
    pids.extend(controller.pids("b", 3).await);
    pids.extend(controller.watchdog(&pids));
    assert_eq!(pids.len(), 7);
    controller.signal(Signal::KILL);
    controller.process.wait().unwrap();
    until_gone(&pids).await;
    assert_eq!(gateway.status("a").state, Running);

    let next = Bench::with(gateway, |_| {});
    let message = next.gateway.until("a", Failed).await.error_message.unwrap();
    assert_eq!(message, "local subprocess is not running");
    next.gateway.until("b", Failed).await;
}

#[tokio::test]
async fn a_watchdog_that_is_killed_is_replaced() {
    let gateway = Gateway::start(Feed::Offered).await;
    gateway.enqueue("r", Some(shell("echo $$; sleep 600")), 60);
    let mut controller = Controller::start(&gateway);
    let agents = controller.pids("r", 1).await;
    let first = until("there is a watchdog", || controller.watchdog(&agents)).await;
    kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let second = || controller.watchdog(&agents).filter(|pid| *pid != first);
    let second = until("there is another watchdog", second).await;
    // The new one has to be ready before its controller goes: it then has its own session.
    let session = || std::fs::read_to_string(format!("/proc/{second}/stat")).ok();
    until("the watchdog has a session", || session()?.split_whitespace().nth(5)?.eq(&second.to_string()).then_some(()))
        .await;
    controller.signal(Signal::KILL);
    controller.process.wait().unwrap();
    until_gone(&[agents[0], second]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_told_to_stop_settles_everything() {
    let gateway = Gateway::start(Feed::Offered).await;
    gateway.enqueue("r", Some(shell(&format!("{FAMILY} wait"))), 60);
    let mut controller = Controller::start(&gateway);
    let mut pids = controller.pids("r", 3).await;
    pids.extend(controller.watchdog(&pids));
    controller.signal(Signal::TERM);
    assert!(controller.process.wait().unwrap().success());
    until_gone(&pids).await;
    let status = gateway.status("r");
    assert_eq!(status.state, Failed);
    assert_eq!(status.error_message.unwrap().lines().next(), Some("local controller shutdown"));
}
