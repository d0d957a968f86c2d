//! An override such as `+trainer.lr=1e-3` as data: what to do, to which key, with which value.
//!
//! Grammar: <https://hydra.cc/docs/1.3/advanced/override_grammar/basic/>. [`crate::override_lexer`] makes the tokens,
//! the rules here follow the parser's, and [`crate::functions`] evaluates `int(3.7)`, `range(1,5)` and the like.

use winnow::Parser;
use winnow::combinator::{alt, cut_err, eof, opt, repeat, separated, terminated};
use winnow::error::{ContextError, StrContext, StrContextValue};
use winnow::token::any;

use crate::element::{self, Element};
use crate::functions::{self, Call};
use crate::override_lexer::{self, Kind, NoToken, Token};
use crate::sweep::Sweep;

/// Longest override that is read, in bytes.
pub const MAX_OVERRIDE_BYTES: usize = 1 << 20;
/// Deepest nesting of lists, maps and functions in one override.
pub const MAX_OVERRIDE_DEPTH: usize = 64;

/// What an override does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `key=value`: changes a key that exists.
    Change,
    /// `+key=value`: adds a key that doesn't.
    Add,
    /// `++key=value`: one or the other.
    Force,
    /// `~key` or `~key=value`: removes the key (if it has that value).
    Delete,
}

/// An override, parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// What it does.
    pub action: Action,
    /// Path of the key (`default_proxy.train`), or a config group (`hydra/job_logging`).
    pub key: String,
    /// The part after `@`: where the choice of a config group goes.
    pub package: Option<String>,
    /// The value; only a deletion has none.
    pub value: Option<OverrideValue>,
    /// The override as it was given.
    pub text: String,
}

/// The value of an override: one, or many to sweep over.
#[derive(Debug, Clone, PartialEq)]
pub enum OverrideValue {
    /// One value.
    One(Element),
    /// `a,b`, `range(1,5)`, …: for `--multirun`.
    Sweep(Sweep),
}

/// A text that is no override.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Error parsing override '{text}'\n{problem}\nSee https://hydra.cc/docs/1.2/advanced/override_grammar/basic for details"
)]
pub struct OverrideSyntaxError {
    /// The override as it was given.
    pub text: String,
    /// What is wrong, where, and the way out.
    pub problem: String,
}

impl Override {
    /// Parses one override.
    pub fn parse(text: &str) -> std::result::Result<Self, OverrideSyntaxError> {
        let error = |problem| OverrideSyntaxError { text: text.to_owned(), problem };
        if text.len() > MAX_OVERRIDE_BYTES {
            return Err(error(format!("longer than {MAX_OVERRIDE_BYTES} bytes")));
        }
        let tokens = override_lexer::tokens(text).map_err(|at| error(bad_character(text, at)))?;
        check_depth(&tokens).map_err(error)?;
        let parsed = terminated(override_rule, eof).parse(tokens.as_slice());
        let parts = parsed.map_err(|failure| error(bad_token(text, &tokens, failure.offset(), failure.inner())))?;
        let value = parts.value.map(evaluate).transpose().map_err(error)?;
        Ok(Self { action: parts.action, key: parts.key, package: parts.package, value, text: text.to_owned() })
    }

    /// The key with sign and package, as in `+db@backup`.
    pub fn key_element(&self) -> String {
        let sign = match self.action {
            Action::Change => "",
            Action::Add => "+",
            Action::Force => "++",
            Action::Delete => "~",
        };
        let package = self.package.as_ref().map(|package| format!("@{package}")).unwrap_or_default();
        format!("{sign}{}{package}", self.key)
    }

    /// Whether it changes Hydra's own settings rather than the program's.
    pub fn is_about_hydra(&self) -> bool {
        self.key.starts_with("hydra.") || self.key.starts_with("hydra/")
    }
}

/// A value as it is written, before functions are evaluated.
#[derive(Debug, Clone, PartialEq)]
enum Syntax {
    Element(Element),
    List(Vec<Syntax>),
    Map(Vec<(Element, Syntax)>),
    Call { name: String, arguments: Vec<(Option<String>, Syntax)>, text: String },
    Choices(Vec<Syntax>),
}

struct Parts {
    action: Action,
    key: String,
    package: Option<String>,
    /// `None` without `=`.
    value: Option<Syntax>,
}

type Tokens<'t, 'a> = &'t [Token<'a>];
type Result<T> = winnow::ModalResult<T>;

/// `key=value`, `key=`, `+key=value`, `++key=value`, `~key`, `~key=value`
fn override_rule(input: &mut Tokens<'_, '_>) -> Result<Parts> {
    let action = match kinds(input) {
        [Some(Kind::Tilde), _] => Action::Delete,
        [Some(Kind::Plus), Some(Kind::Plus)] => Action::Force,
        [Some(Kind::Plus), _] => Action::Add,
        _ => Action::Change,
    };
    let sign = match action {
        Action::Change => 0,
        Action::Add | Action::Delete => 1,
        Action::Force => 2,
    };
    *input = &input[sign..];
    let key = key_or_group(input)?;
    let package = match kinds(input) {
        [Some(Kind::At), _] => {
            token(Kind::At).parse_next(input)?;
            Some(package(input)?)
        }
        _ => None,
    };
    if action == Action::Delete && input.is_empty() {
        return Ok(Parts { action, key, package, value: None });
    }
    token(Kind::Equal).context(expected("`=`")).parse_next(input)?;
    // Nothing after the `=` is the empty text.
    let value = if input.is_empty() { Syntax::Element(Element::Text(String::new())) } else { value(input)? };
    Ok(Parts { action, key, package, value: Some(value) })
}

/// `db`, `db.host`, `hydra/launcher`, or nothing: the root.
fn key_or_group(input: &mut Tokens<'_, '_>) -> Result<String> {
    match kinds(input) {
        [Some(Kind::Id), Some(Kind::Slash)] => {
            let steps: Vec<&str> =
                separated(2.., token(Kind::Id).context(expected("a name")), token(Kind::Slash)).parse_next(input)?;
            Ok(steps.join("/"))
        }
        _ => package(input),
    }
}

fn package(input: &mut Tokens<'_, '_>) -> Result<String> {
    let path = alt((token(Kind::Id), token(Kind::KeySpecial), token(Kind::DotPath)));
    opt(path).map(|path| path.unwrap_or_default().to_owned()).parse_next(input)
}

/// An element, or several with commas between: a sweep.
fn value(input: &mut Tokens<'_, '_>) -> Result<Syntax> {
    let mut elements: Vec<Syntax> = with_commas(element).parse_next(input)?;
    match elements.len() {
        1 => Ok(elements.remove(0)),
        _ => Ok(Syntax::Choices(elements)),
    }
}

/// One or more; what follows a comma must be one.
fn with_commas<'t, 'a: 't, T>(
    item: fn(&mut Tokens<'t, 'a>) -> Result<T>,
) -> impl Parser<Tokens<'t, 'a>, Vec<T>, winnow::error::ErrMode<ContextError>> {
    move |input: &mut Tokens<'t, 'a>| {
        let mut items = vec![item(input)?];
        while opt(token(Kind::Comma)).parse_next(input)?.is_some() {
            items.push(cut_err(item).parse_next(input)?);
        }
        Ok(items)
    }
}

fn element(input: &mut Tokens<'_, '_>) -> Result<Syntax> {
    match kinds(input) {
        [Some(Kind::BracketOpen), _] => list(input),
        [Some(Kind::BraceOpen), _] => map(input),
        [Some(Kind::Id), Some(Kind::ParenOpen)] => call(input),
        [Some(Kind::Quoted), _] => quoted.map(Syntax::Element).parse_next(input),
        _ => primitive(VALUE_KINDS).map(Syntax::Element).context(expected("a value")).parse_next(input),
    }
}

fn list(input: &mut Tokens<'_, '_>) -> Result<Syntax> {
    token(Kind::BracketOpen).parse_next(input)?;
    let items = if kinds(input)[0] == Some(Kind::BracketClose) {
        Vec::new()
    } else {
        cut_err(with_commas(element)).parse_next(input)?
    };
    cut_err(token(Kind::BracketClose).context(expected("`,` or `]`"))).parse_next(input)?;
    Ok(Syntax::List(items))
}

fn map(input: &mut Tokens<'_, '_>) -> Result<Syntax> {
    token(Kind::BraceOpen).parse_next(input)?;
    let entries = if kinds(input)[0] == Some(Kind::BraceClose) {
        Vec::new()
    } else {
        cut_err(with_commas(entry)).parse_next(input)?
    };
    cut_err(token(Kind::BraceClose).context(expected("`,` or `}`"))).parse_next(input)?;
    Ok(Syntax::Map(entries))
}

fn entry(input: &mut Tokens<'_, '_>) -> Result<(Element, Syntax)> {
    let key = primitive(KEY_KINDS).context(expected("a key")).parse_next(input)?;
    cut_err(token(Kind::Colon).context(expected("`:`"))).parse_next(input)?;
    Ok((key, cut_err(element).parse_next(input)?))
}

fn call(input: &mut Tokens<'_, '_>) -> Result<Syntax> {
    let before = *input;
    let name = token(Kind::Id).parse_next(input)?.to_owned();
    token(Kind::ParenOpen).parse_next(input)?;
    let arguments = if kinds(input)[0] == Some(Kind::ParenClose) {
        Vec::new()
    } else {
        cut_err(with_commas(argument)).parse_next(input)?
    };
    cut_err(token(Kind::ParenClose).context(expected("`,` or `)`"))).parse_next(input)?;
    let text = before[..before.len() - input.len()].iter().map(|token| token.text).collect();
    Ok(Syntax::Call { name, arguments, text })
}

fn argument(input: &mut Tokens<'_, '_>) -> Result<(Option<String>, Syntax)> {
    let name = match kinds(input) {
        [Some(Kind::Id), Some(Kind::Equal)] => {
            Some(terminated(token(Kind::Id), token(Kind::Equal)).parse_next(input)?.to_owned())
        }
        _ => None,
    };
    Ok((name, cut_err(element).parse_next(input)?))
}

fn quoted(input: &mut Tokens<'_, '_>) -> Result<Element> {
    let unquoted = |text| element::unquoted(text).map(|(text, quote)| Element::Quoted(text, quote));
    token(Kind::Quoted).verify_map(unquoted).parse_next(input)
}

/// The tokens that text without quotes is made of.
const VALUE_KINDS: &[Kind] = &[
    Kind::Id,
    Kind::Null,
    Kind::Int,
    Kind::Float,
    Kind::Bool,
    Kind::Interpolation,
    Kind::UnquotedChar,
    Kind::Colon,
    Kind::Escape,
    Kind::Space,
];
/// Those of a key in `{…}`.
const KEY_KINDS: &[Kind] =
    &[Kind::Id, Kind::Null, Kind::Int, Kind::Float, Kind::Bool, Kind::UnquotedChar, Kind::Escape, Kind::Space];

/// One token is what it is (`1` a number, `null` null); several are text. Spaces around don't count.
fn primitive<'t, 'a: 't>(
    kinds: &'static [Kind],
) -> impl Parser<Tokens<'t, 'a>, Element, winnow::error::ErrMode<ContextError>> {
    let run =
        repeat::<_, _, Vec<Token<'a>>, _, _>(1.., any.verify(move |token: &Token<'a>| kinds.contains(&token.kind)));
    run.verify_map(|run| {
        let is_space = |token: &&Token<'_>| token.kind == Kind::Space;
        let run = &run[run.first().is_some_and(|token| is_space(&token)).into()..];
        let run = &run[..run.len() - usize::from(run.last().is_some_and(|token| is_space(&token)))];
        match run {
            [] => None,
            [token] => Some(match override_lexer::scalar(token) {
                Some(value) => Element::Scalar(value),
                None => Element::Text(override_lexer::plain_text(token)),
            }),
            tokens => Some(Element::Text(tokens.iter().map(override_lexer::plain_text).collect())),
        }
    })
}

/// A token of that kind; its text.
fn token<'t, 'a: 't>(kind: Kind) -> impl Parser<Tokens<'t, 'a>, &'a str, winnow::error::ErrMode<ContextError>> {
    any.verify_map(move |token: Token<'a>| (token.kind == kind).then_some(token.text))
}

fn kinds(input: &Tokens<'_, '_>) -> [Option<Kind>; 2] {
    [input.first().map(|token| token.kind), input.get(1).map(|token| token.kind)]
}

fn expected(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

/// Evaluates the functions in a value.
fn evaluate(syntax: Syntax) -> std::result::Result<OverrideValue, String> {
    let one = |syntax| match evaluate(syntax)? {
        OverrideValue::One(element) => Ok(element),
        OverrideValue::Sweep(_) => Err("a sweep can't be inside a list, a map or another sweep".to_owned()),
    };
    Ok(OverrideValue::One(match syntax {
        Syntax::Element(element) => element,
        Syntax::List(items) => Element::List(items.into_iter().map(one).collect::<std::result::Result<_, _>>()?),
        Syntax::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| Ok((key, one(value)?)));
            Element::Map(entries.collect::<std::result::Result<_, String>>()?)
        }
        Syntax::Choices(items) => {
            let items = items.into_iter().map(one).collect::<std::result::Result<_, _>>()?;
            return Ok(OverrideValue::Sweep(Sweep::SimpleChoice(items)));
        }
        Syntax::Call { name, arguments, text } => {
            let mut call = Call { name, positional: Vec::new(), named: Vec::new() };
            for (name, value) in arguments {
                match name {
                    Some(name) => call.named.push((name, evaluate(value)?)),
                    None if call.named.is_empty() => call.positional.push(evaluate(value)?),
                    None => return Err("positional argument follows keyword argument".to_owned()),
                }
            }
            return functions::evaluate(call).map_err(|problem| format!("while evaluating '{text}': {problem}"));
        }
    }))
}

/// Nesting is counted before parsing, so that the parser can be recursive.
fn check_depth(tokens: &[Token<'_>]) -> std::result::Result<(), String> {
    let mut depth = 0_usize;
    for token in tokens {
        match token.kind {
            Kind::ParenOpen | Kind::BracketOpen | Kind::BraceOpen => depth += 1,
            Kind::ParenClose | Kind::BracketClose | Kind::BraceClose => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_OVERRIDE_DEPTH {
            return Err(format!("nested deeper than {MAX_OVERRIDE_DEPTH} levels"));
        }
    }
    Ok(())
}

fn bad_character(text: &str, NoToken { at }: NoToken) -> String {
    let character = text[at..].chars().next().unwrap_or_default();
    let in_key = !text[..at].contains('=');
    let problem = match character {
        '\'' | '"' if !in_key && !text[at + 1..].contains(character) => {
            format!("the quote {character} is never closed")
        }
        '$' | '{' if !in_key => format!("unexpected `{character}`"),
        _ if in_key => format!("`{character}` can't be in a key; write key=value"),
        _ => format!("`{character}` needs quotes"),
    };
    let way_out = if in_key { String::new() } else { way_out(text) };
    format!("{problem}\n{}{way_out}", marked(text, at))
}

fn bad_token(text: &str, tokens: &[Token<'_>], index: usize, error: &ContextError) -> String {
    let wanted: Vec<String> = error
        .context()
        .filter_map(|context| match context {
            StrContext::Expected(wanted) => Some(wanted.to_string()),
            _ => None,
        })
        .collect();
    let wanted = if wanted.is_empty() { String::new() } else { format!(", expected {}", wanted.join(" or ")) };
    let (at, problem) = match tokens.get(index) {
        None => (text.len(), format!("it ends too early{wanted}")),
        Some(token) => (token.at, format!("unexpected `{}`{wanted}", token.text.trim())),
    };
    let hint = if tokens.iter().any(|token| token.kind == Kind::Equal) {
        way_out(text)
    } else {
        "\nWrite key=value.".to_owned()
    };
    format!("{problem}\n{}{hint}", marked(text, at))
}

/// The text with a `^` under the byte `at`.
fn marked(text: &str, at: usize) -> String {
    let column = text[..at].chars().count();
    format!("  {}\n  {}^", text.replace('\n', " "), " ".repeat(column))
}

fn way_out(text: &str) -> String {
    match text.split_once('=') {
        Some((key, value)) if !value.contains('\'') => {
            format!(
                "\nTo give it as text, put quotes around it (and quotes of the shell around all): \"{key}='{value}'\""
            )
        }
        _ => "\nTo give it as text, put quotes around it; a quote inside needs a backslash: 'it\\'s'".to_owned(),
    }
}
