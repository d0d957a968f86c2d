//! `agl rollouts`: look at the rollouts of a running gateway.

use agl_client::{Client, ClientOptions};
use agl_protocol::{Event, EventKind, Rollout, RolloutState};
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use serde_json::Value;

use super::Ended;

/// Look at the rollouts of a running gateway.
#[derive(Parser)]
pub struct Args {
    /// The gateway's URL.
    #[arg(long, env = "AGL_SERVER_URL", default_value = "http://127.0.0.1:8080", global = true)]
    server: String,
    /// Its API key; better in the environment than here, where `ps` shows it.
    #[arg(long, env = "AGL_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
    /// JSON on stdout, as the gateway answered it.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List rollouts: `agl rollouts list --state running`.
    List {
        /// Only these states; all when absent. May be given several times.
        #[arg(long, value_parser = parse_state)]
        state: Vec<RolloutState>,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// One rollout with its events: what the agent asked, what the policy answered, what reward it got.
    Show {
        /// The rollout's id.
        id: String,
    },
    /// Stop a rollout: its agent is killed, it counts as failed.
    Cancel {
        /// The rollout's id.
        id: String,
    },
    /// Forget a rollout and its events.
    Delete {
        /// The rollout's id.
        id: String,
    },
}

fn parse_state(text: &str) -> Result<RolloutState, String> {
    RolloutState::ALL
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| format!("`{text}` is none of {}", RolloutState::ALL.map(RolloutState::as_str).join(", ")))
}

/// Runs the command.
pub fn run(args: Args) -> Result<Ended> {
    let client = Client::new(&args.server, args.key.as_deref(), ClientOptions::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(execute(&client, args.command, args.json))?;
    Ok(Ended::Done)
}

async fn execute(client: &Client, command: Command, json: bool) -> Result<()> {
    match command {
        Command::List { state, limit } => {
            let states = if state.is_empty() { RolloutState::ALL.to_vec() } else { state };
            let rollouts = client.list_rollouts(&states, limit).await?.rollouts;
            if json {
                println!("{}", serde_json::to_string(&rollouts)?);
            } else {
                for rollout in &rollouts {
                    println!("{}", line(rollout));
                }
            }
        }
        Command::Show { id } => {
            let rollout = client.rollout(&id).await?.rollout;
            let events = client.events(&id).await?;
            if json {
                println!("{}", serde_json::json!({"rollout": rollout, "events": events}));
            } else {
                println!("{}\ninput  {}", line(&rollout), rollout.input.text());
                for event in &events {
                    println!("{}", describe(event));
                }
            }
        }
        Command::Cancel { id } => {
            let status = agl_protocol::StatusPatch::state(RolloutState::Failed).because("cancelled by the user");
            client.patch_rollout(&id, status).await?;
        }
        Command::Delete { id } => client.delete_rollout(&id).await?,
    }
    Ok(())
}

fn line(rollout: &Rollout) -> String {
    let mode = if rollout.is_train { "train" } else { "val" };
    let why = rollout.status.error_message.as_deref().unwrap_or_default();
    let why = why.lines().next().unwrap_or_default();
    format!("{}  {:<9}  {mode:<5}  {why}", rollout.rollout_id, rollout.status.state.as_str()).trim_end().to_owned()
}

/// One event in a line or a few: the last message that went in, and what came out.
fn describe(event: &Event) -> String {
    let data: Value = event.data.parse().unwrap_or_default();
    match EventKind::of(&event.event_type) {
        EventKind::ModelRequest => {
            let asked = data["request"]["messages"].as_array().and_then(|messages| messages.last());
            let asked = asked.map_or_else(|| data["request"]["prompt"].to_string(), ToString::to_string);
            let choice = &data["response"]["choices"][0];
            let answered = if choice["message"].is_null() { &choice["text"] } else { &choice["message"] };
            format!("call   {} {asked}\n       → {answered} ({})", data["status"], choice["finish_reason"])
        }
        EventKind::Reward => format!("reward {}", data["value"]),
        EventKind::Other => format!("{}  {data}", event.event_type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agl_protocol::RawJson;

    #[test]
    fn events_are_told_in_a_line_or_two() {
        let event = |event_type: &str, data: &str| Event {
            event_type: event_type.into(),
            rollout_id: "r".into(),
            attempt_id: "0".into(),
            timestamp: 0.0,
            data: RawJson::from_text(data.into()).unwrap(),
        };
        assert_eq!(describe(&event("reward", r#"{"value":0.5}"#)), "reward 0.5");
        let call = describe(&event(
            "model_request",
            r#"{"status":"ok","request":{"messages":[{"role":"user","content":"hi"}]},"response":{"choices":[{"message":{"content":"ho"},"finish_reason":"stop"}]}}"#,
        ));
        assert_eq!(
            call,
            "call   \"ok\" {\"role\":\"user\",\"content\":\"hi\"}\n       → {\"content\":\"ho\"} (\"stop\")"
        );
        assert_eq!(parse_state("lost").unwrap_err(), "`lost` is none of queuing, running, succeeded, failed");
    }
}
