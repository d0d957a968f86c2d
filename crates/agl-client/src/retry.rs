//! How long to wait before a call is tried again.

use std::time::Duration;

const BASE: Duration = Duration::from_millis(50);
const CAP: Duration = Duration::from_secs(5);

/// Doubles from 50 ms to 5 s: short enough for a gateway that restarts, long enough for one that is overwhelmed.
pub(crate) fn delay(tries_so_far: u32) -> Duration {
    BASE.saturating_mul(1 << tries_so_far.min(16)).min(CAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap() {
        assert_eq!(delay(0), BASE);
        assert_eq!(delay(1), BASE * 2);
        assert_eq!(delay(40), CAP);
    }
}
