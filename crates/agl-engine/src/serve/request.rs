//! What a request may ask, checked: fields of the OpenAI API, those that vLLM adds, and a clear refusal of what we lack.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::ApiError;
use crate::sampler::SamplingParams;

/// Alternatives a place that may be asked for, as in vLLM.
const MAX_TOP_LOG_PROBS: usize = 20;
/// Choices a request may ask for.
const MAX_CHOICES: usize = 64;

/// `POST /v1/chat/completions`. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ChatRequest {
    #[serde(default)]
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<Value>,
    #[serde(default)]
    pub(crate) tools: Option<Vec<Value>>,
    #[serde(default)]
    tool_choice: Option<Value>,
    #[serde(default)]
    max_tokens: Option<i64>,
    #[serde(default)]
    max_completion_tokens: Option<i64>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<usize>,
    #[serde(default)]
    response_format: Option<Value>,
}

/// `POST /v1/completions`. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CompletionRequest {
    #[serde(default)]
    pub(crate) model: Option<String>,
    pub(crate) prompt: Value,
    #[serde(default)]
    max_tokens: Option<i64>,
    #[serde(default)]
    logprobs: Option<Value>,
    #[serde(default)]
    echo: Option<bool>,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    best_of: Option<usize>,
}

/// What both kinds of request share.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Shared {
    #[serde(default)]
    n: Option<i64>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    top_k: Option<i64>,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(default)]
    stop: Option<Value>,
    #[serde(default)]
    stop_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    ignore_eos: Option<bool>,
    #[serde(default)]
    presence_penalty: Option<f32>,
    #[serde(default)]
    frequency_penalty: Option<f32>,
    #[serde(default)]
    repetition_penalty: Option<f32>,
    #[serde(default)]
    logit_bias: Option<Value>,
    #[serde(default)]
    prompt_logprobs: Option<Value>,
    #[serde(default)]
    pub(crate) return_token_ids: Option<bool>,
    #[serde(default)]
    pub(crate) stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

/// A request, checked.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the API that stands alone")]
pub(crate) struct Wish {
    /// Choices.
    pub(crate) n: usize,
    /// How to sample; `max_tokens` and the seed are filled in when the prompt is known.
    pub(crate) sampling: SamplingParams,
    /// As asked for, if it was.
    pub(crate) max_tokens: Option<usize>,
    /// Seed asked for, if any.
    pub(crate) seed: Option<u64>,
    /// Texts that end the response.
    pub(crate) stop: Vec<String>,
    /// Whether the model's own end tokens don't end it.
    pub(crate) ignore_eos: bool,
    /// Whether log-probabilities are wanted.
    pub(crate) log_probs: bool,
    /// Whether ids are wanted.
    pub(crate) token_ids: bool,
    /// Whether the answer is wanted bit by bit.
    pub(crate) stream: bool,
    /// Whether a stream ends with the usage.
    pub(crate) stream_usage: bool,
}

/// Reads a body as the fields of its own kind and the shared ones; an error names the field.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<(T, Shared), ApiError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| ApiError::bad_request(None, format!("Invalid JSON: {error}")))?;
    refuse_what_is_not_heeded(&value)?;
    // Two readings of the same object: one struct flattened into the other would lose the names of wrong fields.
    Ok((fields(&value)?, fields(&value)?))
}

/// Fields that vLLM heeds and this engine does not know: each would change what is sampled, so that ignoring one in silence
/// would answer another question. With the value that asks for nothing; null and what is empty ask for nothing either.
fn refuse_what_is_not_heeded(body: &Value) -> Result<(), ApiError> {
    let fields = [
        ("structured_outputs", json!({})),
        ("guided_json", json!({})),
        ("guided_regex", json!("")),
        ("guided_choice", json!([])),
        ("guided_grammar", json!("")),
        ("min_p", json!(0.0)),
        ("min_tokens", json!(0.0)),
        ("bad_words", json!([])),
        ("allowed_token_ids", json!([])),
        ("truncate_prompt_tokens", json!(null)),
        ("use_beam_search", json!(false)),
        ("skip_special_tokens", json!(true)),
        ("include_stop_str_in_output", json!(false)),
        ("continue_final_message", json!(false)),
        ("add_generation_prompt", json!(true)),
    ];
    for (name, nothing) in fields {
        let Some(value) = body.get(name).filter(|value| !value.is_null()) else { continue };
        let same_number = value.is_number() && value.as_f64() == nothing.as_f64();
        if *value != nothing && !same_number {
            return Err(ApiError::unsupported(name, &format!("the value {value}")));
        }
    }
    Ok(())
}

fn fields<T: DeserializeOwned>(value: &Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        ApiError::bad_request(None, format!("{place}{}", error.inner()))
    })
}

impl ChatRequest {
    pub(crate) fn wish(&self, shared: &Shared) -> Result<Wish, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::bad_request("messages", "messages must hold at least one message"));
        }
        match self.tool_choice.as_ref().and_then(Value::as_str) {
            None if self.tool_choice.as_ref().is_some_and(|choice| !choice.is_null()) => {
                return Err(ApiError::unsupported("tool_choice", "a named tool (say `auto`)"));
            }
            Some("required") => return Err(ApiError::unsupported("tool_choice", "`required` (say `auto`)")),
            Some(choice) if choice != "auto" && choice != "none" => {
                return Err(ApiError::value("tool_choice", "`auto` or `none`", &choice));
            }
            _ => {}
        }
        let format = self.response_format.as_ref().and_then(|format| format["type"].as_str());
        if format.is_some_and(|format| format != "text") {
            return Err(ApiError::unsupported("response_format", "structured output"));
        }
        let log_probs = self.logprobs.unwrap_or(false);
        let top = self.top_logprobs.unwrap_or(0);
        if top > 0 && !log_probs {
            return Err(ApiError::bad_request(
                "top_logprobs",
                "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
            ));
        }
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        shared.wish(max_tokens, log_probs, top)
    }

    /// The tools that the prompt tells of: all, even under `tool_choice: none`, as in vLLM.
    pub(crate) fn shown_tools(&self) -> Option<&[Value]> {
        self.tools.as_deref().filter(|tools| !tools.is_empty())
    }

    /// Whether tool calls are looked for in what the model writes.
    pub(crate) fn may_call_tools(&self) -> bool {
        self.shown_tools().is_some() && self.tool_choice.as_ref().is_none_or(|choice| choice != "none")
    }
}

impl CompletionRequest {
    pub(crate) fn wish(&self, shared: &Shared) -> Result<Wish, ApiError> {
        if self.echo == Some(true) {
            return Err(ApiError::unsupported("echo", "echoing the prompt"));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix", "a suffix"));
        }
        if self.best_of.is_some_and(|best_of| best_of > 1) {
            return Err(ApiError::unsupported("best_of", "a choice among several"));
        }
        // The API's own type is a number; the gateway, as the original's, says true.
        let (log_probs, top) = match &self.logprobs {
            None | Some(Value::Null | Value::Bool(false)) => (false, 0),
            Some(Value::Bool(true)) => (true, 1),
            Some(number) => match number.as_u64() {
                Some(top) => (true, top as usize),
                None => return Err(ApiError::value("logprobs", "a whole number", number)),
            },
        };
        shared.wish(self.max_tokens, log_probs, top)
    }
}

impl Shared {
    fn wish(&self, max_tokens: Option<i64>, log_probs: bool, top_log_probs: usize) -> Result<Wish, ApiError> {
        self.refuse_what_we_lack()?;
        if top_log_probs > MAX_TOP_LOG_PROBS {
            let message = format!(
                "Requested sample logprobs of {top_log_probs}, which is greater than max allowed: {MAX_TOP_LOG_PROBS} \
                 (parameter=logprobs, value={top_log_probs})"
            );
            return Err(ApiError::bad_request("logprobs", message));
        }
        let n = self.n.unwrap_or(1);
        if !(1..=MAX_CHOICES as i64).contains(&n) {
            return Err(ApiError::value("n", &format!("from 1 to {MAX_CHOICES}"), &n));
        }
        let temperature = self.temperature.unwrap_or(1.0);
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(ApiError::value("temperature", "non-negative", &temperature));
        }
        let top_p = self.top_p.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(ApiError::value("top_p", "in (0, 1]", &top_p));
        }
        // -1 is vLLM's way to say all.
        let top_k = self.top_k.unwrap_or(0);
        if top_k < -1 {
            return Err(ApiError::value("top_k", "0 or -1 (all), or at least 1", &top_k));
        }
        if let Some(max_tokens) = max_tokens.filter(|max_tokens| *max_tokens < 1) {
            return Err(ApiError::value("max_tokens", "at least 1", &max_tokens));
        }
        Ok(Wish {
            n: n as usize,
            sampling: SamplingParams {
                temperature,
                top_p,
                top_k: top_k.max(0) as usize,
                max_tokens: 0,
                stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
                top_log_probs,
                seed: 0,
            },
            max_tokens: max_tokens.map(|max_tokens| max_tokens as usize),
            seed: self.seed.map(|seed| seed as u64),
            stop: self.stop_strings()?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            log_probs,
            token_ids: self.return_token_ids.unwrap_or(false),
            stream: self.stream.unwrap_or(false),
            stream_usage: self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false),
        })
    }

    fn refuse_what_we_lack(&self) -> Result<(), ApiError> {
        for (name, penalty, neutral) in [
            ("presence_penalty", self.presence_penalty, 0.0),
            ("frequency_penalty", self.frequency_penalty, 0.0),
            ("repetition_penalty", self.repetition_penalty, 1.0),
        ] {
            // Within rounding of the value that changes nothing.
            if penalty.is_some_and(|penalty| (penalty - neutral).abs() > f32::EPSILON) {
                return Err(ApiError::unsupported(name, "a penalty"));
            }
        }
        if self.logit_bias.as_ref().and_then(Value::as_object).is_some_and(|bias| !bias.is_empty()) {
            return Err(ApiError::unsupported("logit_bias", "a bias"));
        }
        if self.prompt_logprobs.as_ref().is_some_and(|wanted| !wanted.is_null()) {
            return Err(ApiError::unsupported("prompt_logprobs", "scoring the prompt"));
        }
        Ok(())
    }

    fn stop_strings(&self) -> Result<Vec<String>, ApiError> {
        let texts = match &self.stop {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
                items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
            }
            Some(other) => return Err(ApiError::value("stop", "text or a list of texts", other)),
        };
        if texts.iter().any(String::is_empty) {
            return Err(ApiError::bad_request("stop", "stop cannot contain an empty string. (parameter=stop)"));
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(more: &Value) -> Result<Wish, String> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "unknown_field": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let wish =
            parse::<ChatRequest>(body.to_string().as_bytes()).and_then(|(request, shared)| request.wish(&shared));
        wish.map_err(|error| error.body()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn what_is_asked_is_understood() {
        let wish =
            chat(&json!({"max_tokens": 5, "max_completion_tokens": 7, "stop": "x", "n": 2, "seed": -1, "top_k": -1}))
                .unwrap();
        assert_eq!((wish.max_tokens, wish.n, wish.seed, wish.sampling.top_k), (Some(7), 2, Some(u64::MAX), 0));
        assert_eq!(wish.stop, ["x"]);
        let nulls = json!({"temperature": null, "stop": null, "tools": null, "tool_choice": null, "logit_bias": null, "n": null});
        assert!(chat(&nulls).is_ok());
        let nothing = json!({"min_p": 0, "min_tokens": 0.0, "bad_words": [], "structured_outputs": null,
            "skip_special_tokens": true, "add_generation_prompt": true});
        assert!(chat(&nothing).is_ok());
    }

    #[test]
    fn tools_are_shown_even_where_none_may_be_called() {
        let read = |choice: &str| {
            let body = json!({"messages": [{}], "tools": [{"type": "function"}], "tool_choice": choice});
            let (request, _) = parse::<ChatRequest>(body.to_string().as_bytes()).unwrap();
            (request.shown_tools().is_some(), request.may_call_tools())
        };
        assert_eq!(read("auto"), (true, true));
        assert_eq!(read("none"), (true, false));
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (more, words) in [
            (json!({"temperature": -1.0}), "temperature must be non-negative, got -1"),
            (json!({"temperature": "hot"}), "temperature: invalid type: string"),
            (json!({"top_p": 2.0}), "top_p must be in (0, 1], got 2"),
            (json!({"max_tokens": 0}), "max_tokens must be at least 1, got 0"),
            (json!({"n": 0}), "n must be from 1 to"),
            (json!({"messages": []}), "at least one message"),
            (json!({"top_logprobs": 3}), "`logprobs` must be set"),
            (json!({"logprobs": true, "top_logprobs": 50}), "greater than max allowed: 20"),
            (json!({"tool_choice": "required"}), "`required`"),
            (json!({"response_format": {"type": "json_object"}}), "structured output"),
            (json!({"logit_bias": {"5": 1}}), "a bias"),
            (json!({"presence_penalty": 0.5}), "presence_penalty"),
            (json!({"stop": [1]}), "a list of texts"),
            (json!({"min_p": 0.1}), "min_p: the value 0.1 is not supported"),
            (json!({"structured_outputs": {"choice": ["a"]}}), "structured_outputs"),
            (json!({"continue_final_message": true}), "continue_final_message"),
            (json!({"skip_special_tokens": false}), "skip_special_tokens"),
        ] {
            let message = chat(&more).unwrap_err();
            assert!(message.contains(words), "{more}: {message}");
        }
        assert!(
            parse::<ChatRequest>(b"{").unwrap_err().body()["error"]["message"]
                .as_str()
                .unwrap()
                .contains("Invalid JSON")
        );
    }
}
