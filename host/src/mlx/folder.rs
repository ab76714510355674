//! A checkpoint from a folder as Hugging Face and MLX write them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    LoadError,
    checkpoint::{Checkpoint, Quantisation, Source, Tensor, TokenizerData},
    families,
    safetensors::{Stored, read_header},
    settings::Settings,
};

/// Tensors some exporters write that can be computed and are not read.
const COMPUTED: &str = "rotary_emb.inv_freq";

pub(super) fn open(folder: &Path) -> Result<Checkpoint, LoadError> {
    let config = json(&folder.join("config.json"))?
        .ok_or_else(|| LoadError::NotAModel(folder.to_owned()))?;
    let settings = Settings(&config);
    let model_type = settings
        .text("model_type")
        .ok_or_else(|| Settings::wrong("model_type", &"absent", "it is needed"))?
        .to_owned();
    families::known(&model_type)?;

    let files = weight_files(folder)?;
    let mut stored = BTreeMap::new();
    for file in &files {
        for (name, tensor) in read_header(file)? {
            if !name.ends_with(COMPUTED) {
                stored.insert(name, tensor);
            }
        }
    }
    let tensors = tensors(stored, settings)?;

    let tokenizer = folder.join("tokenizer.json");
    let tokenizer = fs::read(&tokenizer).map_err(|source| LoadError::Read {
        path: tokenizer,
        source,
    })?;
    let tokenizer_config = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let generation_config = json(&folder.join("generation_config.json"))?.unwrap_or_default();
    let (chat_template, tool_template) = chat_templates(folder, &tokenizer_config)?;
    Ok(Checkpoint {
        name: folder_name(folder),
        vocabulary_size: families::count(&config, "vocab_size")?,
        context_length: families::count(&config, "max_position_embeddings")?,
        end_of_sequence: end_of_sequence(&[&generation_config, &config]),
        tokenizer: TokenizerData::Json(tokenizer),
        chat_template,
        tool_template,
        bos_token: special_token(&tokenizer_config, "bos_token"),
        eos_token: special_token(&tokenizer_config, "eos_token"),
        model_type,
        config,
        tensors,
        source: Source::Safetensors(files),
    })
}

fn folder_name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The content of a JSON file; none where there is no such file.
fn json(path: &Path) -> Result<Option<Map<String, Value>>, LoadError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(LoadError::Read {
                path: path.to_owned(),
                source,
            });
        }
        Ok(text) => text,
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| LoadError::Malformed {
            path: path.to_owned(),
            format: "JSON",
            reason: error.to_string(),
        })
}

/// The files the index names, or every safetensors file of the folder.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let index = json(&folder.join("model.safetensors.index.json"))?;
    let names: BTreeSet<PathBuf> = if let Some(index) = index {
        let map = Settings(&index).table("weight_map")?;
        let names = map
            .iter()
            .flat_map(|map| map.0.values())
            .filter_map(Value::as_str);
        names.map(|name| folder.join(name)).collect()
    } else {
        let entries = fs::read_dir(folder).map_err(|source| LoadError::Read {
            path: folder.to_owned(),
            source,
        })?;
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        paths
            .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
            .collect()
    };
    if names.is_empty() {
        return Err(LoadError::NotAModel(folder.to_owned()));
    }
    Ok(names.into_iter().collect())
}

/// The tensors as the model uses them: a quantised one is stored as three.
fn tensors(
    mut stored: BTreeMap<String, Stored>,
    settings: Settings<'_>,
) -> Result<BTreeMap<String, Tensor>, LoadError> {
    let quantisation = settings.table("quantization")?;
    if quantisation.is_none() && settings.get("quantization_config").is_some() {
        return Err(Settings::wrong(
            "quantization_config",
            &"given",
            "only MLX's `quantization` is supported",
        ));
    }
    let quantised: Vec<String> = stored
        .keys()
        .filter_map(|name| name.strip_suffix(".scales"))
        .map(str::to_owned)
        .collect();
    let mut tensors = BTreeMap::new();
    for stem in quantised {
        let part = |stored: &mut BTreeMap<String, Stored>, suffix: &str| {
            let name = format!("{stem}.{suffix}");
            stored.remove(&name).ok_or(LoadError::MissingTensors {
                first: name,
                count: 1,
            })
        };
        let scales = part(&mut stored, "scales")?;
        let biases = part(&mut stored, "biases")?;
        let weight = part(&mut stored, "weight")?;
        let quantised = quantisation_of(quantisation, &stem)?;
        let tensor = quantised_tensor(&stem, quantised, &weight, &scales, &biases)?;
        tensors.insert(format!("{stem}.weight"), tensor);
    }
    for (name, tensor) in stored {
        if tensor.dtype == "U32" {
            return Err(LoadError::MissingTensors {
                first: name.replace(".weight", ".scales"),
                count: 1,
            });
        }
        let shape = tensor.shape;
        tensors.insert(
            name.clone(),
            Tensor {
                shape,
                stored_name: name,
                quantised: None,
            },
        );
    }
    Ok(tensors)
}

/// How the layer `stem` is quantised: as the model, unless a table of its own
/// says otherwise.
fn quantisation_of(whole: Option<Settings<'_>>, stem: &str) -> Result<Quantisation, LoadError> {
    let whole = whole.ok_or_else(|| {
        Settings::wrong(
            "quantization",
            &"absent",
            &format!("`{stem}.scales` needs it"),
        )
    })?;
    let settings = match whole.get(stem) {
        Some(Value::Object(own)) => Settings(own),
        _ => whole,
    };
    if let Some(mode) = settings.text("mode").filter(|mode| *mode != "affine") {
        return Err(Settings::wrong(
            "quantization.mode",
            &mode,
            "only affine is supported",
        ));
    }
    let (group_size, bits) = (settings.count("group_size")?, settings.count("bits")?);
    if ![32, 64, 128].contains(&group_size) {
        let expected = "only 32, 64 and 128 are supported";
        return Err(Settings::wrong(
            "quantization.group_size",
            &group_size,
            expected,
        ));
    }
    if ![2, 3, 4, 5, 6, 8].contains(&bits) {
        let expected = "only 2, 3, 4, 5, 6 and 8 are supported";
        return Err(Settings::wrong("quantization.bits", &bits, expected));
    }
    Ok(Quantisation { group_size, bits })
}

fn quantised_tensor(
    stem: &str,
    quantised: Quantisation,
    weight: &Stored,
    scales: &Stored,
    biases: &Stored,
) -> Result<Tensor, LoadError> {
    let Quantisation { group_size, bits } = quantised;
    let wrong = |suffix: &str, found: &Stored, expected: Vec<usize>| LoadError::WrongShape {
        tensor: format!("{stem}.{suffix}"),
        found: found.shape.clone(),
        expected,
    };
    let &[rows, groups] = scales.shape.as_slice() else {
        return Err(wrong("scales", scales, vec![0, 0]));
    };
    let columns = groups * group_size;
    let packed = vec![rows, columns * bits / 32];
    if weight.shape != packed || weight.dtype != "U32" {
        return Err(wrong("weight", weight, packed));
    }
    if biases.shape != scales.shape {
        return Err(wrong("biases", biases, scales.shape.clone()));
    }
    Ok(Tensor {
        shape: vec![rows, columns],
        stored_name: stem.to_owned(),
        quantised: Some(quantised),
    })
}

/// The ends that generation_config.json and config.json name, all of them.
fn end_of_sequence(configs: &[&Map<String, Value>]) -> Vec<u32> {
    let values = configs
        .iter()
        .filter_map(|config| config.get("eos_token_id"));
    let ids = values.flat_map(|value| match value {
        Value::Array(ids) => ids.as_slice(),
        id => std::slice::from_ref(id),
    });
    let mut ends: Vec<u32> = ids
        .filter_map(Value::as_u64)
        .filter_map(|id| u32::try_from(id).ok())
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The chat template and the one for chats with tools, if that is another: a file
/// of its own, or a key of tokenizer_config.json, which may list several by name.
fn chat_templates(
    folder: &Path,
    tokenizer_config: &Map<String, Value>,
) -> Result<(Option<String>, Option<String>), LoadError> {
    let file = folder.join("chat_template.jinja");
    match fs::read_to_string(&file) {
        Ok(template) => return Ok((Some(template), None)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(LoadError::Read { path: file, source }),
    }
    let own = json(&folder.join("chat_template.json"))?.unwrap_or_default();
    let templates = own
        .get("chat_template")
        .or_else(|| tokenizer_config.get("chat_template"));
    let Some(Value::Array(templates)) = templates else {
        let only = templates.and_then(Value::as_str).map(str::to_owned);
        return Ok((only, None));
    };
    let named = |name: &str| {
        let template = templates.iter().find(|template| template["name"] == name)?;
        template["template"].as_str().map(str::to_owned)
    };
    Ok((named("default"), named("tool_use")))
}

/// A special token's text, given as such or in a table.
fn special_token(tokenizer_config: &Map<String, Value>, key: &str) -> Option<String> {
    let value = tokenizer_config.get(key)?;
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}
