//! Hydra and OmegaConf compatible configuration: YAML, override grammar, interpolation.
