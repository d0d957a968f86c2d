//! Keys and values of finished sequences, kept for prompts that go on with them.

use std::collections::VecDeque;

use crate::model::KvCache;

/// Caches of finished sequences, oldest first: an agent's next prompt mostly goes on with its last one.
pub(crate) struct PrefixCache {
    entries: VecDeque<(Vec<u32>, KvCache)>,
    tokens: usize,
    max_tokens: usize,
}

/// A shorter common prefix is not worth a search's result.
const SHORTEST_PREFIX: usize = 8;

impl PrefixCache {
    /// Keeps at most `max_tokens` tokens in all.
    pub(crate) fn new(max_tokens: usize) -> Self {
        Self { entries: VecDeque::new(), tokens: 0, max_tokens }
    }

    /// Forgets everything: the weights have changed.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.tokens = 0;
    }

    /// Keeps a finished sequence; the oldest ones make room.
    pub(crate) fn keep(&mut self, mut tokens: Vec<u32>, cache: KvCache) {
        // The last sampled token has not been through the model.
        tokens.truncate(cache.len());
        self.tokens += tokens.len();
        self.entries.push_back((tokens, cache));
        while self.tokens > self.max_tokens {
            let Some((dropped, _)) = self.entries.pop_front() else { break };
            self.tokens -= dropped.len();
        }
    }

    /// The cache that shares most with `prompt`, cut to what is shared; at least the last token is left to compute, since its
    /// logits are wanted. An entry that the prompt extends is taken; one that it only shares a beginning with is copied.
    pub(crate) fn take(&mut self, prompt: &[u32]) -> Option<KvCache> {
        let usable = prompt.len().saturating_sub(1);
        let shared = |tokens: &[u32]| tokens.iter().zip(&prompt[..usable]).take_while(|(a, b)| a == b).count();
        let (place, length) = self
            .entries
            .iter()
            .enumerate()
            .map(|(place, (tokens, _))| (place, shared(tokens)))
            .max_by_key(|(_, length)| *length)
            .filter(|(_, length)| *length >= SHORTEST_PREFIX)?;
        if length == self.entries[place].0.len() {
            let (tokens, cache) = self.entries.remove(place)?;
            self.tokens -= tokens.len();
            return Some(cache);
        }
        let mut cache = self.entries[place].1.clone();
        cache.truncate(length);
        Some(cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LlamaConfig, LogitsFor, Model, Segment};

    fn model() -> Model {
        let config = serde_json::json!({
            "model_type": "llama", "vocab_size": 64, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
            "tie_word_embeddings": true
        });
        Model::random(LlamaConfig::from_json(&config.to_string()).unwrap(), 0.1, 1)
    }

    fn computed(tokens: &[u32]) -> KvCache {
        let model = model();
        let mut cache = KvCache::new(&model.config);
        model.forward(&mut [Segment { tokens, cache: &mut cache, logits_for: LogitsFor::None }]).unwrap();
        cache
    }

    fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    #[test]
    fn a_prompt_that_goes_on_takes_the_cache_and_one_that_branches_off_copies_its_beginning() {
        let mut prefixes = PrefixCache::new(100);
        prefixes.keep(tokens(0..20), computed(&tokens(0..20)));
        let branch: Vec<u32> = tokens(0..12).into_iter().chain(40..44).collect();
        assert_eq!(prefixes.take(&branch).unwrap().len(), 12);
        assert_eq!(prefixes.take(&tokens(0..25)).unwrap().len(), 20);
        assert!(prefixes.take(&tokens(0..25)).is_none(), "it was taken");
    }

    #[test]
    fn the_last_token_of_a_prompt_is_always_computed_and_short_prefixes_are_not_worth_it() {
        let mut prefixes = PrefixCache::new(100);
        prefixes.keep(tokens(0..20), computed(&tokens(0..20)));
        assert_eq!(prefixes.take(&tokens(0..20)).unwrap().len(), 19);
        assert!(prefixes.take(&tokens(0..SHORTEST_PREFIX as u32)).is_none());
        assert!(prefixes.take(&[]).is_none());
    }

    #[test]
    fn the_oldest_make_room() {
        let mut prefixes = PrefixCache::new(30);
        prefixes.keep(tokens(0..20), computed(&tokens(0..20)));
        prefixes.keep(tokens(30..50), computed(&tokens(30..50)));
        assert!(prefixes.take(&tokens(0..21)).is_none());
        assert_eq!(prefixes.take(&tokens(30..51)).unwrap().len(), 20);
    }
}
