//! Model calls that the recordings don't show. Streams: bytes pass as they come, the call is kept at the end, and whatever
//! breaks leaves nothing behind. And where we differ from the original on purpose: pauses, deleted rollouts, headers.

#![expect(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a test")]
#![expect(dead_code, reason = "this test uses a part of the wire module")]

#[path = "golden_wire/wire.rs"]
mod wire;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agl_server::{Server, ServerOptions};
use agl_store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use wire::{Ask, exchange, send};

/// Longer than any of these tests should take, shorter than anybody would wait for.
const LONG: Duration = Duration::from_secs(20);

const FIRST: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"prompt_token_ids\":[1,2],\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const SECOND: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hé\"},\"logprobs\":{\"content\":[{\"logprob\":-0.5}]},\"token_ids\":[7]}]}\n\n";
const LAST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":{\"content\":[{\"logprob\":-0.25}]},\"finish_reason\":\"stop\",\"token_ids\":[8]}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,\"total_tokens\":4}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A server, and a model server whose side of the stream the test plays.
struct Stage {
    address: SocketAddr,
    store: Store,
    model_server: TcpListener,
    _shutdown: tokio_util::sync::DropGuard,
}

impl Stage {
    async fn set() -> Self {
        let options = ServerOptions { host: "127.0.0.1".parse().unwrap(), port: 0, ..ServerOptions::default() };
        let store = Store::in_memory();
        let server = Server::bind_with_store(options, store.clone()).await.unwrap();
        let (address, shutdown) = (server.addr(), CancellationToken::new());
        tokio::spawn(server.serve(shutdown.clone()));
        let model_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stage = Self { address, store, model_server, _shutdown: shutdown.drop_guard() };
        let endpoint = format!("http://{}/v1", stage.model_server.local_addr().unwrap());
        let model = format!(r#"[{{"model":"Qwen/Qwen2.5-7B-Instruct","endpoint":"{endpoint}"}}]"#);
        assert_eq!(exchange(address, &ask("POST", "/api/models", Some(&model))).await.status, 201);
        let rollout = r#"[{"input":1,"rollout_id":"r"}]"#;
        assert_eq!(exchange(address, &ask("POST", "/api/rollouts", Some(rollout))).await.status, 201);
        stage
    }

    /// The agent asks for a stream; both ends of it, and the request as the model server got it.
    async fn open(&self, request: &str) -> (Reader, TcpStream, String) {
        let target = "/proxy/rollout/r/attempt/0/mode/train/openai/v1/chat/completions";
        let agent = send(self.address, &ask("POST", target, Some(request))).await;
        let (mut upstream, _) = self.model_server.accept().await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"}") {
            assert_ne!(upstream.read_buf(&mut received).await.unwrap(), 0);
        }
        (Reader { stream: agent, text: String::new() }, upstream, String::from_utf8(received).unwrap())
    }

    async fn get(&self, target: &str) -> String {
        String::from_utf8(exchange(self.address, &ask("GET", target, None)).await.body).unwrap()
    }

    async fn events(&self, view: &str) -> String {
        self.get(&format!("/api/rollouts/r/events{view}")).await
    }

    async fn until_idle(&self) {
        let deadline = Instant::now() + LONG;
        while !self.get("/proxy/state").await.contains("\"inflight\":0") {
            assert!(Instant::now() < deadline, "a call is still inside");
        }
    }
}

fn ask(method: &str, target: &str, body: Option<&str>) -> Ask {
    let headers = body.map(|_| ("Content-Type".to_owned(), "application/json".to_owned()));
    let body = body.map(|body| body.as_bytes().to_vec());
    Ask { method: method.to_owned(), target: target.to_owned(), headers: headers.into_iter().collect(), body }
}

/// The agent's end of a connection, with all that has come.
struct Reader {
    stream: TcpStream,
    text: String,
}

impl Reader {
    async fn until(&mut self, part: &str) {
        while !self.text.contains(part) {
            assert!(self.more().await, "the stream ended without {part:?}: {}", self.text);
        }
    }

    /// Reads some more; false at the end.
    async fn more(&mut self) -> bool {
        let mut bytes = vec![0; 65536];
        let read = tokio::time::timeout(LONG, self.stream.read(&mut bytes)).await.unwrap().unwrap_or(0);
        self.text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        read > 0
    }
}

async fn head(upstream: &mut TcpStream) {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    upstream.write_all(head.as_bytes()).await.unwrap();
}

async fn chunk(upstream: &mut TcpStream, text: &str) {
    upstream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await.unwrap();
}

async fn whole(upstream: &mut TcpStream, status: &str, header: &str, body: &str) {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{header}\r\ncontent-length: {length}\r\n\r\n");
    upstream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
}

#[tokio::test]
async fn bytes_pass_as_they_come_and_the_call_is_kept_before_the_end_is_heard() {
    let stage = Stage::set().await;
    let request = r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#;
    let (mut agent, mut upstream, _) = stage.open(request).await;
    head(&mut upstream).await;
    for part in [FIRST, SECOND, LAST, USAGE] {
        // The next part is sent only once the agent has got this one, half-sent lines and comments included.
        chunk(&mut upstream, &part[..9]).await;
        agent.until(&part[..9]).await;
        chunk(&mut upstream, &part[9..]).await;
        agent.until(&part[9..]).await;
        agent.text.clear();
        chunk(&mut upstream, ": ping\n\n").await;
        agent.until(": ping\n\n").await;
    }
    assert_eq!(stage.events("").await, "[]");
    chunk(&mut upstream, DONE).await;
    agent.until(DONE).await;
    let event = stage.events("").await;
    for part in [
        r#""response":{"id":"c","object":"chat.completion","model":"m","prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"role":"assistant","content":"hé","tool_calls":[]}"#,
        r#""logprobs":{"content":[{"logprob":-0.5},{"logprob":-0.25}]},"token_ids":[7,8],"finish_reason":"stop""#,
        r#""http_status":200,"status":"ok","retry_count":0,"routed_experts":null,"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4},"finish_reason":"stop""#,
    ] {
        assert!(event.contains(part), "{part}\nis not in\n{event}");
    }
    let triplet = r#""data":{"prompt_token_ids":[1,2],"response_token_ids":[7,8],"response_log_probs":[-0.5,-0.25],"#;
    assert!(stage.events("?format=triplet").await.contains(triplet));
    stage.until_idle().await;
}

#[tokio::test]
async fn the_usage_chunk_reaches_only_who_asked_for_it() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, received) = stage.open(r#"{"messages":[],"stream":true}"#).await;
    assert!(received.ends_with(r#""stream_options":{"include_usage":true}}"#), "{received}");
    head(&mut upstream).await;
    // Cut where it hurts.
    let stream = [FIRST, SECOND, LAST, USAGE, DONE].concat();
    let cut = stream.find("total_tokens").unwrap();
    chunk(&mut upstream, &stream[..cut]).await;
    agent.until(LAST).await;
    chunk(&mut upstream, &stream[cut..]).await;
    upstream.write_all(b"0\r\n\r\n").await.unwrap();
    while agent.more().await {}
    assert!(
        agent.text.contains(DONE) && !agent.text.contains("usage") && agent.text.ends_with("0\r\n\r\n"),
        "{}",
        agent.text
    );
    assert!(stage.events("").await.contains(r#""usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}"#));
}

#[tokio::test]
async fn a_stream_that_breaks_is_kept_but_never_trained_on() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, _) = stage.open(r#"{"messages":[],"stream":true}"#).await;
    head(&mut upstream).await;
    chunk(&mut upstream, FIRST).await;
    chunk(&mut upstream, SECOND).await;
    agent.until(SECOND).await;
    drop(upstream);
    while agent.more().await {}
    assert!(!agent.text.ends_with("0\r\n\r\n"), "the agent must see that the stream broke");
    assert!(stage.events("").await.contains(r#""status":"stream_error""#));
    let shown = r#""data":{"prompt_token_ids":[1,2],"response_token_ids":[],"response_log_probs":null,"#;
    assert!(stage.events("?format=triplet").await.contains(shown));
    stage.until_idle().await;
}

#[tokio::test]
async fn an_agent_that_goes_away_ends_the_stream() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, _) = stage.open(r#"{"messages":[],"stream":true}"#).await;
    head(&mut upstream).await;
    chunk(&mut upstream, FIRST).await;
    agent.until(FIRST).await;
    drop(agent);
    // The model server sees its connection closed.
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, upstream.read_to_end(&mut rest)).await.unwrap().unwrap();
    stage.until_idle().await;
    assert!(stage.events("").await.contains(r#""status":"stream_error""#));
    assert_eq!(stage.store.waiters(), 0);
}

#[tokio::test]
async fn an_aborted_answer_is_kept_but_never_trained_on() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, _) = stage.open(r#"{"messages":[],"stream":true}"#).await;
    head(&mut upstream).await;
    chunk(&mut upstream, &[FIRST, SECOND, &LAST.replace("\"stop\"", "\"abort\""), DONE].concat()).await;
    agent.until(DONE).await;
    assert!(stage.events("").await.contains(r#""status":"aborted""#));
    assert!(stage.events("?format=triplet").await.contains(r#""response_token_ids":[]"#));
}

#[tokio::test]
async fn an_error_instead_of_a_stream_is_an_answer_like_any_other() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, _) = stage.open(r#"{"messages":[],"stream":true}"#).await;
    let error = r#"{"error":{"message":"too long"}}"#;
    let length = error.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{error}"
    );
    upstream.write_all(answer.as_bytes()).await.unwrap();
    while agent.more().await {}
    assert!(agent.text.starts_with("HTTP/1.1 400") && agent.text.ends_with(error), "{}", agent.text);
    assert!(
        stage
            .events("?format=triplet")
            .await
            .contains(r#""http_status":400,"status":"error","error":{"message":"too long"}"#)
    );
}

#[tokio::test]
async fn a_pause_ends_retries() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, _) = stage.open(r#"{"messages":[]}"#).await;
    let pause = r#"{"retry_after_seconds":3,"reason":"weights"}"#;
    whole(&mut upstream, "503 Service Unavailable", "retry-after: 8", "{}").await;
    assert_eq!(exchange(stage.address, &ask("POST", "/proxy/pause", Some(pause))).await.status, 200);
    while agent.more().await {}
    for part in
        ["HTTP/1.1 429", "retry-after: 3", "x-agl-paused: true", r#"{"error": "gateway paused", "reason": "weights"}"#]
    {
        assert!(agent.text.contains(part), "{part} is not in {}", agent.text);
    }
    stage.until_idle().await;
    assert_eq!(stage.events("").await, "[]");
}

#[tokio::test]
async fn a_call_of_a_deleted_rollout_is_answered_but_not_kept() {
    let stage = Stage::set().await;
    let (mut agent, mut upstream, _) = stage.open(r#"{"messages":[]}"#).await;
    assert_eq!(exchange(stage.address, &ask("DELETE", "/api/rollouts/r", None)).await.status, 204);
    whole(&mut upstream, "200 OK", "x: y", r#"{"choices":[]}"#).await;
    while agent.more().await {}
    assert!(agent.text.starts_with("HTTP/1.1 200") && agent.text.ends_with(r#"{"choices":[]}"#), "{}", agent.text);
    stage.until_idle().await;
    assert_eq!(stage.events("").await, r#"{"detail":"Rollout not found: r"}"#);
}
