//! One stage of a chore: a command, its name, and how long it took.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().map_or_else(|| manifest_dir.clone(), std::path::Path::to_path_buf)
}

/// Runs `program args…` at the root; fails with the stage's name if it fails.
pub(crate) fn run(name: &str, program: &str, args: &[&str]) -> Result<()> {
    run_with_env(name, program, args, &[])
}

/// The same with environment variables on top.
pub(crate) fn run_with_env(name: &str, program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    eprintln!("\n── {name}: {program} {}", args.join(" "));
    let started = Instant::now();
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("{name}: cannot start `{program}`"))?;
    if !status.success() {
        bail!("{name} failed ({status}): {program} {}", args.join(" "));
    }
    eprintln!("── {name}: ok, {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}
