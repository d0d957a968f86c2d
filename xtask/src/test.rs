//! `cargo xtask test`: the one list of what has to pass before anything lands.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{edges, stage};

/// Cheap checks first, so that a slip shows in seconds.
pub(crate) fn run() -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let python = python()?;

    stage::run("format", &cargo, &["fmt", "--all", "--check"])?;
    edges::check()?;
    stage::run("python tests", python, &["-m", "unittest", "discover", "-s", "examples/calculator", "-v"])?;
    stage::run("clippy", &cargo, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // Unit, golden and end-to-end tests; `--no-fail-fast` so that one run shows everything that is broken.
    stage::run("tests", &cargo, &["test", "--workspace", "--no-fail-fast"])?;
    // For contributors: private items too, so that public pages may link to them.
    stage::run_with_env(
        "documentation",
        &cargo,
        &["doc", "--workspace", "--lib", "--no-deps", "--document-private-items"],
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")],
    )?;
    eprintln!("\nall checks passed");
    Ok(())
}

/// The agents of the examples need Python 3; a fresh Debian machine may lack it.
fn python() -> Result<&'static str> {
    const PYTHON: &str = "python3";
    let works = || Command::new(PYTHON).args(["-c", "import json"]).status().is_ok_and(|status| status.success());
    if works() {
        return Ok(PYTHON);
    }
    stage::run("install python", "apt-get", &["update"])?;
    stage::run("install python", "apt-get", &["install", "-y", "--no-install-recommends", PYTHON])?;
    if !works() {
        bail!("`{PYTHON}` does not run; install Python 3.8 or newer and try again");
    }
    Ok(PYTHON)
}
