//! The controller against recordings of the original: `env_map` resolutions and outcomes of `agent_class`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agl_controller::resolve_env_map;
use agl_protocol::pyjson::{self, Value};
use serde::Deserialize;

/// Lines of a recording: `tests/golden/<name>`, or the same file below `$AGL_GOLDEN`, plain or gzipped.
fn golden(name: &str) -> String {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let root = std::env::var_os("AGL_GOLDEN").map_or(committed, PathBuf::from);
    let plain = root.join(name);
    let zipped = root.join(format!("{name}.gz"));
    if zipped.exists() {
        let file = std::fs::File::open(&zipped).unwrap();
        return std::io::read_to_string(flate2::read::GzDecoder::new(file)).unwrap();
    }
    std::fs::read_to_string(&plain).unwrap_or_else(|error| panic!("{}: {error}", plain.display()))
}

/// The recorder writes numbers that JSON does not have as `{"$nonfinite": "nan"}`.
fn revive(value: Value) -> Value {
    match value {
        Value::Dict(fields) => match fields.get("$nonfinite").and_then(Value::as_str) {
            Some(word) => Value::Float(word.parse().unwrap()),
            None => Value::Dict(fields.into_iter().map(|(key, value)| (key, revive(value))).collect()),
        },
        Value::List(items) => Value::List(items.into_iter().map(revive).collect()),
        other => other,
    }
}

fn strings(value: &Value) -> BTreeMap<String, String> {
    let Value::Dict(fields) = value else { return BTreeMap::new() };
    fields.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

#[test]
fn env_map_resolves_as_recorded() {
    let mut checked = 0;
    for line in golden("controller/build_env_from_map.jsonl").lines() {
        // Half a surrogate pair is no text: our gateway refuses such a task, and no environment could hold it.
        if line.contains("lone surrogate") {
            assert!(pyjson::parse(line.as_bytes()).is_err());
            continue;
        }
        let case = revive(pyjson::parse(line.as_bytes()).unwrap());
        let name = case.get("name").and_then(Value::as_str).unwrap().to_owned();
        let result = resolve_env_map(case.get("input").unwrap(), &strings(case.get("env_map").unwrap()));
        let expected = match case.get("error") {
            Some(error) => Err(error.get("message").and_then(Value::as_str).unwrap().to_owned()),
            None => Ok(strings(case.get("result").unwrap())),
        };
        assert_eq!(result.map_err(|error| error.to_string()), expected, "{name}");
        checked += 1;
    }
    assert!(checked > 0, "no vectors");
}

#[derive(Deserialize)]
struct ClassOutcome {
    agent_class: String,
    exit_code: i32,
    stdout: String,
    last_stderr_line: String,
}

/// The modules that the recorded classes came from.
fn write_modules(folder: &Path) {
    let ok = "class Ok:\n    def run(self):\n        print('ran')\n";
    let mymod = format!(
        "{ok}\n\
         class AsyncOk:\n    async def run(self):\n        print('async ran')\n\n\
         class ReturnsFalse:\n    def run(self):\n        return False\n\n\
         class NeedsArg:\n    def __init__(self, x):\n        pass\n\n\
         class Outer:\n    class Inner:\n        def run(self):\n            pass\n\n\
         def func():\n    pass\n\n\
         inst = Ok()\n\n\
         class Raises:\n    def run(self):\n        raise RuntimeError('boom')\n\n\
         class AsyncRaises:\n    async def run(self):\n        raise RuntimeError('async boom')\n\n\
         class NoRun:\n    pass\n\n\
         class Exits:\n    def run(self):\n        raise SystemExit(7)\n\n\
         class Kbd:\n    def run(self):\n        raise KeyboardInterrupt\n"
    );
    fs::write(folder.join("mymod.py"), mymod).unwrap();
    fs::write(folder.join("badmod.py"), "raise ValueError('at import')\n").unwrap();
    fs::create_dir_all(folder.join("pkg/sub")).unwrap();
    fs::write(folder.join("pkg/__init__.py"), "").unwrap();
    fs::write(folder.join("pkg/sub/__init__.py"), "").unwrap();
    fs::write(folder.join("pkg/sub/m.py"), ok).unwrap();
}

#[test]
fn agent_classes_end_as_recorded() {
    use std::os::unix::process::ExitStatusExt as _;

    let folder = tempfile::tempdir().unwrap();
    write_modules(folder.path());
    let mut checked = 0;
    for line in golden("controller/agent_class.jsonl").lines() {
        let expected: ClassOutcome = serde_json::from_str(line).unwrap();
        let runner = include_str!("../src/local/agent_class.py");
        let output = Command::new("python3")
            .args(["-u", "-c", runner, &expected.agent_class])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let exit_code = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap());
        let stderr = String::from_utf8(output.stderr).unwrap();
        let name = &expected.agent_class;
        assert_eq!(exit_code, expected.exit_code, "`{name}`: {stderr}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected.stdout, "`{name}`");
        assert_eq!(stderr.lines().last().unwrap_or_default(), expected.last_stderr_line, "`{name}`");
        checked += 1;
    }
    assert!(checked > 0, "no vectors");
}
