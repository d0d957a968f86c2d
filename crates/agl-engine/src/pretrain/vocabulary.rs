//! A small byte-level BPE vocabulary in which the fixed parts of the task (roles, tool schema, call syntax) are a token or two
//! each, and digits are always single.

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, PreTokenizerWrapper};

/// Tokens that mark turns; left out of text.
pub(super) const SPECIAL: &[&str] = &["<|im_start|>", "<|im_end|>"];
/// Tokens that are text all the same.
pub(super) const TAGS: &[&str] = &["<tool_call>", "</tool_call>"];

/// Trains the vocabulary on pieces of conversations, none of which spans a special token.
pub(super) fn train(pieces: &[String], size: usize) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    let byte_level = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
        // A line break is a token of its own, so that nothing merges over the border between a prompt and a response.
        PreTokenizerWrapper::Split(Split::new(
            SplitPattern::String("\n".into()),
            SplitDelimiterBehavior::Isolated,
            false,
        )?),
        PreTokenizerWrapper::Digits(Digits::new(true)),
        PreTokenizerWrapper::ByteLevel(byte_level),
    ])));
    tokenizer.with_decoder(Some(byte_level));
    let trainer = BpeTrainer::builder()
        .vocab_size(size - SPECIAL.len() - TAGS.len())
        .min_frequency(2)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut TrainerWrapper::from(trainer), pieces.iter())?;
    let token = |special: bool| move |text: &&str| AddedToken::from(*text, special).normalized(false);
    tokenizer.add_special_tokens(&SPECIAL.iter().map(token(true)).collect::<Vec<_>>());
    tokenizer.add_tokens(&TAGS.iter().map(token(false)).collect::<Vec<_>>());
    Ok(tokenizer)
}
