//! Replaying an area: send each step, compare what comes back.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use agl_protocol::pyjson::{self, Spelling, Value};
use agl_server::{Server, ServerOptions};
use base64::Engine as _;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fake::{Fake, Logged};
use crate::recording::{Step, number, steps, text};
use crate::wire::{Answer, Ask, exchange, send};

/// Retries of `proxy_exhaust` take ten times less than the original's, so that the test ends in seconds; `retry.rs`
/// checks the original's delays.
const EXHAUST_SPEEDUP: u32 = 10;
/// Waits are cut to this where retries are sped up: long enough for a request to have been sent.
const EXHAUST_WAIT: Duration = Duration::from_millis(150);

/// Replays one area and fails with every difference.
pub async fn area(area: &str) {
    let steps = steps(area);
    let Some(setup) = steps.first() else { return };
    let fast = area == "proxy_exhaust";
    let fake = Fake::start().await;
    let server = Server::bind(options(setup, fast)).await.unwrap();
    let base = format!("http://{}", server.addr());
    let mut replay = Replay {
        address: server.addr(),
        values: HashMap::from([("base".to_owned(), base), ("backend".to_owned(), format!("http://{}", fake.address))]),
        background: HashMap::new(),
        fake,
        fast,
    };
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(server.serve(shutdown.clone()));
    let mut report = String::new();
    for step in &steps[1..] {
        for difference in replay.step(step).await {
            writeln!(report, "[{}] {}\n    {difference}", step.number("seq"), step.text("name")).unwrap();
        }
    }
    shutdown.cancel();
    serving.await.unwrap();
    assert!(report.is_empty(), "{area} differs from the recording:\n{report}");
}

fn options(setup: &Step, fast: bool) -> ServerOptions {
    let mut options = ServerOptions { host: "127.0.0.1".parse().unwrap(), port: 0, ..ServerOptions::default() };
    options.gateway.allow_streaming = false;
    if fast {
        options.gateway.retry.base_delay /= EXHAUST_SPEEDUP;
        options.gateway.retry.max_delay /= EXHAUST_SPEEDUP;
    }
    for argument in setup.get("server_args").and_then(Value::as_list).into_iter().flatten() {
        let (key, value) = text(Some(argument)).split_once('=').unwrap();
        let gateway = &mut options.gateway;
        match key {
            "key" if matches!(value, "null" | "false") => options.key.clear(),
            "key" => value.clone_into(&mut options.key),
            "default_proxy.model_name" => value.clone_into(&mut gateway.model_name),
            "default_proxy.include_log_probs" => gateway.include_log_probs = value.parse().unwrap(),
            "default_proxy.include_routed_experts" => gateway.include_routed_experts = value.parse().unwrap(),
            "default_proxy.train.temperature" => gateway.train_temperature = value.parse().unwrap(),
            "default_proxy.val.temperature" => gateway.val_temperature = value.parse().unwrap(),
            other => panic!("unknown server argument {other}"),
        }
    }
    options
}

/// How strictly a step is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    Text,
    Json,
    Skip,
}

fn strictness(name: &str) -> Strictness {
    let lines = include_str!("deviations.txt").lines().filter(|line| !line.starts_with('#'));
    let rule = lines.filter_map(|line| line.split_once('|')).find(|(_, rest)| {
        let part = rest.split('|').next().unwrap().trim();
        name.contains(part)
    });
    match rule.map(|(kind, _)| kind.trim()) {
        None => Strictness::Text,
        Some("json") => Strictness::Json,
        Some("skip") => Strictness::Skip,
        Some(other) => panic!("unknown kind {other}"),
    }
}

struct Replay {
    address: std::net::SocketAddr,
    /// What `{{name}}` stands for.
    values: HashMap<String, String>,
    background: HashMap<String, JoinHandle<Answer>>,
    fake: Fake,
    fast: bool,
}

impl Replay {
    /// Runs a step; the differences.
    async fn step(&mut self, step: &Step) -> Vec<String> {
        let strictness = strictness(step.text("name"));
        let differences = match step.text("kind") {
            "sleep" => {
                let wait = Duration::from_millis(step.number("ms"));
                tokio::time::sleep(if self.fast { wait.min(EXHAUST_WAIT) } else { wait }).await;
                Vec::new()
            }
            "http" => self.http(step, strictness).await,
            "join" => {
                let answer = self.background.remove(step.text("join")).unwrap().await.unwrap();
                self.compare(step, &answer, strictness)
            }
            "client_disconnect" => {
                let stream = send(self.address, &self.ask(step)).await;
                tokio::time::sleep(Duration::from_millis(step.number("close_after_ms"))).await;
                drop(stream);
                Vec::new()
            }
            "backend_state" => {
                let expected = (step.number("total_requests"), step.number("aborted_while_delayed"));
                let got = self.fake.look(|memory| (memory.log.len() as u64, memory.aborted));
                differ("model server saw (requests, aborted)", &got, &expected).into_iter().collect()
            }
            other => panic!("unknown kind of step {other}"),
        };
        if strictness == Strictness::Skip { Vec::new() } else { differences }
    }

    async fn http(&mut self, step: &Step, strictness: Strictness) -> Vec<String> {
        let ask = self.ask(step);
        if let Some(name) = step.get("background") {
            let address = self.address;
            let sent = tokio::spawn(async move { exchange(address, &ask).await });
            self.background.insert(text(Some(name)).to_owned(), sent);
            return Vec::new();
        }
        let before = self.fake.look(|memory| memory.log.len());
        let answer = exchange(self.address, &ask).await;
        if let Some(Value::Dict(captures)) = step.get("capture") {
            let body = pyjson::parse(&answer.body).unwrap();
            for (name, path) in captures {
                let value = path.as_list().unwrap().iter().try_fold(&body, |value, key| match key {
                    Value::Int(index) => value.as_list()?.get(usize::try_from(index.as_i64()?).ok()?),
                    key => value.get(key.as_str()?),
                });
                self.values.insert(name.clone(), text(value).to_owned());
            }
        }
        let mut differences = self.compare(step, &answer, strictness);
        if let Some(expected) = step.get("backend").and_then(Value::as_list) {
            let got = self.fake.look(|memory| memory.log[before..].to_vec());
            differences.extend(self.compare_backend(&got, expected));
        }
        differences
    }

    fn ask(&self, step: &Step) -> Ask {
        let request = step.get("request").unwrap();
        let path = self.fill(text(request.get("path")));
        let query = request.get("query").map(|query| format!("?{}", self.fill(text(Some(query)))));
        let headers = match request.get("headers") {
            Some(Value::Dict(headers)) => {
                headers.iter().map(|(name, value)| (name.clone(), text(Some(value)).to_owned()))
            }
            other => panic!("headers are {other:?}"),
        };
        let body = request.get("body").map(|body| {
            let mut text = String::new();
            body.write(&mut text, Spelling::Python);
            self.fill(&text).into_bytes()
        });
        let raw = || Some(self.fill(request.get("body_raw")?.as_str()?).into_bytes());
        let packed =
            || Some(base64::engine::general_purpose::STANDARD.decode(request.get("body_b64")?.as_str()?).unwrap());
        Ask {
            method: text(request.get("method")).to_owned(),
            target: path + &query.unwrap_or_default(),
            headers: headers.collect(),
            body: body.or_else(raw).or_else(packed),
        }
    }

    fn compare(&self, step: &Step, answer: &Answer, strictness: Strictness) -> Vec<String> {
        let expected = step.get("response").unwrap();
        let status = number(expected.get("status")).unwrap();
        if status == 500 && text(expected.get("text")) == "Internal Server Error" {
            // The original crashed. Any answer but another crash is better.
            let crashed = answer.status == 500 && answer.body == b"Internal Server Error";
            return if crashed { vec!["a crash, as the original's".to_owned()] } else { Vec::new() };
        }
        let mut differences: Vec<String> = differ("status", &u64::from(answer.status), &status).into_iter().collect();
        let empty = Value::Null;
        let headers = expected.get("headers").unwrap_or(&empty);
        for name in ["content-type", "retry-after", "x-agl-paused", "location", "allow"] {
            let got = sorted(&self.normal(answer.header(name)));
            differences.extend(differ(&format!("header {name}"), &got, &sorted(text(headers.get(name)))));
        }
        if text(headers.get("content-type")).contains("html") {
            return differences;
        }
        let got = self.normal(&String::from_utf8_lossy(&answer.body));
        if strictness == Strictness::Json {
            let got = pyjson::parse(got.as_bytes()).ok();
            differences.extend(differ("JSON", &got.as_ref(), &expected.get("body")));
        } else if let Some(exact) = expected.get("text") {
            differences.extend(differ("text", &got.as_str(), &text(Some(exact))));
        } else if let Some(sha256) = expected.get("text_sha256") {
            let digest = Sha256::digest(got.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").unwrap();
                hex
            });
            differences.extend(differ("SHA-256 of a long text", &digest.as_str(), &text(Some(sha256))));
        }
        differences
    }

    fn compare_backend(&self, got: &[Logged], expected: &[Value]) -> Vec<String> {
        let mut differences: Vec<String> =
            differ("requests to the model server", &got.len(), &expected.len()).into_iter().collect();
        for (got, expected) in got.iter().zip(expected) {
            differences.extend(differ("path at the model server", &got.path.as_str(), &text(expected.get("path"))));
            if let Some(body) = expected.get("body") {
                let got = pyjson::parse(self.normal(&got.body).as_bytes()).ok();
                differences.extend(differ("body at the model server", &got.as_ref(), &Some(body)));
            }
            for name in ["authorization", "x-api-key"] {
                let sent = expected.get("headers").and_then(|headers| headers.get(name)).is_some();
                differences.extend(differ(name, &got.headers.contains_key(name), &sent));
            }
        }
        differences
    }

    /// Puts values in place of `{{names}}`.
    fn fill(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
    }

    /// Puts names in place of what differs from run to run.
    fn normal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.values {
            text = text.replace(value, &format!("{{{{{name}}}}}"));
        }
        for key in ["created_at", "updated_at", "timestamp", "latency_ms"] {
            text = without_number(&text, &format!("\"{key}\":"));
        }
        without_uuids(&text)
    }
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> Option<String> {
    let cut = |value: &T| format!("{value:?}").chars().take(1500).collect::<String>();
    (got != expected).then(|| format!("{what}:\n      got      {}\n      expected {}", cut(got), cut(expected)))
}

/// The order of the methods in `Allow` means nothing.
fn sorted(list: &str) -> Vec<String> {
    let mut items: Vec<String> = list.split(',').map(|item| item.trim().to_owned()).collect();
    items.sort();
    items
}

/// The number after each `key` as `"<float>"`.
fn without_number(text: &str, key: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(key) {
        let (before, after) = rest.split_at(start + key.len());
        out.push_str(before);
        let number = after.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.eE".contains(c));
        out.push_str(if number.len() < after.len() { "\"<float>\"" } else { "" });
        rest = number;
    }
    out + rest
}

/// Words of 32 hexadecimal digits as `<uuid-hex>`.
fn without_uuids(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_') {
        let bare = word.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_');
        let is_uuid = bare.len() == 32 && bare.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        out.push_str(if is_uuid { "<uuid-hex>" } else { bare });
        out.push_str(&word[bare.len()..]);
    }
    out
}
