//! The calculator example, carried in the program so that `agl quickstart` works from any folder.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The example's run file, from the folder that [`folder`] makes sure of.
pub const RUN_FILE: &str = "examples/calculator/run.yaml";

/// Every file that a run of the example reads.
const FILES: &[(&str, &[u8])] = &[
    ("README.md", include_bytes!("../../../examples/calculator/README.md")),
    ("agent.py", include_bytes!("../../../examples/calculator/agent.py")),
    ("run.yaml", include_bytes!("../../../examples/calculator/run.yaml")),
    ("train.jsonl", include_bytes!("../../../examples/calculator/train.jsonl")),
    ("val.jsonl", include_bytes!("../../../examples/calculator/val.jsonl")),
    ("model/config.json", include_bytes!("../../../examples/calculator/model/config.json")),
    ("model/model.safetensors", include_bytes!("../../../examples/calculator/model/model.safetensors")),
    ("model/tokenizer.json", include_bytes!("../../../examples/calculator/model/tokenizer.json")),
    ("model/tokenizer_config.json", include_bytes!("../../../examples/calculator/model/tokenizer_config.json")),
];

/// `examples/calculator` below the current folder; files that are not there are written, those that are (the user's, by then)
/// are left alone.
pub fn folder() -> io::Result<PathBuf> {
    let folder = Path::new(RUN_FILE).parent().unwrap_or(Path::new("."));
    for (name, bytes) in FILES {
        let path = folder.join(name);
        if !path.exists() {
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(&path, bytes)?;
        }
    }
    Ok(folder.to_owned())
}
