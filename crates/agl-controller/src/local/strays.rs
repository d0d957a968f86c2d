//! Finds descendants of an agent that left its process group, by a variable in their environment.
//!
//! Reads `/proc`, so it finds something on Linux only; elsewhere agents are ended by their process group alone.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::mpsc;

/// Set for every agent: `<controller>.<number of the agent>`. Its descendants inherit it.
pub(crate) const MARK: &str = "AGL_AGENT_ID";

/// Agents that end within this time share one look through `/proc`.
const SWEEP_GAP: Duration = Duration::from_secs(1);
/// A look that found something is followed by another, since what was found may just have forked; not for ever.
const MOST_LOOKS: usize = 20;
/// Ended agents that wait for a look; more than any pool ends within [`SWEEP_GAP`].
const QUEUE: usize = 4096;

/// Kills every process whose mark satisfies `ours`, until none is left. Tells how many there were.
pub(crate) fn kill_marked(ours: impl Fn(&str) -> bool) -> usize {
    let mut killed = 0;
    for _ in 0..MOST_LOOKS {
        let found = kill_once(&ours);
        killed += found;
        if found == 0 {
            break;
        }
    }
    killed
}

#[cfg(target_os = "linux")]
fn kill_once(ours: impl Fn(&str) -> bool) -> usize {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let kill = |pid: Pid| {
        // The descriptor comes first: should the number go to another process meanwhile, the signal still goes to this one.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let mark = mark_of(pid.as_raw_pid())?;
        (ours(&mark) && pidfd_send_signal(&process, Signal::KILL).is_ok()).then_some(())
    };
    pids.filter_map(kill).count()
}

/// The mark of a process; `None` for one of another user, and for a zombie.
#[cfg(target_os = "linux")]
fn mark_of(pid: i32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
        (name == MARK).then(|| value.to_owned())
    })
}

#[cfg(not(target_os = "linux"))]
fn kill_once(_ours: impl Fn(&str) -> bool) -> usize {
    0
}

/// Looks for strays after agents have ended, all of a second in one look.
#[derive(Clone, Debug)]
pub(crate) struct Sweeper(mpsc::Sender<String>);

impl Sweeper {
    /// Starts looking; ends with the last handle.
    pub(crate) fn start() -> Self {
        let (ended, mut queue) = mpsc::channel::<String>(QUEUE);
        tokio::spawn(async move {
            let mut marks = Vec::new();
            while queue.recv_many(&mut marks, QUEUE).await > 0 {
                tokio::time::sleep(SWEEP_GAP).await;
                while let Ok(mark) = queue.try_recv() {
                    marks.push(mark);
                }
                let ended: HashSet<String> = marks.drain(..).collect();
                let look = move || kill_marked(|mark| ended.contains(mark));
                if let Ok(killed @ 1..) = tokio::task::spawn_blocking(look).await {
                    tracing::info!(killed, "ended processes that their agent had left behind");
                }
            }
        });
        Self(ended)
    }

    /// The agent with this mark is gone, and so should be what it left.
    pub(crate) async fn ended(&self, mark: String) {
        // Fails only once the runtime is on its way out, where the last look is the controller's own.
        let _ = self.0.send(mark).await;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_marked_are_killed() {
        let sleep = |mark: &str| Command::new("sleep").arg("600").env(MARK, mark).spawn().unwrap();
        let (mut ours, mut theirs) = (sleep("strays-test.1"), sleep("strays-test.2"));
        // A process carries its mark once it has exec'd, which may be a moment after it was spawned.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while kill_once(|mark| mark == "strays-test.1") == 0 {
            assert!(std::time::Instant::now() < deadline, "the marked process was not found");
            std::thread::yield_now();
        }
        assert!(!ours.wait().unwrap().success());
        assert!(theirs.try_wait().unwrap().is_none());
        assert_eq!(kill_once(|mark| mark == "strays-test.1"), 0);
        theirs.kill().unwrap();
        theirs.wait().unwrap();
    }
}
