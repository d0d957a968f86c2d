//! Puts a configuration together: the files of the defaults list in order, then the command line from left to right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::choices::Choices;
use crate::config::{Config, ConfigError, OverrideError};
use crate::default_entry::Choice;
use crate::defaults::{self, ComposeError, MissingChoice, Placed, Tree};
use crate::interpolation::{self, OnMissing, Scope};
use crate::override_grammar::{Override, OverrideValue};
use crate::program::{HYDRA_FILES, PROGRAM_FILES, Program};
use crate::sources::{Place, Source, Sources};
use crate::surroundings::Surroundings;
use crate::sweep::Sweep;
use crate::tree::{self, Keys, UpdateError};
use crate::typed;
use crate::value::{Key, Map, Node, Origin, Value};

/// The Hydra whose behaviour this is.
pub(crate) const HYDRA_VERSION: &str = "1.3.2";
/// The name under which the original's logs and job settings know the program.
const JOB_NAME: &str = "__main__";

/// Whether one configuration is put together, or one to sweep from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Mode {
    #[serde(rename = "RUN")]
    Run,
    #[serde(rename = "MULTIRUN")]
    Multirun,
}

/// What to put together.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) program: Program,
    pub(crate) sources: &'a Sources,
    pub(crate) config_name: String,
    pub(crate) overrides: Vec<String>,
    pub(crate) mode: Mode,
}

/// Which files make up the configuration.
pub(crate) struct Plan {
    sources: Sources,
    overrides: Vec<Override>,
    choices: Choices,
    pub(crate) trees: Vec<Tree>,
    pub(crate) files: Vec<Placed>,
    warnings: Vec<String>,
}

/// A configuration put together; Hydra's settings are under `hydra`.
#[derive(Debug, Clone)]
pub(crate) struct Composed {
    pub(crate) config: Config,
    pub(crate) warnings: Vec<String>,
    pub(crate) sources: Vec<Source>,
}

/// The part of Hydra's settings that we use.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HydraSettings {
    pub(crate) run: Dir,
    pub(crate) mode: Option<Mode>,
    pub(crate) output_subdir: Option<String>,
    pub(crate) sweeper: Sweeper,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dir {
    pub(crate) dir: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Sweeper {
    pub(crate) params: Option<BTreeMap<String, String>>,
}

/// The types of Hydra's settings; text may be left out while it isn't known.
#[derive(Deserialize)]
#[expect(dead_code, reason = "read to refuse values of the wrong type")]
struct HydraTypes {
    run: RunTypes,
    sweep: SweepTypes,
    mode: Option<Mode>,
    #[serde(default)]
    searchpath: Vec<String>,
    #[serde(default)]
    output_subdir: Option<String>,
    job: JobTypes,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RunTypes {
    dir: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SweepTypes {
    dir: String,
    subdir: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobTypes {
    name: String,
    chdir: Option<bool>,
    override_dirname: String,
    id: String,
    num: i64,
    config_name: Option<String>,
    env_set: BTreeMap<String, String>,
    env_copy: Vec<String>,
}

/// The places that a program looks in; `config_path` and `config_dir` are those of the command line.
pub(crate) fn sources(
    program: Program,
    config_path: Option<&str>,
    config_dir: Option<&str>,
    surroundings: &Surroundings,
) -> Result<Sources, ConfigError> {
    let source = |provider: &str, place| Source { provider: provider.to_owned(), place };
    let hydra = Place::BuiltIn { package: "hydra.conf".to_owned(), files: HYDRA_FILES };
    let mut sources = vec![source("hydra", hydra), source("main", main_place(program, config_path)?)];
    if let Some(folder) = config_dir {
        let folder = surroundings.folder.join(folder);
        if !folder.is_dir() {
            return Err(ComposeError(format!("Additional config directory '{}' not found", folder.display())).into());
        }
        sources.push(source("command-line", Place::Folder(folder)));
    }
    sources.push(source("schema", Place::Schema));
    Ok(Sources::new(sources))
}

/// The built-in files, unless the command line gives a folder. A relative one would be a Python package in the original.
fn main_place(program: Program, config_path: Option<&str>) -> Result<Place, ConfigError> {
    let built_in = Place::BuiltIn { package: "agentlightning.config".to_owned(), files: PROGRAM_FILES };
    let package = match config_path {
        None | Some("../config" | "pkg://agentlightning.config" | "pkg://agentlightning/config") => {
            return Ok(built_in);
        }
        Some(path) if Path::new(path).is_absolute() => {
            let folder = PathBuf::from(path);
            if folder.is_dir() {
                return Ok(Place::Folder(folder));
            }
            return Err(ComposeError(format!(
                "Primary config directory not found.\nCheck that the config directory '{path}' exists and readable"
            ))
            .into());
        }
        Some(path) => match path.strip_prefix("pkg://") {
            Some(package) => package.replace('/', "."),
            None => python_package(program, path),
        },
    };
    if package == "agentlightning.config" {
        return Ok(built_in);
    }
    Err(ComposeError(format!(
        "Primary config module '{package}' not found.\nA relative --config-path counts from the program, not from the current folder: \
         give an absolute path, or use --config-dir"
    ))
    .into())
}

/// `../conf` seen from the package of the original's entry point.
fn python_package(program: Program, path: &str) -> String {
    let mut package: Vec<&str> = program.python_package().split('.').collect();
    let mut rest = path;
    while let Some(up) = rest.strip_prefix("../") {
        package.pop();
        rest = up;
    }
    package.extend(rest.split('/'));
    package.join(".")
}

/// Works out which files make up the configuration, in which order.
pub(crate) fn plan(request: &Request<'_>) -> Result<Plan, ConfigError> {
    let overrides: Vec<Override> =
        request.overrides.iter().map(|text| Override::parse(text)).collect::<Result<_, _>>()?;
    let sources = with_search_path(request, &overrides)?;
    check_sweeps(&overrides, request.mode)?;
    let mut choices = Choices::new(&sources, &overrides)?;
    let mut warnings = Vec::new();
    let missing = match request.mode {
        Mode::Run => MissingChoice::Refuse,
        Mode::Multirun => MissingChoice::Skip,
    };
    let trees = defaults::expand(&sources, &request.config_name, &mut choices, missing, &mut warnings)?;
    let files = defaults::flatten(&trees)?;
    choices.check_used()?;
    Ok(Plan { sources, overrides, choices, trees, files, warnings })
}

/// Puts the configuration together.
pub(crate) fn compose(request: &Request<'_>, surroundings: &Surroundings) -> Result<Composed, ConfigError> {
    let plan = plan(request)?;
    let root = merge_files(&plan.sources, &plan.files)?;
    let mut config = Config::from_node(root, Keys::Closed(request.program.more_keys()));
    for change in &plan.choices.value_overrides {
        config.apply(change)?;
        if change.key.starts_with("hydra") {
            check_hydra(&config, &change.text)?;
        }
    }
    fill_in_hydra(&mut config, request, &plan, surroundings);
    Ok(Composed { config, warnings: plan.warnings, sources: plan.sources.iter().cloned().collect() })
}

/// Folders that `hydra.searchpath` adds, on the command line or in the primary config.
fn with_search_path(request: &Request<'_>, overrides: &[Override]) -> Result<Sources, ConfigError> {
    let primary = request.sources.load(&request.config_name)?;
    if let Some(primary) = &primary
        && primary.root.as_map().is_none()
    {
        let name = &request.config_name;
        return Err(ComposeError(format!("primary config '{name}' must be a DictConfig, got ListConfig")).into());
    }
    let given =
        overrides.iter().find(|change| change.key == "hydra.searchpath").and_then(|change| match &change.value {
            Some(OverrideValue::One(element)) => element.to_value().ok(),
            _ => None,
        });
    let (paths, provider) = match (given, &primary) {
        (Some(paths), _) => (paths, "hydra.searchpath in command-line"),
        (None, Some(primary)) => match tree::select(&primary.root, "hydra.searchpath") {
            Some(node) => (node.value.clone(), "hydra.searchpath in main"),
            None => return Ok(request.sources.with([])),
        },
        (None, None) => return Ok(request.sources.with([])),
    };
    let wrong = || ComposeError(format!("hydra.searchpath must be a list of strings. Got: {paths}"));
    let items = match &paths {
        Value::Null => return Ok(request.sources.with([])),
        Value::List(items) => items,
        _ => return Err(wrong().into()),
    };
    let mut added = Vec::new();
    for item in items {
        let path = item.as_text().ok_or_else(wrong)?;
        let folder = PathBuf::from(path.strip_prefix("file://").unwrap_or(path));
        added.push(Source { provider: provider.to_owned(), place: Place::Folder(folder) });
    }
    Ok(request.sources.with(added))
}

/// Sweeps need `--multirun`, and Hydra's own settings can't be swept.
fn check_sweeps(overrides: &[Override], mode: Mode) -> Result<(), ConfigError> {
    for change in overrides {
        let Some(OverrideValue::Sweep(sweep)) = &change.value else { continue };
        let text = change.text.clone();
        match mode {
            Mode::Multirun if change.is_about_hydra() => {
                let problem = format!("Sweeping over Hydra's configuration is not supported : '{text}'");
                return Err(ComposeError(problem).into());
            }
            Mode::Multirun => {}
            Mode::Run if matches!(sweep, Sweep::SimpleChoice(_)) => {
                return Err(OverrideError::Ambiguous { text }.into());
            }
            Mode::Run => return Err(OverrideError::Sweep { text }.into()),
        }
    }
    Ok(())
}

fn merge_files(sources: &Sources, files: &[Placed]) -> Result<Node, ConfigError> {
    let mut root = Node::empty_map(Origin::Default);
    for file in files {
        let Some(loaded) = sources.load(&file.path)? else { continue };
        let content = in_package(loaded.content(), &file.package);
        let in_hydra = file.primary || file.path == "hydra/config";
        if !in_hydra && tree::select(&content, "hydra.searchpath").is_some() {
            let path = &file.path;
            return Err(ComposeError(format!(
                "In '{path}': Overriding hydra.searchpath is only supported from the primary config"
            ))
            .into());
        }
        tree::merge(&mut root, content, Keys::Open, "").map_err(|error: UpdateError| {
            ComposeError(format!("In '{}': raised while composing config:\n{error}", file.path))
        })?;
    }
    Ok(root)
}

/// The content below the path that the package names.
fn in_package(content: Node, package: &str) -> Node {
    package.rsplit('.').filter(|step| !step.is_empty()).fold(content, |node, step| {
        let origin = node.origin.clone();
        Node::new(Value::Map(Map::from_iter([(Key::from(step), node)])), origin)
    })
}

/// What Hydra writes into its own settings when all is put together.
fn fill_in_hydra(config: &mut Config, request: &Request<'_>, plan: &Plan, surroundings: &Surroundings) {
    let text = |text: &str| Node::new(Value::Text(text.to_owned()), Origin::Default);
    let list =
        |texts: Vec<String>| Node::new(Value::List(texts.iter().map(|item| text(item)).collect()), Origin::Default);
    let (hydra, task): (Vec<&Override>, Vec<&Override>) =
        plan.overrides.iter().partition(|change| change.is_about_hydra());
    let texts = |overrides: &[&Override]| overrides.iter().map(|change| change.text.clone()).collect::<Vec<_>>();
    let mut dirname = texts(&task);
    dirname.sort();

    config.set("hydra.overrides.hydra", list(texts(&hydra)));
    config.set("hydra.overrides.task", list(texts(&task)));
    config.set("hydra.job.override_dirname", text(&dirname.join(",")));
    config.set("hydra.job.config_name", text(&request.config_name));
    if config.select("hydra.job.name").is_some_and(|node| node.value == Value::Missing) {
        config.set("hydra.job.name", text(JOB_NAME));
    }
    config.set("hydra.runtime.version", text(HYDRA_VERSION));
    config.set("hydra.runtime.version_base", text("1.3"));
    config.set("hydra.runtime.cwd", text(&surroundings.folder.display().to_string()));
    let source = |source: &Source| {
        let entries =
            [("path", source.path()), ("schema", source.scheme().to_owned()), ("provider", source.provider.clone())];
        Node::new(
            Value::Map(entries.iter().map(|(key, value)| (Key::from(*key), text(value))).collect()),
            Origin::Default,
        )
    };
    config.set(
        "hydra.runtime.config_sources",
        Node::new(Value::List(plan.sources.iter().map(source).collect()), Origin::Default),
    );
    let made = plan.choices.made.iter().map(|(key, choice)| {
        let choice = match choice {
            Choice::None => Node::new(Value::Null, Origin::Default),
            Choice::One(name) => text(name),
            Choice::Many(names) => list(names.clone()),
        };
        (Key::Text(key.clone()), choice)
    });
    config.set("hydra.runtime.choices", Node::new(Value::Map(made.collect()), Origin::Default));
}

/// Refuses values of Hydra's settings that have the wrong type.
fn check_hydra(config: &Config, change: &str) -> Result<(), ConfigError> {
    let Some(hydra) = config.root().get("hydra") else { return Ok(()) };
    typed::from_node_at::<HydraTypes>(&without_unknown(hydra), "hydra")
        .map_err(|error| ComposeError(format!("Error merging override {change}\n{error}")))?;
    Ok(())
}

/// What isn't known yet (missing values, interpolations) is left out: it can't be checked.
fn without_unknown(node: &Node) -> Node {
    let value = match &node.value {
        Value::List(items) => Value::List(items.iter().map(without_unknown).collect()),
        Value::Map(map) => {
            let known =
                map.iter().filter(|(_, child)| !matches!(child.value, Value::Interpolation(_) | Value::Missing));
            Value::Map(known.map(|(key, child)| (key.clone(), without_unknown(child))).collect())
        }
        other => other.clone(),
    };
    Node::new(value, node.origin.clone())
}

impl Composed {
    /// The program's settings, without Hydra's.
    pub(crate) fn job(&self) -> Node {
        let mut root = self.config.root().clone();
        if let Value::Map(map) = &mut root.value {
            map.shift_remove("hydra");
        }
        root
    }

    /// Hydra's settings alone, below `hydra`; without the help texts.
    pub(crate) fn hydra(&self) -> Node {
        let mut hydra = self.config.root().get("hydra").cloned().unwrap_or_else(|| Node::empty_map(Origin::Default));
        if let Value::Map(map) = &mut hydra.value {
            map.shift_remove("help");
            map.shift_remove("hydra_help");
        }
        Node::new(Value::Map(Map::from_iter([(Key::from("hydra"), hydra)])), Origin::Default)
    }

    /// `node`, which stands at `path` below `root`, resolved.
    pub(crate) fn resolved_in(
        &self,
        root: &Node,
        node: &Node,
        path: &str,
        on_missing: OnMissing,
        surroundings: &Surroundings,
    ) -> Result<Node, ConfigError> {
        let keys: Vec<Key> = path.split('.').filter(|step| !step.is_empty()).map(Key::from).collect();
        let scope = Scope { root, hydra: Some(self.config.root()), surroundings, depth: 0, on_missing };
        Ok(interpolation::resolve_at(scope, node, &keys)?)
    }

    /// The part of Hydra's settings that we use, resolved.
    pub(crate) fn hydra_settings(&self, surroundings: &Surroundings) -> Result<HydraSettings, ConfigError> {
        let root = self.config.root();
        let mut hydra = Node::empty_map(Origin::Default);
        for path in ["run.dir", "mode", "output_subdir", "job.name", "job.chdir", "sweeper.params"] {
            let full = format!("hydra.{path}");
            let node = self.config.select(&full).cloned().unwrap_or_else(|| Node::new(Value::Null, Origin::Default));
            let value = self.resolved_in(root, &node, &full, OnMissing::Refuse, surroundings)?;
            tree::update(&mut hydra, path, value, Keys::Open).map_err(|error| ComposeError(error.to_string()))?;
        }
        Ok(typed::from_node_at(&hydra, "hydra")?)
    }
}
