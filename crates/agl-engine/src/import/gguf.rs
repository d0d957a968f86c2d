//! The GGUF container, versions 2 and 3: metadata, a table of tensors, their data.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! Nothing in the file is believed: no length is allocated that the file is too short for.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};

use super::ImportError;
use super::blocks::BlockType;

/// Longest metadata and table of tensors. A vocabulary of 256,000 tokens takes some ten megabytes.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Deepest list in a list.
const MAX_DEPTH: usize = 4;
/// Most dimensions a tensor has in this format.
const MAX_DIMENSIONS: u32 = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// An entry in the table of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Slowest dimension first, as everywhere but in this format.
    pub(super) shape: Vec<usize>,
    pub(super) blocks: BlockType,
    /// From the beginning of the data.
    offset: u64,
}

/// A file whose table of contents has been read.
#[derive(Debug)]
pub(super) struct Gguf {
    file: Input,
    metadata: HashMap<String, Value>,
    tensors: Vec<Tensor>,
    data_start: u64,
}

impl Gguf {
    pub(super) fn read(file: File) -> Result<Self, ImportError> {
        let mut file = Input::new(file)?;
        if &file.array::<4>()? != b"GGUF" {
            return Err(container("it does not begin with `GGUF`"));
        }
        let version = file.u32()?;
        if !(2..=3).contains(&version) {
            return Err(container(format!("version {version} (2 and 3 are read; a huge number means big-endian)")));
        }
        let (tensor_count, entry_count) = (file.u64()?, file.u64()?);
        file.end = file.length.min(MAX_HEADER_BYTES);
        let mut metadata = HashMap::new();
        for _ in 0..entry_count {
            let key = file.text()?;
            let kind = file.u32()?;
            metadata.insert(key, file.value(kind, 0)?);
        }
        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(file.tensor()?);
        }
        let alignment = match metadata.get("general.alignment") {
            Some(Value::Int(alignment)) => u64::try_from(*alignment).unwrap_or(0),
            _ => 32,
        };
        if alignment == 0 || file.position > u64::MAX - alignment {
            return Err(container("general.alignment is not a number above zero"));
        }
        let data_start = file.position.div_ceil(alignment) * alignment;
        file.end = file.length;
        Ok(Self { file, metadata, tensors, data_start })
    }

    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Where a tensor lies: its first byte and how many they are, all of them in the file.
    pub(super) fn place(&self, tensor: &Tensor) -> Result<(u64, u64), ImportError> {
        let elements = tensor.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let bytes = elements.and_then(|elements| tensor.blocks.bytes(elements)).ok_or_else(|| {
            container(format!("tensor `{}`: {:?} elements are no whole number of blocks", tensor.name, tensor.shape))
        })? as u64;
        let start = self.data_start.checked_add(tensor.offset);
        start
            .filter(|start| start.checked_add(bytes).is_some_and(|end| end <= self.file.length))
            .map(|start| (start, bytes))
            .ok_or_else(|| container(format!("tensor `{}` lies beyond the end of the file", tensor.name)))
    }

    /// The numbers of a tensor.
    pub(super) fn values(&mut self, tensor: &Tensor) -> Result<Vec<f32>, ImportError> {
        let (start, bytes) = self.place(tensor)?;
        self.file.seek(start)?;
        Ok(tensor.blocks.values(&self.file.bytes(bytes)?))
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        as_type: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ImportError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let found = || ImportError::Metadata { key: key.into(), found: value.describe(), expected };
        as_type(value).map(Some).ok_or_else(found)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ImportError> {
        self.get(key, "text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, ImportError> {
        self.get(key, "a whole number", |value| match value {
            Value::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        })
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        self.get(key, "a number", |value| match value {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ImportError> {
        self.get(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ImportError> {
        self.get(key, "a list of texts", |value| match value {
            Value::List(items) => items
                .iter()
                .map(|item| match item {
                    Value::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    pub(super) fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, ImportError> {
        self.get(key, "a list of whole numbers", |value| match value {
            Value::List(items) => items
                .iter()
                .map(|item| match item {
                    Value::Int(number) => usize::try_from(*number).ok(),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }
}

/// What must be there.
pub(super) fn needed<T>(found: Option<T>, key: &str, expected: &'static str) -> Result<T, ImportError> {
    found.ok_or_else(|| ImportError::Metadata { key: key.into(), found: "missing".into(), expected })
}

impl Value {
    /// For messages: short, whatever it holds.
    fn describe(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(flag) => flag.to_string(),
            Self::Text(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
            Self::List(items) => format!("a list of {}", items.len()),
        }
    }
}

fn container(reason: impl Into<String>) -> ImportError {
    ImportError::Container(reason.into())
}

/// The file, read in order.
#[derive(Debug)]
struct Input {
    reader: BufReader<File>,
    length: u64,
    /// How far may be read now.
    end: u64,
    position: u64,
}

impl Input {
    fn new(file: File) -> Result<Self, ImportError> {
        let length = file.metadata().map_err(|error| container(error.to_string()))?.len();
        Ok(Self { reader: BufReader::new(file), length, end: length, position: 0 })
    }

    fn seek(&mut self, position: u64) -> Result<(), ImportError> {
        self.reader.seek(SeekFrom::Start(position)).map_err(|error| container(error.to_string()))?;
        self.position = position;
        Ok(())
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, ImportError> {
        if count > self.end.saturating_sub(self.position) {
            let too_long = format!("its metadata are longer than {MAX_HEADER_BYTES} bytes");
            let cut_short = format!("it ends at byte {}, in the middle of something", self.length);
            return Err(container(if self.end < self.length { too_long } else { cut_short }));
        }
        let mut bytes = vec![0; count as usize];
        self.reader.read_exact(&mut bytes).map_err(|error| container(error.to_string()))?;
        self.position += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImportError> {
        let bytes = self.bytes(N as u64)?;
        bytes.try_into().map_err(|_| container("it ends in the middle of a number"))
    }

    fn u32(&mut self) -> Result<u32, ImportError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, ImportError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, ImportError> {
        let length = self.u64()?;
        String::from_utf8(self.bytes(length)?)
            .map_err(|_| container(format!("a text before byte {} is not UTF-8", self.position)))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, ImportError> {
        Ok(match kind {
            0 => Value::Int(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array()?).into()),
            // By way of its shortest spelling: 1e-5, not 9.999999747378752e-06.
            6 => Value::Float(f32::from_le_bytes(self.array()?).to_string().parse().unwrap_or(f64::NAN)),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let (kind, count) = (self.u32()?, self.u64()?);
                // Not allocated before it is read: `count` may be anything.
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push(self.value(kind, depth + 1)?);
                }
                Value::List(items)
            }
            10 => Value::Int(self.u64()?.into()),
            11 => Value::Int(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(container(format!("metadata of type {other} before byte {}", self.position))),
        })
    }

    fn tensor(&mut self) -> Result<Tensor, ImportError> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(container(format!("tensor `{name}` has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = usize::try_from(self.u64()?);
            shape.push(size.map_err(|_| container(format!("tensor `{name}` is larger than memory")))?);
        }
        shape.reverse();
        let kind = self.u32()?;
        let blocks = BlockType::of(kind).ok_or_else(|| ImportError::Unsupported {
            what: format!("type of tensor `{name}`"),
            found: BlockType::name(kind),
            supported: BlockType::SUPPORTED,
        })?;
        Ok(Tensor { name, shape, blocks, offset: self.u64()? })
    }
}
