//! AdamW and clipping against PyTorch's traces.

use agl_engine::optimizer::{AdamW, AdamWConfig, clip_factor, grad_norm};
use serde::Deserialize;

use crate::support::{assert_close, helper_vectors};

#[derive(Deserialize)]
struct Trace {
    lr: f32,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    clip: f32,
    init: Vec<Vec<f32>>,
    steps: Vec<TraceStep>,
}

#[derive(Deserialize)]
struct TraceStep {
    grad: Vec<Vec<f32>>,
    grad_norm: f32,
    param: Vec<Vec<f32>>,
}

#[test]
fn steps_match_the_recorded_traces() {
    let traces: Vec<Trace> = helper_vectors("adamw");
    assert!(!traces.is_empty());
    for (index, trace) in traces.into_iter().enumerate() {
        let config = AdamWConfig {
            beta1: trace.betas[0],
            beta2: trace.betas[1],
            eps: trace.eps,
            weight_decay: trace.weight_decay,
        };
        let mut parameters = trace.init.concat();
        let mut optimizer = AdamW::new(config, parameters.len());
        for (step, expected) in trace.steps.iter().enumerate() {
            let gradients = expected.grad.concat();
            let norm = grad_norm(&gradients);
            assert_close(&[norm], &[expected.grad_norm], 1e-5, &format!("trace {index}, step {step}: norm"));
            optimizer.step(&mut parameters, &gradients, clip_factor(norm, trace.clip), trace.lr);
            let what = format!("trace {index}, step {step}: parameters");
            assert_close(&parameters, &expected.param.concat(), 2e-7, &what);
        }
    }
}
