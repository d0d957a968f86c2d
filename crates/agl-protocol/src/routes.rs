//! Which path serves what. Ids are percent-encoded as one path segment.

use crate::Mode;

/// Liveness, no key needed.
pub const HEALTHZ: &str = "/healthz";
/// Create (POST) and list by state (GET).
pub const ROLLOUTS: &str = "/api/rollouts";
/// Rollouts in the order in which they ended.
pub const TERMINAL: &str = "/api/rollouts/terminal";
/// Register (POST) and forget (DELETE) model servers.
pub const MODELS: &str = "/api/models";
/// Refuse new model calls.
pub const PAUSE: &str = "/proxy/pause";
/// Take model calls again.
pub const RESUME: &str = "/proxy/resume";
/// Whether paused, and how many calls are in flight.
pub const PROXY_STATE: &str = "/proxy/state";

/// Query parameter of ours on the two listings: wait up to so many seconds for something new.
/// A server that does not know it answers at once.
pub const WAIT_SECONDS: &str = "wait_seconds";
/// Query parameter of ours on `GET /api/rollouts`: wait until the listed states have changed after this position.
pub const SINCE: &str = "since";
/// Header of ours on `GET /api/rollouts`: the feed position that the answer reflects.
pub const FEED_POSITION_HEADER: &str = "x-agl-feed-position";

/// `/api/rollouts/{id}`
pub fn rollout(rollout_id: &str) -> String {
    format!("{ROLLOUTS}/{}", segment(rollout_id))
}

/// `/api/rollouts/{id}/events`
pub fn events(rollout_id: &str) -> String {
    format!("{}/events", rollout(rollout_id))
}

/// `/api/rollouts/{id}/attempt/{attempt}/events`: where an agent posts its reward.
pub fn attempt_events(rollout_id: &str, attempt_id: &str) -> String {
    format!("{}/attempt/{}/events", rollout(rollout_id), segment(attempt_id))
}

/// `/proxy/rollout/{id}/attempt/{attempt}/mode/{mode}/openai/v1`: the base URL an agent's OpenAI client gets.
pub fn openai_base(rollout_id: &str, attempt_id: &str, mode: Mode) -> String {
    format!("/proxy/rollout/{}/attempt/{}/mode/{mode}/openai/v1", segment(rollout_id), segment(attempt_id))
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn segment(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_one_path_segment() {
        assert_eq!(rollout("a/b c"), "/api/rollouts/a%2Fb%20c");
        assert_eq!(attempt_events("ü", "0"), "/api/rollouts/%C3%BC/attempt/0/events");
        assert_eq!(openai_base("r1", "0", Mode::Train), "/proxy/rollout/r1/attempt/0/mode/train/openai/v1");
    }
}
