//! The policy server over a real socket, with a tiny random model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use agl_engine::chat::ChatTemplate;
use agl_engine::sampler::LogProbs;
use agl_engine::scheduler::SchedulerLimits;
use agl_engine::serve::{PolicyServer, ServeOptions};
use agl_engine::tokenizer::Tokenizer;
use agl_engine::{LlamaConfig, Model};
use reqwest::StatusCode;
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

/// A byte-level tokenizer: 256 bytes and the two markers of a turn.
fn tokenizer() -> Tokenizer {
    let mut alphabet: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let vocab: serde_json::Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let special = |id: usize, text: &str| json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(256, "<|im_start|>"), special(257, "<|im_end|>")],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Tokenizer::new(tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap())
}

fn model(seed: u64) -> Model {
    let config = json!({
        "model_type": "llama", "vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 4000,
        "tie_word_embeddings": true, "eos_token_id": 257
    });
    Model::random(LlamaConfig::from_json(&config.to_string()).unwrap(), 0.2, seed)
}

async fn start() -> PolicyServer {
    let options = ServeOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        model_name: "tiny".into(),
        max_model_len: None,
        seed: 1,
        log_probs: LogProbs::Processed,
        limits: SchedulerLimits::default(),
    };
    let template = ChatTemplate::new(TEMPLATE.into(), vec![]).unwrap();
    PolicyServer::start(model(1), tokenizer(), template, options).await.unwrap()
}

async fn post(server: &PolicyServer, path: &str, body: &Value) -> (StatusCode, String) {
    let url = format!("http://{}{path}", server.address());
    let response = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

async fn chat(server: &PolicyServer, more: Value) -> (StatusCode, Value) {
    let mut body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "seed": 5});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, text) = post(server, "/v1/chat/completions", &body).await;
    (status, serde_json::from_str(&text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_vllms_keys_in_vllms_order_and_its_ids_and_log_probs_agree() {
    let server = start().await;
    let (status, answer) = chat(&server, json!({"return_token_ids": true, "logprobs": true, "top_logprobs": 2})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        keys(&answer),
        [
            "id",
            "object",
            "created",
            "model",
            "choices",
            "service_tier",
            "system_fingerprint",
            "usage",
            "prompt_logprobs",
            "prompt_token_ids",
            "kv_transfer_params"
        ]
    );
    let choice = &answer["choices"][0];
    assert_eq!(keys(choice), ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"]);
    assert_eq!(
        keys(&choice["message"]),
        ["role", "content", "refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning"]
    );
    let ids = choice["token_ids"].as_array().unwrap();
    let log_probs = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(ids.len(), log_probs.len());
    assert_eq!(answer["usage"]["completion_tokens"], ids.len());
    assert_eq!(answer["usage"]["prompt_tokens"], answer["prompt_token_ids"].as_array().unwrap().len());
    for entry in log_probs {
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    // Without being asked for, neither is there.
    let (_, plain) = chat(&server, json!({})).await;
    assert_eq!((&plain["prompt_token_ids"], &plain["choices"][0]["token_ids"]), (&Value::Null, &Value::Null));
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    assert_eq!(plain["choices"][0]["message"], choice["message"], "the same seed says the same");
}

/// Text, ids and log-probabilities of a streamed answer, put together.
fn assemble(events: &str) -> (String, Vec<u64>, Vec<f64>, Value) {
    let (mut text, mut ids, mut log_probs, mut finish) = (String::new(), vec![], vec![], Value::Null);
    let mut done = false;
    for event in events.split("\n\n").filter(|event| !event.is_empty()) {
        let data = event.strip_prefix("data: ").unwrap();
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default());
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().map(|id| id.as_u64().unwrap()));
        let content = choice["logprobs"]["content"].as_array().into_iter().flatten();
        log_probs.extend(content.map(|entry| entry["logprob"].as_f64().unwrap()));
        let plain = choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten();
        log_probs.extend(plain.map(|log_prob| log_prob.as_f64().unwrap()));
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    assert!(done, "a stream ends with [DONE]");
    (text, ids, log_probs, finish)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_answer_amounts_to_the_whole_one() {
    let server = start().await;
    for seed in 0..12 {
        let ask =
            json!({"return_token_ids": true, "logprobs": true, "seed": seed, "stop": ["\u{e9}"], "max_tokens": 40});
        let (_, whole) = chat(&server, ask.clone()).await;
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true, "stream_options": {"include_usage": true}});
        body.as_object_mut().unwrap().extend(ask.as_object().unwrap().clone());
        let (status, events) = post(&server, "/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::OK);
        let (text, ids, log_probs, finish) = assemble(&events);
        let choice = &whole["choices"][0];
        assert_eq!(json!(text), choice["message"]["content"]);
        assert_eq!(json!(ids), choice["token_ids"]);
        assert_eq!(finish, choice["finish_reason"]);
        let expected: Vec<f64> =
            choice["logprobs"]["content"].as_array().unwrap().iter().map(|e| e["logprob"].as_f64().unwrap()).collect();
        assert_eq!(log_probs.len(), expected.len());
        assert!(log_probs.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
        let completion =
            json!({"prompt": "ab", "max_tokens": 9, "seed": seed, "return_token_ids": true, "logprobs": true});
        let (_, whole) = post(&server, "/v1/completions", &completion).await;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        let mut streamed = completion;
        streamed["stream"] = true.into();
        let (text, ids, log_probs, _) = assemble(&post(&server, "/v1/completions", &streamed).await.1);
        assert_eq!(
            (json!(text), json!(ids)),
            (whole["choices"][0]["text"].clone(), whole["choices"][0]["token_ids"].clone())
        );
        assert_eq!(log_probs.len(), ids.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_the_same_time_do_not_change_each_other() {
    let server = std::sync::Arc::new(start().await);
    let mut alone = Vec::new();
    for seed in 0..16 {
        alone.push(chat(&server, json!({"seed": seed})).await.1["choices"][0]["message"].clone());
    }
    let together: Vec<_> = (0..16)
        .map(|seed| {
            let server = std::sync::Arc::clone(&server);
            tokio::spawn(async move { chat(&server, json!({"seed": seed})).await.1["choices"][0]["message"].clone() })
        })
        .collect();
    for (one, other) in alone.into_iter().zip(together) {
        assert_eq!(one, other.await.unwrap());
    }
    let (_, n) = chat(&server, json!({"n": 3})).await;
    assert_eq!(n["choices"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_answered_is_refused_as_vllm_refuses_it() {
    let server = start().await;
    let (status, error) = chat(&server, json!({"model": "nope"})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        error,
        json!({"error": {"message": "The model `nope` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}})
    );
    let long = "x".repeat(5000);
    let (status, error) = chat(&server, json!({"messages": [{"role": "user", "content": long}]})).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("input_tokens")));
    let (status, error) = chat(&server, json!({"temperature": "hot"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error["error"]["message"].as_str().unwrap().contains("temperature"), "{error}");
    let (status, text) = post(&server, "/v1/completions", &json!({"prompt": [1, 999]})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("999"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_weights_answer_under_their_version() {
    let server = start().await;
    let (_, before) = chat(&server, json!({})).await;
    assert_eq!(before["system_fingerprint"], "policy-0");
    tokio::task::block_in_place(|| server.swap(model(2), 7)).unwrap();
    let (_, after) = chat(&server, json!({})).await;
    assert_eq!(after["system_fingerprint"], "policy-7");
    assert_ne!(before["choices"][0]["message"], after["choices"][0]["message"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_generation() {
    let server = start().await;
    let url = format!("http://{}/v1/chat/completions", server.address());
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true, "ignore_eos": true});
    let mut response = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap();
    response.chunk().await.unwrap();
    drop(response);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while server.stats().running.load(Ordering::Relaxed) > 0 {
        assert!(std::time::Instant::now() < deadline, "the generation goes on for nobody");
        tokio::task::yield_now().await;
    }
    let (status, _) = chat(&server, json!({})).await;
    assert_eq!(status, StatusCode::OK);
}
