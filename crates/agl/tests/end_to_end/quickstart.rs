//! The quickstart end to end: the real program, real agent processes, real sockets.

use crate::program::Folder;
use serde_json::Value;

fn summary(stdout: &[u8]) -> Value {
    serde_json::from_slice(stdout).unwrap_or_else(|e| panic!("stdout is not one JSON object: {e}"))
}

#[test]
fn a_short_run_leaves_a_whole_run_folder() {
    let folder = Folder::new();
    let output = folder.run(&["quickstart", "--json", "--steps", "2", "--seed", "3"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");

    let summary = summary(&output.stdout);
    assert_eq!(summary["steps"], 2);
    let before = summary["success_before"].as_f64().unwrap();
    assert!((0.05..=0.45).contains(&before), "the pretrained policy mostly guesses: {before}");
    assert!(summary["rollouts"].as_u64().unwrap() >= 2 * 128, "two validations of at least 128 tasks");
    assert!(summary["tokens"].as_u64().unwrap() > 0);

    let run_dir = folder.path().join(summary["run_dir"].as_str().unwrap());
    for file in ["config.yaml", "metrics.jsonl", "trajectories.jsonl", "curve.svg", "report.html", "agl.log"] {
        assert!(run_dir.join(file).is_file(), "{file} is missing");
    }
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        assert!(run_dir.join("checkpoints/step-000002").join(file).is_file(), "checkpoint lacks {file}");
    }
    let records: Vec<Value> = std::fs::read_to_string(run_dir.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let phases: Vec<&str> = records.iter().map(|record| record["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["validation", "train", "train", "validation"]);
    for record in records.iter().filter(|record| record["phase"] == "train") {
        let metrics = &record["metrics"];
        assert_eq!(metrics["training/n_refused_calls"], 0, "every call has its ids and log-probabilities");
        assert_eq!(metrics["training/staleness_max"], 0);
        let difference = metrics["training/rollout_log_prob_diff_max"].as_f64().unwrap();
        assert!(difference < 1e-4, "sampling and training disagree by {difference}");
        // The tool loop's second prompt extends the first call, so that a conversation is one row.
        assert_eq!(metrics["training/n_unmerged_rollouts"], 0.0);
    }
    let config = std::fs::read_to_string(run_dir.join("config.yaml")).unwrap();
    assert!(!config.contains("key:"), "no key is written to disk");
    // Settings are what was written, not the nearest single-precision number.
    assert!(config.contains("val_temperature: 0.7\n") && config.contains("learning_rate: 0.0007\n"), "{config}");
    let trajectories = std::fs::read_to_string(run_dir.join("trajectories.jsonl")).unwrap();
    assert!(trajectories.contains("\"temperature\":0.7,"), "every validation call is sampled at exactly 0.7");
    folder.assert_no_agent_is_left();
}

#[test]
fn the_checkpoint_serves_and_trains_on() {
    let folder = Folder::new();
    let output = folder.run(&["quickstart", "--json", "--steps", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run_dir = summary(&output.stdout)["run_dir"].as_str().unwrap().to_owned();
    let output = folder.run(&["train", "--json", "--resume", &run_dir, "trainer.steps=2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let resumed = summary(&output.stdout);
    assert_eq!(resumed["steps"], 2);
    let metrics = std::fs::read_to_string(folder.path().join(&run_dir).join("metrics.jsonl")).unwrap();
    let steps: Vec<u64> = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|record| record["phase"] == "train")
        .map(|record| record["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2], "the second session goes on where the first stopped");
}
