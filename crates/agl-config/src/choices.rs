//! Which option of each config group is taken: what the command line and `override` lines change, and what was chosen.

use std::collections::{BTreeSet, HashMap};

use indexmap::IndexMap;

use crate::config::ConfigError;
use crate::default_entry::{Choice, Entry, Role, What};
use crate::defaults::fail;
use crate::element::Element;
use crate::override_grammar::{Action, Override, OverrideValue};
use crate::sources::Sources;
use crate::value::Value;

/// Group choices of the command line, and those that were made.
pub(crate) struct Choices {
    changes: IndexMap<String, Change>,
    appended: Vec<Entry>,
    deletions: IndexMap<String, Deletion>,
    /// What was chosen, by override key, in the order in which it was met.
    pub(crate) made: IndexMap<String, Choice>,
    made_per_group: HashMap<String, BTreeSet<String>>,
    /// Overrides that are about values.
    pub(crate) value_overrides: Vec<Override>,
}

struct Change {
    choice: Choice,
    /// The file that has the `override` line; `None` for the command line.
    from: Option<String>,
    used: bool,
}

struct Deletion {
    name: Option<String>,
    used: bool,
}

impl Choices {
    /// Tells overrides of groups from overrides of values.
    pub(crate) fn new(sources: &Sources, overrides: &[Override]) -> Result<Self, ConfigError> {
        let mut choices = Self {
            changes: IndexMap::new(),
            appended: Vec::new(),
            deletions: IndexMap::new(),
            made: IndexMap::new(),
            made_per_group: HashMap::new(),
            value_overrides: Vec::new(),
        };
        for change in overrides {
            let element = match &change.value {
                Some(OverrideValue::Sweep(_)) => continue,
                Some(OverrideValue::One(element)) => Some(element),
                None => None,
            };
            if matches!(element, Some(Element::Map(_))) || !sources.is_group(&change.key) {
                choices.value_overrides.push(change.clone());
                continue;
            }
            choices.add(change, element)?;
        }
        Ok(choices)
    }

    fn add(&mut self, change: &Override, element: Option<&Element>) -> Result<(), ConfigError> {
        let key = change.key_element();
        if change.action == Action::Delete {
            let name = match element.map(choice_of).transpose().ok().flatten() {
                Some(Choice::One(name)) => Some(name),
                _ if matches!(element, None | Some(Element::Scalar(Value::Null))) => None,
                _ => return fail(format!("Config group override deletion value must be a string : {}", change.text)),
            };
            self.deletions.insert(key[1..].to_owned(), Deletion { name, used: false });
            return Ok(());
        }
        if change.action == Action::Force {
            return fail(format!("force-add of config groups is not supported: '{}'", change.text));
        }
        let choice = match element.map(choice_of) {
            Some(Ok(choice)) => choice,
            Some(Err(kind)) => {
                return fail(format!(
                    "Config group override must be a string or a list. Got {kind}\nin '{}'",
                    change.text
                ));
            }
            None => return Ok(()),
        };
        if change.action == Action::Add {
            let what = What::Group { group: change.key.clone(), choice, role: Role::Append };
            self.appended.push(Entry::new(what, change.package.clone()));
        } else {
            self.changes.insert(key, Change { choice, from: None, used: false });
        }
        Ok(())
    }

    /// An `override` line of the file `path`. The first one counts, and the command line before all.
    pub(crate) fn add_from_file(&mut self, key: String, choice: Choice, path: &str) {
        let change = Change { choice, from: Some(path.to_owned()), used: false };
        self.changes.entry(key).or_insert(change);
    }

    /// Lines that the command line adds to the list of the primary config.
    pub(crate) fn appended(&self) -> &[Entry] {
        &self.appended
    }

    /// Every choice on the command line, and every `override` line, must have changed something.
    pub(crate) fn check_used(&self) -> Result<(), ConfigError> {
        if let Some((key, change)) = self.changes.iter().find(|(_, change)| !change.used) {
            let group = key.split('@').next().unwrap_or(key);
            let known: Vec<&str> = self.made_per_group.get(group).into_iter().flatten().map(String::as_str).collect();
            let hint = match known.as_slice() {
                [] => format!("Could not override '{key}'. No match in the defaults list."),
                [one] => format!("Could not override '{key}'.\nDid you mean to override {one}?"),
                many => format!("Could not override '{key}'.\nDid you mean to override one of {}?", many.join(", ")),
            };
            return fail(match &change.from {
                Some(path) => format!("In '{path}': {hint}"),
                None => format!("{hint}\nTo append to your default list use +{key}={}", shown(&change.choice)),
            });
        }
        if let Some((key, deletion)) = self.deletions.iter().find(|(_, deletion)| !deletion.used) {
            let name = deletion.name.as_ref().map(|name| format!("={name}")).unwrap_or_default();
            return fail(format!("Could not delete '{key}{name}'. No match in the defaults list"));
        }
        Ok(())
    }

    /// Whether `~group` on the command line takes the line away.
    pub(crate) fn is_deleted(&mut self, entry: &Entry) -> bool {
        if entry.role().is_none() {
            return false;
        }
        match self.deletions.get_mut(&entry.override_key()) {
            Some(deletion) if deletion.name.is_none() || deletion.name.as_deref() == entry.name() => {
                deletion.used = true;
                true
            }
            _ => false,
        }
    }

    /// Notes a choice; the same group can't be chosen twice with different names.
    pub(crate) fn remember(&mut self, entry: &Entry) -> Result<(), ConfigError> {
        let What::Group { choice, .. } = &entry.what else { return Ok(()) };
        let key = entry.override_key();
        let previous = self.made.entry(key.clone()).or_insert_with(|| choice.clone());
        if previous != choice {
            let previous = shown(previous);
            return fail(format!("Multiple values for {key}. To override a value use 'override {key}: {previous}'"));
        }
        self.made_per_group.entry(entry.group_path()).or_default().insert(key);
        Ok(())
    }

    /// Changes the choice of a line, if the command line or an `override` does so.
    pub(crate) fn change(&mut self, entry: &mut Entry) {
        if entry.role().is_some()
            && let Some(change) = self.changes.get_mut(&entry.override_key())
        {
            entry.choose(change.choice.clone());
            change.used = true;
        }
    }
}

fn choice_of(element: &Element) -> Result<Choice, &'static str> {
    let name = |element: &Element| match element {
        Element::Text(name) | Element::Quoted(name, _) => Ok(name.clone()),
        Element::Scalar(Value::Null) => Err("NoneType"),
        Element::Scalar(Value::Bool(_)) => Err("bool"),
        Element::Scalar(Value::Float(_)) => Err("float"),
        Element::Scalar(_) => Err("int"),
        Element::List(_) => Err("list"),
        Element::Map(_) => Err("dict"),
    };
    match element {
        Element::List(items) => Ok(Choice::Many(items.iter().map(name).collect::<Result<_, _>>()?)),
        other => Ok(Choice::One(name(other)?)),
    }
}

pub(crate) fn shown(choice: &Choice) -> String {
    match choice {
        Choice::None => "null".to_owned(),
        Choice::One(name) => name.clone(),
        Choice::Many(names) => format!("[{}]", names.join(",")),
    }
}
