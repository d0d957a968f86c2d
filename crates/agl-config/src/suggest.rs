//! "Did you mean": the known name that is nearest to the one that was given.

/// Names further away than this share of their length are no help.
const MIN_SIMILARITY: f64 = 0.6;
/// Fewer letters than these begin too many names.
const SHORTEST_PREFIX: usize = 3;
/// A list of known names longer than this is cut.
const MAX_LISTED: usize = 20;

/// The nearest of `known`, if any is near.
pub(crate) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    known
        .into_iter()
        .map(|name| (similarity(&given, &name.to_lowercase()), name))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

/// 1 for the same, 0 for nothing in common; a name that was cut short (`timeout` for `timeout_seconds`) is near.
fn similarity(given: &str, name: &str) -> f64 {
    let cut_short = given.len() >= SHORTEST_PREFIX && (name.starts_with(given) || name.ends_with(given));
    let share = if cut_short { MIN_SIMILARITY } else { 0.0 };
    strsim::normalized_damerau_levenshtein(given, name).max(share)
}

/// `did you mean `x`? known: a, b` for an unknown key.
pub(crate) fn known<'a>(given: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let mut names: Vec<&str> = known.clone().into_iter().take(MAX_LISTED + 1).collect();
    let ellipsis = if names.len() > MAX_LISTED { ", …" } else { "" };
    names.truncate(MAX_LISTED);
    let names = names.join(", ");
    match nearest(given, known) {
        Some(name) => format!("did you mean `{name}`? (known: {names}{ellipsis})"),
        None if names.is_empty() => "no keys are known here".to_owned(),
        None => format!("known keys: {names}{ellipsis}"),
    }
}

/// `must be one of a, b` with the nearest one first, for an unknown choice.
pub(crate) fn allowed(given: &str, allowed: &[&str]) -> String {
    let names = allowed.join(", ");
    match nearest(given, allowed.iter().copied()) {
        Some(name) => format!("did you mean `{name}`? (allowed: {names})"),
        None => format!("must be one of {names}"),
    }
}
