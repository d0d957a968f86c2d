//! The tree as YAML text, laid out as PyYAML does it for OmegaConf: `--cfg job` prints the same bytes.
//!
//! Block style, two spaces, lists not indented below their key, single quotes where plain text would read back as
//! something else, long text folded at [`WIDTH`].

use crate::value::{Key, Map, Node, Value, python_float};
use crate::yaml_scalar;

/// A line longer than this is folded at its next space.
const WIDTH: usize = 80;

/// The tree as YAML, with a newline at its end.
pub fn to_yaml(node: &Node) -> String {
    let mut writer = Writer { out: String::new(), column: 0 };
    match &node.value {
        Value::Map(map) if !map.is_empty() => writer.map(map, 0),
        Value::List(items) if !items.is_empty() => writer.list(items, 0),
        other => {
            writer.scalar(other, 0, Place::Value);
            writer.newline();
        }
    }
    writer.out
}

/// Keys must stay on one line; values may be folded.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Key,
    Value,
}

struct Writer {
    out: String,
    column: usize,
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        self.column += text.chars().count();
    }

    fn newline(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    fn indent(&mut self, indent: usize) {
        self.put(&" ".repeat(indent.saturating_sub(self.column)));
    }

    /// The entries of a map, each on its own line; the first one starts where the writer stands.
    fn map(&mut self, map: &Map, indent: usize) {
        for (key, child) in map {
            self.indent(indent);
            self.key(key);
            self.put(":");
            match &child.value {
                Value::Map(map) if !map.is_empty() => {
                    self.newline();
                    self.map(map, indent + 2);
                }
                Value::List(items) if !items.is_empty() => {
                    self.newline();
                    self.list(items, indent);
                }
                value => self.line(value, indent + 2),
            }
        }
    }

    fn list(&mut self, items: &[Node], indent: usize) {
        for item in items {
            self.indent(indent);
            self.put("-");
            match &item.value {
                Value::Map(map) if !map.is_empty() => self.map(map, indent + 2),
                Value::List(items) if !items.is_empty() => self.list(items, indent + 2),
                value => self.line(value, indent + 2),
            }
        }
    }

    /// A scalar after `key:` or `-`, and the end of its line.
    fn line(&mut self, value: &Value, indent: usize) {
        self.put(" ");
        self.scalar(value, indent, Place::Value);
        self.newline();
    }

    fn key(&mut self, key: &Key) {
        match key {
            Key::Text(text) => self.text(text, 0, Place::Key),
            Key::Bool(flag) => self.put(if *flag { "true" } else { "false" }),
            Key::Int(_) | Key::Float(_) => self.put(&key.to_string()),
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize, place: Place) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(flag) => self.put(if *flag { "true" } else { "false" }),
            Value::Int(number) => self.put(&number.to_string()),
            Value::BigInt(digits) => self.put(digits),
            Value::Float(number) => self.put(&float(*number)),
            Value::Missing => self.text("???", indent, place),
            Value::Text(text) | Value::Interpolation(text) => self.text(text, indent, place),
            Value::List(_) => self.put("[]"),
            Value::Map(_) => self.put("{}"),
        }
    }

    fn text(&mut self, text: &str, indent: usize, place: Place) {
        match style(text, place) {
            Style::Plain => self.folded(text, indent, place, Style::Plain),
            Style::Single => {
                self.put("'");
                self.folded(text, indent, place, Style::Single);
                self.put("'");
            }
            Style::Double => self.double_quoted(text, indent, place),
        }
    }

    /// Words with spaces and line breaks between. A single space in an overlong line becomes a line break,
    /// and a real line break is written as an empty line.
    fn folded(&mut self, text: &str, indent: usize, place: Place, style: Style) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let kind = run_kind(first);
            let length = rest.find(|character| run_kind(character) != kind).unwrap_or(rest.len());
            let (run, after) = rest.split_at(length);
            let at_an_end = rest.len() == text.len() || after.is_empty();
            match kind {
                Run::Word if style == Style::Single => self.put(&run.replace('\'', "''")),
                Run::Word => self.put(run),
                Run::Spaces => {
                    let fold = run.len() == 1 && self.column > WIDTH && place == Place::Value && !at_an_end;
                    if fold {
                        self.newline();
                        self.indent(indent);
                    } else {
                        self.put(run);
                    }
                }
                Run::Breaks => {
                    if run.starts_with('\n') {
                        self.newline();
                    }
                    for line_break in run.chars() {
                        self.out.push(line_break);
                        self.column = 0;
                    }
                    self.indent(indent);
                }
            }
            rest = after;
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, place: Place) {
        self.put("\"");
        let characters: Vec<char> = text.chars().collect();
        let mut pending = String::new();
        for (index, &character) in characters.iter().enumerate() {
            let escape = escaped(character);
            if let Some(escape) = &escape {
                self.put(&std::mem::take(&mut pending));
                self.put(escape);
            }
            let inside = index > 0 && index + 1 < characters.len();
            let wide = self.column + pending.chars().count() > WIDTH;
            if inside && (character == ' ' || escape.is_some()) && wide && place == Place::Value {
                self.put(&std::mem::take(&mut pending));
                self.put("\\");
                self.newline();
                self.indent(indent);
                let next = if escape.is_some() { characters[index + 1] } else { character };
                if next == ' ' {
                    self.put("\\");
                }
            }
            if escape.is_none() {
                pending.push(character);
            }
        }
        self.put(&pending);
        self.put("\"");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Run {
    Word,
    Spaces,
    Breaks,
}

fn run_kind(character: char) -> Run {
    match character {
        ' ' => Run::Spaces,
        '\n' | '\u{85}' | '\u{2028}' | '\u{2029}' => Run::Breaks,
        _ => Run::Word,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Plain,
    Single,
    Double,
}

/// The simplest style in which the text reads back as itself.
fn style(text: &str, place: Place) -> Style {
    let characters: Vec<char> = text.chars().collect();
    let is_break = |character: &char| run_kind(*character) == Run::Breaks;
    let pair = |test: fn(&char, &char) -> bool| characters.windows(2).any(|pair| test(&pair[0], &pair[1]));
    let multiline = characters.iter().any(is_break);
    let break_then_space = pair(|a, b| run_kind(*a) == Run::Breaks && *b == ' ');
    let space_then_break = pair(|a, b| *a == ' ' && run_kind(*b) == Run::Breaks);
    let special = characters.iter().any(|character| !printable(*character));
    if special || space_then_break || break_then_space || (place == Place::Key && multiline) {
        return Style::Double;
    }
    let spaced = text.starts_with(' ') || text.ends_with(' ');
    if multiline || spaced || has_indicator(&characters) || reads_as_something_else(text) {
        return Style::Single;
    }
    Style::Plain
}

fn printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{85}' | '\u{A0}'..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..='\u{10FFFE}')
        && character != '\u{FEFF}'
}

/// Whether the text has a character that means something to YAML where it stands.
fn has_indicator(characters: &[char]) -> bool {
    let is_space =
        |at: usize| characters.get(at).is_none_or(|character| " \t\r\n\u{85}\u{2028}\u{2029}\0".contains(*character));
    let begins = |mark: &str| characters.iter().take(3).collect::<String>() == mark;
    if begins("---") || begins("...") {
        return true;
    }
    characters.iter().enumerate().any(|(at, character)| match character {
        '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' if at == 0 => {
            true
        }
        '?' | '-' if at == 0 => is_space(at + 1),
        ':' => is_space(at + 1),
        '#' => is_space(at - 1),
        _ => false,
    })
}

/// Whether plain text would be read as a number, a date, null, or true/false.
fn reads_as_something_else(text: &str) -> bool {
    let is_text = matches!(yaml_scalar::plain(text), Value::Text(_) | Value::Interpolation(_) | Value::Missing);
    let word = matches!(text, "y" | "Y" | "n" | "N" | "=" | "<<");
    !is_text || word || is_python_number(text) || is_date(text)
}

/// What Python's `int()` or `float()` would take.
fn is_python_number(text: &str) -> bool {
    let text = text.trim();
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    if ["inf", "infinity", "nan"].contains(&body.to_lowercase().as_str()) {
        return true;
    }
    let bytes = body.as_bytes();
    let underscores_between_digits = bytes.iter().enumerate().all(|(at, byte)| {
        let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
        *byte != b'_' || (digit(at.checked_sub(1)) && digit(Some(at + 1)))
    });
    let number_like = body.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    number_like && underscores_between_digits && body.replace('_', "").parse::<f64>().is_ok()
}

/// PyYAML's dumper protects what its loader would read as a date: `2020-01-01`, with or without a time.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let (Some(year), Some(month), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if year.len() != 4 || !digits(year) || month.len() > 2 || !digits(month) {
        return false;
    }
    if rest.len() == 2 && month.len() == 2 && digits(rest) {
        return true;
    }
    let day_length = rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let time = &rest[day_length..];
    day_length > 0 && time.starts_with(['T', 't', ' ', '\t']) && is_time(time[1..].trim_start_matches([' ', '\t']))
}

/// `1:02:03.4 +05:30`
fn is_time(text: &str) -> bool {
    let digits = |text: &str, least: usize, most: usize| {
        (least..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let zone_at = text.find(['Z', '+', '-', ' ', '\t']).unwrap_or(text.len());
    let (clock, zone) = text.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let parts: Vec<&str> = clock.split(':').collect();
    let [hours, minutes, seconds] = parts[..] else { return false };
    let zone = zone.trim_start_matches([' ', '\t']);
    let zone_fits = match zone.strip_prefix(['+', '-']) {
        Some(offset) => {
            let (hours, minutes) = offset.split_once(':').unwrap_or((offset, "00"));
            digits(hours, 1, 2) && digits(minutes, 2, 2)
        }
        None => zone.is_empty() || zone == "Z",
    };
    digits(hours, 1, 2)
        && digits(minutes, 2, 2)
        && digits(seconds, 2, 2)
        && digits(fraction, 0, usize::MAX)
        && zone_fits
}

fn float(number: f64) -> String {
    if number.is_nan() {
        return ".nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let text = python_float(number);
    // YAML 1.1 has no float without a dot.
    if text.contains('.') { text } else { text.replacen('e', ".0e", 1) }
}

fn escaped(character: char) -> Option<String> {
    let short = match character {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{B}' => 'v',
        '\u{C}' => 'f',
        '\r' => 'r',
        '\u{1B}' => 'e',
        '"' => '"',
        '\\' => '\\',
        '\u{85}' => 'N',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        ' '..='~' | '\u{A0}'..='\u{D7FF}' | '\u{E000}'..='\u{FEFE}' | '\u{FF00}'..='\u{FFFD}' => return None,
        other => {
            return Some(match other as u32 {
                code @ 0..=0xFF => format!("\\x{code:02X}"),
                code @ 0x100..=0xFFFF => format!("\\u{code:04X}"),
                code => format!("\\U{code:08X}"),
            });
        }
    };
    Some(format!("\\{short}"))
}
