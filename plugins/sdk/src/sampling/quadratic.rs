//! Smoothing: with d the distance to the best logit, `max − k·f·d² + s·f·d³`,
//! where f is the factor, k = (3 − curve) / 2 and s = (curve − 1) / 2.
//! kalomaze 2024, text-generation-webui, pull requests 5403 and 5551.

/// What d² is taken by and what d³ is added by.
pub(super) fn coefficients(factor: f64, curve: f64) -> (f64, f64) {
    // More makes no difference between f32 values, and stays finite.
    let factor = factor.min(1e100);
    (factor * (3.0 - curve) / 2.0, factor * (curve - 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::coefficients;

    #[test]
    fn the_curve_moves_weight_from_square_to_cube() {
        assert_eq!(coefficients(0.5, 1.0), (0.5, 0.0));
        assert_eq!(coefficients(0.5, 2.0), (0.25, 0.25));
        assert_eq!(coefficients(0.5, 3.0), (0.0, 0.5));
    }
}
