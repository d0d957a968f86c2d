//! Reads what a run left. Lenient about what a record holds, strict about damage: only the last line may be cut short,
//! since that is what a crash does.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ReportError;

/// What the report needs of a run folder.
#[derive(Debug)]
pub(super) struct Run {
    /// Name of the folder.
    pub(super) name: String,
    /// `metrics.jsonl`, in order.
    pub(super) records: Vec<Record>,
    /// Trajectories of the first validation.
    pub(super) before: Vec<Trajectory>,
    /// Trajectories of the last validation, if there was more than one.
    pub(super) after: Vec<Trajectory>,
    /// `config.yaml`, if there is one.
    pub(super) config: Option<String>,
    /// What was left out.
    pub(super) warnings: Vec<Warning>,
}

/// Which part of a run a record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// The policy was measured.
    Validation,
    /// The policy was updated.
    Train,
    /// One that a newer version made up.
    #[serde(other)]
    Other,
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    pub(super) phase: Phase,
    pub(super) step: u64,
    #[serde(default)]
    pub(super) seconds: Option<f64>,
    #[serde(default)]
    pub(super) metrics: Map<String, Value>,
}

impl Record {
    /// A metric that is a finite number. JSON has no NaN, so one that was NaN is null.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.metrics.get(name)?.as_f64().filter(|number| number.is_finite())
    }
}

/// One line of `trajectories.jsonl`.
#[derive(Debug, Deserialize)]
pub(super) struct Trajectory {
    pub(super) phase: Phase,
    pub(super) step: u64,
    #[serde(default)]
    pub(super) rollout_id: String,
    #[serde(default)]
    pub(super) input: Value,
    #[serde(default)]
    pub(super) reward: Option<f64>,
    #[serde(default)]
    pub(super) state: String,
    #[serde(default)]
    pub(super) error_message: Option<String>,
    #[serde(default)]
    pub(super) events: Vec<Value>,
}

/// A last line that a crash cut short, and that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Which file.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
}

impl Warning {
    /// For a page that may be read on another machine.
    pub(super) fn without_folder(&self) -> String {
        let file = self.path.file_name().map(PathBuf::from).unwrap_or_default();
        Self { path: file, line: self.line }.to_string()
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: the last line is cut short (by a crash?) and was left out", self.path.display(), self.line)
    }
}

/// Reads a run folder. Only `metrics.jsonl` has to be there.
pub(super) fn read(run_dir: &Path) -> Result<Run, ReportError> {
    let mut records = Vec::new();
    let metrics_path = run_dir.join("metrics.jsonl");
    let Some(metrics) = open(&metrics_path)? else { return Err(ReportError::NoRun(run_dir.to_owned())) };
    let cut_metrics = read_lines(metrics, &metrics_path, |record| records.push(record))?;

    let mut validations = Validations::default();
    let trajectories_path = run_dir.join("trajectories.jsonl");
    let cut_trajectories = match open(&trajectories_path)? {
        Some(file) => read_lines(file, &trajectories_path, |trajectory| validations.add(trajectory))?,
        None => None,
    };

    // The folder may be given as `.`: its name is that of what it points to.
    let folder = fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    Ok(Run {
        name: folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        records,
        before: validations.first,
        after: validations.last,
        config: read_config(&run_dir.join("config.yaml"))?,
        warnings: [cut_metrics, cut_trajectories].into_iter().flatten().collect(),
    })
}

/// Trajectories of the first and of the last validation; those in between are let go while reading.
#[derive(Default)]
struct Validations {
    first: Vec<Trajectory>,
    last: Vec<Trajectory>,
}

impl Validations {
    fn add(&mut self, trajectory: Trajectory) {
        if trajectory.phase != Phase::Validation {
            return;
        }
        let step = trajectory.step;
        if self.first.first().is_none_or(|first| first.step == step) {
            self.first.push(trajectory);
            return;
        }
        if self.last.first().is_some_and(|last| last.step != step) {
            self.last.clear();
        }
        self.last.push(trajectory);
    }
}

fn open(path: &Path) -> Result<Option<File>, ReportError> {
    match File::open(path) {
        // A device or a pipe in a file's place may never end.
        Ok(file) if file.metadata().is_ok_and(|about| !about.is_file()) => {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            Err(ReportError::Read { path: path.to_owned(), source })
        }
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReportError::Read { path: path.to_owned(), source }),
    }
}

fn read_config(path: &Path) -> Result<Option<String>, ReportError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReportError::Read { path: path.to_owned(), source }),
    }
}

/// Hands each line to `take`. A line is written with its newline in one go: only one without can have been cut short.
fn read_lines<T: DeserializeOwned>(
    file: File,
    path: &Path,
    mut take: impl FnMut(T),
) -> Result<Option<Warning>, ReportError> {
    let mut reader = BufReader::new(file);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes);
        read.map_err(|source| ReportError::Read { path: path.to_owned(), source })?;
        if bytes.is_empty() {
            break;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(&bytes) {
            Ok(value) => take(value),
            Err(_) if !bytes.ends_with(b"\n") => return Ok(Some(Warning { path: path.to_owned(), line })),
            Err(source) => return Err(ReportError::Line { path: path.to_owned(), line, source }),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(metrics: &str, trajectories: &str) -> (tempfile::TempDir, Result<Run, ReportError>) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
        fs::write(dir.path().join("trajectories.jsonl"), trajectories).unwrap();
        let run = read(dir.path());
        (dir, run)
    }

    #[test]
    fn a_record_needs_only_phase_and_step() {
        let (_dir, run) = run_with("{\"phase\":\"train\",\"step\":3}\n\n{\"phase\":\"eval\",\"step\":4,\"x\":1}", "");
        let run = run.unwrap();
        assert_eq!(run.records.iter().map(|record| record.step).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(run.records[1].phase, Phase::Other);
        assert_eq!(run.warnings, []);
    }

    #[test]
    fn a_last_line_cut_anywhere_is_left_out_with_a_warning() {
        let whole = "{\"phase\":\"train\",\"step\":1,\"metrics\":{\"é\":1}}";
        for cut in 1..whole.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("metrics.jsonl");
            fs::write(&path, [whole.as_bytes(), b"\n", &whole.as_bytes()[..cut]].concat()).unwrap();
            let run = read(dir.path()).unwrap();
            assert_eq!(run.records.len(), 1);
            assert_eq!(run.warnings, [Warning { path, line: 2 }], "cut at byte {cut}");
        }
    }

    #[test]
    fn damage_elsewhere_is_an_error_that_names_the_line() {
        let (dir, run) = run_with("{\"phase\":\"train\",\"step\":1}\n{\"phase\":\"train\"}\n", "");
        let path = dir.path().join("metrics.jsonl");
        let message = run.unwrap_err().to_string();
        assert!(message.starts_with(&format!("{}:2: missing field `step`", path.display())), "{message}");
    }

    #[test]
    fn the_first_and_the_last_validation_are_kept() {
        let line = |phase: &str, step: u64, id: &str| {
            format!("{{\"phase\":\"{phase}\",\"step\":{step},\"rollout_id\":\"{id}\"}}\n")
        };
        let lines = [("validation", 0, "a"), ("validation", 0, "b"), ("train", 3, "t"), ("validation", 5, "c")];
        let lines = lines.map(|(phase, step, id)| line(phase, step, id)).concat() + &line("validation", 9, "d");
        let (_dir, run) = run_with("", &lines);
        let run = run.unwrap();
        let ids = |side: &[Trajectory]| side.iter().map(|t| t.rollout_id.clone()).collect::<Vec<_>>().concat();
        assert_eq!((ids(&run.before), ids(&run.after)), ("ab".into(), "d".into()));
    }

    #[test]
    fn a_folder_without_metrics_is_no_run() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path()), Err(ReportError::NoRun(_))));
    }
}
