//! Checking what callers send, by pydantic's rules and with its words.
//!
//! Python clients read these errors (`loc`, `type`, `msg`), so they are part of the contract: which values are taken
//! (`"3"` and `3.0` where an integer is due, `"yes"` for a boolean), which are not, and how that is said.

mod fields;
mod models;
mod scalars;

use agl_protocol::pyjson::{Dict, Spelling, Value};

pub(crate) use fields::Query;
pub(crate) use models::{
    Inventory, RolloutSpec, StatusChange, event, inventory, model_servers, new_rollouts, pause, rollout_ids,
    rollout_patch,
};
pub(crate) use scalars::state;

/// Where in a request a value stands: a step, and the steps before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    before: Option<&'a At<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    /// The request's body.
    pub(crate) const BODY: At<'static> = At { before: None, step: Step::Key("body") };
    /// The request's query.
    pub(crate) const QUERY: At<'static> = At { before: None, step: Step::Key("query") };

    fn key(&'a self, key: &'a str) -> At<'a> {
        At { before: Some(self), step: Step::Key(key) }
    }

    fn index(&'a self, index: usize) -> At<'a> {
        At { before: Some(self), step: Step::Index(index) }
    }

    fn steps(&self) -> Vec<Value> {
        let mut steps = self.before.map(At::steps).unwrap_or_default();
        steps.push(match self.step {
            Step::Key(key) => Value::Str(key.to_owned()),
            Step::Index(index) => Value::Int((index as i64).into()),
        });
        steps
    }
}

/// Everything that is wrong with a request.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Value>);

impl Problems {
    /// Whether nothing is wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes a problem: pydantic's type and words, the place, and the value that is wrong.
    pub(crate) fn add(&mut self, kind: &str, at: &At<'_>, message: &str, input: &Value) {
        self.push(kind, at.steps(), message, input, &[]);
    }

    /// As [`Self::add`], with values of context.
    pub(crate) fn add_with(
        &mut self,
        kind: &str,
        at: &At<'_>,
        message: &str,
        input: &Value,
        context: &[(&str, Value)],
    ) {
        self.push(kind, at.steps(), message, input, context);
    }

    /// The body is not JSON.
    pub(crate) fn not_json(message: &str, position: usize) -> Self {
        let mut problems = Self::default();
        let at = At::BODY;
        let input = Value::Dict(Dict::new());
        problems.push(
            "json_invalid",
            at.index(position).steps(),
            "JSON decode error",
            &input,
            &[("error", Value::Str(message.to_owned()))],
        );
        problems
    }

    /// The answer's body.
    pub(crate) fn to_json(&self) -> String {
        let mut text = String::new();
        let detail = Value::List(self.0.clone());
        Value::Dict([("detail".to_owned(), detail)].into_iter().collect()).write(&mut text, Spelling::Python);
        text
    }

    fn push(&mut self, kind: &str, loc: Vec<Value>, message: &str, input: &Value, context: &[(&str, Value)]) {
        let text = |text: &str| Value::Str(text.to_owned());
        let mut problem = Dict::new();
        problem.insert("type".to_owned(), text(kind));
        problem.insert("loc".to_owned(), Value::List(loc));
        problem.insert("msg".to_owned(), text(message));
        problem.insert("input".to_owned(), input.clone());
        if !context.is_empty() {
            let context = context.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
            problem.insert("ctx".to_owned(), Value::Dict(context.collect()));
        }
        self.0.push(Value::Dict(problem));
    }
}
