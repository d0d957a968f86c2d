//! The command line's words, read as Python's `argparse` does it for a Hydra program.
//!
//! What matters: long options may be cut short (`--multi`), `-cjob` and `--cfg=job` give a value, short flags can share a dash
//! (`-mr`), overrides must stand together, and an error ends with exit code 2.
//! Rules: <https://docs.python.org/3.12/library/argparse.html>.

/// What the command line asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each flag that argparse would set")]
pub(crate) struct Arguments {
    pub(crate) help: bool,
    pub(crate) hydra_help: bool,
    pub(crate) version: bool,
    pub(crate) cfg: Option<String>,
    pub(crate) resolve: bool,
    pub(crate) package: Option<String>,
    pub(crate) run: bool,
    pub(crate) multirun: bool,
    pub(crate) shell_completion: bool,
    pub(crate) config_path: Option<String>,
    pub(crate) config_name: Option<String>,
    pub(crate) config_dir: Option<String>,
    pub(crate) experimental_rerun: Option<String>,
    pub(crate) info: Option<String>,
    pub(crate) overrides: Vec<String>,
}

/// Options of the original's own line of help.
pub(crate) struct Spec {
    pub(crate) long: &'static str,
    pub(crate) short: Option<&'static str>,
    takes: Takes,
}

#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Nothing,
    One,
    OneOf(&'static [&'static str]),
    MaybeOneOf(&'static [&'static str]),
}

const fn spec(long: &'static str, short: Option<&'static str>, takes: Takes) -> Spec {
    Spec { long, short, takes }
}

const INFO: &[&str] = &["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"];

pub(crate) const OPTIONS: &[Spec] = &[
    spec("--help", Some("-h"), Takes::Nothing),
    spec("--hydra-help", None, Takes::Nothing),
    spec("--version", None, Takes::Nothing),
    spec("--cfg", Some("-c"), Takes::OneOf(&["job", "hydra", "all"])),
    spec("--resolve", None, Takes::Nothing),
    spec("--package", Some("-p"), Takes::One),
    spec("--run", Some("-r"), Takes::Nothing),
    spec("--multirun", Some("-m"), Takes::Nothing),
    spec("--shell-completion", Some("-sc"), Takes::Nothing),
    spec("--config-path", Some("-cp"), Takes::One),
    spec("--config-name", Some("-cn"), Takes::One),
    spec("--config-dir", Some("-cd"), Takes::One),
    spec("--experimental-rerun", None, Takes::One),
    spec("--info", Some("-i"), Takes::MaybeOneOf(INFO)),
];

/// A word of the command line.
#[derive(Clone)]
enum Word<'a> {
    Plain(&'a str),
    /// An option, as it was spelled, with the value that was attached.
    Option(&'static Spec, &'static str, Option<&'a str>),
    /// Looks like an option, but isn't one.
    Unknown(&'a str),
    /// `--`: what follows are overrides, whatever they look like.
    Separator,
}

/// Reads the words; an error is one line, to be shown below the usage.
pub(crate) fn parse(words: &[String]) -> Result<Arguments, String> {
    let mut read: Vec<Word<'_>> = Vec::with_capacity(words.len());
    let mut only_plain = false;
    for word in words {
        if word == "--" && !only_plain {
            only_plain = true;
            read.push(Word::Separator);
        } else {
            read.push(if only_plain { Word::Plain(word) } else { classify(word)? });
        }
    }
    let mut arguments = Arguments::default();
    let mut unknown: Vec<&str> = Vec::new();
    let mut overrides_taken = false;
    let mut at = 0;
    while at < read.len() {
        match read[at].clone() {
            Word::Plain(_) | Word::Separator if !overrides_taken => {
                // All overrides are taken from the first place where there are any.
                let run = read[at..].iter().take_while(|word| matches!(word, Word::Plain(_) | Word::Separator));
                at += run.clone().count();
                let plain = run.filter_map(|word| if let Word::Plain(word) = word { Some(*word) } else { None });
                arguments.overrides = plain.map(ToOwned::to_owned).collect();
                overrides_taken = true;
            }
            Word::Separator => {
                unknown.push("--");
                at += 1;
            }
            Word::Plain(word) | Word::Unknown(word) => {
                unknown.push(word);
                at += 1;
            }
            Word::Option(spec, spelled, attached) => {
                let next = match read.get(at + 1) {
                    Some(Word::Plain(word)) => Some(*word),
                    _ => None,
                };
                at += 1 + arguments.take(spec, spelled, attached, next)?;
                if arguments.version {
                    return Ok(arguments);
                }
            }
        }
    }
    if unknown.is_empty() { Ok(arguments) } else { Err(format!("unrecognized arguments: {}", unknown.join(" "))) }
}

fn names() -> impl Iterator<Item = (&'static str, &'static Spec)> {
    OPTIONS.iter().flat_map(|spec| [Some(spec.long), spec.short].into_iter().flatten().map(move |name| (name, spec)))
}

fn exact(name: &str) -> Option<(&'static str, &'static Spec)> {
    names().find(|(known, _)| *known == name)
}

fn classify(word: &str) -> Result<Word<'_>, String> {
    if !word.starts_with('-') || word.len() == 1 {
        return Ok(Word::Plain(word));
    }
    if let Some((name, spec)) = exact(word) {
        return Ok(Word::Option(spec, name, None));
    }
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    if let (Some((name, spec)), Some(value)) = (exact(name), value) {
        return Ok(Word::Option(spec, name, Some(value)));
    }
    let candidates: Vec<Word<'_>> = if word.starts_with("--") {
        names()
            .filter(|(known, _)| known.starts_with(name))
            .map(|(known, spec)| Word::Option(spec, known, value))
            .collect()
    } else {
        let attached = |known: &str| word.strip_prefix(known).filter(|_| known.len() == 2);
        names()
            .filter_map(|(known, spec)| match attached(known) {
                Some(value) => Some(Word::Option(spec, known, Some(value))),
                None => known.starts_with(word).then_some(Word::Option(spec, known, None)),
            })
            .collect()
    };
    match candidates.as_slice() {
        [one] => return Ok(one.clone()),
        [] => {}
        many => {
            let known =
                many.iter().filter_map(|word| if let Word::Option(_, known, _) = word { Some(*known) } else { None });
            return Err(format!("ambiguous option: {word} could match {}", known.collect::<Vec<_>>().join(", ")));
        }
    }
    let number = word[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.') && word[1..].parse::<f64>().is_ok();
    Ok(if number || word.contains(' ') { Word::Plain(word) } else { Word::Unknown(word) })
}

impl Arguments {
    /// Takes an option; says how many of the following words were its value.
    fn take(
        &mut self,
        spec: &'static Spec,
        spelled: &str,
        attached: Option<&str>,
        next: Option<&str>,
    ) -> Result<usize, String> {
        let error = |problem: String| {
            let names = [Some(spec.long), spec.short].into_iter().flatten().collect::<Vec<_>>().join("/");
            format!("argument {names}: {problem}")
        };
        let choice = |value: &str, allowed: &[&str]| {
            if allowed.contains(&value) {
                return Ok(());
            }
            let allowed = allowed.iter().map(|choice| format!("'{choice}'")).collect::<Vec<_>>().join(", ");
            Err(error(format!("invalid choice: '{value}' (choose from {allowed})")))
        };
        let (value, used) = match (attached, next) {
            (Some(value), _) => (Some(value), 0),
            (None, Some(value)) => (Some(value), 1),
            (None, None) => (None, 0),
        };
        match (spec.takes, value) {
            (Takes::Nothing, _) => {
                self.set_flag(spec.long);
                let Some(attached) = attached else { return Ok(0) };
                // `-mr`: what is attached to a flag is a further one.
                let further = attached.chars().next().and_then(|first| exact(&format!("-{first}")));
                match further {
                    Some((name, spec)) if !spelled.starts_with("--") => {
                        let rest = Some(&attached[1..]).filter(|rest| !rest.is_empty());
                        self.take(spec, name, rest, next)
                    }
                    _ => Err(error(format!("ignored explicit argument '{attached}'"))),
                }
            }
            (Takes::MaybeOneOf(_), None) => {
                self.info = Some("all".to_owned());
                Ok(0)
            }
            (Takes::One | Takes::OneOf(_), None) => Err(error("expected one argument".to_owned())),
            (Takes::One, Some(value)) => {
                self.set_value(spec.long, value);
                Ok(used)
            }
            (Takes::OneOf(allowed) | Takes::MaybeOneOf(allowed), Some(value)) => {
                choice(value, allowed)?;
                self.set_value(spec.long, value);
                Ok(used)
            }
        }
    }

    fn set_flag(&mut self, long: &str) {
        match long {
            "--help" => self.help = true,
            "--hydra-help" => self.hydra_help = true,
            "--version" => self.version = true,
            "--resolve" => self.resolve = true,
            "--run" => self.run = true,
            "--multirun" => self.multirun = true,
            _ => self.shell_completion = true,
        }
    }

    fn set_value(&mut self, long: &str, value: &str) {
        let target = match long {
            "--cfg" => &mut self.cfg,
            "--package" => &mut self.package,
            "--config-path" => &mut self.config_path,
            "--config-name" => &mut self.config_name,
            "--config-dir" => &mut self.config_dir,
            "--experimental-rerun" => &mut self.experimental_rerun,
            _ => &mut self.info,
        };
        *target = Some(value.to_owned());
    }
}

/// The usage as `argparse` lays it out: filled up to 78 columns, the overrides on a line of their own.
pub(crate) fn usage(program: &str) -> String {
    const WIDTH: usize = 78;
    let head = format!("usage: {program}");
    let indent = " ".repeat(head.len());
    let mut text = head.clone();
    let mut column = head.len();
    for spec in OPTIONS {
        let name = spec.long.trim_start_matches('-').to_uppercase().replace('-', "_");
        let part = match spec.takes {
            Takes::Nothing => format!(" [{}]", spec.long),
            Takes::One => format!(" [{} {name}]", spec.long),
            Takes::OneOf(choices) => format!(" [{} {{{}}}]", spec.long, choices.join(",")),
            Takes::MaybeOneOf(choices) => format!(" [{} [{{{}}}]]", spec.long, choices.join(",")),
        };
        if column + part.len() > WIDTH {
            text.push('\n');
            text.push_str(&indent);
            column = indent.len();
        }
        text.push_str(&part);
        column += part.len();
    }
    format!("{text}\n{indent} [overrides ...]\n")
}
