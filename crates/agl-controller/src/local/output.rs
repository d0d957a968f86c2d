//! What an agent printed: kept in a file of bounded size, and its last lines at hand for the error message.
//!
//! Output comes through a pipe, so that an agent that prints for ever fills neither the disk nor our memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most of an agent's end that is kept, in memory while it runs.
const TAIL_BYTES: u64 = 64 * 1024;
/// Most lines that an error message holds.
const MESSAGE_LINES: usize = 20;
/// Most bytes that an error message holds.
const MESSAGE_BYTES: usize = 2048;
/// Longest file name of a log, under the 255 bytes of common file systems.
const FILE_NAME_BYTES: usize = 200;

/// The output of one agent.
#[derive(Debug)]
pub(crate) struct Output<W = File> {
    /// `None` once it could not be written.
    sink: Option<W>,
    head_limit: u64,
    tail_limit: u64,
    total: u64,
    tail: VecDeque<u8>,
}

impl Output {
    /// Begins a log; one of an earlier run of the same rollout is replaced.
    pub(crate) fn create(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        Ok(Self::new(File::create(path)?, limit_bytes))
    }
}

impl<W: Write> Output<W> {
    fn new(sink: W, limit_bytes: u64) -> Self {
        let tail_limit = TAIL_BYTES.min(limit_bytes / 2);
        Self { sink: Some(sink), head_limit: limit_bytes - tail_limit, tail_limit, total: 0, tail: VecDeque::new() }
    }

    /// Takes what was printed. Blocks no longer than a write to the page cache.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let room = usize::try_from(self.head_limit.saturating_sub(self.total)).unwrap_or(usize::MAX);
        self.write(&bytes[..bytes.len().min(room)]);
        self.total += bytes.len() as u64;
        self.tail.extend(bytes);
        let surplus = self.tail.len().saturating_sub(self.tail_limit as usize);
        self.tail.drain(..surplus);
    }

    /// Adds the end of an output that was too long, and gives the last lines, with `secret` blacked out.
    pub(crate) fn finish(mut self, secret: Option<&str>) -> String {
        let tail: Vec<u8> = std::mem::take(&mut self.tail).into();
        let beyond = self.total.saturating_sub(self.head_limit);
        if beyond > 0 {
            let kept = &tail[tail.len().saturating_sub(usize::try_from(beyond).unwrap_or(usize::MAX))..];
            let left_out = beyond - kept.len() as u64;
            if left_out > 0 {
                self.write(format!("\n[… {left_out} bytes left out …]\n").as_bytes());
            }
            self.write(kept);
        }
        last_lines(&tail, secret)
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(sink) = &mut self.sink else { return };
        if let Err(error) = sink.write_all(bytes) {
            tracing::warn!(%error, "cannot keep an agent's output; it goes on without");
            self.sink = None;
        }
    }
}

fn last_lines(tail: &[u8], secret: Option<&str>) -> String {
    let mut text = String::from_utf8_lossy(tail).trim_end().replace('\0', "");
    if let Some(secret) = secret.filter(|secret| !secret.is_empty()) {
        text = text.replace(secret, "[key]");
    }
    let mut start = text.rmatch_indices('\n').nth(MESSAGE_LINES - 1).map_or(0, |(index, _)| index + 1);
    if text.len() - start > MESSAGE_BYTES {
        start = text.ceil_char_boundary(text.len() - MESSAGE_BYTES);
    }
    text.split_off(start)
}

/// `<log_dir>/<rollout id>.log`; what a file name had better not hold is percent-encoded.
pub(crate) fn log_path(log_dir: &Path, rollout_id: &str) -> PathBuf {
    let mut name = String::new();
    for byte in rollout_id.bytes() {
        let safe = byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && !name.is_empty());
        let next = if safe { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        if name.len() + next.len() > FILE_NAME_BYTES {
            break;
        }
        name.push_str(&next);
    }
    log_dir.join(name + ".log")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the file holds, and what the error message gets.
    fn kept(limit_bytes: u64, printed: &[&str]) -> (String, String) {
        let mut file = Vec::new();
        let mut output = Output::new(&mut file, limit_bytes);
        for text in printed {
            output.append(text.as_bytes());
        }
        let message = output.finish(Some("s3cret"));
        (String::from_utf8(file).unwrap(), message)
    }

    #[test]
    fn short_output_is_kept_whole() {
        assert_eq!(kept(100, &["one\n", "two\n"]), ("one\ntwo\n".into(), "one\ntwo".into()));
        assert_eq!(kept(100, &[]), (String::new(), String::new()));
        assert_eq!(kept(8, &["12345678"]).0, "12345678");
    }

    #[test]
    fn of_long_output_both_ends_are_kept() {
        let (file, message) = kept(8, &["abcdef", "ghijklmnop"]);
        assert_eq!(file, "abcd\n[… 8 bytes left out …]\nmnop");
        assert_eq!(message, "mnop");
        assert_eq!(kept(8, &["abcdef", "gh", "i"]).0, "abcd\n[… 1 bytes left out …]\nfghi");
    }

    #[test]
    fn the_message_is_short_and_holds_no_key() {
        let lines = (0..50).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        let (_, message) = kept(1 << 20, &[&lines]);
        assert_eq!(message.lines().count(), MESSAGE_LINES);
        assert!(message.starts_with("line 30\n") && message.ends_with("line 49"));
        assert_eq!(kept(1 << 20, &["key=s3cret\n"]).1, "key=[key]");
        let (_, message) = kept(1 << 20, &[&"é".repeat(5000)]);
        assert!(message.len() <= MESSAGE_BYTES && message.chars().all(|c| c == 'é'));
    }

    #[test]
    fn a_rollout_id_cannot_leave_the_folder() {
        let name = |rollout_id| log_path(Path::new("logs"), rollout_id);
        assert_eq!(name("0a-b_c.d"), Path::new("logs/0a-b_c.d.log"));
        assert_eq!(name("../x"), Path::new("logs/%2E.%2Fx.log"));
        assert!(name(&"x".repeat(1000)).file_name().unwrap().len() < 255);
    }
}
