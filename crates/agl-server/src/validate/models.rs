//! The bodies of the API, field by field in the original's order.

use agl_protocol::pyjson::{Dict, Integer, Value};
use agl_protocol::{RawJson, RolloutState, StatusPatch};
use agl_store::ModelServer;

use super::fields::{Fields, Read};
use super::scalars::{integer, state, string};
use super::{At, Problems, scalars};

/// A rollout to create; the id may still be missing.
pub(crate) struct RolloutSpec {
    pub(crate) rollout_id: Option<String>,
    pub(crate) input: RawJson,
    pub(crate) is_train: bool,
    pub(crate) config: RawJson,
    pub(crate) metadata: Value,
}

/// The body of a patch. `state: null` is told apart, since it is a move to nowhere.
pub(crate) enum StatusChange {
    Patch(StatusPatch),
    StateToNull,
}

/// The body of `POST /api/rollouts`.
pub(crate) fn new_rollouts(body: &Value) -> Result<Vec<RolloutSpec>, Problems> {
    let mut specs = read_list(body, rollout_spec)?;
    // The original looks into metadata only once all else is right.
    let mut problems = Problems::default();
    let at = At::BODY;
    for (index, spec) in specs.iter_mut().enumerate() {
        let item = at.index(index);
        indexed(&mut spec.metadata, &item.key("metadata"), &mut problems);
    }
    if problems.is_empty() { Ok(specs) } else { Err(problems) }
}

/// The body of `POST /api/models`.
pub(crate) fn model_servers(body: &Value) -> Result<Vec<ModelServer>, Problems> {
    read_list(body, model_server)
}

/// The body of `PATCH /api/rollouts/{id}`.
pub(crate) fn rollout_patch(body: &Value) -> Result<StatusChange, Problems> {
    let change = read_one(body, |body, at, problems| {
        let fields = Fields::of_model(body, at, problems)?;
        Some(fields.nullable("status", problems, status_change))
    })?;
    Ok(change.unwrap_or(StatusChange::Patch(StatusPatch::default())))
}

/// The body of `POST …/events`: type and data.
pub(crate) fn event(body: &Value) -> Result<(String, RawJson), Problems> {
    read_one(body, |body, at, problems| {
        let fields = Fields::of_model(body, at, problems)?;
        let event_type = fields.required("event_type", problems, string);
        let data =
            fields.optional("data", problems, |value, at, problems| dict(value, at, problems).map(|_| value.to_raw()));
        Some((event_type?, data.unwrap_or_else(RawJson::empty_object)))
    })
}

/// The body of `POST /proxy/pause`: seconds and reason.
pub(crate) fn pause(body: &Value) -> Result<(Integer, Option<String>), Problems> {
    read_one(body, |body, at, problems| {
        let fields = Fields::of_model(body, at, problems)?;
        let retry_after = fields.optional("retry_after_seconds", problems, integer);
        let reason = fields.nullable("reason", problems, string);
        Some((retry_after.unwrap_or_else(|| Integer::from(5)), reason))
    })
}

/// The body of `POST /api/rollouts/status`: ids.
pub(crate) fn rollout_ids(body: &Value) -> Result<Vec<String>, Problems> {
    /// More would make the answer a page of its own.
    const MAX_IDS: usize = 256;
    let ids = read_list(body, string)?;
    if ids.len() <= MAX_IDS {
        return Ok(ids);
    }
    let mut problems = Problems::default();
    let message = format!("List should have at most {MAX_IDS} items after validation, not {}", ids.len());
    let context = [
        ("field_type", Value::Str("List".to_owned())),
        ("max_length", Value::Int((MAX_IDS as i64).into())),
        ("actual_length", Value::Int((ids.len() as i64).into())),
    ];
    problems.add_with("too_long", &At::BODY, &message, body, &context);
    Err(problems)
}

/// What nodes of a cluster have ready, and for how long that may be believed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inventory {
    pub(crate) images: Vec<String>,
    pub(crate) node_count: Integer,
    pub(crate) lease_seconds: f64,
}

/// The body of `PUT /api/runner-readiness/k8s`.
pub(crate) fn inventory(body: &Value) -> Result<Inventory, Problems> {
    read_one(body, |body, at, problems| {
        let fields = Fields::of_model(body, at, problems)?;
        let images = fields.required("images", problems, strings);
        let node_count = fields.required("node_count", problems, node_count);
        let lease_seconds = fields.required("lease_seconds", problems, lease_seconds);
        Some(Inventory { images: images?, node_count: node_count?, lease_seconds: lease_seconds? })
    })
}

fn node_count(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Integer> {
    let count = integer(value, at, problems)?;
    if count.saturating_i64() < 1 {
        let message = "Input should be greater than or equal to 1";
        problems.add_with("greater_than_equal", at, message, value, &[("ge", Value::Int(1.into()))]);
        return None;
    }
    Some(count)
}

fn lease_seconds(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<f64> {
    /// A controller that is gone is believed no longer than this.
    const LONGEST: f64 = 300.0;
    let seconds = scalars::float(value, at, problems)?;
    if seconds > 0.0 && seconds <= LONGEST {
        return Some(seconds);
    }
    let (kind, key, bound, message) = if seconds > LONGEST {
        ("less_than_equal", "le", LONGEST, "Input should be less than or equal to 300")
    } else {
        ("greater_than", "gt", 0.0, "Input should be greater than 0")
    };
    problems.add_with(kind, at, message, value, &[(key, Value::Float(bound))]);
    None
}

fn read_one<T>(body: &Value, read: Read<T>) -> Result<T, Problems> {
    let mut problems = Problems::default();
    let value = read(body, &At::BODY, &mut problems);
    value.filter(|_| problems.is_empty()).ok_or(problems)
}

fn read_list<T>(body: &Value, read: Read<T>) -> Result<Vec<T>, Problems> {
    let mut problems = Problems::default();
    let Value::List(items) = body else {
        problems.add("list_type", &At::BODY, "Input should be a valid list", body);
        return Err(problems);
    };
    let at = At::BODY;
    let read = items.iter().enumerate().filter_map(|(index, item)| read(item, &at.index(index), &mut problems));
    let items = read.collect();
    if problems.is_empty() { Ok(items) } else { Err(problems) }
}

fn dict<'a>(value: &'a Value, at: &At<'_>, problems: &mut Problems) -> Option<&'a Dict> {
    if let Value::Dict(dict) = value {
        return Some(dict);
    }
    problems.add("dict_type", at, "Input should be a valid dictionary", value);
    None
}

fn rollout_spec(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<RolloutSpec> {
    let fields = Fields::of_model(value, at, problems)?;
    let input = fields.required("input", problems, |value, _, _| Some(value.to_raw()));
    let is_train = fields.optional("is_train", problems, scalars::boolean).unwrap_or(true);
    let config = fields.nullable("config", problems, config).unwrap_or_else(default_config);
    let metadata = fields.nullable("metadata", problems, metadata).unwrap_or_default();
    let rollout_id = fields.nullable("rollout_id", problems, string);
    Some(RolloutSpec { rollout_id, input: input?, is_train, config: Value::Dict(config).to_raw(), metadata })
}

/// Integers beyond 64 bits are kept; the default is an hour.
fn default_config() -> Dict {
    config_of(None, Value::Null, Value::Null)
}

fn config_of(timeout_seconds: Option<Integer>, local: Value, k8s: Value) -> Dict {
    let timeout_seconds = timeout_seconds.unwrap_or_else(|| Integer::from(3600));
    let fields = [("timeout_seconds", Value::Int(timeout_seconds)), ("local", local), ("k8s", k8s)];
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn config(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Dict> {
    let fields = Fields::of_model(value, at, problems)?;
    let timeout_seconds = fields.optional("timeout_seconds", problems, integer);
    let local = fields.nullable("local", problems, local_config);
    let k8s = fields.nullable("k8s", problems, k8s_config);
    Some(config_of(timeout_seconds, local.unwrap_or_default(), k8s.unwrap_or_default()))
}

fn local_config(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Value> {
    let fields = Fields::of_model(value, at, problems)?;
    let mut local = Dict::new();
    let agent_class = fields.nullable("agent_class", problems, string);
    local.insert("agent_class".to_owned(), agent_class.map_or(Value::Null, Value::Str));
    let env_map = fields.optional("env_map", problems, string_dict);
    local.insert("env_map".to_owned(), Value::Dict(env_map.unwrap_or_default()));
    // Ours: shown only when set.
    if let Some(command) = fields.nullable("command", problems, string_list) {
        local.insert("command".to_owned(), command);
    }
    if let Some(directory) = fields.nullable("working_directory", problems, string) {
        local.insert("working_directory".to_owned(), Value::Str(directory));
    }
    Some(Value::Dict(local))
}

fn k8s_config(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Value> {
    let fields = Fields::of_model(value, at, problems)?;
    let template = fields.nullable("job_template", problems, string).map_or(Value::Null, Value::Str);
    Some(Value::Dict([("job_template".to_owned(), template)].into_iter().collect()))
}

fn string_dict(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Dict> {
    let entries = dict(value, at, problems)?;
    for (key, value) in entries {
        string(value, &at.key(key), problems);
    }
    Some(entries.clone())
}

fn string_list(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Value> {
    strings(value, at, problems).map(|_| value.clone())
}

fn strings(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let Value::List(items) = value else {
        problems.add("list_type", at, "Input should be a valid list", value);
        return None;
    };
    Some(items.iter().enumerate().filter_map(|(index, item)| string(item, &at.index(index), problems)).collect())
}

/// An object. The original reads it as one of two types, and says of anything else how it fails as each.
fn metadata(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<Value> {
    if matches!(value, Value::Dict(_)) {
        return Some(value.clone());
    }
    Fields::of_model(value, &at.key("RolloutMetadata"), problems);
    dict(value, &at.key("dict[str,any]"), problems);
    None
}

/// Puts the two integers that metadata may have in front, and whatever else the trainer notes behind them.
fn indexed(metadata: &mut Value, at: &At<'_>, problems: &mut Problems) {
    if *metadata == Value::Null {
        *metadata = Value::Dict(Dict::new());
    }
    let Some(fields) = Fields::of_model(metadata, at, problems) else { return };
    let known = ["batch_idx", "sample_idx_in_batch"];
    let mut index = |key: &'static str| fields.nullable(key, problems, integer).map_or(Value::Null, Value::Int);
    let mut ordered: Dict =
        known.map(&mut index).into_iter().zip(known).map(|(index, key)| (key.to_owned(), index)).collect();
    let others = fields.dict().iter().filter(|(key, _)| !known.contains(&key.as_str()));
    ordered.extend(others.map(|(key, value)| (key.clone(), value.clone())));
    *metadata = Value::Dict(ordered);
}

fn model_server(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<ModelServer> {
    let fields = Fields::of_model(value, at, problems)?;
    let model = fields.required("model", problems, string);
    let endpoint = fields.required("endpoint", problems, string);
    let version = fields.optional("version", problems, integer).unwrap_or_else(|| Integer::from(0));
    Some(ModelServer { model: model?, endpoint: endpoint?, version })
}

fn status_change(value: &Value, at: &At<'_>, problems: &mut Problems) -> Option<StatusChange> {
    const KNOWN: [&str; 4] = ["state", "k8s_job_name", "last_attempt_id", "error_message"];
    let fields = Fields::of_model(value, at, problems)?;
    let state: Option<Option<RolloutState>> = fields.patched("state", problems, state);
    let patch = StatusPatch {
        state: state.flatten(),
        k8s_job_name: fields.patched("k8s_job_name", problems, string),
        last_attempt_id: fields.patched("last_attempt_id", problems, string),
        error_message: fields.patched("error_message", problems, string),
    };
    fields.forbid_others(&KNOWN, problems);
    Some(if state == Some(None) { StatusChange::StateToNull } else { StatusChange::Patch(patch) })
}
