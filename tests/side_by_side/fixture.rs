//! Reads the files that `fixture.py` describes.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rows::{PERIOD, PROBE_RANKS, ROWS, Row, mix};

#[derive(Deserialize)]
struct Header {
    ops: Vec<Op>,
}

#[derive(Deserialize)]
pub struct Op {
    #[serde(rename = "op")]
    pub name: String,
    pub width: usize,
    params: Vec<Map<String, Value>>,
    values: bool,
    drawn: bool,
    /// The row, and how many tokens the package keeps there.
    pub rounded: Vec<(usize, usize)>,
    #[serde(skip)]
    pub records: Vec<Record>,
}

/// What a package made of one row.
pub struct Record {
    n_kept: usize,
    digest: u32,
    values: Option<Values>,
    /// The token drawn in the step before.
    pub drawn: Option<u32>,
}

struct Values {
    probes: [f32; PROBE_RANKS.len()],
    sum: f64,
}

/// The little-endian numbers of a file.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn values(&mut self) -> Values {
        Values {
            probes: [(); PROBE_RANKS.len()].map(|()| f32::from_le_bytes(self.bytes())),
            sum: f64::from_le_bytes(self.bytes()),
        }
    }

    fn record(&mut self, op: &Op) -> Record {
        Record {
            n_kept: self.u32() as usize,
            digest: self.u32(),
            values: op.values.then(|| self.values()),
            drawn: op.drawn.then(|| self.u32()),
        }
    }
}

pub fn read(file: &[u8]) -> Vec<Op> {
    let mut reader = Reader(file);
    let header_len = reader.u32() as usize;
    let (header, rest) = reader.0.split_at(header_len);
    reader.0 = rest;
    let mut ops = serde_json::from_slice::<Header>(header).unwrap().ops;
    for op in &mut ops {
        op.records = (0..ROWS).map(|_| reader.record(op)).collect();
    }
    assert!(reader.0.is_empty(), "more than the header says");
    ops
}

impl Op {
    /// The parameters that a row is run with.
    pub fn params(&self, row: usize) -> &Map<String, Value> {
        &self.params[row / PERIOD % self.params.len()]
    }
}

impl Record {
    /// Compares a row of ours, negative infinity where a token is dropped.
    pub fn check(&self, row: &Row, ours: &[f64]) -> Result<(), String> {
        let kept: Vec<(usize, f64)> = ours
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, l)| *l > f64::NEG_INFINITY)
            .collect();
        let sum = kept.iter().map(|&(id, _)| mix(id as u64));
        let digest = (sum.fold(0, u64::wrapping_add) >> 32) as u32;
        if (kept.len(), digest) != (self.n_kept, self.digest) {
            return Err(format!("{} kept, not the {}", kept.len(), self.n_kept));
        }
        let Some(values) = &self.values else {
            return Ok(());
        };
        for (rank, &expected) in PROBE_RANKS.into_iter().zip(&values.probes) {
            let (found, expected) = (ours[row.best[rank] as usize], f64::from(expected));
            // Equal infinities have no difference.
            if found != expected && (found - expected).abs() > 1e-5 * expected.abs().max(1.0) {
                return Err(format!("rank {rank} has {found}, not {expected}"));
            }
        }
        let sum: f64 = kept.iter().map(|(_, l)| l).sum();
        let size: f64 = kept.iter().map(|(_, l)| l.abs().max(1.0)).sum();
        if (sum - values.sum).abs() > 1e-5 * size {
            return Err(format!("the sum is {sum}, not {}", values.sum));
        }
        Ok(())
    }
}
