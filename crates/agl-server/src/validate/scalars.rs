//! Scalars in pydantic's lax mode.

use agl_protocol::RolloutState;
use agl_protocol::pyjson::{self, Integer, Value};

use super::{At, Problems};

/// Text, and nothing else.
pub(crate) fn string(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<String> {
    if let Value::Str(text) = value {
        return Some(text.clone());
    }
    problems.add("string_type", at, "Input should be a valid string", value);
    None
}

/// An integer, or something that spells one: `"3"`, `3.0`, `true`.
pub(crate) fn integer(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Integer> {
    let (kind, message) = match value {
        Value::Int(number) => return Some(number.clone()),
        Value::Bool(value) => return Some(Integer::from(i64::from(*value))),
        Value::Float(number) if !number.is_finite() => ("finite_number", "Input should be a finite number"),
        Value::Float(number) if number.fract() != 0.0 => {
            ("int_from_float", "Input should be a valid integer, got a number with a fractional part")
        }
        // 64 bits are the bound for floats, though not for integers.
        Value::Float(number) if !(-I64_BOUND..I64_BOUND).contains(number) => INT_PARSING_SIZE,
        Value::Float(number) => return Some(Integer::from(*number as i64)),
        Value::Str(text) => match integer_of_str(text) {
            Ok(number) => return Some(number),
            Err(problem) => problem,
        },
        _ => ("int_type", "Input should be a valid integer"),
    };
    problems.add(kind, at, message, value);
    None
}

/// 2⁶³.
const I64_BOUND: f64 = 9_223_372_036_854_775_808.0;
const INT_PARSING: (&str, &str) =
    ("int_parsing", "Input should be a valid integer, unable to parse string as an integer");
const INT_PARSING_SIZE: (&str, &str) =
    ("int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size");
/// Longer integers are refused, as Python refuses them.
const MAX_DIGITS: usize = 4300;

/// Blanks around it, one sign, single `_` between digits, and zeros after a point are allowed.
fn integer_of_str(text: &str) -> Result<Integer, (&'static str, &'static str)> {
    let text = text.trim();
    if text.len() > MAX_DIGITS {
        return Err(INT_PARSING_SIZE);
    }
    let text = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    };
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let separated = digits.split('_').all(|part| !part.is_empty());
    let number = separated.then(|| Integer::from_digits(&format!("{sign}{}", digits.replace('_', "")))).flatten();
    number.filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')).ok_or(INT_PARSING)
}

/// A boolean, or something that spells one: `1`, `0.0`, `"yes"`, `"off"`.
pub(crate) fn boolean(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<bool> {
    let spelled = match value {
        Value::Bool(value) => return Some(*value),
        Value::Str(text) => match text.to_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => None,
        },
        Value::Int(number) => match number.digits() {
            "0" => Some(false),
            "1" => Some(true),
            _ if number.as_i64().is_some() => None,
            _ => return not_a_boolean(value, at, problems),
        },
        Value::Float(number) if *number == 0.0 => Some(false),
        Value::Float(number) if *number - 1.0 == 0.0 => Some(true),
        Value::Float(number) if number.fract() == 0.0 && (-I64_BOUND..I64_BOUND).contains(number) => None,
        _ => return not_a_boolean(value, at, problems),
    };
    if spelled.is_none() {
        problems.add("bool_parsing", at, "Input should be a valid boolean, unable to interpret input", value);
    }
    spelled
}

fn not_a_boolean(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<bool> {
    problems.add("bool_type", at, "Input should be a valid boolean", value);
    None
}

/// A number, or something that spells one.
pub(crate) fn float(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<f64> {
    let number = pyjson::python_float(value);
    match (number, value) {
        (Some(_), _) => {}
        (None, Value::Str(_)) => problems.add(
            "float_parsing",
            at,
            "Input should be a valid number, unable to parse string as a number",
            value,
        ),
        (None, _) => problems.add("float_type", at, "Input should be a valid number", value),
    }
    number
}

/// A rollout state.
pub(crate) fn state(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<RolloutState> {
    const EXPECTED: &str = "'queuing', 'running', 'succeeded' or 'failed'";
    let state = value.as_str().and_then(|text| RolloutState::ALL.into_iter().find(|state| state.as_str() == text));
    if state.is_none() {
        problems.add_with(
            "enum",
            at,
            &format!("Input should be {EXPECTED}"),
            value,
            &[("expected", Value::Str(EXPECTED.to_owned()))],
        );
    }
    state
}
