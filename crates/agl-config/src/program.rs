//! The two programs whose command line we speak, and the configuration files built into them.

use crate::settings::{CONTROLLER_KEYS, SERVER_KEYS};

/// Hydra's own settings; see `conf/hydra/config.yaml`.
pub(crate) const HYDRA_FILES: &[(&str, &str)] = &[
    ("hydra/config", include_str!("../conf/hydra/config.yaml")),
    ("hydra/output/default", include_str!("../conf/hydra/output/default.yaml")),
    ("hydra/launcher/basic", include_str!("../conf/hydra/launcher/basic.yaml")),
    ("hydra/sweeper/basic", include_str!("../conf/hydra/sweeper/basic.yaml")),
    ("hydra/env/default", include_str!("../conf/hydra/env/default.yaml")),
    ("hydra/help/default", include_str!("../conf/hydra/help/default.yaml")),
    ("hydra/hydra_help/default", include_str!("../conf/hydra/hydra_help/default.yaml")),
    ("hydra/hydra_logging/default", include_str!("../conf/hydra/hydra_logging/default.yaml")),
    ("hydra/hydra_logging/hydra_debug", include_str!("../conf/hydra/hydra_logging/hydra_debug.yaml")),
    ("hydra/hydra_logging/none", include_str!("../conf/hydra/hydra_logging/none.yaml")),
    ("hydra/hydra_logging/disabled", include_str!("../conf/hydra/hydra_logging/disabled.yaml")),
    ("hydra/job_logging/default", include_str!("../conf/hydra/job_logging/default.yaml")),
    ("hydra/job_logging/none", include_str!("../conf/hydra/job_logging/none.yaml")),
    ("hydra/job_logging/disabled", include_str!("../conf/hydra/job_logging/disabled.yaml")),
    ("hydra/job_logging/stdout", include_str!("../conf/hydra/job_logging/stdout.yaml")),
];

/// The programs' own defaults. Each can be asked for the other's with `--config-name`, as in the original.
pub(crate) const PROGRAM_FILES: &[(&str, &str)] =
    &[("controller", include_str!("../conf/controller.yaml")), ("server", include_str!("../conf/server.yaml"))];

/// A program with a command line like Hydra's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `agl-server`
    Server,
    /// `agl-controller`
    Controller,
}

impl Program {
    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "agl-server",
            Self::Controller => "agl-controller",
        }
    }

    /// Its defaults, by the name for `--config-name`.
    pub(crate) fn config_name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Controller => "controller",
        }
    }

    /// Keys that may be set though the defaults don't show them.
    pub(crate) fn more_keys(self) -> &'static [&'static str] {
        match self {
            Self::Server => SERVER_KEYS,
            Self::Controller => CONTROLLER_KEYS,
        }
    }

    /// The Python package around the original's entry point: relative `--config-path`s start there.
    pub(crate) fn python_package(self) -> &'static str {
        match self {
            Self::Server => "agentlightning.server",
            Self::Controller => "agentlightning.controller",
        }
    }
}
