//! Stand-in for `sluice_kernels::row`, same names.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RowState {
    Open,
    AllBanned,
}

pub(super) fn check(row: &[f32]) -> Result<RowState, usize> {
    if let Some(i) = row.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
        return Err(i);
    }
    if row.iter().any(|l| *l > f32::NEG_INFINITY) {
        Ok(RowState::Open)
    } else {
        Ok(RowState::AllBanned)
    }
}

pub(super) fn top_k(row: &[f32], k: usize, ids: &mut Vec<u32>, logits: &mut Vec<f32>) {
    let mut order: Vec<u32> = (0..row.len() as u32)
        .filter(|&i| row[i as usize] > f32::NEG_INFINITY)
        .collect();
    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    order.truncate(k);
    logits.clear();
    logits.extend(order.iter().map(|&i| row[i as usize]));
    *ids = order;
}

pub(super) fn log_sum_exp(row: &[f32], temperature: f32) -> f64 {
    let t = f64::from(temperature);
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let max = f64::from(max) / t;
    max + row
        .iter()
        .map(|&l| (f64::from(l) / t - max).exp())
        .sum::<f64>()
        .ln()
}

pub(super) fn add_masked(row: &mut [f32], words: &[u32], value: f32) {
    for (i, l) in row.iter_mut().enumerate() {
        if words.get(i / 32).is_some_and(|w| w >> (i % 32) & 1 == 1) {
            *l += value;
        }
    }
}

pub(super) fn mask(row: &mut [f32], words: &[u32]) {
    for (i, l) in row.iter_mut().enumerate() {
        if words.get(i / 32).is_none_or(|w| w >> (i % 32) & 1 == 0) {
            *l = f32::NEG_INFINITY;
        }
    }
}
