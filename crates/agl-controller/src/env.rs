//! The environment an agent gets: where its model and its event sink are, and what `env_map` takes from the task.

use std::collections::BTreeMap;

use agl_protocol::pyjson::{self, Value};
use agl_protocol::{Mode, Rollout, routes};

use crate::ControllerSettings;
use crate::python_json;

/// The gateway's key.
const KEY: &str = "AGL_KEY";
/// Base URL for the agent's OpenAI client.
const OPENAI_BASE_URL: &str = "AGL_OPENAI_BASE_URL";
/// Where the agent posts its reward.
const EVENT_URL: &str = "AGL_EVENT_URL";

/// Why an `env_map` gives no environment. The first words of each are the original's.
#[derive(Debug, thiserror::Error)]
pub enum EnvMapError {
    /// The task has nothing there.
    #[error("local.env_map path not found: {0}")]
    PathNotFound(String),
    /// A path's part is made of digits such as `²`, which count nothing.
    #[error("invalid literal for int() with base 10: '{0}'")]
    NotAnIndex(String),
    /// A name with `=` or a NUL byte.
    #[error("illegal environment variable name: {0:?}")]
    IllegalName(String),
    /// No environment variable can hold a NUL byte.
    #[error("embedded null byte: the value of local.env_map.{0}")]
    NulByte(String),
    /// The task is no text: it holds half of a surrogate pair.
    #[error("local.env_map cannot read the rollout's input: {0}")]
    Input(#[from] pyjson::ParseError),
}

/// Values of the variables in `env_map`, each taken from the task `input`.
///
/// A path is `input` (all of it) or `input.` and keys or list indices between dots; anything else is the value itself.
/// Strings are put as they are, everything else as JSON in Python's spelling.
pub fn resolve_env_map(
    input: &Value,
    env_map: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, EnvMapError> {
    env_map.iter().map(|(name, path)| Ok((name.clone(), resolve(input, path)?.into_text()))).collect()
}

enum Resolved<'a, 'p> {
    Literal(&'p str),
    Input(&'a Value),
}

impl Resolved<'_, '_> {
    fn into_text(self) -> String {
        match self {
            Self::Literal(text) => text.to_owned(),
            Self::Input(Value::Str(text)) => text.clone(),
            Self::Input(value) => python_json::dumps(value),
        }
    }
}

fn resolve<'a, 'p>(input: &'a Value, path: &'p str) -> Result<Resolved<'a, 'p>, EnvMapError> {
    if path == "input" {
        return Ok(Resolved::Input(input));
    }
    let Some(parts) = path.strip_prefix("input.") else { return Ok(Resolved::Literal(path)) };
    let mut value = input;
    for part in parts.split('.') {
        value = step_into(value, part)?.ok_or_else(|| EnvMapError::PathNotFound(path.to_owned()))?;
    }
    Ok(Resolved::Input(value))
}

/// One part of a path: a key of an object, an index into a list.
fn step_into<'a>(value: &'a Value, part: &str) -> Result<Option<&'a Value>, EnvMapError> {
    match value {
        Value::Dict(fields) => Ok(fields.get(part)),
        Value::List(items) if !part.is_empty() && part.chars().all(char::is_numeric) => {
            if !part.is_ascii() {
                return Err(EnvMapError::NotAnIndex(part.to_owned()));
            }
            // A number too large to be one is beyond the end of any list.
            Ok(part.parse().ok().and_then(|index: usize| items.get(index)))
        }
        _ => Ok(None),
    }
}

/// What an agent finds in its environment beyond what the controller has in its own. `env_map` has the last word.
pub(crate) fn agent_environment(
    rollout: &Rollout,
    attempt_id: &str,
    settings: &ControllerSettings,
) -> Result<BTreeMap<String, String>, EnvMapError> {
    let base_url = settings.agent_base_url();
    let mode = Mode::of_rollout(rollout.is_train);
    let mut environment = BTreeMap::from([
        (KEY.to_owned(), settings.key.clone().unwrap_or_default()),
        (
            OPENAI_BASE_URL.to_owned(),
            format!("{base_url}{}", routes::openai_base(&rollout.rollout_id, attempt_id, mode)),
        ),
        (EVENT_URL.to_owned(), format!("{base_url}{}", routes::attempt_events(&rollout.rollout_id, attempt_id))),
    ]);
    if let Some(local) = rollout.config.local.as_ref().filter(|local| !local.env_map.is_empty()) {
        let input = pyjson::parse(rollout.input.text().as_bytes())?;
        environment.extend(resolve_env_map(&input, &local.env_map)?);
    }
    for (name, value) in &environment {
        if name.contains(['=', '\0']) {
            return Err(EnvMapError::IllegalName(name.clone()));
        }
        if value.contains('\0') {
            return Err(EnvMapError::NulByte(name.clone()));
        }
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use agl_protocol::{LocalConfig, RawJson, RolloutState};

    use super::*;
    use crate::plan::tests::rollout;

    fn environment(env_map: &[(&str, &str)]) -> Result<BTreeMap<String, String>, EnvMapError> {
        let mut rollout = rollout("r/1", RolloutState::Queuing, 0.0);
        rollout.input = RawJson::from_text(r#"{"q":"why","nul":"a\u0000b"}"#.into()).unwrap();
        rollout.is_train = false;
        let env_map = env_map.iter().map(|(name, path)| ((*name).to_owned(), (*path).to_owned())).collect();
        rollout.config.local = Some(LocalConfig { env_map, ..LocalConfig::default() });
        let settings = ControllerSettings {
            agent_url: Some("http://gw:1/".into()),
            key: Some("k".into()),
            ..ControllerSettings::default()
        };
        agent_environment(&rollout, "0", &settings)
    }

    #[test]
    fn an_agent_is_told_where_its_model_and_its_events_are() {
        let expected = [
            ("AGL_EVENT_URL", "http://gw:1/api/rollouts/r%2F1/attempt/0/events"),
            ("AGL_KEY", "k"),
            ("AGL_OPENAI_BASE_URL", "http://gw:1/proxy/rollout/r%2F1/attempt/0/mode/val/openai/v1"),
            ("Q", "why"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(environment(&[("Q", "input.q")]).unwrap(), expected);
    }

    #[test]
    fn env_map_has_the_last_word() {
        assert_eq!(environment(&[("AGL_KEY", "mine")]).unwrap()["AGL_KEY"], "mine");
    }

    #[test]
    fn what_no_environment_can_hold_is_refused() {
        let refused = |name: &str, path: &str| environment(&[(name, path)]).unwrap_err().to_string();
        assert_eq!(refused("A=B", "x"), "illegal environment variable name: \"A=B\"");
        assert_eq!(refused("X", "input.nul"), "embedded null byte: the value of local.env_map.X");
        assert_eq!(refused("X", "input.nope"), "local.env_map path not found: input.nope");
    }
}
