//! `l / T`. The division itself happens where a ratio of probabilities is
//! taken; it changes no order.

/// Below this the best token is taken and truncation is skipped.
const GREEDY_BELOW: f32 = 1e-5;

pub(crate) fn is_greedy(temperature: f32) -> bool {
    temperature < GREEDY_BELOW
}
