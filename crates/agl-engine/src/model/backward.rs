//! The backward pass: from the gradient of the last residual stream to that of every parameter.

use std::ops::Range;

use super::forward::{LayerTape, Pass};
use super::weights::{LayerRanges, Model};
use crate::kernels::rope::Rotation;
use crate::kernels::rows::add_assign;
use crate::kernels::{attention, matmul, rms_norm, swiglu};

/// Sums of gradients, laid out as the weights are.
pub(crate) struct Gradients<'a> {
    pub(crate) model: &'a Model,
    pub(crate) sums: &'a mut [f32],
}

impl Gradients<'_> {
    /// Adds the gradients of the output head and the final norm, and returns that of the last residual stream.
    ///
    /// `normed` are the rows that [`Model::final_norm`] took from `hidden` for `wanted`, `d_logits` their gradients.
    pub(crate) fn head(
        &mut self,
        hidden: &[f32],
        wanted: &[Range<usize>],
        normed: &[f32],
        d_logits: &[f32],
    ) -> Vec<f32> {
        let layout = self.model.weights.layout().clone();
        let width = self.model.config.hidden_size;
        let d_normed = self.linear(&layout.head, d_logits, normed, width);
        let mut d_hidden = vec![0.0; hidden.len()];
        let mut done = 0;
        for rows in wanted {
            let (place, len) = (rows.start * width..rows.end * width, rows.len() * width);
            let d_rows = &mut d_hidden[place.clone()];
            self.norm(&layout.norm, &d_normed[done..done + len], &hidden[place], d_rows);
            done += len;
        }
        d_hidden
    }

    /// Goes down the layers, last to first, and into the embedding of the sequences' tokens.
    pub(crate) fn layers(&mut self, pass: Pass, sequences: &[&[u32]], mut d_hidden: Vec<f32>) {
        let layout = self.model.weights.layout().clone();
        let rows: Vec<usize> = sequences.iter().map(|tokens| tokens.len()).collect();
        for (layer, tape) in layout.layers.iter().zip(pass.layers).rev() {
            self.feed_forward(layer, &tape, &mut d_hidden);
            self.attention(layer, &tape, &rows, &pass.rotation, &mut d_hidden);
        }
        let width = self.model.config.hidden_size;
        let embedding = &mut self.sums[layout.embedding.clone()];
        for (token, d_row) in sequences.iter().copied().flatten().zip(d_hidden.chunks_exact(width)) {
            add_assign(&mut embedding[*token as usize * width..][..width], d_row);
        }
    }

    /// `d_hidden` comes in as the gradient after the feed-forward layer and leaves as the one before it.
    fn feed_forward(&mut self, layer: &LayerRanges, tape: &LayerTape, d_hidden: &mut [f32]) {
        let inner = self.model.config.intermediate_size;
        let mut activated = vec![0.0; tape.gate_up.len() / 2];
        swiglu::forward(&tape.gate_up, inner, &mut activated);
        let d_activated = self.linear(&layer.down, d_hidden, &activated, inner);
        let mut d_gate_up = vec![0.0; tape.gate_up.len()];
        swiglu::backward(&d_activated, &tape.gate_up, inner, &mut d_gate_up);
        self.normed_linear(&layer.post_norm, &layer.gate_up, &d_gate_up, &tape.middle, d_hidden);
    }

    /// `d_hidden` comes in as the gradient after attention and leaves as the one before it.
    fn attention(
        &mut self,
        layer: &LayerRanges,
        tape: &LayerTape,
        rows: &[usize],
        rotation: &Rotation,
        d_hidden: &mut [f32],
    ) {
        let heads = self.model.heads();
        let d_attended = self.linear(&layer.attention_out, d_hidden, &tape.attended, heads.query_width());
        let mut d_qkv = vec![0.0; tape.qkv.len()];
        attention::backward(heads, rows, &tape.qkv, &tape.attended, &tape.log_sums, &d_attended, &mut d_qkv);
        rotation.apply_inverse(&mut d_qkv, heads.qkv_width(), heads.query_width() + heads.kv_width());
        if let Some(bias) = &layer.qkv_bias {
            let sums = &mut self.sums[bias.clone()];
            d_qkv.chunks_exact(heads.qkv_width()).for_each(|row| add_assign(sums, row));
        }
        self.normed_linear(&layer.input_norm, &layer.qkv, &d_qkv, &tape.input, d_hidden);
    }

    /// Back through a projection of the normalised `x`; adds to `d_x`.
    fn normed_linear(&mut self, norm: &Range<usize>, weight: &Range<usize>, d_out: &[f32], x: &[f32], d_x: &mut [f32]) {
        let normed = self.model.norm(norm, x);
        let d_normed = self.linear(weight, d_out, &normed, self.model.config.hidden_size);
        self.norm(norm, &d_normed, x, d_x);
    }

    /// Adds the gradient of a projection's weight and returns that of its input.
    fn linear(&mut self, weight: &Range<usize>, d_out: &[f32], x: &[f32], inputs: usize) -> Vec<f32> {
        matmul::linear_weight_grad(d_out, x, inputs, &mut self.sums[weight.clone()]);
        let mut d_x = vec![0.0; x.len()];
        matmul::linear_input_grad(d_out, self.model.weights.part(weight), inputs, &mut d_x);
        d_x
    }

    fn norm(&mut self, weight: &Range<usize>, d_out: &[f32], x: &[f32], d_x: &mut [f32]) {
        let (values, eps) = (self.model.weights.part(weight), self.model.config.rms_norm_eps);
        rms_norm::backward(d_out, x, values, eps, d_x, &mut self.sums[weight.clone()]);
    }
}
