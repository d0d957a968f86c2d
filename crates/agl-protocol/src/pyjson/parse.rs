//! The reader: the grammar, the error messages and the error positions of Python's own `json` scanner.

use std::borrow::Cow;

use super::{Dict, Integer, Value};

/// Arrays and objects may be nested this deep.
const MAX_DEPTH: usize = 512;
/// Python refuses to convert longer integers.
const MAX_INTEGER_DIGITS: usize = 4300;

/// Why bytes are not a JSON document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text breaks the grammar. `message` is Python's.
    #[error("{message} at character {position}")]
    Syntax {
        /// What was expected, or what is wrong.
        message: &'static str,
        /// Where, in characters from the start.
        position: usize,
    },
    /// The bytes are no text.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A limit is passed.
    #[error("{0}")]
    Limit(&'static str),
}

/// Bytes that are not UTF-8 (nor, by their zero bytes or mark, UTF-16 or UTF-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is not valid UTF-8, UTF-16 or UTF-32")]
pub struct DecodeError;

/// Bytes → text, by the rules of `json.loads`: UTF-8 unless a byte order mark or zero bytes say otherwise.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, DecodeError> {
    let wide =
        |unit: usize, big_endian: bool, skip: usize| decode_wide(&bytes[skip..], unit, big_endian).map(Cow::Owned);
    match bytes {
        [0xEF, 0xBB, 0xBF, rest @ ..] => std::str::from_utf8(rest).map(Cow::Borrowed).map_err(|_| DecodeError),
        [0xFF, 0xFE, 0, 0, ..] => wide(4, false, 4),
        [0, 0, 0xFE, 0xFF, ..] => wide(4, true, 4),
        [0xFF, 0xFE, ..] => wide(2, false, 2),
        [0xFE, 0xFF, ..] => wide(2, true, 2),
        [0, second, _, _, ..] => wide(if *second == 0 { 4 } else { 2 }, true, 0),
        [_, 0, third, fourth, ..] => wide(if *third == 0 && *fourth == 0 { 4 } else { 2 }, false, 0),
        [0, _] => wide(2, true, 0),
        [_, 0] => wide(2, false, 0),
        _ => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| DecodeError),
    }
}

fn decode_wide(bytes: &[u8], unit: usize, big_endian: bool) -> Result<String, DecodeError> {
    let chunks = bytes.chunks_exact(unit);
    if !chunks.remainder().is_empty() {
        return Err(DecodeError);
    }
    let number = |chunk: &[u8]| {
        let fold = |sum: u32, byte: &u8| (sum << 8) | u32::from(*byte);
        if big_endian { chunk.iter().fold(0, fold) } else { chunk.iter().rev().fold(0, fold) }
    };
    if unit == 4 {
        return chunks.map(|chunk| char::from_u32(number(chunk)).ok_or(DecodeError)).collect();
    }
    char::decode_utf16(chunks.map(|chunk| number(chunk) as u16)).map(|c| c.map_err(|_| DecodeError)).collect()
}

/// Reads one JSON document, as `json.loads` does with bytes.
pub fn parse(bytes: &[u8]) -> Result<Value, ParseError> {
    let text = decode(bytes)?;
    let mut parser = Parser { text: &text, bytes: text.as_bytes(), at: 0, depth: 0 };
    parser.document().map_err(|error| match error {
        Stop::At(message, offset) => ParseError::Syntax { message, position: text[..offset].chars().count() },
        Stop::Limit(message) => ParseError::Limit(message),
    })
}

/// An error, with a byte offset that is always on a character boundary.
enum Stop {
    At(&'static str, usize),
    Limit(&'static str),
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<Value, Stop> {
        self.skip_space();
        let value = self.value()?;
        self.skip_space();
        if self.at == self.bytes.len() { Ok(value) } else { Err(Stop::At("Extra data", self.at)) }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<Value, Stop> {
        const WORDS: [(&str, Value); 6] = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];
        match self.peek() {
            Some(b'"') => self.string().map(Value::Str),
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            _ => {
                if let Some((word, value)) =
                    WORDS.into_iter().find(|(word, _)| self.bytes[self.at..].starts_with(word.as_bytes()))
                {
                    self.at += word.len();
                    return Ok(value);
                }
                self.number()
            }
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Stop>) -> Result<Value, Stop> {
        if self.depth == MAX_DEPTH {
            return Err(Stop::Limit("arrays and objects are nested too deep"));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Result<Value, Stop> {
        let mut dict = Dict::new();
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Dict(dict));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(Stop::At("Expecting property name enclosed in double quotes", self.at));
            }
            let key = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(Stop::At("Expecting ':' delimiter", self.at));
            }
            self.at += 1;
            self.skip_space();
            let value = self.value()?;
            dict.insert(key, value);
            if !self.more(b'}')? {
                return Ok(Value::Dict(dict));
            }
        }
    }

    fn array(&mut self) -> Result<Value, Stop> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value()?);
            if !self.more(b']')? {
                return Ok(Value::List(items));
            }
        }
    }

    /// After an item: a comma (true) or the end (false).
    fn more(&mut self, end: u8) -> Result<bool, Stop> {
        self.skip_space();
        match self.peek() {
            Some(byte) if byte == end => {
                self.at += 1;
                Ok(false)
            }
            Some(b',') => {
                self.at += 1;
                self.skip_space();
                Ok(true)
            }
            _ => Err(Stop::At("Expecting ',' delimiter", self.at)),
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Value, Stop> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = if self.peek() == Some(b'0') {
            self.at += 1;
            1
        } else {
            self.digits()
        };
        if whole == 0 {
            return Err(Stop::At("Expecting value", start));
        }
        let integer_end = self.at;
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                self.at = integer_end;
            }
        }
        let fraction_end = self.at;
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                self.at = fraction_end;
            }
        }
        let spelled = &self.text[start..self.at];
        if self.at != integer_end {
            return Ok(Value::Float(spelled.parse().unwrap_or(f64::NAN)));
        }
        if whole > MAX_INTEGER_DIGITS {
            return Err(Stop::Limit("an integer has more than 4300 digits"));
        }
        Integer::from_digits(spelled).map(Value::Int).ok_or(Stop::At("Expecting value", start))
    }

    fn string(&mut self) -> Result<String, Stop> {
        let begin = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let start = self.at;
            while self.peek().is_some_and(|b| b != b'"' && b != b'\\' && b > 0x1f) {
                self.at += 1;
            }
            out.push_str(&self.text[start..self.at]);
            match self.peek() {
                None => return Err(Stop::At("Unterminated string starting at", begin)),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape(begin)?),
                Some(_) => return Err(Stop::At("Invalid control character at", self.at)),
            }
        }
    }

    fn escape(&mut self, begin: usize) -> Result<char, Stop> {
        let backslash = self.at;
        self.at += 1;
        let plain = match self.peek() {
            None => return Err(Stop::At("Unterminated string starting at", begin)),
            Some(b'u') => return self.unicode_escape(backslash),
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(_) => return Err(Stop::At("Invalid \\escape", backslash)),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self, backslash: usize) -> Result<char, Stop> {
        const SURROGATE: &str = "Lone surrogate (half of a character, which UTF-8 cannot hold) at";
        self.at += 1;
        let high = self.four_hex().ok_or(Stop::At("Invalid \\uXXXX escape", backslash + 1))?;
        if !(0xD800..0xE000).contains(&high) {
            return char::from_u32(high).ok_or(Stop::At(SURROGATE, backslash));
        }
        if high < 0xDC00 && self.bytes[self.at..].starts_with(b"\\u") {
            self.at += 2;
            if let Some(low @ 0xDC00..0xE000) = self.four_hex() {
                let code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                return char::from_u32(code).ok_or(Stop::At(SURROGATE, backslash));
            }
        }
        Err(Stop::At(SURROGATE, backslash))
    }

    /// Four hex digits that are not the last thing in the text.
    fn four_hex(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        let number = digits.iter().try_fold(0, |sum, b| Some(sum * 16 + char::from(*b).to_digit(16)?))?;
        self.at += 4;
        (self.at < self.bytes.len()).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> (&'static str, usize) {
        match parse(text.as_bytes()) {
            Err(ParseError::Syntax { message, position }) => (message, position),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn errors_are_those_of_python() {
        // Checked against CPython 3.12's json.loads.
        assert_eq!(error(""), ("Expecting value", 0));
        assert_eq!(error("[{bad"), ("Expecting property name enclosed in double quotes", 2));
        assert_eq!(error("[{\"input\": 1}"), ("Expecting ',' delimiter", 13));
        assert_eq!(error("[] x"), ("Extra data", 3));
        assert_eq!(error("[1,]"), ("Expecting value", 3));
        assert_eq!(error("{\"é\" 1}"), ("Expecting ':' delimiter", 5));
        assert_eq!(error("\"a\nb\""), ("Invalid control character at", 2));
        assert_eq!(error("\"é"), ("Unterminated string starting at", 0));
        assert_eq!(error("[\"\\x\"]"), ("Invalid \\escape", 2));
        assert_eq!(error("[\"\\u12g4\"]"), ("Invalid \\uXXXX escape", 3));
        assert_eq!(error("1.e5"), ("Extra data", 1));
        assert_eq!(error("-"), ("Expecting value", 0));
        assert_eq!(error("01"), ("Extra data", 1));
        assert_eq!(error("\"\\ud800\"").1, 1);
    }

    #[test]
    fn numbers_keep_every_digit() {
        assert_eq!(parse(b"-0").unwrap(), Value::Int(Integer::from(0)));
        assert_eq!(
            parse(b"123456789012345678901234567890").unwrap(),
            Value::Int(Integer::from_digits("123456789012345678901234567890").unwrap())
        );
        assert_eq!(parse(b"1e400").unwrap(), Value::Float(f64::INFINITY));
        assert_eq!(parse(b"-Infinity").unwrap(), Value::Float(f64::NEG_INFINITY));
        assert!(matches!(parse(b"NaN").unwrap(), Value::Float(number) if number.is_nan()));
    }

    #[test]
    fn of_a_repeated_key_the_last_value_counts() {
        assert_eq!(parse(br#"{"a":1,"b":2,"a":3}"#).unwrap().to_raw().text(), r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn other_encodings_are_recognised() {
        let utf16: Vec<u8> = "[\"é😀\"]".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(parse(&utf16).unwrap().to_raw().text(), "[\"é😀\"]");
        assert_eq!(parse(b"\xEF\xBB\xBF[1]").unwrap().to_raw().text(), "[1]");
        assert_eq!(parse(b"\"\xff\""), Err(ParseError::Decode(DecodeError)));
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(parse(&[b'['; MAX_DEPTH]).is_err());
        let deep = ["[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)].concat();
        assert!(parse(deep.as_bytes()).is_ok());
        assert!(matches!(parse(format!("[{deep}]").as_bytes()), Err(ParseError::Limit(_))));
    }
}
