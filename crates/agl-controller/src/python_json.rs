//! JSON spelled as Python's `json.dumps(value, ensure_ascii=False)` spells it, blanks and all.
//!
//! Agents that were written for the original may compare or hash their variables, so the spelling is part of the contract.

use agl_protocol::pyjson::{Value, python_repr, write_string};

/// The value as JSON text; NaN and the infinities are `NaN`, `Infinity` and `-Infinity`.
pub(crate) fn dumps(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Float(number) if number.is_nan() => out.push_str("NaN"),
        Value::Float(number) if number.is_infinite() => {
            out.push_str(if *number > 0.0 { "Infinity" } else { "-Infinity" });
        }
        Value::Int(_) | Value::Float(_) => out.push_str(&python_repr(value)),
        Value::Str(text) => write_string(out, text),
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        Value::Dict(fields) => {
            out.push('{');
            for (index, (key, item)) in fields.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_string(out, key);
                out.push_str(": ");
                write(item, out);
            }
            out.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use agl_protocol::pyjson::parse;

    use super::*;

    #[test]
    fn spells_as_python_does() {
        for (json, python) in [
            ("null", "null"),
            (r#"{"b":1,"a":[true,{}]}"#, r#"{"b": 1, "a": [true, {}]}"#),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#),
            (r#""\u00e9\u4e2d\/\n\u0001\u007f""#, "\"é中/\\n\\u0001\u{7f}\""),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1E5", "100000.0"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e300", "1e+300"),
            ("1.10", "1.1"),
            ("1e400", "Infinity"),
            ("[NaN,-Infinity]", "[NaN, -Infinity]"),
        ] {
            assert_eq!(dumps(&parse(json.as_bytes()).unwrap()), python, "{json}");
        }
    }
}
