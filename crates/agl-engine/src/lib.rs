//! The embedded policy: tokenizer, transformer, sampler, OpenAI server, optimiser, checkpoints.
