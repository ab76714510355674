#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::{logits::FillIn, *};
use crate::testing::{Numbers, bits, largest_of_blocks};

const BANNED: f32 = f32::NEG_INFINITY;

/// Lengths around every vector and chunk, and a real one.
const LENGTHS: [usize; 16] = [
    1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 511, 513, 1_000, 49_152,
];

/// A row without anything bad.
fn on<R>(level: Level, row: &[f32], with: impl FnOnce(Scanned<'_>) -> R) -> R {
    let mut maxima = vec![f32::NAN; row.len().div_ceil(BLOCK)];
    let fill_in = FillIn {
        values: row,
        maxima: &mut maxima,
    };
    level.run(fill_in).unwrap();
    assert_eq!(maxima, largest_of_blocks(row.len(), row), "{level:?}");
    with(Scanned::new(row, &maxima))
}

fn log_sum_exp(row: &[f32], temperature: f32) -> f64 {
    scan(row, &mut Vec::new()).unwrap().log_sum_exp(temperature)
}

/// Logits like a model's; one in `one_banned_of` is banned.
fn logits(n: usize, one_banned_of: usize, numbers: &mut Numbers) -> Vec<f32> {
    let mut one = || {
        let x = 12.0 * numbers.one() * numbers.one() * numbers.one();
        if numbers.below(one_banned_of) == 0 {
            BANNED
        } else {
            x
        }
    };
    (0..n).map(|_| one()).collect()
}

fn naive_log_sum_exp(row: &[f32], temperature: f32) -> f64 {
    let scaled = row.iter().map(|&x| f64::from(x) / f64::from(temperature));
    let largest = scaled.clone().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + scaled.map(|x| (x - largest).exp()).sum::<f64>().ln()
}

#[test]
fn check_finds_the_first_bad_value() {
    let mut numbers = Numbers(1);
    for n in LENGTHS {
        for level in Level::all() {
            let check = |row: &[f32]| level.run(Check { row });
            let good = logits(n, 3, &mut numbers);
            assert_eq!(check(&good), None);
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                let at = numbers.below(n);
                let mut row = good.clone();
                row[at] = bad;
                row[n - 1] = bad;
                assert_eq!(check(&row), Some(at), "{level:?} {n} {bad}");
            }
        }
    }
    assert_eq!(check(&[]), Ok(()));
    let found = check(&[0.0, f32::INFINITY]).unwrap_err();
    assert_eq!(found.to_string(), "the logit of the token 1 is inf");
}

#[test]
fn log_sum_exp_is_accurate() {
    let mut numbers = Numbers(2);
    for n in LENGTHS {
        let row = logits(n, 4, &mut numbers);
        for temperature in [1.0, 0.7, 0.013, 1e-6, 1e-30, 1.9, 100.0, 3e5, 1e30] {
            let expected = naive_log_sum_exp(&row, temperature);
            for level in Level::all() {
                let got = on(level, &row, |row| row.log_sum_exp_on(level, temperature));
                let close = (got - expected).abs() <= 1e-6 + 1e-15 * expected.abs();
                assert!(
                    close || got == expected,
                    "{level:?} {n} {temperature}: {got} {expected}"
                );
            }
        }
    }
}

#[test]
fn log_sum_exp_of_hard_rows() {
    // Equal values all round alike: alone, and with one value so far above
    // them that both parts count.
    let n = 49_152;
    for gap in (0..40).map(|i| i as f32 * 0.37) {
        let mut row = vec![-3.31; n];
        row[17] += gap;
        for temperature in [1.0, 0.7, 0.9, 1.3] {
            let expected = naive_log_sum_exp(&row, temperature);
            for level in Level::all() {
                let got = on(level, &row, |row| row.log_sum_exp_on(level, temperature));
                let error = (got - expected).abs();
                assert!(error <= 1e-6, "{level:?} {gap} {temperature}: {error:e}");
            }
        }
    }
    assert_eq!(log_sum_exp(&[], 1.0), f64::NEG_INFINITY);
    assert_eq!(log_sum_exp(&[BANNED; 40], 1.0), f64::NEG_INFINITY);
    assert_eq!(log_sum_exp(&[BANNED, 2.0, BANNED], 0.5), 4.0);
    for temperature in [0.0, f32::MIN_POSITIVE, 1e-45] {
        assert_eq!(log_sum_exp(&[0.0, -1.0, BANNED, -1e-20], temperature), 0.0);
    }
    let flat = log_sum_exp(&[5.0, -5.0, BANNED, f32::MIN], f32::MAX);
    assert!((flat - 2_f64.ln()).abs() < 1e-6, "{flat}");
    // The full range of f32 at once.
    assert_eq!(
        log_sum_exp(&[f32::MAX, f32::MIN, 0.0, BANNED], 1.0),
        f64::from(f32::MAX)
    );
}

/// The definition: sort everything.
fn naive_top_k(row: &[f32], k: usize) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, f32)> = (0_u32..).zip(row.iter().copied()).collect();
    all.retain(|&(_, logit)| logit > BANNED);
    // Stable, so ids stay ascending among equals.
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
    all.truncate(k);
    all.into_iter()
        .map(|(id, logit)| (id, logit.to_bits()))
        .collect()
}

fn naive_best(row: &[f32]) -> Option<u32> {
    naive_top_k(row, 1).first().map(|&(id, _)| id)
}

fn assert_top_k(row: &[f32], k: usize) {
    let expected = naive_top_k(row, k);
    for level in Level::all() {
        let (mut ids, mut logits) = (vec![9], vec![9.0; 3]);
        on(level, row, |row| {
            row.top_k_on(level, k, &mut ids, &mut logits);
        });
        let got: Vec<(u32, u32)> = ids.into_iter().zip(bits(&logits)).collect();
        assert!(got == expected, "{level:?} k {k} of {}", row.len());
    }
}

#[test]
fn top_k_is_the_head_of_a_sort() {
    let mut numbers = Numbers(3);
    for n in LENGTHS {
        for one_banned_of in [2, 50] {
            let row = logits(n, one_banned_of, &mut numbers);
            for k in [
                0,
                1,
                2,
                3,
                5,
                40,
                256,
                1_000,
                3_000,
                n - 1,
                n,
                n + 1,
                usize::MAX,
            ] {
                assert_top_k(&row, k);
            }
        }
    }
}

#[test]
fn top_k_of_ties_and_slopes() {
    // So long that the best are looked for by blocks.
    let n = 20_000;
    let few_values: Vec<f32> = (0..n).map(|i| (i * 7_919 % 5) as f32).collect();
    let signed_zeros: Vec<f32> = (0..n)
        .map(|i| if i % 3 == 0 { 0.0 } else { -0.0 })
        .collect();
    let rising: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let falling: Vec<f32> = (0..n).map(|i| -(i as f32)).collect();
    let mut one_left = vec![BANNED; n];
    one_left[4_321] = -5.0;
    let mut extremes = vec![f32::MIN; n];
    extremes[77] = f32::MAX;
    let banned = vec![BANNED; n];
    for row in [
        few_values,
        signed_zeros,
        rising,
        falling,
        one_left,
        extremes,
        banned,
    ] {
        for k in [1, 2, 40, 500, 2_000, n] {
            assert_top_k(&row, k);
        }
    }
}

#[test]
fn scan_finds_the_first_bad_value() {
    let mut numbers = Numbers(5);
    for n in LENGTHS {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut row = logits(n, 3, &mut numbers);
            let at = numbers.below(n);
            row[at] = bad;
            row[n - 1] = bad;
            for level in Level::all() {
                let mut maxima = vec![f32::NAN; n.div_ceil(BLOCK)];
                let (values, maxima) = (&row[..], &mut maxima[..]);
                let scanned = level.run(FillIn { values, maxima });
                assert_eq!(
                    scanned.map_err(|bad| bad.id),
                    Err(at),
                    "{level:?} {n} {bad}"
                );
            }
            let found = Logits::from(&row[..]).row().scan().err().unwrap();
            assert_eq!(found.id, at);
            assert_eq!(found.value.to_bits(), bad.to_bits());
        }
    }
}

#[test]
fn rows_are_dealt_in_order_with_their_maxima() {
    let mut rows = Logits::default();
    assert!(rows.rows().is_empty());
    assert!(rows.row().values().is_empty());
    let mut numbers = Numbers(6);
    let values = logits(5 * 70, 9, &mut numbers);
    rows.replace(70, &values);
    let expected: Vec<_> = values.chunks(70).collect();
    let mut left = rows.rows();
    let mut first = left.take_rows(2);
    for expected in &expected[..2] {
        let mut row = first.next().unwrap();
        assert_eq!(row.values(), *expected);
        let id = row.scan().unwrap().argmax();
        assert_eq!(id, naive_best(expected));
    }
    assert!(first.next().is_none());
    assert!(left.take_rows(0).next().is_none());
    assert_eq!(left.next().unwrap().values(), expected[2]);
    assert_eq!(left.take_rows(9).count(), 2);
    assert!(left.is_empty());
    // Maxima of rows that were there before do not last.
    rows.replace(35, &values);
    assert_eq!(rows.rows().count(), 10);
    for (mut row, expected) in rows.rows().zip(values.chunks(35)) {
        assert_eq!(row.scan().unwrap().argmax(), naive_best(expected));
    }
}

/// The best of what is left stand at the start, so that a maximum of what is cut off
/// would show.
#[test]
fn the_head_of_a_row_is_a_row() {
    let n = 20_000;
    let mut numbers = Numbers(7);
    for end in [0, 1, 31, 32, 33, 64, 200, 9_001, 9_024, n, n + 5] {
        let mut row = logits(n, 50, &mut numbers);
        for (id, logit) in row.iter_mut().enumerate() {
            *logit = if id < end { *logit } else { 50.0 + *logit };
        }
        row[..end.min(40)].fill(20.0);
        let mut maxima = Vec::new();
        let scanned = scan(&row, &mut maxima).unwrap();
        let mut room = vec![1e9; 2];
        let head = scanned.head(end, &mut room);
        assert_eq!(head.values().len(), end.min(n));
        assert_eq!(head.argmax(), (end > 0).then_some(0));
        for k in [1, 3, 40, 60] {
            let (mut ids, mut best) = (Vec::new(), Vec::new());
            head.top_k(k, &mut ids, &mut best);
            let got: Vec<(u32, u32)> = ids.into_iter().zip(bits(&best)).collect();
            assert_eq!(got, naive_top_k(&row[..end.min(n)], k), "{end} {k}");
        }
    }
}

#[test]
fn padding_is_banned() {
    for end in [0, 1, 63, 64, 65, 129, 130, 200] {
        let mut rows = Logits::from(&[1.0; 130][..]);
        rows.row().scan().unwrap();
        rows.row().ban_from(end);
        let open = rows.values().iter().take_while(|&&x| x == 1.0).count();
        assert_eq!(open, end.min(130));
        assert!(rows.values()[open..].iter().all(|&x| x == BANNED));
        let (mut ids, mut best) = (Vec::new(), Vec::new());
        let mut row = rows.row();
        row.scan().unwrap().top_k(200, &mut ids, &mut best);
        assert_eq!(ids.len(), open);
        assert_eq!(row.scan().unwrap().is_banned(), end == 0);
    }
}

/// Edits as a long sequence makes them, of a row that is looked at by blocks.
#[test]
fn a_long_row_is_known_after_changes() {
    let n = 49_152;
    let mut numbers = Numbers(8);
    let mut expected = logits(n, 50, &mut numbers);
    let mut rows = Logits::from(&expected[..]);
    for turn in 0..20 {
        let ids: Vec<u32> = (0..60).map(|_| numbers.below(n) as u32).collect();
        let change = |row: &mut [f32]| {
            for (at, &id) in (0_u8..).zip(&ids) {
                row[id as usize] = if at % 3 == 0 {
                    BANNED
                } else {
                    f32::from(at) / 4.0
                };
            }
        };
        change(&mut expected);
        let mut row = rows.row();
        row.change_at(ids.iter().copied(), change);
        if turn % 2 == 0 {
            continue;
        }
        for k in [1, 2, 40, 64] {
            let (mut ids, mut best) = (Vec::new(), Vec::new());
            row.scan().unwrap().top_k(k, &mut ids, &mut best);
            let got: Vec<(u32, u32)> = ids.into_iter().zip(bits(&best)).collect();
            assert_eq!(got, naive_top_k(&expected, k), "{turn} {k}");
        }
    }
}

#[test]
fn argmax_takes_the_lowest_id_of_equals() {
    assert_eq!(argmax(&[]), None);
    assert_eq!(argmax(&[BANNED; 99]), None);
    let mut row = vec![BANNED; 99];
    row[98] = -3.0;
    assert_eq!(argmax(&row), Some(98));
    row[40] = -0.0;
    row[77] = 0.0;
    assert_eq!(argmax(&row), Some(40));
}

/// Bit `id` of the words.
fn bit(words: &[u32], id: usize) -> bool {
    words
        .get(id / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}

#[test]
fn masks_touch_what_their_bits_say() {
    let mut numbers = Numbers(4);
    for n in LENGTHS {
        for n_words in [0, n / 40, n.div_ceil(32), n.div_ceil(32) + 2] {
            let words: Vec<u32> = (0..n_words)
                .map(|i| match i % 4 {
                    0 => 0,
                    1 => u32::MAX,
                    _ => numbers.bits() as u32,
                })
                .collect();
            let before = logits(n, 3, &mut numbers);
            for level in Level::all() {
                let mut row = before.clone();
                level.run(Mask {
                    row: &mut row,
                    words: &words,
                });
                for id in 0..n {
                    let expected = if bit(&words, id) { before[id] } else { BANNED };
                    assert_eq!(row[id].to_bits(), expected.to_bits(), "{level:?} {n} {id}");
                }
                for value in [1.5, -0.25, BANNED, f32::MIN] {
                    let mut row = before.clone();
                    level.run(AddMasked {
                        row: &mut row,
                        words: &words,
                        value,
                    });
                    for id in 0..n {
                        let old = before[id];
                        let expected = if bit(&words, id) { old + value } else { old };
                        assert_eq!(row[id].to_bits(), expected.to_bits(), "{level:?} {n} {id}");
                        assert!(old > BANNED || row[id] == BANNED);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_top_k(
        row in proptest::collection::vec(
            prop_oneof![Just(BANNED), Just(0.0), Just(-0.0), (-4_i8..4).prop_map(f32::from), any::<f32>()]
                .prop_map(|x| if x.is_nan() || x == f32::INFINITY { 1.0 } else { x }),
            0..900,
        ),
        k in 0_usize..950,
    ) {
        assert_top_k(&row, k);
    }

    /// What is known of a row that was changed is what a look at all of it finds.
    #[test]
    fn any_changes(
        row in proptest::collection::vec(-9_f32..9.0, 1..900),
        changes in proptest::collection::vec(
            proptest::collection::vec((any::<u32>(), prop_oneof![Just(BANNED), -9_f32..9.0]), 0..12),
            0..6,
        ),
        scans in any::<u8>(),
    ) {
        let n = row.len();
        let mut expected = row.clone();
        let mut rows = Logits::from(&row[..]);
        for (turn, changes) in changes.iter().enumerate() {
            let change = |values: &mut [f32]| {
                for &(id, value) in changes {
                    values[id as usize % n] = value;
                }
            };
            change(&mut expected);
            let mut row = rows.row();
            if scans >> turn & 1 == 1 {
                row.scan().unwrap();
            }
            match turn {
                3 => row.change(change),
                _ => row.change_at(changes.iter().map(|&(id, _)| id % n as u32), change),
            }
        }
        let mut row = rows.row();
        let scanned = row.scan().unwrap();
        prop_assert_eq!(scanned.values(), &expected[..]);
        prop_assert_eq!(scanned.argmax(), naive_best(&expected));
        let (mut ids, mut best) = (Vec::new(), Vec::new());
        scanned.top_k(5, &mut ids, &mut best);
        let got: Vec<(u32, u32)> = ids.into_iter().zip(bits(&best)).collect();
        prop_assert_eq!(got, naive_top_k(&expected, 5));
    }

    #[test]
    fn any_log_sum_exp(
        row in proptest::collection::vec(-30_f32..30.0, 1..900),
        temperature in 0.01_f32..10.0,
    ) {
        let expected = naive_log_sum_exp(&row, temperature);
        let got = log_sum_exp(&row, temperature);
        prop_assert!((got - expected).abs() <= 1e-6, "{got} {expected}");
    }
}
