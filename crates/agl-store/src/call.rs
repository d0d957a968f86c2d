//! Model calls: the tokens are taken out once, when the call is recorded, so that no view parses a big body again.

use std::sync::Arc;

use agl_protocol::RawJson;
use agl_protocol::pyjson::{self, Integer, Spelling, Value};
use bytes::Bytes;

use crate::ModelServer;
use crate::rollout::value_of;

/// Token ids as a model server reported them.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenIds {
    /// A list of token ids.
    Tokens(Vec<u32>),
    /// Something else (`null`, text, negative numbers): shown as it came, of no use for training.
    Odd(RawJson),
}

impl Default for TokenIds {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

impl TokenIds {
    /// Reads the JSON value at `prompt_token_ids` or `token_ids`.
    pub fn of(value: &Value) -> Self {
        let tokens = value.as_list().and_then(|items| items.iter().map(token_id).collect::<Option<Vec<u32>>>());
        tokens.map_or_else(|| Self::Odd(value.to_raw()), Self::Tokens)
    }

    /// Whether there is nothing here: an empty list, `null`, or what else Python calls false.
    pub fn is_nothing(&self) -> bool {
        match self {
            Self::Tokens(tokens) => tokens.is_empty(),
            Self::Odd(raw) => !value_of(raw).is_truthy(),
        }
    }

    /// The tokens; none if these are odd.
    pub fn tokens(&self) -> &[u32] {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Odd(_) => &[],
        }
    }
}

impl TokenIds {
    /// The ids as JSON values; `None` if they are no list.
    fn list(&self) -> Option<Vec<Value>> {
        match self {
            Self::Tokens(tokens) => Some(tokens.iter().map(|id| Value::Int(Integer::from(i64::from(*id)))).collect()),
            Self::Odd(raw) => items(&value_of(raw)),
        }
    }
}

/// What Python's `for item in value` goes through; `None` where it raises.
fn items(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::List(items) => Some(items.clone()),
        Value::Str(text) => Some(text.chars().map(|c| Value::Str(c.to_string())).collect()),
        Value::Dict(dict) => Some(dict.keys().cloned().map(Value::Str).collect()),
        _ => None,
    }
}

fn token_id(value: &Value) -> Option<u32> {
    match value {
        Value::Int(number) => number.digits().parse().ok(),
        _ => None,
    }
}

/// What the triplet view shows of a call's tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallTokens {
    /// Ids of the prompt.
    pub prompt: TokenIds,
    /// Ids that were sampled (first choice).
    pub response: TokenIds,
    /// One log-probability a sampled token, if all of them can be read as finite numbers.
    pub log_probs: Option<Vec<f64>>,
}

impl CallTokens {
    /// Whether any token was sampled.
    pub fn has_response(&self) -> bool {
        !self.response.is_nothing()
    }

    /// Whether this call repeats or continues an earlier one, that is, its prompt is the earlier prompt, or begins with
    /// the earlier prompt and response. `None` if their ids are no lists and can't be compared.
    pub(crate) fn continues(&self, earlier: &Self) -> Option<bool> {
        fn check<T: PartialEq>(prompt: &[T], before: &[T], sampled: &[T]) -> bool {
            prompt == before || prompt.strip_prefix(before).is_some_and(|rest| rest.starts_with(sampled))
        }
        if let (TokenIds::Tokens(prompt), TokenIds::Tokens(before), TokenIds::Tokens(sampled)) =
            (&self.prompt, &earlier.prompt, &earlier.response)
        {
            return Some(check(prompt, before, sampled));
        }
        Some(check(&self.prompt.list()?, &earlier.prompt.list()?, &earlier.response.list()?))
    }

    /// What makes two calls the same question: the prompt's ids, if they are a list of integers and not empty.
    pub(crate) fn prompt_key(&self) -> Option<PromptKey<'_>> {
        match &self.prompt {
            TokenIds::Tokens(tokens) => (!tokens.is_empty()).then_some(PromptKey::Tokens(tokens)),
            TokenIds::Odd(raw) => {
                let ids = value_of(raw);
                let ids = ids.as_list().filter(|ids| !ids.is_empty())?;
                ids.iter().all(|id| matches!(id, Value::Int(_))).then_some(PromptKey::Odd(raw.text()))
            }
        }
    }

    /// Reads the answer of a model server: an object, or the list of chunks that old recordings hold.
    /// Whatever is missing or odd yields no tokens, never an error.
    pub fn of_response(response: &Value) -> Self {
        match response {
            Value::Dict(_) => Self::of_answer(response),
            Value::List(chunks) => Self::of_chunks(chunks),
            _ => Self::default(),
        }
    }

    fn of_answer(answer: &Value) -> Self {
        let prompt = answer.get("prompt_token_ids");
        let choice = answer.get("choices").and_then(Value::as_list).and_then(<[Value]>::first);
        let Some(choice) = choice.filter(|choice| matches!(choice, Value::Dict(_))) else {
            return Self { prompt: prompt.map(TokenIds::of).unwrap_or_default(), ..Self::default() };
        };
        let prompt = prompt.filter(|ids| ids.is_truthy()).or_else(|| choice.get("prompt_token_ids"));
        Self {
            prompt: prompt.map(TokenIds::of).unwrap_or_default(),
            response: choice.get("token_ids").map(TokenIds::of).unwrap_or_default(),
            log_probs: choice.get("logprobs").and_then(log_probs),
        }
    }

    fn of_chunks(chunks: &[Value]) -> Self {
        let prompt = chunks.iter().filter_map(|chunk| chunk.get("prompt_token_ids")).find(|ids| ids.is_truthy());
        let first_choice = |chunk: &Value| chunk.get("choices")?.as_list()?.first()?.get("token_ids").cloned();
        let sampled = chunks.iter().filter_map(first_choice);
        let ids: Vec<Value> = sampled.filter_map(|ids| items(&ids)).flatten().collect();
        Self {
            prompt: prompt.map(TokenIds::of).unwrap_or_default(),
            response: TokenIds::of(&Value::List(ids)),
            log_probs: None,
        }
    }
}

/// The log-probabilities of a choice: chat's `content[].logprob`, else completions' `token_logprobs[]`.
/// `None` unless every one is a finite number.
fn log_probs(logprobs: &Value) -> Option<Vec<f64>> {
    let finite = |value: &Value| pyjson::python_float(value).filter(|number| number.is_finite());
    if let Some(content) = logprobs.get("content").and_then(Value::as_list) {
        return content.iter().map(|item| item.get("logprob").and_then(finite)).collect();
    }
    logprobs.get("token_logprobs").and_then(Value::as_list)?.iter().map(finite).collect()
}

/// The ids of a prompt, for finding calls that ask the same.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum PromptKey<'a> {
    Tokens(&'a [u32]),
    Odd(&'a str),
}

/// Mixture-of-experts routes of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Routes {
    /// The call has none.
    #[default]
    None,
    /// As the model server sent them.
    Kept(RawJson),
    /// Dropped, since a later call of the same trajectory holds them all.
    Superseded,
}

impl Routes {
    /// The routes, if they are here.
    pub fn kept(&self) -> Option<&RawJson> {
        match self {
            Self::Kept(routes) => Some(routes),
            Self::None | Self::Superseded => None,
        }
    }

    pub(crate) fn supersede(&mut self) {
        *self = Self::Superseded;
    }
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// The model server answered.
    Ok,
    /// The model server answered with an error, or with something that is no JSON object.
    Error,
    /// A stream broke before its end, or held an error.
    StreamError,
    /// The model server gave the answer up half-way (finish reason `abort`), since it was paused.
    Aborted,
}

impl CallStatus {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::StreamError => "stream_error",
            Self::Aborted => "aborted",
        }
    }

    /// Whether the tokens of such a call are an answer of the policy, and not a piece of one.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Ok | Self::Error)
    }
}

/// A model call as the gateway recorded it.
#[derive(Clone, Debug)]
pub struct ModelCall {
    /// Who answered.
    pub server: Arc<ModelServer>,
    /// What was sent: a JSON object.
    pub request: Bytes,
    /// What came back: a JSON object; `{}` if it was none.
    pub response: Bytes,
    /// From sending the first attempt to the last byte of the answer, milliseconds.
    pub latency_ms: f64,
    /// HTTP status of the answer.
    pub http_status: u16,
    /// How it went.
    pub status: CallStatus,
    /// Attempts before the one that was answered.
    pub retry_count: u32,
    /// Expert routes, taken out of the answer.
    pub routes: Routes,
    /// The answer's `usage`, if it is an object.
    pub usage: Option<RawJson>,
    /// The first choice's `finish_reason`, if it is a word.
    pub finish_reason: Option<String>,
    /// The answer's `error`, if it has one.
    pub error: Option<RawJson>,
    /// The tokens.
    pub tokens: CallTokens,
}

/// A model call that somebody posted, and what the triplet view shows of it.
#[derive(Clone, Debug)]
pub struct PostedCall {
    pub(crate) data: RawJson,
    pub(crate) tokens: CallTokens,
    pub(crate) routes: Routes,
    pub(crate) model: RawJson,
    pub(crate) version: RawJson,
    pub(crate) http_status: Option<RawJson>,
    pub(crate) status: Option<RawJson>,
    pub(crate) error: Option<RawJson>,
}

impl PostedCall {
    pub(crate) fn read(data: RawJson) -> Self {
        let fields = value_of(&data);
        let raw = |value: Option<&Value>| value.map(Value::to_raw);
        let server = fields.get("server");
        let response = fields.get("response");
        let routes = fields.get("routed_experts").filter(|routes| **routes != Value::Null);
        Self {
            tokens: response.map(CallTokens::of_response).unwrap_or_default(),
            routes: routes.map_or(Routes::None, |routes| Routes::Kept(routes.to_raw())),
            model: raw(server.and_then(|server| server.get("model"))).unwrap_or_default(),
            version: raw(server.and_then(|server| server.get("version"))).unwrap_or_default(),
            http_status: raw(fields.get("http_status")),
            status: raw(fields.get("status")),
            error: raw(response.and_then(|response| response.get("error"))),
            data,
        }
    }

    /// The data without its `routed_experts`.
    pub(crate) fn data_without_routes(&self) -> String {
        let mut fields = value_of(&self.data);
        if let Value::Dict(dict) = &mut fields {
            dict.shift_remove("routed_experts");
        }
        let mut text = String::new();
        fields.write(&mut text, Spelling::Pydantic);
        text
    }

    pub(crate) fn supersede_routes(&mut self) {
        self.routes.supersede();
        self.data = RawJson::from_text(self.data_without_routes()).unwrap_or_else(|_| RawJson::empty_object());
    }
}
