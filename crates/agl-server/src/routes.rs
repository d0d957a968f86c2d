//! Which path serves what, by the rules of the original's framework.
//!
//! Paths are matched after percent-decoding, so `%2F` separates segments. The first route that fits path and method
//! serves; if only the path fits, the first such route says in `Allow` what it would take; if a path fits but for a
//! slash at its end, the caller is sent there. These rules are part of the contract, and no router crate has them.

use std::fmt::Write as _;

/// What can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    OpenApi,
    Docs,
    DocsRedirect,
    Redoc,
    Healthz,
    CreateRollouts,
    ListRollouts,
    ListTerminal,
    GetRollout,
    PatchRollout,
    DeleteRollout,
    RolloutStatuses,
    PostEvent,
    GetEvents,
    RegisterModels,
    DeleteModels,
    CallModel,
    ListModels,
    Pause,
    Resume,
    ProxyState,
    PublishReadiness,
    GetReadiness,
}

impl Endpoint {
    /// Whether anybody may call it without a key.
    pub(crate) fn is_public(self) -> bool {
        matches!(self, Self::OpenApi | Self::Docs | Self::DocsRedirect | Self::Redoc | Self::Healthz)
    }
}

/// A route: methods, path, endpoint. `{}` is one segment, `{*}` all the rest, which may be empty.
type Route = (&'static [&'static str], &'static str, Endpoint);

/// In the original's order, which decides the `Allow` header; later routes behind it.
const ROUTES: &[Route] = &[
    (&["GET", "HEAD"], "/openapi.json", Endpoint::OpenApi),
    (&["GET", "HEAD"], "/docs", Endpoint::Docs),
    (&["GET", "HEAD"], "/docs/oauth2-redirect", Endpoint::DocsRedirect),
    (&["GET", "HEAD"], "/redoc", Endpoint::Redoc),
    (&["GET"], "/healthz", Endpoint::Healthz),
    (&["POST"], "/api/rollouts", Endpoint::CreateRollouts),
    (&["GET"], "/api/rollouts", Endpoint::ListRollouts),
    (&["GET"], "/api/rollouts/terminal", Endpoint::ListTerminal),
    (&["GET"], "/api/rollouts/{}", Endpoint::GetRollout),
    (&["PATCH"], "/api/rollouts/{}", Endpoint::PatchRollout),
    (&["DELETE"], "/api/rollouts/{}", Endpoint::DeleteRollout),
    (&["POST"], "/api/rollouts/status", Endpoint::RolloutStatuses),
    (&["POST"], "/api/rollouts/{}/attempt/{}/events", Endpoint::PostEvent),
    (&["GET"], "/api/rollouts/{}/events", Endpoint::GetEvents),
    (&["POST"], "/api/models", Endpoint::RegisterModels),
    (&["DELETE"], "/api/models", Endpoint::DeleteModels),
    (&["POST"], "/proxy/rollout/{}/attempt/{}/mode/{}/openai/v1/{*}", Endpoint::CallModel),
    (&["GET"], "/proxy/rollout/{}/attempt/{}/mode/{}/openai/v1/models", Endpoint::ListModels),
    (&["POST"], "/proxy/pause", Endpoint::Pause),
    (&["POST"], "/proxy/resume", Endpoint::Resume),
    (&["GET"], "/proxy/state", Endpoint::ProxyState),
    (&["PUT"], "/api/runner-readiness/k8s", Endpoint::PublishReadiness),
    (&["GET"], "/api/runner-readiness/k8s", Endpoint::GetReadiness),
];

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Served, with the segments that stood for `{}` and `{*}`.
    Serve(Endpoint, Vec<String>),
    /// The path exists, the method does not.
    MethodNotAllowed(&'static [&'static str]),
    /// The path exists with one slash more or fewer.
    Redirect(String),
    /// Neither.
    NotFound,
}

/// Finds who serves a decoded path.
pub(crate) fn resolve(method: &str, path: &str) -> Resolved {
    let mut allowed = None;
    for (methods, pattern, endpoint) in ROUTES {
        let Some(segments) = matched(pattern, path) else { continue };
        if methods.contains(&method) {
            return Resolved::Serve(*endpoint, segments);
        }
        allowed = allowed.or(Some(*methods));
    }
    if let Some(methods) = allowed {
        return Resolved::MethodNotAllowed(methods);
    }
    let other = if path.ends_with('/') { path.trim_end_matches('/').to_owned() } else { format!("{path}/") };
    let exists = path != "/" && ROUTES.iter().any(|(_, pattern, _)| matched(pattern, &other).is_some());
    if exists { Resolved::Redirect(other) } else { Resolved::NotFound }
}

fn matched(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = path;
    for literal in pattern.split_inclusive(['}']) {
        let (literal, hole) = match literal.strip_suffix("{}") {
            Some(literal) => (literal, Some(false)),
            None => match literal.strip_suffix("{*}") {
                Some(literal) => (literal, Some(true)),
                None => (literal, None),
            },
        };
        rest = rest.strip_prefix(literal)?;
        match hole {
            None => {}
            Some(true) => found.push(std::mem::take(&mut rest).to_owned()),
            Some(false) => {
                let end = rest.find('/').unwrap_or(rest.len());
                if end == 0 {
                    return None;
                }
                found.push(rest[..end].to_owned());
                rest = &rest[end..];
            }
        }
    }
    rest.is_empty().then_some(found)
}

/// Percent-decoding as Python's `unquote`: what is no escape stays, what is no UTF-8 becomes U+FFFD.
pub(crate) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if let (b'%', Some(high), Some(low)) = (byte, hex(at + 1), hex(at + 2)) {
            out.push((high * 16 + low) as u8);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Percent-encoding for a `Location` header, as the original's framework does it.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~:/%#?=@[]!$&'()*+,;".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The pairs of a query string, in order, blank values included.
pub(crate) fn query_pairs(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode(&text.replace('+', " "));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(method: &str, path: &str) -> Option<(Endpoint, Vec<String>)> {
        match resolve(method, path) {
            Resolved::Serve(endpoint, segments) => Some((endpoint, segments)),
            _ => None,
        }
    }

    #[test]
    fn paths_lead_to_endpoints() {
        let some = |endpoint: Endpoint, segments: &[&str]| {
            Some((endpoint, segments.iter().map(|segment| (*segment).to_owned()).collect::<Vec<_>>()))
        };
        assert_eq!(serve("GET", "/api/rollouts/r1"), some(Endpoint::GetRollout, &["r1"]));
        assert_eq!(serve("GET", "/api/rollouts/terminal"), some(Endpoint::ListTerminal, &[]));
        assert_eq!(serve("PATCH", "/api/rollouts/terminal"), some(Endpoint::PatchRollout, &["terminal"]));
        assert_eq!(
            serve("POST", "/proxy/rollout/r/attempt/0/mode/train/openai/v1/chat/completions"),
            some(Endpoint::CallModel, &["r", "0", "train", "chat/completions"])
        );
        assert_eq!(
            serve("POST", "/proxy/rollout/r/attempt/0/mode/train/openai/v1/"),
            some(Endpoint::CallModel, &["r", "0", "train", ""])
        );
    }

    #[test]
    fn near_misses_are_told_apart() {
        assert_eq!(resolve("DELETE", "/api/rollouts"), Resolved::MethodNotAllowed(&["POST"]));
        assert_eq!(resolve("HEAD", "/healthz"), Resolved::MethodNotAllowed(&["GET"]));
        assert_eq!(resolve("GET", "/healthz/"), Resolved::Redirect("/healthz".into()));
        assert_eq!(
            resolve("POST", "/proxy/rollout/r/attempt/0/mode/train/openai/v1"),
            Resolved::Redirect("/proxy/rollout/r/attempt/0/mode/train/openai/v1/".into())
        );
        for path in ["/", "/api", "//api/rollouts", "/API/rollouts", "/api/rollouts/a/b", "/api/rollouts//events"] {
            assert_eq!(resolve("GET", path), Resolved::NotFound, "{path}");
        }
    }

    #[test]
    fn decoding_is_that_of_python() {
        assert_eq!(percent_decode("a%2Fb%20c+%zz%"), "a/b c+%zz%");
        assert_eq!(percent_decode("%ff%fe"), "\u{fffd}\u{fffd}");
        assert_eq!(
            query_pairs("a=1&b&a=%2B+2&&=x"),
            [("a", "1"), ("b", ""), ("a", "+ 2"), ("", "x")].map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
    }
}
