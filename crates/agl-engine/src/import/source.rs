//! Where the GGUF file is: given itself, in a folder, or inside a zip (a Python wheel is one).

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use super::ImportError;

/// Largest file that is unpacked.
const MAX_UNPACKED_BYTES: u64 = 64 << 30;

/// Opens the one GGUF file that `path` is or holds.
pub(super) fn open(path: &Path) -> Result<File, ImportError> {
    let fail = |reason: String| ImportError::Source { path: path.to_owned(), reason };
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(|error| fail(error.to_string()))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()).filter(|path| is_gguf(path)));
        let file = only_one(files.collect()).map_err(fail)?;
        return File::open(file).map_err(|error| fail(error.to_string()));
    }
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    let zipped = path.extension().is_some_and(|extension| extension == "whl" || extension == "zip");
    if zipped { unpack(file).map_err(fail) } else { Ok(file) }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn only_one<T>(mut found: Vec<T>) -> Result<T, String> {
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        (None, _) => Err("holds no .gguf file".into()),
        (Some(_), others) => Err(format!("holds {} .gguf files, and one is needed", others + 1)),
    }
}

/// Unpacks into a file that has no name and goes when it is closed.
fn unpack(archive: File) -> Result<File, String> {
    let mut archive = zip::ZipArchive::new(archive).map_err(|error| error.to_string())?;
    let names = archive.file_names().flatten().filter(|name| is_gguf(Path::new(&**name))).map(Cow::into_owned);
    let name = only_one(names.collect())?;
    let entry = archive.by_name(&name).map_err(|error| error.to_string())?;
    let mut unpacked = tempfile::tempfile().map_err(|error| error.to_string())?;
    let bytes = io::copy(&mut entry.take(MAX_UNPACKED_BYTES + 1), &mut unpacked).map_err(|error| error.to_string())?;
    if bytes > MAX_UNPACKED_BYTES {
        return Err(format!("{name} unpacks to more than {MAX_UNPACKED_BYTES} bytes"));
    }
    unpacked.rewind().map_err(|error| error.to_string())?;
    Ok(unpacked)
}
