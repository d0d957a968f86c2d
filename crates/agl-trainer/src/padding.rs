//! Rows as the padded tensors of verl's `DataProto`: prompts padded on the left, responses on the right.
//!
//! Training here works on rows as they are; this view is for verl, and to compare with it.

use half::bf16;

use crate::rows::Row;
use crate::settings::AggregationLevel;

/// Shapes and filling of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Width P of the prompts.
    pub prompt_length: usize,
    /// Width R of the responses.
    pub response_length: usize,
    /// What fills the gaps.
    pub pad_token_id: u32,
}

/// Tensors of n rows, each row-major and contiguous.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PaddedBatch {
    /// n.
    pub rows: usize,
    /// P.
    pub prompt_length: usize,
    /// R.
    pub response_length: usize,
    /// (n, P).
    pub prompts: Vec<i64>,
    /// (n, R).
    pub responses: Vec<i64>,
    /// (n, P + R): prompts and responses side by side.
    pub input_ids: Vec<i64>,
    /// (n, P + R): 1 where there is a token.
    pub attention_mask: Vec<i64>,
    /// (n, P + R): how many tokens precede; before the first it is 0, after the last it stays.
    pub position_ids: Vec<i64>,
    /// (n): the row must not be trained on.
    pub is_drop_mask: Vec<bool>,
    /// (n, R): the reward on the last token, in bfloat16 as in verl.
    pub token_level_scores: Vec<bf16>,
    /// (n, R): 1 where the token was sampled. Trajectory mode only: verl makes its own from the attention mask otherwise.
    pub response_mask: Option<Vec<i64>>,
    /// (n, R): log-probabilities when sampled. Only if all rows have them.
    pub rollout_log_probs: Option<Vec<f32>>,
}

/// Why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaddingError {
    /// There is nothing to pad.
    #[error("get_train_data_batch emitted zero training rows.")]
    NoRows,
    /// A row is longer than the tensors are wide.
    #[error("row {row}: its {part} has {length} tokens, above the width {width}")]
    TooLong {
        /// Place of the row.
        row: usize,
        /// `prompt` or `response`.
        part: &'static str,
        /// Its tokens.
        length: usize,
        /// The width.
        width: usize,
    },
}

/// Pads rows into tensors.
///
/// Source: the second half of `RolloutAdapter.get_train_data_batch`.
pub fn pad(rows: &[Row], level: AggregationLevel, padding: Padding) -> Result<PaddedBatch, PaddingError> {
    if rows.is_empty() {
        return Err(PaddingError::NoRows);
    }
    let all_have_log_probs = rows.iter().all(|row| row.rollout_log_probs.is_some());
    let mut batch = PaddedBatch::with_capacity(rows.len(), padding);
    batch.response_mask = (level == AggregationLevel::Trajectory).then(|| batch.response_buffer());
    batch.rollout_log_probs = all_have_log_probs.then(|| batch.response_buffer());
    for (place, row) in rows.iter().enumerate() {
        let fits = |part, length, width| {
            if length <= width { Ok(()) } else { Err(PaddingError::TooLong { row: place, part, length, width }) }
        };
        fits("prompt", row.prompt_ids.len(), padding.prompt_length)?;
        fits("response", row.response_ids.len(), padding.response_length)?;
        batch.push(row, i64::from(padding.pad_token_id));
    }
    Ok(batch)
}

impl PaddedBatch {
    fn with_capacity(rows: usize, padding: Padding) -> Self {
        let (p, r) = (padding.prompt_length, padding.response_length);
        Self {
            rows,
            prompt_length: p,
            response_length: r,
            prompts: Vec::with_capacity(rows * p),
            responses: Vec::with_capacity(rows * r),
            input_ids: Vec::with_capacity(rows * (p + r)),
            attention_mask: Vec::with_capacity(rows * (p + r)),
            position_ids: Vec::with_capacity(rows * (p + r)),
            is_drop_mask: Vec::with_capacity(rows),
            token_level_scores: Vec::with_capacity(rows * r),
            response_mask: None,
            rollout_log_probs: None,
        }
    }

    fn response_buffer<T>(&self) -> Vec<T> {
        Vec::with_capacity(self.rows * self.response_length)
    }

    fn push(&mut self, row: &Row, pad: i64) {
        let left = self.prompt_length - row.prompt_ids.len();
        let tokens = row.prompt_ids.len() + row.response_ids.len();
        let right = self.response_length - row.response_ids.len();
        let (prompt, response) = (row.prompt_ids.iter().copied(), row.response_ids.iter().copied());

        push_padded(&mut self.prompts, left, prompt.clone().map(i64::from), 0, pad);
        push_padded(&mut self.responses, 0, response.clone().map(i64::from), right, pad);
        push_padded(&mut self.input_ids, left, prompt.chain(response).map(i64::from), right, pad);
        push_padded(&mut self.attention_mask, left, std::iter::repeat_n(1, tokens), right, 0);
        push_padded(&mut self.position_ids, left, 0..tokens as i64, 0, 0);
        push_padded(&mut self.position_ids, 0, std::iter::empty(), right, (tokens as i64 - 1).max(0));

        self.is_drop_mask.push(row.is_drop);
        let before_last = row.response_ids.len().saturating_sub(1);
        let reward = bf16::from_f32(row.reward as f32);
        push_padded(&mut self.token_level_scores, before_last, std::iter::once(reward), right, bf16::ZERO);
        if let Some(mask) = &mut self.response_mask {
            push_padded(mask, 0, row.response_mask.iter().map(|sampled| i64::from(*sampled)), right, 0);
        }
        if let Some((out, log_probs)) = self.rollout_log_probs.as_mut().zip(row.rollout_log_probs.as_ref()) {
            push_padded(out, 0, log_probs.iter().copied(), right, 0.0);
        }
    }
}

fn push_padded<T: Clone>(out: &mut Vec<T>, left: usize, values: impl Iterator<Item = T>, right: usize, pad: T) {
    out.extend(std::iter::repeat_n(pad.clone(), left));
    out.extend(values);
    out.extend(std::iter::repeat_n(pad, right));
}
