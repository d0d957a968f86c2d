//! Text that others wrote, cut to a length and freed of characters that a page must not obey. The templates escape it.

use serde::Serialize;

use crate::numbers;

/// Longest text that is shown, in characters.
const MAX_TEXT: usize = 4_000;
/// Longest name or title, in characters.
const MAX_NAME: usize = 90;

/// Text that may have been too long to show.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Text {
    pub(super) shown: String,
    /// How many characters are not shown, if any.
    pub(super) left_out: Option<String>,
}

impl Text {
    pub(super) fn new(text: &str) -> Self {
        let left_out = text.chars().count().saturating_sub(MAX_TEXT);
        Self {
            shown: text.chars().take(MAX_TEXT).map(visible).collect(),
            left_out: (left_out > 0).then(|| numbers::count(left_out as u64)),
        }
    }

    pub(super) fn if_any(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::new(text))
    }
}

/// A whole file, however long.
pub(super) fn whole(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// A name or a title: one short line.
pub(super) fn name(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let ellipsis = if line.chars().count() > MAX_NAME { "…" } else { "" };
    line.chars().take(MAX_NAME).map(visible).chain(ellipsis.chars()).collect()
}

/// Control characters become the pictures that Unicode has of them. Those that would turn the direction of what follows
/// become a replacement character: with them, text can look like something it is not.
fn visible(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        '\0'..='\x1f' => char::from_u32(0x2400 + character as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        _ if character.is_control() => char::REPLACEMENT_CHARACTER,
        _ => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(Text::new("a\0b\x1b[31m\n\tc\u{202e}d\u{85}").shown, "a␀b␛[31m\n\tc\u{fffd}d\u{fffd}");
    }

    #[test]
    fn long_text_is_cut_and_says_so() {
        let text = Text::new(&"é".repeat(5_500));
        assert_eq!(text.shown.chars().count(), 4_000);
        assert_eq!(text.left_out.as_deref(), Some("1,500"));
        assert_eq!(Text::new("short").left_out, None);
    }

    #[test]
    fn names_are_one_short_line() {
        assert_eq!(name(" What\nis  2+2? "), "What is 2+2?");
        assert_eq!(name(&"é".repeat(200)), "é".repeat(90) + "…");
    }
}
