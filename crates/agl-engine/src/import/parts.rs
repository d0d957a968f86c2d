//! The JSON files of the folder: `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json`.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::gguf::{Gguf, needed};
use super::{ImportError, WeightType};
use crate::model::LlamaConfig;

/// Kinds of `tokenizer.ggml.token_type`.
const CONTROL: usize = 3;
const USER_DEFINED: usize = 4;

/// Largest width, number of heads or of tokens: no product of two of them, times the layers, overflows.
const MAX_SIZE: usize = 1 << 20;

/// `config.json`, refused where the file asks for what the configuration of a Llama model has no words for here.
pub(super) fn config(file: &Gguf, weight_type: WeightType) -> Result<Value, ImportError> {
    only(file.text("general.architecture")?.unwrap_or("missing"), &["llama"], "architecture", "llama")?;
    let scaling = file.text("llama.rope.scaling.type")?.unwrap_or("none");
    only(scaling, &["none"], "llama.rope.scaling.type", "none")?;
    if let Some(experts) = file.count("llama.expert_count")?.filter(|experts| *experts > 0) {
        return Err(unsupported("llama.expert_count", &experts, "dense models"));
    }
    let count = |key: &str| needed(file.count(key)?, key, "a whole number");
    let hidden_size = count("llama.embedding_length")?;
    let heads = count("llama.attention.head_count")?;
    let head_dim = file.count("llama.attention.key_length")?.unwrap_or(hidden_size / heads.max(1));
    if let Some(rotated) = file.count("llama.rope.dimension_count")?.filter(|rotated| *rotated != head_dim) {
        return Err(unsupported("llama.rope.dimension_count", &rotated, "rotary embedding of whole heads"));
    }
    let tokens = needed(file.texts("tokenizer.ggml.tokens")?, "tokenizer.ggml.tokens", "a list of texts")?;
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        ends.extend(file.count(key)?.filter(|id| !ends.contains(id)));
    }
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": file.count("llama.vocab_size")?.unwrap_or(tokens.len()),
        "hidden_size": hidden_size,
        "intermediate_size": count("llama.feed_forward_length")?,
        "num_hidden_layers": count("llama.block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": file.count("llama.attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": count("llama.context_length")?,
        "rms_norm_eps": needed(
            file.number("llama.attention.layer_norm_rms_epsilon")?,
            "llama.attention.layer_norm_rms_epsilon",
            "a number",
        )?,
        "rope_theta": file.number("llama.rope.freq_base")?.unwrap_or(10_000.0),
        "rope_scaling": null,
        // Without a head of its own, the model's head is its embedding.
        "tie_word_embeddings": !file.tensors().iter().any(|tensor| tensor.name == "output.weight"),
        "attention_bias": false,
        "mlp_bias": false,
        "bos_token_id": file.count("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": ends,
        "pad_token_id": file.count("tokenizer.ggml.padding_token_id")?,
        "torch_dtype": match weight_type {
            WeightType::Bf16 => "bfloat16",
            WeightType::F32 => "float32",
        },
    }))
}

/// Refuses sizes that the file has no room for, before anything is allocated for them.
pub(super) fn check_size(config: &LlamaConfig, file: &Gguf) -> Result<(), ImportError> {
    let sizes = [
        ("llama.block_count", config.num_hidden_layers, file.tensors().len()),
        ("llama.vocab_size", config.vocab_size, MAX_SIZE),
        ("llama.embedding_length", config.hidden_size, MAX_SIZE),
        ("llama.feed_forward_length", config.intermediate_size, MAX_SIZE),
        ("llama.attention.head_count", config.num_attention_heads.saturating_mul(config.head_dim), MAX_SIZE),
    ];
    match sizes.into_iter().find(|(_, size, most)| size > most) {
        Some((key, size, _)) => Err(metadata(key, size.to_string(), "a size that the file has room for")),
        None => Ok(()),
    }
}

/// `generation_config.json`: what `config.json` says of special tokens.
pub(super) fn generation_config(config: &Value) -> Value {
    let keys = ["bos_token_id", "eos_token_id", "pad_token_id"];
    keys.iter().map(|key| ((*key).to_owned(), config[key].clone())).collect::<Map<_, _>>().into()
}

/// `tokenizer.json` of a byte-level BPE: what `tokenizer.ggml.model` calls `gpt2`.
pub(super) fn tokenizer(file: &Gguf, vocab_size: usize) -> Result<Value, ImportError> {
    const MODEL: &str = "tokenizer.ggml.model";
    const KINDS: &str = "tokenizer.ggml.token_type";
    only(file.text(MODEL)?.unwrap_or("missing"), &["gpt2"], MODEL, "gpt2 (byte-level BPE)")?;
    let split = file.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let tokens = needed(file.texts("tokenizer.ggml.tokens")?, "tokenizer.ggml.tokens", "a list of texts")?;
    let merges = needed(file.texts("tokenizer.ggml.merges")?, "tokenizer.ggml.merges", "a list of texts")?;
    let kinds = needed(file.counts(KINDS)?, KINDS, "a list of whole numbers")?;
    if kinds.len() != tokens.len() || tokens.len() > vocab_size {
        let found = format!("{} tokens with {} kinds", tokens.len(), kinds.len());
        return Err(metadata("tokenizer.ggml.tokens", found, "a kind for each, and a row of the embedding"));
    }
    let added = tokens.iter().zip(kinds).enumerate().filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind));
    let added_tokens: Vec<Value> = added
        .map(|(id, (token, kind))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": kind == CONTROL})
        })
        .collect();
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(id, token)| ((*token).into(), id.into())).collect();
    if vocab.len() < tokens.len() {
        let found = format!("{} tokens, {} of them different", tokens.len(), vocab.len());
        return Err(metadata("tokenizer.ggml.tokens", found, "each token once"));
    }
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens,
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer(split)?,
        "post_processor": opening(file, &tokens)?,
        "decoder": byte_level(true, true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": split == "llama-bpe", "vocab": vocab, "merges": merges,
        },
    });
    // Merges of tokens that aren't there, say, are told now and not when the folder is loaded.
    match tokenizers::Tokenizer::from_bytes(json.to_string()) {
        Ok(_) => Ok(json),
        Err(error) => {
            Err(metadata("tokenizer.ggml.merges", format!("refused ({error})"), "merges of the vocabulary's tokens"))
        }
    }
}

/// How text is cut before merging. llama.cpp knows these by name (`llama-vocab.cpp`); the model's merges are right for no other.
fn pre_tokenizer(name: &str) -> Result<Value, ImportError> {
    let sequence = |steps: [Value; 2]| json!({"type": "Sequence", "pretokenizers": steps});
    match name {
        "smollm" => Ok(sequence([json!({"type": "Digits", "individual_digits": true}), byte_level(false, true)])),
        "gpt-2" => Ok(byte_level(false, true)),
        "llama-bpe" => {
            let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
            let split =
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            Ok(sequence([split, byte_level(false, false)]))
        }
        other => Err(unsupported("tokenizer.ggml.pre", &other, "smollm, gpt-2, llama-bpe")),
    }
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex})
}

/// What puts the opening token before a plain prompt, if the model wants one.
fn opening(file: &Gguf, tokens: &[&str]) -> Result<Value, ImportError> {
    let wanted = file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false);
    let Some((id, token)) = special(file, "bos", tokens)?.filter(|_| wanted) else { return Ok(Value::Null) };
    let (text, opening) =
        (json!({"Sequence": {"id": "A", "type_id": 0}}), json!({"SpecialToken": {"id": token, "type_id": 0}}));
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [opening, text],
        "pair": [opening, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }))
}

/// `tokenizer_config.json`: the special tokens' names and the chat template, where the file has them.
pub(super) fn tokenizer_config(file: &Gguf) -> Result<Value, ImportError> {
    let tokens = file.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let mut config = Map::new();
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    for (name, key) in [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")]
    {
        if let Some((_, token)) = special(file, key, &tokens)? {
            config.insert(name.into(), token.into());
        }
    }
    config.insert("model_max_length".into(), file.count("llama.context_length")?.into());
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    config.insert("add_prefix_space".into(), false.into());
    if let Some(template) = file.text("tokenizer.chat_template")? {
        config.insert("chat_template".into(), template.into());
    }
    Ok(Value::Object(config))
}

/// Id and text of a special token.
fn special<'a>(file: &Gguf, name: &str, tokens: &[&'a str]) -> Result<Option<(usize, &'a str)>, ImportError> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let Some(id) = file.count(&key)? else { return Ok(None) };
    let out_of_range = || ImportError::Metadata { key, found: id.to_string(), expected: "an id of the vocabulary" };
    Ok(Some((id, tokens.get(id).ok_or_else(out_of_range)?)))
}

fn only(found: &str, supported: &[&str], what: &str, says: &'static str) -> Result<(), ImportError> {
    if supported.contains(&found) { Ok(()) } else { Err(unsupported(what, &found, says)) }
}

fn unsupported(what: &str, found: &dyn Display, supported: &'static str) -> ImportError {
    ImportError::Unsupported { what: what.into(), found: found.to_string(), supported }
}

fn metadata(key: &str, found: String, expected: &'static str) -> ImportError {
    ImportError::Metadata { key: key.into(), found, expected }
}
