//! Streamed answers: server-sent events in vLLM's shape. Every chunk carries the ids (and log-probabilities) of the tokens
//! behind it, whether or not they have become text yet.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::SinkExt;
use futures::channel::mpsc;
use serde_json::{Value, json};

use super::chat::{message_of, tool_calls_json};
use super::choice::{Choice, chat_log_probs, completion_log_probs};
use super::error::ApiError;
use super::request::Wish;
use super::{Heading, Served};
use crate::scheduler::Generation;

/// Chunks that may wait for a slow reader; then generation of this answer waits too.
const MAX_WAITING_CHUNKS: usize = 16;

/// What is streamed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Chat; text is held back while it may be a tool call.
    Chat {
        /// Whether tools were offered.
        offers_tools: bool,
    },
    /// Plain text.
    Completion,
}

/// Answers at once; chunks follow as tokens come.
pub(super) fn answer(
    served: Arc<Served>,
    heading: Heading,
    kind: Kind,
    prompt: Vec<u32>,
    generations: Vec<Generation>,
    wish: Wish,
) -> Response {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(MAX_WAITING_CHUNKS);
    tokio::spawn(async move {
        let mut streaming = Streaming { served: &served, heading, kind, prompt, wish: &wish, sender };
        // An error to send means that the reader has gone; dropping the generations ends them.
        let _ = streaming.run(generations).await;
    });
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(receiver)).into_response()
}

struct Streaming<'a> {
    served: &'a Served,
    heading: Heading,
    kind: Kind,
    prompt: Vec<u32>,
    wish: &'a Wish,
    sender: mpsc::Sender<Result<Bytes, Infallible>>,
}

/// The reader has gone.
struct Gone;

impl Streaming<'_> {
    async fn run(&mut self, generations: Vec<Generation>) -> Result<(), Gone> {
        if matches!(self.kind, Kind::Chat { .. }) {
            for index in 0..generations.len() {
                let mut chunk = self.chunk(&[json!({
                    "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
                })]);
                if self.wish.token_ids {
                    chunk["prompt_token_ids"] = json!(self.prompt);
                }
                self.send(&chunk).await?;
            }
        }
        let mut completion_tokens = 0;
        for (index, generation) in generations.into_iter().enumerate() {
            match self.choice(index, generation).await? {
                Ok(tokens) => completion_tokens += tokens,
                Err(error) => return self.send(&error.body()).await,
            }
        }
        if self.wish.stream_usage {
            let mut chunk = self.chunk(&[]);
            let prompt = self.prompt.len();
            chunk["usage"] = json!({
                "prompt_tokens": prompt, "total_tokens": prompt + completion_tokens, "completion_tokens": completion_tokens,
            });
            self.send(&chunk).await?;
        }
        self.send_text("[DONE]").await
    }

    /// Streams one choice; gives how many tokens it has, or the engine's error.
    async fn choice(&mut self, index: usize, generation: Generation) -> Result<Result<usize, ApiError>, Gone> {
        let mut choice = Choice::new(&self.served.tokenizer, generation, self.wish);
        // Text and tokens that have been given out.
        let (mut text, mut tokens) = (0, 0);
        loop {
            let more = match choice.next(self.served.eos()).await {
                Ok(more) => more,
                Err(error) => return Ok(Err(error)),
            };
            let over = !more || choice.end.is_some();
            let safe = self.givable(&choice, over);
            let piece = choice.text[text..safe.max(text)].to_owned();
            if !over || tokens < choice.sampled.len() || !piece.is_empty() {
                let chunk = self.piece(index, &choice, &piece, tokens, text);
                self.send(&chunk).await?;
            }
            (text, tokens) = (safe.max(text), choice.sampled.len());
            if over {
                // The end of a choice that ran out of tokens or into a stop string comes with its last token.
                if choice.end.is_none() {
                    continue;
                }
                let chunk = self.end(index, &choice);
                self.send(&chunk).await?;
                return Ok(Ok(choice.sampled.len()));
            }
        }
    }

    /// How much of the text may be given out: none of what is, or may become, a tool call.
    fn givable(&self, choice: &Choice<'_>, over: bool) -> usize {
        const OPEN: &str = "<tool_call>";
        let safe = choice.safe_text();
        let Kind::Chat { offers_tools: true } = self.kind else { return safe.len() };
        if over {
            let message = message_of(&choice.text, true);
            let calls = !message.tool_calls.is_empty();
            return if calls { message.content.map_or(0, |content| content.len()) } else { choice.text.len() };
        }
        match safe.find(OPEN) {
            Some(place) => place,
            None => (1..OPEN.len()).rev().find(|n| safe.ends_with(&OPEN[..*n])).map_or(safe.len(), |n| safe.len() - n),
        }
    }

    fn piece(&self, index: usize, choice: &Choice<'_>, piece: &str, first_token: usize, text_offset: usize) -> Value {
        let sampled = &choice.sampled[first_token..];
        let ids: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
        let mut json = match self.kind {
            Kind::Chat { .. } => json!({
                "index": index,
                "delta": if piece.is_empty() { json!({}) } else { json!({"content": piece}) },
                "logprobs": self.wish.log_probs.then(|| chat_log_probs(&self.served.tokenizer, sampled)),
                "finish_reason": null,
            }),
            Kind::Completion => json!({
                "index": index,
                "text": piece,
                "logprobs": self.wish.log_probs.then(|| {
                    let offset = choice.text[..text_offset].chars().count();
                    completion_log_probs(&self.served.tokenizer, sampled, offset)
                }),
                "finish_reason": null,
                "stop_reason": null,
                "prompt_token_ids": (self.wish.token_ids && first_token == 0).then_some(&self.prompt),
            }),
        };
        if self.wish.token_ids {
            json["token_ids"] = json!(ids);
        }
        self.chunk(&[json])
    }

    /// The chunk that ends a choice; a tool call is given whole, here.
    fn end(&self, index: usize, choice: &Choice<'_>) -> Value {
        let (reason, stop_reason) =
            choice.end.as_ref().map_or(("abort", &Value::Null), |end| (end.reason, &end.stop_reason));
        let json = match self.kind {
            Kind::Chat { offers_tools } => {
                let message = message_of(&choice.text, offers_tools);
                let mut calls = tool_calls_json(&message);
                calls.iter_mut().enumerate().for_each(|(place, call)| call["index"] = place.into());
                let calls_tools = !calls.is_empty() && reason == "stop";
                json!({
                    "index": index,
                    "delta": if calls.is_empty() { json!({}) } else { json!({"tool_calls": calls}) },
                    "logprobs": null,
                    "finish_reason": if calls_tools { "tool_calls" } else { reason },
                    "stop_reason": stop_reason,
                })
            }
            Kind::Completion => json!({
                "index": index, "text": "", "logprobs": null, "finish_reason": reason, "stop_reason": stop_reason,
            }),
        };
        self.chunk(&[json])
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        let object = match self.kind {
            Kind::Chat { .. } => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        };
        json!({
            "id": self.heading.id,
            "object": object,
            "created": self.heading.created,
            "model": self.heading.model,
            "system_fingerprint": self.heading.fingerprint,
            "choices": choices,
        })
    }

    async fn send(&mut self, chunk: &Value) -> Result<(), Gone> {
        self.send_text(&chunk.to_string()).await
    }

    async fn send_text(&mut self, data: &str) -> Result<(), Gone> {
        self.sender.send(Ok(Bytes::from(format!("data: {data}\n\n")))).await.map_err(|_| Gone)
    }
}
