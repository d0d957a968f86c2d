//! A model server that does what a request's `x_fake` object asks of it, and remembers what it was asked.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Logged {
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

/// What the server remembers.
#[derive(Debug, Default)]
pub struct Memory {
    pub log: Vec<Logged>,
    pub aborted: u64,
    counters: HashMap<String, u64>,
}

/// A running fake. It stops with the runtime.
#[derive(Debug)]
pub struct Fake {
    pub address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
}

impl Fake {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let memory = Arc::<Mutex<Memory>>::default();
        let shared = Arc::clone(&memory);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let memory = Arc::clone(&shared);
                let service = service_fn(move |request| answer(Arc::clone(&memory), request));
                // A dropped answer is an error here, as intended.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, memory }
    }

    pub fn look<T>(&self, look: impl FnOnce(&Memory) -> T) -> T {
        look(&self.memory.lock().unwrap())
    }
}

type Frames = futures::stream::Iter<std::vec::IntoIter<io::Result<Frame<Bytes>>>>;
type Answer = Response<Either<Full<Bytes>, StreamBody<Frames>>>;

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "dropped on purpose")
}

fn reply(status: u16, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let mut reply = Response::new(Either::Left(Full::new(body.into())));
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    if !content_type.is_empty() {
        reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
    }
    reply
}

async fn answer(memory: Arc<Mutex<Memory>>, request: Request<Incoming>) -> io::Result<Answer> {
    let (parts, body) = request.into_parts();
    let raw = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let path = parts.uri.path().to_owned();
    if parts.method != Method::POST {
        return Ok(reply(405, "application/json", r#"{"detail":"Method Not Allowed"}"#));
    }
    let chat = path.ends_with("/chat/completions");
    if !path.ends_with("/completions") {
        return Ok(reply(404, "application/json", r#"{"detail":"Not Found"}"#));
    }
    let body: Value = serde_json::from_slice(&raw).unwrap_or_else(|_| json!({}));
    let wish = body["x_fake"].clone();
    let count = {
        let mut memory = memory.lock().unwrap();
        let text = String::from_utf8_lossy(&raw).into_owned();
        memory.log.push(Logged { path, headers: parts.headers, body: text });
        let count = memory.counters.entry(wish["key"].as_str().unwrap_or_default().to_owned()).or_default();
        *count += 1;
        *count
    };
    if let Some(delay_ms) = wish["delay_ms"].as_u64().filter(|delay_ms| *delay_ms > 0) {
        let mut interrupted = Interrupted(Some(memory));
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        interrupted.0 = None;
    }
    if count <= wish["times"].as_u64().unwrap_or(u64::MAX)
        && let Some(misbehaviour) = misbehave(&wish)
    {
        return misbehaviour;
    }
    Ok(reply(200, "application/json", completion(&body, &wish, chat).to_string()))
}

/// Counts a caller that went away during a delay.
struct Interrupted(Option<Arc<Mutex<Memory>>>);

impl Drop for Interrupted {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            memory.lock().unwrap().aborted += 1;
        }
    }
}

fn misbehave(wish: &Value) -> Option<io::Result<Answer>> {
    match wish["drop"].as_str() {
        Some("before") => return Some(Err(broken())),
        Some("mid") => {
            let frames = vec![Ok(Frame::data(Bytes::from_static(b"{\"id\":\"par"))), Err(broken())];
            let mut reply = Response::new(Either::Right(StreamBody::new(futures::stream::iter(frames))));
            reply.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("1000"));
            reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return Some(Ok(reply));
        }
        _ => {}
    }
    let status = wish["status"].as_u64();
    let body: Bytes = match (wish["raw_hex"].as_str(), wish["raw_body"].as_str(), status) {
        (Some(hex), _, _) => hex.as_bytes().chunks(2).map(|digits| hex_byte(digits).unwrap()).collect(),
        (None, Some(raw), _) => raw.to_owned().into(),
        (None, None, Some(status)) => {
            let message = format!("fake error {status}");
            json!({"error": {"message": message, "type": "FakeError", "param": null, "code": status}})
                .to_string()
                .into()
        }
        (None, None, None) => return None,
    };
    let content_type = wish["content_type"].as_str().unwrap_or("application/json");
    let mut reply = reply(status.map_or(200, |status| u16::try_from(status).unwrap()), content_type, body);
    for (name, value) in wish["response_headers"].as_object().into_iter().flatten() {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        reply.headers_mut().insert(name, value.as_str().unwrap().parse().unwrap());
    }
    Some(Ok(reply))
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn number(wish: &Value, key: &str, default: u64) -> u64 {
    wish[key].as_u64().unwrap_or(default)
}

fn ids(base: u64, count: u64) -> Value {
    (base..base + count).collect::<Vec<_>>().into()
}

fn completion(body: &Value, wish: &Value, chat: bool) -> Value {
    let (prompt_n, resp_n) = (number(wish, "prompt_n", 5), number(wish, "resp_n", 3));
    let want_ids = body["return_token_ids"] == true;
    let or_null = |wanted: bool, value: Value| if wanted { value } else { Value::Null };
    let prompt = wish.get("prompt_ids").cloned().unwrap_or_else(|| ids(number(wish, "prompt_base", 1000), prompt_n));
    let prompt = or_null(want_ids, prompt);
    let n = body["n"].as_u64().unwrap_or(1).max(1);
    let choices: Vec<Value> = (0..n).map(|index| choice(body, wish, chat, index, &prompt)).collect();
    let usage = json!({
        "prompt_tokens": prompt_n, "total_tokens": prompt_n + resp_n, "completion_tokens": resp_n,
        "prompt_tokens_details": null,
    });
    let mut top = object(json!({
        "id": if chat { "chatcmpl-fake" } else { "cmpl-fake" },
        "object": if chat { "chat.completion" } else { "text_completion" },
        "created": 1_700_000_000, "model": body["model"], "choices": choices, "service_tier": null,
        "system_fingerprint": null, "usage": usage,
    }));
    if chat {
        top.insert("prompt_logprobs".into(), Value::Null);
        top.insert("prompt_token_ids".into(), prompt);
    }
    top.insert("kv_transfer_params".into(), Value::Null);
    adjust(&mut top, &wish["omit_top"], &wish["extra_top"]);
    Value::Object(top)
}

fn choice(body: &Value, wish: &Value, chat: bool, index: u64, prompt: &Value) -> Value {
    let resp_n = number(wish, "resp_n", 3);
    let tokens: Vec<String> = (0..resp_n).map(|i| format!("t{}", i + 100 * index)).collect();
    let sampled = wish.get("resp_ids").filter(|_| index == 0).cloned();
    let sampled = sampled.unwrap_or_else(|| ids(number(wish, "resp_base", 2000) + 100 * index, resp_n));
    let sampled = if body["return_token_ids"] == true { sampled } else { Value::Null };
    let finish_reason = wish.get("finish_reason").cloned().unwrap_or_else(|| "stop".into());
    let log_probs = log_probs(body, chat, &tokens);
    let text = tokens.join(" ");
    let mut choice = object(if chat {
        let message = json!({
            "role": "assistant", "content": text, "refusal": null, "annotations": null, "audio": null,
            "function_call": null, "tool_calls": [], "reasoning_content": null,
        });
        json!({
            "index": index, "message": message, "logprobs": log_probs, "finish_reason": finish_reason,
            "stop_reason": null, "token_ids": sampled,
        })
    } else {
        json!({
            "index": index, "text": text, "logprobs": log_probs, "finish_reason": finish_reason, "stop_reason": null,
            "token_ids": sampled, "prompt_logprobs": null, "prompt_token_ids": prompt,
        })
    });
    if body["return_routed_experts"] == true {
        choice.insert("routed_experts".into(), json!([[[index, 1], [2, 3]]]));
    }
    let extra = if index == 0 { &wish["extra_choice"] } else { &Value::Null };
    adjust(&mut choice, &wish["omit_choice"], extra);
    Value::Object(choice)
}

fn log_probs(body: &Value, chat: bool, tokens: &[String]) -> Value {
    let asked = &body["logprobs"];
    if *asked != true && (chat || !asked.is_u64()) {
        return Value::Null;
    }
    let number = |i: usize| -(i as f64 + 1.0) / 16.0;
    if !chat {
        return json!({
            "text_offset": (0..tokens.len()).collect::<Vec<_>>(),
            "token_logprobs": (0..tokens.len()).map(number).collect::<Vec<_>>(),
            "tokens": tokens,
            "top_logprobs": tokens.iter().enumerate().map(|(i, token)| json!({token.as_str(): number(i)})).collect::<Vec<_>>(),
        });
    }
    let item = |(i, token): (usize, &String)| {
        let entry = |log_prob: f64| json!({"token": token, "logprob": log_prob, "bytes": token.as_bytes()});
        let top =
            (0..body["top_logprobs"].as_u64().unwrap_or(0)).map(|k| entry(if k == 0 { number(i) } else { -20.0 }));
        let mut item = object(entry(number(i)));
        item.insert("top_logprobs".into(), top.collect());
        Value::Object(item)
    };
    json!({"content": tokens.iter().enumerate().map(item).collect::<Vec<_>>()})
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is no object"),
    }
}

fn adjust(map: &mut Map<String, Value>, omit: &Value, extra: &Value) {
    for key in omit.as_array().into_iter().flatten() {
        map.shift_remove(key.as_str().unwrap());
    }
    for (key, value) in extra.as_object().into_iter().flatten() {
        map.insert(key.clone(), value.clone());
    }
}
