//! Replays the recorded wire contract of `agentlightning` 1.0.2 against this server, step by step and text by text.
//!
//! Each area is a recording of its own, with a fresh server and a fresh fake model server, so that areas run in parallel.
//! `AGL_GOLDEN=<folder>` replays another folder's `wire/*.jsonl` (or `.jsonl.gz`) instead of the project's.
//! Where we differ on purpose, `deviations.txt` says how and why.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub, reason = "a test")]

mod fake;
mod recording;
mod replay;
mod wire;

macro_rules! areas {
    ($($area:ident),* $(,)?) => {
        const AREAS: &[&str] = &[$(stringify!($area)),*];
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $area() {
                replay::area(stringify!($area)).await;
            }
        )*
    };
}

areas! {
    auth, auth_bool_key, auth_empty_key, auth_null_key, auth_numeric_key, events, listing, misc_http, models, proxy,
    proxy_backend, proxy_exhaust, proxy_no_logprobs, proxy_pause, proxy_routed_experts, rollouts, terminal, transitions,
    triplet,
}

/// Recordings of areas that have no test of their own are replayed too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_areas() {
    let recorded = recording::areas();
    assert!(!recorded.is_empty(), "no recordings in {}", recording::folder().display());
    for area in recorded.iter().filter(|area| !AREAS.contains(&area.as_str())) {
        replay::area(area).await;
    }
}
