//! Reading a configuration into a struct, and what is said when that fails.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use agl_config::{Config, load_file};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Run {
    name: String,
    port: u16,
    lr: f64,
    resume: bool,
    mode: Mode,
    agent: Agent,
    seed: Option<u64>,
    tags: Vec<String>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            name: "run".to_owned(),
            port: 8080,
            lr: 3e-4,
            resume: false,
            mode: Mode::Trajectory,
            agent: Agent::default(),
            seed: None,
            tags: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Trajectory,
    Transition,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Agent {
    command: Vec<String>,
    timeout_seconds: f64,
}

fn with(overrides: &[&str]) -> Result<Run, String> {
    let mut config = Config::from_defaults(&Run::default()).unwrap();
    config.apply_overrides(overrides).map_err(|error| error.to_string())?;
    config.deserialize().map_err(|error| error.to_string())
}

#[test]
fn values_of_the_right_type_are_read() {
    let run = with(&[
        "name=1.5",
        "port='9000'",
        "lr=1e-3",
        "resume=yes",
        "mode=transition",
        "agent.command=[python,-m,a.b]",
        "agent={timeout_seconds: 30}",
        "seed=7",
        "tags=[a,2]",
    ])
    .unwrap();
    let agent = Agent { command: vec!["python".into(), "-m".into(), "a.b".into()], timeout_seconds: 30.0 };
    let expected = Run {
        name: "1.5".into(),
        port: 9000,
        lr: 1e-3,
        resume: true,
        mode: Mode::Transition,
        agent,
        seed: Some(7),
        tags: vec!["a".into(), "2".into()],
    };
    assert_eq!(run, expected);
    for (word, flag) in [("no", false), ("off", false), ("'false'", false), ("0", false), ("On", true), ("1", true)] {
        assert_eq!(with(&[&format!("resume={word}")]).unwrap().resume, flag, "{word}");
    }
    assert_eq!(with(&["port=1e4"]).unwrap().port, 10_000);
    assert_eq!(with(&["seed=3", "seed=null"]).unwrap().seed, None);
}

#[test]
fn values_of_the_wrong_type_are_refused() {
    let cases = [
        ("port=abc", "command line: `port=abc`: must be a whole number"),
        ("port=80.9", "command line: `port=80.9`: must be a whole number"),
        ("port=true", "command line: `port=true`: must be a whole number"),
        ("port=-1", "command line: `port=-1`: must be a whole number from 0 to 65535"),
        ("port=null", "command line: `port=null`: must be a whole number"),
        ("resume=maybe", "must be true or false"),
        ("name=[a]", "command line: `name`: must be text"),
        ("name=null", "command line: `name=null`: must be text"),
        ("mode=trajectry", "did you mean `trajectory`? (allowed: trajectory, transition)"),
        ("tags=[a,[b]]", "command line: `tags[1]`: must be text"),
        ("agent=5", "`agent=5`: must be a map with the keys command, timeout_seconds"),
        ("agent.timeout_seconds=soon", "command line: `agent.timeout_seconds=soon`: must be a number"),
        ("agent.timeout=1", "did you mean `timeout_seconds`?"),
        ("prot=1", "Could not override 'prot'.\ndid you mean `port`?"),
    ];
    for (text, expected) in cases {
        let error = with(&[text]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_file_is_named_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.yaml");
    let check = |text: &str, expected: &str| {
        std::fs::write(&path, text).unwrap();
        let loaded = load_file(&path).and_then(|config| config.deserialize::<Run>());
        let merged = Config::from_defaults(&Run::default()).and_then(|mut config| {
            config.merge_file(&path)?;
            config.deserialize::<Run>()
        });
        for (way, result) in [("load_file", loaded), ("merge_file", merged)] {
            let error = result.unwrap_err().to_string();
            let expected = format!("{}:{expected}", path.display());
            assert!(error.starts_with(&expected), "{way}\nwant {expected}\ngot  {error}");
        }
    };
    check("name: x\nport: abc\n", "2:1: `port=abc`: must be a whole number");
    check("agent:\n  timeout: 1\n", "2:3: ");
    check("agent:\n  command: python\n", "2:3: `agent.command=python`: must be a list");
    check("port: 1\nport: 2\n", "2:1: found duplicate key `port`; its first value is at ");
    check("port: [1\n", "2:1: not valid YAML: ");
    check("tags: [a, {b: c}]\n", "1:11: `tags[1]`: must be text");
}

#[test]
fn an_unknown_key_of_a_file_has_its_neighbour() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.yaml");
    std::fs::write(&path, "prot: 1\n").unwrap();
    let loaded = load_file(&path).unwrap().deserialize::<Run>().unwrap_err().to_string();
    assert!(loaded.contains("1:1: `prot`: unknown key `prot`; did you mean `port`?"), "{loaded}");
    let merged = Config::from_defaults(&Run::default()).unwrap().merge_file(&path).unwrap_err().to_string();
    assert!(merged.contains("1:1: unknown key `prot`; did you mean `port`?"), "{merged}");
}

#[test]
fn a_loaded_file_takes_overrides_of_new_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.yaml");
    std::fs::write(&path, "lr: 1e-3 # a float, as OmegaConf reads it\nresume: off\n").unwrap();
    let mut config = load_file(&path).unwrap();
    config.apply_overrides(&["agent.timeout_seconds=5", "port=1"]).unwrap();
    let run: Run = config.deserialize().unwrap();
    assert_eq!((run.lr, run.resume, run.agent.timeout_seconds, run.port), (1e-3, false, 5.0, 1));
}

#[test]
fn secrets_are_not_shown() {
    #[derive(Debug, Deserialize, Serialize)]
    struct Access {
        key: String,
        limit: u32,
    }
    let mut config = Config::from_defaults(&Access { key: String::new(), limit: 1 }).unwrap();
    config.apply_overrides(&["key=[hunter2]"]).unwrap();
    let error = config.deserialize::<Access>().unwrap_err().to_string();
    assert!(error.contains("`key`") && !error.contains("hunter2"), "{error}");
}
