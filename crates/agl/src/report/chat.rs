//! A trajectory as a chat: what the agent said to the model, what the model answered, which tools ran, what it cost.
//!
//! Each model call holds its whole conversation so far. The chat shows what a call adds to the one before it; a call that
//! does not go on from there (another agent, a shortened history) starts a new conversation.

use serde::Serialize;
use serde_json::Value;

use super::run_folder::Trajectory;
use super::text::{Text, name};
use crate::numbers;

/// Most turns that are shown of one trajectory.
const MAX_TURNS: usize = 60;
/// Most tools that are named of one trajectory.
const MAX_TOOLS: usize = 40;

/// A trajectory, ready to be shown.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Chat {
    pub(super) rollout_id: String,
    /// `None` if it got none.
    pub(super) reward: Option<String>,
    /// Why it failed, if it did.
    pub(super) failure: Option<String>,
    /// Names of the tools that the model was offered.
    pub(super) tools: Vec<String>,
    pub(super) turns: Vec<Turn>,
    /// Turns beyond [`MAX_TURNS`].
    pub(super) left_out: usize,
}

/// One thing that happened.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Turn {
    /// Somebody said something.
    Message(Message),
    /// The model gave no answer.
    FailedCall { reason: Text, cost: String },
    /// The next call does not go on from the one before.
    NewConversation,
    /// A reward was posted.
    Reward { value: String },
    /// Something else was recorded.
    Event { event_type: String, data: Text },
}

/// What somebody said.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what the agent made up.
    pub(super) role: String,
    pub(super) reasoning: Option<Text>,
    pub(super) content: Option<Text>,
    pub(super) tool_calls: Vec<ToolCall>,
    /// What the call cost, if the model said it: tokens, time, policy version.
    pub(super) cost: String,
    /// It was cut off by the token limit.
    pub(super) is_cut_off: bool,
    /// It ends the conversation: an answer that calls no tool.
    pub(super) is_answer: bool,
}

/// A call of a tool.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments: Text,
}

impl Chat {
    pub(super) fn of(trajectory: &Trajectory) -> Self {
        let mut conversation = Conversation::default();
        for event in &trajectory.events {
            conversation.add(event);
        }
        let Conversation { mut turns, tools, .. } = conversation;
        let left_out = turns.len().saturating_sub(MAX_TURNS);
        turns.truncate(MAX_TURNS);
        let failed = trajectory.state == "failed" || trajectory.error_message.is_some();
        let reason = trajectory.error_message.as_deref().unwrap_or("the agent gave no reason");
        Self {
            rollout_id: name(&trajectory.rollout_id),
            reward: trajectory.reward.map(numbers::reward),
            failure: failed.then(|| Text::new(reason).shown),
            tools,
            turns,
            left_out,
        }
    }
}

/// The chat while it is put together.
#[derive(Default)]
struct Conversation {
    turns: Vec<Turn>,
    tools: Vec<String>,
    /// The messages that the chat has shown since the conversation began.
    known: Vec<Value>,
}

impl Conversation {
    fn add(&mut self, event: &Value) {
        let data = &event["data"];
        match event["event_type"].as_str().unwrap_or("unnamed event") {
            "model_request" => self.add_call(data),
            "reward" => self.turns.push(Turn::Reward {
                value: data["value"].as_f64().map_or_else(|| "not a number".to_owned(), numbers::reward),
            }),
            other => self.turns.push(Turn::Event { event_type: name(other), data: Text::new(&data.to_string()) }),
        }
    }

    fn add_call(&mut self, call: &Value) {
        let request = &call["request"];
        self.add_tools(&request["tools"]);
        self.add_messages(messages_of(request));

        let choice = &call["response"]["choices"][0];
        let message = match (&choice["message"], &choice["text"]) {
            (message @ Value::Object(_), _) => message.clone(),
            (_, Value::String(text)) => serde_json::json!({"role": "assistant", "content": text}),
            _ => return self.turns.push(Turn::FailedCall { reason: why_failed(call), cost: cost_of(call) }),
        };
        let said = Message::of(&message);
        self.turns.push(Turn::Message(Message {
            cost: cost_of(call),
            is_cut_off: choice["finish_reason"] == "length",
            is_answer: said.tool_calls.is_empty() && choice["finish_reason"] != "length",
            ..said
        }));
        self.known.push(message);
    }

    fn add_tools(&mut self, tools: &Value) {
        for tool in tools.as_array().into_iter().flatten() {
            // Chat Completions put the name inside `function`, other dialects beside the type.
            let tool = name(tool["function"]["name"].as_str().or(tool["name"].as_str()).unwrap_or("unnamed"));
            if self.tools.len() < MAX_TOOLS && !self.tools.contains(&tool) {
                self.tools.push(tool);
            }
        }
    }

    /// Shows those messages that are new.
    fn add_messages(&mut self, messages: Vec<Value>) {
        let goes_on = messages.len() >= self.known.len()
            && self.known.iter().zip(&messages).all(|(known, message)| is_same(known, message));
        if !goes_on {
            self.turns.push(Turn::NewConversation);
            self.known.clear();
        }
        let new = &messages[self.known.len()..];
        self.turns.extend(new.iter().map(|message| Turn::Message(Message::of(message))));
        self.known = messages;
    }
}

/// Agents send an answer back with fields dropped or its reasoning stripped: that is the same conversation still.
fn is_same(known: &Value, message: &Value) -> bool {
    let role = &known["role"];
    role == &message["role"] && (role == "assistant" || known["content"] == message["content"])
}

/// Chat messages; the prompt of a plain completion counts as one.
fn messages_of(request: &Value) -> Vec<Value> {
    match (&request["messages"], &request["prompt"]) {
        (Value::Array(messages), _) => messages.clone(),
        (_, Value::Null) => Vec::new(),
        (_, prompt) => vec![serde_json::json!({"role": "prompt", "content": prompt})],
    }
}

impl Message {
    fn of(message: &Value) -> Self {
        let reasoning = message["reasoning_content"].as_str().or(message["reasoning"].as_str());
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        Self {
            role: name(message["role"].as_str().unwrap_or("unknown role")),
            reasoning: reasoning.and_then(Text::if_any),
            content: Text::if_any(&content_of(&message["content"])),
            tool_calls: calls.map(|call| ToolCall::of(&call["function"])).collect(),
            ..Self::default()
        }
    }
}

impl ToolCall {
    fn of(function: &Value) -> Self {
        Self {
            name: name(function["name"].as_str().unwrap_or("unnamed")),
            arguments: Text::new(&text_of(&function["arguments"])),
        }
    }
}

/// Content is a text, or a list of parts of which some are texts.
fn content_of(content: &Value) -> String {
    let Value::Array(parts) = content else { return text_of(content) };
    let spell = |part: &Value| match (part["text"].as_str(), part["type"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(kind)) => format!("[{kind}]"),
        (None, None) => part.to_string(),
    };
    parts.iter().map(spell).collect::<Vec<_>>().join("\n")
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What the model server answered instead, as far as it is known.
fn why_failed(call: &Value) -> Text {
    let status = call["http_status"].as_u64().map(|status| format!("HTTP {status}"));
    let status = status.or_else(|| call["status"].as_str().map(ToOwned::to_owned));
    let answer = [&call["error"], &call["response"]].into_iter().map(text_of).find(|text| !text.is_empty());
    Text::new(&[status, answer].into_iter().flatten().collect::<Vec<_>>().join(": "))
}

/// `52 + 17 tokens, 0.21 s, policy 3`: prompt and response.
fn cost_of(call: &Value) -> String {
    let usage = if call["usage"].is_object() { &call["usage"] } else { &call["response"]["usage"] };
    let tokens = |name: &str| usage[name].as_u64().map(numbers::count);
    let tokens = tokens("prompt_tokens").zip(tokens("completion_tokens"));
    let parts = [
        tokens.map(|(prompt, response)| format!("{prompt} + {response} tokens")),
        call["latency_ms"].as_f64().map(|latency_ms| numbers::duration(latency_ms / 1000.0)),
        call["server"]["version"].as_u64().map(|version| format!("policy {version}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// One line a turn.
    fn told(events: &[Value]) -> Vec<String> {
        let trajectory = json!({"phase": "validation", "step": 0, "events": events});
        let chat = Chat::of(&serde_json::from_value(trajectory).unwrap());
        chat.turns.iter().map(|turn| line(turn).replace('\u{a0}', " ")).collect()
    }

    fn line(turn: &Turn) -> String {
        match turn {
            Turn::Message(message) => {
                let shown = |text: &Text| text.shown.clone();
                let calls = message.tool_calls.iter().map(|call| format!("{}({})", call.name, call.arguments.shown));
                let reasoning = message.reasoning.as_ref().map(|text| format!("<{}>", text.shown));
                let content = message.content.as_ref().map(shown);
                let cost = Some(message.cost.clone()).filter(|cost| !cost.is_empty()).map(|cost| format!("[{cost}]"));
                let cut = message.is_cut_off.then(|| "CUT".to_owned());
                let answer = message.is_answer.then(|| "ANSWER".to_owned());
                let parts = reasoning.into_iter().chain(content).chain(calls).chain(cost).chain(cut).chain(answer);
                format!("{}: {}", message.role, parts.collect::<Vec<_>>().join(" "))
            }
            Turn::FailedCall { reason, cost } => format!("failed: {} [{cost}]", reason.shown),
            Turn::NewConversation => "---".to_owned(),
            Turn::Reward { value } => format!("reward: {value}"),
            Turn::Event { event_type, data } => format!("{event_type}: {}", data.shown),
        }
    }

    fn call(messages: &Value, message: &Value, finish_reason: &str) -> Value {
        json!({"event_type": "model_request", "data": {
            "request": {"messages": messages},
            "response": {"choices": [{"message": message, "finish_reason": finish_reason}]},
        }})
    }

    #[test]
    fn a_tool_loop_is_told_once() {
        let user = json!({"role": "user", "content": "2+2?"});
        let calls = json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls":
            [{"id": "c", "type": "function", "function": {"name": "calculator", "arguments": "{\"e\":\"2+2\"}"}}]});
        // The agent sends it back without the reasoning.
        let calls_again = json!({"role": "assistant", "tool_calls": calls["tool_calls"]});
        let result = json!({"role": "tool", "tool_call_id": "c", "content": "4"});
        let answer = json!({"role": "assistant", "content": "4", "tool_calls": []});
        let mut first = call(&json!([user]), &calls, "tool_calls");
        first["data"]["usage"] = json!({"prompt_tokens": 1200, "completion_tokens": 17});
        first["data"]["latency_ms"] = json!(210.0);
        first["data"]["server"] = json!({"version": 3});
        let second = call(&json!([user, calls_again, result]), &answer, "stop");
        assert_eq!(
            told(&[first, second, json!({"event_type": "reward", "data": {"value": 1}})]),
            [
                "user: 2+2?",
                "assistant: <hm> calculator({\"e\":\"2+2\"}) [1,200 + 17 tokens · 0.21 s · policy 3]",
                "tool: 4",
                "assistant: 4 ANSWER",
                "reward: 1.000",
            ]
        );
    }

    #[test]
    fn a_call_that_does_not_go_on_begins_anew() {
        let ask = |text: &str| json!([{"role": "user", "content": text}]);
        let answer = |text: &str| json!({"role": "assistant", "content": text});
        let told = told(&[call(&ask("a"), &answer("1"), "stop"), call(&ask("b"), &answer("2"), "length")]);
        assert_eq!(told, ["user: a", "assistant: 1 ANSWER", "---", "user: b", "assistant: 2 CUT"]);
    }

    #[test]
    fn other_shapes_are_told_too() {
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]}]);
        let completion = json!({"event_type": "model_request", "data": {
            "request": {"prompt": "once"}, "response": {"choices": [{"text": " upon", "finish_reason": "stop"}]}}});
        let failed = json!({"event_type": "model_request", "data": {
            "request": {"messages": []}, "response": {"error": "down"}, "http_status": 503, "latency_ms": 61_000}});
        assert_eq!(
            told(&[call(&parts, &json!({"role": "assistant"}), "stop")]),
            ["user: see\n[image_url]", "assistant: ANSWER"]
        );
        assert_eq!(told(&[completion]), ["prompt: once", "assistant:  upon ANSWER"]);
        assert_eq!(told(&[failed]), ["failed: HTTP 503: {\"error\":\"down\"} [1 min 01 s]"]);
        assert_eq!(told(&[json!({"event_type": "note", "data": {"x": 1}})]), ["note: {\"x\":1}"]);
        assert_eq!(told(&[json!({"event_type": "reward", "data": {"value": null}})]), ["reward: not a number"]);
        assert_eq!(
            told(&[json!(null), json!({"event_type": "model_request"})]),
            ["unnamed event: null", "failed:  []"]
        );
    }
}
