//! A training session: gateway, embedded engine, controller and trainer in one process, talking over loopback as they would
//! across machines.

mod preflight;
mod stop;
mod view;

pub use preflight::PreflightError;
pub use stop::on_signal as stop_on_signal;

use std::path::{Path, PathBuf};
use std::time::Duration;

use agl_client::{Client, ClientOptions};
use agl_controller::ControllerSettings;
use agl_engine::policy::{EmbeddedPolicy, PolicyOptions};
use agl_gateway::GatewaySettings;
use agl_protocol::{LocalConfig, ModelServer, RolloutConfig};
use agl_server::{Server, ServerOptions};
use agl_trainer::{Dataset, Outcome, RequiredField, Run, RunFolder, RunState};
use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::run_file::{AgentSection, RunFile};
use crate::terminal::Progress;
use view::View;

/// What a session is to do.
pub struct Session {
    /// The run file, paths resolved.
    pub run_file: RunFile,
    /// The run folder.
    pub run_dir: PathBuf,
    /// Go on with the run that is there.
    pub resume: bool,
    /// Where progress is shown.
    pub progress: Progress,
}

/// How a session ended.
pub struct SessionEnd {
    /// Whether all steps were done, and what was reached.
    pub outcome: Outcome,
    /// Mean reward of each training step of this run, the earlier sessions' included.
    pub rewards: Vec<f64>,
}

/// Gateway, controller and what stops them.
struct Stack {
    client: Client,
    stop_gateway: CancellationToken,
    stop_controller: CancellationToken,
    gateway: JoinHandle<()>,
    controller: JoinHandle<Result<(), agl_controller::ControllerError>>,
}

impl Session {
    /// Runs the session to its end on a runtime of its own.
    pub fn run(self) -> Result<SessionEnd> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
        let end = runtime.block_on(self.train());
        runtime.shutdown_timeout(Duration::from_secs(1));
        end
    }

    async fn train(self) -> Result<SessionEnd> {
        let stop = stop::on_signal().context("listen for Ctrl-C")?;
        // All that can be wrong with what the user wrote is found before anything starts.
        self.run_file.validate()?;
        let agent = preflight::check(&self.run_file.agent)?;
        let required = RequiredField::of_env_map(&agent.env_map);
        let train = Dataset::load(&self.run_file.data.train, &required).context("data.train")?;
        let validation = Dataset::load(&self.run_file.data.val, &required).context("data.val")?;

        let (folder, checkpoint, state) = self.open_folder()?;
        crate::logging::to_run_folder(&self.run_dir)?;
        let model_dir = checkpoint.as_deref().unwrap_or(&self.run_file.model.path);
        let mut policy = EmbeddedPolicy::open(model_dir, self.policy_options()).await.context("model.path")?;
        if let Some(checkpoint) = &checkpoint {
            agl_trainer::Policy::load(&mut policy, checkpoint).context("resume")?;
        }
        let server = ModelServer { model: self.run_file.model_name(), endpoint: policy.endpoint(), version: 0 };

        let stack = self.start_stack(&agent).await?;
        let run = Run {
            settings: self.run_file.trainer.clone(),
            train,
            validation,
            rollout_config: rollout_config(&agent),
            client: stack.client.clone(),
            model_servers: vec![server],
            policy,
            folder,
            state,
        };
        let mut view = View::new(self.progress.clone(), self.run_file.trainer.steps, &self.run_dir)?;
        let trained = run.train(|event| view.show(event), &stop).await;
        stack.stop().await;
        let rewards = view.into_rewards();
        let report = crate::report::write(&self.run_dir);
        let outcome = trained?;
        report.context("write the report")?;
        Ok(SessionEnd { outcome, rewards })
    }

    /// A new run folder, or the one to go on with and its newest checkpoint.
    fn open_folder(&self) -> Result<(RunFolder, Option<PathBuf>, RunState)> {
        if self.resume {
            let (folder, checkpoint, state) = RunFolder::resume(&self.run_dir)?;
            return Ok((folder, Some(checkpoint), state));
        }
        let folder = RunFolder::create(&self.run_dir)?;
        crate::run_file::write(&self.run_file, &self.run_dir)?;
        Ok((folder, None, RunState::default()))
    }

    fn policy_options(&self) -> PolicyOptions {
        PolicyOptions {
            model_name: self.run_file.model_name(),
            max_num_seqs: self.run_file.engine.max_num_seqs,
            max_model_len: self.run_file.engine.max_model_len,
            seed: self.run_file.engine.seed,
        }
    }

    /// Starts the gateway, then a controller on it.
    async fn start_stack(&self, agent: &AgentSection) -> Result<Stack> {
        let section = &self.run_file.gateway;
        let key = section.key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let trainer = &self.run_file.trainer;
        let server = Server::bind(ServerOptions {
            host: crate::address::resolve("gateway.host", &section.host)?,
            port: section.port,
            key: key.clone(),
            gateway: GatewaySettings {
                model_name: self.run_file.model_name(),
                train_temperature: trainer.train_temperature,
                val_temperature: trainer.val_temperature,
                ..GatewaySettings::default()
            },
            ..ServerOptions::default()
        })
        .await
        .context("gateway.port")?;
        let url = server.url();
        let client = Client::new(&url, Some(&key), ClientOptions::default())?;
        let (stop_gateway, stop_controller) = (CancellationToken::new(), CancellationToken::new());
        let gateway = tokio::spawn(server.serve(stop_gateway.clone()));
        let controller_settings = ControllerSettings {
            server_url: url,
            key: Some(key),
            pool_size: agent.pool_size,
            log_dir: self.run_dir.join("logs"),
            ..ControllerSettings::default()
        };
        let controller = tokio::spawn(agl_controller::run(controller_settings, stop_controller.clone()));
        Ok(Stack { client, stop_gateway, stop_controller, gateway, controller })
    }
}

impl Stack {
    /// Ends the controller with its agents first: its last reports need the gateway.
    async fn stop(self) {
        self.stop_controller.cancel();
        match self.controller.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the controller ended with an error"),
            Err(error) => tracing::error!(%error, "the controller ended with a panic"),
        }
        self.stop_gateway.cancel();
        if let Err(error) = self.gateway.await {
            tracing::error!(%error, "the gateway ended with a panic");
        }
    }
}

/// What each rollout tells the controller about its agent.
fn rollout_config(agent: &AgentSection) -> RolloutConfig {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    RolloutConfig {
        timeout_seconds: agent.timeout_seconds,
        local: Some(LocalConfig {
            agent_class: agent.agent_class.clone(),
            env_map: agent.env_map.clone(),
            command: agent.command.clone(),
            working_directory: agent.working_directory.as_deref().map(text),
        }),
        k8s: None,
    }
}
