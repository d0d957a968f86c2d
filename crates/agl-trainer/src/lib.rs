//! Trajectories to rows, advantages, losses and metrics; the rollout manager and the training loop.
