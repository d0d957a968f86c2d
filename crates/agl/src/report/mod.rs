//! The report of a run: `curve.svg` and `report.html`, made from the run folder and nothing else, so that
//! `agl report runs/<name>` can make them again at any time.
//!
//! ```text
//! metrics.jsonl, trajectories.jsonl, config.yaml
//!    └─ run_folder ─┬─ curve ──────────────────────────► curve.svg
//!                   ├─ chat ─ tasks ─┐
//!                   ├─ metrics_table ┴─ page ──────────► report.html
//! ```
//!
//! What agents and models wrote is untrusted text: the templates escape all of it, and the page's content policy allows
//! nothing but its own styles.

mod chat;
mod curve;
mod metrics_table;
mod page;
mod run_folder;
mod tasks;
mod template;
mod text;

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use curve::{Curve, Size};
pub use run_folder::Warning;

/// What [`write`](fn@write) wrote.
#[derive(Clone, Debug)]
pub struct ReportFiles {
    /// The learning curve alone.
    pub curve: PathBuf,
    /// The whole report.
    pub html: PathBuf,
    /// What was left out, and why.
    pub warnings: Vec<Warning>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no `metrics.jsonl`.
    #[error("{0} is no run folder: it holds no metrics.jsonl")]
    NoRun(PathBuf),
    /// A file of the run can't be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not what a run writes.
    #[error("{path}:{line}: {source}; the file was changed or damaged: remove the line and run `agl report` again")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A file of the report can't be written.
    #[error("cannot write {path}: {source}{}", way_out(.source))]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A template does not fit its data, which is a bug.
    #[error("bug in a template of the report: {0:#}")]
    Template(#[from] minijinja::Error),
}

fn way_out(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space and run `agl report` again",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; copy the run folder to where you may write"
        }
        _ => "",
    }
}

/// Writes `curve.svg` and `report.html` into the run folder; each appears whole or not at all.
pub fn write(run_dir: &Path) -> Result<ReportFiles, ReportError> {
    let run = run_folder::read(run_dir)?;
    let curve = run_dir.join("curve.svg");
    let html = run_dir.join("report.html");
    write_atomically(&curve, &Curve::of(&run.records).svg(Size::WIDE)?)?;
    write_atomically(&html, &page::render(&run)?)?;
    Ok(ReportFiles { curve, html, warnings: run.warnings })
}

fn write_atomically(path: &Path, text: &str) -> Result<(), ReportError> {
    let write = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        // A temporary file is private by default; a report is as readable as the rest of the run folder.
        let readable = Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(io::Error::from).map(drop)
    };
    write().map_err(|source| ReportError::Write { path: path.to_owned(), source })
}
