//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::choice::{Choice, chat_log_probs};
use super::error::ApiError;
use super::request::{ChatRequest, Wish, parse};
use super::stream::{self, Kind};
use super::{Served, random_hex, usage};
use crate::chat::{ParsedMessage, parse_tool_calls};

pub(super) async fn answer(State(served): State<Arc<Served>>, body: Bytes) -> Result<Response, ApiError> {
    let (request, shared) = parse::<ChatRequest>(&body)?;
    served.check_model(request.model.as_deref())?;
    let wish = request.wish(&shared)?;
    let offers_tools = request.may_call_tools();
    let text = served.template.render(&request.messages, request.shown_tools())?;
    let prompt = served.tokenizer.encode(&text)?;
    let generations = served.generate(&prompt, &wish)?;
    let heading = served.heading("chatcmpl", request.model);
    if wish.stream {
        let kind = Kind::Chat { offers_tools };
        return Ok(stream::answer(served, heading, kind, prompt, generations, wish));
    }

    let (mut choices, mut completion_tokens) = (Vec::new(), 0);
    for (index, generation) in generations.into_iter().enumerate() {
        let mut choice = Choice::new(&served.tokenizer, generation, &wish);
        while choice.next(served.eos()).await? {}
        completion_tokens += choice.sampled.len();
        choices.push(as_json(&served, &choice, index, offers_tools, &wish));
    }
    Ok(Json(json!({
        "id": heading.id,
        "object": "chat.completion",
        "created": heading.created,
        "model": heading.model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": heading.fingerprint,
        "usage": usage(prompt.len(), completion_tokens),
        "prompt_logprobs": null,
        "prompt_token_ids": wish.token_ids.then_some(prompt),
        "kv_transfer_params": null,
    }))
    .into_response())
}

fn as_json(served: &Served, choice: &Choice<'_>, index: usize, offers_tools: bool, wish: &Wish) -> Value {
    let message = message_of(&choice.text, offers_tools);
    let (reason, stop_reason) =
        choice.end.as_ref().map_or(("abort", &Value::Null), |end| (end.reason, &end.stop_reason));
    let calls_tools = !message.tool_calls.is_empty() && reason == "stop";
    json!({
        "index": index,
        "message": {
            "role": "assistant",
            "content": message.content,
            "refusal": null,
            "annotations": null,
            "audio": null,
            "function_call": null,
            "tool_calls": tool_calls_json(&message),
            "reasoning": null,
        },
        "logprobs": wish.log_probs.then(|| chat_log_probs(&served.tokenizer, &choice.sampled)),
        "finish_reason": if calls_tools { "tool_calls" } else { reason },
        "stop_reason": stop_reason,
        "token_ids": wish.token_ids.then(|| choice.token_ids()),
    })
}

/// Tool calls are looked for only where tools were offered.
pub(super) fn message_of(text: &str, offers_tools: bool) -> ParsedMessage {
    if offers_tools {
        parse_tool_calls(text)
    } else {
        ParsedMessage { content: Some(text.to_owned()), tool_calls: Vec::new() }
    }
}

pub(super) fn tool_calls_json(message: &ParsedMessage) -> Vec<Value> {
    let calls = message.tool_calls.iter();
    calls
        .map(|call| {
            json!({
                "id": format!("chatcmpl-tool-{}", random_hex()),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        })
        .collect()
}
