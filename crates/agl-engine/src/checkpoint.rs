//! Hugging Face folders: `config.json` and safetensors, in one file or in shards.
//!
//! Reading takes f32, bf16 and f16 and checks that each tensor of the model is there once and has its shape; a folder that
//! holds a tensor the model has no place for is refused, since a model without it would compute something else. Writing is
//! f32 and atomic: a file has its final name only once it is whole and on disk.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, View};

use crate::model::{ConfigError, LlamaConfig, Model, TensorSpec, Weights};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

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
    #[error("{folder} is incomplete: no file holds tensor `{tensor}`")]
    MissingTensor {
        /// The model folder.
        folder: PathBuf,
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

/// A file that could not be written; the one it would have replaced is as it was.
#[derive(Debug, thiserror::Error)]
#[error("can't write {path}: {reason}")]
pub struct SaveError {
    /// The file.
    pub path: PathBuf,
    /// What went wrong.
    pub reason: String,
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
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| LoadError::Safetensors { path: path.clone(), reason: error.to_string() })?;
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
            read_tensor(&path, spec, &tensor, &mut weights.values_mut()[spec.range.clone()])?;
        }
    }
    if let Some(missing) = layout.tensors().iter().find(|spec| !read.contains(&spec.name)) {
        return Err(LoadError::MissingTensor { folder: folder.to_owned(), tensor: missing.name.clone() });
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

/// The one weight file, or those that the index names, each once.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let index = folder.join(INDEX);
    if folder.join(WEIGHTS).exists() || !index.exists() {
        return Ok(vec![folder.join(WEIGHTS)]);
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
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

fn read_tensor(path: &Path, spec: &TensorSpec, tensor: &TensorView<'_>, out: &mut [f32]) -> Result<(), LoadError> {
    if tensor.shape() != spec.shape {
        return Err(LoadError::Shape {
            path: path.to_owned(),
            tensor: spec.name.clone(),
            found: tensor.shape().to_vec(),
            expected: spec.shape.clone(),
        });
    }
    let (quads, _) = tensor.data().as_chunks::<4>();
    let (pairs, _) = tensor.data().as_chunks::<2>();
    match tensor.dtype() {
        Dtype::F32 => out.iter_mut().zip(quads).for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes)),
        Dtype::BF16 => out.iter_mut().zip(pairs).for_each(|(x, bytes)| *x = bf16::from_le_bytes(*bytes).to_f32()),
        Dtype::F16 => out.iter_mut().zip(pairs).for_each(|(x, bytes)| *x = f16::from_le_bytes(*bytes).to_f32()),
        dtype => return Err(LoadError::Dtype { path: path.to_owned(), tensor: spec.name.clone(), dtype }),
    }
    Ok(())
}

/// Writes `config.json` and `model.safetensors` into `folder`, which is made if it isn't there.
///
/// The weights come last: a folder that holds them is whole.
pub fn save_model(model: &Model, folder: &Path) -> Result<(), SaveError> {
    let fail = |path: &Path, reason: String| SaveError { path: path.to_owned(), reason };
    fs::create_dir_all(folder).map_err(|error| fail(folder, error.to_string()))?;
    let path = folder.join(CONFIG);
    let config = serde_json::to_vec_pretty(&*model.config).map_err(|error| fail(&path, error.to_string()))?;
    write_atomically(&path, &config)?;
    let values = model.weights.values();
    let tensors = model.weights.layout().tensors().iter();
    let tensors = tensors.map(|spec| (spec.name.clone(), F32Tensor::new(&spec.shape, &values[spec.range.clone()])));
    write_safetensors(&folder.join(WEIGHTS), tensors, HashMap::from([("format".into(), "pt".into())]))
}

/// An f32 tensor to be written.
pub(crate) struct F32Tensor<'a> {
    shape: &'a [usize],
    values: &'a [f32],
}

impl<'a> F32Tensor<'a> {
    pub(crate) fn new(shape: &'a [usize], values: &'a [f32]) -> Self {
        F32Tensor { shape, values }
    }
}

impl View for F32Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes tensors and metadata to `path`, atomically.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, F32Tensor<'a>)>,
    metadata: HashMap<String, String>,
) -> Result<(), SaveError> {
    let bytes = safetensors::serialize(tensors, Some(metadata))
        .map_err(|error| SaveError { path: path.to_owned(), reason: error.to_string() })?;
    write_atomically(path, &bytes)
}

/// Writes beside `path`, waits for the disk, renames.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    let temporary = path.with_extension("writing");
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The name is kept only once the folder itself is on disk.
        path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        SaveError { path: path.to_owned(), reason: error.to_string() }
    })
}
