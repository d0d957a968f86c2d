//! Expands the defaults list: which files make up the configuration, in which order, and where each one goes.
//!
//! A file's list is worked through from its end, so that an `override` further down, or one on the command line, is known
//! before the choice that it changes. Rules: <https://hydra.cc/docs/1.3/advanced/defaults_list/>.

use std::collections::BTreeSet;

use crate::choices::{Choices, shown};
use crate::config::ConfigError;
use crate::default_entry::{self, Choice, Entry, Role, What};
use crate::interpolation::{self, OnMissing, Scope};
use crate::sources::{Listed, Sources};
use crate::suggest;
use crate::surroundings::Surroundings;
use crate::value::{Key, Map, Node, Origin, Value};

/// Deepest chain of files that name one another: a file that names itself would never end.
const MAX_FILES_DEEP: usize = 32;

/// Why the files can't be put together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ComposeError(pub String);

pub(crate) fn fail<T>(problem: String) -> Result<T, ConfigError> {
    Err(ComposeError(problem).into())
}

/// A line of a defaults list with what it led to.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) entry: Entry,
    /// Empty for a file without a defaults list.
    pub(crate) children: Vec<Tree>,
}

/// A file in its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    pub(crate) path: String,
    pub(crate) package: String,
    pub(crate) is_own: bool,
    pub(crate) parent: String,
    pub(crate) primary: bool,
}

/// Expands `hydra/config` and the primary config.
pub(crate) fn expand(
    sources: &Sources,
    config_name: &str,
    choices: &mut Choices,
    missing: MissingChoice,
    warnings: &mut Vec<String>,
) -> Result<Vec<Tree>, ConfigError> {
    let mut expander = Expander { sources, choices, missing, warnings };
    let mut primary = Entry::new(What::Config(config_name.to_owned()), None);
    primary.primary = true;
    let primary = expander.entry(primary, None, Within::Files(0))?;
    let hydra = expander.entry(Entry::new(What::Config("hydra/config".to_owned()), None), None, Within::Files(0))?;
    Ok(vec![hydra, primary])
}

/// What to do about a group whose choice is `???`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingChoice {
    Refuse,
    /// For a sweep, which may be what chooses.
    Skip,
}

/// How deep we are, and whether below a choice that is an interpolation, where no `override` is allowed any more.
#[derive(Clone, Copy)]
enum Within {
    Files(usize),
    Interpolated(usize),
}

impl Within {
    fn deeper(self) -> Result<Self, ConfigError> {
        let (Self::Files(depth) | Self::Interpolated(depth)) = self;
        if depth >= MAX_FILES_DEEP {
            return fail(format!(
                "the defaults lists go more than {MAX_FILES_DEEP} files deep; does a file name itself?"
            ));
        }
        Ok(match self {
            Self::Files(depth) => Self::Files(depth + 1),
            Self::Interpolated(depth) => Self::Interpolated(depth + 1),
        })
    }
}

struct Expander<'a> {
    sources: &'a Sources,
    choices: &'a mut Choices,
    missing: MissingChoice,
    warnings: &'a mut Vec<String>,
}

impl Expander<'_> {
    fn entry(&mut self, mut entry: Entry, parent: Option<&Entry>, within: Within) -> Result<Tree, ConfigError> {
        let leaf = |entry| Ok(Tree { entry, children: Vec::new() });
        let path = entry.config_path();
        let loaded = match &path {
            Some(path) if !entry.is_missing() => self.sources.load(path)?,
            _ => None,
        };
        entry.set_header(loaded.as_ref().and_then(|loaded| loaded.package.as_deref()));
        if self.choices.is_deleted(&entry) {
            entry.dropped = true;
            return leaf(entry);
        }
        self.choices.remember(&entry)?;
        let Some(path) = path else { return leaf(entry) };
        if entry.is_missing() {
            self.check_missing(&entry)?;
            return leaf(entry);
        }
        let Some(loaded) = loaded else {
            if entry.optional {
                entry.dropped = true;
                return leaf(entry);
            }
            return fail(self.not_found(&entry, &path, parent));
        };
        let list = default_entry::parse_list(&path, &loaded.root).map_err(ComposeError)?;
        let children = self.list(&entry, &path, list, &loaded.content(), within.deeper()?)?;
        Ok(Tree { entry, children })
    }

    /// The lines of a file's defaults list, expanded.
    fn list(
        &mut self,
        file: &Entry,
        path: &str,
        mut list: Vec<Entry>,
        content: &Node,
        within: Within,
    ) -> Result<Vec<Tree>, ConfigError> {
        let appended = if file.primary { self.choices.appended().to_vec() } else { Vec::new() };
        if !list.is_empty() || !appended.is_empty() {
            self.ensure_own(file, path, &mut list, content)?;
        }
        list.extend(appended);
        let (group, package) = (file.group_path(), file.final_package());
        for line in &mut list {
            line.place(&group, &package);
        }
        self.register_overrides(path, &list, within)?;

        let mut children: Vec<Tree> = Vec::new();
        for mut line in list.iter().rev().cloned() {
            if line.is_own() {
                line.place(file.parent_group(), file.own_package().unwrap_or_default());
                children.push(Tree { entry: line, children: Vec::new() });
                continue;
            }
            if line.role() == Some(Role::Override) {
                continue;
            }
            self.choices.change(&mut line);
            match &line.what {
                What::Group { group, choice: Choice::Many(names), .. } => {
                    for name in names.iter().rev() {
                        if name.contains("${") {
                            return fail(format!(
                                "In '{path}': Defaults List interpolation is not supported in options list items"
                            ));
                        }
                        let mut option = Entry::new(What::Config(format!("{group}/{name}")), line.package.clone());
                        option.optional = line.optional;
                        option.place(&file.group_path(), &file.final_package());
                        children.push(self.entry(option, Some(file), within)?);
                    }
                }
                _ if line.interpolation().is_some() => children.push(Tree { entry: line, children: Vec::new() }),
                _ => children.push(self.entry(line, Some(file), within)?),
            }
        }
        // Interpolations come last, when all other choices are made.
        let known = self.known_choices(&list);
        for child in &mut children {
            if let Some(name) = child.entry.interpolation() {
                let name = resolve_name(name, &known)?;
                let mut line = child.entry.clone();
                line.choose_name(name);
                let (Within::Files(depth) | Within::Interpolated(depth)) = within;
                *child = self.entry(line, Some(file), Within::Interpolated(depth))?;
            }
        }
        children.reverse();
        Ok(children)
    }

    /// A list without `_self_` gets one at its end: the file's own values win.
    fn ensure_own(
        &mut self,
        file: &Entry,
        path: &str,
        list: &mut Vec<Entry>,
        content: &Node,
    ) -> Result<(), ConfigError> {
        match list.iter().filter(|line| line.is_own()).count() {
            0 => {}
            1 => return Ok(()),
            _ => return fail(format!("Duplicate _self_ defined in {path}")),
        }
        let chooses = list.iter().any(|line| line.role() != Some(Role::Override));
        if !chooses && !list.is_empty() {
            return Ok(());
        }
        let has_content = content.as_map().is_some_and(|map| map.values().any(|node| node.value != Value::Missing));
        if file.primary && has_content && chooses {
            self.warnings.push(format!(
                "In '{path}': Defaults list is missing `_self_`. \
                 See https://hydra.cc/docs/1.2/upgrades/1.0_to_1.1/default_composition_order for more information"
            ));
        }
        list.push(Entry::new(What::Own, None));
        Ok(())
    }

    fn register_overrides(&mut self, path: &str, list: &[Entry], within: Within) -> Result<(), ConfigError> {
        let mut last: Option<&Entry> = None;
        for line in list.iter().filter(|line| !line.is_own()) {
            match (line.role(), last) {
                (Some(Role::Override), _) => {}
                (Some(Role::Append), _) | (_, None) => continue,
                (_, Some(last)) => {
                    let (key, name) = (last.override_key(), last.name().unwrap_or("null"));
                    return fail(format!(
                        "In {path}: Override '{key} : {name}' is defined before '{}'.\nOverrides must be at the end of the defaults list",
                        line.config_path().unwrap_or_else(|| line.override_key())
                    ));
                }
            }
            let key = line.override_key();
            if let Within::Interpolated(_) = within {
                return fail(format!(
                    "{path}: Default List Overrides are not allowed in the subtree of an in interpolated config group (override {key}={}).",
                    line.name().unwrap_or("null")
                ));
            }
            last = Some(line);
            if let What::Group { choice, .. } = &line.what {
                self.choices.add_from_file(key, choice.clone(), path);
            }
        }
        Ok(())
    }

    fn check_missing(&self, entry: &Entry) -> Result<(), ConfigError> {
        if self.missing == MissingChoice::Skip {
            return Ok(());
        }
        let key = entry.override_key();
        let options = self.sources.list(&entry.group_path(), Listed::Files).join("\n\t");
        fail(format!("You must specify '{key}', e.g, {key}=<OPTION>\nAvailable options:\n\t{options}"))
    }

    /// The choices made so far, for `${group}` in a defaults list.
    fn known_choices(&self, list: &[Entry]) -> Node {
        let text = |text: String| Node::new(Value::Text(text), Origin::Default);
        let mut known: Map =
            self.choices.made.iter().map(|(key, choice)| (Key::Text(key.clone()), text(shown(choice)))).collect();
        let defaults = list.iter().filter_map(|line| match &line.what {
            What::Own => None,
            What::Config(_) => line.config_path().map(text),
            What::Group { choice, .. } => {
                let choice = Map::from_iter([(Key::Text(line.override_key()), text(shown(choice)))]);
                Some(Node::new(Value::Map(choice), Origin::Default))
            }
        });
        known.insert(Key::from("defaults"), Node::new(Value::List(defaults.collect()), Origin::Default));
        Node::new(Value::Map(known), Origin::Default)
    }

    fn not_found(&self, entry: &Entry, path: &str, parent: Option<&Entry>) -> String {
        let sources: Vec<String> = self
            .sources
            .iter()
            .map(|source| format!("\tprovider={}, path={}", source.provider, source.url()))
            .collect();
        let search_path = format!("Config search path:\n{}", sources.join("\n"));
        let names = self.sources.list(&entry.group_path(), Listed::Files);
        let near = suggest::nearest(entry.name().unwrap_or_default(), names.iter().map(String::as_str))
            .map(|name| format!("Did you mean '{name}'?\n"))
            .unwrap_or_default();
        if entry.primary {
            return format!(
                "Cannot find primary config '{path}'. Check that it's in your config search path.\n{near}\n{search_path}"
            );
        }
        let parent = parent.and_then(Entry::config_path).map(|parent| format!("In '{parent}': ")).unwrap_or_default();
        if entry.role().is_none() {
            return format!("{parent}Could not load '{path}'.\n{near}\n{search_path}");
        }
        let options = match names.as_slice() {
            [] => String::new(),
            names => format!("\nAvailable options in '{}':\n\t{}", entry.group_path(), names.join("\n\t")),
        };
        format!("{parent}Could not find '{path}'\n{near}{options}\n{search_path}")
    }
}

fn resolve_name(name: &str, known: &Node) -> Result<String, ConfigError> {
    let node = Node::new(Value::Interpolation(name.to_owned()), Origin::Default);
    let surroundings = Surroundings::default();
    let scope =
        Scope { root: known, hydra: None, surroundings: &surroundings, depth: 0, on_missing: OnMissing::Refuse };
    if let Ok(Node { value: Value::Text(name), .. }) = interpolation::resolve_at(scope, &node, &[Key::from("_dummy_")])
    {
        return Ok(name);
    }
    let keys = known.as_map().into_iter().flatten().map(|(key, _)| key.to_string()).filter(|key| key != "defaults");
    let keys: Vec<String> = keys.collect();
    fail(format!("Error resolving interpolation '{name}', possible interpolation keys: {}", keys.join(", ")))
}

/// The files of the trees in the order in which they are merged.
pub(crate) fn flatten(trees: &[Tree]) -> Result<Vec<Placed>, ConfigError> {
    let mut placed = Vec::new();
    let mut keys = BTreeSet::new();
    for tree in trees {
        walk(tree, None, &mut placed, &mut keys)?;
    }
    Ok(placed)
}

fn walk(
    tree: &Tree,
    parent: Option<&Tree>,
    placed: &mut Vec<Placed>,
    keys: &mut BTreeSet<String>,
) -> Result<(), ConfigError> {
    for child in &tree.children {
        if child.entry.is_own() {
            placed.push(Placed {
                path: tree.entry.config_path().unwrap_or_default(),
                package: tree.entry.final_package(),
                is_own: true,
                parent: parent
                    .map_or_else(|| "<root>".to_owned(), |parent| parent.entry.config_path().unwrap_or_default()),
                primary: tree.entry.primary,
            });
        } else {
            walk(child, Some(tree), placed, keys)?;
        }
    }
    let entry = &tree.entry;
    let Some(path) = entry.config_path().filter(|_| tree.children.is_empty() && !entry.dropped && !entry.is_missing())
    else {
        return Ok(());
    };
    if entry.role().is_some() && !keys.insert(entry.override_key()) {
        return fail(format!("{} appears more than once in the final defaults list", entry.override_key()));
    }
    placed.push(Placed {
        path,
        package: entry.final_package(),
        is_own: false,
        parent: parent.map_or_else(|| "<root>".to_owned(), |parent| parent.entry.config_path().unwrap_or_default()),
        primary: entry.primary,
    });
    Ok(())
}
