//! How fast each pair of a head turns with the position.

use std::f64::consts::TAU;

use super::{LoadError, settings::Settings};

/// Radians per position for each of the `head_dim / 2` pairs.
///
/// The plain ones are those of RoFormer (<https://arxiv.org/abs/2104.09864>),
/// `base^(-2i / head_dim)`; `linear` and `llama3` stretch them as
/// Hugging Face's `modeling_rope_utils.py` does.
pub(super) fn frequencies(settings: Settings<'_>, head_dim: usize) -> Result<Vec<f64>, LoadError> {
    let parameters = settings.table("rope_parameters")?;
    let base = match parameters
        .map(|table| table.optional_number("rope_theta"))
        .transpose()?
    {
        Some(Some(base)) => base,
        _ => settings.optional_number("rope_theta")?.unwrap_or(10_000.0),
    };
    let plain = (0..head_dim / 2)
        .map(|i| base.powf(-2.0 * i as f64 / head_dim as f64))
        .collect();
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => settings.table("rope_scaling")?,
    };
    match scaling {
        None => Ok(plain),
        Some(scaling) => scaled(plain, scaling),
    }
}

fn scaled(plain: Vec<f64>, scaling: Settings<'_>) -> Result<Vec<f64>, LoadError> {
    match scaling
        .text("rope_type")
        .or_else(|| scaling.text("type"))
        .unwrap_or("default")
    {
        "default" => Ok(plain),
        "linear" => {
            let factor = scaling.number("factor")?;
            Ok(plain
                .into_iter()
                .map(|frequency| frequency / factor)
                .collect())
        }
        "llama3" => llama3(plain, scaling),
        other => Err(Settings::wrong(
            "rope_scaling.rope_type",
            &other,
            "only default, linear and llama3 are supported",
        )),
    }
}

/// Slow pairs are stretched by `factor`, fast ones not at all, and those
/// between by degrees.
fn llama3(plain: Vec<f64>, scaling: Settings<'_>) -> Result<Vec<f64>, LoadError> {
    let factor = scaling.number("factor")?;
    let low = scaling.number("low_freq_factor")?;
    let high = scaling.number("high_freq_factor")?;
    let original_length = scaling.number("original_max_position_embeddings")?;
    let stretch = |frequency: f64| {
        let turns = original_length * frequency / TAU;
        if turns > high {
            frequency
        } else if turns < low {
            frequency / factor
        } else {
            let kept = (turns - low) / (high - low);
            frequency * (kept + (1.0 - kept) / factor)
        }
    };
    Ok(plain.into_iter().map(stretch).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(config: &Value, head_dim: usize) -> Result<Vec<f64>, LoadError> {
        frequencies(Settings(config.as_object().unwrap()), head_dim)
    }

    #[test]
    fn plain_frequencies_fall_geometrically() {
        assert_eq!(of(&json!({"rope_theta": 10000.0}), 4).unwrap(), [1.0, 0.01]);
        assert_eq!(of(&json!({}), 4).unwrap(), [1.0, 0.01]);
        assert_eq!(
            of(&json!({"rope_parameters": {"rope_theta": 100}}), 4).unwrap(),
            [1.0, 0.1]
        );
    }

    #[test]
    fn linear_scaling_divides_all() {
        let config = json!({"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 4}});
        assert_eq!(of(&config, 4).unwrap(), [0.25, 0.025]);
    }

    /// Llama 3.2 1B, head of 64; the values of Hugging Face's
    /// `_compute_llama3_parameters`, worked by hand at three pairs.
    #[test]
    fn llama3_scaling_stretches_the_slow_pairs() {
        let config = json!({"rope_theta": 500_000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
        let scaled = of(&config, 64).unwrap();
        // The first pair turns 1,303 times in 8,192 positions: kept.
        assert_eq!(scaled[0].to_bits(), 1.0_f64.to_bits());
        // Pair 16: 500000^-0.5 = 0.00141421, 1.84385 turns, so 0.281283 is kept:
        // 0.00141421 * (0.281283 + 0.718717 / 32) = 0.000429557.
        assert!((scaled[16] - 0.000_429_557).abs() < 1e-9, "{}", scaled[16]);
        // The last turns once in 2 pi * 331,817 positions: stretched by 32.
        assert!((scaled[31] * 32.0 - 500_000_f64.powf(-62.0 / 64.0)).abs() < 1e-15);
    }

    #[test]
    fn other_scalings_are_refused_by_name() {
        let config = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}});
        let error = of(&config, 64).unwrap_err().to_string();
        assert!(
            error.contains("yarn") && error.contains("llama3"),
            "{error}"
        );
    }
}
