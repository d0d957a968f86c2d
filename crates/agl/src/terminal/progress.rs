//! A progress bar a phase on a terminal, and now and then a plain line where there is none.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::step::{StepSummary, step_header, step_line};
use crate::numbers;

/// A log gets a sign of life this often from a phase that takes long.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Elapsed time and ETA are drawn anew this often, even if nothing ends.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);
/// The names of the columns are repeated after so many step lines.
const STEPS_PER_HEADER: usize = 20;

const BAR: &str = "{prefix:>9.cyan} {bar:24.cyan/dim} {count:>9}  {rate:>8}  ETA {eta:>4}  {msg}";

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    /// Bars that are drawn over, in colour.
    Bars,
    /// Plain lines, for logs and simple terminals.
    Lines,
}

impl Display {
    /// What fits the standard error of this process: lines if it is no terminal, if `NO_COLOR` is set to anything but
    /// nothing (<https://no-color.org>), or if `TERM` is `dumb`.
    pub fn of_stderr() -> Self {
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        Self::choose(io::stderr().is_terminal(), no_color.as_deref(), term.as_deref())
    }

    fn choose(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> Self {
        let plain = no_color.is_some_and(|value| !value.is_empty()) || term.is_some_and(|term| term == "dumb");
        if is_terminal && !plain { Self::Bars } else { Self::Lines }
    }
}

/// The phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Rollouts that measure the policy.
    Validate,
    /// Rollouts that the policy learns from.
    Rollouts,
    /// The policy learns.
    Update,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::Rollouts => "rollouts",
            Self::Update => "update",
        }
    }
}

/// How far a phase is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tick {
    /// Rollouts or batches done.
    pub done: u64,
    /// Of these, rollouts that failed.
    pub failed: u64,
    /// Mean reward so far, if there is one.
    pub mean_reward: Option<f64>,
}

impl Tick {
    fn words(&self) -> String {
        let reward = self.mean_reward.map(|reward| format!("reward {}", numbers::reward(reward)));
        let failed = (self.failed > 0).then(|| format!("{} failed", numbers::count(self.failed)));
        [reward, failed].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Shows the progress of one run on standard error. Clones share it.
#[derive(Clone)]
pub struct Progress(Arc<Shared>);

struct Shared {
    /// `None`: plain lines only.
    bars: Option<MultiProgress>,
    out: Mutex<Box<dyn Write + Send>>,
    step_lines: Mutex<usize>,
}

impl Progress {
    /// On standard error, as `display` says.
    pub fn on_stderr(display: Display) -> Self {
        let target = match display {
            Display::Bars => Some(ProgressDrawTarget::stderr()),
            Display::Lines => None,
        };
        Self::new(target, Box::new(io::stderr()))
    }

    fn new(target: Option<ProgressDrawTarget>, out: Box<dyn Write + Send>) -> Self {
        let bars = target.map(MultiProgress::with_draw_target);
        Self(Arc::new(Shared { bars, out: Mutex::new(out), step_lines: Mutex::new(0) }))
    }

    /// Begins a phase of `total` rollouts or batches. It ends when the returned value is dropped.
    pub fn begin(&self, phase: Phase, total: u64) -> PhaseProgress {
        PhaseProgress(match &self.0.bars {
            Some(bars) => {
                let bar = bars.add(ProgressBar::new(total).with_style(bar_style()).with_prefix(phase.name()));
                bar.enable_steady_tick(REDRAW_INTERVAL);
                Shown::Bar(bar)
            }
            None => Shown::Lines(self.clone(), Heartbeat::new(phase, total, Instant::now())),
        })
    }

    /// Prints a line above the bar. What a closed terminal refuses is let go: it must not end a training run.
    pub fn print_line(&self, line: &str) {
        let print = || writeln!(self.0.out.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        let _ = match &self.0.bars {
            Some(bars) => bars.suspend(print),
            None => print(),
        };
    }

    /// Prints a step, and the names of the columns before the first and after every 20.
    pub fn print_step(&self, step: &StepSummary) {
        let mut lines = self.0.step_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_multiple_of(STEPS_PER_HEADER) {
            self.print_line(&step_header());
        }
        *lines += 1;
        self.print_line(&step_line(step));
    }
}

/// The progress of one phase; dropped when the phase is over.
pub struct PhaseProgress(Shown);

enum Shown {
    Bar(ProgressBar),
    Lines(Progress, Heartbeat),
}

impl PhaseProgress {
    /// Shows how far the phase is.
    pub fn update(&mut self, tick: Tick) {
        match &mut self.0 {
            Shown::Bar(bar) => {
                bar.set_position(tick.done);
                bar.set_message(tick.words());
            }
            Shown::Lines(progress, heartbeat) => {
                if let Some(line) = heartbeat.line(tick, Instant::now()) {
                    progress.print_line(&line);
                }
            }
        }
    }
}

impl Drop for PhaseProgress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Decides when a phase deserves a plain line: never if it is short, else once an interval.
struct Heartbeat {
    phase: Phase,
    total: u64,
    began: Instant,
    last_line: Instant,
}

impl Heartbeat {
    fn new(phase: Phase, total: u64, now: Instant) -> Self {
        Self { phase, total, began: now, last_line: now }
    }

    fn line(&mut self, tick: Tick, now: Instant) -> Option<String> {
        if now.duration_since(self.last_line) < LINE_INTERVAL {
            return None;
        }
        self.last_line = now;
        let words = tick.words();
        Some(format!(
            "{}: {} of {} after {}{}{words}",
            self.phase.name(),
            numbers::count(tick.done),
            numbers::count(self.total),
            numbers::duration(now.duration_since(self.began).as_secs_f64()),
            if words.is_empty() { "" } else { ", " },
        ))
    }
}

fn bar_style() -> ProgressStyle {
    let count = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{}/{}", state.pos(), state.len().unwrap_or(0));
    };
    let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{}/s", numbers::fixed(state.per_sec(), 1));
    };
    // The template is a constant, which a test draws; the fallback is never seen.
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("count", count).with_key("rate", rate).progress_chars("━╸─")
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;

    #[test]
    fn bars_need_a_terminal_that_wants_them() {
        let choose = |is_terminal, no_color: Option<&str>, term: Option<&str>| {
            Display::choose(is_terminal, no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert_eq!(choose(true, None, Some("xterm-256color")), Display::Bars);
        assert_eq!(choose(true, Some(""), None), Display::Bars, "empty NO_COLOR counts as unset");
        assert_eq!(choose(false, None, Some("xterm-256color")), Display::Lines);
        assert_eq!(choose(true, Some("1"), Some("xterm-256color")), Display::Lines);
        assert_eq!(choose(true, None, Some("dumb")), Display::Lines);
    }

    #[test]
    fn a_long_phase_speaks_once_an_interval() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut heartbeat = Heartbeat::new(Phase::Rollouts, 2048, start);
        let tick = |done| Tick { done, failed: 2, mean_reward: Some(0.3125) };
        assert_eq!(heartbeat.line(tick(10), at(9.9)), None);
        let line = heartbeat.line(tick(1024), at(10.0)).unwrap().replace('\u{a0}', " ");
        assert_eq!(line, "rollouts: 1,024 of 2,048 after 10.0 s, reward 0.312, 2 failed");
        assert_eq!(heartbeat.line(tick(1030), at(19.9)), None);
        let line = heartbeat.line(Tick { done: 1100, ..Tick::default() }, at(75.0)).unwrap().replace('\u{a0}', " ");
        assert_eq!(line, "rollouts: 1,100 of 2,048 after 1 min 15 s");
    }

    /// Keeps what is written to it.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn text(&self) -> String {
            self.0.lock().unwrap().replace('\u{a0}', " ")
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            100
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(&format!("{text}\n"))
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.write_str("\n")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_shows_count_rate_reward_and_eta() {
        let screen = Screen::default();
        let progress =
            Progress::new(Some(ProgressDrawTarget::term_like(Box::new(screen.clone()))), Box::new(screen.clone()));
        let mut phase = progress.begin(Phase::Validate, 128);
        phase.update(Tick { done: 64, failed: 1, mean_reward: Some(0.5) });
        progress.print_line("a line above");
        let text = screen.text();
        for part in ["a line above\n", "validate ", "━━━", "64/128", "/s", "ETA ", "reward 0.500, 1 failed"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_log_holds_plain_lines_only() {
        let screen = Screen::default();
        let progress = Progress::new(None, Box::new(screen.clone()));
        let mut phase = progress.begin(Phase::Rollouts, 128);
        for done in 0..128 {
            phase.update(Tick { done, ..Tick::default() });
        }
        drop(phase);
        for step in 1..=21 {
            progress.print_step(&StepSummary {
                step,
                steps: 40,
                reward_mean: Some(0.5),
                success_rate: Some(0.5),
                rows: 128,
                tokens: 4096,
                staleness: 0.0,
                rollout_seconds: 1.0,
                update_seconds: 1.0,
            });
        }
        let text = screen.text();
        assert_eq!(text.lines().count(), 23, "21 steps and two headers, no tick: {text}");
        assert_eq!(text.lines().filter(|line| line.contains("staleness")).count(), 2);
        assert!(!text.contains('\u{1b}'));
    }
}
