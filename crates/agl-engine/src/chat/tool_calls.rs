//! Tool calls in what the model wrote: the Hermes convention, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use serde::Deserialize;
use serde_json::value::RawValue;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call the model asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments: the JSON text exactly as the model wrote it, so that an agent that echoes it gives back the tokens that
    /// were sampled.
    pub arguments: String,
}

/// What the model wrote, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedMessage {
    /// Text before the first call; `None` if there is none but calls.
    pub content: Option<String>,
    /// The calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

/// Sorts text into content and tool calls. If any call is malformed, the whole text is content: half of what a model asked for
/// is worse than an agent that sees it all.
pub fn parse_tool_calls(text: &str) -> ParsedMessage {
    let as_text = || ParsedMessage { content: Some(text.to_owned()), tool_calls: Vec::new() };
    let Some(start) = text.find(OPEN) else { return as_text() };
    let mut tool_calls = Vec::new();
    for part in text[start..].split(OPEN).skip(1) {
        // Generation may end without the closing tag.
        let body = part.split(CLOSE).next().unwrap_or_default();
        match parse_one(body) {
            Some(call) => tool_calls.push(call),
            None => return as_text(),
        }
    }
    let content = &text[..start];
    ParsedMessage { content: (!content.trim().is_empty()).then(|| content.to_owned()), tool_calls }
}

fn parse_one(body: &str) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct Call<'a> {
        name: String,
        #[serde(borrow)]
        arguments: &'a RawValue,
    }
    let call: Call<'_> = serde_json::from_str(body.trim()).ok()?;
    Some(ToolCall { name: call.name, arguments: call.arguments.get().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { name: name.into(), arguments: arguments.into() }
    }

    #[test]
    fn calls_are_taken_out_and_arguments_kept_verbatim() {
        let one = parse_tool_calls("<tool_call>\n{\"name\": \"f\", \"arguments\": { \"a\":1 }}\n</tool_call>");
        assert_eq!(one, ParsedMessage { content: None, tool_calls: vec![call("f", "{ \"a\":1 }")] });
        let two = parse_tool_calls(
            "Let me see.<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":{\"x\":\"</b>\"},\"name\":\"g\"}",
        );
        assert_eq!(two.content.as_deref(), Some("Let me see."));
        assert_eq!(two.tool_calls, [call("f", "{}"), call("g", "{\"x\":\"</b>\"}")]);
    }

    #[test]
    fn malformed_calls_are_text() {
        for text in [
            "no call",
            "",
            "<tool_call>",
            "<tool_call>{\"name\": \"f\"}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>oops</tool_call>",
        ] {
            assert_eq!(
                parse_tool_calls(text),
                ParsedMessage { content: Some(text.into()), tool_calls: vec![] },
                "{text}"
            );
        }
    }
}
