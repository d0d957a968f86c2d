//! What a plain YAML scalar means: PyYAML's YAML 1.1 rules with OmegaConf's changes.
//!
//! Differences from YAML 1.2 that people meet: `yes/no/on/off` are true/false, `012` is ten, `1:30` is ninety,
//! `0o14` is text. OmegaConf adds floats without a dot (`1e3`) and leaves dates as text.
//! Patterns: <https://yaml.org/type/> as PyYAML reads them.

use winnow::Parser;
use winnow::ascii::digit1;
use winnow::combinator::{alt, dispatch, eof, fail, opt, peek, preceded, repeat, terminated};
use winnow::error::EmptyError;
use winnow::token::{any, one_of, take_while};

use crate::value::Value;

type Result<T> = winnow::Result<T, EmptyError>;

/// What the plain (unquoted) scalar `text` means.
pub(crate) fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        _ => {}
    }
    bool_word(text)
        .map(Value::Bool)
        .or_else(|| float_1_1(text))
        .or_else(|| int(text))
        .or_else(|| float_without_dot(text))
        .unwrap_or_else(|| Value::from_text(text))
}

/// `yes`, `no`, `on`, `off`, `true`, `false` in lower, Capital and UPPER case.
pub(crate) fn bool_word(text: &str) -> Option<bool> {
    match text {
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// A whole number: decimal, `0b…`, `0…` (octal), `0x…`, or base sixty (`1:30`).
pub(crate) fn int(text: &str) -> Option<Value> {
    let (negative, digits) = split_sign(text);
    let plain_digits = digits.replace('_', "");
    if let Some(binary) = matched(digits, ("0b", digits_of("01_")).take()) {
        return radix(&binary.replace('_', "")[2..], 2, negative);
    }
    if let Some(hex) = matched(digits, ("0x", digits_of("0123456789abcdefABCDEF_")).take()) {
        return radix(&hex.replace('_', "")[2..], 16, negative);
    }
    if matched(digits, ('0', digits_of("01234567_")).take()).is_some() {
        return radix(&plain_digits, 8, negative);
    }
    if digits == "0" || matched(digits, (one_of('1'..='9'), decimal_rest).take()).is_some() {
        return Value::from_decimal(&format!("{}{plain_digits}", if negative { "-" } else { "" }));
    }
    matched(digits, (one_of('1'..='9'), decimal_rest, sixties).take())?;
    let value = base_sixty(&plain_digits)?;
    Some(Value::Int(if negative { -(value as i128) } else { value as i128 }))
}

/// PyYAML's own floats: a dot is needed, and a sign in the exponent.
fn float_1_1(text: &str) -> Option<Value> {
    let (negative, digits) = split_sign(text);
    let signed = digits.len() < text.len();
    let matches = matched(digits, (digit, decimal_rest, '.', decimal_rest, opt(exponent(true))).take()).is_some()
        || (!signed && matched(digits, ('.', digit, decimal_rest, opt(exponent(true))).take()).is_some())
        || matched(digits, (digit, decimal_rest, sixties, '.', decimal_rest).take()).is_some()
        || matches!(digits, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN");
    if matches { float_value(negative, digits) } else { None }
}

/// What OmegaConf adds: `1e3`, `1.5e3`, and underscores only between digits.
fn float_without_dot(text: &str) -> Option<Value> {
    let (negative, digits) = split_sign(text);
    let signed = digits.len() < text.len();
    let matches = matched(digits, (groups, '.', decimal_rest, opt(exponent(false))).take()).is_some()
        || matched(digits, (groups, exponent(false)).take()).is_some()
        || (!signed && matched(digits, ('.', groups, opt(exponent(true))).take()).is_some());
    if matches { float_value(negative, digits) } else { None }
}

/// The number behind any of the spellings of a float.
pub(crate) fn float_value(negative: bool, digits: &str) -> Option<Value> {
    let digits = digits.replace('_', "").to_lowercase();
    let magnitude = match digits.as_str() {
        ".inf" => f64::INFINITY,
        ".nan" => f64::NAN,
        sixty if sixty.contains(':') => base_sixty(sixty)?,
        plain => plain.parse().ok()?,
    };
    Some(Value::Float(if negative { -magnitude } else { magnitude }))
}

fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// The whole of `text`, if `parser` takes all of it.
fn matched<'a>(mut text: &'a str, parser: impl Parser<&'a str, &'a str, EmptyError>) -> Option<&'a str> {
    terminated(parser, eof).parse_next(&mut text).ok()
}

fn digit(input: &mut &str) -> Result<char> {
    one_of('0'..='9').parse_next(input)
}

fn digits_of<'a>(set: &'static str) -> impl Parser<&'a str, &'a str, EmptyError> {
    take_while(1.., move |character| set.contains(character))
}

/// `[0-9_]*`
fn decimal_rest<'a>(input: &mut &'a str) -> Result<&'a str> {
    take_while(0.., ('0'..='9', '_')).parse_next(input)
}

/// `[0-9]+(_[0-9]+)*`
fn groups<'a>(input: &mut &'a str) -> Result<&'a str> {
    (digit1, repeat::<_, _, (), _, _>(0.., ('_', digit1))).take().parse_next(input)
}

/// `(:[0-5]?[0-9])+`; the part before it may have eaten nothing of it, since it has no colon.
fn sixties<'a>(input: &mut &'a str) -> Result<&'a str> {
    let two_digits = (one_of('0'..='5'), digit).void();
    repeat::<_, _, (), _, _>(1.., preceded(':', alt((two_digits, digit.void())))).take().parse_next(input)
}

fn exponent<'a>(sign_needed: bool) -> impl Parser<&'a str, &'a str, EmptyError> {
    move |input: &mut &'a str| {
        let sign = dispatch! {peek(any);
            '+' | '-' => any.void(),
            '0'..='9' if !sign_needed => winnow::combinator::empty.void(),
            _ => fail::<_, (), _>,
        };
        (one_of(['e', 'E']), sign, digit1).take().parse_next(input)
    }
}

fn radix(digits: &str, radix: u32, negative: bool) -> Option<Value> {
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    Some(Value::Int(if negative { -magnitude } else { magnitude }))
}

fn base_sixty(text: &str) -> Option<f64> {
    text.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
}
