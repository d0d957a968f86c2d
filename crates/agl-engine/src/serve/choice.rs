//! One choice of an answer: tokens as they come, the text they make, and where it ends.

use serde_json::{Value, json};

use super::error::ApiError;
use super::request::Wish;
use crate::sampler::Sampled;
use crate::scheduler::{Finish, Generated, Generation};
use crate::tokenizer::{IncrementalDecoder, Tokenizer};

/// Gathers the tokens of one choice.
pub(crate) struct Choice<'a> {
    tokenizer: &'a Tokenizer,
    generation: Generation,
    decoder: IncrementalDecoder,
    stop: &'a [String],
    stop_token_ids: &'a [u32],
    /// Every token that was sampled, the last one included whatever it was.
    pub(crate) sampled: Vec<Sampled>,
    /// Text so far; cut at a stop string.
    pub(crate) text: String,
    /// How it ended, once it has.
    pub(crate) end: Option<End>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    /// `stop`, `length` or `abort`.
    pub(crate) reason: &'static str,
    /// The stop string or the stop token that was asked for, if one of these ended it.
    pub(crate) stop_reason: Value,
}

impl<'a> Choice<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, generation: Generation, wish: &'a Wish) -> Self {
        Self {
            tokenizer,
            generation,
            decoder: IncrementalDecoder::default(),
            stop: &wish.stop,
            stop_token_ids: &wish.sampling.stop_token_ids,
            sampled: Vec::new(),
            text: String::new(),
            end: None,
        }
    }

    /// Waits for the next token; `false` when there is none any more. `eos` are the model's own end tokens, which are no
    /// part of the text and no stop reason to tell.
    pub(crate) async fn next(&mut self, eos: &[u32]) -> Result<bool, ApiError> {
        if self.end.is_some() {
            return Ok(false);
        }
        match self.generation.tokens.recv().await {
            Some(Generated::Token(sampled)) => {
                let token = sampled.token;
                self.sampled.push(sampled);
                // A token that ends the response is among its ids, but no part of its text.
                if !eos.contains(&token) && !self.stop_token_ids.contains(&token) {
                    let piece = self.decoder.push(self.tokenizer, token)?;
                    self.text.push_str(&piece);
                    self.cut_at_stop_string(piece.len());
                }
                Ok(true)
            }
            Some(Generated::End(finish)) => {
                self.text.push_str(&self.decoder.finish(self.tokenizer)?);
                let last = self.sampled.last().map(|sampled| sampled.token);
                let own_end = last.is_some_and(|token| eos.contains(&token));
                let (reason, stop_reason) = match finish {
                    Finish::Stop if own_end => ("stop", Value::Null),
                    Finish::Stop => ("stop", json!(last)),
                    Finish::Length => ("length", Value::Null),
                    Finish::Abort => ("abort", Value::Null),
                    Finish::NotFinite => return Err(ApiError::internal(crate::sampler::NotFinite.to_string())),
                };
                self.end = Some(End { reason, stop_reason });
                Ok(false)
            }
            None => Err(ApiError::internal("the engine was shut down while it answered")),
        }
    }

    /// Ends the choice where a stop string is complete; the tokens that made it stay among the ids, as in vLLM.
    fn cut_at_stop_string(&mut self, new_bytes: usize) {
        let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
        let mut from = self.text.len().saturating_sub(new_bytes + longest);
        while !self.text.is_char_boundary(from) {
            from -= 1;
        }
        let found = self.stop.iter().filter_map(|stop| Some((from + self.text[from..].find(stop)?, stop)));
        if let Some((place, stop)) = found.min_by_key(|(place, _)| *place) {
            self.end = Some(End { reason: "stop", stop_reason: json!(stop) });
            self.text.truncate(place);
            self.generation.tokens.close();
        }
    }

    /// Text that may be given out now: all but what might turn out to be the beginning of a stop string.
    pub(crate) fn safe_text(&self) -> &str {
        if self.end.is_some() || self.stop.is_empty() {
            return &self.text;
        }
        let held = self.stop.iter().map(|stop| longest_overlap(&self.text, stop)).max().unwrap_or(0);
        &self.text[..self.text.len() - held]
    }

    pub(crate) fn token_ids(&self) -> Vec<u32> {
        self.sampled.iter().map(|sampled| sampled.token).collect()
    }
}

/// Length of the longest end of `text` that is a beginning of `stop`.
fn longest_overlap(text: &str, stop: &str) -> usize {
    (1..stop.len())
        .rev()
        .filter(|length| stop.is_char_boundary(*length))
        .find(|length| text.ends_with(&stop[..*length]))
        .unwrap_or(0)
}

/// `logprobs.content` of chat.
pub(crate) fn chat_log_probs(tokenizer: &Tokenizer, sampled: &[Sampled]) -> Value {
    let entry = |token: u32, log_prob: f32| {
        let text = tokenizer.token_text(token);
        json!({"token": text, "logprob": log_prob, "bytes": text.as_bytes()})
    };
    let content: Vec<Value> = sampled
        .iter()
        .map(|sampled| {
            let mut item = entry(sampled.token, sampled.log_prob);
            item["top_logprobs"] = sampled.top.iter().map(|(token, log_prob)| entry(*token, *log_prob)).collect();
            item
        })
        .collect();
    json!({"content": content})
}

/// `logprobs` of completions. `offset` is where the text of the first token begins.
pub(crate) fn completion_log_probs(tokenizer: &Tokenizer, sampled: &[Sampled], mut offset: usize) -> Value {
    let (mut offsets, mut log_probs, mut tokens, mut top) = (vec![], vec![], vec![], vec![]);
    for sampled in sampled {
        let text = tokenizer.token_text(sampled.token);
        let mut alternatives = serde_json::Map::new();
        alternatives.insert(text.clone(), sampled.log_prob.into());
        for (token, log_prob) in &sampled.top {
            alternatives.insert(tokenizer.token_text(*token), (*log_prob).into());
        }
        offsets.push(offset);
        offset += text.chars().count();
        log_probs.push(sampled.log_prob);
        tokens.push(text);
        top.push(alternatives);
    }
    json!({"text_offset": offsets, "token_logprobs": log_probs, "tokens": tokens, "top_logprobs": top})
}

#[cfg(test)]
mod tests {
    use super::super::request::{ChatRequest, parse};
    use super::*;
    use crate::tokenizer::tests::byte_tokenizer;

    async fn run(tokens: &[u32], more: Value, finish: Finish) -> (String, End, usize) {
        let tokenizer = byte_tokenizer();
        let eos = [tokenizer.id_of("<|im_end|>").unwrap()];
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (request, shared) = parse::<ChatRequest>(body.to_string().as_bytes()).unwrap();
        let wish = request.wish(&shared).unwrap();
        let (out, receiver) = tokio::sync::mpsc::unbounded_channel();
        for token in tokens {
            out.send(Generated::Token(Sampled { token: *token, log_prob: -0.5, top: vec![] })).unwrap();
        }
        out.send(Generated::End(finish)).unwrap();
        let mut choice = Choice::new(&tokenizer, Generation { tokens: receiver }, &wish);
        let mut given = String::new();
        while choice.next(&eos).await.unwrap() {
            let safe = choice.safe_text();
            assert!(safe.starts_with(&given), "what was given out is never taken back");
            safe.clone_into(&mut given);
        }
        (choice.text.clone(), choice.end.clone().unwrap(), choice.sampled.len())
    }

    #[tokio::test]
    async fn a_stop_string_may_span_tokens() {
        let tokens = byte_tokenizer().encode("say héllo END more").unwrap();
        let (text, end, sampled) = run(&tokens, json!({"stop": ["END", "zzz"]}), Finish::Length).await;
        assert_eq!(text, "say héllo ");
        assert_eq!(end, End { reason: "stop", stop_reason: json!("END") });
        assert_eq!(
            sampled,
            byte_tokenizer().encode("say héllo END").unwrap().len(),
            "the stop string's tokens are ids too"
        );
    }

    #[tokio::test]
    async fn the_end_token_is_an_id_but_no_text() {
        let tokens = byte_tokenizer().encode("hi<|im_end|>").unwrap();
        let (text, end, sampled) = run(&tokens, json!({}), Finish::Stop).await;
        assert_eq!((text.as_str(), sampled), ("hi", 3));
        assert_eq!(end, End { reason: "stop", stop_reason: Value::Null });
        let (text, end, _) = run(&byte_tokenizer().encode("a").unwrap(), json!({"stop": "ab"}), Finish::Length).await;
        assert_eq!((text.as_str(), end.reason), ("a", "length"), "half a stop string is text after all");
    }

    #[tokio::test]
    async fn a_stop_token_that_was_asked_for_is_told_and_is_no_text_either() {
        let tokens = byte_tokenizer().encode("hi!").unwrap();
        let (text, end, sampled) = run(&tokens, json!({"stop_token_ids": [tokens[2]]}), Finish::Stop).await;
        assert_eq!((text.as_str(), sampled), ("hi", 3));
        assert_eq!(end, End { reason: "stop", stop_reason: json!(tokens[2]) });
    }

    #[test]
    fn overlaps_are_found_at_the_end_only() {
        assert_eq!(longest_overlap("xxEN", "END"), 2);
        assert_eq!(longest_overlap("ENxx", "END"), 0);
        assert_eq!(longest_overlap("é", "éa"), 2);
    }
}
