//! The run folder: everything that a run leaves behind, laid out so that a crash at any moment loses at most the
//! step that was under way.
//!
//! ```text
//! runs/<name>/
//!   config.yaml              resolved settings (written by the command line)
//!   metrics.jsonl            one record a phase
//!   trajectories.jsonl       a few whole trajectories of each validation
//!   checkpoints/step-000040/ a model folder, optimiser state, and state.json
//!   logs/                    output of every agent (written by the controller)
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const METRICS: &str = "metrics.jsonl";
const TRAJECTORIES: &str = "trajectories.jsonl";
const CHECKPOINTS: &str = "checkpoints";
const STATE: &str = "state.json";
/// A checkpoint under this prefix is not whole yet.
const UNFINISHED: &str = "unfinished-";

/// Which part of a run a record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The policy was measured, not changed.
    Validation,
    /// Rollouts were collected and the policy was updated.
    Train,
}

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricsRecord {
    /// Validation or training.
    pub phase: Phase,
    /// Training steps completed when the record was made.
    pub step: usize,
    /// Version of the policy: after the update for a training step, the one measured for a validation.
    pub policy_version: i64,
    /// Wall time of the phase.
    pub seconds: f64,
    /// Name → number, names as in verl and the original.
    pub metrics: Map<String, Value>,
}

/// What a run has achieved so far: kept with each checkpoint, so that a resumed run reports the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Training steps completed.
    pub completed_steps: usize,
    /// Version of the policy: grows by one with each update.
    pub policy_version: i64,
    /// Rollouts that ended, validation included.
    pub rollouts: u64,
    /// Tokens that the policy sampled, validation included.
    pub tokens: u64,
    /// Wall seconds, over all sessions of the run.
    pub seconds: f64,
    /// Before the first step.
    pub before: Option<ValidationResult>,
    /// The latest validation.
    pub latest: Option<ValidationResult>,
}

/// What a validation measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ValidationResult {
    /// Training steps completed when it was made.
    pub step: usize,
    /// Mean reward.
    pub reward: f64,
    /// Share of rollouts whose reward is at least `success_reward`.
    pub success_rate: f64,
    /// How many rollouts.
    pub rollouts: usize,
}

/// What the file system refused.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A read or write failed: full disk, missing rights, gone folder.
    #[error("run folder: cannot {action} {path}: {source}{}", hint(.source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A new run would overwrite an old one.
    #[error("{0} already holds a run; go on with it (`--resume {0}`) or choose another name (`--name`)")]
    Exists(PathBuf),
    /// There is nothing to go on from.
    #[error("{0} holds no whole checkpoint to go on from; start it again without `--resume`")]
    NoCheckpoint(PathBuf),
    /// A file of ours does not read as what we wrote.
    #[error("{path}:{line}: {source}; the file was changed or damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
}

fn hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::StorageFull => "; free some space, then go on with `agl train --resume`",
        std::io::ErrorKind::PermissionDenied => "; choose a folder you may write to (`--run-dir`)",
        _ => "",
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { action, path, source }
}

/// A run folder, open for the one run that writes it.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    metrics: File,
    trajectories: File,
}

impl RunFolder {
    /// A new run. Refuses a folder that holds one.
    pub fn create(path: &Path) -> Result<Self, FolderError> {
        if path.join(METRICS).exists() {
            return Err(FolderError::Exists(path.to_owned()));
        }
        let checkpoints = path.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).map_err(failed("create", &checkpoints))?;
        Self::open(path)
    }

    /// Goes on with a run from its newest whole checkpoint: what was recorded after it is taken back, since those steps
    /// are done again. Returns the checkpoint's folder and state.
    pub fn resume(path: &Path) -> Result<(Self, PathBuf, RunState), FolderError> {
        let checkpoint = checkpoints_of(path)?.pop().ok_or_else(|| FolderError::NoCheckpoint(path.to_owned()))?;
        let state_path = checkpoint.join(STATE);
        let text = fs::read_to_string(&state_path).map_err(failed("read", &state_path))?;
        let state: RunState = serde_json::from_str(&text).map_err(|source| FolderError::Damaged {
            path: state_path,
            line: source.line(),
            source,
        })?;
        for name in [METRICS, TRAJECTORIES] {
            keep_up_to(&path.join(name), state.completed_steps)?;
        }
        Ok((Self::open(path)?, checkpoint, state))
    }

    fn open(path: &Path) -> Result<Self, FolderError> {
        let append = |name: &str| {
            let path = path.join(name);
            OpenOptions::new().create(true).append(true).open(&path).map_err(failed("open", &path))
        };
        Ok(Self { path: path.to_owned(), metrics: append(METRICS)?, trajectories: append(TRAJECTORIES)? })
    }

    /// Where the checkpoint of a step is, in the run at `run`.
    pub fn checkpoint_path(run: &Path, completed_steps: usize) -> PathBuf {
        run.join(CHECKPOINTS).join(checkpoint_name(completed_steps))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record to `metrics.jsonl`.
    pub fn record(&mut self, record: &MetricsRecord) -> Result<(), FolderError> {
        append_line(&mut self.metrics, &self.path.join(METRICS), record)
    }

    /// Adds a line to `trajectories.jsonl`.
    pub fn keep_trajectory(&mut self, trajectory: &impl Serialize) -> Result<(), FolderError> {
        append_line(&mut self.trajectories, &self.path.join(TRAJECTORIES), trajectory)
    }

    /// Writes a checkpoint: `save` fills a folder that gets its name only when it is whole, then all but the newest
    /// `keep` are removed. Returns where it is.
    pub fn checkpoint<E: From<FolderError>>(
        &self,
        state: &RunState,
        keep: usize,
        save: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let name = checkpoint_name(state.completed_steps);
        let whole = self.path.join(CHECKPOINTS).join(&name);
        let unfinished = self.path.join(CHECKPOINTS).join(format!("{UNFINISHED}{name}"));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(failed("clear", &unfinished))?;
        }
        fs::create_dir_all(&unfinished).map_err(failed("create", &unfinished))?;
        save(&unfinished)?;
        let state_path = unfinished.join(STATE);
        write_synced(&state_path, &serde_json::to_vec(state).unwrap_or_default())?;
        if whole.exists() {
            fs::remove_dir_all(&whole).map_err(failed("replace", &whole))?;
        }
        fs::rename(&unfinished, &whole).map_err(failed("rename", &unfinished))?;
        let mut all = checkpoints_of(&self.path)?;
        for old in all.drain(..all.len().saturating_sub(keep)) {
            fs::remove_dir_all(&old).map_err(failed("remove", &old))?;
        }
        Ok(whole)
    }
}

fn checkpoint_name(completed_steps: usize) -> String {
    format!("step-{completed_steps:06}")
}

/// Whole checkpoints, oldest first.
fn checkpoints_of(run: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let folder = run.join(CHECKPOINTS);
    let mut found: Vec<PathBuf> = match fs::read_dir(&folder) {
        Ok(entries) => entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")))
            .filter(|path| path.join(STATE).exists())
            .collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(FolderError::Io { action: "read", path: folder, source }),
    };
    found.sort();
    Ok(found)
}

/// Drops records of later steps, and a last line that a crash cut short.
fn keep_up_to(path: &Path, completed_steps: usize) -> Result<(), FolderError> {
    #[derive(Deserialize)]
    struct Step {
        step: usize,
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(FolderError::Io { action: "read", path: path.to_owned(), source }),
    };
    let mut lines = BufReader::new(file).lines().enumerate().peekable();
    let mut kept = String::new();
    while let Some((index, line)) = lines.next() {
        let line = line.map_err(failed("read", path))?;
        match serde_json::from_str::<Step>(&line) {
            Ok(Step { step }) if step <= completed_steps => {
                kept.push_str(&line);
                kept.push('\n');
            }
            Ok(_) => {}
            Err(_) if lines.peek().is_none() => {}
            Err(source) => return Err(FolderError::Damaged { path: path.to_owned(), line: index + 1, source }),
        }
    }
    let temporary = path.with_extension("jsonl.tmp");
    write_synced(&temporary, kept.as_bytes())?;
    fs::rename(&temporary, path).map_err(failed("rename", &temporary))
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let mut file = File::create(path).map_err(failed("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", path))
}

/// One write a line, so that a crash leaves whole lines but for the last.
fn append_line(file: &mut File, path: &Path, value: &impl Serialize) -> Result<(), FolderError> {
    let mut line = serde_json::to_vec(value).map_err(|error| FolderError::Io {
        action: "write",
        path: path.to_owned(),
        source: std::io::Error::other(error),
    })?;
    line.push(b'\n');
    file.write_all(&line).map_err(failed("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: Phase, step: usize) -> MetricsRecord {
        MetricsRecord { phase, step, policy_version: 0, seconds: 0.5, metrics: Map::new() }
    }

    fn save(folder: &RunFolder, step: usize) -> PathBuf {
        let state = RunState { completed_steps: step, policy_version: step as i64, ..RunState::default() };
        let save = |path: &Path| fs::write(path.join("weights"), [step as u8]).map_err(failed("write", path));
        folder.checkpoint(&state, 2, save).unwrap()
    }

    #[test]
    fn a_resumed_run_forgets_what_came_after_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::create(dir.path()).unwrap();
        folder.record(&record(Phase::Validation, 0)).unwrap();
        for step in 1..=4 {
            folder.record(&record(Phase::Train, step)).unwrap();
            if step < 4 {
                save(&folder, step);
            }
        }
        drop(folder);
        // A crash cut the last line short.
        let metrics = dir.path().join(METRICS);
        let text = fs::read_to_string(&metrics).unwrap();
        fs::write(&metrics, format!("{text}{{\"phase\":\"tr")).unwrap();

        let (mut folder, checkpoint, state) = RunFolder::resume(dir.path()).unwrap();
        assert_eq!(state.completed_steps, 3);
        assert_eq!(fs::read(checkpoint.join("weights")).unwrap(), [3]);
        folder.record(&record(Phase::Train, 4)).unwrap();
        let steps: Vec<usize> = fs::read_to_string(&metrics)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<MetricsRecord>(line).unwrap().step)
            .collect();
        assert_eq!(steps, [0, 1, 2, 3, 4]);
        assert_eq!(checkpoints_of(dir.path()).unwrap().len(), 2, "older checkpoints are removed");
    }

    #[test]
    fn an_unfinished_checkpoint_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path()).unwrap();
        let failing = |path: &Path| Err(failed("write", path)(std::io::ErrorKind::StorageFull.into()));
        let error = folder.checkpoint(&RunState::default(), 2, failing).unwrap_err();
        assert!(error.to_string().contains("free some space"), "{error}");
        assert!(matches!(RunFolder::resume(dir.path()), Err(FolderError::NoCheckpoint(_))));
        save(&folder, 7);
        assert_eq!(RunFolder::resume(dir.path()).unwrap().2.completed_steps, 7);
    }

    #[test]
    fn a_new_run_never_overwrites_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        drop(RunFolder::create(dir.path()).unwrap());
        assert!(matches!(RunFolder::create(dir.path()), Err(FolderError::Exists(_))));
    }
}
