//! The same task before and after training, side by side.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use serde_json::Value;

use super::chat::Chat;
use super::run_folder::Trajectory;
use super::text::{self, Text};

/// Most tasks that are shown, in the order of the validation data: none is picked for its looks.
const MAX_TASKS: usize = 8;
/// Most fields of an input that are shown.
const MAX_FIELDS: usize = 12;

/// The tasks that the report shows.
#[derive(Debug, Serialize)]
pub(super) struct Tasks {
    pub(super) shown: Vec<Task>,
    /// Tasks beyond [`MAX_TASKS`].
    pub(super) left_out: usize,
}

/// One task, and what the agent made of it.
#[derive(Debug, Serialize)]
pub(super) struct Task {
    title: String,
    input: Vec<Field>,
    before: Option<Chat>,
    after: Option<Chat>,
}

/// A part of a task's input.
#[derive(Debug, Serialize)]
struct Field {
    name: String,
    value: Text,
}

impl Tasks {
    /// Pairs trajectories whose inputs are the same task. Several rollouts of one task pair up in order.
    pub(super) fn pair(before: &[Trajectory], after: &[Trajectory]) -> Self {
        let mut later: HashMap<String, VecDeque<&Trajectory>> = HashMap::new();
        for trajectory in after {
            later.entry(identity(&trajectory.input)).or_default().push_back(trajectory);
        }
        let mut pairs: Vec<(Option<&Trajectory>, Option<&Trajectory>)> = Vec::new();
        for earlier in before {
            let same = later.get_mut(&identity(&earlier.input)).and_then(VecDeque::pop_front);
            pairs.push((Some(earlier), same));
        }
        // What was only seen after training, in its own order.
        for trajectory in after {
            let same = later.get_mut(&identity(&trajectory.input)).and_then(VecDeque::pop_front);
            pairs.extend(same.map(|alone| (None, Some(alone))));
        }
        let left_out = pairs.len().saturating_sub(MAX_TASKS);
        let shown = pairs.into_iter().take(MAX_TASKS).filter_map(|(before, after)| Task::of(before, after)).collect();
        Self { shown, left_out }
    }
}

impl Task {
    fn of(before: Option<&Trajectory>, after: Option<&Trajectory>) -> Option<Self> {
        let input = &before.or(after)?.input;
        Some(Self {
            title: title(input),
            input: fields(input),
            before: before.map(Chat::of),
            after: after.map(Chat::of),
        })
    }
}

/// What tells tasks apart: their `id`, or else all of the input.
fn identity(input: &Value) -> String {
    if input["id"].is_null() { input.to_string() } else { format!("id {}", input["id"]) }
}

/// The first text of the input that is more than an id.
fn title(input: &Value) -> String {
    let mut fields = input.as_object().into_iter().flatten().filter(|(name, _)| *name != "id");
    let text = match input {
        Value::String(text) => text.clone(),
        Value::Object(_) => {
            fields.find_map(|(_, value)| value.as_str()).map_or_else(|| input.to_string(), str::to_owned)
        }
        other => other.to_string(),
    };
    text::name(&text)
}

fn fields(input: &Value) -> Vec<Field> {
    let spell = |value: &Value| Text::new(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    match input {
        Value::Object(fields) => fields
            .iter()
            .take(MAX_FIELDS)
            .map(|(name, value)| Field { name: text::name(name), value: spell(value) })
            .collect(),
        Value::Null => Vec::new(),
        other => vec![Field { name: "input".to_owned(), value: spell(other) }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trajectory(rollout_id: &str, input: &Value) -> Trajectory {
        serde_json::from_value(json!({"phase": "validation", "step": 0, "rollout_id": rollout_id, "input": input}))
            .unwrap()
    }

    fn pairs(before: &[(&str, Value)], after: &[(&str, Value)]) -> Vec<String> {
        let side = |side: &[(&str, Value)]| side.iter().map(|(id, input)| trajectory(id, input)).collect::<Vec<_>>();
        let name = |chat: Option<Chat>| chat.map_or("-".to_owned(), |chat| chat.rollout_id);
        let tasks = Tasks::pair(&side(before), &side(after)).shown;
        tasks.into_iter().map(|task| name(task.before) + &name(task.after)).collect()
    }

    #[test]
    fn tasks_pair_by_id_or_else_by_the_whole_input() {
        let by_id = |id: u32, extra: &str| json!({"id": id, "note": extra});
        assert_eq!(
            pairs(&[("a", by_id(1, "x")), ("b", by_id(2, "x"))], &[("c", by_id(2, "y")), ("d", by_id(1, "y"))]),
            ["ad", "bc"]
        );
        assert_eq!(
            pairs(&[("a", json!("q1")), ("b", json!("q2"))], &[("c", json!("q2")), ("d", json!("q3"))]),
            ["a-", "bc", "-d"]
        );
        assert_eq!(pairs(&[("a", json!(1)), ("b", json!(1))], &[("c", json!(1)), ("d", json!(1))]), ["ac", "bd"]);
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let many: Vec<Trajectory> = (0..11).map(|id| trajectory("r", &json!({"id": id}))).collect();
        let tasks = Tasks::pair(&many, &[]);
        assert_eq!((tasks.shown.len(), tasks.left_out), (8, 3));
    }

    #[test]
    fn a_title_is_the_first_text_of_the_input() {
        assert_eq!(title(&json!({"id": "t-1", "question": " What\nis 2+2? ", "answer": "4"})), "What is 2+2?");
        assert_eq!(title(&json!({"id": 7, "n": 3})), r#"{"id":7,"n":3}"#);
    }
}
