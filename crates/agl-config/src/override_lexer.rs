//! The words of an override: `default_proxy.train={temperature: 0.5}` as a list of tokens.
//!
//! Hydra's lexer takes the longest token that fits and, among equally long ones, the first of its grammar.
//! [`KEY_RULES`] and [`VALUE_RULES`] are that grammar in that order: before the first `=` the one holds, after it the other.
//! Source: <https://hydra.cc/docs/1.3/advanced/override_grammar/basic/>.

use winnow::Parser;
use winnow::combinator::{alt, not, opt, repeat};
use winnow::error::EmptyError;
use winnow::token::{any, one_of, take_while};

use crate::value::Value;

type Result<T> = winnow::Result<T, EmptyError>;
type Rule = for<'a> fn(&mut &'a str) -> Result<&'a str>;

/// The kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Equal,
    Tilde,
    Plus,
    At,
    Colon,
    Slash,
    Id,
    KeySpecial,
    DotPath,
    ParenOpen,
    Comma,
    ParenClose,
    BracketOpen,
    BracketClose,
    BraceOpen,
    BraceClose,
    Float,
    Int,
    Bool,
    Null,
    UnquotedChar,
    Escape,
    Space,
    Quoted,
    Interpolation,
}

/// A token, its text, and where it begins (in bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

/// Before the first `=`.
const KEY_RULES: &[(Kind, Rule)] = &[
    (Kind::Equal, |i| ('=', spaces).take().parse_next(i)),
    (Kind::Tilde, |i| "~".parse_next(i)),
    (Kind::Plus, |i| "+".parse_next(i)),
    (Kind::At, |i| "@".parse_next(i)),
    (Kind::Colon, |i| ":".parse_next(i)),
    (Kind::Slash, |i| "/".parse_next(i)),
    (Kind::Id, id),
    (Kind::KeySpecial, key_special),
    (Kind::DotPath, |i| (path_step, repeat::<_, _, (), _, _>(1.., ('.', path_step))).take().parse_next(i)),
];

/// After it.
const VALUE_RULES: &[(Kind, Rule)] = &[
    (Kind::ParenOpen, |i| (spaces, '(', spaces).take().parse_next(i)),
    (Kind::Comma, |i| (spaces, ',', spaces).take().parse_next(i)),
    (Kind::ParenClose, |i| (spaces, ')').take().parse_next(i)),
    (Kind::BracketOpen, |i| ('[', spaces).take().parse_next(i)),
    (Kind::BracketClose, |i| (spaces, ']').take().parse_next(i)),
    (Kind::BraceOpen, |i| ('{', spaces).take().parse_next(i)),
    (Kind::BraceClose, |i| (spaces, '}').take().parse_next(i)),
    (Kind::Colon, |i| (spaces, ':', spaces).take().parse_next(i)),
    (Kind::Equal, |i| (spaces, '=', spaces).take().parse_next(i)),
    (Kind::Float, float),
    (Kind::Int, |i| (sign, unsigned).take().parse_next(i)),
    (Kind::Bool, |i| alt((caseless("true"), caseless("false"))).parse_next(i)),
    (Kind::Null, |i| caseless("null").parse_next(i)),
    (Kind::UnquotedChar, |i| one_of(UNQUOTED).take().parse_next(i)),
    (Kind::Id, id),
    (Kind::Escape, escape),
    (Kind::Space, |i| take_while(1.., SPACE).parse_next(i)),
    (Kind::Quoted, quoted),
    (Kind::Interpolation, |i| ("${", take_while(1.., |c| c != '}'), '}').take().parse_next(i)),
];

/// Inside `${name:…}`: no functions and no `=`. Quotes and nested `${…}` are not tokens there, they hold text again.
const ARGUMENT_RULES: &[(Kind, Rule)] = &[
    (Kind::Comma, |i| (spaces, ',', spaces).take().parse_next(i)),
    (Kind::BracketOpen, |i| ('[', spaces).take().parse_next(i)),
    (Kind::BracketClose, |i| (spaces, ']').take().parse_next(i)),
    (Kind::BraceOpen, |i| ('{', spaces).take().parse_next(i)),
    (Kind::BraceClose, |i| (spaces, '}').take().parse_next(i)),
    (Kind::Colon, |i| (spaces, ':', spaces).take().parse_next(i)),
    (Kind::Float, float),
    (Kind::Int, |i| (sign, unsigned).take().parse_next(i)),
    (Kind::Bool, |i| alt((caseless("true"), caseless("false"))).parse_next(i)),
    (Kind::Null, |i| caseless("null").parse_next(i)),
    (Kind::UnquotedChar, |i| one_of(UNQUOTED).take().parse_next(i)),
    (Kind::Id, id),
    (Kind::Escape, escape),
    (Kind::Space, |i| take_while(1.., SPACE).parse_next(i)),
];

pub(crate) const SPACE: [char; 2] = [' ', '\t'];
/// Characters that text without quotes may hold besides letters, digits, `_`, `:` and spaces.
const UNQUOTED: [char; 11] = ['/', '-', '\\', '+', '.', '$', '%', '*', '@', '?', '|'];
/// Characters that a backslash protects.
pub(crate) const ESCAPABLE: [char; 11] = ['\\', '(', ')', '[', ']', '{', '}', ':', '=', ',', ' '];

/// No token begins at this byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoToken {
    pub(crate) at: usize,
}

/// The tokens of a whole override.
pub(crate) fn tokens(text: &str) -> std::result::Result<Vec<Token<'_>>, NoToken> {
    let mut tokens = Vec::new();
    let mut rules = KEY_RULES;
    let mut at = 0;
    while at < text.len() {
        let token = longest(rules, text, at).ok_or(NoToken { at })?;
        if token.kind == Kind::Equal {
            rules = VALUE_RULES;
        }
        at += token.text.len();
        tokens.push(token);
    }
    Ok(tokens)
}

/// The value of a token that is null, true/false or a number.
pub(crate) fn scalar(token: &Token<'_>) -> Option<Value> {
    let number = || token.text.replace('_', "");
    match token.kind {
        Kind::Null => Some(Value::Null),
        Kind::Bool => Some(Value::Bool(token.text.eq_ignore_ascii_case("true"))),
        Kind::Int => Value::from_decimal(&number()),
        Kind::Float => number().parse().ok().map(Value::Float),
        _ => None,
    }
}

/// The text of a token, unescaped.
pub(crate) fn plain_text(token: &Token<'_>) -> String {
    match token.kind {
        Kind::Escape => token.text.chars().skip(1).step_by(2).collect(),
        _ => token.text.to_owned(),
    }
}

/// The next token of an argument of `${name:…}`.
pub(crate) fn argument_token(text: &str) -> Option<Token<'_>> {
    longest(ARGUMENT_RULES, text, 0)
}

fn longest<'a>(rules: &[(Kind, Rule)], text: &'a str, at: usize) -> Option<Token<'a>> {
    let mut best: Option<Token<'a>> = None;
    for (kind, rule) in rules {
        if let Ok(text) = rule(&mut &text[at..])
            && best.is_none_or(|best| text.len() > best.text.len())
        {
            best = Some(Token { kind: *kind, text, at });
        }
    }
    best.filter(|token| !token.text.is_empty())
}

fn spaces<'a>(input: &mut &'a str) -> Result<&'a str> {
    take_while(0.., SPACE).parse_next(input)
}

fn letter(input: &mut &str) -> Result<char> {
    one_of(('a'..='z', 'A'..='Z', '_')).parse_next(input)
}

/// `[a-zA-Z_][a-zA-Z0-9_-]*`
pub(crate) fn id<'a>(input: &mut &'a str) -> Result<&'a str> {
    (letter, take_while(0.., ('a'..='z', 'A'..='Z', '0'..='9', '_', '-'))).take().parse_next(input)
}

/// Like an id, with `$` allowed.
fn key_special<'a>(input: &mut &'a str) -> Result<&'a str> {
    (alt((letter, '$')), take_while(0.., ('a'..='z', 'A'..='Z', '0'..='9', '_', '-', '$'))).take().parse_next(input)
}

fn path_step<'a>(input: &mut &'a str) -> Result<&'a str> {
    alt((key_special, unsigned)).parse_next(input)
}

fn sign(input: &mut &str) -> Result<Option<char>> {
    opt(one_of(['+', '-'])).parse_next(input)
}

/// `0`, or digits that don't begin with one, with single underscores between: `1_000`.
fn unsigned<'a>(input: &mut &'a str) -> Result<&'a str> {
    alt(("0", (one_of('1'..='9'), digit_rest).take())).parse_next(input)
}

fn digits<'a>(input: &mut &'a str) -> Result<&'a str> {
    (one_of('0'..='9'), digit_rest).take().parse_next(input)
}

/// `(_?[0-9])*`
fn digit_rest<'a>(input: &mut &'a str) -> Result<&'a str> {
    repeat::<_, _, (), _, _>(0.., (opt('_'), one_of('0'..='9'))).take().parse_next(input)
}

fn point_float<'a>(input: &mut &'a str) -> Result<&'a str> {
    alt(((opt(unsigned), '.', digits).take(), (unsigned, '.').take())).parse_next(input)
}

fn float<'a>(input: &mut &'a str) -> Result<&'a str> {
    let exponent = (one_of(['e', 'E']), sign, digits);
    let number = alt(((alt((point_float, unsigned)), exponent).take(), point_float, caseless("inf"), caseless("nan")));
    (sign, number).take().parse_next(input)
}

fn caseless<'a>(word: &'static str) -> impl Parser<&'a str, &'a str, EmptyError> {
    winnow::ascii::Caseless(word)
}

/// A run of escaped characters; a backslash before anything else is just a backslash.
fn escape<'a>(input: &mut &'a str) -> Result<&'a str> {
    repeat::<_, _, (), _, _>(1.., ('\\', alt((one_of(ESCAPABLE), '\t')))).take().parse_next(input)
}

/// From a quote to the next one of its kind that has an even number of backslashes before it.
fn quoted<'a>(input: &mut &'a str) -> Result<&'a str> {
    fn between<'a>(quote: char) -> impl Parser<&'a str, &'a str, EmptyError> {
        let escaped = ('\\', any).void();
        let plain = (not(one_of(['\\', quote])), any).void();
        let body = repeat::<_, _, (), _, _>(0.., alt((escaped, plain)));
        (quote, body, quote).take()
    }
    alt((between('\''), between('"'))).parse_next(input)
}
