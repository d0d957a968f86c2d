//! What training needs of an answer, taken from a copy of its bytes in one pass; the agent gets the bytes themselves.

use std::borrow::Cow;
use std::ops::Range;

use agl_protocol::RawJson;
use agl_protocol::pyjson::{self, Value};
use agl_store::{CallStatus, CallTokens, Routes, TokenIds};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use crate::scan::{ScanError, Scanner};

/// An answer, understood as far as it can be.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// What the agent gets: the model server's bytes, without expert routes if there were any.
    pub answer: Bytes,
    /// What the event holds: the answer as valid JSON; `{}` if it is no JSON object.
    pub response: Bytes,
    /// Whether it is an answer that a model server gives when all went well.
    pub status: CallStatus,
    /// The tokens of the first choice.
    pub tokens: CallTokens,
    /// Expert routes of the first choice that has any.
    pub routes: Routes,
    /// `usage`, if it is an object.
    pub usage: Option<RawJson>,
    /// The first choice's `finish_reason`, if it is a word.
    pub finish_reason: Option<String>,
    /// `error`, if there is one.
    pub error: Option<RawJson>,
}

/// The answer says that it is JSON, but is no JSON object, so that neither the agent nor training can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("model server's answer is not a JSON object, though its content type says JSON")]
pub struct NotAnObject;

impl Capture {
    /// Reads an answer. JSON is recognised by what it is, whatever its type says; an answer that does not say JSON and is
    /// none is kept as an error without a response.
    pub fn read(http_status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Result<Self, NotAnObject> {
        let read = pyjson::decode(body).ok().and_then(|text| {
            let mut reader = Reader::default();
            let mut scanner = Scanner::new(&text);
            scanner.document(|scanner| reader.answer(scanner)).ok()?;
            let non_finite = scanner.non_finite;
            let whole = match &text {
                Cow::Borrowed(text) => body.slice_ref(text.as_bytes()),
                Cow::Owned(text) => Bytes::from(text.clone()),
            };
            Some(reader.finish(http_status, body, &whole, &text, &non_finite))
        });
        let no_content = body.is_empty() && matches!(http_status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match read {
            Some(capture) => Ok(capture),
            None if no_content => Ok(Self::without_response(body, CallStatus::Ok)),
            None if says_json(headers) => Err(NotAnObject),
            None => Ok(Self::without_response(body, CallStatus::Error)),
        }
    }

    fn without_response(body: &Bytes, status: CallStatus) -> Self {
        Self {
            answer: body.clone(),
            response: Bytes::from_static(b"{}"),
            status,
            tokens: CallTokens::default(),
            routes: Routes::None,
            usage: None,
            finish_reason: None,
            error: None,
        }
    }
}

fn says_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

#[derive(Default)]
struct Reader {
    prompt: Option<TokenIds>,
    choice: Option<Choice>,
    usage: Option<RawJson>,
    error: Option<RawJson>,
    routes: Vec<RoutesFound>,
}

/// What is taken of the first choice.
#[derive(Default)]
struct Choice {
    prompt: Option<TokenIds>,
    response: Option<TokenIds>,
    log_probs: Option<Vec<f64>>,
    finish_reason: Option<String>,
}

struct RoutesFound {
    member: Range<usize>,
    value: Value,
}

type Scan<T> = Result<T, ScanError>;

impl Reader {
    fn answer(&mut self, scanner: &mut Scanner<'_>) -> Scan<()> {
        scanner.object(|scanner, key| {
            match key {
                "prompt_token_ids" => self.prompt = Some(token_ids(scanner)?),
                "choices" if scanner.peek() == Some(b'[') => {
                    self.choice = None;
                    scanner.array(|scanner, index| self.choice(scanner, index))?;
                }
                "usage" if scanner.peek() == Some(b'{') => self.usage = Some(raw(scanner)?),
                "error" => self.error = Some(raw(scanner)?),
                _ => {
                    scanner.skip()?;
                }
            }
            Ok(false)
        })?;
        Ok(())
    }

    fn choice(&mut self, scanner: &mut Scanner<'_>, index: usize) -> Scan<()> {
        if scanner.peek() != Some(b'{') {
            return scanner.skip().map(drop);
        }
        let mut choice = Choice::default();
        let mut values = Vec::new();
        let routes = scanner.object(|scanner, key| {
            match key {
                "routed_experts" => {
                    let span = scanner.skip()?;
                    values.push(scanner.value(span));
                    return Ok(true);
                }
                "prompt_token_ids" if index == 0 => choice.prompt = Some(token_ids(scanner)?),
                "token_ids" if index == 0 => choice.response = Some(token_ids(scanner)?),
                "logprobs" if index == 0 => choice.log_probs = log_probs(scanner)?,
                "finish_reason" if index == 0 && scanner.peek() == Some(b'"') => {
                    choice.finish_reason = Some(scanner.string()?.into_owned()).filter(|reason| !reason.is_empty());
                }
                _ => {
                    scanner.skip()?;
                }
            }
            Ok(false)
        })?;
        let found = routes.into_iter().zip(values);
        self.routes.extend(found.map(|(member, value)| RoutesFound { member: member.span, value }));
        if index == 0 {
            self.choice = Some(choice);
        }
        Ok(())
    }

    /// Puts together what was found. `body` is what came, `whole` its JSON without byte order mark, `text` the same.
    fn finish(
        self,
        http_status: StatusCode,
        body: &Bytes,
        whole: &Bytes,
        text: &str,
        non_finite: &[Range<usize>],
    ) -> Capture {
        let Self { prompt, choice, usage, error, routes } = self;
        // The event keeps the routes of later choices where they stand; the agent gets none.
        let first = routes.iter().position(|found| found.value != Value::Null).unwrap_or(routes.len());
        let cuts: Vec<Range<usize>> = routes.iter().map(|found| with_comma(text, &found.member)).collect();
        let kept_cuts = &cuts[..cuts.len().min(first + 1)];
        let answer = if cuts.is_empty() { body.clone() } else { without(text, &cuts, &[]).into() };
        let response = match (kept_cuts, non_finite) {
            ([], []) => whole.clone(),
            _ => without(text, kept_cuts, non_finite).into(),
        };
        // The top level's ids (chat), else those of the choice (completions).
        let prompt = prompt.filter(|ids| !ids.is_nothing() || choice.is_none());
        let choice = choice.unwrap_or_default();
        let kept = routes.into_iter().map(|found| found.value).find(|value| *value != Value::Null);
        Capture {
            answer,
            response,
            status: if http_status.as_u16() < 400 { CallStatus::Ok } else { CallStatus::Error },
            tokens: CallTokens {
                prompt: prompt.or(choice.prompt).unwrap_or_default(),
                response: choice.response.unwrap_or_default(),
                log_probs: choice.log_probs,
            },
            routes: kept.map_or(Routes::None, |routes| Routes::Kept(routes.to_raw())),
            usage,
            finish_reason: choice.finish_reason,
            error,
        }
    }
}

/// A list of token ids, or whatever else stands there.
fn token_ids(scanner: &mut Scanner<'_>) -> Scan<TokenIds> {
    if scanner.peek() != Some(b'[') {
        return scanner.skip().map(|span| TokenIds::of(&scanner.value(span)));
    }
    let mut ids = Vec::new();
    let mut odd = false;
    let start = scanner.position();
    scanner.array(|scanner, _| {
        if let Some(id) = scanner.token_id() {
            ids.push(id);
        } else {
            scanner.skip()?;
            odd = true;
        }
        Ok(())
    })?;
    Ok(if odd { TokenIds::of(&scanner.value(start..scanner.position())) } else { TokenIds::Tokens(ids) })
}

/// A choice's log-probabilities: chat's `content[].logprob`, else completions' `token_logprobs[]`. `None` unless every
/// one is a finite number.
fn log_probs(scanner: &mut Scanner<'_>) -> Scan<Option<Vec<f64>>> {
    if scanner.peek() != Some(b'{') {
        return scanner.skip().map(|_| None);
    }
    let mut content = None;
    let mut flat = None;
    scanner.object(|scanner, key| {
        match key {
            "content" if scanner.peek() == Some(b'[') => content = Some(numbers(scanner, content_item)?),
            "content" => {
                scanner.skip()?;
                content = None;
            }
            "token_logprobs" if scanner.peek() == Some(b'[') => flat = Some(numbers(scanner, finite)?),
            _ => {
                scanner.skip()?;
            }
        }
        Ok(false)
    })?;
    Ok(content.or(flat).flatten())
}

/// Every item of an array as a number; `None` if one has none.
fn numbers(scanner: &mut Scanner<'_>, item: fn(&mut Scanner<'_>) -> Scan<Option<f64>>) -> Scan<Option<Vec<f64>>> {
    let mut numbers = Some(Vec::new());
    scanner.array(|scanner, _| {
        match (item(scanner)?, &mut numbers) {
            (Some(number), Some(numbers)) => numbers.push(number),
            _ => numbers = None,
        }
        Ok(())
    })?;
    Ok(numbers)
}

fn content_item(scanner: &mut Scanner<'_>) -> Scan<Option<f64>> {
    if scanner.peek() != Some(b'{') {
        return scanner.skip().map(|_| None);
    }
    let mut number = None;
    scanner.object(|scanner, key| {
        if key == "logprob" {
            number = finite(scanner)?;
        } else {
            scanner.skip()?;
        }
        Ok(false)
    })?;
    Ok(number)
}

/// A value as Python's `float()` reads it, if it is finite.
fn finite(scanner: &mut Scanner<'_>) -> Scan<Option<f64>> {
    let number = if matches!(scanner.peek(), Some(b'-' | b'0'..=b'9' | b'N' | b'I')) {
        scanner.number()?.parse().ok()
    } else {
        let span = scanner.skip()?;
        pyjson::python_float(&scanner.value(span))
    };
    Ok(number.filter(|number: &f64| number.is_finite()))
}

fn raw(scanner: &mut Scanner<'_>) -> Scan<RawJson> {
    let span = scanner.skip()?;
    // Half surrogates, which `Value` refuses, are still JSON.
    let text = scanner.text(span.clone());
    Ok(RawJson::from_text(text.to_owned()).unwrap_or_else(|_| scanner.value(span).to_raw()))
}

/// A member and the comma that parts it from its neighbour.
fn with_comma(text: &str, member: &Range<usize>) -> Range<usize> {
    let space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
    let after = text[member.end..].trim_start_matches(space);
    if let Some(rest) = after.strip_prefix(',') {
        return member.start..text.len() - rest.trim_start_matches(space).len();
    }
    let before = text[..member.start].trim_end_matches(space);
    before.strip_suffix(',').map_or(member.start, str::len)..member.end
}

/// The text without the cut spans, and with `null` in place of the others. Spans are sorted; those inside a cut vanish.
fn without(text: &str, cuts: &[Range<usize>], nulls: &[Range<usize>]) -> String {
    let mut edits: Vec<(&Range<usize>, &str)> = cuts.iter().map(|span| (span, "")).collect();
    edits.extend(nulls.iter().map(|span| (span, "null")));
    edits.sort_by_key(|(span, _)| (span.start, std::cmp::Reverse(span.end)));
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (span, replacement) in edits {
        if span.start >= copied {
            out.push_str(&text[copied..span.start]);
            out.push_str(replacement);
            copied = span.end;
        }
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &str) -> Capture {
        Capture::read(StatusCode::OK, &HeaderMap::new(), &Bytes::from(body.to_owned())).unwrap()
    }

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn takes_tokens_of_a_chat_answer() {
        let body = r#"{"id":"x","choices":[{"index":0,"message":{"content":"hi"},"logprobs":{"content":[
            {"token":"h","logprob":-0.25,"bytes":[104],"top_logprobs":[{"logprob":-9}]},{"token":"i","logprob":-1}]},
            "finish_reason":"stop","token_ids":[7,8]},{"token_ids":[9]}],"usage":{"total_tokens":5},"prompt_token_ids":[1,2,3]}"#;
        let capture = read(body);
        assert_eq!(capture.tokens.prompt, TokenIds::Tokens(vec![1, 2, 3]));
        assert_eq!(capture.tokens.response, TokenIds::Tokens(vec![7, 8]));
        assert_eq!(capture.tokens.log_probs, Some(vec![-0.25, -1.0]));
        assert_eq!(capture.finish_reason.as_deref(), Some("stop"));
        assert_eq!(capture.usage.unwrap().text(), r#"{"total_tokens":5}"#);
        assert_eq!((text(&capture.answer), text(&capture.response)), (body, body));
    }

    #[test]
    fn takes_tokens_of_a_completion() {
        let capture = read(
            r#"{"choices":[{"text":"hi","logprobs":{"tokens":["h"],"token_logprobs":[-0.5]},"token_ids":[7],"prompt_token_ids":[1]}]}"#,
        );
        assert_eq!(capture.tokens.prompt, TokenIds::Tokens(vec![1]));
        assert_eq!(capture.tokens.response, TokenIds::Tokens(vec![7]));
        assert_eq!(capture.tokens.log_probs, Some(vec![-0.5]));
    }

    #[test]
    fn one_log_prob_that_is_no_number_spoils_them_all() {
        let log_probs =
            |logprobs: &str| read(&format!(r#"{{"choices":[{{"logprobs":{logprobs}}}]}}"#)).tokens.log_probs;
        assert_eq!(log_probs(r#"{"content":[{"logprob":-1},{"logprob":NaN}]}"#), None);
        assert_eq!(log_probs(r#"{"content":[{"logprob":-1},{"logprob":null}]}"#), None);
        assert_eq!(log_probs(r#"{"content":[{"logprob":-1},{}]}"#), None);
        assert_eq!(log_probs(r#"{"content":[{"logprob":" -1.5 "}]}"#), Some(vec![-1.5]));
        assert_eq!(log_probs(r#"{"content":[],"token_logprobs":[-1]}"#), Some(vec![]));
        assert_eq!(log_probs(r#"{"content":null,"token_logprobs":[-1]}"#), Some(vec![-1.0]));
        assert_eq!(log_probs("null"), None);
    }

    #[test]
    fn numbers_that_json_has_not_reach_the_agent_but_not_the_event() {
        let capture = read(r#"{"a":NaN,"b":[-Infinity,1e999],"usage":{"x":NaN}}"#);
        assert_eq!(text(&capture.answer), r#"{"a":NaN,"b":[-Infinity,1e999],"usage":{"x":NaN}}"#);
        assert_eq!(text(&capture.response), r#"{"a":null,"b":[null,null],"usage":{"x":null}}"#);
        assert_eq!(capture.usage.unwrap().text(), r#"{"x":null}"#);
    }

    #[test]
    fn expert_routes_are_for_the_event_alone() {
        let capture = read(
            r#"{"choices":[{"routed_experts":null , "a":1},{"b":2, "routed_experts":[[1]]},{"routed_experts":[[2]]}]}"#,
        );
        assert_eq!(text(&capture.answer), r#"{"choices":[{"a":1},{"b":2},{}]}"#);
        assert_eq!(text(&capture.response), r#"{"choices":[{"a":1},{"b":2},{"routed_experts":[[2]]}]}"#);
        assert_eq!(capture.routes.kept().unwrap().text(), "[[1]]");
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        let json: HeaderMap = [(header::CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect();
        let read = |status: StatusCode, headers: &HeaderMap, body: &'static str| {
            Capture::read(status, headers, &Bytes::from_static(body.as_bytes())).map(|capture| capture.status)
        };
        assert_eq!(read(StatusCode::OK, &json, "{bad"), Err(NotAnObject));
        assert_eq!(read(StatusCode::OK, &json, "[1]"), Err(NotAnObject));
        assert_eq!(read(StatusCode::OK, &HeaderMap::new(), "<html>"), Ok(CallStatus::Error));
        assert_eq!(read(StatusCode::OK, &HeaderMap::new(), "{}"), Ok(CallStatus::Ok));
        assert_eq!(read(StatusCode::NO_CONTENT, &json, ""), Ok(CallStatus::Ok));
        assert_eq!(read(StatusCode::BAD_REQUEST, &json, r#"{"error":{}}"#), Ok(CallStatus::Error));
    }

    /// JSON-like answers, with what may be missing, null or odd.
    fn answers() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::{Value, json};
        let odd = prop_oneof![
            Just(json!(null)),
            Just(json!("x")),
            Just(json!([true])),
            Just(json!({"a": 1})),
            Just(json!([-1]))
        ];
        let ids = prop_oneof![3 => prop::collection::vec(any::<u32>(), 0..5).prop_map(Value::from), 1 => odd.clone()];
        let number = prop_oneof![5 => (-30.0..0.0_f64).prop_map(Value::from), 1 => odd.clone()];
        let items = prop::collection::vec(number.prop_map(|number| json!({"token": "t", "logprob": number})), 0..4);
        let log_probs = prop_oneof![3 => items.prop_map(|content| json!({"content": content})), 1 => odd.clone()];
        let choice = (ids.clone(), log_probs, ids.clone(), any::<bool>()).prop_map(|(ids, log_probs, prompt, own)| {
            let mut choice = json!({"token_ids": ids, "logprobs": log_probs});
            if own {
                choice["prompt_token_ids"] = prompt;
            }
            choice
        });
        let choices = prop::collection::vec(prop_oneof![5 => choice, 1 => odd.clone()], 0..3).prop_map(Value::from);
        (ids, prop_oneof![8 => choices, 1 => odd], any::<bool>()).prop_map(|(prompt, choices, own)| {
            let mut answer = json!({"choices": choices});
            if own {
                answer["prompt_token_ids"] = prompt;
            }
            answer
        })
    }

    proptest! {
        /// The view that posted events get, which reads a tree, is the oracle.
        #[test]
        fn agrees_with_a_reading_of_the_tree(answer in answers()) {
            let body = answer.to_string();
            let oracle = CallTokens::of_response(&pyjson::parse(body.as_bytes()).unwrap());
            prop_assert_eq!(read(&body).tokens, oracle, "{}", body);
        }
    }
}
