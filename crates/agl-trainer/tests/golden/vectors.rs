//! Vectors recorded from agentlightning 1.0.2 and verl 0.8.0: where they are, and how their numbers are read and compared.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;

/// The vectors of `tests/golden/trainer/<name>.jsonl.gz`, or of the same file below `$AGL_GOLDEN`.
pub(crate) fn vectors(name: &str) -> Vec<Value> {
    let path = find(name);
    let file = File::open(&path).unwrap();
    let text: Box<dyn Read> =
        if path.extension().is_some_and(|e| e == "gz") { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let vectors: Vec<Value> =
        BufReader::new(text).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(!vectors.is_empty(), "{} holds no vector", path.display());
    vectors
}

fn find(name: &str) -> PathBuf {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let root = std::env::var_os("AGL_GOLDEN").map_or(committed, PathBuf::from);
    let candidates = ["trainer", "trainer-golden", ""].into_iter().flat_map(|folder| {
        let folder = root.join(folder);
        [format!("{name}.jsonl.gz"), format!("{name}.jsonl")].map(|file| folder.join(file))
    });
    candidates
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no {name}.jsonl below {}", root.display()))
}

/// Runs `check` on each vector and fails with the names of all that it refused.
pub(crate) fn check_all(file: &str, name: impl Fn(&Value) -> String, check: impl Fn(&Value) -> Result<(), String>) {
    let vectors = vectors(file);
    let failures: Vec<String> = vectors
        .iter()
        .enumerate()
        .filter_map(|(line, vector)| {
            check(vector).err().map(|why| format!("line {} {}: {why}", line + 1, name(vector)))
        })
        .collect();
    let shown = failures.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} vectors of {file} fail:\n{shown}", failures.len(), vectors.len());
    eprintln!("{file}: {} vectors pass", vectors.len());
}

/// A number, `{"$float": "nan"}`, or a boolean.
pub(crate) fn number(value: &Value) -> f64 {
    match value {
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::Object(fields) => match fields["$float"].as_str().unwrap() {
            "inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            _ => f64::NAN,
        },
        value => value.as_f64().unwrap_or_else(|| panic!("not a number: {value}")),
    }
}

/// A list of numbers.
pub(crate) fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|value| number(value) as f32).collect()
}

/// A list of lists of numbers.
pub(crate) fn matrix(value: &Value) -> Vec<Vec<f32>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

/// A list of lists of 0 and 1.
pub(crate) fn masks(value: &Value) -> Vec<Vec<bool>> {
    matrix(value).iter().map(|row| row.iter().map(|value| *value != 0.0).collect()).collect()
}

/// A list of strings.
pub(crate) fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
}

/// Numbers agree within `tolerance`, relative to the larger of the recorded one and `scale`.
pub(crate) fn close(what: &str, found: f64, recorded: f64, tolerance: f64, scale: f64) -> Result<(), String> {
    let same = (found.is_nan() && recorded.is_nan())
        || found.to_bits() == recorded.to_bits()
        || (found - recorded).abs() <= tolerance * recorded.abs().max(scale);
    if same { Ok(()) } else { Err(format!("{what}: {found:e} instead of {recorded:e}")) }
}

/// Matrices agree within `tolerance`, relative to each recorded number or, where it is small, to 1/100 of the largest.
pub(crate) fn close_matrix(
    what: &str,
    found: &[Vec<f32>],
    recorded: &[Vec<f32>],
    tolerance: f64,
) -> Result<(), String> {
    close_matrix_at_scale(what, found, recorded, tolerance, 1e-2)
}

/// The same, where small is less than `share` of the largest: 1 for numbers from which a mean was subtracted.
pub(crate) fn close_matrix_at_scale(
    what: &str,
    found: &[Vec<f32>],
    recorded: &[Vec<f32>],
    tolerance: f64,
    share: f64,
) -> Result<(), String> {
    if found.len() != recorded.len() {
        return Err(format!("{what}: {} rows instead of {}", found.len(), recorded.len()));
    }
    let largest = recorded.iter().flatten().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (row, (found, recorded)) in found.iter().zip(recorded).enumerate() {
        if found.len() != recorded.len() {
            return Err(format!("{what}[{row}]: {} numbers instead of {}", found.len(), recorded.len()));
        }
        for (t, (found, recorded)) in found.iter().zip(recorded).enumerate() {
            let what = format!("{what}[{row}][{t}]");
            close(&what, f64::from(*found), f64::from(*recorded), tolerance, f64::from(largest) * share)?;
        }
    }
    Ok(())
}
