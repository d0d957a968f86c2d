//! The report of whole run folders: a good one, hostile ones, damaged ones, empty and huge ones.
#![expect(clippy::unwrap_used, reason = "helpers of tests, which may fail")]

use std::fs;
use std::path::Path;

use agl::report::{self, ReportError, ReportFiles};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A run folder that may be written to.
fn run_folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn sample() -> TempDir {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample-run");
    let read = |name: &str| fs::read_to_string(sample.join(name)).unwrap();
    let names = ["metrics.jsonl", "trajectories.jsonl", "config.yaml"];
    run_folder(&names.map(|name| (name, read(name))).each_ref().map(|(name, text)| (*name, text.as_str())))
}

fn html(files: &ReportFiles) -> String {
    fs::read_to_string(&files.html).unwrap()
}

/// What a reader sees of a page: its text without styles.
fn visible_text(html: &str) -> String {
    let body = &html[html.find("<body>").unwrap()..];
    let mut text = String::new();
    let mut in_tag = false;
    for character in body.chars() {
        match character {
            '<' => in_tag = true,
            '>' => {
                in_tag = false;
                text.push(' ');
            }
            _ if !in_tag => text.push(character),
            _ => {}
        }
    }
    let text = text.replace("&#x2f;", "/").replace("&quot;", "\"");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_sample_run_is_told_from_beginning_to_end() {
    let dir = sample();
    let files = report::write(dir.path()).unwrap();
    assert!(files.warnings.is_empty());
    let text = visible_text(&html(&files));
    for part in [
        "In 40 training steps the mean reward on the validation tasks went from 0.312 to 0.945.",
        "validation success 31.2% → 94.5%",
        "rollouts 5,504",
        "1. What is 67 + 81? 0.000 → 1.000",
        "4. What is 54 - 17? failed → 1.000",
        "assistant · final answer 58 + 4 tokens",
        "calls calculator {\"expression\": \"67+81\"}",
        "cut off by the token limit",
        "failed: agent exited with code 1: ValueError",
        "actor/grad_norm length of the gradient before clipping",
        "adv_estimator: grpo",
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    let svg = fs::read_to_string(&files.curve).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(document.root_element().attribute("role"), Some("img"));
    assert_eq!(document.descendants().filter(|node| node.has_tag_name("circle")).count(), 40 + 1, "steps and legend");
}

#[test]
fn the_page_needs_nothing_from_elsewhere_and_runs_nothing() {
    let page = html(&report::write(sample().path()).unwrap());
    for forbidden in ["<script", "<link", "<iframe", "<img", " src=", "@import", "url(", "javascript:"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\""));
    assert!(page.contains("prefers-color-scheme: dark"));
    assert!(page.contains("width=device-width"));
}

/// Every place where text of an agent, a model or a task can stand holds an attack.
#[test]
fn hostile_text_is_shown_and_never_obeyed() {
    let evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)></pre></style>{{ 7*7 }}\u{0}\u{202e}";
    let call = json!({"event_type": "model_request", "data": {
        "request": {"messages": [{"role": evil, "content": evil}], "tools": [{"function": {"name": evil}}]},
        "response": {"choices": [{"finish_reason": evil, "message": {
            "role": evil, "content": evil, "reasoning_content": evil,
            "tool_calls": [{"function": {"name": evil, "arguments": evil}}]}}]},
    }});
    let failed = json!({"event_type": "model_request", "data": {"request": {}, "response": evil, "status": evil}});
    let trajectory = json!({"phase": "validation", "step": 0, "rollout_id": evil, "input": {evil: evil}, "state": "failed",
        "error_message": evil, "events": [call, failed, {"event_type": evil, "data": {evil: evil}}]});
    let record = json!({"phase": "train", "step": 1, "metrics": {evil: evil, "training/reward": 0.5}});
    let dir = run_folder(&[
        ("metrics.jsonl", &record.to_string()),
        ("trajectories.jsonl", &trajectory.to_string()),
        ("config.yaml", evil),
    ]);
    let page = html(&report::write(dir.path()).unwrap());
    for forbidden in ["<script", "<img", "49", "\u{202e}", "\0"] {
        assert!(!page.contains(forbidden), "{forbidden:?}");
    }
    assert_eq!(page.matches("</style>").count(), 1);
    // Title, field name and value, role and text of two messages, reasoning, tool offered, name and arguments of the
    // call, failed call's status and answer, event type, its data's key and value, failure, rollout, metric, its first
    // and last value, config.
    assert!(page.matches("&lt;script&gt;alert(1)").count() >= 20, "{page}");
}

#[test]
fn an_empty_run_has_a_report_that_says_so() {
    let dir = run_folder(&[("metrics.jsonl", "")]);
    let files = report::write(dir.path()).unwrap();
    let text = visible_text(&html(&files));
    assert!(text.contains("0 training steps recorded, no validation yet."), "{text}");
    assert!(text.contains("No reward has been recorded yet."), "{text}");
    assert!(!text.contains("Trajectories") && !text.contains("Metrics") && !text.contains("Configuration"));
}

#[test]
fn a_run_stopped_before_its_second_validation_shows_what_there_is() {
    let line = json!({"phase": "validation", "step": 0, "metrics": {"val/reward": 0.25}}).to_string();
    let trajectory = json!({"phase": "validation", "step": 0, "input": "q", "reward": null, "state": "succeeded"});
    let dir = run_folder(&[("metrics.jsonl", &line), ("trajectories.jsonl", &trajectory.to_string())]);
    let text = visible_text(&html(&report::write(dir.path()).unwrap()));
    assert!(text.contains("0 training steps recorded; one validation so far, with a mean reward of 0.250."), "{text}");
    assert!(text.contains("Before training") && !text.contains("After"), "{text}");
    assert!(text.contains("no reward"), "{text}");
}

#[test]
fn a_crash_costs_the_last_line_only() {
    let dir = sample();
    let metrics = dir.path().join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, &whole[..whole.len() - 20]).unwrap();
    let files = report::write(dir.path()).unwrap();
    let warning = files.warnings[0].to_string();
    assert_eq!(warning, format!("{}:43: the last line is cut short (by a crash?) and was left out", metrics.display()));
    let text = visible_text(&html(&files));
    assert!(text.contains("went from 0.312 to 0.781"), "the validation in between is the last one left: {text}");
    assert!(text.contains("metrics.jsonl:43: the last line is cut short"));
    assert!(!text.contains(&dir.path().display().to_string()), "a page names no folder of this machine");
}

#[test]
fn errors_name_the_file_and_the_line() {
    let damaged = run_folder(&[("metrics.jsonl", ""), ("trajectories.jsonl", "{\"phase\":\"validation\"}\n")]);
    let message = report::write(damaged.path()).unwrap_err().to_string();
    assert!(message.contains("trajectories.jsonl:1: missing field `step`"), "{message}");

    let nothing = tempfile::tempdir().unwrap();
    let error = report::write(nothing.path()).unwrap_err();
    assert!(matches!(error, ReportError::NoRun(_)), "{error}");
}

#[test]
fn a_report_that_cannot_be_written_leaves_the_old_one_alone() {
    let dir = run_folder(&[("metrics.jsonl", "")]);
    // A folder in its place is what even root can't write over.
    fs::create_dir_all(dir.path().join("report.html/old")).unwrap();
    let message = report::write(dir.path()).unwrap_err().to_string();
    assert!(message.starts_with(&format!("cannot write {}: ", dir.path().join("report.html").display())), "{message}");
    assert!(dir.path().join("report.html/old").exists());
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["curve.svg", "metrics.jsonl", "report.html"], "no temporary file stays behind");
}

#[test]
fn a_report_is_as_readable_as_its_folder() {
    use std::os::unix::fs::PermissionsExt;
    let dir = run_folder(&[("metrics.jsonl", "")]);
    let files = report::write(dir.path()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&files.html), mode(&dir.path().join("metrics.jsonl")));
}

#[test]
fn ten_thousand_steps_and_long_trajectories_stay_small() {
    let record = |step: u64| {
        let reward = 0.2 + step as f64 / 20_000.0;
        json!({"phase": "train", "step": step, "metrics": {"training/reward": reward, "actor/grad_norm": 1.0}})
            .to_string()
    };
    let metrics = (1..=10_000).map(record).collect::<Vec<_>>().join("\n");
    let call: Value = json!({"event_type": "model_request", "data": {
        "request": {"messages": [{"role": "user", "content": "x".repeat(100_000)}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "y".repeat(100_000)}}]}}});
    let trajectory = json!({"phase": "validation", "step": 0, "input": "q", "events": vec![call; 20]}).to_string();
    let dir = run_folder(&[("metrics.jsonl", &metrics), ("trajectories.jsonl", &trajectory)]);
    let files = report::write(dir.path()).unwrap();
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(size(&files.curve) < 50_000, "{}", size(&files.curve));
    assert!(size(&files.html) < 400_000, "{}", size(&files.html));
    assert!(visible_text(&html(&files)).contains("… and 96,000 more characters"));
}
