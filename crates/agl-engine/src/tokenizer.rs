//! Text to token ids and back.

use std::path::{Path, PathBuf};

/// The tokenizer of a model folder (`tokenizer.json`).
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

/// Why text can't become tokens, or tokens text.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file can't be read or is not a tokenizer.
    #[error("cannot load {path}: {reason}; a model folder needs the tokenizer.json of its model")]
    Load {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The text can't be encoded.
    #[error("cannot tokenize: {0}")]
    Encode(String),
    /// An id is unknown.
    #[error("cannot turn token ids into text: {0}")]
    Decode(String),
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model folder.
    pub fn load(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join("tokenizer.json");
        match tokenizers::Tokenizer::from_file(&path) {
            Ok(inner) => Ok(Self { inner }),
            Err(error) => Err(TokenizerError::Load { path, reason: error.to_string() }),
        }
    }

    /// A tokenizer that is at hand already.
    pub fn new(inner: tokenizers::Tokenizer) -> Self {
        Self { inner }
    }

    /// Token ids of `text`. Special tokens that are spelled out in it are recognised; none is added at its ends, since the
    /// chat template has put them where they belong.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode(text, false).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// As [`Self::encode`], with what the tokenizer's own post-processor adds (a BOS token, say): for plain prompts.
    pub fn encode_plain_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode(text, true).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of token ids. Special tokens are left out if `skip_special` is set. Bytes that are no whole character become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        self.inner.decode(ids, skip_special).map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// The token of one id as text, special tokens included; empty for half a character.
    pub fn token_text(&self, id: u32) -> String {
        let text = self.inner.decode(&[id], false).unwrap_or_default();
        if text.contains(char::REPLACEMENT_CHARACTER) { String::new() } else { text }
    }

    /// Id of a token by its exact text.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of ids, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// Turns tokens into text as they come, without ever giving out half a character.
///
/// Decoding is not compositional (a character may span tokens, a word's leading blank depends on what is before it), so a
/// window of recent tokens is decoded with and without the new one, and the difference is the new text.
#[derive(Debug, Default)]
pub struct IncrementalDecoder {
    ids: Vec<u32>,
    /// Start of the window.
    window: usize,
    /// Tokens whose text has been given out.
    given: usize,
}

impl IncrementalDecoder {
    /// Adds a token; gives the text that is complete now, which may be empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        let before = tokenizer.decode(&self.ids[self.window..self.given], true)?;
        let with = tokenizer.decode(&self.ids[self.window..], true)?;
        if with.ends_with(char::REPLACEMENT_CHARACTER) || with.len() < before.len() {
            return Ok(String::new());
        }
        self.window = self.given;
        self.given = self.ids.len();
        Ok(with[before.len()..].to_owned())
    }

    /// What is left when no token will come any more: half a character, as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let before = tokenizer.decode(&self.ids[self.window..self.given], true)?;
        let with = tokenizer.decode(&self.ids[self.window..], true)?;
        self.given = self.ids.len();
        self.window = self.given;
        Ok(with.get(before.len()..).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    /// Every byte is a token; the chat markers are special tokens behind them.
    pub(crate) fn byte_tokenizer() -> Tokenizer {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let vocab: serde_json::Map<String, serde_json::Value> =
            alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
        let special = |id: usize, text: &str| {
            serde_json::json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [special(256, "<|im_start|>"), special(257, "<|im_end|>")],
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let inner = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        Tokenizer::new(inner)
    }

    #[test]
    fn special_tokens_in_the_text_are_one_id() {
        let tokenizer = byte_tokenizer();
        let ids = tokenizer.encode("<|im_start|>hi<|im_end|>").unwrap();
        assert_eq!(ids.len(), 4);
        assert_eq!(ids[0], tokenizer.id_of("<|im_start|>").unwrap());
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "hi");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|im_start|>hi<|im_end|>");
        assert_eq!(tokenizer.token_text(ids[3]), "<|im_end|>");
    }

    proptest! {
        #[test]
        fn decoding_bit_by_bit_gives_the_whole_text(text in "\\PC{0,24}") {
            let tokenizer = byte_tokenizer();
            let mut decoder = IncrementalDecoder::default();
            let mut decoded = String::new();
            for id in tokenizer.encode(&text).unwrap() {
                let piece = decoder.push(&tokenizer, id).unwrap();
                prop_assert!(!piece.contains(char::REPLACEMENT_CHARACTER) || text.contains(char::REPLACEMENT_CHARACTER));
                decoded.push_str(&piece);
            }
            decoded.push_str(&decoder.finish(&tokenizer).unwrap());
            prop_assert_eq!(decoded, text);
        }
    }
}
