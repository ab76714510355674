//! A checkpoint from a GGUF file. Its keys and tensors are given the names
//! that Hugging Face uses, so that a family is written once.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value, json};

use super::{
    LoadError,
    checkpoint::{Checkpoint, GgufTokenizer, Source, Tensor, TokenizerData},
    families,
    gguf_header::{Header, Place},
};

const GEMMA: &str = "gemma3_text";

/// `tokenizer.ggml.token_type` of tokens that are no text.
const CONTROL: i32 = 3;
/// What ends a turn in the chats of Qwen, Llama and Gemma.
const TURN_ENDS: [&str; 3] = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"];

/// Keys below the architecture's name, and what Hugging Face calls them.
const KEYS: [(&str, &str); 15] = [
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.sliding_window_pattern", "sliding_window_pattern"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("expert_count", "num_local_experts"),
];

/// Parts of a layer, and what Hugging Face calls them.
const LAYER_TENSORS: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Those of Gemma, whose layers have more norms.
const GEMMA_TENSORS: [(&str, &str); 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

pub(super) fn open(path: &Path) -> Result<Checkpoint, LoadError> {
    let header = Header::read(path)?;
    let malformed = |reason: &str| LoadError::Malformed {
        path: path.to_owned(),
        format: "GGUF",
        reason: reason.to_owned(),
    };
    let architecture = header
        .text("general.architecture")
        .ok_or_else(|| malformed("it does not say its general.architecture"))?
        .to_owned();
    let model_type = families::of_architecture(&architecture)?;
    check_whole(&header)?;
    let tensors = tensors(&header, model_type);
    let config = config(&header, &architecture, model_type, &tensors)?;
    let tokenizer = tokenizer(&header);
    if tokenizer.model.is_empty() || tokenizer.tokens.is_empty() {
        return Err(malformed("it has no tokenizer"));
    }
    let special = |id: Option<u32>| tokenizer.tokens.get(id? as usize).cloned();
    let stem = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Ok(Checkpoint {
        name: stem,
        vocabulary_size: families::count(&config, "vocab_size")?,
        context_length: families::count(&config, "max_position_embeddings")?,
        end_of_sequence: end_of_sequence(&header, &tokenizer),
        chat_template: header.text("tokenizer.chat_template").map(str::to_owned),
        tool_template: header
            .text("tokenizer.chat_template.tool_use")
            .map(str::to_owned),
        bos_token: special(tokenizer.bos),
        eos_token: special(tokenizer.eos),
        tokenizer: TokenizerData::Gguf(tokenizer),
        model_type: model_type.to_owned(),
        config,
        tensors,
        source: Source::Gguf(path.to_owned(), places(header)),
    })
}

fn check_whole(header: &Header) -> Result<(), LoadError> {
    match header.index("split.count") {
        Some(count) if count > 1 => Err(LoadError::Setting {
            setting: "split.count".to_owned(),
            found: count.to_string(),
            expected: "join the parts first, with `llama-gguf-split --merge`".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn places(header: Header) -> BTreeMap<String, Place> {
    let places = header.tensors.into_iter();
    places.map(|place| (place.name.clone(), place)).collect()
}

fn config(
    header: &Header,
    architecture: &str,
    model_type: &str,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<Map<String, Value>, LoadError> {
    let mut config = Map::new();
    config.insert("model_type".to_owned(), json!(model_type));
    for (key, name) in KEYS {
        if let Some(number) = header.number(&format!("{architecture}.{key}")) {
            config.insert(name.to_owned(), number_value(number));
        }
    }
    // The embedding decides: some files do not say the vocabulary's size, and
    // some say one without the padding.
    if let Some(rows) = tensors
        .get("model.embed_tokens.weight")
        .and_then(|t| t.shape.first())
    {
        config.insert("vocab_size".to_owned(), json!(rows));
    }
    let tied = !tensors.contains_key("lm_head.weight");
    config.insert("tie_word_embeddings".to_owned(), json!(tied));
    rope_settings(header, architecture, &mut config)?;
    if model_type == GEMMA {
        gemma_settings(&mut config)?;
    }
    Ok(config)
}

/// What GGUF files of Gemma 3 do not say: queries are scaled by their heads'
/// width, in the largest model by their share of the hidden size.
fn gemma_settings(config: &mut Map<String, Value>) -> Result<(), LoadError> {
    const LAYERS_OF_LARGEST: u32 = 62;
    let scalar = if families::count(config, "num_hidden_layers")? == LAYERS_OF_LARGEST {
        families::count(config, "hidden_size")? / families::count(config, "num_attention_heads")?
    } else {
        families::count(config, "head_dim")?
    };
    config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
    Ok(())
}

fn rope_settings(
    header: &Header,
    architecture: &str,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    if let Some(scaling) = rope_scaling(header, &key("scaling."), &key("scale_linear"))? {
        config.insert("rope_scaling".to_owned(), Value::Object(scaling));
    }
    let heads = header.index(&format!("{architecture}.attention.head_count"));
    let hidden = header.index(&format!("{architecture}.embedding_length"));
    let head_dim = header
        .index(&format!("{architecture}.attention.key_length"))
        .or_else(|| hidden?.checked_div(heads?));
    match (header.index(&key("dimension_count")), head_dim) {
        (Some(rotated), Some(head_dim)) if rotated != head_dim => Err(LoadError::Setting {
            setting: key("dimension_count"),
            found: rotated.to_string(),
            expected: format!("only the whole head, {head_dim}, is supported"),
        }),
        _ => Ok(()),
    }
}

fn rope_scaling(
    header: &Header,
    prefix: &str,
    old_factor: &str,
) -> Result<Option<Map<String, Value>>, LoadError> {
    let given = header.text(&format!("{prefix}type"));
    // llama.cpp takes it for that; older files name the factor alone.
    let kind = given.unwrap_or("linear");
    if kind == "none" {
        return Ok(None);
    }
    let mut scaling = Map::new();
    scaling.insert("rope_type".to_owned(), json!(kind));
    if let Some(factor) = header.number(old_factor) {
        scaling.insert("factor".to_owned(), number_value(factor));
    }
    let keys = header.metadata.keys();
    for (key, name) in keys.filter_map(|key| Some((key, key.strip_prefix(prefix)?))) {
        let name = match name {
            // Only a remark for most types.
            "original_context_length" if kind != "yarn" => continue,
            "type" | "finetuned" => continue,
            "factor" => "factor",
            "original_context_length" => "original_max_position_embeddings",
            _ => {
                return Err(LoadError::Setting {
                    setting: key.clone(),
                    found: "given".to_owned(),
                    expected: "it is not supported".to_owned(),
                });
            }
        };
        if let Some(number) = header.number(key) {
            scaling.insert(name.to_owned(), number_value(number));
        }
    }
    let is_scaled = given.is_some() || scaling.contains_key("factor");
    Ok(is_scaled.then_some(scaling))
}

/// A JSON integer where the number is one.
fn number_value(number: f64) -> Value {
    if number.fract() == 0.0 && (0.0..9e15).contains(&number) {
        json!(number as u64)
    } else {
        json!(number)
    }
}

fn tensors(header: &Header, model_type: &str) -> BTreeMap<String, Tensor> {
    let entry = |place: &Place| {
        let tensor = Tensor {
            shape: place.shape.clone(),
            stored_name: place.name.clone(),
            quantised: None,
        };
        (tensor_name(&place.name, model_type), tensor)
    };
    header.tensors.iter().map(entry).collect()
}

/// Hugging Face's name of a tensor; its own where there is none.
fn tensor_name(name: &str, model_type: &str) -> String {
    let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, ""));
    let own: &[(&str, &str)] = match model_type {
        GEMMA => &GEMMA_TENSORS,
        _ => &[],
    };
    let layer_name = || {
        let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
        let mut names = own.iter().chain(&LAYER_TENSORS);
        let (_, hugging_face) = names.find(|(gguf, _)| *gguf == part)?;
        Some(format!("model.layers.{layer}.{hugging_face}.{suffix}"))
    };
    match stem {
        "token_embd" => format!("model.embed_tokens.{suffix}"),
        "output_norm" => format!("model.norm.{suffix}"),
        "output" => format!("lm_head.{suffix}"),
        _ => layer_name().unwrap_or_else(|| name.to_owned()),
    }
}

fn tokenizer(header: &Header) -> GgufTokenizer {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |name: &str| header.text(&key(name)).unwrap_or_default().to_owned();
    GgufTokenizer {
        model: text("model"),
        pre: text("pre"),
        tokens: header.texts(&key("tokens")).to_vec(),
        merges: header.texts(&key("merges")).to_vec(),
        scores: header
            .numbers(&key("scores"))
            .iter()
            .map(|&score| score as f32)
            .collect(),
        token_types: header
            .numbers(&key("token_type"))
            .iter()
            .map(|&kind| kind as i32)
            .collect(),
        bos: header.index(&key("bos_token_id")),
        eos: header.index(&key("eos_token_id")),
        add_bos: header.bool(&key("add_bos_token")),
        add_space_prefix: header.bool(&key("add_space_prefix")),
    }
}

/// The ends of a sequence, of a turn and of a message: each ends generation.
/// Older files do not name the end of a turn, but have it.
fn end_of_sequence(header: &Header, tokenizer: &GgufTokenizer) -> Vec<u32> {
    let key = |name: &str| header.index(&format!("tokenizer.ggml.{name}"));
    let mut ends: Vec<u32> = ["eos_token_id", "eot_token_id", "eom_token_id"]
        .into_iter()
        .filter_map(key)
        .collect();
    if key("eot_token_id").is_none() {
        let tokens = tokenizer.tokens.iter().zip(&tokenizer.token_types);
        ends.extend(
            (0..)
                .zip(tokens)
                .filter(|(_, (token, kind))| {
                    **kind == CONTROL && TURN_ENDS.contains(&token.as_str())
                })
                .map(|(id, _)| id),
        );
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}
