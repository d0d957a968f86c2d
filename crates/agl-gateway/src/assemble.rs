//! The answer that a stream of chunks amounts to, in the shape of an answer that was not streamed.
//!
//! Every chunk is read for ids and log-probabilities, also one whose delta is empty: half a character, or a tool call
//! that is still being parsed, has sampled a token all the same.

use agl_protocol::pyjson::{self, Dict, Value};

/// What the stream held so far.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    answer: Dict,
    choices: Vec<Dict>,
    done: bool,
    broken: bool,
}

/// What a chunk was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// Part of the answer.
    Part,
    /// Nothing but the count of tokens.
    Usage,
    /// The end.
    Done,
}

/// What the whole stream was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assembled {
    /// The answer, as if it had not been streamed.
    pub(crate) answer: Value,
    /// Whether it came to its end: `[DONE]`, or a finish reason for every choice, and no error on the way.
    pub(crate) complete: bool,
}

impl Assembler {
    /// Adds the data of one event.
    pub(crate) fn push(&mut self, data: &[u8]) -> Chunk {
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            return Chunk::Done;
        }
        let Ok(Value::Dict(chunk)) = pyjson::parse(data) else {
            self.broken = true;
            return Chunk::Part;
        };
        let is_list_of_none = |value: &Value| value.as_list().is_some_and(<[Value]>::is_empty);
        let bare =
            chunk.get("choices").is_some_and(is_list_of_none) && matches!(chunk.get("usage"), Some(Value::Dict(_)));
        for (key, value) in chunk {
            self.top(key, value);
        }
        if bare { Chunk::Usage } else { Chunk::Part }
    }

    /// Adds what the stream ended in the middle of, if that happens to be whole.
    pub(crate) fn push_unended(&mut self, data: &[u8]) {
        if data == b"[DONE]" || pyjson::parse(data).is_ok() {
            self.push(data);
        }
    }

    /// The answer, once the stream has ended.
    pub(crate) fn finish(mut self) -> Assembled {
        let finished = |choice: &Dict| choice.get("finish_reason").is_some_and(|reason| *reason != Value::Null);
        let all_finished = !self.choices.is_empty() && self.choices.iter().all(finished);
        let complete = (self.done || all_finished) && !self.broken && !self.answer.contains_key("error");
        let choices = self.choices.into_iter().map(whole_choice).collect();
        let list = self.answer.entry("choices".to_owned()).or_default();
        *list = Value::List(choices);
        Assembled { answer: Value::Dict(self.answer), complete }
    }

    fn top(&mut self, key: String, value: Value) {
        match (key.as_str(), value) {
            ("choices", Value::List(choices)) => {
                self.answer.entry(key).or_default();
                for choice in choices {
                    self.choice(choice);
                }
            }
            ("object", Value::Str(object)) => {
                let whole = object.strip_suffix(".chunk").unwrap_or(&object).to_owned();
                self.answer.entry(key).or_insert(Value::Str(whole));
            }
            ("error", value) => _ = self.answer.insert(key, value),
            (_, value) => set_unless_null(&mut self.answer, key, value),
        }
    }

    fn choice(&mut self, choice: Value) {
        /// More choices than any request asks for.
        const MAX_CHOICES: usize = 4096;
        let Value::Dict(choice) = choice else { return };
        let index = match choice.get("index") {
            Some(Value::Int(index)) => index.digits().parse().unwrap_or(MAX_CHOICES),
            _ => 0,
        };
        if index >= MAX_CHOICES {
            self.broken = true;
            return;
        }
        while self.choices.len() <= index {
            let number = Value::Int((self.choices.len() as i64).into());
            self.choices.push([("index".to_owned(), number)].into_iter().collect());
        }
        let whole = &mut self.choices[index];
        for (key, value) in choice {
            match (key.as_str(), value) {
                ("index", _) => {}
                ("delta", Value::Dict(delta)) => add_delta(dict_at(whole, "message"), delta),
                ("text", Value::Str(text)) => append(whole, key, &text),
                ("token_ids", Value::List(ids)) => extend(whole, key, ids),
                ("logprobs", Value::Dict(lists)) => {
                    let logprobs = dict_at(whole, "logprobs");
                    for (key, list) in lists {
                        match list {
                            Value::List(items) => extend(logprobs, key, items),
                            other => set_unless_null(logprobs, key, other),
                        }
                    }
                }
                (_, value) => set_unless_null(whole, key, value),
            }
        }
    }
}

/// What part of a message says is added to the message: text to text, tool calls by their number.
fn add_delta(message: &mut Dict, delta: Dict) {
    for (key, value) in delta {
        match (key.as_str(), value) {
            ("role", value) => set_unless_null(message, key, value),
            ("tool_calls", Value::List(parts)) => {
                let mut calls = match message.shift_remove("tool_calls") {
                    Some(Value::List(calls)) => calls,
                    _ => Vec::new(),
                };
                for part in parts {
                    add_tool_call(&mut calls, part);
                }
                message.insert(key, Value::List(calls));
            }
            (_, Value::Str(text)) => append(message, key, &text),
            // `content: null` is what a message of tool calls alone has.
            (_, Value::Null) if !message.get(&key).is_some_and(Value::is_truthy) => {
                message.insert(key, Value::Null);
            }
            (_, value) => set_unless_null(message, key, value),
        }
    }
}

fn add_tool_call(calls: &mut Vec<Value>, part: Value) {
    /// More tool calls than any answer makes.
    const MAX_TOOL_CALLS: usize = 4096;
    let Value::Dict(part) = part else { return };
    let index = match part.get("index") {
        Some(Value::Int(index)) => index.digits().parse().unwrap_or(MAX_TOOL_CALLS),
        _ => calls.len(),
    };
    if index >= MAX_TOOL_CALLS {
        return;
    }
    while calls.len() <= index {
        let empty = [("id", Value::Null), ("type", Value::Str("function".to_owned()))];
        calls.push(Value::Dict(empty.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()));
    }
    let Value::Dict(call) = &mut calls[index] else { return };
    for (key, value) in part {
        match (key.as_str(), value) {
            ("index", _) => {}
            ("function", Value::Dict(function)) => {
                let whole = dict_at(call, "function");
                for (key, value) in function {
                    match (key.as_str(), value) {
                        ("arguments", Value::Str(text)) => append(whole, key, &text),
                        (_, value) => set_unless_null(whole, key, value),
                    }
                }
            }
            (_, value) => set_unless_null(call, key, value),
        }
    }
}

/// A choice with every key that one has which was not streamed.
fn whole_choice(mut choice: Dict) -> Value {
    if let Some(Value::Dict(message)) = choice.get_mut("message") {
        message.entry("tool_calls".to_owned()).or_insert_with(|| Value::List(Vec::new()));
    }
    for key in ["logprobs", "finish_reason", "stop_reason"] {
        choice.entry(key.to_owned()).or_default();
    }
    Value::Dict(choice)
}

fn dict_at<'a>(dict: &'a mut Dict, key: &str) -> &'a mut Dict {
    let value = dict.entry(key.to_owned()).or_default();
    if !matches!(value, Value::Dict(_)) {
        *value = Value::Dict(Dict::new());
    }
    match value {
        Value::Dict(dict) => dict,
        _ => unreachable!("a dict was just put there"),
    }
}

fn set_unless_null(dict: &mut Dict, key: String, value: Value) {
    let known = dict.entry(key).or_default();
    if value != Value::Null {
        *known = value;
    }
}

fn append(dict: &mut Dict, key: String, text: &str) {
    match dict.entry(key).or_default() {
        Value::Str(known) => known.push_str(text),
        // The first words after `null`, or after something that is no text.
        known if !text.is_empty() || *known == Value::Null => *known = Value::Str(text.to_owned()),
        _ => {}
    }
}

fn extend(dict: &mut Dict, key: String, items: Vec<Value>) {
    match dict.entry(key).or_default() {
        Value::List(known) => known.extend(items),
        known => *known = Value::List(items),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::SseDecoder;
    use std::path::{Path, PathBuf};

    /// Answers of a real vLLM 0.20.2: the same request, streamed and not.
    const PAIRS: [(&str, &str); 12] = [
        ("chat_stream_ids_logprobs", "chat_ids_logprobs"),
        ("chat_stream_usage", "chat_ids_logprobs"),
        ("chat_stream_continuous_usage", "chat_ids_logprobs"),
        ("chat_stream_immediate_stop", "chat_empty_content_immediate_stop"),
        ("chat_stream_length", "chat_length_finish"),
        ("chat_emoji_split_stream", "chat_emoji"),
        ("chat_hermes_one_stream", "chat_hermes_one"),
        ("chat_hermes_two_stream", "chat_hermes_two"),
        ("chat_hermes_text_then_stream", "chat_hermes_text_then"),
        ("chat_tools_stream_named", "chat_tools_named"),
        ("chat_tools_stream_auto", "chat_tools_auto"),
        ("comp_stream", "comp_ids_logprobs"),
    ];

    fn recorded(name: &str) -> Vec<u8> {
        let of = |golden: PathBuf| golden.join("vllm/vllm-0.20.2").join(name);
        let other = std::env::var_os("AGL_GOLDEN").map(|golden| of(golden.into())).filter(|path| path.exists());
        let ours = of(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"));
        std::fs::read(other.unwrap_or(ours)).unwrap()
    }

    fn assemble<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Assembled {
        let (mut decoder, mut assembler) = (SseDecoder::default(), Assembler::default());
        for chunk in chunks {
            for event in decoder.push(chunk).unwrap() {
                assembler.push(&event.data);
            }
        }
        if let Some(data) = decoder.finish() {
            assembler.push_unended(&data);
        }
        assembler.finish()
    }

    /// What both ways of asking must agree on. Ids of tool calls are random, and a stream leaves out empty fields.
    fn essence(answer: &Value) -> Value {
        let pick = |value: &Value, keys: &[&str]| -> Dict {
            keys.iter().map(|key| ((*key).to_owned(), value.get(key).cloned().unwrap_or_default())).collect()
        };
        let tool_call = |call: &Value| Value::Dict(pick(call, &["type", "function"]));
        let choice = |choice: &Value| {
            let mut picked = pick(
                choice,
                &["index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids"],
            );
            if let Some(message) = choice.get("message") {
                let mut shown = pick(message, &["role", "content"]);
                let calls = message.get("tool_calls").and_then(Value::as_list).unwrap();
                shown.insert("tool_calls".to_owned(), Value::List(calls.iter().map(tool_call).collect()));
                picked.insert("message".to_owned(), Value::Dict(shown));
            }
            Value::Dict(picked)
        };
        let mut picked = pick(answer, &["object", "model", "prompt_token_ids"]);
        let choices = answer.get("choices").and_then(Value::as_list).unwrap();
        picked.insert("choices".to_owned(), Value::List(choices.iter().map(choice).collect()));
        Value::Dict(picked)
    }

    #[test]
    fn a_stream_amounts_to_the_answer_that_was_not_streamed() {
        for (streamed, whole) in PAIRS {
            let stream = recorded(&format!("{streamed}.body.sse"));
            let whole = pyjson::parse(&recorded(&format!("{whole}.body.json"))).unwrap();
            let assembled = assemble([&stream[..]]);
            assert!(assembled.complete, "{streamed}");
            assert_eq!(essence(&assembled.answer).to_raw(), essence(&whole).to_raw(), "{streamed}");
            if let Some(usage @ Value::Dict(_)) = assembled.answer.get("usage") {
                for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                    assert_eq!(usage.get(key), whole.get("usage").unwrap().get(key), "{streamed}");
                }
            }
            for size in [1, 7, 1000] {
                assert_eq!(assemble(stream.chunks(size)), assembled, "{streamed} in pieces of {size}");
            }
        }
    }

    #[test]
    fn choices_are_told_apart() {
        let assembled = assemble([&recorded("chat_stream_n2.body.sse")[..]]);
        let choices = assembled.answer.get("choices").and_then(Value::as_list).unwrap();
        let starts = choices.iter().map(|choice| choice.get("token_ids").unwrap().as_list().unwrap()[0].to_raw());
        assert_eq!(starts.map(|id| id.text().to_owned()).collect::<Vec<_>>(), ["14925", "38634"]);
    }

    #[test]
    fn cut_anywhere_it_is_whole_only_when_every_choice_has_ended() {
        let stream = recorded("comp_stream.body.sse");
        let finish = stream.windows(8).position(|window| window == b"\"length\"").unwrap();
        let end = finish + stream[finish..].iter().position(|byte| *byte == b'\n').unwrap();
        for cut in 0..stream.len() {
            assert_eq!(assemble([&stream[..cut]]).complete, cut >= end, "cut at {cut} of {end}");
        }
    }

    #[test]
    fn an_error_on_the_way_is_kept_and_breaks_the_answer() {
        let chunk = r#"data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1]}]}"#;
        let error = r#"data: {"error":{"message":"engine died","code":500}}"#;
        let assembled = assemble([format!("{chunk}\n\n{error}\n\ndata: [DONE]\n\n").as_bytes()]);
        assert!(!assembled.complete);
        assert!(assembled.answer.get("error").unwrap().is_truthy());
        assert_eq!(assembled.answer.get("choices").unwrap().to_raw().text().matches("[1]").count(), 1);
        assert!(!assemble([&b"data: {broken\n\ndata: [DONE]\n\n"[..]]).complete);
        assert!(!assemble([]).complete);
    }
}
