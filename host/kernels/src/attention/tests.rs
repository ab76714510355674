#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::{
    ops::rope_tables,
    testing::{Numbers, bits},
};

const MODEL: Shape = Shape {
    n_layers: 2,
    n_heads: 9,
    n_kv_heads: 3,
    head_dim: 64,
};

fn place(position: usize, slot: u32) -> Place {
    Place {
        position: position as u32,
        slot,
    }
}

fn kernel(shape: Shape, window: Option<u32>) -> Kernel {
    Kernel {
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        window,
    }
}

fn frequencies(n_pairs: usize) -> Vec<f64> {
    (0..n_pairs)
        .map(|i| 10_000_f64.powf(-(i as f64) / n_pairs as f64))
        .collect()
}

/// A sequence's inputs: a row of queries, keys and values for each position,
/// of its own for each layer.
struct Sequence {
    shape: Shape,
    n_pairs: usize,
    qkv: Vec<Vec<f32>>,
}

impl Sequence {
    fn new(shape: Shape, n: usize, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let row = |numbers: &mut Numbers| {
            numbers
                .some(n * shape.qkv_width())
                .iter()
                .map(|x| 3.0 * x)
                .collect()
        };
        let qkv = (0..shape.n_layers).map(|_| row(&mut numbers)).collect();
        Self {
            shape,
            n_pairs: shape.head_dim / 2,
            qkv,
        }
    }

    fn row(&self, layer: usize, position: usize) -> &[f32] {
        let width = self.shape.qkv_width();
        &self.qkv[layer][position * width..(position + 1) * width]
    }

    /// A head of a row, rotated: x·cos - y·sin and y·cos + x·sin for each pair.
    fn rotated(&self, layer: usize, position: usize, head: usize) -> Vec<f64> {
        let d = self.shape.head_dim;
        let mut x: Vec<f64> = self.row(layer, position)[head * d..(head + 1) * d]
            .iter()
            .map(|&x| x.into())
            .collect();
        for (i, frequency) in frequencies(self.n_pairs).into_iter().enumerate() {
            let angle = position as f64 * frequency;
            let (a, b) = (x[i], x[self.n_pairs + i]);
            x[i] = a * angle.cos() - b * angle.sin();
            x[self.n_pairs + i] = b * angle.cos() + a * angle.sin();
        }
        x
    }

    /// The definition of attention, in f64.
    fn naive(&self, layer: usize, position: usize, kernel: Kernel) -> Vec<f64> {
        let Shape {
            n_heads,
            n_kv_heads,
            head_dim: d,
            ..
        } = self.shape;
        let first = kernel
            .window
            .map_or(0, |w| (position + 1).saturating_sub(w as usize));
        let mut out = Vec::new();
        for h in 0..n_heads {
            let kv = h / (n_heads / n_kv_heads);
            let q = self.rotated(layer, position, h);
            let mut weights = Vec::new();
            for j in first..=position {
                let k = self.rotated(layer, j, n_heads + kv);
                let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                weights.push((dot * f64::from(kernel.scale)).exp());
            }
            let sum: f64 = weights.iter().sum();
            let value = |j: usize, i: usize| {
                f64::from(self.row(layer, j)[(n_heads + n_kv_heads + kv) * d + i])
            };
            for i in 0..d {
                let total: f64 = (first..=position)
                    .map(|j| weights[j - first] * value(j, i))
                    .sum();
                out.push(total / sum);
            }
        }
        out
    }
}

/// One pass over rows (sequence, position), sequence s in slot 10 + s; all
/// layers' results, row by row.
fn pass(
    cache: &mut KvCache,
    on: (Level, &Pool),
    sequences: &[Sequence],
    rows: &[(usize, usize)],
    window: Option<u32>,
) -> Vec<Vec<f32>> {
    let shape = *cache.shape();
    let places: Vec<Place> = rows.iter().map(|&(s, p)| place(p, 10 + s as u32)).collect();
    cache.begin(&places).unwrap();
    let positions: Vec<u32> = places.iter().map(|place| place.position).collect();
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    rope_tables(
        &positions,
        &frequencies(sequences[0].n_pairs),
        &mut cos,
        &mut sin,
    );
    let mut results = vec![Vec::new(); rows.len()];
    for layer in 0..shape.n_layers {
        let qkv: Vec<f32> = rows
            .iter()
            .flat_map(|&(s, p)| sequences[s].row(layer, p).to_vec())
            .collect();
        let mut out = vec![f32::NAN; rows.len() * shape.out_width()];
        let inputs = [&qkv[..], &cos, &sin];
        cache.attend_on(on.0, on.1, layer, kernel(shape, window), inputs, &mut out);
        for (result, row) in results.iter_mut().zip(out.chunks(shape.out_width())) {
            result.extend_from_slice(row);
        }
    }
    results
}

fn assert_near(got: &[f32], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len());
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(got) - expected).abs() < 2e-5,
            "{what} at {at}: {got} {expected}"
        );
    }
}

#[test]
fn attention_is_its_formula_for_all_shapes() {
    for (n_heads, n_kv_heads) in [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
        (9, 3),
        (5, 1),
        (7, 7),
        (12, 2),
    ] {
        for head_dim in [8, 16, 24, 40, 64, 72, 80, 128] {
            let shape = Shape {
                n_layers: 1,
                n_heads,
                n_kv_heads,
                head_dim,
            };
            let n = 70; // into the second block
            let sequences = [Sequence::new(shape, n, head_dim as u64)];
            let rows: Vec<_> = (0..n).map(|p| (0, p)).collect();
            for level in Level::all() {
                let mut cache = KvCache::new(shape).unwrap();
                let got = pass(&mut cache, (level, &Pool::new(0)), &sequences, &rows, None);
                for p in [0, 1, 15, 16, 33, 63, 64, 69] {
                    let expected = sequences[0].naive(0, p, kernel(shape, None));
                    assert_near(&got[p], &expected, &format!("{level:?} {shape:?} {p}"));
                }
            }
        }
    }
}

#[test]
fn a_window_hides_what_is_before_it() {
    let shape = Shape {
        n_layers: 1,
        ..MODEL
    };
    let n = 200;
    let sequences = [Sequence::new(shape, n, 5)];
    let rows: Vec<_> = (0..n).map(|p| (0, p)).collect();
    for window in [1, 2, 63, 64, 65, 130, 1_000] {
        for level in Level::all() {
            let mut cache = KvCache::new(shape).unwrap();
            let on = (level, &Pool::new(0));
            let got = pass(&mut cache, on, &sequences, &rows, Some(window));
            for p in [0, 1, 63, 64, 66, 127, 128, 150, 199] {
                let expected = sequences[0].naive(0, p, kernel(shape, Some(window)));
                assert_near(
                    &got[p],
                    &expected,
                    &format!("{level:?} window {window} at {p}"),
                );
            }
        }
    }
}

#[test]
fn part_of_a_head_may_stay_unrotated() {
    let shape = Shape {
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 40,
    };
    for n_pairs in [0, 3, 10] {
        let sequences = [Sequence {
            n_pairs,
            ..Sequence::new(shape, 9, 6)
        }];
        let rows: Vec<_> = (0..9).map(|p| (0, p)).collect();
        for level in Level::all() {
            let mut cache = KvCache::new(shape).unwrap();
            let got = pass(&mut cache, (level, &Pool::new(0)), &sequences, &rows, None);
            for p in [0, 8] {
                let expected = sequences[0].naive(0, p, kernel(shape, None));
                assert_near(&got[p], &expected, &format!("{level:?} {n_pairs} pairs"));
            }
        }
    }
}

/// Each sequence by itself, one position at a time.
fn one_by_one(level: Level, sequences: &[Sequence], n: usize) -> Vec<Vec<Vec<u32>>> {
    let pool = Pool::new(0);
    let mut cache = KvCache::new(sequences[0].shape).unwrap();
    let one = |cache: &mut KvCache, s: usize, p: usize| {
        bits(&pass(cache, (level, &pool), sequences, &[(s, p)], None)[0])
    };
    (0..sequences.len())
        .map(|s| (0..n).map(|p| one(&mut cache, s, p)).collect())
        .collect()
}

#[test]
fn chunks_batches_and_threads_leave_no_trace() {
    let n = 150;
    let sequences: Vec<_> = (0..3).map(|s| Sequence::new(MODEL, n, 20 + s)).collect();
    for level in Level::all() {
        let expected = one_by_one(level, &sequences, n);
        for n_helpers in [0, 1, 3] {
            let pool = Pool::new(n_helpers);
            let mut cache = KvCache::new(MODEL).unwrap();
            // At once; in chunks of 13 beside the others' single rows.
            let all: Vec<_> = (0..n).map(|p| (0, p)).collect();
            let got = pass(&mut cache, (level, &pool), &sequences, &all, None);
            for p in 0..n {
                assert_eq!(bits(&got[p]), expected[0][p], "{level:?} at once, {p}");
            }
            for (step, first) in (0..n).step_by(13).enumerate() {
                let mut rows = vec![(1, step)];
                rows.extend((first..n.min(first + 13)).map(|p| (2, p)));
                let got = pass(&mut cache, (level, &pool), &sequences, &rows, None);
                for (row, &(s, p)) in got.iter().zip(&rows) {
                    assert_eq!(bits(row), expected[s][p], "{level:?} mixed, {s} {p}");
                }
            }
        }
    }
}

#[test]
fn a_released_slot_begins_empty_and_gives_its_memory_back() {
    let sequences = [Sequence::new(MODEL, 70, 1), Sequence::new(MODEL, 70, 2)];
    let mut cache = KvCache::new(MODEL).unwrap();
    let on = (Level::best(), &Pool::new(0));
    let rows = |s: usize, n: usize| (0..n).map(|p| (s, p)).collect::<Vec<_>>();
    let first = pass(&mut cache, on, &sequences, &rows(0, 70), None);
    // 2 layers x (keys and values) x 3 heads x 64 dims x 128 positions x 4 bytes
    assert_eq!(cache.n_bytes(), 2 * 2 * 3 * 64 * 128 * 4);
    pass(&mut cache, on, &sequences, &rows(1, 3), None);
    assert_eq!(cache.n_bytes(), 2 * 2 * 3 * 64 * (128 + 64) * 4);
    cache.release(10);
    cache.release(999);
    assert_eq!(cache.n_bytes(), 2 * 2 * 3 * 64 * 64 * 4);
    let gap = KvError::Gap {
        place: place(70, 10),
        next: 0,
    };
    assert_eq!(cache.begin(&[place(70, 10)]), Err(gap));
    let again = pass(&mut cache, on, &sequences, &rows(0, 70), None);
    assert_eq!(first, again);
    cache.release(10);
    cache.release(11);
    assert_eq!(cache.n_bytes(), 0);
}

#[test]
fn slots_that_share_positions_go_on_independently() {
    const LEN: usize = 140;
    let on = (Level::best(), &Pool::new(1));
    let rows =
        |s: usize, positions: std::ops::Range<usize>| positions.map(|p| (s, p)).collect::<Vec<_>>();
    for n in [1, 63, 64, 65, 100, 128] {
        let first = Sequence::new(MODEL, LEN, 1);
        let mut second = Sequence::new(MODEL, LEN, 2);
        for (qkv, same) in second.qkv.iter_mut().zip(&first.qkv) {
            let common = n * MODEL.qkv_width();
            qkv[..common].copy_from_slice(&same[..common]);
        }
        let sequences = [first, second];
        let mut alone = KvCache::new(MODEL).unwrap();
        let expected = [0, 1].map(|s| pass(&mut alone, on, &sequences, &rows(s, 0..LEN), None));
        let mut cache = KvCache::new(MODEL).unwrap();
        pass(&mut cache, on, &sequences, &rows(0, 0..130), None);
        let before = cache.n_bytes();
        cache.share(10, 11, n);
        assert_eq!(cache.n_bytes(), before);
        // Both in one pass, and then the source alone.
        let both = [rows(1, n..LEN), rows(0, 130..135)].concat();
        let got = pass(&mut cache, on, &sequences, &both, None);
        assert_eq!(got[..LEN - n], expected[1][n..], "{n}");
        assert_eq!(got[LEN - n..], expected[0][130..135], "{n}");
        cache.release(11);
        let got = pass(&mut cache, on, &sequences, &rows(0, 135..LEN), None);
        assert_eq!(got, expected[0][135..], "{n}");
        cache.release(10);
        assert_eq!(cache.n_bytes(), 0);
    }
}

#[test]
fn what_is_shared_stays_when_its_first_slot_goes_back_or_away() {
    let on = (Level::best(), &Pool::new(0));
    let sequences = [Sequence::new(MODEL, 100, 1), Sequence::new(MODEL, 100, 1)];
    let rows =
        |s: usize, positions: std::ops::Range<usize>| positions.map(|p| (s, p)).collect::<Vec<_>>();
    let mut cache = KvCache::new(MODEL).unwrap();
    let expected = pass(&mut cache, on, &sequences, &rows(0, 0..100), None);
    cache.share(10, 11, 80);
    // The source overwrites its positions with others' values.
    let other = [Sequence::new(MODEL, 100, 9)];
    pass(&mut cache, on, &other, &rows(0, 3..90), None);
    let got = pass(&mut cache, on, &sequences, &rows(1, 80..90), None);
    assert_eq!(got, expected[80..90]);
    cache.release(10);
    let got = pass(&mut cache, on, &sequences, &rows(1, 90..100), None);
    assert_eq!(got, expected[90..]);
    // More than there is, and what is not there.
    cache.share(11, 10, 1000);
    cache.share(99, 11, 5);
    assert_eq!(cache.begin(&[place(0, 11)]), Ok(()));
    assert_eq!(cache.begin(&[place(100, 10)]), Ok(()));
}

#[test]
fn rows_must_follow() {
    let mut cache = KvCache::new(MODEL).unwrap();
    let gap = |position, slot, next| {
        Err(KvError::Gap {
            place: place(position, slot),
            next,
        })
    };
    assert_eq!(cache.begin(&[place(1, 0)]), gap(1, 0, 0));
    assert_eq!(cache.begin(&[place(0, 0), place(2, 0)]), gap(2, 0, 1));
    assert_eq!(cache.begin(&[place(0, 0), place(0, 0)]), gap(0, 0, 1));
    assert_eq!(
        cache.begin(&[place(0, 0), place(0, 7), place(1, 0), place(1, 7)]),
        Ok(())
    );
    assert_eq!(cache.begin(&[place(3, 0)]), gap(3, 0, 2));
    // A failed pass changes nothing.
    assert_eq!(cache.begin(&[place(2, 0), place(3, 7)]), gap(3, 7, 2));
    assert_eq!(cache.begin(&[place(2, 0)]), Ok(()));
    // Back to position 1: 2 is forgotten.
    assert_eq!(cache.begin(&[place(1, 0)]), Ok(()));
    assert_eq!(cache.begin(&[place(3, 0)]), gap(3, 0, 2));
    assert_eq!(cache.begin(&[]), Ok(()));
    cache.attend(0, kernel(MODEL, None), &[], &[], &[], &mut []);
}

#[test]
fn rejected_drafts_are_overwritten() {
    let n = 80;
    let sequences = [Sequence::new(MODEL, n, 1), Sequence::new(MODEL, n, 2)];
    let level = Level::best();
    let expected = one_by_one(level, &sequences, n);
    let pool = Pool::new(1);
    let mut cache = KvCache::new(MODEL).unwrap();
    let rows = |from: usize, to: usize| (from..to).map(|p| (0, p)).collect::<Vec<_>>();
    pass(&mut cache, (level, &pool), &sequences, &rows(0, 62), None);
    // Five drafts, from another sequence's rows, over a block's end.
    let drafts = [Sequence::new(MODEL, n, 2)];
    pass(&mut cache, (level, &pool), &drafts, &rows(62, 67), None);
    let got = pass(
        &mut cache,
        (level, &pool),
        &sequences,
        &rows(63 - 1, n),
        None,
    );
    for (row, p) in got.iter().zip(62..) {
        assert_eq!(bits(row), expected[0][p], "position {p}");
    }
}

#[test]
fn shapes_are_checked() {
    for shape in [
        Shape {
            n_layers: 0,
            ..MODEL
        },
        Shape {
            n_heads: 0,
            ..MODEL
        },
        Shape {
            n_kv_heads: 0,
            ..MODEL
        },
        Shape {
            n_heads: 10,
            ..MODEL
        },
        Shape {
            head_dim: 0,
            ..MODEL
        },
        Shape {
            head_dim: 12,
            ..MODEL
        },
        Shape {
            n_layers: usize::MAX,
            ..MODEL
        },
    ] {
        assert_eq!(KvCache::new(shape).err(), Some(KvError::Shape(shape)));
    }
    // A valid shape that no machine has room for.
    let huge = Shape {
        n_layers: usize::MAX / (1 << 20),
        ..MODEL
    };
    let mut cache = KvCache::new(huge).unwrap();
    assert!(matches!(
        cache.begin(&[place(0, 0)]),
        Err(KvError::OutOfMemory { .. })
    ));
}

#[test]
fn the_cache_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<std::sync::Arc<std::sync::Mutex<KvCache>>>();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_schedule_gives_the_same_bits(
        // Rows that the next pass takes of each of two sequences.
        steps in proptest::collection::vec((0_usize..40, 0_usize..40), 1..8),
        n_helpers in 0_usize..3,
    ) {
        let shape = Shape { n_layers: 1, n_heads: 4, n_kv_heads: 2, head_dim: 24 };
        let n = 280;
        let sequences = [Sequence::new(shape, n, 1), Sequence::new(shape, n, 2)];
        let level = Level::best();
        let expected = one_by_one(level, &sequences, n);
        let pool = Pool::new(n_helpers);
        let mut cache = KvCache::new(shape).unwrap();
        let mut at = [0, 0];
        for (first, second) in steps {
            let mut rows: Vec<_> = (at[1]..at[1] + second).map(|p| (1, p)).collect();
            rows.extend((at[0]..at[0] + first).map(|p| (0, p)));
            at = [at[0] + first, at[1] + second];
            let got = pass(&mut cache, (level, &pool), &sequences, &rows, None);
            for (row, &(s, p)) in got.iter().zip(&rows) {
                prop_assert_eq!(bits(row), expected[s][p].clone());
            }
        }
    }
}
