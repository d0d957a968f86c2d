//! The command lines of `agl-server` and `agl-controller`, as Hydra has them.
//!
//! Pure: words, environment and current folder go in, and what to do comes out. Nothing is printed or written here.
//!
//! Three things differ from Hydra on purpose. No `outputs/` folder is made unless `hydra.run.dir` is given, and keys are
//! left out of what is written there. Values are checked against the type of their setting before anything starts.
//! The key can come from `AGL_KEY` or a file.

use std::path::{Path, PathBuf};

use crate::args::{self, Arguments};
use crate::compose::{self, Composed, HYDRA_VERSION, Mode, Request};
use crate::config::{Config, ConfigError};
use crate::defaults::ComposeError;
use crate::dump::to_yaml;
use crate::help;
use crate::info;
use crate::interpolation::OnMissing;
use crate::override_grammar::{Override, OverrideValue};
use crate::program::Program;
use crate::secret;
use crate::settings::{ControllerConfig, ServerConfig};
use crate::sources::{Listed, Sources};
use crate::surroundings::Surroundings;
use crate::sweep::MAX_SWEEP;
use crate::tree::{self, Keys};
use crate::value::{Node, Origin, Value};

/// What a command line asks for.
#[derive(Debug, Clone)]
pub enum Command<T> {
    /// Print this to stdout and end with exit code 0.
    Show(String),
    /// Run the program, once for each of these.
    Run {
        /// One, or several with `--multirun`.
        jobs: Vec<Job<T>>,
        /// To be shown before the start.
        warnings: Vec<String>,
    },
}

/// One run of the program.
#[derive(Debug, Clone)]
pub struct Job<T> {
    /// The settings as a struct.
    pub settings: T,
    /// The settings as a tree, resolved, each with its origin; [`effective`](fn@crate::effective) lists them.
    pub config: Config,
    /// Where to keep the configuration, if the user asked for it.
    pub output: Option<OutputFolder>,
}

/// Files that say what the program ran with; secrets are not among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFolder {
    /// The folder, `hydra.run.dir`.
    pub folder: PathBuf,
    /// Files by their path in it.
    pub files: Vec<(PathBuf, String)>,
}

impl OutputFolder {
    /// Makes the folder and writes the files.
    pub fn write(&self) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        for (name, text) in &self.files {
            let path = self.folder.join(name);
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(path, text)?;
        }
        Ok(())
    }
}

/// A command line that can't be followed: print the message to stderr and end with the code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What is wrong, and the way out.
    pub message: String,
    /// Exit code: 2 for options that don't exist, 1 for everything else.
    pub exit_code: u8,
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        Self { message: error.to_string(), exit_code: 1 }
    }
}

/// Settings that a program is started with.
pub trait Settings: Sized {
    /// Whose they are.
    const PROGRAM: Program;
    /// The setting that holds the key, and the one that names a file with it.
    const KEY: (&'static str, &'static str);

    /// Reads them from the configuration.
    fn read(config: &Config, surroundings: &Surroundings) -> Result<Self, ConfigError>;
}

impl Settings for ServerConfig {
    const PROGRAM: Program = Program::Server;
    const KEY: (&'static str, &'static str) = ("key", "key_file");

    fn read(config: &Config, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        Self::read(config, surroundings)
    }
}

impl Settings for ControllerConfig {
    const PROGRAM: Program = Program::Controller;
    const KEY: (&'static str, &'static str) = ("agl_server.key", "agl_server.key_file");

    fn read(config: &Config, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        Self::read(config, surroundings)
    }
}

/// Works out what the words after the program's name ask for.
pub fn command<T: Settings>(words: &[String], surroundings: &Surroundings) -> Result<Command<T>, Refusal> {
    Ok(match compose_command(T::PROGRAM, words, surroundings)? {
        Command::Show(text) => Command::Show(text),
        Command::Run { jobs, warnings } => {
            let typed = jobs.into_iter().map(|job| {
                let config = secret::with_key(&job.config, T::KEY.0, T::KEY.1, surroundings)?;
                let settings = T::read(&config, surroundings)?;
                Ok(Job { settings, config, output: job.output })
            });
            Command::Run { jobs: typed.collect::<Result<_, ConfigError>>()?, warnings }
        }
    })
}

/// As [`command`], up to the composed tree: its values are not checked against any type.
pub fn compose_command(
    program: Program,
    words: &[String],
    surroundings: &Surroundings,
) -> Result<Command<()>, Refusal> {
    let arguments = args::parse(words).map_err(|problem| Refusal {
        message: format!("{}{}: error: {problem}", args::usage(program.name()), program.name()),
        exit_code: 2,
    })?;
    if arguments.version {
        return Ok(Command::Show(format!(
            "Hydra {HYDRA_VERSION} ({} {})\n",
            program.name(),
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(Session::new(program, arguments, surroundings)?.command()?)
}

struct Session<'a> {
    program: Program,
    arguments: Arguments,
    config_name: String,
    sources: Sources,
    surroundings: &'a Surroundings,
}

impl<'a> Session<'a> {
    fn new(program: Program, arguments: Arguments, surroundings: &'a Surroundings) -> Result<Self, ConfigError> {
        if let Some(file) = &arguments.experimental_rerun {
            let problem = if surroundings.folder.join(file).exists() {
                format!("{file} is a pickle of Python objects, which can't be read here; give the overrides instead")
            } else {
                format!("File {file} does not exist!")
            };
            return Err(ComposeError(problem).into());
        }
        let (path, folder) = (arguments.config_path.as_deref(), arguments.config_dir.as_deref());
        let sources = compose::sources(program, path, folder, surroundings)?;
        let config_name = arguments.config_name.clone().unwrap_or_else(|| program.config_name().to_owned());
        Ok(Self { program, arguments, config_name, sources, surroundings })
    }

    fn command(&self) -> Result<Command<()>, ConfigError> {
        let arguments = &self.arguments;
        if arguments.help {
            return self.help(&self.compose(Mode::Run, &[])?).map(Command::Show);
        }
        if arguments.resolve && arguments.cfg.is_none() {
            return refuse("The --resolve flag can only be used in conjunction with --cfg or --help");
        }
        if arguments.hydra_help {
            arguments.overrides.iter().try_for_each(|text| Override::parse(text).map(|_| ()))?;
            return Ok(Command::Show(help::hydra_help(self.program, &self.sources)));
        }
        let commands = [
            arguments.run,
            arguments.multirun,
            arguments.cfg.is_some(),
            arguments.info.is_some(),
            arguments.shell_completion,
        ];
        if commands.iter().filter(|given| **given).count() > 1 {
            return refuse("Only one of --run, --multirun, --cfg, --info and --shell_completion can be specified");
        }
        if let Some(part) = &arguments.cfg {
            return self.show_config(part).map(Command::Show);
        }
        if let Some(part) = &arguments.info {
            let request = self.request(Mode::Run, arguments.overrides.clone());
            return info::text(part, &request, self.surroundings).map(Command::Show);
        }
        if arguments.shell_completion {
            let composed = compose::compose(&self.request(Mode::Run, Vec::new()), self.surroundings)?;
            return help::completion(self.program, &arguments.overrides, &composed, self.surroundings)
                .map(Command::Show);
        }
        self.run()
    }

    fn request(&self, mode: Mode, overrides: Vec<String>) -> Request<'_> {
        Request {
            program: self.program,
            sources: &self.sources,
            config_name: self.config_name.clone(),
            overrides,
            mode,
        }
    }

    /// The configuration with the overrides of the command line and some more.
    fn compose(&self, mode: Mode, more: &[&str]) -> Result<Composed, ConfigError> {
        let more = more.iter().map(ToString::to_string);
        let overrides = self.arguments.overrides.iter().cloned().chain(more).collect();
        compose::compose(&self.request(mode, overrides), self.surroundings)
    }

    fn help(&self, composed: &Composed) -> Result<String, ConfigError> {
        let job = composed.job();
        let shown = if self.arguments.resolve {
            composed.resolved_in(&job, &job, "", OnMissing::Keep, self.surroundings)?
        } else {
            job
        };
        help::help(composed, &to_yaml(&shown), &self.sources, self.surroundings)
    }

    fn show_config(&self, part: &str) -> Result<String, ConfigError> {
        let composed = self.compose(Mode::Run, &[])?;
        let whole = match part {
            "job" => composed.job(),
            "hydra" => composed.hydra(),
            _ => composed.config.root().clone(),
        };
        let given = self.arguments.package.as_deref().filter(|package| *package != "_global_");
        let package = given.unwrap_or_default();
        let node = match tree::select(&whole, package) {
            Some(node) if !matches!(node.value, Value::Null | Value::Missing) => node,
            _ => return refuse(&format!("package '{package}' not found in config")),
        };
        if !matches!(node.value, Value::Map(_) | Value::List(_)) {
            return Ok(format!(
                "{}\n",
                composed.resolved_in(&whole, node, package, OnMissing::Refuse, self.surroundings)?.value
            ));
        }
        let header = given.map(|package| format!("# @package {package}\n")).unwrap_or_default();
        let shown = if self.arguments.resolve {
            composed.resolved_in(&whole, node, package, OnMissing::Keep, self.surroundings)?
        } else {
            node.clone()
        };
        Ok(header + &to_yaml(&shown))
    }

    /// The jobs to run. As in Hydra, `hydra.mode` decides, and without it `--multirun`.
    fn run(&self) -> Result<Command<()>, ConfigError> {
        let chosen = self.compose(Mode::Multirun, &[]).and_then(|composed| composed.hydra_settings(self.surroundings));
        let mode = match (chosen.ok().and_then(|settings| settings.mode), self.arguments.multirun) {
            (Some(Mode::Multirun), _) | (_, true) => Mode::Multirun,
            _ => Mode::Run,
        };
        match mode {
            Mode::Run => {
                let composed = self.compose(Mode::Run, &["hydra.mode=RUN"])?;
                let jobs = vec![self.job(&composed)?];
                Ok(Command::Run { jobs, warnings: composed.warnings })
            }
            Mode::Multirun => self.sweep(),
        }
    }

    /// One job for each combination of the swept values, the last key changing fastest.
    fn sweep(&self) -> Result<Command<()>, ConfigError> {
        let master = self.compose(Mode::Multirun, &["hydra.mode=MULTIRUN"])?;
        let settings = master.hydra_settings(self.surroundings)?;
        let params = settings.sweeper.params.into_iter().flatten().map(|(key, value)| format!("{key}={value}"));
        let (hydra, task): (Vec<String>, Vec<String>) = params
            .chain(self.arguments.overrides.iter().cloned())
            .partition(|text| text.starts_with("hydra.") || text.starts_with("hydra/"));
        let mut combinations = vec![Vec::new()];
        for (key, values) in self.swept(&task)? {
            if combinations.len().saturating_mul(values.len()) > MAX_SWEEP {
                return refuse(&format!("more than {MAX_SWEEP} jobs: sweep over fewer values"));
            }
            let with = |job: &Vec<String>| {
                values.iter().map(|value| [job.clone(), vec![format!("{key}={value}")]].concat()).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(with).collect();
        }
        let mut jobs = Vec::new();
        for (number, changes) in combinations.into_iter().enumerate() {
            let overrides = [hydra.clone(), vec!["hydra.mode=MULTIRUN".to_owned()], changes].concat();
            let mut composed = compose::compose(&self.request(Mode::Run, overrides), self.surroundings)?;
            composed.config.set("hydra.job.num", Node::new(Value::Int(number as i128), Origin::Default));
            composed
                .config
                .set("hydra.job.id", Node::new(Value::Text(format!("job_id_for_{number}")), Origin::Default));
            jobs.push(self.job(&composed)?);
        }
        Ok(Command::Run { jobs, warnings: master.warnings })
    }

    /// Each key with the values that it takes, written as overrides; the last override of a key counts.
    fn swept(&self, overrides: &[String]) -> Result<indexmap::IndexMap<String, Vec<String>>, ConfigError> {
        let mut swept = indexmap::IndexMap::new();
        for text in overrides {
            let change = Override::parse(text)?;
            let values = match &change.value {
                None => vec!["null".to_owned()],
                Some(OverrideValue::One(element)) => vec![element.to_override_text()],
                Some(OverrideValue::Sweep(sweep)) => {
                    let options = self.sources.list(&change.key, Listed::Files);
                    let values =
                        sweep.values(&options).map_err(|problem| ComposeError(format!("{text}: {problem}")))?;
                    values.iter().map(crate::element::Element::to_override_text).collect()
                }
            };
            swept.insert(change.key_element(), values);
        }
        Ok(swept)
    }

    fn job(&self, composed: &Composed) -> Result<Job<()>, ConfigError> {
        let job = composed.job();
        let resolved = composed.resolved_in(&job, &job, "", OnMissing::Refuse, self.surroundings)?;
        let config = Config::from_node(resolved, Keys::Closed(self.program.more_keys()));
        Ok(Job { settings: (), config, output: self.output(composed, &job)? })
    }

    /// The folder that `hydra.run.dir` names, if somebody gave it.
    fn output(&self, composed: &Composed, job: &Node) -> Result<Option<OutputFolder>, ConfigError> {
        let given = composed.config.select("hydra.run.dir").is_some_and(|node| node.origin != Origin::Default);
        if !given {
            return Ok(None);
        }
        let settings = composed.hydra_settings(self.surroundings)?;
        let folder = self.surroundings.folder.join(&settings.run.dir);
        let Some(subfolder) = settings.output_subdir else {
            return Ok(Some(OutputFolder { folder, files: Vec::new() }));
        };
        let overrides: Vec<String> = self.arguments.overrides.iter().map(|text| without_secret(text)).collect();
        let task = overrides.iter().filter(|text| !text.starts_with("hydra.") && !text.starts_with("hydra/"));
        let list = Node::new(
            Value::List(task.map(|text| Node::new(Value::Text(text.clone()), Origin::CommandLine)).collect()),
            Origin::CommandLine,
        );
        let mut hydra = composed.hydra();
        if let Some(node) = tree::select_mut(&mut hydra, "hydra.overrides.task") {
            node.clone_from(&list);
        }
        if let Some(node) = tree::select_mut(&mut hydra, "hydra.job.override_dirname") {
            let dirname = std::mem::replace(&mut node.value, Value::Null);
            node.value = Value::Text(dirname.to_string().split(',').map(without_secret).collect::<Vec<_>>().join(","));
        }
        let file = |name: &str, node: &Node| (Path::new(&subfolder).join(name), to_yaml(&secret::redacted(node)));
        let files = vec![file("config.yaml", job), file("hydra.yaml", &hydra), file("overrides.yaml", &list)];
        Ok(Some(OutputFolder { folder, files }))
    }
}

/// An override as text, its value hidden if it is a secret.
fn without_secret(text: &str) -> String {
    match text.split_once('=') {
        Some((key, value)) if secret::is_secret(key.trim_start_matches(['+', '~'])) && !value.is_empty() => {
            format!("{key}={}", secret::REDACTED)
        }
        _ => text.to_owned(),
    }
}

fn refuse<T>(problem: &str) -> Result<T, ConfigError> {
    Err(ComposeError(problem.to_owned()).into())
}
