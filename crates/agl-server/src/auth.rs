//! Whether a caller knows the key.

use http::{HeaderMap, header};
use subtle::ConstantTimeEq;

/// Whether the request shows the key, as `Authorization: Bearer KEY` or `x-api-key: KEY`. One right one is enough.
/// An empty key lets everybody in. Comparing takes the same time wherever a wrong key differs.
pub(crate) fn is_authorized(headers: &HeaderMap, key: &str) -> bool {
    if key.is_empty() {
        return true;
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let api_key = headers.get("x-api-key").map(http::HeaderValue::as_bytes);
    let right = |shown: &[u8]| bool::from(shown.ct_eq(key.as_bytes()));
    bearer.is_some_and(right) | api_key.is_some_and(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorized(name: &'static str, value: &'static str) -> bool {
        let headers = [(http::HeaderName::from_static(name), http::HeaderValue::from_static(value))];
        is_authorized(&headers.into_iter().collect(), "k-secret")
    }

    #[test]
    fn only_the_exact_key_opens() {
        assert!(authorized("authorization", "Bearer k-secret"));
        assert!(authorized("x-api-key", "k-secret"));
        for wrong in
            ["bearer k-secret", "Bearer  k-secret", "k-secret", "Bearer k-secre", "Bearer k-secret2", "Bearer "]
        {
            assert!(!authorized("authorization", wrong), "{wrong}");
        }
        for wrong in ["", "K-secret", "Bearer k-secret"] {
            assert!(!authorized("x-api-key", wrong), "{wrong}");
        }
        assert!(is_authorized(&HeaderMap::new(), ""));
    }
}
