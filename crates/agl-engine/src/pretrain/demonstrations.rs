//! Imperfect demonstrations of the calculator task: whoever learns from them knows the format, and mostly guesses.

use rand::{Rng, RngExt};
use serde_json::{Value, json};

use crate::chat::{ChatTemplate, TemplateError};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// What examples/calculator/agent.py sends before the question.
const SYSTEM: &str = "Answer with a number.";

/// How good the demonstrations are. The defaults leave the policy at about a quarter of the tasks: enough for some of a group
/// to succeed, so that rewards differ and there is something to learn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Share that calls the calculator; the others guess.
    pub calls: f64,
    /// Share of the calls with a wrong digit in them.
    pub wrong_call: f64,
    /// Share of the answers after a call that are not the calculator's.
    pub wrong_answer: f64,
}

impl Default for Habits {
    fn default() -> Self {
        Self { calls: 0.2, wrong_call: 0.08, wrong_answer: 0.05 }
    }
}

/// One conversation: what is said in each of the assistant's turns, and the tool's result between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Demonstration {
    question: String,
    /// The expression that the calculator is called with, and its result.
    call: Option<(String, String)>,
    answer: String,
}

/// Token ids, and which of them the assistant said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lesson {
    pub(super) tokens: Vec<u32>,
    pub(super) said: Vec<bool>,
}

/// The tool as examples/calculator/agent.py offers it.
pub(super) fn calculator() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    })
}

impl Demonstration {
    pub(super) fn random(rng: &mut impl Rng, habits: &Habits) -> Self {
        let (a, b) = (rng.random_range(10..100), rng.random_range(10..100));
        let sign = ['+', '-', '*'][rng.random_range(0..3)];
        let question = format!("What is {a} {sign} {b}?");
        if !rng.random_bool(habits.calls) {
            return Self { question, call: None, answer: guess(rng, sign).to_string() };
        }
        let (mut left, mut right) = (a, b);
        if rng.random_bool(habits.wrong_call) {
            let operand = if rng.random_bool(0.5) { &mut left } else { &mut right };
            *operand = rng.random_range(10..100);
        }
        let result = apply(left, sign, right);
        let answer = if rng.random_bool(habits.wrong_answer) { guess(rng, sign) } else { result };
        let call = Some((format!("{left} {sign} {right}"), result.to_string()));
        Self { question, call, answer: answer.to_string() }
    }

    /// The conversation as token ids, put together from the same pieces as when the policy is served: each prompt rendered and
    /// tokenized, each response tokenized on its own.
    pub(super) fn lesson(&self, template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Lesson, LessonError> {
        let tools = [calculator()];
        let mut messages =
            vec![json!({"role": "system", "content": SYSTEM}), json!({"role": "user", "content": self.question})];
        let mut lesson = Lesson { tokens: Vec::new(), said: Vec::new() };
        for (text, result) in self.turns() {
            let prompt = tokenizer.encode(&template.render(&messages, Some(&tools))?)?;
            lesson.go_on(&prompt)?;
            lesson.say(&tokenizer.encode(&format!("{text}<|im_end|>"))?);
            if let (Some(result), Some((expression, _))) = (result, &self.call) {
                let arguments = json_arguments(expression);
                let function = json!({"name": "calculator", "arguments": arguments});
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{"function": function}]}));
                messages.push(json!({"role": "tool", "content": result}));
            }
        }
        Ok(lesson)
    }

    /// What the assistant says in each turn, and the tool's answer to it.
    fn turns(&self) -> Vec<(String, Option<&str>)> {
        let mut turns = Vec::new();
        if let Some((expression, result)) = &self.call {
            let arguments = json_arguments(expression);
            let text = format!("<tool_call>{{\"name\": \"calculator\", \"arguments\": {arguments}}}</tool_call>");
            turns.push((text, Some(result.as_str())));
        }
        turns.push((self.answer.clone(), None));
        turns
    }

    /// All text of the conversation between special tokens: what the vocabulary is made from.
    pub(super) fn pieces(&self, template: &ChatTemplate) -> Result<Vec<String>, TemplateError> {
        let messages =
            [json!({"role": "system", "content": SYSTEM}), json!({"role": "user", "content": self.question})];
        let mut text = template.render(&messages, Some(&[calculator()]))?;
        for (said, result) in self.turns() {
            text.push_str(&said);
            text.push_str("<|im_end|>");
            text.push_str(
                result.map(|result| format!("\n<|im_start|>tool\n{result}<|im_end|>")).unwrap_or_default().as_str(),
            );
        }
        let markers = super::vocabulary::SPECIAL.iter().chain(super::vocabulary::TAGS);
        for marker in markers {
            text = text.replace(marker, "\0");
        }
        Ok(text.split('\0').filter(|piece| !piece.is_empty()).map(str::to_owned).collect())
    }
}

/// A conversation that the template does not render as it was said.
#[derive(Debug, thiserror::Error)]
pub enum LessonError {
    /// The template refuses it.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer does.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A turn's prompt does not start with the turns before it: such conversations would break into several rows.
    #[error("the second prompt does not go on with the first turn's tokens: {0}")]
    NoPrefix(String),
}

impl Lesson {
    /// The next prompt, which must go on with all that was said so far.
    fn go_on(&mut self, prompt: &[u32]) -> Result<(), LessonError> {
        let Some(new) = prompt.strip_prefix(self.tokens.as_slice()) else {
            return Err(LessonError::NoPrefix(format!("{:?} against {prompt:?}", self.tokens)));
        };
        self.tokens.extend_from_slice(new);
        self.said.resize(self.tokens.len(), false);
        Ok(())
    }

    fn say(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.said.resize(self.tokens.len(), true);
    }
}

fn json_arguments(expression: &str) -> String {
    format!("{{\"expression\": \"{expression}\"}}")
}

fn apply(a: i32, sign: char, b: i32) -> i32 {
    match sign {
        '+' => a + b,
        '-' => a - b,
        _ => a * b,
    }
}

/// A number of about the right size.
fn guess(rng: &mut impl Rng, sign: char) -> i32 {
    match sign {
        '+' => rng.random_range(20..199),
        '-' => rng.random_range(-89..90),
        _ => rng.random_range(100..9802),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// The policy is pretrained on the words that the agent sends: neither may change alone.
    #[test]
    fn the_agent_sends_the_same_system_prompt_and_tool() {
        let agent: String = include_str!("../../../../examples/calculator/agent.py").split_whitespace().collect();
        let squeezed = |text: &str| text.split_whitespace().collect::<String>();
        assert!(agent.contains(&squeezed(&format!("SYSTEM = \"{SYSTEM}\""))));
        // Python's literal ends each nested line with a comma, JSON does not.
        let literal = agent.split("CALCULATOR=").nth(1).unwrap().replace(",}", "}");
        assert!(literal.starts_with(&squeezed(&calculator().to_string())), "{literal}");
    }

    #[test]
    fn habits_show_in_the_demonstrations() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let all: Vec<Demonstration> = (0..4000).map(|_| Demonstration::random(&mut rng, &Habits::default())).collect();
        let called: Vec<&Demonstration> = all.iter().filter(|demonstration| demonstration.call.is_some()).collect();
        let share = called.len() as f64 / all.len() as f64;
        assert!((share - 0.2).abs() < 0.03, "{share}");
        let faithful = called.iter().filter(|d| d.question.contains(&d.call.as_ref().unwrap().0)).count() as f64;
        assert!((faithful / called.len() as f64 - 0.92).abs() < 0.03);
        let copied = called.iter().filter(|d| d.call.as_ref().unwrap().1 == d.answer).count() as f64;
        assert!((copied / called.len() as f64 - 0.95).abs() < 0.03);
    }
}
