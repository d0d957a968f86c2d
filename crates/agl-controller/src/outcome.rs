//! How an agent ended, and the words in which the gateway is told.
//!
//! The first line of an error message is the original's text, which scripts may look for; what explains it follows.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use agl_protocol::{RolloutState, StatusPatch};
use rustix::process::Signal;

/// How an agent ended, or why it never began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By itself, with this exit code; 0 is success.
    Exited(i32),
    /// By a signal that was not ours.
    KilledBySignal(i32),
    /// Stopped by us: it ran longer than `timeout_seconds`.
    TimedOut,
    /// Stopped by us: somebody else ended or deleted its rollout.
    Cancelled,
    /// Stopped by us: the controller was told to stop.
    ControllerStopped,
    /// It could not be started; the text says why.
    SpawnFailed(String),
    /// Its rollout is `running`, but no agent of ours runs it: an earlier controller was killed.
    NotRunning,
}

impl Outcome {
    /// Reads what the system says of a process that ended.
    pub(crate) fn of_exit(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::KilledBySignal(signal.unwrap_or_default()),
        }
    }

    /// What to tell the gateway, `None` where there is nothing left to say. `last_output` is the end of the agent's
    /// output; it is told with a failure that the agent had a part in.
    pub(crate) fn patch(&self, attempt_id: &str, last_output: &str) -> Option<StatusPatch> {
        let failed = |message: String| Some(StatusPatch::state(RolloutState::Failed).because(message));
        match self {
            Self::Exited(0) => Some(StatusPatch::state(RolloutState::Succeeded).attempt(attempt_id)),
            Self::Cancelled => None,
            _ => failed(with_output(self.message(), last_output)),
        }
    }

    /// The original's text, and on further lines what explains it.
    fn message(&self) -> String {
        match self {
            Self::Exited(code) => format!("subprocess exited with code {code}"),
            Self::KilledBySignal(signal) => {
                format!("subprocess exited with code -{signal}\n{}", explain_signal(*signal))
            }
            Self::TimedOut => "local subprocess timed out".into(),
            Self::Cancelled => "rollout was ended by someone else".into(),
            Self::ControllerStopped => "local controller shutdown".into(),
            Self::SpawnFailed(reason) => format!("local subprocess spawn failed: {reason}"),
            Self::NotRunning => "local subprocess is not running".into(),
        }
    }
}

fn with_output(mut message: String, last_output: &str) -> String {
    if !last_output.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(message, "\nlast output:\n{last_output}");
    }
    message
}

fn explain_signal(signal: i32) -> String {
    let known = [
        (
            Signal::KILL,
            "SIGKILL",
            " by something other than the controller: likely out of memory (see the kernel's log)",
        ),
        (Signal::TERM, "SIGTERM", " by something other than the controller"),
        (Signal::INT, "SIGINT", " (an uncaught KeyboardInterrupt ends Python so)"),
        (Signal::SEGV, "SIGSEGV", ": it touched memory that is not its own, a bug in native code"),
        (Signal::ABORT, "SIGABRT", ": it gave up by itself (abort, failed assertion in native code)"),
        (Signal::BUS, "SIGBUS", ": a mapped file shrank or a device failed"),
        (Signal::ILL, "SIGILL", ": its native code was built for another CPU"),
        (Signal::FPE, "SIGFPE", ": integer division by zero in native code"),
        (Signal::PIPE, "SIGPIPE", ": it wrote to a pipe that nobody reads"),
        (Signal::HUP, "SIGHUP", ""),
        (Signal::QUIT, "SIGQUIT", ""),
        (Signal::XCPU, "SIGXCPU", ": its limit on CPU time"),
        (Signal::XFSZ, "SIGXFSZ", ": its limit on file size"),
        (Signal::SYS, "SIGSYS", ": a system call that its sandbox forbids"),
    ];
    match known.iter().find(|(known, ..)| known.as_raw() == signal) {
        Some((_, name, why)) => format!("killed by {name}{why}"),
        None => format!("killed by signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(outcome: &Outcome, last_output: &str) -> String {
        let patch = outcome.patch("0", last_output).unwrap();
        assert_eq!(patch.state, Some(RolloutState::Failed));
        patch.error_message.flatten().unwrap()
    }

    #[test]
    fn the_first_line_is_the_originals_text() {
        for (outcome, text) in [
            (Outcome::Exited(3), "subprocess exited with code 3"),
            (Outcome::TimedOut, "local subprocess timed out"),
            (Outcome::ControllerStopped, "local controller shutdown"),
            (Outcome::NotRunning, "local subprocess is not running"),
            (Outcome::SpawnFailed("no".into()), "local subprocess spawn failed: no"),
        ] {
            assert_eq!(message(&outcome, ""), text);
            assert_eq!(message(&outcome, "a\nb"), format!("{text}\nlast output:\na\nb"));
        }
    }

    #[test]
    fn a_signal_is_explained() {
        let text = message(&Outcome::KilledBySignal(9), "");
        assert!(text.starts_with("subprocess exited with code -9\nkilled by SIGKILL"), "{text}");
        assert!(text.contains("out of memory"), "{text}");
        assert_eq!(message(&Outcome::KilledBySignal(63), ""), "subprocess exited with code -63\nkilled by signal 63");
    }

    #[test]
    fn success_names_the_attempt_and_a_cancelled_rollout_needs_no_words() {
        let expected = StatusPatch::state(RolloutState::Succeeded).attempt("0");
        assert_eq!(Outcome::Exited(0).patch("0", "chatter"), Some(expected));
        assert_eq!(Outcome::Cancelled.patch("0", ""), None);
    }
}
