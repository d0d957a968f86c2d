//! Recordings: where they are, and what a step says.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use agl_protocol::pyjson::{self, Value};
use flate2::read::GzDecoder;

/// The folder with the recordings.
pub fn folder() -> PathBuf {
    let golden = std::env::var_os("AGL_GOLDEN").map(PathBuf::from);
    golden.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")).join("wire")
}

/// The areas that are recorded.
pub fn areas() -> Vec<String> {
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| Some(name.split_once(".jsonl")?.0.to_owned())).collect()
}

/// The steps of an area, the setup first; nothing if this folder does not have the area.
pub fn steps(area: &str) -> Vec<Step> {
    let plain = folder().join(format!("{area}.jsonl"));
    let packed = folder().join(format!("{area}.jsonl.gz"));
    let mut text = String::new();
    if plain.exists() {
        text = fs::read_to_string(plain).unwrap();
    } else if packed.exists() {
        GzDecoder::new(fs::File::open(packed).unwrap()).read_to_string(&mut text).unwrap();
    }
    text.lines().map(|line| Step(pyjson::parse(line.as_bytes()).unwrap())).collect()
}

/// One line of a recording.
#[derive(Clone, Debug)]
pub struct Step(Value);

impl Step {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The text at a key; empty if there is none.
    pub fn text(&self, key: &str) -> &str {
        text(self.get(key))
    }

    pub fn number(&self, key: &str) -> u64 {
        number(self.get(key)).unwrap_or_default()
    }
}

/// The text that a value is; empty if it is none.
pub fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

/// The number that a value is.
pub fn number(value: Option<&Value>) -> Option<u64> {
    match value {
        Some(Value::Int(number)) => number.digits().parse().ok(),
        _ => None,
    }
}
