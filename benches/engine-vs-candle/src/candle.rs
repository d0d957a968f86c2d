//! The model on candle, as one would write it: fused operations where no gradient is needed, primitive ones where it is,
//! since candle's fused `softmax_last_dim`, `rms_norm` and `rope` have no derivative.

use anyhow::{Context, Result};
use candle_core::{D, DType, Device, IndexOp, Tensor, Var};
use candle_nn::kv_cache::KvCache;
use candle_nn::{AdamW, Optimizer, ParamsAdamW, ops, rotary_emb};

use agl_engine::{LlamaConfig, Model};

pub struct Llama {
    config: LlamaConfig,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pub variables: Vec<Var>,
}

struct Layer {
    input_norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    post_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Whether gradients will be asked for.
#[derive(Clone, Copy, PartialEq)]
pub enum Mode {
    Serve,
    Train,
}

/// `[batch, time, inputs]` times `[outputs, inputs]` transposed.
fn linear(x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
    let (batch, time, inputs) = x.dims3()?;
    x.reshape((batch * time, inputs))?.matmul(&weight.t()?)?.reshape((batch, time, weight.dim(0)?))
}

impl Llama {
    /// The same weights as `model`.
    pub fn new(model: &Model) -> Result<Self> {
        let (config, device) = (model.config.as_ref().clone(), Device::Cpu);
        let mut variables = Vec::new();
        let mut tensor = |name: &str| -> Result<Tensor> {
            let spec = model.weights.layout().tensors().iter().find(|spec| spec.name == name).context("no tensor")?;
            let values = &model.weights.values()[spec.range.clone()];
            let variable = Var::from_slice(values, spec.shape.clone(), &device)?;
            variables.push(variable.clone());
            Ok(variable.as_tensor().clone())
        };
        let embedding = tensor("model.embed_tokens.weight")?;
        let mut layers = Vec::new();
        for layer in 0..config.num_hidden_layers {
            let mut part = |part: &str| tensor(&format!("model.layers.{layer}.{part}.weight"));
            layers.push(Layer {
                input_norm: part("input_layernorm")?,
                q: part("self_attn.q_proj")?,
                k: part("self_attn.k_proj")?,
                v: part("self_attn.v_proj")?,
                o: part("self_attn.o_proj")?,
                post_norm: part("post_attention_layernorm")?,
                gate: part("mlp.gate_proj")?,
                up: part("mlp.up_proj")?,
                down: part("mlp.down_proj")?,
            });
        }
        let norm = tensor("model.norm.weight")?;
        let half = config.head_dim / 2;
        let frequency = |i: usize| config.rope_theta.powf(-2.0 * i as f64 / config.head_dim as f64) as f32;
        let frequencies = Tensor::from_iter((0..half).map(frequency), &device)?.reshape((1, half))?;
        let positions = Tensor::arange(0f32, config.max_position_embeddings as f32, &device)?.unsqueeze(1)?;
        let angles = positions.matmul(&frequencies)?;
        Ok(Llama { embedding, layers, norm, cos: angles.cos()?, sin: angles.sin()?, variables, config })
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, mode: Mode) -> candle_core::Result<Tensor> {
        match mode {
            Mode::Train => ops::rms_norm_slow(x, weight, self.config.rms_norm_eps),
            Mode::Serve => ops::rms_norm(&x.contiguous()?, weight, self.config.rms_norm_eps),
        }
    }

    /// Residual stream of `ids` (`[batch, time]`) after the final norm; continues `caches` if there are any.
    fn hidden(&self, ids: &Tensor, past: usize, mut caches: Option<&mut Vec<KvCache>>, mode: Mode) -> Result<Tensor> {
        let (batch, time) = ids.dims2()?;
        let (hidden, heads, dim) = (self.config.hidden_size, self.config.num_attention_heads, self.config.head_dim);
        let mut x = self.embedding.index_select(&ids.flatten_all()?, 0)?.reshape((batch, time, hidden))?;
        let (cos, sin) = (self.cos.i(past..past + time)?, self.sin.i(past..past + time)?);
        let split = |x: Tensor| x.reshape((batch, time, heads, dim))?.transpose(1, 2)?.contiguous();
        let rope = |x: &Tensor| match mode {
            Mode::Train => rotary_emb::rope_slow(x, &cos, &sin),
            Mode::Serve => rotary_emb::rope(x, &cos, &sin),
        };
        let future = |i: usize, j: usize| if j > i + past { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..time).flat_map(|i| (0..past + time).map(move |j| future(i, j))).collect();
        let mask = Tensor::from_vec(mask, (time, past + time), ids.device())?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = self.rms_norm(&x, &layer.input_norm, mode)?;
            let q = rope(&split(linear(&normed, &layer.q)?)?)?;
            let mut k = rope(&split(linear(&normed, &layer.k)?)?)?;
            let mut v = split(linear(&normed, &layer.v)?)?;
            if let Some(caches) = caches.as_deref_mut() {
                (k, v) = caches[index].append(&k, &v)?;
            }
            let scores = (q.matmul(&k.t()?)? / (dim as f64).sqrt())?;
            let scores = if time > 1 { scores.broadcast_add(&mask)? } else { scores };
            let weights = match mode {
                Mode::Train => ops::softmax(&scores, D::Minus1)?,
                Mode::Serve => ops::softmax_last_dim(&scores)?,
            };
            let attended = weights.matmul(&v.contiguous()?)?.transpose(1, 2)?.reshape((batch, time, heads * dim))?;
            x = (x + linear(&attended, &layer.o)?)?;
            let normed = self.rms_norm(&x, &layer.post_norm, mode)?;
            let activated = (linear(&normed, &layer.gate)?.silu()? * linear(&normed, &layer.up)?)?;
            x = (x + linear(&activated, &layer.down)?)?;
        }
        Ok(self.rms_norm(&x, &self.norm, mode)?)
    }

    /// Mean of the negative log-probabilities of `targets` after `inputs`, both `[batch, time]`.
    pub fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = linear(&self.hidden(inputs, 0, None, Mode::Train)?, &self.embedding)?;
        let log_probs = ops::log_softmax(&logits, D::Minus1)?;
        Ok(log_probs.gather(&targets.unsqueeze(2)?, 2)?.mean_all()?.neg()?)
    }

    /// Logits of the last of `ids`, `[batch, time]`.
    pub fn next(&self, ids: &Tensor, past: usize, caches: &mut Vec<KvCache>) -> Result<Tensor> {
        let hidden = self.hidden(ids, past, Some(caches), Mode::Serve)?;
        let last = hidden.i((.., ids.dim(1)? - 1.., ..))?.contiguous()?;
        Ok(linear(&last, &self.embedding)?)
    }

    pub fn caches(&self, len: usize) -> Vec<KvCache> {
        self.layers.iter().map(|_| KvCache::new(2, len)).collect()
    }

    pub fn adamw(&self, lr: f64) -> Result<AdamW> {
        let parameters = ParamsAdamW { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
        Ok(AdamW::new(self.variables.clone(), parameters)?)
    }
}

/// Token ids as a `[rows, width]` tensor.
pub fn ids<'a>(rows: impl IntoIterator<Item = &'a [u32]>) -> Result<Tensor> {
    let rows: Vec<&[u32]> = rows.into_iter().collect();
    let shape = (rows.len(), rows[0].len());
    Ok(Tensor::from_vec(rows.concat(), shape, &Device::Cpu)?.to_dtype(DType::U32)?)
}
