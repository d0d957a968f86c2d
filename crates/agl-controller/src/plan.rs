//! What has to happen next, decided over plain data: no clock, no process, no socket.

use std::collections::HashSet;
use std::time::Instant;

use agl_protocol::{Rollout, RolloutState};

use crate::fleet::{Fleet, Phase, StopReason};

/// What the gateway wants: its queued and running rollouts, as of the last listing.
#[derive(Clone, Debug)]
pub struct Desired {
    /// Oldest first.
    pub rollouts: Vec<Rollout>,
    /// Whether the listing was cut off, so that newer rollouts may be missing.
    pub truncated: bool,
    /// When the listing was asked for.
    pub asked_at: Instant,
}

impl Desired {
    /// Whether a rollout that was created then would be listed, were it queued or running.
    fn covers(&self, created_at: f64) -> bool {
        !self.truncated || self.rollouts.last().is_some_and(|newest| created_at < newest.status.created_at)
    }
}

/// Whether agents are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Queued rollouts get agents.
    Serving,
    /// No agent is started, and those that run are stopped.
    Draining,
}

/// What we have: our agents, and what the clock says.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Our agents.
    pub fleet: &'a Fleet,
    /// Most agents at a time.
    pub pool_size: usize,
    /// Whether agents are started.
    pub mode: Mode,
    /// The time.
    pub now: Instant,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Claim this queued rollout and start its agent.
    Start(String),
    /// Ask this agent to end (SIGTERM to its process group).
    Stop(String, StopReason),
    /// Make this agent end (SIGKILL to its process group): its grace is over.
    Kill(String, StopReason),
    /// Tell the gateway how this agent ended.
    Report(String),
    /// Tell the gateway that this `running` rollout has no agent: the controller that ran it was killed.
    Disown(String),
}

/// Compares what the gateway wants with what we have.
pub fn plan(desired: &Desired, observed: &Observed<'_>) -> Vec<Action> {
    let listed: HashSet<&str> = desired.rollouts.iter().map(|rollout| rollout.rollout_id.as_str()).collect();
    let mut actions = Vec::new();
    for (rollout_id, agent) in observed.fleet.iter() {
        let gone = !listed.contains(rollout_id) && desired.covers(agent.created_at);
        actions.extend(tend(rollout_id, &agent.phase, gone, observed));
    }
    if observed.mode == Mode::Draining {
        return actions;
    }
    let mut free_slots = observed.pool_size.saturating_sub(observed.fleet.slots_held());
    for rollout in desired.rollouts.iter().filter(|rollout| !observed.fleet.contains(&rollout.rollout_id)) {
        match rollout.status.state {
            RolloutState::Queuing if free_slots > 0 => {
                free_slots -= 1;
                actions.push(Action::Start(rollout.rollout_id.clone()));
            }
            RolloutState::Running => actions.push(Action::Disown(rollout.rollout_id.clone())),
            RolloutState::Queuing | RolloutState::Succeeded | RolloutState::Failed => {}
        }
    }
    actions
}

/// What one agent of ours needs. `gone`: its rollout is neither queued nor running any more.
fn tend(rollout_id: &str, phase: &Phase, gone: bool, observed: &Observed<'_>) -> Option<Action> {
    let stop = |why| Some(Action::Stop(rollout_id.to_owned(), why));
    match phase {
        Phase::Running { .. } if gone => stop(StopReason::Cancelled),
        Phase::Running { deadline: Some(deadline) } if *deadline <= observed.now => stop(StopReason::TimedOut),
        Phase::Running { .. } if observed.mode == Mode::Draining => stop(StopReason::ControllerStopped),
        Phase::Stopping { why, kill_at } if *kill_at <= observed.now => Some(Action::Kill(rollout_id.to_owned(), *why)),
        Phase::Ended { .. } => Some(Action::Report(rollout_id.to_owned())),
        Phase::Starting
        | Phase::Running { .. }
        | Phase::Stopping { .. }
        | Phase::Killed { .. }
        | Phase::Reporting
        | Phase::Settled { .. } => None,
    }
}

/// When the clock alone changes the plan next.
pub(crate) fn next_deadline(fleet: &Fleet) -> Option<Instant> {
    fleet
        .iter()
        .filter_map(|(_, agent)| match agent.phase {
            Phase::Running { deadline } => deadline,
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            _ => None,
        })
        .min()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use agl_protocol::{RawJson, RolloutConfig, RolloutStatus};

    use super::*;
    use crate::{Agent, Outcome};

    pub(crate) fn rollout(rollout_id: &str, state: RolloutState, created_at: f64) -> Rollout {
        Rollout {
            rollout_id: rollout_id.into(),
            input: RawJson::null(),
            is_train: true,
            config: RolloutConfig::default(),
            metadata: RawJson::empty_object(),
            status: RolloutStatus {
                state,
                k8s_job_name: None,
                last_attempt_id: None,
                error_message: None,
                version: 0,
                created_at,
                updated_at: created_at,
            },
        }
    }

    /// One line a case: what is listed, what we run, and what has to happen.
    /// Listed: `q1 r2` (state and id; the id is the creation time), with a final `…` if cut off.
    /// Agents: `1:run 2:ended`. Pool of 2. Actions: `start 1`, `stop 1 TimedOut`.
    fn check(mode: Mode, listed: &str, agents: &str, expected: &[&str]) {
        let now = Instant::now();
        let (past, future) = (now, now + Duration::from_secs(1));
        let rollouts = listed
            .split_whitespace()
            .filter(|word| *word != "…")
            .map(|word| {
                let (state, id) = word.split_at(1);
                let state = if state == "q" { RolloutState::Queuing } else { RolloutState::Running };
                rollout(id, state, id.parse().unwrap())
            })
            .collect();
        let mut fleet = Fleet::default();
        for word in agents.split_whitespace() {
            let (id, phase) = word.split_once(':').unwrap();
            let why = StopReason::TimedOut;
            let phase = match phase {
                "starting" => Phase::Starting,
                "run" => Phase::Running { deadline: Some(future) },
                "endless" => Phase::Running { deadline: None },
                "late" => Phase::Running { deadline: Some(past) },
                "grace" => Phase::Stopping { why, kill_at: future },
                "stubborn" => Phase::Stopping { why, kill_at: past },
                "killed" => Phase::Killed { why },
                "ended" => Phase::Ended { outcome: Outcome::Exited(0), last_output: String::new() },
                "reporting" => Phase::Reporting,
                "settled" => Phase::Settled { at: past },
                other => panic!("phase {other}"),
            };
            fleet.insert(id, Agent { created_at: id.parse().unwrap(), phase });
        }
        let desired = Desired { rollouts, truncated: listed.ends_with('…'), asked_at: past };
        let actions = plan(&desired, &Observed { fleet: &fleet, pool_size: 2, mode, now });
        let actions: Vec<String> = actions
            .into_iter()
            .map(|action| match action {
                Action::Start(id) => format!("start {id}"),
                Action::Stop(id, why) => format!("stop {id} {why:?}"),
                Action::Kill(id, why) => format!("kill {id} {why:?}"),
                Action::Report(id) => format!("report {id}"),
                Action::Disown(id) => format!("disown {id}"),
            })
            .collect();
        assert_eq!(actions, expected, "listed `{listed}`, agents `{agents}`");
    }

    #[test]
    fn queued_rollouts_start_oldest_first_while_slots_are_free() {
        let check = |listed, agents, expected: &[&str]| check(Mode::Serving, listed, agents, expected);
        check("", "", &[]);
        check("q1 q2 q3", "", &["start 1", "start 2"]);
        check("q1 q2 q3", "1:starting", &["start 2"]);
        check("r1 q2 q3", "1:run", &["start 2"]);
        check("r1 r2 q3", "1:run 2:run", &[]);
        check("r1 r2 q3", "1:grace 2:killed", &[]);
        check("r1 r2 q3", "1:run 2:reporting", &["start 3"]);
        check("q1 q2", "1:settled 2:reporting", &[]);
    }

    #[test]
    fn an_agent_past_its_time_is_asked_to_end_then_made_to() {
        let check = |listed, agents, expected: &[&str]| check(Mode::Serving, listed, agents, expected);
        check("r1", "1:run", &[]);
        check("r1", "1:endless", &[]);
        check("r1", "1:late", &["stop 1 TimedOut"]);
        check("r1", "1:grace", &[]);
        check("r1", "1:stubborn", &["kill 1 TimedOut"]);
        check("r1", "1:killed", &[]);
    }

    #[test]
    fn an_agent_whose_rollout_is_gone_is_cancelled() {
        let check = |listed, agents, expected: &[&str]| check(Mode::Serving, listed, agents, expected);
        check("", "1:run", &["stop 1 Cancelled"]);
        check("r2", "1:run 2:run", &["stop 1 Cancelled"]);
        check("", "1:starting", &[]);
        check("", "1:grace", &[]);
        check("", "1:settled", &[]);
        // A cut-off listing says nothing of what is newer than its last line.
        check("r2 …", "1:run 2:run", &["stop 1 Cancelled"]);
        check("r1 …", "1:run 2:run", &[]);
        check("…", "1:run", &[]);
    }

    #[test]
    fn what_ended_is_reported_even_if_its_rollout_is_gone() {
        check(Mode::Serving, "r1", "1:ended", &["report 1"]);
        check(Mode::Serving, "", "1:ended", &["report 1"]);
        check(Mode::Serving, "r1", "1:reporting", &[]);
    }

    #[test]
    fn a_running_rollout_without_an_agent_of_ours_is_disowned() {
        check(Mode::Serving, "r1 q2", "", &["disown 1", "start 2"]);
        check(Mode::Serving, "r1", "1:settled", &[]);
    }

    #[test]
    fn draining_starts_nothing_and_stops_everything() {
        let check = |listed, agents, expected: &[&str]| check(Mode::Draining, listed, agents, expected);
        check("q1 r2", "", &[]);
        check("r1 r2", "1:run 2:endless", &["stop 1 ControllerStopped", "stop 2 ControllerStopped"]);
        check("r1", "1:starting", &[]);
        check("r1", "1:stubborn", &["kill 1 TimedOut"]);
        check("r1", "1:ended", &["report 1"]);
    }
}
