//! The fuzz targets' checks in short: every kept input, then changed ones, the
//! same in each run. `fuzz/README.md` has the long form.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use sluice_fuzz::{CHECKS, compile_with};

/// Longest input that is made: beyond it lies more of the same.
const LONGEST: usize = 1 << 16;

#[test]
fn chat_template() {
    run("chat_template", 1_000);
}

#[test]
fn component() {
    run("component", 2_000);
}

#[test]
fn detokenizer() {
    run("detokenizer", 20_000);
}

#[test]
fn gguf() {
    run("gguf", 1_000);
}

#[test]
fn grammar() {
    run("grammar", 1_000);
}

#[test]
fn params_schema() {
    run("params_schema", 5_000);
}

#[test]
fn request() {
    compile_with(env!("CARGO_BIN_EXE_sluice"));
    run("request", 500);
}

#[test]
fn safetensors() {
    run("safetensors", 1_000);
}

#[test]
fn tool_calls() {
    run("tool_calls", 2_000);
}

/// Replays the kept inputs of a check, then `n_rounds` changed ones.
fn run(name: &str, n_rounds: usize) {
    let (_, check) = CHECKS.iter().find(|(other, _)| *other == name).unwrap();
    let kept = kept(name);
    assert!(!kept.is_empty(), "{name} has no inputs");
    let mut n_taken = 0;
    for (path, bytes) in &kept {
        eprintln!("{}", path.display());
        n_taken += usize::from(check(bytes));
    }
    // Otherwise it is only the refusals that are looked at.
    assert!(n_taken * 3 >= kept.len(), "{n_taken} of {}", kept.len());
    let mut chance = Chance(0);
    for round in 0..n_rounds {
        let bytes = changed(&kept, &mut chance);
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&bytes))) else {
            continue;
        };
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{round}"));
        fs::write(&path, &bytes).unwrap();
        eprintln!("{name}: the input is in {}", path.display());
        resume_unwind(panic);
    }
}

/// Names and bytes of the kept inputs, in the order of their names.
fn kept(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/inputs");
    let mut paths: Vec<_> = fs::read_dir(folder.join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// A kept input with one to four changes.
fn changed(kept: &[(PathBuf, Vec<u8>)], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = kept[chance.below(kept.len())].1.clone();
    for _ in 0..=chance.below(4) {
        change(&mut bytes, kept, chance);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, kept: &[(PathBuf, Vec<u8>)], chance: &mut Chance) {
    /// Ends of ranges, and what means something to many parsers.
    const EDGES: [&[u8]; 16] = [
        b"\0",
        b"\xff",
        b"\x7f",
        b"\x80",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\0\0\0\x80",
        b"\"",
        b"{",
        b"}",
        b"[",
        b"\\",
        b"null",
        b"-1",
        b"1e308",
        b"\xf0\x9f\x98\x80",
    ];
    let at = chance.below(bytes.len() + 1);
    let end = at + chance.below((bytes.len() - at).min(32) + 1);
    match chance.below(7) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => bytes.extend_from_within(at..end),
        3 => drop(bytes.splice(at..at, EDGES[chance.below(EDGES.len())].iter().copied())),
        4 => drop(bytes.splice(at..end, EDGES[chance.below(EDGES.len())].iter().copied())),
        5 => {
            let other = &kept[chance.below(kept.len())].1;
            let from = chance.below(other.len() + 1);
            let to = from + chance.below((other.len() - from).min(64) + 1);
            drop(bytes.splice(at..end, other[from..to].iter().copied()));
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << chance.below(8);
            }
        }
    }
}

/// Numbers that are the same in each run: SplitMix64 (Steele, Lea and Flood,
/// 2014).
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % n as u64) as usize
    }
}
