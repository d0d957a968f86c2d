//! What the recordings don't show: long polls, limits and shutdown.

#![expect(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a test")]

#[path = "golden_wire/wire.rs"]
mod wire;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agl_protocol::routes::FEED_POSITION_HEADER;
use agl_server::{Server, ServerOptions};
use agl_store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wire::{Answer, Ask, exchange, send};

/// Longer than any of these tests should take, shorter than anybody would wait for.
const LONG: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    store: Store,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

async fn start(change: impl FnOnce(&mut ServerOptions)) -> Running {
    let mut options = ServerOptions { host: "127.0.0.1".parse().unwrap(), port: 0, ..ServerOptions::default() };
    change(&mut options);
    let store = Store::in_memory();
    let server = Server::bind_with_store(options, store.clone()).await.unwrap();
    let (address, shutdown) = (server.addr(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(shutdown.clone()));
    Running { address, store, shutdown, serving }
}

fn ask(method: &str, target: &str, body: Option<&str>) -> Ask {
    let headers = body.map(|_| ("Content-Type".to_owned(), "application/json".to_owned()));
    let body = body.map(|body| body.as_bytes().to_vec());
    Ask { method: method.to_owned(), target: target.to_owned(), headers: headers.into_iter().collect(), body }
}

impl Running {
    async fn call(&self, method: &str, target: &str, body: Option<&str>) -> Answer {
        exchange(self.address, &ask(method, target, body)).await
    }

    /// Sends a long poll and returns once the server waits with it.
    async fn poll(&self, target: &str) -> JoinHandle<Answer> {
        let (address, request) = (self.address, ask("GET", target, None));
        let polling = tokio::spawn(async move { exchange(address, &request).await });
        self.until_waiters_are(1).await;
        polling
    }

    async fn until_waiters_are(&self, count: usize) {
        let deadline = Instant::now() + LONG;
        while self.store.waiters() != count {
            assert!(Instant::now() < deadline, "{} waiters instead of {count}", self.store.waiters());
            tokio::task::yield_now().await;
        }
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

#[tokio::test]
async fn a_long_poll_wakes_when_a_listed_state_changes() {
    let server = start(|_| {}).await;
    let first = server.call("GET", "/api/rollouts?state_in=queuing", None).await;
    assert_eq!((text(&first).as_str(), first.header(FEED_POSITION_HEADER)), ("[]", "0"));
    let polling = server.poll("/api/rollouts?state_in=queuing&since=0&wait_seconds=30").await;
    server.call("POST", "/api/rollouts", Some(r#"[{"input":1,"rollout_id":"r"}]"#)).await;
    let woken = tokio::time::timeout(LONG, polling).await.expect("woken").unwrap();
    assert!(text(&woken).starts_with(r#"[{"rollout_id":"r""#), "{}", text(&woken));
    assert_eq!(woken.header(FEED_POSITION_HEADER), "1");
    // What has changed since is answered at once; a state that has not is waited for.
    let behind = server.call("GET", "/api/rollouts?state_in=queuing&since=0&wait_seconds=30", None).await;
    assert_eq!(behind.header(FEED_POSITION_HEADER), "1");
    let polling = server.poll("/api/rollouts?state_in=running&since=1&wait_seconds=30").await;
    server.call("PATCH", "/api/rollouts/r", Some(r#"{"status":{"state":"running"}}"#)).await;
    assert_eq!(tokio::time::timeout(LONG, polling).await.expect("woken").unwrap().header(FEED_POSITION_HEADER), "2");
}

#[tokio::test]
async fn a_long_poll_of_the_terminal_list_wakes_when_a_rollout_ends() {
    let server = start(|_| {}).await;
    server.call("POST", "/api/rollouts", Some(r#"[{"input":{"data_id":"d"},"rollout_id":"r"}]"#)).await;
    let polling = server.poll("/api/rollouts/terminal?after=0&wait_seconds=30").await;
    server.call("PATCH", "/api/rollouts/r", Some(r#"{"status":{"state":"failed"}}"#)).await;
    let page = tokio::time::timeout(LONG, polling).await.expect("woken").unwrap();
    assert_eq!(
        text(&page),
        r#"{"items":[{"rollout_id":"r","state":"failed","data_id":"d","is_train":true}],"next_after":1,"total_terminal":1}"#
    );
}

#[tokio::test]
async fn a_long_poll_waits_no_longer_than_the_limit() {
    let server = start(|options| options.max_wait = Duration::from_millis(30)).await;
    let poll = server.call("GET", "/api/rollouts?state_in=queuing&since=0&wait_seconds=86400", None);
    assert_eq!(text(&tokio::time::timeout(LONG, poll).await.expect("answered")), "[]");
}

#[tokio::test]
async fn a_caller_that_goes_away_is_not_waited_for() {
    let server = start(|_| {}).await;
    let target = "/api/rollouts?state_in=queuing&since=0&wait_seconds=30";
    let connection = send(server.address, &ask("GET", target, None)).await;
    server.until_waiters_are(1).await;
    drop(connection);
    server.until_waiters_are(0).await;
}

#[tokio::test]
async fn shutdown_answers_long_polls_at_once() {
    let server = start(|_| {}).await;
    let polling = server.poll("/api/rollouts/terminal?after=0&wait_seconds=60").await;
    server.shutdown.cancel();
    let page = tokio::time::timeout(LONG, polling).await.expect("answered").unwrap();
    assert_eq!(text(&page), r#"{"items":[],"next_after":0,"total_terminal":0}"#);
    tokio::time::timeout(LONG, server.serving).await.expect("ended").unwrap();
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let server = start(|options| options.max_body_bytes = 64).await;
    let body = format!(r#"[{{"input":"{}"}}]"#, "x".repeat(64));
    let refused = server.call("POST", "/api/rollouts", Some(&body)).await;
    assert_eq!(refused.status, 413);
    assert_eq!(text(&refused), r#"{"detail":"Request body is larger than 64 bytes (max_body_bytes)"}"#);
    assert_eq!(server.call("POST", "/api/rollouts", Some("[]")).await.status, 201);
}

#[tokio::test]
async fn a_taken_port_says_which_and_what_to_do() {
    let server = start(|_| {}).await;
    let options = ServerOptions { host: server.address.ip(), port: server.address.port(), ..ServerOptions::default() };
    let message = Server::bind(options).await.unwrap_err().to_string();
    assert!(message.contains(&server.address.to_string()) && message.contains("choose another"), "{message}");
}

#[tokio::test]
async fn statuses_are_asked_for_in_one_go() {
    let server = start(|_| {}).await;
    server.call("POST", "/api/rollouts", Some(r#"[{"input":1,"rollout_id":"a"},{"input":1,"rollout_id":"b"}]"#)).await;
    server.call("PATCH", "/api/rollouts/b", Some(r#"{"status":{"state":"running"}}"#)).await;
    let statuses = text(&server.call("POST", "/api/rollouts/status", Some(r#"["b","a"]"#)).await);
    assert!(
        statuses.starts_with(r#"{"b":{"state":"running","#) && statuses.contains(r#""a":{"state":"queuing","#),
        "{statuses}"
    );
    let unknown = server.call("POST", "/api/rollouts/status", Some(r#"["a","nope"]"#)).await;
    assert_eq!((unknown.status, text(&unknown).as_str()), (404, r#"{"detail":"Rollout not found: nope"}"#));
    let ids: Vec<String> = (0..257).map(|id| format!("\"{id}\"")).collect();
    let many = server.call("POST", "/api/rollouts/status", Some(&format!("[{}]", ids.join(",")))).await;
    assert_eq!(many.status, 422);
    assert!(
        text(&many).ends_with(r#""ctx":{"field_type":"List","max_length":256,"actual_length":257}}]}"#),
        "{}",
        text(&many)
    );
}

#[tokio::test]
async fn readiness_is_published_on_a_lease() {
    let server = start(|_| {}).await;
    assert_eq!(server.call("GET", "/api/runner-readiness/k8s", None).await.status, 503);
    let body = r#"{"images":["b:1","a","docker.io/library/a:latest"],"node_count":2,"lease_seconds":60}"#;
    let published = server.call("PUT", "/api/runner-readiness/k8s", Some(body)).await;
    let shown =
        r#"{"images":["docker.io/library/a:latest","docker.io/library/b:1"],"node_count":2,"lease_seconds":60}"#;
    assert_eq!((published.status, text(&published).as_str()), (200, shown));
    assert_eq!(text(&server.call("GET", "/api/runner-readiness/k8s", None).await), shown);
    let refused = r#"{"images":[],"node_count":0,"lease_seconds":301}"#;
    let refused = text(&server.call("PUT", "/api/runner-readiness/k8s", Some(refused)).await);
    assert!(
        refused.contains("greater than or equal to 1") && refused.contains("less than or equal to 300"),
        "{refused}"
    );
}

#[tokio::test]
async fn the_model_that_there_is_can_be_listed() {
    let server = start(|_| {}).await;
    let base = "/proxy/rollout/r/attempt/0/mode/train/openai/v1";
    assert_eq!(server.call("GET", &format!("{base}/models"), None).await.status, 404);
    server.call("POST", "/api/rollouts", Some(r#"[{"input":1,"rollout_id":"r"}]"#)).await;
    let models = server.call("GET", &format!("{base}/models"), None).await;
    assert!(
        text(&models).starts_with(r#"{"object":"list","data":[{"id":"Qwen/Qwen2.5-7B-Instruct""#),
        "{}",
        text(&models)
    );
    assert_eq!(server.call("GET", &format!("{base}/chat/completions"), None).await.status, 405);
}
