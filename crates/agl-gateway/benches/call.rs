//! What the gateway itself does to a call, without sockets: editing the request and taking the tokens out of the answer.
//!
//! `cargo bench -p agl-gateway`. The big body is a long conversation: 33 KB asked, 8,192 prompt ids and 1,024 sampled tokens
//! with log-probabilities answered (about 230 KB); the small one a short turn.

#![expect(clippy::unwrap_used, reason = "a benchmark")]

use agl_gateway::GatewaySettings;
use agl_gateway::capture::Capture;
use agl_gateway::shape::Shaper;
use agl_protocol::Mode;
use bytes::Bytes;
use divan::counter::BytesCount;
use http::{HeaderMap, StatusCode};
use serde_json::json;

fn main() {
    divan::main();
}

/// (name, prompt tokens, sampled tokens, bytes of conversation)
const BODIES: [(&str, u32, u32, usize); 2] = [("small", 200, 50, 600), ("big", 8192, 1024, 33_000)];

fn request(conversation: usize) -> Vec<u8> {
    let content = "a word and \"another\" é\n".repeat(conversation / 24);
    let messages = json!([{"role": "user", "content": content}]);
    json!({"model": "policy", "messages": messages, "temperature": 0.2, "max_tokens": 1024}).to_string().into_bytes()
}

fn answer(prompt: u32, sampled: u32) -> Bytes {
    let token = |id: u32| {
        let log_prob = -f64::from(id % 977) / 331.7;
        let entry = json!({"token": " word", "logprob": log_prob, "bytes": [32, 119, 111, 114, 100]});
        let mut whole = entry.clone();
        whole["top_logprobs"] = json!([entry]);
        whole
    };
    let ids = |count: u32| (0..count).map(|id| id * 7919 % 151_000).collect::<Vec<_>>();
    let message = json!({"role": "assistant", "content": " word".repeat(sampled as usize), "tool_calls": []});
    let choice = json!({
        "index": 0, "message": message, "logprobs": {"content": (0..sampled).map(token).collect::<Vec<_>>()},
        "finish_reason": "stop", "stop_reason": null, "token_ids": ids(sampled),
    });
    let usage = json!({"prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled});
    json!({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage, "prompt_token_ids": ids(prompt)})
        .to_string()
        .into()
}

fn body(name: &str) -> (u32, u32, usize) {
    BODIES
        .iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, prompt, sampled, bytes)| (*prompt, *sampled, *bytes))
        .unwrap()
}

#[divan::bench(args = ["small", "big"])]
fn shape(bencher: divan::Bencher<'_, '_>, name: &str) {
    let request = request(body(name).2);
    let shaper = Shaper::new(&GatewaySettings::default());
    bencher.counter(BytesCount::new(request.len())).bench(|| shaper.shape(&request, Mode::Train).unwrap());
}

#[divan::bench(args = ["small", "big"])]
fn capture(bencher: divan::Bencher<'_, '_>, name: &str) {
    let (prompt, sampled, _) = body(name);
    let answer = answer(prompt, sampled);
    let headers = HeaderMap::new();
    let read = || Capture::read(StatusCode::OK, &headers, &answer).unwrap();
    assert_eq!(read().tokens.response.tokens().len(), sampled as usize);
    bencher.counter(BytesCount::new(answer.len())).bench(read);
}
