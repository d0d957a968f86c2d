//! Gateways that fail, lose answers, know no feed, or remember what an earlier controller left.

use std::time::Duration;

use agl_protocol::RolloutState::{Failed, Queuing, Running, Succeeded};

use crate::bench::Bench;
use crate::gateway::{Fault, Feed, Gateway};

#[tokio::test]
async fn how_an_agent_ended_is_told_until_the_gateway_answers() {
    let bench = Bench::start().await;
    let sign = bench.folder.path().join("sign");
    bench.script("r", &format!("until [ -e {} ]; do sleep 0.01; done; exit 5", sign.display()));
    bench.gateway.until("r", Running).await;
    bench.gateway.fail_next(&[Fault::Refused; 3]);
    std::fs::write(sign, "").unwrap();
    let message = bench.gateway.until("r", Failed).await.error_message.unwrap();
    assert!(message.starts_with("subprocess exited with code 5"), "{message}");
}

#[tokio::test]
async fn a_lost_answer_neither_loses_a_claim_nor_repeats_an_end() {
    let bench = Bench::start().await;
    // The claim is taken but its answer lost; so is the end's.
    bench.gateway.fail_next(&[Fault::AnswerLost, Fault::AnswerLost]);
    bench.script("r", "echo once");
    let statuses = bench.gateway.until_all_ended().await;
    assert_eq!(statuses[0].state, Succeeded);
    let (gateway, folder) = bench.stop().await;
    assert_eq!(gateway.status("r").version, 2, "one move to running, one to succeeded");
    assert_eq!(std::fs::read_to_string(folder.path().join("logs/r.log")).unwrap(), "once\n");
}

#[tokio::test]
async fn a_claim_is_repeated_until_the_gateway_answers() {
    let bench = Bench::start().await;
    bench.gateway.fail_next(&[Fault::Refused; 2]);
    bench.script("r", "true");
    bench.gateway.until("r", Succeeded).await;
}

#[tokio::test]
async fn a_gateway_without_a_feed_is_polled() {
    let gateway = Gateway::start(Feed::Unknown).await;
    let bench = Bench::with(gateway, |settings| settings.poll_interval = Duration::from_millis(20));
    bench.script("first", "exit 0");
    bench.gateway.until("first", Succeeded).await;
    bench.script("second", "exit 2");
    bench.gateway.until("second", Failed).await;
}

#[tokio::test]
async fn what_an_earlier_controller_left_running_is_failed() {
    let gateway = Gateway::start(Feed::Offered).await;
    gateway.enqueue("left", None, 60);
    gateway.set_state("left", Running, None);
    let bench = Bench::with(gateway, |_| {});
    let message = bench.gateway.until("left", Failed).await.error_message.unwrap();
    assert_eq!(message, "local subprocess is not running");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_gateway_that_is_gone() {
    let gateway = Gateway::start(Feed::Offered).await;
    let bench = Bench::with(gateway, |settings| settings.drain_timeout = Duration::from_millis(200));
    bench.script("r", "echo $$; sleep 600");
    let pids = bench.pids("r", 1).await;
    bench.gateway.fail_next(&[Fault::Refused; 100]);
    bench.script("never-claimed", "true");
    let (gateway, _folder) = bench.stop().await;
    crate::bench::until_gone(&pids).await;
    assert_eq!(gateway.status("r").state, Running, "it could not be told");
    assert_eq!(gateway.status("never-claimed").state, Queuing);
}
