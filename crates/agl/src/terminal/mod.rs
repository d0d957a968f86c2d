//! What a run shows in the terminal: a progress bar a phase, a line a step, a summary at the end.
//!
//! Words go to standard error, so that standard output stays free for data (`--json`). The lines themselves are made
//! by pure functions over plain structs, which the training loop fills.

mod progress;
mod sparkline;
mod step;
mod summary;

pub use progress::{Display, Phase, PhaseProgress, Progress, Tick};
pub use sparkline::{Range, sparkline};
pub use step::{StepSummary, ValidationSummary, step_header, step_line, validation_line};
pub use summary::{Ending, FinalSummary, NextCommand, final_summary};
