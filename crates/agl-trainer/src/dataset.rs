//! Tasks: JSON Lines files, and the order in which training goes through them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use agl_protocol::RawJson;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

/// The tasks of one file, in its order. Each becomes a rollout's `input`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    tasks: Vec<RawJson>,
}

/// Why a data file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The file can't be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not a JSON object.
    #[error("{path}:{line}: {problem}; each line must be one JSON object, for example {{\"question\": \"…\"}}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong, with the column.
        problem: String,
    },
    /// A line lacks a field that the agent's environment reads.
    #[error("{path}:{line}: field `{field}` is missing (`env_map.{variable}` reads `input.{field}`)")]
    MissingField {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The field.
        field: String,
        /// The environment variable that reads it.
        variable: String,
    },
    /// There is no task in it.
    #[error("{path} holds no task: every line is empty")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A field that every task must have, and the environment variable that reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredField {
    /// Top-level key of the task.
    pub field: String,
    /// Environment variable.
    pub variable: String,
}

impl RequiredField {
    /// The fields that an `env_map` reads: `input.question.0` needs `question`.
    pub fn of_env_map<'a>(env_map: impl IntoIterator<Item = (&'a String, &'a String)>) -> Vec<Self> {
        env_map
            .into_iter()
            .filter_map(|(variable, path)| {
                let field = path.strip_prefix("input.")?.split('.').next()?;
                Some(Self { field: field.to_owned(), variable: variable.clone() })
            })
            .collect()
    }
}

impl Dataset {
    /// Reads a JSON Lines file and checks every line, so that a broken one stops the run before it starts.
    pub fn load(path: &Path, required: &[RequiredField]) -> Result<Self, DatasetError> {
        let read = |source| DatasetError::Read { path: path.to_owned(), source };
        let mut tasks = Vec::new();
        for (index, line) in BufReader::new(File::open(path).map_err(read)?).lines().enumerate() {
            let line_number = index + 1;
            let text = line.map_err(read)?;
            if text.trim().is_empty() {
                continue;
            }
            let fields: Map<String, Value> = serde_json::from_str(&text).map_err(|error| DatasetError::Line {
                path: path.to_owned(),
                line: line_number,
                problem: problem_of(&error),
            })?;
            if let Some(missing) = required.iter().find(|required| !fields.contains_key(&required.field)) {
                return Err(DatasetError::MissingField {
                    path: path.to_owned(),
                    line: line_number,
                    field: missing.field.clone(),
                    variable: missing.variable.clone(),
                });
            }
            let task = RawJson::from_text(text.trim().to_owned()).map_err(|error| DatasetError::Line {
                path: path.to_owned(),
                line: line_number,
                problem: problem_of(&error),
            })?;
            tasks.push(task);
        }
        if tasks.is_empty() {
            return Err(DatasetError::Empty { path: path.to_owned() });
        }
        Ok(Self { tasks })
    }

    /// How many tasks there are; never zero.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Never: a data set has at least one task.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The first `count` tasks (all of them if there are fewer).
    pub fn first(&self, count: usize) -> &[RawJson] {
        &self.tasks[..count.min(self.tasks.len())]
    }

    /// The `count` tasks of training step `step` (from 0): one pass after another over the file, each in an order of its
    /// own that depends on `seed` and the pass only, so that a resumed run goes on exactly where it stopped.
    pub fn batch(&self, seed: u64, step: usize, count: usize) -> Vec<RawJson> {
        let mut order: Option<(usize, Vec<usize>)> = None;
        (step * count..(step + 1) * count)
            .map(|position| {
                let (pass, place) = (position / self.len(), position % self.len());
                let order = match &mut order {
                    Some((current, order)) if *current == pass => order,
                    other => &mut other.insert((pass, self.pass_order(seed, pass))).1,
                };
                self.tasks[order[place]].clone()
            })
            .collect()
    }

    fn pass_order(&self, seed: u64, pass: usize) -> Vec<usize> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(pass as u64);
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.shuffle(&mut rng);
        order
    }
}

/// serde_json counts lines within the text it was given, which is one line here: only its column means something.
fn problem_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default();
    format!("column {}: {reason}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn numbers(count: usize) -> Dataset {
        let lines: Vec<String> = (0..count).map(|n| format!("{{\"n\":{n}}}")).collect();
        Dataset::load(file(&lines.join("\n")).path(), &[]).unwrap()
    }

    #[test]
    fn a_broken_line_is_named_with_its_place() {
        let error = |text: &str| {
            let required = [RequiredField { field: "answer".into(), variable: "ANSWER".into() }];
            let message = Dataset::load(file(text).path(), &required).unwrap_err().to_string();
            message.split_once(':').map(|(_, rest)| rest.to_owned()).unwrap_or(message)
        };
        assert!(error("{\"answer\":1}\n\n{\"answer\":}\n").starts_with("3: column 11: expected value"));
        assert!(error("[1]\n").starts_with("1: column "));
        assert_eq!(
            error("{\"answer\":1}\n{\"a\":1}"),
            "2: field `answer` is missing (`env_map.ANSWER` reads `input.answer`)"
        );
        assert!(Dataset::load(file("\n").path(), &[]).unwrap_err().to_string().contains("holds no task"));
        assert!(Dataset::load(Path::new("no/such.jsonl"), &[]).unwrap_err().to_string().contains("no/such.jsonl"));
    }

    #[test]
    fn env_map_tells_which_fields_are_read() {
        let env_map = std::collections::BTreeMap::from([
            ("A".to_owned(), "input.answer".to_owned()),
            ("L".to_owned(), "literal".to_owned()),
            ("Q".to_owned(), "input.q.0.text".to_owned()),
            ("T".to_owned(), "input".to_owned()),
        ]);
        let fields: Vec<_> = RequiredField::of_env_map(&env_map).into_iter().map(|r| r.field).collect();
        assert_eq!(fields, ["answer", "q"]);
    }

    #[test]
    fn each_pass_visits_every_task_once_in_an_order_of_its_own() {
        let data = numbers(10);
        // Ten steps of three are three whole passes over ten tasks.
        let visited: Vec<String> =
            (0..10).flat_map(|step| data.batch(7, step, 3)).map(|task| task.text().to_owned()).collect();
        for pass in visited.chunks(10) {
            let mut sorted = pass.to_vec();
            sorted.sort();
            assert_eq!(sorted, data.first(10).iter().map(|task| task.text().to_owned()).collect::<Vec<_>>());
        }
        assert_ne!(visited[..10], visited[10..20]);
        assert_eq!(data.batch(7, 4, 3), data.batch(7, 4, 3), "a step's tasks depend on seed and step only");
        assert_ne!(data.batch(7, 0, 10), data.batch(8, 0, 10));
    }
}
