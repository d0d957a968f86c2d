//! One agent's process: a session of its own, so that one signal reaches it and all its children.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessSession};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::launch::Launch;
use super::output::Output;
use crate::Outcome;

/// How long output is still awaited once the agent is gone: a pipe that a child in another group holds open never ends.
const LAST_OUTPUT_WAIT: Duration = Duration::from_millis(10);
/// Size of a pipe on Linux: one read then empties it.
const READ_BYTES: usize = 64 * 1024;

/// A running agent. Dropping it kills its leader.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    child: Box<dyn ChildWrapper>,
    group: Pid,
    output: pipe::Receiver,
}

impl AgentProcess {
    /// Makes the process. `mark` is a variable by which its descendants are known, wherever they go.
    pub(crate) fn spawn(launch: &Launch, mark: (&str, &str)) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .envs(&launch.environment)
            .env(mark.0, mark.1)
            .current_dir(&launch.directory)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .kill_on_drop(true);
        // A session, not just a group: without a terminal, an agent that asks for a password fails instead of hanging.
        let child = CommandWrap::from(command).wrap(ProcessSession).spawn()?.into_inner();
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or(io::ErrorKind::NotFound)?;
        let output = pipe::Receiver::from_owned_fd(reader.into())?;
        Ok(Self { child, group, output })
    }

    /// The id of its process, process group and session.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Keeps its output and passes signals on until it is gone, and its whole group with it.
    pub(crate) async fn supervise(
        mut self,
        signals: &mut mpsc::Receiver<Signal>,
        output: &mut Output,
    ) -> io::Result<Outcome> {
        let mut buffer = vec![0; READ_BYTES];
        let mut open = true;
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status?,
                Some(signal) = signals.recv() => signal_group(self.group, signal),
                read = self.output.read(&mut buffer), if open => match read {
                    Ok(0) | Err(_) => open = false,
                    Ok(count) => output.append(&buffer[..count]),
                },
            }
        };
        // The number is free to be used again only once the group is empty, and then nobody is there to be hit.
        signal_group(self.group, Signal::KILL);
        while open && let Ok(Ok(count @ 1..)) = timeout(LAST_OUTPUT_WAIT, self.output.read(&mut buffer)).await {
            output.append(&buffer[..count]);
        }
        Ok(Outcome::of_exit(status))
    }
}

/// To every process of the group; one that is gone already is fine.
pub(crate) fn signal_group(group: Pid, signal: Signal) {
    if let Err(error) = kill_process_group(group, signal)
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(group = group.as_raw_pid(), ?signal, %error, "cannot signal an agent's process group");
    }
}
