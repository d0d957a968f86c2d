//! Where configuration files are looked for: folders on disk, and the files built into the program.
//!
//! A file is asked for by its name without `.yaml` (`server`, `hydra/job_logging/default`); a folder is a config group.
//! The first source that has it wins, so nothing on disk can take the place of a built-in file by accident.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{self, ConfigError};
use crate::defaults::ComposeError;
use crate::value::{Node, Value};
use crate::yaml;

/// A place that may have configuration files.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Source {
    /// Who brought it in: `hydra`, `main`, `command-line`.
    pub(crate) provider: String,
    /// Files of the program, or a folder.
    pub(crate) place: Place,
}

/// What a source is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Place {
    /// Files built into the program, under the name that the original gives the package.
    BuiltIn { package: String, files: &'static [(&'static str, &'static str)] },
    /// A folder on disk.
    Folder(PathBuf),
    /// Hydra's place for schemas in code; we have none, but it is listed.
    Schema,
}

impl Source {
    /// `pkg://agentlightning.config`, `file:///etc/agl`
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme(), self.path())
    }

    pub(crate) fn scheme(&self) -> &'static str {
        match self.place {
            Place::BuiltIn { .. } => "pkg",
            Place::Folder(_) => "file",
            Place::Schema => "structured",
        }
    }

    pub(crate) fn path(&self) -> String {
        match &self.place {
            Place::BuiltIn { package, .. } => package.clone(),
            Place::Folder(folder) => folder.display().to_string(),
            Place::Schema => String::new(),
        }
    }

    fn is_file(&self, name: &str) -> bool {
        match &self.place {
            Place::BuiltIn { files, .. } => built_in(files, name).is_some(),
            Place::Folder(folder) => yaml_path(folder, name).is_file(),
            Place::Schema => false,
        }
    }

    fn is_group(&self, name: &str) -> bool {
        match &self.place {
            Place::BuiltIn { files, .. } => {
                name.is_empty()
                    || files.iter().any(|(file, _)| file.strip_prefix(name).is_some_and(|rest| rest.starts_with('/')))
            }
            Place::Folder(folder) => folder.join(name).is_dir(),
            Place::Schema => false,
        }
    }

    /// Names directly below a group: files, or groups.
    fn list(&self, group: &str, wanted: Listed) -> Vec<String> {
        match &self.place {
            Place::BuiltIn { files, .. } => {
                files
                    .iter()
                    .filter_map(|(file, _)| {
                        if group.is_empty() { Some(*file) } else { file.strip_prefix(group)?.strip_prefix('/') }
                    })
                    .filter_map(|rest| match (rest.split_once('/'), wanted) {
                        (None, Listed::Files) => Some(rest.to_owned()),
                        (Some((folder, _)), Listed::Groups) => Some(folder.to_owned()),
                        _ => None,
                    })
                    .collect()
            }
            Place::Folder(folder) => list_folder(&folder.join(group), wanted),
            Place::Schema => Vec::new(),
        }
    }
}

/// What to list of a group.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Listed {
    Files,
    Groups,
}

/// A configuration file, read.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) root: Node,
    /// `# @package NAME` at the top of the file.
    pub(crate) package: Option<String>,
}

/// All sources, in the order in which they are asked. Each file is read once.
#[derive(Debug)]
pub(crate) struct Sources {
    sources: Vec<Source>,
    read: RefCell<HashMap<String, Option<Arc<Loaded>>>>,
}

impl Sources {
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        Self { sources, read: RefCell::default() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    /// The same sources with some more before the last, which is that for schemas.
    pub(crate) fn with(&self, more: impl IntoIterator<Item = Source>) -> Self {
        let mut sources = self.sources.clone();
        let last = sources.len().saturating_sub(1);
        sources.splice(last..last, more);
        Self::new(sources)
    }

    pub(crate) fn is_group(&self, name: &str) -> bool {
        self.sources.iter().any(|source| source.is_group(name))
    }

    /// Names in a group, sorted, each once.
    pub(crate) fn list(&self, group: &str, wanted: Listed) -> Vec<String> {
        let mut names: Vec<String> = self.sources.iter().flat_map(|source| source.list(group, wanted)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The file of that name, if there is one.
    pub(crate) fn load(&self, name: &str) -> Result<Option<Arc<Loaded>>, ConfigError> {
        if let Some(loaded) = self.read.borrow().get(name) {
            return Ok(loaded.clone());
        }
        let source = self.sources.iter().find(|source| source.is_file(name));
        let loaded = source.map(|source| read(source, name)).transpose()?.map(Arc::new);
        self.read.borrow_mut().insert(name.to_owned(), loaded.clone());
        Ok(loaded)
    }
}

fn read(source: &Source, name: &str) -> Result<Loaded, ConfigError> {
    let (text, from) = match &source.place {
        Place::BuiltIn { files, .. } => (built_in(files, name).unwrap_or_default().to_owned(), yaml::Source::BuiltIn),
        Place::Folder(folder) => {
            let path = yaml_path(folder, name);
            (config::read_text(&path)?, yaml::Source::File(Arc::from(path.as_path())))
        }
        Place::Schema => (String::new(), yaml::Source::BuiltIn),
    };
    let root = yaml::parse(&text, &from)?;
    let package = package_header(&text).map_err(|problem| ComposeError(format!("{name}: {problem}")))?;
    Ok(Loaded { root, package })
}

/// The first lines may be comments `# @key value`; that of `package` is wanted.
fn package_header(text: &str) -> Result<Option<String>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let headers =
        lines.map_while(|line| line.strip_prefix('#')?.trim_start_matches('#').trim_start().strip_prefix('@'));
    let mut package = None;
    for header in headers {
        match header.split_whitespace().collect::<Vec<_>>()[..] {
            ["package", name] => package = Some(name.to_owned()),
            [_, _] => {}
            _ => return Err(format!("Expected header format: `# @package NAME`, got '@{header}'")),
        }
    }
    Ok(package)
}

fn built_in(files: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let name = name.strip_suffix(".yaml").unwrap_or(name);
    files.iter().find(|(file, _)| *file == name).map(|(_, text)| *text)
}

fn yaml_path(folder: &Path, name: &str) -> PathBuf {
    let name = name.strip_suffix(".yaml").unwrap_or(name);
    folder.join(format!("{name}.yaml"))
}

/// What can't be listed has nothing in it: a missing folder is reported where it is named.
fn list_folder(folder: &Path, wanted: Listed) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let (name, is_folder) = (entry.file_name().into_string().ok()?, entry.path().is_dir());
            match wanted {
                Listed::Groups => (is_folder && !name.starts_with(['.', '_'])).then_some(name),
                Listed::Files => (!is_folder).then(|| name.strip_suffix(".yaml").map(ToOwned::to_owned)).flatten(),
            }
        })
        .collect()
}

impl Loaded {
    /// The entries without the defaults list.
    pub(crate) fn content(&self) -> Node {
        let mut root = self.root.clone();
        if let Value::Map(map) = &mut root.value {
            map.shift_remove("defaults");
        }
        root
    }
}
