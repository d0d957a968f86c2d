//! `config.json` of a Hugging Face folder, refused where it asks for something these kernels don't compute.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Shape and constants of a model. Read it from `config.json` with `serde` or [`LlamaConfig::from_json`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct LlamaConfig {
    /// `llama`, `mistral` (without a sliding window) or `qwen2`: the families these kernels compute.
    pub model_type: String,
    /// Rows of the embedding: token ids are below this.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads per layer.
    pub num_attention_heads: usize,
    /// Key/value heads per layer; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Context extension of the rotary embedding, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// Positions the model was made for: a sequence may not be longer.
    pub max_position_embeddings: usize,
    /// Whether the output head is the embedding itself.
    pub tie_word_embeddings: bool,
    /// Whether the query, key and value projections have biases (Qwen2).
    pub qkv_bias: bool,
    /// Token that opens a sequence, if the model has one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end generation; empty when the model names none.
    pub eos_token_ids: Vec<u32>,
}

/// The kinds of `rope_scaling` that are computed.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Llama 3.1's blend of slowed-down and unchanged frequencies.
    Llama3 {
        /// How many times slower the slow components turn.
        factor: f64,
        /// Turns in the original context below which a component is slowed down fully.
        low_freq_factor: f64,
        /// Turns in the original context above which a component is left as it is.
        high_freq_factor: f64,
        /// Context length before the extension, in tokens.
        original_max_position_embeddings: usize,
    },
}

/// Why a `config.json` was refused.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConfigError {
    /// A field is not there.
    #[error("config.json has no field `{field}`")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field holds something that can't be read.
    #[error("config.json: `{field}` is {value}, which is not {expected}")]
    Invalid {
        /// Its name.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A field asks for a variant that these kernels don't compute.
    #[error("config.json: `{field}` is {value}, which this engine doesn't compute; it computes {supported}")]
    Unsupported {
        /// Its name.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What would be accepted.
        supported: &'static str,
    },
    /// The file is not a JSON object.
    #[error("config.json is not a JSON object: {0}")]
    Json(String),
}

impl LlamaConfig {
    /// Reads and checks the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        Self::try_from(fields)
    }

    fn check_shape(&self) -> Result<(), ConfigError> {
        let invalid =
            |field, value: usize, expected| Err(ConfigError::Invalid { field, value: value.to_string(), expected });
        if self.num_key_value_heads == 0 || !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return invalid("num_key_value_heads", self.num_key_value_heads, "a divisor of num_attention_heads");
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return invalid("head_dim", self.head_dim, "an even number above zero");
        }
        for (field, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if value == 0 {
                return invalid(field, value, "above zero");
            }
        }
        Ok(())
    }
}

/// The fields of the file, each asked for once.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    /// Hugging Face writes absent options as null.
    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        as_type: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        self.get(field)
            .map(|value| as_type(value).ok_or(ConfigError::Invalid { field, value: value.to_string(), expected }))
            .transpose()
    }

    fn count(&self, field: &'static str) -> Result<Option<usize>, ConfigError> {
        self.read(field, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn needed(&self, field: &'static str) -> Result<usize, ConfigError> {
        self.count(field)?.ok_or(ConfigError::Missing { field })
    }

    fn number(&self, field: &'static str) -> Result<Option<f64>, ConfigError> {
        self.read(field, "a number", Value::as_f64)
    }

    fn flag(&self, field: &'static str) -> Result<bool, ConfigError> {
        Ok(self.read(field, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    fn text(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        self.read(field, "a string", |value| Some(value.as_str()?.to_owned()))
    }

    fn token_ids(&self, field: &'static str) -> Result<Vec<u32>, ConfigError> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let ids = self.read(field, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// Refuses a variant by name unless the field is absent or holds one of `supported`.
    fn only(&self, field: &'static str, supported: &[Value], says: &'static str) -> Result<(), ConfigError> {
        match self.get(field) {
            Some(value) if !supported.contains(value) => {
                Err(ConfigError::Unsupported { field, value: value.to_string(), supported: says })
            }
            _ => Ok(()),
        }
    }
}

impl TryFrom<Map<String, Value>> for LlamaConfig {
    type Error = ConfigError;

    fn try_from(map: Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields(&map);
        let model_type = fields.text("model_type")?.ok_or(ConfigError::Missing { field: "model_type" })?;
        fields.only("model_type", &[json!("llama"), json!("mistral"), json!("qwen2")], "llama, mistral and qwen2")?;
        fields.only("hidden_act", &[json!("silu")], "silu")?;
        fields.only("attention_bias", &[json!(false)], "models without a bias on the attention output")?;
        fields.only("mlp_bias", &[json!(false)], "models without feed-forward biases")?;
        fields.only("partial_rotary_factor", &[json!(1.0), json!(1)], "rotary embedding of whole heads")?;
        if model_type == "mistral" {
            fields.only("sliding_window", &[], "full attention: null")?;
        }
        fields.only("use_sliding_window", &[json!(false)], "full attention")?;
        let (rope_theta, rope_scaling) = read_rope(&fields)?;
        let (hidden_size, heads) = (fields.needed("hidden_size")?, fields.needed("num_attention_heads")?);
        let config = LlamaConfig {
            vocab_size: fields.needed("vocab_size")?,
            hidden_size,
            intermediate_size: fields.needed("intermediate_size")?,
            num_hidden_layers: fields.needed("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: fields.count("num_key_value_heads")?.unwrap_or(heads),
            head_dim: fields.count("head_dim")?.unwrap_or(hidden_size / heads.max(1)),
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope_theta,
            rope_scaling,
            max_position_embeddings: fields.needed("max_position_embeddings")?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            qkv_bias: model_type == "qwen2",
            bos_token_id: fields.token_ids("bos_token_id")?.first().copied(),
            eos_token_ids: fields.token_ids("eos_token_id")?,
            model_type,
        };
        config.check_shape()?;
        Ok(config)
    }
}

/// Transformers 5 groups what earlier versions spread over `rope_theta` and `rope_scaling`.
fn read_rope(fields: &Fields<'_>) -> Result<(f64, Option<RopeScaling>), ConfigError> {
    let nothing = Map::new();
    let inner = ["rope_parameters", "rope_scaling"].iter().find_map(|field| fields.get(field)?.as_object());
    let inner = Fields(inner.unwrap_or(&nothing));
    let theta = match inner.number("rope_theta")? {
        Some(theta) => theta,
        None => fields.number("rope_theta")?.unwrap_or(10_000.0),
    };
    let kind = inner.get("rope_type").or_else(|| inner.get("type")).and_then(Value::as_str).unwrap_or("default");
    let needed = |field| inner.number(field)?.ok_or(ConfigError::Missing { field });
    match kind {
        "default" => Ok((theta, None)),
        "llama3" => Ok((
            theta,
            Some(RopeScaling::Llama3 {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_max_position_embeddings: inner.needed("original_max_position_embeddings")?,
            }),
        )),
        other => Err(ConfigError::Unsupported {
            field: "rope_scaling.rope_type",
            value: format!("{other:?}"),
            supported: "default and llama3",
        }),
    }
}

impl From<LlamaConfig> for Map<String, Value> {
    fn from(config: LlamaConfig) -> Self {
        let architecture = match config.model_type.as_str() {
            "mistral" => "MistralForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        let rope_scaling = config.rope_scaling.as_ref().map(
            |RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings }| {
                json!({
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": low_freq_factor,
                    "high_freq_factor": high_freq_factor,
                    "original_max_position_embeddings": original_max_position_embeddings,
                })
            },
        );
        let value = json!({
            "architectures": [architecture],
            "model_type": config.model_type,
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            // The shortest decimal of the f32, which reads back as the same f32.
            "rms_norm_eps": config.rms_norm_eps.to_string().parse::<f64>().unwrap_or(f64::from(config.rms_norm_eps)),
            "rope_theta": config.rope_theta,
            "rope_scaling": rope_scaling,
            "max_position_embeddings": config.max_position_embeddings,
            "tie_word_embeddings": config.tie_word_embeddings,
            "bos_token_id": config.bos_token_id,
            "eos_token_id": config.eos_token_ids,
            "torch_dtype": "float32",
        });
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}
