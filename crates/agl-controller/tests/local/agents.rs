//! Agents of every kind, from queued to how they end.

use agl_protocol::LocalConfig;
use agl_protocol::RolloutState::{Failed, Queuing, Running, Succeeded};

use crate::bench::{Bench, command, shell, until_gone};
use crate::gateway::{Feed, Gateway};

#[tokio::test]
async fn an_agent_finds_its_task_and_its_gateway() {
    let bench = Bench::start().await;
    let mut local = shell(r#"cat; echo "$QUESTION|$AGL_KEY|$AGL_OPENAI_BASE_URL|$AGL_EVENT_URL"; echo warned >&2"#);
    local.env_map.insert("QUESTION".into(), "input.question".into());
    bench.gateway.enqueue("r", Some(local), 60);
    let status = bench.gateway.until("r", Succeeded).await;
    assert_eq!(status.last_attempt_id.as_deref(), Some("0"));
    assert_eq!(status.error_message, None);
    let url = &bench.gateway.url;
    let expected = format!(
        "why?|s3cret|{url}/proxy/rollout/r/attempt/0/mode/train/openai/v1|{url}/api/rollouts/r/attempt/0/events\nwarned\n"
    );
    assert_eq!(bench.log("r"), expected);
}

#[tokio::test]
async fn an_agent_class_is_imported_from_the_working_directory() {
    let bench = Bench::start().await;
    let module = "import os\nclass Agent:\n    async def run(self):\n        print(os.environ['Q'])\n\
                  class Broken:\n    def run(self):\n        raise RuntimeError('no luck')\n";
    std::fs::write(bench.folder.path().join("my_agent.py"), module).unwrap();
    let class = |agent_class: &str| LocalConfig {
        agent_class: Some(agent_class.into()),
        working_directory: Some(bench.folder.path().display().to_string()),
        env_map: [("Q".into(), "input".into())].into(),
        command: None,
    };
    bench.gateway.enqueue("good", Some(class("my_agent:Agent")), 60);
    bench.gateway.enqueue("bad", Some(class("my_agent.Broken")), 60);
    bench.gateway.until("good", Succeeded).await;
    assert_eq!(bench.log("good"), "{\"question\": \"why?\"}\n");
    let message = bench.gateway.until("bad", Failed).await.error_message.unwrap();
    assert!(message.starts_with("subprocess exited with code 1\nlast output:\nTraceback"), "{message}");
    assert!(message.ends_with("RuntimeError: no luck"), "{message}");
}

#[tokio::test]
async fn a_failure_says_how_and_shows_the_last_output() {
    let bench = Bench::start().await;
    bench.script("code", "echo trying with $AGL_KEY; exit 3");
    bench.script("silent", "exit 4");
    bench.script("signal", "kill -KILL $$");
    let message = async |rollout_id| bench.gateway.until(rollout_id, Failed).await.error_message.unwrap();
    assert_eq!(message("code").await, "subprocess exited with code 3\nlast output:\ntrying with [key]");
    assert_eq!(message("silent").await, "subprocess exited with code 4");
    assert!(message("signal").await.starts_with("subprocess exited with code -9\nkilled by SIGKILL"));
}

#[tokio::test]
async fn what_cannot_start_fails_and_says_why() {
    let bench = Bench::start().await;
    let mut broken_map = shell("true");
    broken_map.env_map.insert("X".into(), "input.nope".into());
    bench.gateway.enqueue("nothing", None, 60);
    bench.gateway.enqueue("program", Some(command(&["no-such-program"])), 60);
    bench.gateway.enqueue("map", Some(broken_map), 60);
    let message = async |rollout_id| {
        let status = bench.gateway.until(rollout_id, Failed).await;
        assert_eq!(status.last_attempt_id, None, "it never ran");
        let message = status.error_message.unwrap();
        message.strip_prefix("local subprocess spawn failed: ").unwrap().to_owned()
    };
    assert!(message("nothing").await.starts_with("invalid rollout config: missing config.local.agent_class"));
    assert!(message("program").await.starts_with("program `no-such-program` not found"));
    assert_eq!(message("map").await, "local.env_map path not found: input.nope");
}

#[tokio::test]
async fn a_late_agent_is_asked_to_end_first() {
    let bench = Bench::with(Gateway::start(Feed::Offered).await, |settings| {
        settings.grace = std::time::Duration::from_hours(1);
    });
    let script = "trap 'echo goodbye; exit 0' TERM; while :; do sleep 0.01; done";
    bench.gateway.enqueue("r", Some(shell(script)), 1);
    let message = bench.gateway.until("r", Failed).await.error_message.unwrap();
    // The shell may say that its child was terminated, too.
    assert!(message.starts_with("local subprocess timed out\n") && message.ends_with("\ngoodbye"), "{message}");
}

#[tokio::test]
async fn a_late_agent_that_does_not_listen_is_killed_with_its_children() {
    let bench = Bench::start().await;
    let script = "trap '' TERM; echo $$; sleep 600 & echo $!; (sleep 600; true) & echo $!; wait";
    bench.gateway.enqueue("r", Some(shell(script)), 1);
    let pids = bench.pids("r", 3).await;
    let message = bench.gateway.until("r", Failed).await.error_message.unwrap();
    assert_eq!(message.lines().next(), Some("local subprocess timed out"));
    until_gone(&pids).await;
}

#[tokio::test]
async fn an_agent_stops_when_somebody_else_ends_its_rollout() {
    let bench = Bench::start().await;
    bench.script("failed", "echo $$; sleep 600");
    bench.script("deleted", "echo $$; sleep 600");
    bench.script("other", "echo $$; sleep 600");
    let failed = bench.pids("failed", 1).await;
    let deleted = bench.pids("deleted", 1).await;
    bench.pids("other", 1).await;
    bench.gateway.set_state("failed", Failed, Some("changed my mind"));
    bench.gateway.delete("deleted");
    until_gone(&failed).await;
    until_gone(&deleted).await;
    assert_eq!(bench.gateway.status("failed").error_message.as_deref(), Some("changed my mind"));
    assert_eq!(bench.gateway.status("other").state, Running);
}

#[tokio::test]
async fn shutdown_ends_agents_and_leaves_the_queue() {
    let bench = Bench::with(Gateway::start(Feed::Offered).await, |settings| settings.pool_size = 1);
    bench.script("running", "echo $$; sleep 600");
    bench.script("queued", "true");
    let pids = bench.pids("running", 1).await;
    let (gateway, _folder) = bench.stop().await;
    until_gone(&pids).await;
    let status = gateway.status("running");
    assert_eq!(status.state, Failed);
    assert_eq!(status.error_message.unwrap().lines().next(), Some("local controller shutdown"));
    assert_eq!(gateway.status("queued").state, Queuing);
}

#[tokio::test]
async fn many_rollouts_share_a_small_pool() {
    let bench = Bench::with(Gateway::start(Feed::Offered).await, |settings| settings.pool_size = 20);
    let diary = bench.folder.path().join("diary");
    for number in 0..300 {
        let code = u8::from(number % 10 == 0);
        let script = format!("echo in >> {0}; sleep 0.02; echo out >> {0}; exit {code}", diary.display());
        bench.script(&format!("r{number}"), &script);
    }
    let statuses = bench.gateway.until_all_ended().await;
    let failed = statuses.iter().filter(|status| status.state == Failed).count();
    assert_eq!((statuses.len(), failed), (300, 30));
    let (mut inside, mut most) = (0, 0);
    for line in std::fs::read_to_string(diary).unwrap().lines() {
        inside += if line == "in" { 1 } else { -1 };
        most = most.max(inside);
    }
    assert!((2..=20).contains(&most), "{most} agents at a time");
}

#[tokio::test]
async fn output_is_kept_within_its_limit() {
    let bench = Bench::with(Gateway::start(Feed::Offered).await, |settings| settings.log_limit_bytes = 1000);
    bench.script("r", "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done");
    bench.gateway.until("r", Succeeded).await;
    let log = bench.log("r");
    assert!(log.starts_with("line 0\n") && log.ends_with("line 999\n"), "{log}");
    assert!(log.contains("bytes left out") && log.len() < 1100, "{} bytes", log.len());
}
