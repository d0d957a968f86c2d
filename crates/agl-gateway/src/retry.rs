//! Whether and when to try again.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};

use crate::RetrySettings;

/// Whether a model server that answered so may answer differently soon: 408, 409, 429 and every 5xx.
pub fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 409 | 429) || status.as_u16() >= 500
}

/// The pause that a model server asks for in `Retry-After`, at most the longest of our own. Dates are not understood.
pub fn asked(settings: &RetrySettings, headers: &HeaderMap) -> Duration {
    let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).min(settings.max_delay)
}

/// The pause after attempt `attempt` (0 is the first): exponential, capped, then stretched by `chance` (0..1) within
/// the jitter, so that calls that failed together don't come back together.
pub fn delay(settings: &RetrySettings, attempt: u32, chance: f64) -> Duration {
    let doubled = settings.base_delay.saturating_mul(2_u32.saturating_pow(attempt));
    let stretch = 1.0 - settings.jitter + 2.0 * settings.jitter * chance;
    doubled.min(settings.max_delay).mul_f64(stretch.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_passing_troubles_are_retried() {
        let retried = |status: u16| is_retryable(StatusCode::from_u16(status).unwrap());
        assert!([408, 409, 429, 500, 502, 503, 504, 599].into_iter().all(retried));
        assert!(![200, 204, 304, 400, 401, 404, 413, 422, 499].into_iter().any(retried));
    }

    #[test]
    fn a_model_server_may_ask_for_time() {
        let settings = RetrySettings::default();
        let asks = |value: &'static str| {
            asked(&settings, &[(header::RETRY_AFTER, value.parse().unwrap())].into_iter().collect()).as_secs()
        };
        assert_eq!([asks("3"), asks("75"), asks("-1"), asks("Wed, 21 Oct 2026 07:28:00 GMT")], [3, 8, 0, 0]);
        assert_eq!(asked(&settings, &HeaderMap::new()), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn delays_stay_within_their_bounds(attempt in 0_u32..80, chance in 0.0_f64..1.0) {
            let settings = RetrySettings::default();
            let seconds = delay(&settings, attempt, chance).as_secs_f64();
            let nominal = (0.5 * 2_f64.powi(i32::try_from(attempt.min(10)).unwrap())).min(8.0);
            prop_assert!((0.75 * nominal..=1.25 * nominal).contains(&seconds), "{seconds} around {nominal}");
        }
    }
}
