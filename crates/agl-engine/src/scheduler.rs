//! Continuous batching: one thread that runs the model for every request at once.
//!
//! At each step the thread admits what waits, puts the next chunk of each prompt and the last token of each running sequence
//! into one packed batch, runs it, and samples. Sequences come and go between steps. The weights change between two steps too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use crate::model::{KvCache, LogitsFor, Model, Segment};
use crate::prefix_cache::PrefixCache;
use crate::sampler::{LogProbs, NotFinite, Sampled, Sampler, SamplingParams};

/// Bounds of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Sequences that are generated at the same time; more wait.
    pub max_num_seqs: usize,
    /// Tokens of one forward pass: long prompts are cut into chunks of at most so many.
    pub max_batched_tokens: usize,
    /// Requests that may wait; one more is refused.
    pub max_queued: usize,
    /// Tokens of finished sequences that are kept, so that a prompt which goes on with one need not be computed again.
    pub max_prefix_cache_tokens: usize,
}

impl Default for SchedulerLimits {
    fn default() -> Self {
        Self { max_num_seqs: 64, max_batched_tokens: 2048, max_queued: 4096, max_prefix_cache_tokens: 65_536 }
    }
}

/// What a request hears, in order: tokens, then one end.
#[derive(Clone, Debug, PartialEq)]
pub enum Generated {
    /// The next token.
    Token(Sampled),
    /// No more tokens.
    End(Finish),
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was sampled; it is the last token.
    Stop,
    /// `max_tokens` were sampled.
    Length,
    /// The weights changed under it, or the engine was shut down: an answer of two policies must not train.
    Abort,
    /// The model gave no distribution.
    NotFinite,
}

/// The request can't be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many wait already.
    #[error("{0} requests wait already (max_queued); try again later")]
    QueueFull(usize),
    /// The engine is shut down.
    #[error("the engine is shut down")]
    Closed,
}

/// A request's tokens, and the policy version that samples them.
#[derive(Debug)]
pub struct Generation {
    /// Tokens as they come. Dropping it ends the generation.
    pub tokens: mpsc::UnboundedReceiver<Generated>,
}

enum Command {
    Generate(Box<Waiting>),
    Swap(Model, oneshot::Sender<()>),
    Shutdown,
}

struct Waiting {
    prompt: Vec<u32>,
    sampler: Sampler,
    // Unbounded in type, bounded in fact: at most `max_tokens` and an end.
    out: mpsc::UnboundedSender<Generated>,
}

/// Counts that metrics show.
#[derive(Debug, Default)]
pub struct SchedulerStats {
    /// Requests that wait.
    pub queued: AtomicUsize,
    /// Sequences being generated.
    pub running: AtomicUsize,
    /// Tokens sampled so far.
    pub sampled_tokens: AtomicU64,
    /// Prompt tokens computed so far.
    pub prompt_tokens: AtomicU64,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_prompt_tokens: AtomicU64,
}

/// Handle of the scheduler's thread. Dropping it shuts the thread down.
#[derive(Debug)]
pub struct Scheduler {
    commands: std_mpsc::Sender<Command>,
    stats: Arc<SchedulerStats>,
    limits: SchedulerLimits,
    reported: LogProbs,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Starts the thread.
    pub fn start(model: Model, limits: SchedulerLimits, reported: LogProbs) -> std::io::Result<Self> {
        let (commands, inbox) = std_mpsc::channel();
        let stats = Arc::new(SchedulerStats::default());
        let worker = Worker {
            model,
            limits: limits.clone(),
            stats: Arc::clone(&stats),
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefixes: PrefixCache::new(limits.max_prefix_cache_tokens),
        };
        let thread = std::thread::Builder::new().name("agl-scheduler".into()).spawn(move || worker.run(&inbox))?;
        Ok(Self { commands, stats, limits, reported, thread: Some(thread) })
    }

    /// Takes a request. The prompt must not be empty.
    pub fn submit(&self, prompt: Vec<u32>, params: SamplingParams) -> Result<Generation, SubmitError> {
        let queued = self.stats.queued.load(Ordering::Relaxed);
        if queued >= self.limits.max_queued {
            return Err(SubmitError::QueueFull(queued));
        }
        let (out, tokens) = mpsc::unbounded_channel();
        self.stats.queued.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting { prompt, sampler: Sampler::new(params, self.reported), out };
        self.commands.send(Command::Generate(Box::new(waiting))).map_err(|_| SubmitError::Closed)?;
        Ok(Generation { tokens })
    }

    /// Generates with other weights from the next step on; answers once that holds. Sequences that are running end with
    /// [`Finish::Abort`]; a gateway that was drained before has none.
    pub async fn swap(&self, model: Model) -> Result<(), SubmitError> {
        let (done, swapped) = oneshot::channel();
        self.commands.send(Command::Swap(model, done)).map_err(|_| SubmitError::Closed)?;
        swapped.await.map_err(|_| SubmitError::Closed)
    }

    /// As [`Self::swap`], for threads outside the async runtime.
    pub fn swap_blocking(&self, model: Model) -> Result<(), SubmitError> {
        let (done, swapped) = oneshot::channel();
        self.commands.send(Command::Swap(model, done)).map_err(|_| SubmitError::Closed)?;
        swapped.blocking_recv().map_err(|_| SubmitError::Closed)
    }

    /// Counts.
    pub fn stats(&self) -> &SchedulerStats {
        &self.stats
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // An error means that the thread has ended already.
        let _ = self.commands.send(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A sequence being generated.
struct Running {
    /// Prompt and response.
    tokens: Vec<u32>,
    prompt_length: usize,
    cache: KvCache,
    sampler: Sampler,
    out: mpsc::UnboundedSender<Generated>,
}

impl Running {
    fn end(&self, finish: Finish) {
        // Nobody listens any more: that ended it.
        let _ = self.out.send(Generated::End(finish));
    }

    /// Samples the next token; gives the end, if this is it.
    fn advance(&mut self, logits: &[f32]) -> Option<Finish> {
        let sampled = match self.sampler.sample(logits) {
            Ok(sampled) => sampled,
            Err(NotFinite) => return Some(Finish::NotFinite),
        };
        let token = sampled.token;
        self.tokens.push(token);
        if self.out.send(Generated::Token(sampled)).is_err() {
            return Some(Finish::Abort);
        }
        let params = self.sampler.params();
        if params.stop_token_ids.contains(&token) {
            Some(Finish::Stop)
        } else if self.tokens.len() - self.prompt_length >= params.max_tokens {
            Some(Finish::Length)
        } else {
            None
        }
    }
}

struct Worker {
    model: Model,
    limits: SchedulerLimits,
    stats: Arc<SchedulerStats>,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    prefixes: PrefixCache,
}

impl Worker {
    fn run(mut self, inbox: &std_mpsc::Receiver<Command>) {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            // With nothing to do, wait; with work, only look.
            let mut command = if idle { inbox.recv().ok() } else { inbox.try_recv().ok() };
            if idle && command.is_none() {
                return;
            }
            while let Some(next) = command {
                match next {
                    Command::Generate(waiting) => self.waiting.push_back(*waiting),
                    Command::Swap(model, done) => {
                        self.swap(model);
                        let _ = done.send(());
                    }
                    Command::Shutdown => return self.abort_all(),
                }
                command = inbox.try_recv().ok();
            }
            self.admit();
            self.step();
        }
    }

    fn swap(&mut self, model: Model) {
        self.running.drain(..).for_each(|sequence| sequence.end(Finish::Abort));
        self.prefixes.clear();
        self.model = model;
    }

    fn abort_all(&mut self) {
        self.running.drain(..).for_each(|sequence| sequence.end(Finish::Abort));
        for waiting in self.waiting.drain(..) {
            let _ = waiting.out.send(Generated::End(Finish::Abort));
        }
    }

    fn admit(&mut self) {
        while self.running.len() < self.limits.max_num_seqs {
            let Some(Waiting { prompt, sampler, out }) = self.waiting.pop_front() else { break };
            self.stats.queued.fetch_sub(1, Ordering::Relaxed);
            if out.is_closed() {
                continue;
            }
            let cache = self.prefixes.take(&prompt).unwrap_or_else(|| KvCache::new(&self.model.config));
            self.stats.cached_prompt_tokens.fetch_add(cache.len() as u64, Ordering::Relaxed);
            self.stats.prompt_tokens.fetch_add((prompt.len() - cache.len()) as u64, Ordering::Relaxed);
            self.running.push(Running { prompt_length: prompt.len(), tokens: prompt, cache, sampler, out });
        }
        self.stats.running.store(self.running.len(), Ordering::Relaxed);
    }

    /// One forward pass over all running sequences, as far as the token budget goes.
    fn step(&mut self) {
        self.running.retain(|sequence| !sequence.out.is_closed());
        self.stats.running.store(self.running.len(), Ordering::Relaxed);
        let mut budget = self.limits.max_batched_tokens;
        let mut sampling = Vec::new();
        let mut batch = Vec::new();
        for (place, sequence) in self.running.iter_mut().enumerate() {
            let pending = &sequence.tokens[sequence.cache.len()..];
            let chunk = pending.len().min(budget);
            if chunk == 0 {
                break;
            }
            budget -= chunk;
            let whole = chunk == pending.len();
            if whole {
                sampling.push(place);
            }
            let logits_for = if whole { LogitsFor::Last } else { LogitsFor::None };
            batch.push(Segment { tokens: &pending[..chunk], cache: &mut sequence.cache, logits_for });
        }
        if batch.is_empty() {
            return;
        }
        let logits = match self.model.forward(&mut batch) {
            Ok(logits) => logits,
            // Requests are checked before they come here; if one slips through, it must not stop the others for ever.
            Err(error) => {
                tracing::error!(%error, "the model refused a batch");
                self.running.drain(..).for_each(|sequence| sequence.end(Finish::Abort));
                return;
            }
        };
        let mut ended = Vec::new();
        for (place, row) in sampling.into_iter().zip(logits.rows()) {
            self.stats.sampled_tokens.fetch_add(1, Ordering::Relaxed);
            if let Some(finish) = self.running[place].advance(row) {
                ended.push((place, finish));
            }
        }
        // From the back, so that places stay right.
        for (place, finish) in ended.into_iter().rev() {
            let sequence = self.running.remove(place);
            sequence.end(finish);
            if finish != Finish::NotFinite {
                self.prefixes.keep(sequence.tokens, sequence.cache);
            }
        }
        self.stats.running.store(self.running.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LlamaConfig;

    fn model(seed: u64) -> Model {
        let config = serde_json::json!({
            "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
            "tie_word_embeddings": true
        });
        Model::random(LlamaConfig::from_json(&config.to_string()).unwrap(), 0.3, seed)
    }

    fn params(seed: u64, max_tokens: usize) -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            max_tokens,
            stop_token_ids: vec![3],
            top_log_probs: 0,
            seed,
        }
    }

    async fn collect(mut generation: Generation) -> (Vec<Sampled>, Finish) {
        let mut sampled = Vec::new();
        loop {
            match generation.tokens.recv().await.unwrap() {
                Generated::Token(token) => sampled.push(token),
                Generated::End(finish) => return (sampled, finish),
            }
        }
    }

    fn start(limits: SchedulerLimits) -> Scheduler {
        Scheduler::start(model(1), limits, LogProbs::Processed).unwrap()
    }

    #[tokio::test]
    async fn a_seed_gives_the_same_tokens_whatever_else_runs() {
        let alone = start(SchedulerLimits::default());
        let mut expected = Vec::new();
        for seed in 0..12 {
            let prompt = vec![1, 2, 4 + seed as u32 % 5];
            expected.push(collect(alone.submit(prompt, params(seed, 20)).unwrap()).await);
        }
        // Together, with few places and chunks of two tokens.
        let limits = SchedulerLimits { max_num_seqs: 5, max_batched_tokens: 7, ..SchedulerLimits::default() };
        let together = start(limits);
        let submitted: Vec<Generation> =
            (0..12).map(|seed| together.submit(vec![1, 2, 4 + seed as u32 % 5], params(seed, 20)).unwrap()).collect();
        for (generation, (tokens, finish)) in submitted.into_iter().zip(expected) {
            let (found, found_finish) = collect(generation).await;
            let ids = |sampled: &[Sampled]| sampled.iter().map(|s| s.token).collect::<Vec<_>>();
            assert_eq!((ids(&found), found_finish), (ids(&tokens), finish));
            for (a, b) in found.iter().zip(&tokens) {
                assert!((a.log_prob - b.log_prob).abs() < 1e-5);
            }
        }
    }

    #[tokio::test]
    async fn a_stop_token_is_the_last_token() {
        let scheduler = start(SchedulerLimits::default());
        let mut stopped = 0;
        for seed in 0..40 {
            let (tokens, finish) = collect(scheduler.submit(vec![1, 2], params(seed, 30)).unwrap()).await;
            match finish {
                Finish::Stop => {
                    stopped += 1;
                    assert_eq!(tokens.last().unwrap().token, 3);
                }
                Finish::Length => assert_eq!(tokens.len(), 30),
                other => panic!("{other:?}"),
            }
            assert_eq!(tokens.iter().filter(|sampled| sampled.token == 3).count(), usize::from(finish == Finish::Stop));
        }
        assert!(stopped > 0);
    }

    #[tokio::test]
    async fn a_prompt_that_goes_on_reuses_what_was_computed() {
        let scheduler = start(SchedulerLimits::default());
        let first: Vec<u32> = (4..24).collect();
        let (sampled, _) = collect(scheduler.submit(first.clone(), params(5, 6)).unwrap()).await;
        let mut second = first;
        second.extend(sampled.iter().map(|s| s.token));
        second.extend([7, 8]);
        let (reused, _) = collect(scheduler.submit(second.clone(), params(6, 6)).unwrap()).await;
        assert!(scheduler.stats().cached_prompt_tokens.load(Ordering::Relaxed) >= 20);
        let (fresh, _) = collect(start(SchedulerLimits::default()).submit(second, params(6, 6)).unwrap()).await;
        for (a, b) in reused.iter().zip(&fresh) {
            assert_eq!(a.token, b.token);
            assert!((a.log_prob - b.log_prob).abs() < 1e-5);
        }
    }

    #[tokio::test]
    async fn new_weights_end_what_runs_and_serve_what_comes() {
        let scheduler = start(SchedulerLimits::default());
        let endless = SamplingParams { stop_token_ids: vec![], ..params(1, 8000) };
        let mut running = scheduler.submit(vec![1, 2], endless.clone()).unwrap();
        running.tokens.recv().await.unwrap();
        scheduler.swap(model(2)).await.unwrap();
        assert_eq!(collect(running).await.1, Finish::Abort);
        let after = collect(scheduler.submit(vec![1, 2], params(9, 8)).unwrap()).await.0;
        let other = Scheduler::start(model(2), SchedulerLimits::default(), LogProbs::Processed).unwrap();
        let expected = collect(other.submit(vec![1, 2], params(9, 8)).unwrap()).await.0;
        assert_eq!(after, expected);
    }

    #[tokio::test]
    async fn a_client_that_goes_away_frees_its_place() {
        let limits = SchedulerLimits { max_num_seqs: 1, ..SchedulerLimits::default() };
        let scheduler = start(limits);
        let endless = SamplingParams { stop_token_ids: vec![], ..params(1, 8000) };
        drop(scheduler.submit(vec![1, 2], endless).unwrap());
        let (tokens, _) = collect(scheduler.submit(vec![1, 2], params(2, 4)).unwrap()).await;
        assert!(!tokens.is_empty());
    }

    #[test]
    fn the_queue_is_bounded() {
        let limits = SchedulerLimits { max_queued: 0, ..SchedulerLimits::default() };
        assert_eq!(start(limits).submit(vec![1], params(1, 1)).unwrap_err(), SubmitError::QueueFull(0));
    }
}
