//! Makes the policy of the calculator example: a tiny Llama that has learned the format of the task, and little more.
//!
//! It learns by imitation from demonstrations that are made up on the spot, so that all of it follows from one seed.

mod demonstrations;
mod vocabulary;

use std::fs;
use std::path::{Path, PathBuf};

use agl_trainer::policy::{Scores, Sequence};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

pub use demonstrations::{Habits, LessonError};

use crate::chat::ChatTemplate;
use crate::checkpoint::{SaveError, save_model};
use crate::learner::Learner;
use crate::model::{LlamaConfig, Model};
use crate::optimizer::AdamWConfig;
use crate::score::ScoreError;
use crate::tokenizer::Tokenizer;
use demonstrations::{Demonstration, Lesson};

const TEMPLATE: &str = include_str!("chat_template.jinja");
/// Demonstrations that the vocabulary is made from.
const VOCABULARY_SAMPLES: usize = 2000;
/// Spread of the weights at the start.
const INIT_STD: f32 = 0.06;
/// The longest conversation the model is made for, in tokens; an agent's turns take about 60.
const MAX_POSITIONS: usize = 512;

/// The recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct PretrainOptions {
    /// Everything follows from it.
    pub seed: u64,
    /// Steps of imitation.
    pub steps: usize,
    /// Demonstrations a step.
    pub batch: usize,
    /// Highest learning rate; it rises over 20 steps and falls to a tenth.
    pub learning_rate: f32,
    /// Most tokens of the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub layers: usize,
    /// How good the demonstrations are.
    pub habits: Habits,
}

impl Default for PretrainOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            steps: 900,
            batch: 64,
            learning_rate: 2e-3,
            vocab_size: 640,
            hidden_size: 64,
            layers: 3,
            habits: Habits::default(),
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PretrainProgress {
    /// Steps done.
    pub step: usize,
    /// Of how many.
    pub steps: usize,
    /// Mean negative log-probability a token, in nats.
    pub loss: f32,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PretrainReport {
    /// Trainable numbers.
    pub parameters: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Loss of the last step.
    pub loss: f32,
}

/// Why no model came out.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// A demonstration can't be made into tokens.
    #[error(transparent)]
    Lesson(#[from] LessonError),
    /// The vocabulary can't be trained or written.
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// The shape makes no model.
    #[error(transparent)]
    Config(#[from] crate::model::ConfigError),
    /// The learner refuses a batch.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// The model can't be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A file can't be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Makes the model and writes it to `folder`: config.json, tokenizer.json, tokenizer_config.json, model.safetensors.
pub fn pretrain(
    folder: &Path,
    options: &PretrainOptions,
    mut progress: impl FnMut(PretrainProgress),
) -> Result<PretrainReport, PretrainError> {
    let template = ChatTemplate::new(TEMPLATE.trim_end().to_owned(), Vec::new()).map_err(LessonError::from)?;
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut pieces = Vec::new();
    for _ in 0..VOCABULARY_SAMPLES {
        pieces.extend(Demonstration::random(&mut rng, &options.habits).pieces(&template).map_err(LessonError::from)?);
    }
    let vocabulary = |error: tokenizers::Error| PretrainError::Vocabulary(error.to_string());
    let trained = vocabulary::train(&pieces, options.vocab_size).map_err(vocabulary)?;
    let tokenizer = Tokenizer::new(trained.clone());

    let config = config(options, &tokenizer)?;
    let model = Model::random(config, INIT_STD, options.seed);
    let adamw = AdamWConfig { beta2: 0.98, ..AdamWConfig::default() };
    let mut learner = Learner::new(model, adamw);
    let mut loss = 0.0;
    for step in 0..options.steps {
        let lessons = (0..options.batch)
            .map(|_| Demonstration::random(&mut rng, &options.habits).lesson(&template, &tokenizer))
            .collect::<Result<Vec<Lesson>, LessonError>>()?;
        loss = imitate(&mut learner, &lessons)?;
        let warmup = ((step + 1) as f32 / 20.0).min(1.0);
        let decay = 1.0 - 0.9 * step as f32 / options.steps as f32;
        learner.step(options.learning_rate * warmup * decay, 1.0);
        progress(PretrainProgress { step: step + 1, steps: options.steps, loss });
    }

    save_model(&learner.model(), folder)?;
    trained.save(folder.join("tokenizer.json"), true).map_err(vocabulary)?;
    write_tokenizer_config(folder)?;
    Ok(PretrainReport { parameters: learner.model().weights.values().len(), vocab_size: tokenizer.vocab_size(), loss })
}

/// Adds the gradient of the mean negative log-probability of what was said; gives that mean.
fn imitate(learner: &mut Learner, lessons: &[Lesson]) -> Result<f32, ScoreError> {
    let first_said = |lesson: &Lesson| lesson.said.iter().position(|said| *said).unwrap_or(1);
    let sequences: Vec<Sequence> = lessons
        .iter()
        .map(|lesson| Sequence { tokens: lesson.tokens.clone(), scored: first_said(lesson)..lesson.tokens.len() })
        .collect();
    let masks: Vec<&[bool]> = lessons.iter().map(|lesson| &lesson.said[first_said(lesson)..]).collect();
    let said = masks.iter().flat_map(|mask| mask.iter()).filter(|said| **said).count().max(1) as f32;
    learner.accumulate(&sequences, 1.0, |scores| {
        let of_row = |(scores, mask): (&Scores, &&[bool])| -> Vec<f32> {
            scores
                .log_probs
                .iter()
                .zip(*mask)
                .map(|(_, said_here)| if *said_here { -1.0 / said } else { 0.0 })
                .collect()
        };
        let gradients: Vec<Vec<f32>> = scores.iter().zip(&masks).map(of_row).collect();
        let log_probs = scores.iter().flat_map(|scores| &scores.log_probs);
        let loss = log_probs.zip(gradients.iter().flatten()).map(|(log_prob, gradient)| log_prob * gradient).sum();
        (loss, gradients)
    })
}

/// The shape of the model.
fn config(options: &PretrainOptions, tokenizer: &Tokenizer) -> Result<LlamaConfig, PretrainError> {
    let eos = tokenizer.id_of("<|im_end|>");
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.vocab_size(),
        "hidden_size": options.hidden_size,
        "intermediate_size": options.hidden_size * 3,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": true,
        "eos_token_id": eos,
    });
    Ok(LlamaConfig::from_json(&config.to_string())?)
}

fn write_tokenizer_config(folder: &Path) -> Result<(), PretrainError> {
    let path = folder.join("tokenizer_config.json");
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": false,
        "chat_template": TEMPLATE.trim_end(),
    });
    fs::write(&path, format!("{config:#}\n")).map_err(|source| PretrainError::Write { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pretraining_leaves_a_model_folder_that_learns_and_loads() {
        let folder = tempfile::tempdir().unwrap();
        let options =
            PretrainOptions { steps: 80, batch: 16, hidden_size: 32, layers: 1, ..PretrainOptions::default() };
        let mut losses = Vec::new();
        let report = pretrain(folder.path(), &options, |progress| losses.push(progress.loss)).unwrap();
        assert!(losses[79] < losses[0] * 0.6, "{} -> {}", losses[0], losses[79]);
        assert!(report.vocab_size <= options.vocab_size);

        let model = crate::load_model(folder.path()).unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        let template = ChatTemplate::load(folder.path()).unwrap();
        assert_eq!(model.config.vocab_size, tokenizer.vocab_size());
        assert_eq!(model.config.eos_token_ids, [tokenizer.id_of("<|im_end|>").unwrap()]);

        // `lesson` refuses a second prompt that does not go on with the first turn: each conversation is one row.
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let habits = Habits { calls: 1.0, ..Habits::default() };
        for _ in 0..200 {
            let lesson = Demonstration::random(&mut rng, &habits).lesson(&template, &tokenizer).unwrap();
            assert!(lesson.tokens.len() < 80, "the schema costs a handful of tokens: {}", lesson.tokens.len());
            assert_eq!(lesson.said.len(), lesson.tokens.len());
        }
    }
}
