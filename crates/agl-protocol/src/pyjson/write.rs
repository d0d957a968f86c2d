//! The writer: compact JSON in the two spellings of the contract, and Python's own spelling of values as text.

use std::fmt::Write as _;

use super::{Dict, Value};

/// How numbers are spelled. Both leave out blanks and keep non-ASCII characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// Answers of the API: `1e-7`; NaN and the infinities become `null`.
    Pydantic,
    /// Validation errors: `1e-07`, as `json.dumps`; NaN and the infinities become `null` too (Python refuses them).
    Python,
}

impl Value {
    /// Appends the value as compact JSON.
    pub fn write(&self, out: &mut String, spelling: Spelling) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Int(number) => out.push_str(number.digits()),
            Self::Float(number) if !number.is_finite() => out.push_str("null"),
            Self::Float(number) => match spelling {
                Spelling::Pydantic => write_float(out, *number),
                Spelling::Python => out.push_str(&python_float_repr(*number)),
            },
            Self::Str(text) => write_string(out, text),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out, spelling);
                }
                out.push(']');
            }
            Self::Dict(dict) => write_dict(out, dict, spelling),
        }
    }
}

fn write_dict(out: &mut String, dict: &Dict, spelling: Spelling) {
    out.push('{');
    for (index, (key, value)) in dict.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        value.write(out, spelling);
    }
    out.push('}');
}

/// Appends a JSON string: short escapes where JSON has them, `\u00xx` for other control characters, the rest as it is.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The shortest digits that read back as the same number, as `serde_json` spells them.
fn write_float(out: &mut String, number: f64) {
    // Finite numbers always serialise.
    out.push_str(&serde_json::to_string(&number).unwrap_or_default());
}

/// `repr(float)`: like JSON's spelling, but the exponent has a sign and at least two digits, and starts at 1e16 and 1e-5.
fn python_float_repr(number: f64) -> String {
    if !number.is_finite() {
        let word = if number.is_nan() { "nan" } else { "inf" };
        return if number < 0.0 { format!("-{word}") } else { word.to_owned() };
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let spelled = format!("{number:e}");
        let (mantissa, exponent) = spelled.split_once('e').unwrap_or((&spelled, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        return format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    }
    format!("{number:?}")
}

/// `str(value)` of a value read from JSON: `None`, `True`, `{'a': [1, 'x']}`; a string is itself.
pub fn python_repr(value: &Value) -> String {
    match value {
        Value::Str(text) => text.clone(),
        other => {
            let mut out = String::new();
            repr(&mut out, other);
            out
        }
    }
}

fn repr(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(number) => out.push_str(number.digits()),
        Value::Float(number) => out.push_str(&python_float_repr(*number)),
        Value::Str(text) => repr_str(out, text),
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, item);
            }
            out.push(']');
        }
        Value::Dict(dict) => {
            out.push('{');
            for (index, (key, item)) in dict.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr_str(out, key);
                out.push_str(": ");
                repr(out, item);
            }
            out.push('}');
        }
    }
}

/// `repr(str)`: single quotes unless only they occur inside; control characters escaped.
fn repr_str(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || ('\u{7f}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `float(value)` as Python converts a JSON value: numbers, true and false, and strings that spell a number
/// (blanks around it, `_` between digits and the decimal digits of any script allowed). `None` where Python raises.
pub fn python_float(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        Value::Int(number) => number.digits().parse().ok().filter(|number: &f64| number.is_finite()),
        Value::Float(number) => Some(*number),
        Value::Str(text) => float_of_str(text),
        Value::Null | Value::List(_) | Value::Dict(_) => None,
    }
}

fn float_of_str(text: &str) -> Option<f64> {
    let text: String = text.trim().chars().map(ascii_digit).collect();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    if ["inf", "infinity", "nan"].iter().any(|word| unsigned.eq_ignore_ascii_case(word)) {
        return text.parse().ok();
    }
    let allowed = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-' | '_');
    let between_digits = |index: usize| {
        let digit = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
        digit(index.checked_sub(1)) && digit(Some(index + 1))
    };
    if !text.chars().all(allowed) || !text.match_indices('_').all(|(index, _)| between_digits(index)) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// A decimal digit of any script (Unicode category Nd) as its ASCII digit; anything else unchanged.
fn ascii_digit(c: char) -> char {
    /// The zeros of the scripts of Unicode 14; each is followed by its other nine digits.
    const ZEROS: [u32; 65] = [
        0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50, 0xED0, 0xF20,
        0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0,
        0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0,
        0x11450, 0x114D0, 0x11650, 0x116C0, 0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x16A60, 0x16AC0,
        0x16B50, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E950, 0x1FBF0,
    ];
    if c.is_ascii() {
        return c;
    }
    let code = u32::from(c);
    let digit = ZEROS.iter().map(|zero| code.wrapping_sub(*zero)).find(|digit| *digit < 10);
    digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pyjson::parse;

    fn written(text: &str, spelling: Spelling) -> String {
        let mut out = String::new();
        parse(text.as_bytes()).unwrap().write(&mut out, spelling);
        out
    }

    #[test]
    fn numbers_have_two_spellings() {
        let numbers = "[1.10, 1E5, 1e-7, 1e16, 1e22, -0.0, 5e-324, 0.00001, 123456789.123456789, 1.5e300, NaN]";
        assert_eq!(
            written(numbers, Spelling::Pydantic),
            "[1.1,100000.0,1e-7,1e+16,1e+22,-0.0,5e-324,0.00001,123456789.12345679,1.5e+300,null]"
        );
        assert_eq!(
            written(numbers, Spelling::Python),
            "[1.1,100000.0,1e-07,1e+16,1e+22,-0.0,5e-324,1e-05,123456789.12345679,1.5e+300,null]"
        );
    }

    #[test]
    fn strings_escape_only_what_they_must() {
        let text = r#""\"\\\/\b\f\n\r\t\u0001\u007fé😀""#;
        assert_eq!(written(text, Spelling::Pydantic), "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\u{7f}é😀\"");
    }

    #[test]
    fn text_of_a_value_is_that_of_python() {
        let shown = |text: &str| python_repr(&parse(text.as_bytes()).unwrap());
        assert_eq!(shown(r#"["x", 1.0, null, true]"#), "['x', 1.0, None, True]");
        assert_eq!(shown(r#"{"a": "q\"uote", "b": "it's"}"#), r#"{'a': 'q"uote', 'b': "it's"}"#);
        assert_eq!(shown(r#""plain""#), "plain");
        assert_eq!(shown("1e400"), "inf");
    }

    #[test]
    fn float_reads_what_python_reads() {
        let read = |text: &str| python_float(&Value::Str(text.into()));
        assert_eq!(read(" -1.5 "), Some(-1.5));
        assert_eq!(read("-１.５"), Some(-1.5));
        assert_eq!(read("1_0.5"), Some(10.5));
        assert_eq!(read("-inf"), Some(f64::NEG_INFINITY));
        for refused in ["", "0x10", "1__0", "_1", "1_", "abc", "1e", "--1"] {
            assert_eq!(read(refused), None, "{refused}");
        }
        assert_eq!(python_float(&Value::Bool(true)), Some(1.0));
        assert_eq!(python_float(&parse(format!("1{}", "0".repeat(400)).as_bytes()).unwrap()), None);
    }
}
