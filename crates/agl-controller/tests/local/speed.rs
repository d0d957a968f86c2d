//! How fast: measured, so not part of a plain test run. `cargo test -p agl-controller --test local --release -- --ignored --nocapture`

use std::time::Instant;

use agl_protocol::RolloutState::Succeeded;

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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn a_long_queue_keeps_every_slot_busy() {
    let bench = Bench::with(Gateway::start(Feed::Offered).await, |settings| settings.pool_size = 50);
    let begun = Instant::now();
    for number in 0..1000 {
        bench.gateway.enqueue(&format!("r{number}"), Some(command(&["sleep", "0.2"])), 60);
    }
    bench.gateway.until_all_ended().await;
    let seconds = begun.elapsed().as_secs_f64();
    let ideal = 1000.0 / 50.0 * 0.2;
    println!(
        "1,000 agents of 200 ms, pool of 50: {seconds:.2} s, {:.1} % of the ideal throughput",
        100.0 * ideal / seconds
    );
    assert!(ideal / seconds >= 0.95);
}
