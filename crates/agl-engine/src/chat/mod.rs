//! Conversations to prompts, and what the model wrote back to messages.

mod template;
mod tool_calls;

pub use template::{ChatTemplate, TemplateError};
pub use tool_calls::{ParsedMessage, ToolCall, parse_tool_calls};
