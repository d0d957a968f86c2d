//! Checks of the agent's command before anything is started: what would fail a thousand times is told once.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run_file::AgentSection;

/// Why the agent can't be started at all.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// Neither way to start an agent is given, or both.
    #[error(
        "give the agent as `agent.command` (a program and its arguments) or as `agent.agent_class` (a Python class), one of the two"
    )]
    NoAgent,
    /// The command has no program.
    #[error("agent.command is an empty list; give a program and its arguments, for example [python3, agent.py]")]
    EmptyCommand,
    /// The working directory is none.
    #[error("agent.working_directory: {0} is not a folder")]
    NoDirectory(PathBuf),
    /// The program does not run.
    #[error("agent.command: cannot run `{program}`: {source}; {hint}")]
    Program {
        /// The program.
        program: String,
        /// What the system says.
        source: std::io::Error,
        /// The way out.
        hint: &'static str,
    },
    /// Python runs but fails.
    #[error("agent.command: `{program}` does not work as Python 3.8 or newer: {output}")]
    Python {
        /// The program.
        program: String,
        /// What it printed.
        output: String,
    },
}

/// Checks the section and pins Python to its real executable, so that version-manager shims and a changing PATH cost nothing
/// at each of many thousand starts.
pub(super) fn check(agent: &AgentSection) -> Result<AgentSection, PreflightError> {
    let mut checked = agent.clone();
    if let Some(directory) = &agent.working_directory
        && !directory.is_dir()
    {
        return Err(PreflightError::NoDirectory(directory.clone()));
    }
    match (&mut checked.command, &agent.agent_class) {
        (None, None) | (Some(_), Some(_)) => return Err(PreflightError::NoAgent),
        (None, Some(_)) => {}
        (Some(command), None) => {
            let program = command.first_mut().ok_or(PreflightError::EmptyCommand)?;
            if program.contains('/') {
                // A path is one from the agent's folder, wherever agl itself was started.
                let directory = agent.working_directory.as_deref().unwrap_or(Path::new("."));
                *program = directory.join(&*program).to_string_lossy().into_owned();
            }
            if is_python(program) {
                *program = python_executable(program)?;
            } else {
                find_program(program)?;
            }
        }
    }
    Ok(checked)
}

fn is_python(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
}

/// Asks a Python for the path of its own executable.
fn python_executable(program: &str) -> Result<String, PreflightError> {
    const ASK: &str = "import sys; assert sys.version_info >= (3, 8), sys.version; print(sys.executable)";
    let output = Command::new(program).args(["-c", ASK]).output().map_err(|source| PreflightError::Program {
        program: program.to_owned(),
        source,
        hint: "install Python 3.8 or newer, or give its full path",
    })?;
    let executable = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !executable.is_empty() {
        return Ok(executable);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(PreflightError::Python {
        program: program.to_owned(),
        output: words.lines().last().unwrap_or("it printed nothing").to_owned(),
    })
}

/// A program with a slash is a path; any other is looked up on PATH.
fn find_program(program: &str) -> Result<(), PreflightError> {
    let found = if program.contains('/') {
        Path::new(program).is_file()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    if found {
        return Ok(());
    }
    Err(PreflightError::Program {
        program: program.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
        hint: "there is no such file on PATH; install it, or give its full path",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(command: &[&str]) -> AgentSection {
        serde_json::from_value(serde_json::json!({ "command": command })).unwrap()
    }

    #[test]
    fn what_cannot_start_is_told_with_the_way_out() {
        let message = |agent: &AgentSection| check(agent).unwrap_err().to_string();
        assert!(message(&agent(&["no-such-program-7"])).contains("no such file on PATH"));
        assert!(message(&agent(&["python3.999"])).contains("install Python 3.8"));
        assert!(message(&agent(&[])).contains("empty list"));
        let mut neither = agent(&["sh"]);
        neither.command = None;
        assert!(message(&neither).contains("one of the two"));
        let mut elsewhere = agent(&["sh"]);
        elsewhere.working_directory = Some("/no/such/folder".into());
        assert!(message(&elsewhere).contains("/no/such/folder is not a folder"));
    }

    #[test]
    fn python_is_pinned_to_its_executable() {
        let checked = check(&agent(&["python3", "agent.py"])).unwrap();
        let command = checked.command.unwrap();
        assert!(Path::new(&command[0]).is_absolute(), "{command:?}");
        assert_eq!(command[1], "agent.py");
        assert!(check(&agent(&["sh", "-c", "true"])).is_ok());
    }
}
