//! What `agl-server` and `agl-controller` have in common: Hydra's command line around a program.

use std::ffi::OsString;
use std::process::ExitCode;

use agl_config::Surroundings;
use agl_config::cli::{self, Command, Settings};

/// Parses the words, shows what was asked for, or runs the jobs one after the other.
pub(super) fn main<T: Settings>(
    words: impl IntoIterator<Item = OsString>,
    run: impl Fn(T) -> anyhow::Result<()>,
) -> ExitCode {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (jobs, warnings) = match cli::command::<T>(&words, &Surroundings::of_process()) {
        Ok(Command::Show(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Run { jobs, warnings }) => (jobs, warnings),
        Err(refusal) => {
            eprintln!("{}", refusal.message.trim_end());
            return ExitCode::from(refusal.exit_code);
        }
    };
    for warning in warnings {
        eprintln!("{warning}");
    }
    for job in jobs {
        let written = job.output.map_or(Ok(()), |output| output.write());
        if let Err(error) = written.map_err(anyhow::Error::from).and_then(|()| run(job.settings)) {
            eprintln!("{}: {error:#}", T::PROGRAM.name());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
