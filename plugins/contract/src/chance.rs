//! Chance: numbers that depend on the request's seed and the place they are
//! drawn at, and on nothing else.
//!
//! Philox4x32-10 is the counter-based generator of Salmon, Moraes, Dror and
//! Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// Where a number is drawn: everything it depends on but the draw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chance {
    /// The request's seed.
    pub seed: i64,
    /// Tokens generated before the one being sampled.
    pub position: u32,
    /// Index among the request's choices.
    pub choice: u32,
    /// The stage, see [`lane`].
    pub lane: u32,
}

impl Chance {
    /// 64 random bits.
    pub fn bits(self, draw: u32) -> u64 {
        let seed = self.seed as u64;
        let key = [seed as u32, (seed >> 32) as u32];
        let [high, low, ..] = philox([self.position, self.choice, draw, self.lane], key);
        u64::from(high) << 32 | u64::from(low)
    }
}

/// The lane of a stage that is not the sampler, whose lane is 0: FNV-1a of
/// its name, so that no two stages of a chain draw the same number and adding
/// one does not change what the others draw.
pub fn lane(stage: &str) -> u32 {
    stage.bytes().fold(0x811C_9DC5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(chance: Chance, draw: u32) -> f64 {
        (chance.bits(draw) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The known answers of the Random123 distribution (`kat_vectors`).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// The checks of the contract's definition of `uniform`.
    #[test]
    #[allow(clippy::float_cmp)]
    fn each_key_gives_its_own_number() {
        let chance = Chance::default();
        assert_eq!(uniform(chance, 0), 0.399_046_470_848_964_5);
        let chance = Chance { seed: 42, ..chance };
        assert_eq!(uniform(chance, 0), 0.612_959_881_189_415_8);
        let at = |position, choice, draw| {
            uniform(
                Chance {
                    position,
                    choice,
                    ..chance
                },
                draw,
            )
        };
        assert_eq!(at(1, 0, 0), 0.987_718_650_914_510_5);
        assert_eq!(at(0, 1, 0), 0.261_241_477_795_690_5);
        assert_eq!(at(0, 0, 1), 0.010_058_844_724_262_55);
        let chance = Chance {
            seed: -1,
            position: 7,
            ..chance
        };
        assert_eq!(uniform(chance, 0), 0.430_190_246_960_820_2);
    }

    /// The published FNV-1a-32 test values of "" and "foobar".
    #[test]
    fn lanes_are_fnv_1a() {
        assert_eq!(lane(""), 0x811c_9dc5);
        assert_eq!(lane("foobar"), 0xbf9c_f968);
    }
}
