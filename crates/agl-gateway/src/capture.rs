//! What training needs of an answer, taken from a copy of its bytes in one pass; the agent gets the bytes themselves.

use std::ops::Range;

use agl_protocol::RawJson;
use agl_protocol::pyjson::{self, Value};
use agl_store::{CallStatus, CallTokens, Routes, TokenIds};
use bytes::Bytes;
use http::StatusCode;

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

impl Capture {
    /// Reads an answer. Nothing in it can make this fail: what can't be understood is not taken.
    pub fn read(http_status: StatusCode, body: &Bytes) -> Self {
        let text = std::str::from_utf8(body).ok();
        let read = text.and_then(|text| {
            let mut reader = Reader::default();
            let mut scanner = Scanner::new(text);
            scanner.document(|scanner| reader.answer(scanner)).ok()?;
            Some((text, reader, scanner.non_finite))
        });
        match read {
            Some((text, reader, non_finite)) => reader.finish(http_status, body, text, &non_finite),
            None => Self::not_an_object(http_status, body),
        }
    }

    fn not_an_object(http_status: StatusCode, body: &Bytes) -> Self {
        let no_content = matches!(http_status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) && body.is_empty();
        Self {
            answer: body.clone(),
            response: Bytes::from_static(b"{}"),
            status: if no_content { CallStatus::Ok } else { CallStatus::Error },
            tokens: CallTokens::default(),
            routes: Routes::None,
            usage: None,
            finish_reason: None,
            error: None,
        }
    }
}

#[derive(Default)]
struct Reader {
    prompt: Option<TokenIds>,
    choice: Choice,
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
                    self.choice = Choice::default();
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
            self.choice = choice;
        }
        Ok(())
    }

    fn finish(self, http_status: StatusCode, body: &Bytes, text: &str, non_finite: &[Range<usize>]) -> Capture {
        let Self { prompt, choice, usage, error, routes } = self;
        let cuts: Vec<Range<usize>> = routes.iter().map(|found| with_comma(text, &found.member)).collect();
        let answer = if cuts.is_empty() { body.clone() } else { without(text, &cuts, &[]).into() };
        let response = if non_finite.is_empty() { answer.clone() } else { without(text, &cuts, non_finite).into() };
        let top_is_empty = matches!(&prompt, None | Some(TokenIds::Tokens(_)))
            && prompt.as_ref().is_none_or(|ids| ids.tokens().is_empty());
        let null = |ids: &TokenIds| matches!(ids, TokenIds::Odd(raw) if raw.text() == "null");
        let use_choice = top_is_empty || prompt.as_ref().is_some_and(null);
        let prompt = if use_choice && choice.prompt.is_some() { choice.prompt } else { prompt };
        let kept = routes.into_iter().map(|found| found.value).find(|value| *value != Value::Null);
        Capture {
            answer,
            response,
            status: if http_status.as_u16() < 400 { CallStatus::Ok } else { CallStatus::Error },
            tokens: CallTokens {
                prompt: prompt.unwrap_or_default(),
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
        let span = scanner.skip()?;
        match scanner.text(span).parse() {
            Ok(id) => ids.push(id),
            Err(_) => odd = true,
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
