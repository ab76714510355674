//! Small models of every family: what mlx-lm computes with them.
//!
//! `families.json` holds configurations and logits; `make_families.py` says how
//! weights and prompts are made, on both sides.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufReader,
    path::Path,
};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sluice::{
    engine::{Model, Row, TokenId},
    mlx::{self, Backend, Checkpoint},
};
use tempfile::tempdir;

use super::{larger, rows};

const TOLERANCE: f32 = 1e-4;
/// Positions that are shown to the model at once, where it is not one.
const CHUNK: usize = 96;

#[derive(Deserialize)]
struct Fixture {
    probe_ids: Vec<usize>,
    /// Seed and length of each.
    prompts: Vec<(u64, usize)>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    /// For each prompt and position, the logits of the probes.
    logits: Vec<Vec<Vec<f32>>>,
}

/// For each prompt the logits of each position.
type Computed = Vec<Vec<Vec<f32>>>;

/// SplitMix64's output for a state (<https://prng.di.unimi.it/splitmix64.c>).
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn weight(name: &str, n_values: usize, offset: f32) -> impl Iterator<Item = f32> {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    let seed = name.bytes().fold(0xCBF2_9CE4_8422_2325, fnv);
    (0..n_values as u64)
        .map(move |index| (mixed(seed.wrapping_add(index)) >> 53) as f32 / 4096.0 - 0.25 + offset)
}

fn prompt(seed: u64, length: usize) -> Vec<TokenId> {
    let state = |index: usize| seed * 1000 + index as u64;
    (0..length)
        .map(|index| (mixed(state(index)) % 96) as TokenId)
        .collect()
}

impl Case {
    fn write(&self, folder: &Path) {
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        let has_plain_norms = self.config["model_type"] != "gemma3_text";
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape) in &self.tensors {
            let offset = f32::from(has_plain_norms && name.contains("norm"));
            let begin = data.len();
            let values = weight(name, shape.iter().product(), offset);
            data.extend(values.flat_map(f32::to_le_bytes));
            let offsets = [begin, data.len()];
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
            header.insert(name.clone(), entry);
        }
        let header = Value::Object(header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        let content = [&length, header.as_bytes(), &data].concat();
        fs::write(folder.join("model.safetensors"), content).unwrap();
    }

    fn load(&self, backend: Backend) -> Box<dyn Model> {
        let folder = tempdir().unwrap();
        self.write(folder.path());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        mlx::load(&checkpoint, backend, &mut |_| ()).unwrap()
    }

    fn largest_distance(&self, computed: &Computed, probe_ids: &[usize]) -> f32 {
        let mut largest = 0.0;
        for (expected, found) in self.logits.iter().zip(computed) {
            assert_eq!(expected.len(), found.len());
            for (expected, row) in expected.iter().zip(found) {
                for (logit, &id) in expected.iter().zip(probe_ids) {
                    largest = larger(largest, (logit - row[id]).abs());
                }
            }
        }
        largest
    }
}

/// One prompt after the other, each in as few passes as there are chunks.
fn alone(model: &mut dyn Model, prompts: &[Vec<TokenId>]) -> Computed {
    let mut computed = vec![Vec::new(); prompts.len()];
    for (slot, prompt) in prompts.iter().enumerate() {
        super::forward(model, &rows(slot, prompt, 0, 0), |slot, logits| {
            computed[slot].push(logits.to_vec());
        });
        model.release(slot as u32);
    }
    computed
}

/// All prompts at once: some chunks of the first while the others come token by
/// token, then its last tokens one by one too.
fn together(model: &mut dyn Model, prompts: &[Vec<TokenId>]) -> Computed {
    let mut computed: Computed = vec![Vec::new(); prompts.len()];
    loop {
        let mut batch: Vec<Row> = Vec::new();
        for (slot, prompt) in prompts.iter().enumerate() {
            let done = computed[slot].len();
            let n_rows = if slot == 0 && done < 2 * CHUNK {
                CHUNK
            } else {
                1
            };
            let end = prompt.len().min(done + n_rows);
            batch.extend(rows(slot, &prompt[done..end], done, 0));
        }
        if batch.is_empty() {
            break;
        }
        super::forward(model, &batch, |slot, logits| {
            computed[slot].push(logits.to_vec());
        });
    }
    (0..prompts.len()).for_each(|slot| model.release(slot as u32));
    computed
}

fn bits(computed: &Computed) -> Vec<u32> {
    let logits = computed.iter().flatten().flatten();
    logits.map(|logit| logit.to_bits()).collect()
}

#[test]
fn small_models_of_each_family_have_mlx_lms_logits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/families.json");
    let fixture: Fixture =
        serde_json::from_reader(BufReader::new(File::open(path).unwrap())).unwrap();
    let prompts: Vec<_> = fixture
        .prompts
        .iter()
        .map(|&(seed, length)| prompt(seed, length))
        .collect();
    for case in &fixture.cases {
        for backend in [Backend::Cpu, Backend::Mlx] {
            let mut model = case.load(backend);
            let solo = alone(&mut *model, &prompts);
            let batched = together(&mut *model, &prompts);
            let distances =
                [&solo, &batched].map(|found| case.largest_distance(found, &fixture.probe_ids));
            println!("{}, {backend:?}: {distances:?}", case.name);
            for distance in distances {
                assert!(
                    distance < TOLERANCE,
                    "{}, {backend:?}: {distance}",
                    case.name
                );
            }
            if backend == Backend::Cpu {
                assert!(bits(&solo) == bits(&batched), "{}", case.name);
            }
        }
    }
    let families: Vec<_> = fixture
        .cases
        .iter()
        .map(|case| case.config["model_type"].as_str().unwrap())
        .collect();
    for family in ["llama", "qwen2", "qwen3", "gemma3_text"] {
        assert!(families.contains(&family), "{family}");
    }
}
