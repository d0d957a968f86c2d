//! Runs the real `agl` program in a folder of its own.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Longest that any program of these tests may take.
const DEADLINE: Duration = Duration::from_mins(5);

/// A folder with a copy of the calculator example, in which `agl` is run.
pub(crate) struct Folder(tempfile::TempDir);

/// A program that runs, its stderr being read.
pub(crate) struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    seen: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/calculator");
        copy(&example, &folder.path().join("examples/calculator"));
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn example(&self, name: &str) -> PathBuf {
        self.path().join("examples/calculator").join(name)
    }

    /// Puts another agent in the example's place.
    pub(crate) fn write_agent(&self, text: &str) {
        std::fs::write(self.example("agent.py"), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agl"));
        command.args(arguments).current_dir(self.path()).env_remove("AGL_KEY").env_remove("CARGO_MANIFEST_DIR");
        command.stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs to the end, which must be a failure; gives stderr.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?} should fail: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running { child, stderr, seen: String::new() }
    }

    /// Agents of this folder that are alive.
    pub(crate) fn agents(&self) -> Vec<u32> {
        let is_ours = |pid: &u32| {
            let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            cwd.starts_with(self.path()) && !exe.ends_with("agl")
        };
        let pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(is_ours).collect()
    }

    /// Waits until no agent of this folder is alive.
    pub(crate) fn assert_no_agent_is_left(&self) {
        let started = Instant::now();
        while !self.agents().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "agents were left behind: {:?}", self.agents());
            std::thread::yield_now();
        }
    }
}

impl Running {
    /// Reads stderr until a line holds `text`.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).unwrap();
            self.seen.push_str(&line);
            if line.contains(text) {
                return;
            }
            assert!(read > 0 && started.elapsed() < DEADLINE, "`{text}` did not come: {}", self.seen);
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; gives the exit status and all of stderr.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        self.seen.push_str(&rest);
        (self.child.wait().unwrap(), self.seen)
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
