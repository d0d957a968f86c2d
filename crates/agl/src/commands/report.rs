//! `agl report`: makes `curve.svg` and `report.html` of a run folder again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use super::Ended;

/// Make the report of a run folder again.
#[derive(Parser)]
pub struct Args {
    /// The run folder: `runs/<name>`.
    run_dir: PathBuf,
}

/// Runs the command; prints the path of the report.
pub fn run(args: &Args) -> Result<Ended> {
    let files = crate::report::write(&args.run_dir)?;
    for warning in &files.warnings {
        eprintln!("agl: {warning}");
    }
    println!("{}", files.html.display());
    Ok(Ended::Done)
}
