//! Ends the agents of a controller that was killed before it could.
//!
//! The watchdog is a process of its own, in its own session, deaf to Ctrl-C and SIGTERM. It reads from a pipe which process
//! groups there are. The pipe ends when the controller does, however it dies; then the watchdog kills the groups, and
//! whatever else carries the controller's mark: what was started in its last moment, and what left its group.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufRead as _, Write as _};
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::strays;

/// How long a watchdog may take to start.
const START_WAIT: Duration = Duration::from_secs(10);
/// How long it may take to go once it is dismissed.
const DISMISS_WAIT: Duration = Duration::from_secs(2);
/// Pause before one that died is replaced.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Lines on their way to it.
const QUEUE: usize = 1024;

/// The controller is gone: how often the watchdog looks for what is left, for how long nothing must have shown up, and
/// when it gives up. A process that was forked in the controller's last moment carries the mark only once it has exec'd.
const LOOK_GAP: Duration = Duration::from_millis(50);
const QUIET_TIME: Duration = Duration::from_millis(500);
const LOOK_TIME: Duration = Duration::from_secs(10);

/// What it says once it watches.
const READY: &str = "ready";
/// What it is told when nothing is left to watch.
const DISMISSED: &str = "dismissed";

/// Why the agents can't be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchdogError {
    /// Its program can't be run.
    #[error("cannot start the watchdog `{program}`: {source}; agents would outlive a killed controller")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// Its program runs, but is not a watchdog.
    #[error(
        "`{program}` did not become the watchdog ({what}); `watchdog_command` has to start a program whose `main` calls `watchdog_main`"
    )]
    NotReady {
        /// The program.
        program: String,
        /// What it did instead.
        what: String,
    },
}

/// What the watchdog is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// This process group lives.
    Watch(Pid),
    /// This one is gone.
    Forget(Pid),
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let (sign, pid) = text.split_at_checked(1)?;
        let pid = pid.parse().ok().and_then(Pid::from_raw)?;
        match sign {
            "+" => Some(Self::Watch(pid)),
            "-" => Some(Self::Forget(pid)),
            _ => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Watch(pid) => format!("+{}\n", pid.as_raw_pid()),
            Self::Forget(pid) => format!("-{}\n", pid.as_raw_pid()),
        }
    }

    fn apply(self, groups: &mut BTreeSet<i32>) {
        match self {
            Self::Watch(pid) => groups.insert(pid.as_raw_pid()),
            Self::Forget(pid) => groups.remove(&pid.as_raw_pid()),
        };
    }
}

/// The controller's hold on its watchdog.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog(Option<mpsc::Sender<Line>>);

impl Watchdog {
    /// Starts the watchdog, and a task that feeds it and replaces it should it die. An empty command: no watchdog.
    pub(crate) async fn start(
        command: &[OsString],
        controller_id: &str,
    ) -> Result<(Self, Option<JoinHandle<()>>), WatchdogError> {
        let Some((program, arguments)) = command.split_first() else {
            tracing::warn!("no watchdog: agents will outlive this controller should it be killed");
            return Ok((Self(None), None));
        };
        let keeper = Keeper {
            program: program.clone(),
            arguments: arguments.to_vec(),
            controller_id: controller_id.to_owned(),
            groups: BTreeSet::new(),
        };
        let first = keeper.spawn().await?;
        let (lines, queue) = mpsc::channel(QUEUE);
        Ok((Self(Some(lines)), Some(tokio::spawn(keeper.feed(first, queue)))))
    }

    /// This process group has to go with the controller.
    pub(crate) async fn watch(&self, group: Pid) {
        self.tell(Line::Watch(group)).await;
    }

    /// This one is gone.
    pub(crate) async fn forget(&self, group: Pid) {
        self.tell(Line::Forget(group)).await;
    }

    async fn tell(&self, line: Line) {
        if let Some(lines) = &self.0 {
            // The feeding task ends after every handle is gone, unless the runtime is on its way out.
            let _ = lines.send(line).await;
        }
    }
}

/// Feeds the watchdog. Knows every group, for the watchdog's successor.
struct Keeper {
    program: OsString,
    arguments: Vec<OsString>,
    controller_id: String,
    groups: BTreeSet<i32>,
}

impl Keeper {
    /// Feeds the watchdog until every handle is gone, then dismisses it.
    async fn feed(mut self, mut dog: (Child, ChildStdin), mut queue: mpsc::Receiver<Line>) {
        loop {
            let (child, stdin) = &mut dog;
            tokio::select! {
                line = queue.recv() => {
                    let Some(line) = line else { break };
                    line.apply(&mut self.groups);
                    // Fails when the watchdog is gone, which the other branch is about to see.
                    let _ = stdin.write_all(line.text().as_bytes()).await;
                }
                status = child.wait() => {
                    tracing::warn!(?status, "the watchdog is gone; starting another");
                    match self.restart().await {
                        Some(next) => dog = next,
                        None => return,
                    }
                }
            }
        }
        let (mut child, mut stdin) = dog;
        let _ = stdin.write_all(format!("{DISMISSED}\n").as_bytes()).await;
        drop(stdin);
        if timeout(DISMISS_WAIT, child.wait()).await.is_err() {
            tracing::warn!("the watchdog does not end");
        }
    }

    /// `None` if it can't be started any more.
    async fn restart(&self) -> Option<(Child, ChildStdin)> {
        sleep(RESTART_PAUSE).await;
        match self.spawn().await {
            Ok(dog) => Some(dog),
            Err(error) => {
                tracing::error!(%error, "no watchdog any more");
                None
            }
        }
    }

    /// Starts a watchdog, tells it what there is, and waits until it watches.
    async fn spawn(&self) -> Result<(Child, ChildStdin), WatchdogError> {
        let program = || self.program.display().to_string();
        let spawn_error = |source| WatchdogError::Spawn { program: program(), source };
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(spawn_error)?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(spawn_error(io::ErrorKind::BrokenPipe.into()));
        };
        let greet = async {
            let mut greeting = format!("{}\n", self.controller_id);
            greeting.extend(self.groups.iter().map(|group| format!("+{group}\n")));
            // Fails only if it has ended, which the silence that follows tells better.
            let _ = stdin.write_all(greeting.as_bytes()).await;
            let mut answer = String::new();
            BufReader::new(stdout).read_line(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let what = match timeout(START_WAIT, greet).await {
            Ok(Ok(answer)) if answer.trim_end() == READY => return Ok((child, stdin)),
            Ok(Ok(answer)) if answer.is_empty() => "it ended at once".to_owned(),
            Ok(Ok(answer)) => format!("it said {answer:?}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it said nothing for {} s", START_WAIT.as_secs()),
        };
        let _ = child.kill().await;
        Err(WatchdogError::NotReady { program: program(), what })
    }
}

/// The watchdog itself: the whole `main` of the process that `watchdog_command` starts.
pub fn watchdog_main() -> ExitCode {
    // Out of reach of the terminal's Ctrl-C. Fails only for a leader of a group, which is out of reach already.
    let _ = rustix::process::setsid();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    // Listening is enough to not be ended by them. A service manager that stops the whole group must not stop us first.
    let guard = runtime.enter();
    let deaf_to = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let _listeners: Vec<_> = deaf_to.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    drop(guard);
    match keep_watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reads until the controller is gone or dismisses us.
fn keep_watch() -> io::Result<()> {
    let mut lines = io::stdin().lock().lines();
    let controller_id = lines.next().transpose()?.unwrap_or_default();
    if controller_id.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Fails if the controller is gone by now: then the pipe has ended too, and the agents are what we are here for.
    let _ = writeln!(io::stdout(), "{READY}").and_then(|()| io::stdout().flush());
    let mut groups = BTreeSet::new();
    for line in lines.map_while(Result::ok) {
        if line == DISMISSED {
            return Ok(());
        }
        if let Some(line) = Line::parse(&line) {
            line.apply(&mut groups);
        }
    }
    end_everything(&controller_id, &groups);
    Ok(())
}

fn end_everything(controller_id: &str, groups: &BTreeSet<i32>) {
    for group in groups.iter().filter_map(|group| Pid::from_raw(*group)) {
        // One that is gone already is fine.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let prefix = format!("{controller_id}.");
    let give_up = Instant::now() + LOOK_TIME;
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < QUIET_TIME && Instant::now() < give_up {
        if strays::kill_marked(|mark| mark.starts_with(&prefix)) > 0 {
            quiet_since = Instant::now();
        }
        thread::sleep(LOOK_GAP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_as_they_were_written() {
        let pid = Pid::from_raw(42).unwrap();
        for line in [Line::Watch(pid), Line::Forget(pid)] {
            assert_eq!(Line::parse(line.text().trim_end()), Some(line));
        }
        for junk in ["", "+", "+x", "*1", "é", "+0"] {
            assert_eq!(Line::parse(junk), None, "{junk}");
        }
    }

    #[tokio::test]
    async fn a_program_that_is_no_watchdog_is_found_out() {
        let start = async |command: &[&str]| {
            let command: Vec<OsString> = command.iter().map(Into::into).collect();
            Watchdog::start(&command, "c").await.unwrap_err().to_string()
        };
        assert!(start(&["true"]).await.contains("it ended at once"));
        assert!(start(&["sh", "-c", "echo usage: sh"]).await.contains("it said \"usage: sh"));
        assert!(start(&["/no/such/program"]).await.contains("cannot start the watchdog `/no/such/program`"));
    }
}
