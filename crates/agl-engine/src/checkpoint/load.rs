//! Folders to models.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{CONFIG, INDEX, MEAN, MEAN_SQUARE, STEPS, WEIGHTS};
use crate::model::{ConfigError, Layout, LlamaConfig, Model, TensorSpec, Weights};
use crate::optimizer::{AdamW, AdamWConfig};

/// Why a folder could not be read as a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path is not a folder.
    #[error("{0} is not a folder; a model is a folder with {CONFIG} and {WEIGHTS}")]
    NotAFolder(PathBuf),
    /// The folder lacks a file.
    #[error("{folder} is incomplete: it holds no {file}")]
    MissingFile {
        /// The model folder.
        folder: PathBuf,
        /// What it should hold.
        file: String,
    },
    /// A file can't be read.
    #[error("can't read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The model is of a kind these kernels don't compute, or its config is broken.
    #[error("{path}: {error}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        error: ConfigError,
    },
    /// Not safetensors, or cut short.
    #[error("{path} is not a whole safetensors file: {reason}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The index of a sharded checkpoint is broken.
    #[error("{path} is not the index of a sharded checkpoint: {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor of the model is in none of the files.
    #[error("{path} is incomplete: it holds no tensor `{tensor}`")]
    MissingTensor {
        /// The model folder or the file.
        path: PathBuf,
        /// Its name.
        tensor: String,
    },
    /// A tensor has another shape than the config says.
    #[error("{path}: tensor `{tensor}` has shape {found:?}, and {CONFIG} asks for {expected:?}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the config asks for.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a type that isn't read.
    #[error("{path}: tensor `{tensor}` is stored as {dtype:?}; F32, BF16 and F16 can be read")]
    Dtype {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },
    /// A file holds a tensor that the model has no place for.
    #[error("{path}: tensor `{tensor}` has no place in the model that {CONFIG} describes")]
    UnexpectedTensor {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
    },
    /// Two files hold the same tensor.
    #[error("{path}: tensor `{tensor}` was already read from another file")]
    Twice {
        /// The second file.
        path: PathBuf,
        /// Its name.
        tensor: String,
    },
}

/// Reads a model from its folder.
pub fn load_model(folder: &Path) -> Result<Model, LoadError> {
    if !folder.is_dir() {
        return Err(LoadError::NotAFolder(folder.to_owned()));
    }
    let config = load_config(folder)?;
    let mut weights = Weights::zeros(&config);
    let layout = weights.layout().clone();
    let places: HashMap<&str, &TensorSpec> = layout.tensors().iter().map(|spec| (spec.name.as_str(), spec)).collect();
    let mut read = HashSet::new();
    for path in weight_files(folder)? {
        let bytes = read_file(folder, &path)?;
        let file = parse(&path, &bytes)?;
        for (name, tensor) in file.iter() {
            let Some(spec) = places.get(name) else {
                if is_redundant(name, &config) {
                    continue;
                }
                return Err(LoadError::UnexpectedTensor { path, tensor: name.to_owned() });
            };
            if !read.insert(name.to_owned()) {
                return Err(LoadError::Twice { path, tensor: name.to_owned() });
            }
            read_tensor(&path, name, spec, &tensor, weights.values_mut())?;
        }
    }
    if let Some(missing) = layout.tensors().iter().find(|spec| !read.contains(&spec.name)) {
        return Err(LoadError::MissingTensor { path: folder.to_owned(), tensor: missing.name.clone() });
    }
    Ok(Model { config: Arc::new(config), weights: Arc::new(weights) })
}

/// Reads the `config.json` of a model folder.
pub fn load_config(folder: &Path) -> Result<LlamaConfig, LoadError> {
    let path = folder.join(CONFIG);
    let text = String::from_utf8_lossy(&read_file(folder, &path)?).into_owned();
    LlamaConfig::from_json(&text).map_err(|error| LoadError::Config { path, error })
}

/// Tensors that some files hold although they say nothing new.
fn is_redundant(name: &str, config: &LlamaConfig) -> bool {
    name.ends_with("rotary_emb.inv_freq") || (name == "lm_head.weight" && config.tie_word_embeddings)
}

fn read_file(folder: &Path, path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LoadError::MissingFile {
            folder: folder.to_owned(),
            file: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        },
        _ => LoadError::Io { path: path.to_owned(), error },
    })
}

/// What is read of the index of a sharded checkpoint.
#[derive(serde::Deserialize)]
struct Index {
    /// File of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// The one weight file, or those that the index names, each once.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let index = folder.join(INDEX);
    if folder.join(WEIGHTS).exists() || !index.exists() {
        return Ok(vec![folder.join(WEIGHTS)]);
    }
    let broken = |reason: String| LoadError::Index { path: index.clone(), reason };
    let parsed: Index =
        serde_json::from_slice(&read_file(folder, &index)?).map_err(|error| broken(error.to_string()))?;
    let mut files: Vec<String> = parsed.weight_map.into_values().collect();
    files.sort();
    files.dedup();
    if let Some(name) = files.iter().find(|name| Path::new(name).components().count() != 1) {
        return Err(broken(format!("{name:?} is not the name of a file in the folder")));
    }
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>, LoadError> {
    SafeTensors::deserialize(bytes)
        .map_err(|error| LoadError::Safetensors { path: path.to_owned(), reason: error.to_string() })
}

/// Reads `tensor`, called `name` in the file, into the place of `spec` in `values`.
fn read_tensor(
    path: &Path,
    name: &str,
    spec: &TensorSpec,
    tensor: &TensorView<'_>,
    values: &mut [f32],
) -> Result<(), LoadError> {
    let (path, tensor_name) = (path.to_owned(), name.to_owned());
    if tensor.shape() != spec.shape {
        let (found, expected) = (tensor.shape().to_vec(), spec.shape.clone());
        return Err(LoadError::Shape { path, tensor: tensor_name, found, expected });
    }
    let (quads, _) = tensor.data().as_chunks::<4>();
    let (pairs, _) = tensor.data().as_chunks::<2>();
    let out = values[spec.range.clone()].iter_mut();
    match tensor.dtype() {
        Dtype::F32 => out.zip(quads).for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes)),
        Dtype::BF16 => out.zip(pairs).for_each(|(x, bytes)| *x = bf16::from_le_bytes(*bytes).to_f32()),
        Dtype::F16 => out.zip(pairs).for_each(|(x, bytes)| *x = f16::from_le_bytes(*bytes).to_f32()),
        dtype => return Err(LoadError::Dtype { path, tensor: tensor_name, dtype }),
    }
    Ok(())
}

/// Reads an optimiser's state: see [`save_optimizer`](super::save_optimizer).
pub(crate) fn load_optimizer(path: &Path, layout: &Layout, config: AdamWConfig) -> Result<AdamW, LoadError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let bytes = read_file(folder, path)?;
    let file = parse(path, &bytes)?;
    let broken = |reason: &str| LoadError::Safetensors { path: path.to_owned(), reason: reason.to_owned() };
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| broken(&error.to_string()))?;
    let steps = metadata.metadata().as_ref().and_then(|metadata| metadata.get(STEPS)?.parse().ok());
    let mut state = AdamW::new(config, layout.len());
    state.steps = steps.ok_or_else(|| broken("its metadata holds no whole number `step`"))?;
    for (prefix, values) in [(MEAN, &mut state.mean), (MEAN_SQUARE, &mut state.mean_square)] {
        for spec in layout.tensors() {
            let name = format!("{prefix}.{}", spec.name);
            let missing = |_| LoadError::MissingTensor { path: path.to_owned(), tensor: name.clone() };
            read_tensor(path, &name, spec, &file.tensor(&name).map_err(missing)?, values)?;
        }
    }
    Ok(state)
}
