//! How the learning rate goes over the steps of a run.

/// The learning rate as a share of its highest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Rises from 0 over `warmup_steps`, then stays.
    Constant {
        /// Steps of the rise.
        warmup_steps: usize,
    },
    /// Rises from `initial_ratio` over `warmup_steps`, then falls along a cosine, `cycles` times half a wave to and fro, to
    /// `min_ratio` at `total_steps`.
    Cosine {
        /// Steps of the rise.
        warmup_steps: usize,
        /// Steps of the run.
        total_steps: usize,
        /// Lowest share after the rise.
        min_ratio: f64,
        /// Waves; 0.5 falls once.
        cycles: f64,
        /// Share at step 0 of the rise.
        initial_ratio: f64,
    },
}

impl Schedule {
    /// The share at `step`, counted from 0: the first step of a warm-up from 0 changes nothing.
    ///
    /// Source: verl `get_constant_schedule_with_warmup`, `get_cosine_schedule_with_warmup`.
    pub fn ratio(&self, step: usize) -> f64 {
        match *self {
            Self::Constant { warmup_steps } => {
                if step < warmup_steps {
                    step as f64 / warmup_steps as f64
                } else {
                    1.0
                }
            }
            Self::Cosine { warmup_steps, total_steps, min_ratio, cycles, initial_ratio } => {
                if step < warmup_steps {
                    return initial_ratio + (1.0 - initial_ratio) * (step as f64 / warmup_steps as f64);
                }
                let falling_steps = total_steps.saturating_sub(warmup_steps).max(1);
                let progress = (step - warmup_steps) as f64 / falling_steps as f64;
                let wave = (std::f64::consts::PI * cycles * 2.0 * progress).cos();
                (wave * (1.0 - min_ratio) * 0.5 + (1.0 + min_ratio) * 0.5).max(min_ratio)
            }
        }
    }
}
