//! Text with `${…}` in it as data: `http://${host}:${oc.env:PORT,8080}`.
//!
//! Grammar: <https://omegaconf.readthedocs.io/en/2.3_branch/grammar.html>. Only backslashes right before `${` (and, inside
//! quotes, before the quote) mean something: `\${a}` is the text `${a}`, `\\${a}` is a backslash and the value of `a`.

use winnow::Parser;
use winnow::combinator::{alt, cut_err, delimited, eof, preceded, repeat, separated, terminated};
use winnow::error::{ContextError, ErrMode, StrContext, StrContextValue};
use winnow::token::{any, take_while};

use crate::override_lexer::{self, Kind, SPACE};
use crate::value::Value;

/// Deepest nesting of `${…}`, lists and maps in one text.
pub const MAX_INTERPOLATION_DEPTH: usize = 64;

/// A piece of a text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    /// As it is.
    Text(String),
    /// To be replaced.
    Interpolation(Interpolation),
}

/// What is between `${` and `}`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Interpolation {
    /// `${a.b[c]}`; `up` counts the dots in front: none starts at the root, one at the map around the value.
    Node { up: usize, steps: Vec<Name> },
    /// `${oc.env:PORT,8080}`
    Resolver { name: Vec<Name>, arguments: Vec<Argument> },
}

/// One step of a path, or one part of a resolver's name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Name {
    Plain(String),
    Nested(Interpolation),
}

/// An argument of a resolver.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Argument {
    /// Null, true/false or a number.
    Scalar(Value),
    /// Text without quotes; a lone interpolation keeps its type.
    Parts(Vec<Part>),
    /// Always text.
    Quoted(Vec<Part>),
    List(Vec<Argument>),
    Map(Vec<(Argument, Argument)>),
}

type Result<T> = winnow::ModalResult<T>;

/// Parses a text; the error says what is wrong and where.
pub(crate) fn parse(input: &str) -> std::result::Result<Vec<Part>, String> {
    check_depth(input)?;
    terminated(|input: &mut &str| text(input, None), eof)
        .parse(input)
        .map_err(|error| problem(input, error.offset(), error.inner()))
}

/// Parses what `oc.decode` reads: one value, as in an argument.
pub(crate) fn parse_value(input: &str) -> std::result::Result<Argument, String> {
    check_depth(input)?;
    terminated(argument, eof).parse(input).map_err(|error| problem(input, error.offset(), error.inner()))
}

/// Text up to the end, or up to the closing quote (which stays).
fn text(input: &mut &str, quote: Option<char>) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    loop {
        let backslashes = take_while(0.., '\\').parse_next(input)?.len();
        let literal = |count| "\\".repeat(count);
        if input.starts_with("${") {
            plain.push_str(&literal(backslashes / 2));
            if backslashes % 2 == 1 {
                plain.push_str("${");
                *input = &input[2..];
            } else {
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Interpolation(interpolation(input)?));
            }
            continue;
        }
        match (input.chars().next(), quote) {
            (None, _) => {
                plain.push_str(&literal(backslashes));
                break;
            }
            (Some(next), Some(quote)) if next == quote => {
                plain.push_str(&literal(backslashes / 2));
                if backslashes % 2 == 0 {
                    break;
                }
                plain.push(any.parse_next(input)?);
            }
            (Some(_), _) => {
                plain.push_str(&literal(backslashes));
                plain.push(any.parse_next(input)?);
            }
        }
    }
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

fn spaces(input: &mut &str) -> Result<()> {
    take_while(0.., SPACE).void().parse_next(input)
}

/// `${a.b}` or `${name:arguments}`
fn interpolation(input: &mut &str) -> Result<Interpolation> {
    let before = *input;
    cut_err(("${", spaces)).parse_next(input)?;
    let up = take_while(0.., '.').parse_next(input)?.len();
    let first = cut_err(step.context(expected("a key"))).parse_next(input)?;
    let mut steps = vec![first];
    let more: Vec<Name> =
        repeat(0.., alt((preceded('.', cut_err(name.context(expected("a key")))), bracketed))).parse_next(input)?;
    steps.extend(more);
    spaces(input)?;
    // The name of a resolver has neither dots in front nor brackets.
    let is_path = up > 0 || before[..before.len() - input.len()].contains('[');
    if input.starts_with('}') || is_path {
        cut_err('}'.context(expected("`}`"))).parse_next(input)?;
        return Ok(Interpolation::Node { up, steps });
    }
    cut_err(':'.context(expected("`}` or `:`"))).parse_next(input)?;
    spaces(input)?;
    let arguments = arguments(input, Kind::BraceClose)?;
    cut_err(token(Kind::BraceClose).context(expected("`,` or `}`"))).parse_next(input)?;
    Ok(Interpolation::Resolver { name: steps, arguments })
}

fn step(input: &mut &str) -> Result<Name> {
    alt((bracketed, name)).parse_next(input)
}

fn bracketed(input: &mut &str) -> Result<Name> {
    delimited('[', cut_err(name), cut_err(']'.context(expected("`]`")))).parse_next(input)
}

fn name(input: &mut &str) -> Result<Name> {
    if input.starts_with("${") {
        return interpolation(input).map(Name::Nested);
    }
    let plain = |character: char| !"\\{}()[]:. \t'\"".contains(character);
    take_while(1.., plain).map(|name: &str| Name::Plain(name.to_owned())).parse_next(input)
}

/// Arguments with commas between; an empty one is the empty text.
fn arguments(input: &mut &str, end: Kind) -> Result<Vec<Argument>> {
    if next_is(input, end) {
        return Ok(Vec::new());
    }
    let maybe_empty = |input: &mut &str| {
        if next_is(input, Kind::Comma) || next_is(input, end) {
            return Ok(Argument::Quoted(Vec::new()));
        }
        argument(input)
    };
    separated(1.., maybe_empty, token(Kind::Comma)).parse_next(input)
}

fn argument(input: &mut &str) -> Result<Argument> {
    match override_lexer::argument_token(input).map(|token| token.kind) {
        Some(Kind::BracketOpen) => {
            token(Kind::BracketOpen).parse_next(input)?;
            let items = arguments(input, Kind::BracketClose)?;
            cut_err(token(Kind::BracketClose).context(expected("`,` or `]`"))).parse_next(input)?;
            Ok(Argument::List(items))
        }
        Some(Kind::BraceOpen) => {
            token(Kind::BraceOpen).parse_next(input)?;
            let entries = if next_is(input, Kind::BraceClose) {
                Vec::new()
            } else {
                separated(1.., entry, token(Kind::Comma)).parse_next(input)?
            };
            cut_err(token(Kind::BraceClose).context(expected("`,` or `}`"))).parse_next(input)?;
            Ok(Argument::Map(entries))
        }
        _ if input.starts_with(['\'', '"']) => quoted(input),
        _ => primitive(input),
    }
}

fn entry(input: &mut &str) -> Result<(Argument, Argument)> {
    let key = cut_err(primitive_of(KEY_KINDS)).parse_next(input)?;
    cut_err(token(Kind::Colon).context(expected("`:`"))).parse_next(input)?;
    Ok((key, argument(input)?))
}

fn quoted(input: &mut &str) -> Result<Argument> {
    let quote: char = any.parse_next(input)?;
    let parts = text(input, Some(quote))?;
    cut_err(quote.context(expected("the closing quote"))).parse_next(input)?;
    Ok(Argument::Quoted(parts))
}

const KEY_KINDS: &[Kind] =
    &[Kind::Id, Kind::Null, Kind::Int, Kind::Float, Kind::Bool, Kind::UnquotedChar, Kind::Escape, Kind::Space];
const VALUE_KINDS: &[Kind] = &[
    Kind::Id,
    Kind::Null,
    Kind::Int,
    Kind::Float,
    Kind::Bool,
    Kind::UnquotedChar,
    Kind::Escape,
    Kind::Space,
    Kind::Colon,
];

/// One token is what it is (`1` a number); several, or some beside interpolations, are text.
fn primitive(input: &mut &str) -> Result<Argument> {
    let mut parts: Vec<Part> = Vec::new();
    let mut lone = None;
    loop {
        if input.starts_with("${") {
            parts.push(Part::Interpolation(interpolation(input)?));
        } else if let Some(token) =
            override_lexer::argument_token(input).filter(|token| VALUE_KINDS.contains(&token.kind))
        {
            *input = &input[token.text.len()..];
            lone = override_lexer::scalar(&token).filter(|_| parts.is_empty());
            parts.push(Part::Text(override_lexer::plain_text(&token)));
        } else {
            break;
        }
    }
    match (lone, parts.len()) {
        (_, 0) => winnow::combinator::fail.context(expected("a value")).parse_next(input),
        (Some(value), 1) => Ok(Argument::Scalar(value)),
        _ => Ok(Argument::Parts(parts)),
    }
}

fn primitive_of<'a>(kinds: &'static [Kind]) -> impl Parser<&'a str, Argument, ErrMode<ContextError>> {
    move |input: &mut &'a str| {
        let token = |input: &mut &'a str| match override_lexer::argument_token(input) {
            Some(token) if kinds.contains(&token.kind) => {
                *input = &input[token.text.len()..];
                Ok(token)
            }
            _ => winnow::combinator::fail.context(expected("a key")).parse_next(input),
        };
        let tokens: Vec<override_lexer::Token<'a>> = repeat(1.., token).parse_next(input)?;
        match tokens.as_slice() {
            [token] => Ok(override_lexer::scalar(token).map_or_else(
                || Argument::Quoted(vec![Part::Text(override_lexer::plain_text(token))]),
                Argument::Scalar,
            )),
            tokens => Ok(Argument::Quoted(vec![Part::Text(tokens.iter().map(override_lexer::plain_text).collect())])),
        }
    }
}

fn token<'a>(kind: Kind) -> impl Parser<&'a str, (), ErrMode<ContextError>> {
    move |input: &mut &'a str| match override_lexer::argument_token(input) {
        Some(token) if token.kind == kind => {
            *input = &input[token.text.len()..];
            Ok(())
        }
        _ => winnow::combinator::fail.parse_next(input),
    }
}

fn next_is(input: &str, kind: Kind) -> bool {
    override_lexer::argument_token(input).is_some_and(|token| token.kind == kind)
}

fn expected(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

/// Nesting is counted before parsing, so that the parser can be recursive.
fn check_depth(input: &str) -> std::result::Result<(), String> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for character in input.chars() {
        match character {
            '{' if before == '$' || depth > 0 => depth += 1,
            '[' if depth > 0 => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = character;
        if depth > MAX_INTERPOLATION_DEPTH {
            return Err(format!("nested deeper than {MAX_INTERPOLATION_DEPTH} levels"));
        }
    }
    Ok(())
}

fn problem(input: &str, at: usize, error: &ContextError) -> String {
    let wanted: Vec<String> = error
        .context()
        .filter_map(|context| match context {
            StrContext::Expected(wanted) => Some(wanted.to_string()),
            _ => None,
        })
        .collect();
    let wanted = if wanted.is_empty() { String::new() } else { format!(", expected {}", wanted.join(" or ")) };
    let found = match input[at..].chars().next() {
        Some(character) => format!("unexpected `{character}` after `{}`", &input[..at]),
        None => format!("`{input}` ends too early"),
    };
    format!("{found}{wanted}; to keep `${{` as text, write `\\${{`")
}
