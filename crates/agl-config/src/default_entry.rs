//! One line of a defaults list: `- server`, `- proxy@default_proxy: big`, `- override hydra/job_logging: none`, `- _self_`.
//!
//! What it means depends on where it stands: [`Entry`] keeps the folder and package of the file around it, and works out
//! which file it names and where in the tree that file's content goes.
//! Rules: <https://hydra.cc/docs/1.3/advanced/defaults_list/>.

use crate::value::{Key, Node, Value};

/// A line of a defaults list, and the file that it stands in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) what: What,
    /// `@package`
    pub(crate) package: Option<String>,
    /// `optional`: no error if the file doesn't exist.
    pub(crate) optional: bool,
    /// The file that the program was asked for.
    pub(crate) primary: bool,
    /// Left out of the result: deleted by `~group`, or optional and not there.
    pub(crate) dropped: bool,
    /// Group of the file around.
    parent_group: String,
    /// Package of the file around.
    parent_package: String,
    /// `# @package` of the file named.
    header: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    /// `_self_`: the file around.
    Own,
    /// A file by its path.
    Config(String),
    /// An option of a config group.
    Group { group: String, choice: Choice, role: Role },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Choice {
    /// `group: null`
    None,
    /// `group: name`
    One(String),
    /// `group: [a, b]`
    Many(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Chooses an option.
    Choose,
    /// `override`: changes a choice made elsewhere.
    Override,
    /// `+group=name` on the command line.
    Append,
}

impl Entry {
    pub(crate) fn new(what: What, package: Option<String>) -> Self {
        let package = package.map(|package| if package == "_here_" { String::new() } else { package });
        Self {
            what,
            package,
            optional: false,
            primary: false,
            dropped: false,
            parent_group: String::new(),
            parent_package: String::new(),
            header: None,
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.what == What::Own
    }

    pub(crate) fn role(&self) -> Option<Role> {
        match self.what {
            What::Group { role, .. } => Some(role),
            _ => None,
        }
    }

    /// Says in which file the line stands.
    pub(crate) fn place(&mut self, parent_group: &str, parent_package: &str) {
        parent_group.clone_into(&mut self.parent_group);
        parent_package.clone_into(&mut self.parent_package);
        if let Some(package) = self.package.as_ref().filter(|package| package.contains("_group_")) {
            let package = package.replace("_group_", &self.default_package());
            self.package = Some(format!("_global_.{package}"));
        }
    }

    pub(crate) fn parent_group(&self) -> &str {
        &self.parent_group
    }

    /// Takes the `# @package` line of the file; it always counts from the root.
    pub(crate) fn set_header(&mut self, header: Option<&str>) {
        self.header = header.map(|header| match header {
            "_global_" | "" => "_global_".to_owned(),
            absolute if absolute.starts_with("_global_.") => absolute.to_owned(),
            relative => format!("_global_.{relative}"),
        });
    }

    /// The config group: `hydra/job_logging`; empty for a file at the top.
    pub(crate) fn group_path(&self) -> String {
        let own = match &self.what {
            What::Own => "",
            What::Config(path) => path.rsplit_once('/').map_or("", |(group, _)| group),
            What::Group { group, .. } => group,
        };
        self.below_parent(own)
    }

    /// The file: `hydra/job_logging/default`. `None` for `group: null`.
    pub(crate) fn config_path(&self) -> Option<String> {
        match &self.what {
            What::Config(path) => Some(self.below_parent(path)),
            What::Group { choice: Choice::One(name), .. } => Some(format!("{}/{name}", self.group_path())),
            What::Own | What::Group { .. } => None,
        }
    }

    /// A path that begins with `/` counts from the top, any other one from the group of the file around.
    fn below_parent(&self, path: &str) -> String {
        match path.strip_prefix('/') {
            Some(absolute) => absolute.to_owned(),
            None if self.parent_group.is_empty() => path.to_owned(),
            None if path.is_empty() => self.parent_group.clone(),
            None => format!("{}/{path}", self.parent_group),
        }
    }

    /// The name of the file, without its group.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.what {
            What::Own => Some("_self_"),
            What::Config(path) => Some(path.rsplit('/').next().unwrap_or(path)),
            What::Group { choice: Choice::One(name), .. } => Some(name),
            What::Group { .. } => None,
        }
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.name() == Some("???")
    }

    fn default_package(&self) -> String {
        self.group_path().replace('/', ".")
    }

    /// What the line itself says about the package, or else the file.
    pub(crate) fn own_package(&self) -> Option<&str> {
        self.package.as_deref().or(self.header.as_deref())
    }

    /// Where in the tree the file's content goes.
    pub(crate) fn final_package(&self) -> String {
        self.package_in_parent(self.own_package())
    }

    fn package_in_parent(&self, package: Option<&str>) -> String {
        let package = package.map_or_else(
            || {
                let relative = match &self.what {
                    What::Own => "",
                    What::Config(path) => path.rsplit_once('/').map_or("", |(group, _)| group),
                    What::Group { group, .. } => group,
                };
                relative.trim_start_matches('/').replace('/', ".")
            },
            ToOwned::to_owned,
        );
        let joined = match (self.parent_package.as_str(), package.as_str()) {
            ("", package) => package.to_owned(),
            (parent, "") => parent.to_owned(),
            (parent, package) => format!("{parent}.{package}"),
        };
        match joined.rfind("_global_") {
            None => joined,
            Some(at) => joined[at + "_global_".len()..].trim_start_matches('.').to_owned(),
        }
    }

    /// What an override has to name to change this choice: `proxy@default_proxy`.
    pub(crate) fn override_key(&self) -> String {
        let group = self.group_path();
        match self.package_in_parent(self.package.as_deref()) {
            package if package == self.default_package() => group,
            package if package.is_empty() => format!("{group}@_global_"),
            package => format!("{group}@{package}"),
        }
    }

    /// The choice, if it is `${…}`.
    pub(crate) fn interpolation(&self) -> Option<&str> {
        self.name().filter(|name| name.contains("${"))
    }

    pub(crate) fn choose(&mut self, new: Choice) {
        if let What::Group { choice, .. } = &mut self.what {
            *choice = new;
        }
    }

    /// Puts the resolved name in the place of its interpolation.
    pub(crate) fn choose_name(&mut self, name: String) {
        match &mut self.what {
            What::Group { choice, .. } => *choice = Choice::One(name),
            What::Config(path) => *path = name,
            What::Own => {}
        }
    }
}

/// The defaults list of the file `path`; empty if it has none.
pub(crate) fn parse_list(path: &str, root: &Node) -> Result<Vec<Entry>, String> {
    let Some(list) = root.get("defaults") else { return Ok(Vec::new()) };
    match &list.value {
        Value::List(items) => {
            items.iter().map(|item| parse(item).map_err(|problem| format!("In {path}: {problem}"))).collect()
        }
        other => Err(format!("Invalid defaults list in '{path}', defaults must be a list (got {})", other.kind())),
    }
}

fn parse(item: &Node) -> Result<Entry, String> {
    let path = match &item.value {
        Value::Text(path) | Value::Interpolation(path) => path,
        Value::Map(map) if map.len() == 1 => {
            return match map.iter().next() {
                Some((Key::Text(key), choice)) => parse_group(key, &choice.value),
                _ => Err("the name of a config group must be text".to_owned()),
            };
        }
        Value::Map(map) if map.is_empty() => {
            return Err("Missing group name in an item of the defaults list".to_owned());
        }
        Value::Map(_) => {
            return Err("Too many keys in an item of the defaults list: write one `- group: option` a line".to_owned());
        }
        other => return Err(format!("Unsupported type in defaults : {}", other.kind())),
    };
    let (path, package) = split_package(path);
    match (path, &package) {
        ("_self_", None) => Ok(Entry::new(What::Own, None)),
        ("_self_", Some(_)) => Err("_self_@PACKAGE is not supported".to_owned()),
        (path, _) => Ok(Entry::new(What::Config(path.to_owned()), package)),
    }
}

fn parse_group(key: &str, choice: &Value) -> Result<Entry, String> {
    let (group, package) = split_package(key);
    let mut words: Vec<&str> = group.split(' ').collect();
    let group = words.pop().unwrap_or_default().to_owned();
    let keywords: Vec<&str> = words.into_iter().take_while(|word| matches!(*word, "optional" | "override")).collect();
    let choice = match choice {
        Value::Null => Choice::None,
        Value::Missing => Choice::One("???".to_owned()),
        Value::Text(name) | Value::Interpolation(name) => Choice::One(name.clone()),
        Value::List(items) => Choice::Many(
            items
                .iter()
                .map(|item| match &item.value {
                    Value::Text(name) | Value::Interpolation(name) => Ok(name.clone()),
                    other => Err(format!(
                        "Unsupported item value in defaults : {}, nested list items must be strings",
                        other.kind()
                    )),
                })
                .collect::<Result<_, _>>()?,
        ),
        other => {
            return Err(format!("Unsupported item value in defaults : {}. Supported: string or list", other.kind()));
        }
    };
    let role = if keywords.contains(&"override") { Role::Override } else { Role::Choose };
    let mut entry = Entry::new(What::Group { group, choice, role }, package);
    entry.optional = keywords.contains(&"optional");
    Ok(entry)
}

/// `group@package` in two; a rename `@old:new` of older versions counts as `@old`.
fn split_package(text: &str) -> (&str, Option<String>) {
    match text.split_once('@') {
        None => (text, None),
        Some((group, package)) => (group, Some(package.split(':').next().unwrap_or_default().to_owned())),
    }
}
