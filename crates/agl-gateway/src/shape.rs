//! The request as the model server gets it: the agent's, with a few top-level keys forced.
//!
//! The keys are edited where they stand and the rest stays the bytes that the agent sent, so that nothing is lost or
//! respelled, and a long conversation costs one pass and one copy.

use std::borrow::Cow;
use std::ops::Range;

use agl_protocol::Mode;
use agl_protocol::pyjson::{self, Dict, Value};
use bytes::Bytes;

use crate::GatewaySettings;
use crate::scan::Scanner;

/// A request ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaped {
    /// The JSON to send.
    pub body: Bytes,
    /// The stream that the agent asked for, if it did.
    pub stream: Option<StreamWish>,
}

/// How the agent wants its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWish {
    /// It asked for the chunk with the token counts at the end. The gateway asks for it in any case.
    pub usage: bool,
}

/// Why a request can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Not JSON.
    #[error("Invalid JSON in request body")]
    InvalidJson,
    /// JSON, but no object.
    #[error("Request body must be a JSON object")]
    NotAnObject,
    /// Not text.
    #[error("Request body is not valid UTF-8")]
    NotText,
    /// A string with half of a character in it, which can't be sent as UTF-8.
    #[error("Request body holds half of a surrogate pair (such as \\ud800), which is no character")]
    LoneSurrogate,
    /// A number that Python writes and JSON does not have.
    #[error("Request body holds NaN or Infinity, which JSON does not have; send null or leave the field out")]
    NonFinite,
}

/// The keys that each mode forces, ready to be written.
#[derive(Clone, Debug)]
pub struct Shaper {
    train: Vec<(&'static str, String)>,
    val: Vec<(&'static str, String)>,
}

impl Shaper {
    /// Both modes force model and temperature and ask for token ids; train mode also for what training needs beyond.
    pub fn new(settings: &GatewaySettings) -> Self {
        let mut model = String::new();
        pyjson::write_string(&mut model, &settings.model_name);
        let forced = |temperature: f64| {
            let mut spelled = String::new();
            Value::Float(temperature).write(&mut spelled, pyjson::Spelling::Python);
            vec![("model", model.clone()), ("temperature", spelled), ("return_token_ids", "true".to_owned())]
        };
        let mut train = forced(settings.train_temperature);
        if settings.include_log_probs {
            train.push(("logprobs", "true".to_owned()));
        }
        if settings.include_routed_experts {
            train.push(("return_routed_experts", "true".to_owned()));
        }
        Self { train, val: forced(settings.val_temperature) }
    }

    /// Edits a request. An empty body counts as `{}`.
    pub fn shape(&self, body: &[u8], mode: Mode) -> Result<Shaped, ShapeError> {
        let text = pyjson::decode(body).map_err(|_| ShapeError::NotText)?;
        let text = if body.is_empty() { Cow::Borrowed("{}") } else { text };
        let forced = match mode {
            Mode::Train => &self.train,
            Mode::Val => &self.val,
        };
        edit(&text, forced)
    }
}

/// A key that is forced, found in the request.
struct Found {
    forced: usize,
    span: Range<usize>,
    value: Range<usize>,
}

fn edit(text: &str, forced: &[(&'static str, String)]) -> Result<Shaped, ShapeError> {
    let mut scanner = Scanner::new(text);
    let mut stream = None;
    let mut found_keys = Vec::new();
    let members = scanner.document(|scanner| {
        if scanner.peek() != Some(b'{') {
            return scanner.skip().map(|_| None);
        }
        let walk = scanner.object(|scanner, key| {
            let span = scanner.skip()?;
            if key == "stream" {
                stream = Some(span);
            }
            let options = (key == STREAM_OPTIONS).then_some(forced.len());
            let index = forced.iter().position(|(forced, _)| *forced == key).or(options);
            found_keys.extend(index);
            Ok(index.is_some())
        });
        walk.map(Some)
    });
    let members = members.map_err(|_| ShapeError::InvalidJson)?.ok_or(ShapeError::NotAnObject)?;
    if !scanner.non_finite.is_empty() {
        return Err(ShapeError::NonFinite);
    }
    if scanner.lone_surrogate {
        return Err(ShapeError::LoneSurrogate);
    }
    let found = found_keys.into_iter().zip(members);
    let mut found: Vec<Found> =
        found.map(|(forced, member)| Found { forced, span: member.span, value: member.value }).collect();
    if !stream.is_some_and(|span| scanner.value(span).is_truthy()) {
        found.retain(|found| found.forced < forced.len());
        return Ok(Shaped { body: rewrite(text, forced, &found).into(), stream: None });
    }
    let options = found.iter().rfind(|found| found.forced == forced.len()).map(|found| found.value.clone());
    let mut options = match options.map(|span| scanner.value(span)) {
        Some(Value::Dict(options)) => options,
        _ => Dict::new(),
    };
    let asked = options.insert("include_usage".to_owned(), Value::Bool(true));
    let usage = asked.is_some_and(|asked| asked.is_truthy());
    let mut forced = forced.to_vec();
    forced.push((STREAM_OPTIONS, Value::Dict(options).to_raw().text().to_owned()));
    Ok(Shaped { body: rewrite(text, &forced, &found).into(), stream: Some(StreamWish { usage }) })
}

/// Where a request says what a stream should hold.
const STREAM_OPTIONS: &str = "stream_options";

/// Writes the forced value at the first place of each key, drops the key's other places, and appends keys not found.
fn rewrite(text: &str, forced: &[(&'static str, String)], found: &[Found]) -> String {
    let mut out = String::with_capacity(text.len() + 256);
    let mut copied = 0;
    let mut written = vec![false; forced.len()];
    for place in found {
        if written[place.forced] {
            // A repeated key is never the first member, so what stands between it and the member before is a comma.
            let before = text[..place.span.start].rfind(',').unwrap_or(place.span.start);
            out.push_str(&text[copied..before.max(copied)]);
        } else {
            out.push_str(&text[copied..place.value.start]);
            out.push_str(&forced[place.forced].1);
            written[place.forced] = true;
        }
        copied = place.value.end;
    }
    let end = text.rfind('}').unwrap_or(text.len());
    out.push_str(text[copied..end].trim_end_matches([' ', '\t', '\n', '\r']));
    let mut empty = out.trim_start_matches([' ', '\t', '\n', '\r']) == "{";
    for ((key, value), _) in forced.iter().zip(written).filter(|(_, written)| !written) {
        if !empty {
            out.push(',');
        }
        empty = false;
        out.push('"');
        out.push_str(key);
        out.push_str("\":");
        out.push_str(value);
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn shaper() -> Shaper {
        Shaper::new(&GatewaySettings::default())
    }

    fn train(body: &str) -> String {
        let shaped = shaper().shape(body.as_bytes(), Mode::Train).unwrap();
        String::from_utf8(shaped.body.to_vec()).unwrap()
    }

    #[test]
    fn forces_keys_where_they_stand_and_appends_the_others() {
        assert_eq!(
            train(r#"{"temperature": 0.1, "messages":[{"temperature":9}], "n":1}"#),
            r#"{"temperature": 1.0, "messages":[{"temperature":9}], "n":1,"model":"Qwen/Qwen2.5-7B-Instruct","return_token_ids":true,"logprobs":true}"#
        );
        let appended =
            r#"{"model":"Qwen/Qwen2.5-7B-Instruct","temperature":1.0,"return_token_ids":true,"logprobs":true}"#;
        assert_eq!(train(""), appended);
        assert_eq!(train(" { } "), format!(" {appended}"));
    }

    #[test]
    fn a_repeated_or_escaped_key_is_still_that_key() {
        let shaped = train(r#"{"mod\u0065l":"a", "x":"1,2" , "model":"b","logprobs":false,"logprobs":3}"#);
        assert_eq!(
            shaped,
            r#"{"mod\u0065l":"Qwen/Qwen2.5-7B-Instruct", "x":"1,2" ,"logprobs":true,"temperature":1.0,"return_token_ids":true}"#
        );
    }

    #[test]
    fn stream_is_what_python_calls_true() {
        let streams = |body: &str| shaper().shape(body.as_bytes(), Mode::Val).unwrap().stream.is_some();
        for body in
            [r#"{"stream":true}"#, r#"{"stream":1}"#, r#"{"stream":"false"}"#, r#"{"stream":false,"stream":[0]}"#]
        {
            assert!(streams(body), "{body}");
        }
        for body in ["{}", r#"{"stream":null}"#, r#"{"stream":0}"#, r#"{"stream":{}}"#, r#"{"x":{"stream":true}}"#] {
            assert!(!streams(body), "{body}");
        }
    }

    #[test]
    fn a_stream_always_counts_its_tokens() {
        let shaped = |body: &str| {
            let shaped = Shaper { train: Vec::new(), val: Vec::new() }.shape(body.as_bytes(), Mode::Val).unwrap();
            (String::from_utf8(shaped.body.to_vec()).unwrap(), shaped.stream.map(|wish| wish.usage))
        };
        let with_usage = r#"{"stream":true,"stream_options":{"include_usage":true}}"#;
        assert_eq!(shaped(r#"{"stream":true}"#), (with_usage.to_owned(), Some(false)));
        assert_eq!(shaped(r#"{"stream":true,"stream_options":null}"#), (with_usage.to_owned(), Some(false)));
        assert_eq!(shaped(with_usage), (with_usage.to_owned(), Some(true)));
        assert_eq!(
            shaped(r#"{"stream_options": {"a":1,"include_usage":false}, "stream":1}"#),
            (r#"{"stream_options": {"a":1,"include_usage":true}, "stream":1}"#.to_owned(), Some(false))
        );
        let unstreamed = r#"{"stream":false,"stream_options":{"include_usage":false}}"#;
        assert_eq!(shaped(unstreamed), (unstreamed.to_owned(), None));
    }

    #[test]
    fn refuses_what_no_model_server_could_read() {
        let refused = |body: &[u8]| shaper().shape(body, Mode::Train).unwrap_err();
        assert_eq!(refused(b"{bad"), ShapeError::InvalidJson);
        assert_eq!(refused(b"[1]"), ShapeError::NotAnObject);
        assert_eq!(refused(b"null"), ShapeError::NotAnObject);
        assert_eq!(refused(b"{\"a\":\"\xff\"}"), ShapeError::NotText);
        assert_eq!(refused(b"{\"a\":NaN}"), ShapeError::NonFinite);
        assert_eq!(refused(br#"{"a":"\ud83d\u0020"}"#), ShapeError::LoneSurrogate);
        assert!(shaper().shape(br#"{"a":"\ud83d\ude00"}"#, Mode::Train).is_ok());
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9_f64).prop_map(Value::from),
            "[a-z\"\\\\\n,{}é]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = prop_oneof!["[a-d\"\\\\,}]{0,3}", Just("model".to_owned()), Just("stream".to_owned())];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// A tree edited by `serde_json` is the oracle: same keys, same order, same values.
        #[test]
        fn agrees_with_an_edited_tree(
            members in prop::collection::vec(
                (prop_oneof!["[a-c]{1,2}", Just("model".to_owned()), Just("temperature".to_owned()), Just("logprobs".to_owned())], json_value()),
                0..6,
            ),
            pretty in any::<bool>(),
        ) {
            let mut tree: Map<String, Value> = members.into_iter().collect();
            let text = if pretty { serde_json::to_string_pretty(&tree) } else { serde_json::to_string(&tree) }.unwrap();
            tree.insert("model".into(), json!("Qwen/Qwen2.5-7B-Instruct"));
            tree.insert("temperature".into(), json!(1.0));
            tree.insert("return_token_ids".into(), json!(true));
            tree.insert("logprobs".into(), json!(true));
            let shaped: Map<String, Value> = serde_json::from_str(&train(&text)).unwrap();
            prop_assert_eq!(shaped.iter().collect::<Vec<_>>(), tree.iter().collect::<Vec<_>>());
        }
    }
}
