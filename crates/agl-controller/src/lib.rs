//! Turns queued rollouts into running agents and reports how they end.
