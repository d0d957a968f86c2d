//! From a rollout to the process that is to be made: everything that can be found wrong before the rollout is claimed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use agl_protocol::{LocalConfig, Rollout};

use crate::env::agent_environment;
use crate::{ControllerSettings, EnvMapError};

/// Runs a Python class as an agent.
const AGENT_CLASS_RUNNER: &str = include_str!("agent_class.py");

/// A process to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Absolute path.
    pub(crate) program: PathBuf,
    /// Arguments, without the program.
    pub(crate) arguments: Vec<OsString>,
    /// Variables beyond those of the controller.
    pub(crate) environment: BTreeMap<String, String>,
    /// Absolute path.
    pub(crate) directory: PathBuf,
}

/// Why no process can be made of a rollout.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error(
        "invalid rollout config: missing config.local.agent_class (a Python class, `pkg.mod:Class`) \
         or config.local.command (a program and its arguments)"
    )]
    NothingToRun,
    #[error("invalid rollout config: both config.local.agent_class and config.local.command are set; leave one out")]
    TwoToRun,
    #[error(transparent)]
    EnvMap(#[from] EnvMapError),
    #[error(
        "invalid rollout config: config.local.working_directory `{path}` is not a directory (the controller runs in `{base}`)"
    )]
    NoSuchDirectory { path: String, base: PathBuf },
    #[error("program `{program}` not found: {hint}")]
    NoSuchProgram { program: String, hint: String },
    #[error("the controller's working directory is gone: {0}")]
    NoBase(std::io::Error),
}

impl Launch {
    /// Reads the rollout's `config.local` and looks up what it names.
    pub(crate) fn of(rollout: &Rollout, attempt_id: &str, settings: &ControllerSettings) -> Result<Self, LaunchError> {
        let local = rollout.config.local.as_ref().ok_or(LaunchError::NothingToRun)?;
        let (program, arguments) = argv(local, &settings.python)?;
        let environment = agent_environment(rollout, attempt_id, settings)?;
        let base = std::env::current_dir().map_err(LaunchError::NoBase)?;
        let path = local.working_directory.as_deref().unwrap_or_default();
        let directory = base.join(path);
        if !directory.is_dir() {
            return Err(LaunchError::NoSuchDirectory { path: path.to_owned(), base });
        }
        let program = find_program(&program, environment.get("PATH"), &directory)?;
        Ok(Self { program, arguments, environment, directory })
    }
}

fn argv(local: &LocalConfig, python: &str) -> Result<(String, Vec<OsString>), LaunchError> {
    let agent_class = local.agent_class.as_deref().filter(|class| !class.is_empty());
    let command = local.command.as_deref().filter(|command| !command.is_empty());
    match (agent_class, command) {
        (None, None) => Err(LaunchError::NothingToRun),
        (Some(_), Some(_)) => Err(LaunchError::TwoToRun),
        // `-u`: what the agent printed is in its log even if it is killed the moment after.
        (Some(class), None) => {
            Ok((python.to_owned(), ["-u", "-c", AGENT_CLASS_RUNNER, class].map(OsString::from).into()))
        }
        (None, Some(command)) => Ok((command[0].clone(), command[1..].iter().map(OsString::from).collect())),
    }
}

/// As a shell in `directory` would: a bare name is looked up on PATH, a path is taken from there.
fn find_program(program: &str, agents_path: Option<&String>, directory: &Path) -> Result<PathBuf, LaunchError> {
    let search_path = agents_path.map(OsString::from).or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    which::which_in(program, Some(&search_path), directory).map_err(|_| {
        let hint = if program.contains('/') {
            format!("no executable file is there (relative to `{}`)", directory.display())
        } else {
            format!("no executable file of that name is on PATH ({})", search_path.display())
        };
        LaunchError::NoSuchProgram { program: program.to_owned(), hint }
    })
}

#[cfg(test)]
mod tests {
    use agl_protocol::RolloutState;

    use super::*;
    use crate::plan::tests::rollout;

    fn launch(local: Option<LocalConfig>) -> Result<Launch, String> {
        let mut rollout = rollout("r", RolloutState::Queuing, 0.0);
        rollout.config.local = local;
        Launch::of(&rollout, "0", &ControllerSettings::default()).map_err(|error| error.to_string())
    }

    fn command(words: &[&str]) -> LocalConfig {
        LocalConfig { command: Some(words.iter().map(|word| (*word).to_owned()).collect()), ..LocalConfig::default() }
    }

    #[test]
    fn a_command_is_found_on_path_and_keeps_its_arguments() {
        let launch = launch(Some(command(&["sh", "-c", "exit 0"]))).unwrap();
        assert!(launch.program.is_absolute() && launch.program.ends_with("sh"), "{launch:?}");
        assert_eq!(launch.arguments, ["-c", "exit 0"]);
        assert_eq!(launch.environment["AGL_KEY"], "");
    }

    #[test]
    fn a_path_is_taken_from_the_working_directory() {
        let local = LocalConfig { working_directory: Some("/bin".into()), ..command(&["./sh"]) };
        let launch = launch(Some(local)).unwrap();
        assert_eq!(launch.directory, Path::new("/bin"));
        assert!(launch.program.is_absolute(), "{launch:?}");
    }

    #[test]
    fn what_cannot_run_says_why() {
        let refused = |local| launch(local).unwrap_err();
        let nothing = "invalid rollout config: missing config.local.agent_class";
        assert!(refused(None).starts_with(nothing));
        assert!(refused(Some(LocalConfig::default())).starts_with(nothing));
        assert!(refused(Some(command(&[]))).starts_with(nothing));
        let both = LocalConfig { agent_class: Some("m:C".into()), ..command(&["sh"]) };
        assert!(refused(Some(both)).contains("both"));
        let lost = LocalConfig { working_directory: Some("no/where".into()), ..command(&["sh"]) };
        assert!(refused(Some(lost)).contains("`no/where` is not a directory"));
        assert!(refused(Some(command(&["no-such-program"]))).contains("`no-such-program` not found"));
        assert!(refused(Some(command(&["./no-such-program"]))).contains("relative to"));
        let broken = LocalConfig { env_map: [("X".into(), "input.q".into())].into(), ..command(&["sh"]) };
        assert_eq!(refused(Some(broken)), "local.env_map path not found: input.q");
    }
}
