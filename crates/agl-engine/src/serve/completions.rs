//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::choice::{Choice, completion_log_probs};
use super::error::ApiError;
use super::request::{CompletionRequest, Wish, parse};
use super::stream::{self, Kind};
use super::{Served, usage};

pub(super) async fn answer(State(served): State<Arc<Served>>, body: Bytes) -> Result<Response, ApiError> {
    let (request, shared) = parse::<CompletionRequest>(&body)?;
    served.check_model(request.model.as_deref())?;
    let mut wish = request.wish(&shared)?;
    // The API's own default is short.
    wish.max_tokens = wish.max_tokens.or(Some(16));
    let prompt = prompt_of(&served, &request.prompt)?;
    let generations = served.generate(&prompt, &wish)?;
    let heading = served.heading("cmpl", request.model);
    if wish.stream {
        return Ok(stream::answer(served, heading, Kind::Completion, prompt, generations, wish));
    }

    let (mut choices, mut completion_tokens) = (Vec::new(), 0);
    for (index, generation) in generations.into_iter().enumerate() {
        let mut choice = Choice::new(&served.tokenizer, generation, &wish);
        while choice.next(served.eos()).await? {}
        completion_tokens += choice.sampled.len();
        choices.push(as_json(&served, &choice, index, &prompt, &wish));
    }
    Ok(Json(json!({
        "id": heading.id,
        "object": "text_completion",
        "created": heading.created,
        "model": heading.model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": heading.fingerprint,
        "usage": usage(prompt.len(), completion_tokens),
        "kv_transfer_params": null,
    }))
    .into_response())
}

fn as_json(served: &Served, choice: &Choice<'_>, index: usize, prompt: &[u32], wish: &Wish) -> Value {
    let (reason, stop_reason) =
        choice.end.as_ref().map_or(("abort", &Value::Null), |end| (end.reason, &end.stop_reason));
    json!({
        "index": index,
        "text": choice.text,
        "logprobs": wish.log_probs.then(|| completion_log_probs(&served.tokenizer, &choice.sampled, 0)),
        "finish_reason": reason,
        "stop_reason": stop_reason,
        "token_ids": wish.token_ids.then(|| choice.token_ids()),
        "prompt_logprobs": null,
        "prompt_token_ids": wish.token_ids.then_some(prompt),
    })
}

/// Text, or token ids as they are. A batch of prompts is refused: one call is one prompt here.
fn prompt_of(served: &Served, prompt: &Value) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Value::String(text) => Ok(served.tokenizer.encode_plain_prompt(text)?),
        Value::Array(items) if items.iter().all(Value::is_u64) => {
            let ids = items.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Vec<u32>>();
            if ids.len() == items.len() {
                Ok(ids)
            } else {
                Err(ApiError::bad_request("prompt", "a token id is too large"))
            }
        }
        Value::Array(_) => Err(ApiError::unsupported("prompt", "a batch of prompts")),
        other => Err(ApiError::value("prompt", "text or a list of token ids", other)),
    }
}
