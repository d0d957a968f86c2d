//! How fast: measured, so not part of a plain test run. `cargo test -p agl-controller --test local --release -- --ignored --nocapture`

use std::time::Instant;

use agl_protocol::RolloutState::Succeeded;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::bench::{Bench, PROBE, command};
use crate::gateway::{Feed, Gateway, now};

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn show(what: &str, milliseconds: &mut [f64]) -> f64 {
    milliseconds.sort_by(f64::total_cmp);
    let [p50, p99] = [0.5, 0.99].map(|share| percentile(milliseconds, share));
    println!("{what}: p50 {p50:.1} ms, p99 {p99:.1} ms, {} samples", milliseconds.len());
    p99
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn agents_start_and_settle_at_once() {
    let bench = Bench::start().await;
    let (mut start_ms, mut settle_ms) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let rollout_id = format!("r{number}");
        let enqueued = now();
        bench.gateway.enqueue(&rollout_id, Some(command(&[PROBE, "tell-time"])), 60);
        let settled = bench.gateway.until(&rollout_id, Succeeded).await.updated_at;
        let ran: f64 = bench.log(&rollout_id).trim().parse().unwrap();
        start_ms.push((ran - enqueued) * 1e3);
        settle_ms.push((settled - ran) * 1e3);
    }
    let start_p99 = show("enqueue to the agent's first instruction", &mut start_ms);
    let settle_p99 = show("the agent's last instruction to terminal", &mut settle_ms);
    assert!(start_p99 <= 50.0 && settle_p99 <= 20.0);
}

const AGENTS: usize = 1000;
const POOL_SIZE: usize = 50;
const AGENT: [&str; 2] = ["sleep", "0.2"];

/// What this machine can do: the same processes, made by nothing but a loop.
async fn bare_seconds() -> f64 {
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..AGENTS {
        if running.len() == POOL_SIZE {
            running.join_next().await;
        }
        let mut process = Command::new(AGENT[0]).args(&AGENT[1..]).spawn().unwrap();
        running.spawn(async move { process.wait().await });
    }
    running.join_all().await;
    begun.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn a_long_queue_keeps_every_slot_busy() {
    let bare_seconds = bare_seconds().await;
    let bench = Bench::with(Gateway::start(Feed::Offered).await, |settings| settings.pool_size = POOL_SIZE);
    let begun = Instant::now();
    for number in 0..AGENTS {
        bench.gateway.enqueue(&format!("r{number}"), Some(command(&AGENT)), 60);
    }
    bench.gateway.until_all_ended().await;
    let seconds = begun.elapsed().as_secs_f64();
    let ideal_seconds = (AGENTS / POOL_SIZE) as f64 * 0.2;
    println!(
        "{AGENTS} agents of 200 ms, pool of {POOL_SIZE}: {seconds:.2} s; a bare loop takes {bare_seconds:.2} s, the ideal is {ideal_seconds:.2} s"
    );
    assert!(seconds <= bare_seconds / 0.95);
}
