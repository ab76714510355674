//! How fast each pair of a head turns with the position.

use std::f64::consts::TAU;

use super::{LoadError, settings::Settings};

/// Keys beside those of a kind that a table of rope may have.
const COMMON_KEYS: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];

/// A model's rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rope {
    /// Radians per position for each of the `head_dim / 2` pairs.
    pub(super) frequencies: Vec<f64>,
    /// What rotated queries and keys are multiplied by, each.
    pub(super) magnitude: f64,
}

impl Rope {
    /// The plain one of RoFormer (<https://arxiv.org/abs/2104.09864>):
    /// `base^(-2i / head_dim)`.
    pub(super) fn plain(base: f64, head_dim: usize) -> Self {
        let frequency = |i: usize| base.powf(-2.0 * i as f64 / head_dim as f64);
        Self {
            frequencies: (0..head_dim / 2).map(frequency).collect(),
            magnitude: 1.0,
        }
    }

    /// What a configuration says: `rope_theta`, or `default_base`, stretched as
    /// `rope_scaling` or `rope_parameters` tell.
    pub(super) fn read(
        settings: Settings<'_>,
        default_base: Option<f64>,
        head_dim: usize,
    ) -> Result<Self, LoadError> {
        let parameters = settings.table("rope_parameters")?;
        let nested = match parameters {
            Some(parameters) => parameters.optional_number("rope_theta")?,
            None => None,
        };
        let base = match nested {
            Some(base) => Some(base),
            None => settings.optional_number("rope_theta")?.or(default_base),
        };
        let base = base.ok_or_else(|| Settings::wrong("rope_theta", &"absent", "it is needed"))?;
        refuse_partial(settings)?;
        let scaling = match parameters {
            Some(parameters) => Some(parameters),
            None => settings.table("rope_scaling")?,
        };
        match scaling {
            None => Ok(Self::plain(base, head_dim)),
            Some(scaling) => Self::scaled(base, scaling, head_dim),
        }
    }

    /// Stretched as Hugging Face's `modeling_rope_utils.py` does.
    pub(super) fn scaled(
        base: f64,
        scaling: Settings<'_>,
        head_dim: usize,
    ) -> Result<Self, LoadError> {
        refuse_partial(scaling)?;
        let kind = scaling.text("rope_type").or_else(|| scaling.text("type"));
        let (keys, stretch): (&[&str], Stretch) = match kind.unwrap_or("default") {
            "default" => (&[], |plain, _, _| Ok(plain)),
            "linear" => (&["factor"], linear),
            "llama3" => (&LLAMA3_KEYS, llama3),
            "yarn" => (&YARN_KEYS, yarn),
            other => {
                return Err(Settings::wrong(
                    "rope_scaling.rope_type",
                    &other,
                    "only default, linear, llama3 and yarn are supported",
                ));
            }
        };
        let known = |key: &str| COMMON_KEYS.contains(&key) || keys.contains(&key);
        let other = scaling.0.iter().find(|(key, _)| !known(key));
        if let Some((key, value)) = other.filter(|(_, value)| !value.is_null()) {
            let expected = format!(
                "rope of type {} does not have it",
                kind.unwrap_or("default")
            );
            return Err(Settings::wrong(
                &format!("rope_scaling.{key}"),
                value,
                &expected,
            ));
        }
        stretch(Self::plain(base, head_dim), base, scaling)
    }
}

/// Takes the plain form, its base and the table that says how to stretch it.
type Stretch = fn(Rope, f64, Settings<'_>) -> Result<Rope, LoadError>;

fn refuse_partial(settings: Settings<'_>) -> Result<(), LoadError> {
    match settings.optional_number("partial_rotary_factor")? {
        Some(factor) if factor < 1.0 => Err(Settings::wrong(
            "partial_rotary_factor",
            &factor,
            "only whole heads can be rotated",
        )),
        _ => Ok(()),
    }
}

fn linear(plain: Rope, _: f64, scaling: Settings<'_>) -> Result<Rope, LoadError> {
    let factor = scaling.number("factor")?;
    let frequencies = plain.frequencies.into_iter();
    Ok(Rope {
        frequencies: frequencies.map(|frequency| frequency / factor).collect(),
        magnitude: plain.magnitude,
    })
}

const LLAMA3_KEYS: [&str; 4] = [
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
];

/// Slow pairs are stretched by `factor`, fast ones not at all, and those
/// between by degrees.
fn llama3(plain: Rope, _: f64, scaling: Settings<'_>) -> Result<Rope, LoadError> {
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
    Ok(Rope {
        frequencies: plain.frequencies.into_iter().map(stretch).collect(),
        magnitude: plain.magnitude,
    })
}

const YARN_KEYS: [&str; 8] = [
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "truncate",
];

/// YaRN (<https://arxiv.org/abs/2309.00071>): by degrees too, but along the
/// pairs, and all queries and keys grow a little.
fn yarn(plain: Rope, base: f64, scaling: Settings<'_>) -> Result<Rope, LoadError> {
    let factor = scaling.number("factor")?;
    let original_length = scaling.number("original_max_position_embeddings")?;
    let fast = scaling.optional_number("beta_fast")?.unwrap_or(32.0);
    let slow = scaling.optional_number("beta_slow")?.unwrap_or(1.0);
    if scaling.get("truncate").is_some() && !scaling.flag("truncate")? {
        return Err(Settings::wrong(
            "rope_scaling.truncate",
            &false,
            "only true is supported",
        ));
    }
    let head_dim = 2.0 * plain.frequencies.len() as f64;
    // The pair that turns so often within the original length.
    let pair = |turns: f64| head_dim * (original_length / (turns * TAU)).ln() / (2.0 * base.ln());
    let first = pair(fast).floor().max(0.0);
    let last = pair(slow).ceil().min(head_dim - 1.0);
    // Both are whole numbers; where they are equal the pair in question is cut
    // sharply, as the reference does.
    let width = if last - first < 0.5 {
        0.001
    } else {
        last - first
    };
    let stretch = |(pair, frequency): (usize, f64)| {
        let stretched = ((pair as f64 - first) / width).clamp(0.0, 1.0);
        frequency * ((1.0 - stretched) + stretched / factor)
    };
    Ok(Rope {
        magnitude: match scaling.optional_number("attention_factor")? {
            Some(magnitude) => magnitude,
            None => yarn_magnitude(factor, scaling)?,
        },
        frequencies: plain
            .frequencies
            .into_iter()
            .enumerate()
            .map(stretch)
            .collect(),
    })
}

fn yarn_magnitude(factor: f64, scaling: Settings<'_>) -> Result<f64, LoadError> {
    let growth = |weight: f64| 0.1 * weight * factor.max(1.0).ln() + 1.0;
    let own = scaling.optional_number("mscale")?;
    let all = scaling.optional_number("mscale_all_dim")?;
    Ok(match (own, all) {
        (Some(own), Some(all)) => growth(own) / growth(all),
        (None, None) => growth(1.0),
        _ => {
            return Err(Settings::wrong(
                "rope_scaling.mscale",
                &own.map_or("absent".to_owned(), |own| own.to_string()),
                "mscale and mscale_all_dim go together",
            ));
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(config: &Value, head_dim: usize) -> Result<Rope, LoadError> {
        let settings = Settings(config.as_object().unwrap());
        Rope::read(settings, Some(10_000.0), head_dim)
    }

    fn frequencies(config: &Value, head_dim: usize) -> Vec<f64> {
        let rope = of(config, head_dim).unwrap();
        assert_eq!(rope.magnitude.to_bits(), 1.0_f64.to_bits());
        rope.frequencies
    }

    #[test]
    fn plain_frequencies_fall_geometrically() {
        assert_eq!(frequencies(&json!({"rope_theta": 10000.0}), 4), [1.0, 0.01]);
        assert_eq!(frequencies(&json!({}), 4), [1.0, 0.01]);
        assert_eq!(
            frequencies(&json!({"rope_parameters": {"rope_theta": 100}}), 4),
            [1.0, 0.1]
        );
    }

    #[test]
    fn linear_scaling_divides_all() {
        let config = json!({"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 4}});
        assert_eq!(frequencies(&config, 4), [0.25, 0.025]);
    }

    /// Llama 3.2 1B, head of 64; the values of Hugging Face's
    /// `_compute_llama3_parameters`, worked by hand at three pairs.
    #[test]
    fn llama3_scaling_stretches_the_slow_pairs() {
        let config = json!({"rope_theta": 500_000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
        let scaled = frequencies(&config, 64);
        // The first pair turns 1,303 times in 8,192 positions: kept.
        assert_eq!(scaled[0].to_bits(), 1.0_f64.to_bits());
        // Pair 16: 500000^-0.5 = 0.00141421, 1.84385 turns, so 0.281283 is kept:
        // 0.00141421 * (0.281283 + 0.718717 / 32) = 0.000429557.
        assert!((scaled[16] - 0.000_429_557).abs() < 1e-9, "{}", scaled[16]);
        // The last turns once in 2 pi * 331,817 positions: stretched by 32.
        assert!((scaled[31] * 32.0 - 500_000_f64.powf(-62.0 / 64.0)).abs() < 1e-15);
    }

    /// Head of 8, base 10,000: pair i turns 10000^(-i/4) radians a position.
    /// In 4,096 positions pair 1.31 turns 32 times and pair 2.81 once. So pairs
    /// up to 1 are kept, those from 3 on stretched, and pair 2 is half way.
    #[test]
    fn yarn_stretches_by_degrees() {
        let mut config = json!({"rope_theta": 10000.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}});
        let rope = of(&config, 8).unwrap();
        let expected = [1.0, 0.1, 0.01 * 0.625, 0.001 * 0.25];
        for (found, expected) in rope.frequencies.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-12, "{rope:?}");
        }
        // 0.1 ln 4 + 1
        assert!((rope.magnitude - 1.138_629_436).abs() < 1e-9, "{rope:?}");
        config["rope_scaling"]["attention_factor"] = json!(1.5);
        let rope = of(&config, 8).unwrap();
        assert!((rope.magnitude - 1.5).abs() < 1e-12);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (config, words) in [
            (
                json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
                ["dynamic", "llama3"],
            ),
            (
                json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0, "beta_fast": 8}}),
                ["rope_scaling.beta_fast", "linear"],
            ),
            (
                json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
                ["partial_rotary_factor", "0.5"],
            ),
            (
                json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                       "original_max_position_embeddings": 64, "truncate": false}}),
                ["rope_scaling.truncate", "true"],
            ),
        ] {
            let error = of(&config, 64).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
