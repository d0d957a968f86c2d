//! The run file: one YAML that says which model, agent and data to train with, and how.
//!
//! Paths in it are relative to the file, so that a folder with an agent, its data and its run file can be moved whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agl_trainer::TrainerSettings;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A run file, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// The policy to start from.
    pub model: ModelSection,
    /// The agent.
    pub agent: AgentSection,
    /// The tasks.
    pub data: DataSection,
    /// How to train.
    #[serde(default)]
    pub trainer: TrainerSettings,
    /// Where the gateway listens.
    #[serde(default)]
    pub gateway: GatewaySection,
    /// How the policy is served.
    #[serde(default)]
    pub engine: EngineSection,
}

/// `model:`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// A Hugging Face folder of the Llama family: config.json, tokenizer.json, safetensors.
    pub path: PathBuf,
    /// The name agents see; the folder's own when absent.
    #[serde(default)]
    pub name: Option<String>,
}

/// `agent:`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSection {
    /// Program and arguments, in any language.
    #[serde(default)]
    pub command: Option<Vec<String>>,
    /// Or a Python class with `run()`: `pkg.mod.Class` or `pkg.mod:Class`.
    #[serde(default)]
    pub agent_class: Option<String>,
    /// Where it starts; the run file's folder when absent.
    #[serde(default)]
    pub working_directory: Option<PathBuf>,
    /// Environment variable → `input.field` of the task, or a literal.
    #[serde(default)]
    pub env_map: BTreeMap<String, String>,
    /// Seconds until a hanging agent is killed.
    #[serde(default = "default_timeout_seconds")]
    pub timeout_seconds: i64,
    /// How many run at the same time.
    #[serde(default = "default_pool_size")]
    pub pool_size: usize,
}

fn default_timeout_seconds() -> i64 {
    600
}

fn default_pool_size() -> usize {
    16
}

/// `data:`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// JSON Lines, one task a line.
    pub train: PathBuf,
    /// The same, to measure on; no task of it should be in `train`.
    pub val: PathBuf,
}

/// `gateway:`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewaySection {
    /// Address to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// API key; a random one for this run when absent.
    #[serde(skip_serializing)]
    pub key: Option<String>,
}

impl Default for GatewaySection {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), port: 0, key: None }
    }
}

/// `engine:`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSection {
    /// Sequences generated at the same time; more wait.
    pub max_num_seqs: usize,
    /// Tokens of prompt and response together; the model's own limit when absent.
    pub max_model_len: Option<usize>,
    /// Seed of sampling, for requests without one of their own.
    pub seed: u64,
}

impl Default for EngineSection {
    fn default() -> Self {
        Self { max_num_seqs: 64, max_model_len: None, seed: 1 }
    }
}

impl RunFile {
    /// Makes relative paths relative to `base`, the run file's folder.
    pub fn resolve_paths(&mut self, base: &Path) {
        self.agent.working_directory =
            Some(base.join(self.agent.working_directory.as_deref().unwrap_or(Path::new(""))));
        for path in [&mut self.model.path, &mut self.data.train, &mut self.data.val] {
            *path = base.join(&*path);
        }
    }

    /// Refuses what can't be meant, before anything is started.
    pub fn validate(&self) -> Result<()> {
        self.trainer.validate()?;
        let at_least_one = [
            ("agent.pool_size", self.agent.pool_size as i128),
            ("agent.timeout_seconds", i128::from(self.agent.timeout_seconds)),
            ("engine.max_num_seqs", self.engine.max_num_seqs as i128),
            ("engine.max_model_len", self.engine.max_model_len.map_or(1, |length| length as i128)),
        ];
        for (key, value) in at_least_one {
            anyhow::ensure!(value >= 1, "{key}={value}: must be at least 1");
        }
        Ok(())
    }

    /// The name agents see.
    pub fn model_name(&self) -> String {
        self.model.name.clone().unwrap_or_else(|| {
            self.model.path.file_name().map_or_else(|| "policy".to_owned(), |name| name.to_string_lossy().into_owned())
        })
    }
}

/// Folder of run folders.
pub const RUNS: &str = "runs";
/// The resolved run file in a run folder.
pub const RESOLVED: &str = "config.yaml";

/// Reads a run file, applies overrides, checks every key, and makes its paths absolute enough to start from anywhere.
pub fn load(path: &Path, overrides: &[String]) -> Result<RunFile> {
    let mut config = agl_config::load_file(path)?;
    config.apply_overrides(overrides)?;
    let mut run_file: RunFile = config.deserialize()?;
    let base = path.parent().filter(|base| !base.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let base = base.canonicalize().with_context(|| format!("find {}", base.display()))?;
    run_file.resolve_paths(&base);
    Ok(run_file)
}

/// Keeps the resolved run file in the run folder, the key left out.
pub fn write(run_file: &RunFile, run_dir: &Path) -> Result<()> {
    let path = run_dir.join(RESOLVED);
    let text = agl_config::to_yaml(agl_config::Config::from_defaults(run_file)?.root());
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// The name of a run: the run file's, or for the usual `run.yaml` that of its folder.
pub fn name_of(config: &Path) -> String {
    let stem = config.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = config
        .canonicalize()
        .ok()
        .and_then(|path| path.parent()?.file_name().map(|name| name.to_string_lossy().into_owned()));
    if matches!(stem.as_str(), "run" | "config" | "") { folder.unwrap_or_else(|| "run".to_owned()) } else { stem }
}

/// `runs/<name>`, or with the next free number behind it.
pub fn free_run_dir(name: &str) -> PathBuf {
    let first = Path::new(RUNS).join(name);
    let numbered = (2..).map(|number| Path::new(RUNS).join(format!("{name}-{number}")));
    std::iter::once(first.clone()).chain(numbered).find(|path| !path.exists()).unwrap_or(first)
}
