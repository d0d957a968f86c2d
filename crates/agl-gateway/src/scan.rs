//! A pull scanner over JSON bytes: no tree is built, values are taken out or skipped where they stand.
//!
//! It accepts what Python's `json` accepts, which is what model servers written in Python send: JSON, and also `NaN`,
//! `Infinity` and `-Infinity`. It remembers where such numbers stand, for those who must not pass them on.

use std::borrow::Cow;
use std::ops::Range;

use agl_protocol::pyjson::{self, Value};

/// Arrays and objects may be nested this deep.
const MAX_DEPTH: u32 = 512;

/// The text is not JSON; `at` is a byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {at}")]
pub(crate) struct ScanError {
    pub(crate) at: usize,
}

type Scan<T> = Result<T, ScanError>;

pub(crate) struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    /// Where numbers stand that JSON does not have.
    pub(crate) non_finite: Vec<Range<usize>>,
    /// Whether a string holds half of a surrogate pair, which no text can hold.
    pub(crate) lone_surrogate: bool,
}

/// Where a member of an object stands, from the quote of its key to the end of its value.
pub(crate) struct Member {
    pub(crate) span: Range<usize>,
    pub(crate) value: Range<usize>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, bytes: text.as_bytes(), at: 0, depth: 0, non_finite: Vec::new(), lone_surrogate: false }
    }

    /// Reads one document with `read` and checks that nothing follows it.
    pub(crate) fn document<T>(&mut self, read: impl FnOnce(&mut Self) -> Scan<T>) -> Scan<T> {
        self.skip_space();
        let value = read(self)?;
        self.skip_space();
        if self.at == self.bytes.len() { Ok(value) } else { self.fail() }
    }

    /// The first byte of the next value.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Where the scanner stands.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The text of a span.
    pub(crate) fn text(&self, span: Range<usize>) -> &'a str {
        &self.text[span]
    }

    /// The value that a span holds.
    pub(crate) fn value(&self, span: Range<usize>) -> Value {
        pyjson::parse(self.text(span).as_bytes()).unwrap_or_default()
    }

    fn fail<T>(&self) -> Scan<T> {
        Err(ScanError { at: self.at })
    }

    #[inline]
    fn skip_space(&mut self) {
        // Most JSON on this path has no blanks at all.
        while self.peek().is_some_and(|byte| byte <= b' ') && matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t'))
        {
            self.at += 1;
        }
    }

    #[inline]
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Walks an object. `member` is called at each value with its key, and must consume the value.
    /// Returns where each member stands that `member` asked to remember by answering true.
    pub(crate) fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Scan<bool>) -> Scan<Vec<Member>> {
        let mut remembered = Vec::new();
        self.enter(b'{')?;
        if !self.leave(b'}') {
            loop {
                let start = self.at;
                let key = self.string()?;
                self.skip_space();
                if !self.eat(b':') {
                    return self.fail();
                }
                self.skip_space();
                let value_start = self.at;
                if member(self, &key)? {
                    remembered.push(Member { span: start..self.at, value: value_start..self.at });
                }
                if !self.more(b'}')? {
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(remembered)
    }

    /// Walks an array. `item` is called at each item with its index, and must consume it.
    pub(crate) fn array(&mut self, mut item: impl FnMut(&mut Self, usize) -> Scan<()>) -> Scan<()> {
        self.enter(b'[')?;
        if !self.leave(b']') {
            let mut index = 0;
            loop {
                item(self, index)?;
                index += 1;
                if !self.more(b']')? {
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn enter(&mut self, open: u8) -> Scan<()> {
        if self.depth == MAX_DEPTH || !self.eat(open) {
            return self.fail();
        }
        self.depth += 1;
        self.skip_space();
        Ok(())
    }

    fn leave(&mut self, close: u8) -> bool {
        self.eat(close)
    }

    #[inline]
    fn more(&mut self, close: u8) -> Scan<bool> {
        self.skip_space();
        if self.eat(b',') {
            self.skip_space();
            return Ok(true);
        }
        if self.eat(close) { Ok(false) } else { self.fail() }
    }

    /// Skips one value, checking it, and returns where it stands.
    pub(crate) fn skip(&mut self) -> Scan<Range<usize>> {
        let start = self.at;
        match self.peek() {
            Some(b'"') => {
                self.string_span()?;
            }
            Some(b'{') => {
                self.enter(b'{')?;
                if !self.leave(b'}') {
                    loop {
                        self.string_span()?;
                        self.skip_space();
                        if !self.eat(b':') {
                            return self.fail();
                        }
                        self.skip_space();
                        self.skip()?;
                        if !self.more(b'}')? {
                            break;
                        }
                    }
                }
                self.depth -= 1;
            }
            Some(b'[') => self.array(|scanner, _| scanner.skip().map(drop))?,
            Some(b'n') => self.word("null")?,
            Some(b't') => self.word("true")?,
            Some(b'f') => self.word("false")?,
            _ => {
                self.number()?;
            }
        }
        Ok(start..self.at)
    }

    fn word(&mut self, word: &str) -> Scan<()> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.fail();
        }
        self.at += word.len();
        Ok(())
    }

    /// A number, as its text.
    #[inline]
    pub(crate) fn number(&mut self) -> Scan<&'a str> {
        let start = self.at;
        let rest = &self.bytes[start..];
        match rest {
            [b'N', ..] => return self.non_finite("NaN"),
            [b'I', ..] => return self.non_finite("Infinity"),
            [b'-', b'I', ..] => return self.non_finite("-Infinity"),
            _ => {}
        }
        let sign = usize::from(rest.first() == Some(&b'-'));
        let whole = digits(rest, sign);
        let mut end = sign + if rest.get(sign) == Some(&b'0') { 1 } else { whole };
        let mut complete = whole > 0;
        if rest.get(end) == Some(&b'.') {
            let fraction = digits(rest, end + 1);
            complete &= fraction > 0;
            end += 1 + fraction;
        }
        let has_exponent = matches!(rest.get(end), Some(b'e' | b'E'));
        if has_exponent {
            end += 1 + usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(rest, end);
            complete &= exponent > 0;
            end += exponent;
        }
        if !complete {
            return self.fail();
        }
        self.at += end;
        let text = &self.text[start..self.at];
        // Python reads 1e999 as infinity.
        if has_exponent && text.parse().is_ok_and(|number: f64| number.is_infinite()) {
            self.non_finite.push(start..self.at);
        }
        Ok(text)
    }

    fn non_finite(&mut self, word: &'static str) -> Scan<&'a str> {
        let start = self.at;
        self.word(word)?;
        self.non_finite.push(start..self.at);
        Ok(word)
    }

    /// A token id, if that is what stands here; nothing is consumed otherwise.
    #[inline]
    pub(crate) fn token_id(&mut self) -> Option<u32> {
        let rest = &self.bytes[self.at..];
        let count = digits(rest, 0);
        let leading_zero = count > 1 && rest[0] == b'0';
        if count == 0 || count > 10 || leading_zero || matches!(rest.get(count), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        let number = rest[..count].iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
        let id = u32::try_from(number).ok()?;
        self.at += count;
        Some(id)
    }

    /// A string, decoded. Half a surrogate pair becomes U+FFFD: such text is only ever compared, never passed on.
    pub(crate) fn string(&mut self) -> Scan<Cow<'a, str>> {
        let (inside, escaped) = self.string_span()?;
        let raw = &self.text[inside];
        if !escaped {
            return Ok(Cow::Borrowed(raw));
        }
        Ok(Cow::Owned(unescape(raw)))
    }

    /// Skips a string; where its inside stands, and whether it holds escapes.
    fn string_span(&mut self) -> Scan<(Range<usize>, bool)> {
        if !self.eat(b'"') {
            return self.fail();
        }
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = &self.bytes[self.at..];
            self.at += rest.iter().take_while(|byte| PLAIN[usize::from(**byte)]).count();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok((start..self.at - 1, escaped));
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return self.fail(),
            }
        }
    }

    fn escape(&mut self) -> Scan<()> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => match self.unicode_escape() {
                Some(0xD800..0xDC00) => {
                    let low = self.bytes[self.at..].starts_with(b"\\u").then(|| self.unicode_escape()).flatten();
                    self.lone_surrogate |= !matches!(low, Some(0xDC00..0xE000));
                }
                Some(0xDC00..0xE000) => self.lone_surrogate = true,
                Some(_) => {}
                None => return self.fail(),
            },
            _ => return self.fail(),
        }
        Ok(())
    }

    /// `\uXXXX` → its number.
    fn unicode_escape(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at + 2..self.at + 6)?;
        let number = digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?))?;
        self.at += 6;
        Some(number)
    }
}

/// Which bytes stand for themselves inside a string: all but the quote, the backslash and control characters.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut control = 0;
    while control < b' ' {
        plain[control as usize] = false;
        control += 1;
    }
    plain[b'"' as usize] = false;
    plain[b'\\' as usize] = false;
    plain
};

/// How many digits stand at a place.
#[inline]
fn digits(bytes: &[u8], from: usize) -> usize {
    bytes.get(from..).map_or(0, |rest| rest.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

/// Decodes the inside of a string whose escapes have been checked.
fn unescape(raw: &str) -> String {
    let mut units: Vec<u16> = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(index) = rest.find('\\') {
        units.extend(rest[..index].encode_utf16());
        let escape = &rest[index + 1..];
        let (unit, length) = match escape.as_bytes() {
            [b'u', digits @ ..] => {
                let digits = digits.get(..4).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default();
                (u16::from_str_radix(digits, 16).unwrap_or(0xFFFD), 5)
            }
            [b'b', ..] => (0x8, 1),
            [b'f', ..] => (0xC, 1),
            [b'n', ..] => (0xA, 1),
            [b'r', ..] => (0xD, 1),
            [b't', ..] => (0x9, 1),
            [other, ..] => (u16::from(*other), 1),
            [] => break,
        };
        units.push(unit);
        rest = &escape[length.min(escape.len())..];
    }
    units.extend(rest.encode_utf16());
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn skips(text: &str) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.document(Scanner::skip).is_ok()
    }

    #[test]
    fn takes_what_python_takes() {
        for text in [
            " [1, -0.5e+3, \"\\u00e9\\n\", {\"a\": null, \"b\": [true, false]}] ",
            "NaN",
            "[-Infinity, 1e999]",
            "\"\\ud800\"",
        ] {
            assert!(skips(text), "{text}");
        }
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            "1e",
            "+1",
            "-",
            "'a'",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "nul",
            "[1] 2",
            "{1:2}",
        ] {
            assert!(!skips(text), "{text}");
        }
    }

    #[test]
    fn remembers_numbers_that_json_has_not() {
        let mut scanner = Scanner::new("[NaN, 1, -Infinity, 1e999]");
        scanner.document(Scanner::skip).unwrap();
        assert_eq!(scanner.non_finite, [1..4, 9..18, 20..25]);
    }

    #[test]
    fn decodes_strings() {
        let mut scanner = Scanner::new(r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é\ud800""#);
        assert_eq!(scanner.document(Scanner::string).unwrap(), "a\"\\/\u{8}\u{c}\n\r\té😀é\u{fffd}");
    }

    proptest! {
        /// `serde_json` is the oracle for texts that need none of Python's leniency.
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{},:" 0-9.eE+\-a\\untrlfs]{0,24}"#) {
            let oracle = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(skips(&text), oracle, "{}", text);
        }
    }
}
