//! The state machine of rollouts, events and model servers, and the feed that wakes whoever waits on it.
