//! Model folders: what is written reads back, in every form that is read, and what is wrong is named.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use agl_engine::checkpoint::LoadError;
use agl_engine::model::ConfigError;
use agl_engine::{AdamWConfig, Learner, LlamaConfig, Model, Sequence, load_model, save_model};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::support::{small_config, small_model, tiny_llama};

/// A tensor of a file to write.
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn tensors_of(model: &Model, dtype: Dtype) -> Vec<Tensor> {
    let encode = |value: &f32| match dtype {
        Dtype::BF16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    let tensor = |spec: &agl_engine::model::TensorSpec| Tensor {
        name: spec.name.clone(),
        dtype,
        shape: spec.shape.clone(),
        bytes: model.weights.values()[spec.range.clone()].iter().flat_map(encode).collect(),
    };
    model.weights.layout().tensors().iter().map(tensor).collect()
}

fn write(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|t| (&t.name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A folder with the model's config and these weights.
fn folder(model: &Model, tensors: &[Tensor]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), serde_json::to_vec(&*model.config).unwrap()).unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    folder
}

fn model() -> Model {
    small_model(small_config(2, false, "llama"), 21)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn what_is_saved_loads_bit_for_bit() {
    for model in [model(), small_model(small_config(1, true, "qwen2"), 3), load_model(&tiny_llama()).unwrap()] {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        for _again in 0..2 {
            save_model(&model, &folder).unwrap();
            let loaded = load_model(&folder).unwrap();
            assert_eq!(loaded.config, model.config);
            assert_eq!(bits(loaded.weights.values()), bits(model.weights.values()));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file stays");
    }
}

#[test]
fn half_precision_is_read_exactly() {
    let model = model();
    for (dtype, round) in
        [(Dtype::BF16, (|x| bf16::from_f32(x).to_f32()) as fn(f32) -> f32), (Dtype::F16, |x| f16::from_f32(x).to_f32())]
    {
        let folder = folder(&model, &tensors_of(&model, dtype));
        let expected: Vec<f32> = model.weights.values().iter().map(|value| round(*value)).collect();
        assert_eq!(bits(load_model(folder.path()).unwrap().weights.values()), bits(&expected), "{dtype:?}");
    }
}

#[test]
fn shards_are_read_through_the_index() {
    let model = model();
    let mut first = tensors_of(&model, Dtype::F32);
    let second = first.split_off(7);
    let folder = folder(&model, &[]);
    let path = |name: &str| folder.path().join(name);
    fs::remove_file(path("model.safetensors")).unwrap();
    write(&path("model-00001-of-00002.safetensors"), &first);
    write(&path("model-00002-of-00002.safetensors"), &second);
    let map: HashMap<&str, &str> = first
        .iter()
        .map(|t| (t.name.as_str(), "model-00001-of-00002.safetensors"))
        .chain(second.iter().map(|t| (t.name.as_str(), "model-00002-of-00002.safetensors")))
        .collect();
    fs::write(path("model.safetensors.index.json"), serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    assert_eq!(*load_model(folder.path()).unwrap().weights, *model.weights);

    fs::remove_file(path("model-00002-of-00002.safetensors")).unwrap();
    let error = load_model(folder.path()).unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");

    fs::write(path("model.safetensors.index.json"), r#"{"weight_map": {"a": "../b.safetensors"}}"#).unwrap();
    assert!(matches!(load_model(folder.path()), Err(LoadError::Index { .. })));
}

#[test]
fn incomplete_folders_are_named() {
    let model = model();
    let whole = tensors_of(&model, Dtype::F32);
    let message = |folder: &Path| load_model(folder).unwrap_err().to_string();
    let nowhere = tempfile::tempdir().unwrap();
    assert!(message(&nowhere.path().join("gone")).contains("not a folder"));
    assert!(message(nowhere.path()).contains("holds no config.json"));

    let no_weights = folder(&model, &whole);
    fs::remove_file(no_weights.path().join("model.safetensors")).unwrap();
    assert!(message(no_weights.path()).contains("holds no model.safetensors"));

    let cut = folder(&model, &whole);
    let weights = cut.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    assert!(message(cut.path()).contains("model.safetensors is not a whole safetensors file"));

    let missing = folder(&model, &whole[..whole.len() - 1]);
    assert!(message(missing.path()).contains("no tensor `lm_head.weight`"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let model = model();
    let refusal = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut tensors = tensors_of(&model, Dtype::F32);
        change(&mut tensors);
        load_model(folder(&model, &tensors).path()).unwrap_err()
    };
    let error = refusal(&|tensors| tensors[2].shape.reverse());
    assert!(
        matches!(&error, LoadError::Shape { tensor, found, expected, .. }
            if tensor == "model.layers.0.self_attn.q_proj.weight" && *found == [20, 24] && *expected == [24, 20]),
        "{error}"
    );
    let error = refusal(&|tensors| tensors[1].name = "model.layers.0.self_attn.q_norm.weight".into());
    assert!(matches!(&error, LoadError::UnexpectedTensor { tensor, .. } if tensor.contains("q_norm")), "{error}");
    let error = refusal(&|tensors| tensors[1].dtype = Dtype::I32);
    assert!(matches!(&error, LoadError::Dtype { dtype: Dtype::I32, .. }), "{error}");
}

#[test]
fn a_tied_head_in_the_file_is_passed_over() {
    let model = small_model(small_config(2, true, "llama"), 21);
    let mut tensors = tensors_of(&model, Dtype::F32);
    let embedding = &tensors[0];
    let (shape, bytes) = (embedding.shape.clone(), embedding.bytes.clone());
    tensors.push(Tensor { name: "lm_head.weight".into(), dtype: Dtype::F32, shape, bytes });
    assert_eq!(*load_model(folder(&model, &tensors).path()).unwrap().weights, *model.weights);
}

#[test]
fn the_optimizer_goes_on_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let sequences = [Sequence { tokens: vec![1, 2, 3, 4, 5], scored: 1..5 }];
    let train = |learner: &mut Learner, steps: usize| {
        for step in 0..steps {
            let weights = vec![vec![-0.25, -0.5, 0.125 * step as f32, -1.0]];
            learner.accumulate(&sequences, 1.0, |_| (0.0, weights)).unwrap();
            learner.step(1e-2, 1.0);
        }
    };
    let mut straight = Learner::new(model(), AdamWConfig::default());
    train(&mut straight, 3);
    let state = folder.path().join("optimizer.safetensors");
    save_model(&straight.model(), folder.path()).unwrap();
    straight.save_optimizer(&state).unwrap();
    train(&mut straight, 3);

    let mut resumed = Learner::new(load_model(folder.path()).unwrap(), AdamWConfig::default());
    resumed.load_optimizer(&state).unwrap();
    assert_eq!(resumed.steps(), 3);
    train(&mut resumed, 3);
    assert_eq!(bits(resumed.model().weights.values()), bits(straight.model().weights.values()));

    let mut other = Learner::new(small_model(small_config(4, false, "llama"), 1), AdamWConfig::default());
    let error = other.load_optimizer(&state).unwrap_err().to_string();
    assert!(error.contains("exp_avg.model.layers.0.self_attn.k_proj.weight"), "{error}");
}

#[test]
fn configs_are_read_as_transformers_writes_them() {
    let read = |change: serde_json::Value| {
        let mut config = serde_json::to_value(small_config(2, false, "llama")).unwrap();
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        LlamaConfig::from_json(&config.to_string())
    };
    let config = read(serde_json::json!({"eos_token_id": 7, "head_dim": null, "hidden_size": 24})).unwrap();
    assert_eq!((config.eos_token_ids, config.head_dim), (vec![7], 6));
    let nested = read(serde_json::json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})).unwrap();
    assert_eq!(nested.rope_theta.to_bits(), 5e5f64.to_bits());

    let unsupported = |field, change| match read(change) {
        Err(ConfigError::Unsupported { field: found, .. }) => assert_eq!(found, field),
        other => panic!("{field}: {other:?}"),
    };
    unsupported("rope_scaling.rope_type", serde_json::json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}));
    unsupported("model_type", serde_json::json!({"model_type": "qwen3"}));
    unsupported("hidden_act", serde_json::json!({"hidden_act": "gelu"}));
    unsupported("attention_bias", serde_json::json!({"attention_bias": true}));
    unsupported("mlp_bias", serde_json::json!({"mlp_bias": true}));
    unsupported("sliding_window", serde_json::json!({"model_type": "mistral", "sliding_window": 4096}));
    unsupported("partial_rotary_factor", serde_json::json!({"partial_rotary_factor": 0.5}));

    assert_eq!(read(serde_json::json!({"vocab_size": null})), Err(ConfigError::Missing { field: "vocab_size" }));
    let odd = read(serde_json::json!({"num_key_value_heads": 3}));
    assert!(matches!(odd, Err(ConfigError::Invalid { field: "num_key_value_heads", .. })), "{odd:?}");
}
