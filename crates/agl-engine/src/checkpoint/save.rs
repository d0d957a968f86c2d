//! Models to folders.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, View};

use super::{CONFIG, MEAN, MEAN_SQUARE, STEPS, WEIGHTS};
use crate::model::{Layout, Model};
use crate::optimizer::AdamW;

/// A file that could not be written; the one it would have replaced is as it was.
#[derive(Debug, thiserror::Error)]
#[error("can't write {path}: {reason}")]
pub struct SaveError {
    /// The file.
    pub path: PathBuf,
    /// What went wrong.
    pub reason: String,
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
    let tensors = named(None, model.weights.layout(), model.weights.values());
    write_safetensors(&folder.join(WEIGHTS), tensors, [("format".to_owned(), "pt".to_owned())])
}

/// Writes an optimiser's state to `path`: its running means and the number of its steps, bit for bit.
pub(crate) fn save_optimizer(path: &Path, layout: &Layout, state: &AdamW) -> Result<(), SaveError> {
    let tensors = named(Some(MEAN), layout, &state.mean).chain(named(Some(MEAN_SQUARE), layout, &state.mean_square));
    write_safetensors(path, tensors, [(STEPS.to_owned(), state.steps.to_string())])
}

/// The tensors of `layout` in `values`, with their names after the prefix.
fn named<'a>(
    prefix: Option<&str>,
    layout: &'a Layout,
    values: &'a [f32],
) -> impl Iterator<Item = (String, F32Tensor<'a>)> {
    layout.tensors().iter().map(move |spec| {
        let name = prefix.map_or_else(|| spec.name.clone(), |prefix| format!("{prefix}.{}", spec.name));
        (name, F32Tensor { shape: &spec.shape, values: &values[spec.range.clone()] })
    })
}

/// A tensor to be written.
struct F32Tensor<'a> {
    shape: &'a [usize],
    values: &'a [f32],
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
fn write_safetensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (String, F32Tensor<'a>)>,
    metadata: [(String, String); 1],
) -> Result<(), SaveError> {
    let bytes = safetensors::serialize(tensors, Some(metadata.into()))
        .map_err(|error| SaveError { path: path.to_owned(), reason: error.to_string() })?;
    write_atomically(path, &bytes)
}

/// Writes `bytes` to `path`, atomically.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    write_atomically_with(path, |file| {
        file.write_all(bytes).map_err(|error| SaveError { path: path.to_owned(), reason: error.to_string() })
    })
}

/// Writes beside `path` what `write` has to write, waits for the disk, renames.
pub(crate) fn write_atomically_with<E: From<SaveError>>(
    path: &Path,
    write: impl FnOnce(&mut fs::File) -> Result<(), E>,
) -> Result<(), E> {
    let temporary = path.with_extension("writing");
    let fail = |error: io::Error| SaveError { path: path.to_owned(), reason: error.to_string() };
    let keep = |file: fs::File| -> io::Result<()> {
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The name is kept only once the folder itself is on disk.
        path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    };
    let whole = || {
        let mut file = fs::File::create(&temporary).map_err(fail)?;
        write(&mut file)?;
        Ok(keep(file).map_err(fail)?)
    };
    whole().inspect_err(|_: &E| {
        let _ = fs::remove_file(&temporary);
    })
}
