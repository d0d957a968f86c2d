//! The recorded command lines of the original: same configuration, same exit code, same meaning of errors.
//!
//! `tests/golden/hydra/*.jsonl` holds what `agentlightning` 1.0.2 with hydra-core 1.3.2 did; `AGL_GOLDEN` may name another
//! folder of that layout. Where we differ on purpose, [`DEVIATIONS`] says so, with the reason.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use agl_config::cli::{self, Command, Refusal};
use agl_config::{ControllerConfig, Key, Program, ServerConfig, Surroundings, Value};
use serde_json::{Value as Json, json};

/// Files that were in the current folder of every recording.
const FILES: &[(&str, &str)] = &[
    ("conf/my.yaml", "defaults: [server, _self_]\nport: 9999\nkey: ${oc.env:MY_KEY,dflt}\n"),
    ("conf/noself.yaml", "defaults:\n- server\nport: 9998\n"),
    ("conf/standalone.yaml", STANDALONE),
    ("conf/broken.yaml", "port: [1\n"),
    ("conf/nokey.yaml", NO_KEY),
    ("conf/listy.yaml", "- a\n"),
    ("conf/empty.yaml", ""),
    ("conf/ctl.yaml", "defaults: [controller, _self_]\nrunner_type: local\nlocal_runner: {maximum_size: 3}\n"),
    ("conf2/grp.yaml", "defaults:\n- server\n- proxy@default_proxy: big\n- _self_\n"),
    ("conf2/proxy/big.yaml", "model_name: big\ntrain: {temperature: 1.0}\nval: {temperature: 0.3}\n"),
    (
        "conf2/missing.yaml",
        "host: ???\nport: 8080\nkey: ''\ndefault_proxy: {model_name: m, train: {temperature: 1}, val: {temperature: 1}}\n",
    ),
    ("conf2/dup.yaml", "host: a\nhost: b\n"),
    ("conf2/yamlisms.yaml", YAMLISMS),
];
const STANDALONE: &str = "host: 127.0.0.1\nport: 7000\nkey: s3\n\
    default_proxy: {model_name: m, train: {temperature: 0.9}, val: {temperature: 0}}\n";
const NO_KEY: &str = "host: 127.0.0.1\nport: 7000\n\
    default_proxy: {model_name: m, train: {temperature: 0.9}, val: {temperature: 0}}\n";
const YAMLISMS: &str = "host: 0.0.0.0\nport: 1_000\nkey: on\na: 012\nb: 0o14\nc: 1e3\nd: 1.5e-3\ne: .5\nf: 2020-01-01\n\
    g: no\nh: ~\ni: '08'\nj: 08\nk: 12:30:45\nl: .inf\nm: .nan\nn: 0x1f\no: 1.\np: +1\nq: 'null'\nr:\ns: off\nt: n\n\
    u: 1e-7\nv: -1e5\nw: 1_000.5\nx: yes\ndefault_proxy: {model_name: m, train: {temperature: 1}, val: {temperature: 1}}\n";

/// What we do otherwise on purpose: the end of the command line, our exit code and the reason.
const DEVIATIONS: &[(&str, u8, &str)] = &[
    ("port=-1", 1, "types: no port; the original passes it to uvicorn, which fails"),
    ("port=99999", 1, "types: no port; the original passes it to uvicorn, which fails"),
    ("port=true", 1, "types: the original listens on port 1"),
    ("port=80.9", 1, "types: the original listens on port 80"),
    ("port=int(3.7)", 0, "the cast says what is meant: port 3"),
    ("host=null", 1, "types: the original listens on a host called None"),
    ("host=[a]", 1, "types: the original listens on a host called ['a']"),
    ("key=[a,b]", 1, "types: the original's key is the text of a Python list"),
    ("key={a:1}", 1, "types: the original's key is the text of a Python dict"),
    ("key={a: 1, b: [x, y]}", 1, "types: the original's key is the text of a Python dict"),
    ("key=[1,'2',3.0,null,true]", 1, "types: the original's key is the text of a Python list"),
    ("key=${oc.dict.keys:default_proxy}", 1, "types: the original's key is the text of a Python list"),
    ("default_proxy.model_name=[a,b]", 1, "types: the original's model is called ['a', 'b']"),
    ("default_proxy.train.temperature=inf", 1, "types: JSON has no infinity; each call would fail"),
    ("default_proxy.train.temperature=true", 1, "types: the original samples at temperature 1"),
    ("local_runner.maximum_size=2.9", 1, "types: the original runs 2 agents"),
];

/// Settings that the original reads as true because the text isn't empty.
const FALSE_WORDS: &[&str] = &[
    "default_proxy.include_log_probs=no",
    "default_proxy.include_log_probs=off",
    "default_proxy.include_log_probs='false'",
];

#[test]
fn server_command_lines() {
    check_file("server.jsonl");
}

#[test]
fn controller_command_lines() {
    check_file("controller.jsonl");
}

#[test]
fn printed_configuration_and_help() {
    check_file("cfg_help.jsonl");
}

fn check_file(name: &str) {
    let mut failures = String::new();
    let mut count = 0;
    for line in golden(name).lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        count += 1;
        if let Err(problem) = check(&case) {
            writeln!(failures, "{}: {problem}\n", case["argv"]).unwrap();
        }
    }
    assert!(count > 0, "no recordings in {name}");
    assert!(failures.is_empty(), "{name}:\n{failures}");
}

/// The recordings of that name: those of the repository, or of the folder `AGL_GOLDEN`, perhaps compressed.
fn golden(name: &str) -> String {
    let folder = std::env::var_os("AGL_GOLDEN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"), PathBuf::from);
    let path = folder.join("hydra").join(name);
    if let Ok(text) = std::fs::read_to_string(&path) {
        return text;
    }
    let packed = std::fs::File::open(path.with_extension("jsonl.gz"))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text
}

fn check(case: &Json) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let cwd = folder.path().display().to_string();
    let words: Vec<String> =
        case["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().replace("<cwd>", &cwd)).collect();
    let variables = case["env"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
    let surroundings = Surroundings { variables: variables.collect(), folder: folder.path().to_owned(), now_s: 0 };
    let is_server = case["program"].as_str() == Some("agl-server");
    let program = if is_server { Program::Server } else { Program::Controller };

    let composed = cli::compose_command(program, &words, &surroundings);
    check_composed(case, &composed)?;
    let (code, message, settings) = if is_server {
        ended(cli::command::<ServerConfig>(&words, &surroundings), server_settings)
    } else {
        ended(cli::command::<ControllerConfig>(&words, &surroundings), controller_settings)
    };
    check_exit(case, &words, code, &message)?;
    if code == 0 {
        check_settings(case, &words, &settings)?;
    }
    check_message(case, code, &message)?;
    check_stdout(case, composed, &cwd)
}

/// Exit code, message and the settings of each job.
fn ended<T>(result: Result<Command<T>, Refusal>, settings: fn(&T) -> Json) -> (u8, String, Vec<Json>) {
    match result {
        Ok(Command::Show(_)) => (0, String::new(), Vec::new()),
        Ok(Command::Run { jobs, .. }) => (0, String::new(), jobs.iter().map(|job| settings(&job.settings)).collect()),
        Err(refusal) => (refusal.exit_code, refusal.message, Vec::new()),
    }
}

fn stages<'a>(case: &'a Json, stage: &str) -> Vec<&'a Json> {
    let jobs = case["jobs"].as_array().into_iter().flatten();
    jobs.filter(|job| job["stage"].as_str() == Some(stage)).collect()
}

fn check_composed(case: &Json, composed: &Result<Command<()>, Refusal>) -> Result<(), String> {
    let expected: Vec<&Json> = stages(case, "composed").into_iter().map(|job| &job["config"]).collect();
    if expected.is_empty() {
        return Ok(());
    }
    let jobs = match composed {
        Ok(Command::Run { jobs, .. }) => jobs.iter().map(|job| to_json(&job.config.root().value)).collect::<Vec<_>>(),
        Ok(Command::Show(_)) => return Err("it prints something instead of running".to_owned()),
        Err(refusal) => return Err(format!("not composed: {refusal}")),
    };
    let same =
        jobs.len() == expected.len() && jobs.iter().zip(&expected).all(|(a, b)| format!("{a}") == format!("{b}"));
    // The text is compared: the order of keys and `1` against `1.0` count.
    if same { Ok(()) } else { Err(format!("composed\n  {}\nwant\n  {}", json!(jobs), json!(expected))) }
}

fn deviation(words: &[String]) -> Option<&'static (&'static str, u8, &'static str)> {
    DEVIATIONS.iter().find(|(end, ..)| words.last().is_some_and(|word| word == end))
}

fn check_exit(case: &Json, words: &[String], code: u8, message: &str) -> Result<(), String> {
    let expected = match deviation(words) {
        Some((_, code, _)) => *code,
        None => u8::try_from(case["exit_code"].as_i64().unwrap_or(0)).unwrap(),
    };
    if code == expected { Ok(()) } else { Err(format!("exit code {code}, want {expected}; {message}")) }
}

fn server_settings(settings: &ServerConfig) -> Json {
    let proxy = &settings.default_proxy;
    json!({
        "host": settings.host, "port": settings.port,
        "effective_key": settings.key.as_ref().map_or("", |key| key.expose()),
        "model_name": proxy.model_name,
        "train_temperature": proxy.train.temperature, "val_temperature": proxy.val.temperature,
        "include_log_probs": proxy.include_log_probs, "include_routed_experts": proxy.include_routed_experts,
    })
}

fn controller_settings(settings: &ControllerConfig) -> Json {
    json!({
        "base_url": settings.agl_server.url,
        "key": settings.agl_server.key.as_ref().map(agl_config::Secret::expose),
        "runner_type": settings.runner_type,
        "namespace": settings.k8s_runner.as_ref().map(|runner| &runner.namespace),
        "pool_size": settings.local_runner.as_ref().map(|runner| runner.maximum_size),
        "tick": settings.local_runner.as_ref().map(|runner| runner.poll_interval),
    })
}

/// What the original made of its configuration, job by job.
fn check_settings(case: &Json, words: &[String], settings: &[Json]) -> Result<(), String> {
    for stage in ["app", "uvicorn.run", "client", "k8s", "local"] {
        for (recorded, ours) in stages(case, stage).iter().zip(settings) {
            for (key, expected) in recorded.as_object().unwrap() {
                if ["stage", "timeout_keep_alive"].contains(&key.as_str()) {
                    continue;
                }
                let false_word =
                    key == "include_log_probs" && words.iter().any(|word| FALSE_WORDS.contains(&word.as_str()));
                let key_from_environment =
                    key == "effective_key" && words.is_empty() && case["env"].get("AGL_KEY").is_some();
                let expected = match () {
                    () if false_word => &json!(false),
                    () if key_from_environment => &case["env"]["AGL_KEY"],
                    () => expected,
                };
                let same = match (expected.as_f64(), ours[key].as_f64()) {
                    (Some(a), Some(b)) => a.to_bits() == b.to_bits(),
                    _ => *expected == ours[key],
                };
                if !same {
                    return Err(format!("{key} is {}, want {expected}", ours[key]));
                }
            }
        }
    }
    Ok(())
}

/// Whatever the original puts into quotes, and the full key, has to be in our message too.
fn check_message(case: &Json, code: u8, message: &str) -> Result<(), String> {
    let recorded = case["stderr"].as_str().unwrap_or_default();
    let is_traceback = recorded.contains("Traceback");
    if code == 0 || recorded.is_empty() || is_traceback {
        return Ok(());
    }
    if code == 2 {
        return if recorded.trim() == message.trim() {
            Ok(())
        } else {
            Err(format!("message\n{message}\nwant\n{recorded}"))
        };
    }
    for line in recorded.lines().take_while(|line| !line.starts_with("See https") && !line.starts_with("Set the env")) {
        let line = line.replace("it's", "it is");
        let quoted = line.split('\'').skip(1).step_by(2);
        let key = line.trim().strip_prefix("full_key: ");
        for part in quoted.chain(key).filter(|part| !part.contains(['"', '\\'])) {
            if !message.contains(part) {
                return Err(format!("`{part}` is not in the message\n{message}\nof the original\n{recorded}"));
            }
        }
    }
    Ok(())
}

/// What is printed is the same to the byte where it is about the configuration.
fn check_stdout(case: &Json, composed: Result<Command<()>, Refusal>, cwd: &str) -> Result<(), String> {
    let (Some(recorded), Ok(Command::Show(text))) = (case["stdout"].as_str(), composed) else { return Ok(()) };
    let words = case["argv"].to_string();
    if ["--hydra-help", "-sc", "--version"].iter().any(|word| words.contains(word)) {
        return Ok(()); // our own words
    }
    let without_plugins = |text: &str| match (text.find("Installed Hydra Plugins"), text.find("\nConfig search path")) {
        (Some(from), Some(to)) => format!("{}{}", &text[..from], &text[to..]),
        _ => text.to_owned(),
    };
    let (text, recorded) = (without_plugins(&text.replace(cwd, "<cwd>")), without_plugins(recorded));
    if text.trim_end() == recorded.trim_end() { Ok(()) } else { Err(format!("prints\n{text}\nwant\n{recorded}")) }
}

/// As the recorder wrote it down.
fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Missing => json!("???"),
        Value::Bool(flag) => json!(flag),
        Value::Int(_) | Value::BigInt(_) => serde_json::from_str(&value.to_string()).unwrap(),
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Float(_) => json!({ "$nonfinite": value.to_string() }),
        Value::Text(text) | Value::Interpolation(text) => json!(text),
        Value::List(items) => items.iter().map(|item| to_json(&item.value)).collect(),
        Value::Map(map) => {
            let name = |key: &Key| match key {
                Key::Text(text) => text.clone(),
                other => format!("$key:{other}"),
            };
            Json::Object(map.iter().map(|(key, child)| (name(key), to_json(&child.value))).collect())
        }
    }
}
