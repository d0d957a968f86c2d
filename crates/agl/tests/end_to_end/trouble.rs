//! What goes wrong, and what the user sees: one clear message, nothing left behind, what was finished kept.

use std::net::TcpListener;

use crate::program::Folder;
use rustix::process::Signal;

/// A run that is over as soon as anything goes wrong.
const TRAIN: [&str; 4] = ["train", "--config", "examples/calculator/run.yaml", "trainer.validation_samples=8"];

fn train(folder: &Folder, more: &[&'static str]) -> String {
    folder.fails(&[&TRAIN, more].concat())
}

#[test]
fn a_port_that_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let stderr = Folder::new().fails(&["quickstart", "--port", &port]);
    assert!(stderr.contains(&port) && stderr.contains("in use"), "{stderr}");
}

#[test]
fn python_that_is_missing() {
    let folder = Folder::new();
    let output = folder.command(&["quickstart"]).env("PATH", folder.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("python3") && stderr.contains("install Python 3.8"), "{stderr}");
}

#[test]
fn a_broken_line_of_data() {
    let folder = Folder::new();
    std::fs::write(
        folder.example("train.jsonl"),
        "{\"question\": \"1 + 1\", \"answer\": \"2\"}\n{\"question\": \"x\"\n",
    )
    .unwrap();
    let stderr = train(&folder, &[]);
    assert!(stderr.contains("train.jsonl:2: column"), "{stderr}");
    std::fs::write(folder.example("train.jsonl"), "{\"question\": \"1 + 1\"}\n").unwrap();
    let stderr = train(&folder, &[]);
    assert!(stderr.contains("train.jsonl:1: field `answer` is missing"), "{stderr}");
}

#[test]
fn a_setting_that_does_not_exist() {
    let stderr = train(&Folder::new(), &["trainer.stepz=3"]);
    assert!(stderr.contains("stepz") && stderr.contains("steps"), "{stderr}");
}

#[test]
fn settings_under_which_nothing_could_ever_run() {
    let folder = Folder::new();
    for (setting, words) in [
        ("agent.pool_size=0", "agent.pool_size=0: must be at least 1"),
        ("agent.timeout_seconds=0", "agent.timeout_seconds=0"),
        ("engine.max_num_seqs=0", "engine.max_num_seqs=0"),
        ("trainer.validation_samples=0", "trainer.validation_samples=0"),
        ("trainer.steps=-1", "trainer.steps=-1"),
        ("trainer.actor.learning_rate=.nan", "learning_rate"),
        ("gateway.host=no.such.host.invalid", "gateway.host=no.such.host.invalid"),
        ("agent.command=[no-such-program-7]", "no such file on PATH"),
        ("model.path=nowhere", "nowhere"),
        ("data.val=nothing.jsonl", "nothing.jsonl"),
    ] {
        let stderr = train(&folder, &[setting]);
        assert!(stderr.contains(words), "{setting}: {stderr}");
    }
}

#[test]
fn a_model_folder_that_is_incomplete() {
    let folder = Folder::new();
    std::fs::remove_file(folder.example("model/tokenizer.json")).unwrap();
    let stderr = train(&folder, &[]);
    assert!(stderr.contains("tokenizer.json"), "{stderr}");
}

#[test]
fn agents_that_all_exit_with_an_error() {
    let folder = Folder::new();
    folder.write_agent("import sys\nsys.exit('my agent cannot find its config')\n");
    let stderr = train(&folder, &[]);
    assert!(stderr.contains("none of 8 rollouts is usable"), "{stderr}");
    assert!(stderr.contains("exited with code 1"), "{stderr}");
    assert!(stderr.contains("my agent cannot find its config"), "the agent's own last words help most: {stderr}");
    folder.assert_no_agent_is_left();
}

#[test]
fn agents_that_hang() {
    let folder = Folder::new();
    folder.write_agent("import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)\n");
    let stderr = train(&folder, &["agent.timeout_seconds=1"]);
    assert!(stderr.contains("timed out"), "{stderr}");
    folder.assert_no_agent_is_left();
}

/// An agent that makes one call, then posts `event` (or nothing).
fn agent_that_posts(event: &str) -> String {
    format!(
        r#"import json, os, urllib.request
headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["AGL_KEY"]}}
def post(url, text):
    urllib.request.urlopen(urllib.request.Request(url, text.encode(), headers)).read()
post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions",
     json.dumps({{"messages": [{{"role": "user", "content": os.environ["QUESTION"]}}], "max_tokens": 4}}))
event = {event:?}
if event:
    post(os.environ["AGL_EVENT_URL"], event)
"#
    )
}

#[test]
fn rewards_that_are_missing_or_nan_are_filled_and_counted_or_refused() {
    for event in ["", r#"{"event_type": "reward", "data": {"value": NaN}}"#] {
        let folder = Folder::new();
        folder.write_agent(&agent_that_posts(event));
        let small = ["trainer.steps=1", "trainer.samples_per_step=2", "trainer.rollouts_per_sample=2"];
        let output = folder.run(&[&TRAIN[..], &small].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metrics = std::fs::read_to_string(folder.path().join("runs/calculator/metrics.jsonl")).unwrap();
        assert!(metrics.contains(r#""val/n_rollouts_w_reward":0"#), "{event:?}: {metrics}");

        let stderr = train(&folder, &["trainer.on_missing_reward=error"]);
        assert!(stderr.contains("ended without a reward"), "{stderr}");
    }
}

#[test]
fn ctrl_c_keeps_what_is_finished_and_a_resumed_run_goes_on() {
    let folder = Folder::new();
    let mut running = folder.start(&["quickstart", "--steps", "4"]);
    // The header comes with the first step's line, so that one step is complete by then.
    running.wait_for("1/4");
    running.signal(Signal::INT);
    let (status, stderr) = running.end();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("train --resume runs/quickstart"), "the way to go on is told: {stderr}");
    folder.assert_no_agent_is_left();

    let output = folder.run(&["train", "--resume", "runs/quickstart", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["steps"], 4);
}

#[test]
fn ctrl_c_during_the_first_validation_leaves_nothing_behind() {
    let folder = Folder::new();
    let mut running = folder.start(&["quickstart"]);
    running.wait_for("agl quickstart");
    let started = std::time::Instant::now();
    while folder.agents().is_empty() {
        assert!(started.elapsed() < std::time::Duration::from_mins(1), "no agent was started");
        std::thread::yield_now();
    }
    running.signal(Signal::TERM);
    let (status, stderr) = running.end();
    assert_eq!(status.code(), Some(130), "{stderr}");
    folder.assert_no_agent_is_left();
}

#[test]
fn a_crash_of_the_program_ends_its_agents_too() {
    let folder = Folder::new();
    folder.write_agent("import time\ntime.sleep(1000)\n");
    let running = folder.start(&TRAIN);
    let started = std::time::Instant::now();
    while folder.agents().is_empty() {
        assert!(started.elapsed() < std::time::Duration::from_mins(1), "no agent was started");
        std::thread::yield_now();
    }
    running.signal(Signal::KILL);
    running.end();
    folder.assert_no_agent_is_left();
}

#[test]
fn a_full_disk_in_the_run_folder() {
    // /dev/full answers every write with "no space left on device".
    let folder = Folder::new();
    let run_dir = folder.path().join("runs/full");
    std::fs::create_dir_all(&run_dir).unwrap();
    std::os::unix::fs::symlink("/dev/full", run_dir.join("trajectories.jsonl")).unwrap();
    let stderr = train(&folder, &["--name", "full"]);
    assert!(stderr.contains("free some space"), "{stderr}");
    folder.assert_no_agent_is_left();
}
