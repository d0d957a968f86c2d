//! The chat template of a model folder: Jinja, as `transformers` runs it.

use std::fs;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as JinjaValue, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Value;
use serde_json::value::RawValue;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and `eos_token`, which some templates write out.
    special: Vec<(&'static str, String)>,
}

/// Why a conversation can't become a prompt.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The folder has no template.
    #[error("{0} has no chat template: neither chat_template.jinja nor `chat_template` in tokenizer_config.json")]
    Missing(PathBuf),
    /// A file can't be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The template is no Jinja that we know.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template refuses these messages.
    #[error("the chat template refuses these messages: {0}")]
    Render(String),
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Reads the template of a model folder: `chat_template.jinja` if there is one, else `tokenizer_config.json`.
    pub fn load(folder: &Path) -> Result<Self, TemplateError> {
        let config_path = folder.join("tokenizer_config.json");
        let config: Value = match fs::read_to_string(&config_path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| TemplateError::Read { path: config_path, reason: error.to_string() })?,
            Err(_) => Value::Null,
        };
        let source = match fs::read_to_string(folder.join("chat_template.jinja")) {
            Ok(source) => source,
            Err(_) => template_of(&config).ok_or_else(|| TemplateError::Missing(folder.to_owned()))?,
        };
        let special = ["bos_token", "eos_token"].into_iter().filter_map(|name| {
            let token = &config[name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name, text.to_owned()))
        });
        Self::new(source, special.collect())
    }

    /// Compiles a template. `special` are variables it may use, such as `bos_token`.
    pub fn new(source: String, special: Vec<(&'static str, String)>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Compile(error.to_string()))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, source).map_err(|error| TemplateError::Compile(error.to_string()))?;
        Ok(Self { environment, special })
    }

    /// The prompt of a conversation, with the opening of the assistant's turn at its end.
    pub fn render(&self, messages: &[Value], tools: Option<&[Value]>) -> Result<String, TemplateError> {
        self.run(messages, tools, true)
    }

    /// The conversation as it is, without a turn opened after it.
    pub fn render_closed(&self, messages: &[Value], tools: Option<&[Value]>) -> Result<String, TemplateError> {
        self.run(messages, tools, false)
    }

    /// The conversation up to the last message's text, which the model is to go on with.
    pub fn render_unfinished(&self, messages: &[Value], tools: Option<&[Value]>) -> Result<String, TemplateError> {
        let text = self.run(messages, tools, false)?;
        let last = messages.last().map(message_value);
        let last =
            last.and_then(|message| message.get_attr("content").ok()?.as_str().map(|text| text.trim().to_owned()));
        let end = last.and_then(|last| Some(text.rfind(&last)? + last.len()));
        let end = end.ok_or_else(|| TemplateError::Render("the last message has no text to go on with".into()))?;
        Ok(text[..end].to_owned())
    }

    fn run(&self, messages: &[Value], tools: Option<&[Value]>, open: bool) -> Result<String, TemplateError> {
        let special = self.special.iter().map(|(name, token)| (*name, token.as_str().into()));
        let context = JinjaValue::from_pairs(special.chain([
            ("messages", messages.iter().map(message_value).collect()),
            ("tools", tools.map_or(JinjaValue::from(()), |tools| Serde(tools).into())),
            ("add_generation_prompt", open.into()),
        ]));
        let template = self.environment.get_template(NAME).map_err(|e| TemplateError::Compile(e.to_string()))?;
        template
            .render(context)
            .map_err(|error| TemplateError::Render(error.detail().map_or_else(|| error.to_string(), str::to_owned)))
    }
}

/// `chat_template` is text, or a list of named ones of which `default` counts.
fn template_of(config: &Value) -> Option<String> {
    match &config["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|template| template["name"] == "default")?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// A message as templates expect it: text parts become one string, and the arguments of tool calls can be used as text and
/// as JSON; everything else stays.
fn message_value(message: &Value) -> JinjaValue {
    let Some(fields) = message.as_object() else { return Serde(message).into() };
    JinjaValue::from_pairs(fields.iter().map(|(name, field)| {
        let value = match (name.as_str(), field) {
            ("content", Value::Array(parts)) => text_of(parts).map_or_else(|| Serde(field).into(), JinjaValue::from),
            ("tool_calls", calls) => with_arguments_verbatim(calls),
            _ => Serde(field).into(),
        };
        (name.as_str(), value)
    }))
}

/// The text of a content made of parts; `None` if one is not text.
fn text_of(parts: &[Value]) -> Option<String> {
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part.as_str().or_else(|| part["text"].as_str())).collect();
    Some(texts?.join("\n"))
}

/// Some templates write the arguments out as the text they are, others pass them through `tojson`, since `transformers` has
/// them as a mapping. A string that is marked as safe is, in [`write_json`], JSON already: both ways the prompt holds what
/// the model wrote, to the byte.
fn with_arguments_verbatim(value: &Value) -> JinjaValue {
    match value {
        Value::Array(items) => items.iter().map(with_arguments_verbatim).collect(),
        Value::Object(fields) => JinjaValue::from_pairs(fields.iter().map(|(name, field)| match field.as_str() {
            Some(text) if name == "arguments" && serde_json::from_str::<&RawValue>(text).is_ok() => {
                (name.as_str(), JinjaValue::from_safe_string(text.to_owned()))
            }
            _ => (name.as_str(), with_arguments_verbatim(field)),
        })),
        scalar => Serde(scalar).into(),
    }
}

/// As `transformers` sets it: no HTML escaping, not ASCII only, Python's `, ` and `: ` between.
#[expect(clippy::needless_pass_by_value, reason = "the signature minijinja calls filters with")]
fn to_json(value: &JinjaValue, options: Kwargs) -> Result<JinjaValue, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Other options of Python's json.dumps are accepted where their default is what we do.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let mut text = String::new();
    write_json(value, indent, 0, &mut text)?;
    Ok(JinjaValue::from_safe_string(text))
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn write_json(value: &JinjaValue, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    let newline = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent * depth));
        }
    };
    let is_map = value.kind() == ValueKind::Map;
    match value.kind() {
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if is_map { ('{', '}') } else { ('[', ']') };
            let mut empty = true;
            out.push(open);
            for item in value.try_iter()? {
                if !empty {
                    out.push_str(if indent.is_some() { "," } else { ", " });
                }
                empty = false;
                newline(out, depth + 1);
                if is_map {
                    write_scalar(&item, out)?;
                    out.push_str(": ");
                    write_json(&value.get_item(&item)?, indent, depth + 1, out)?;
                } else {
                    write_json(&item, indent, depth + 1, out)?;
                }
            }
            if !empty {
                newline(out, depth);
            }
            out.push(close);
            Ok(())
        }
        ValueKind::String if value.is_safe() => {
            out.push_str(value.as_str().unwrap_or_default());
            Ok(())
        }
        _ => write_scalar(value, out),
    }
}

fn write_scalar(value: &JinjaValue, out: &mut String) -> Result<(), Error> {
    let json = serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(error))?;
    out.push_str(&json);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: &Value, tools: Option<Value>) -> Result<String, TemplateError> {
        let template = ChatTemplate::new(source.into(), vec![("bos_token", "<s>".into())]).unwrap();
        let tools = tools.map(|tools| tools.as_array().unwrap().clone());
        template.render(messages.as_array().unwrap(), tools.as_deref())
    }

    #[test]
    fn templates_see_messages_tools_and_special_tokens() {
        let source = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m.content.strip() }}{% endfor %}{% if tools %}{{ tools[0] | tojson }}{% endif %}{% if add_generation_prompt %}>{% endif %}";
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": " a "}]}]);
        let tools = json!([{"name": "f", "args": {"é<": [1, 2.5, null]}}]);
        assert_eq!(
            render(source, &messages, Some(tools)).unwrap(),
            r#"<s>[user] a{"name": "f", "args": {"é<": [1, 2.5, null]}}>"#
        );
    }

    #[test]
    fn arguments_of_tool_calls_stay_verbatim() {
        let source =
            "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}";
        let messages = json!([{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{ \"a\":1}"}}]}]);
        assert_eq!(render(source, &messages, None).unwrap(), "{ \"a\":1}");
    }

    #[test]
    fn arguments_that_go_through_tojson_stay_verbatim_too() {
        let source = "{% for c in messages[0].tool_calls %}{{ c.function | tojson }}|{{ c.function.arguments | tojson }}|{% endfor %}";
        let call = |arguments: &str| json!({"function": {"name": "f", "arguments": arguments}});
        let messages = json!([{"role": "assistant", "tool_calls": [call("{\"a\":1 }"), call("oops")]}]);
        assert_eq!(
            render(source, &messages, None).unwrap(),
            r#"{"name": "f", "arguments": {"a":1 }}|{"a":1 }|{"name": "f", "arguments": "oops"}|"oops"|"#
        );
    }

    #[test]
    fn the_last_message_can_be_gone_on_with() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let template = ChatTemplate::new(source.into(), vec![]).unwrap();
        let messages = [json!({"role": "user", "content": "hi"}), json!({"role": "assistant", "content": "hi, I "})];
        assert_eq!(template.render_unfinished(&messages, None).unwrap(), "<user>hi</><assistant>hi, I");
        assert_eq!(template.render_closed(&messages[..1], None).unwrap(), "<user>hi</>");
        let nothing = [json!({"role": "assistant", "content": null})];
        assert!(template.render_unfinished(&nothing, None).unwrap_err().to_string().contains("no text to go on with"));
    }

    #[test]
    fn a_template_can_refuse() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let error = render(source, &json!([]), None).unwrap_err().to_string();
        assert!(error.ends_with("roles must alternate"), "{error}");
        assert!(matches!(ChatTemplate::new("{% if %}".into(), vec![]), Err(TemplateError::Compile(_))));
    }

    #[test]
    fn json_is_spelled_as_python_spells_it() {
        let spelled = |value: Value, indent| {
            let mut out = String::new();
            write_json(&Serde(value).into(), indent, 0, &mut out).unwrap();
            out
        };
        assert_eq!(
            spelled(json!({"a": [], "b": {}, "c": "<\u{e9}\n>"}), None),
            "{\"a\": [], \"b\": {}, \"c\": \"<é\\n>\"}"
        );
        assert_eq!(spelled(json!({"a": [1, 2]}), Some(2)), "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
    }
}
