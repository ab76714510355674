//! Marks text so that the holder of a key can tell it (Kirchenbauer et al.
//! 2023, the soft red list): a hash of the key and the previous token makes a
//! fraction of the vocabulary green, and green tokens get a bias. `detect.py`
//! counts them.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// The secret by which the mark is found.
    key: u32,
    /// Added to the logits of green tokens.
    #[schemars(range(min = 0, max = 100))]
    #[serde(default = "default_bias")]
    bias: f32,
    /// How many tokens are green.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    #[serde(default = "default_fraction")]
    fraction: f64,
}

fn default_bias() -> f32 {
    2.0
}

fn default_fraction() -> f64 {
    0.5
}

struct Watermark {
    params: Params,
    vocabulary_size: u32,
    previous: TokenId,
}

/// Mixes all bits (the finaliser of `MurmurHash3`, Appleby 2011).
fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// The green tokens after `previous` as a mask: bit i % 32 of word i / 32.
fn green(key: u32, previous: TokenId, fraction: f64, vocabulary_size: u32) -> Vec<u32> {
    let seed = mix(previous ^ mix(key));
    let bar = (fraction * f64::from(u32::MAX)) as u32;
    let bit = |id: u32| u32::from(id < vocabulary_size && mix(id ^ seed) < bar) << (id % 32);
    let word = |i: u32| (32 * i..32 * i + 32).fold(0, |word, id| word | bit(id));
    (0..vocabulary_size.div_ceil(32)).map(word).collect()
}

impl Plugin for Watermark {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Marks text so that the holder of a key can tell.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            params,
            vocabulary_size: vocabulary::model().vocabulary_size,
            previous: sequence.prompt.last().copied().unwrap_or(0),
        })
    }
}

impl TokenProcessor for Watermark {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        if let Some(&newest) = accepted.last() {
            self.previous = newest;
        }
        let Params {
            key,
            bias,
            fraction,
        } = self.params;
        let words = green(key, self.previous, fraction, self.vocabulary_size);
        edits::add_masked(&words, bias);
        Ok(())
    }
}

export!(TokenProcessor for Watermark);

#[cfg(test)]
mod tests {
    use super::{green, mix};

    fn count(words: &[u32]) -> u32 {
        words.iter().map(|word| word.count_ones()).sum()
    }

    /// Values that `detect.py` gives too.
    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!([0, 1, 0xdead_beef].map(mix), [0, 0x514e_28b7, 0x0de5_c6a9]);
    }

    #[test]
    fn a_fraction_of_the_vocabulary_is_green() {
        // 5 standard deviations of a binomial are 480 of 49,152.
        let n = count(&green(17, 5, 0.25, 49_152));
        assert!(n.abs_diff(12_288) < 480, "{n}");
        assert_eq!(green(17, 5, 0.5, 33).len(), 2);
        assert!(green(17, 5, 0.99, 33)[1] <= 1);
    }

    #[test]
    fn other_keys_and_other_tokens_make_other_lists() {
        let lists = [(1, 5), (2, 5), (1, 6)].map(|(key, token)| green(key, token, 0.5, 4096));
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let shared: Vec<_> = lists[a].iter().zip(&lists[b]).map(|(a, b)| a & b).collect();
            // A quarter, ±5 standard deviations.
            assert!(count(&shared).abs_diff(1024) < 140);
        }
    }
}
