//! How tensors of a GGUF file are stored, and what their blocks hold.
//!
//! All encodings but those of floats are affine: some values of a row share a
//! scale and a bias, `value = scale · q + bias`, q being an integer of at most
//! 8 bits. They are kept so. Layout and formulas: `ggml-common.h` and
//! `ggml-quants.c` of <https://github.com/ggml-org/ggml>.

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
}

/// Encodings by their ids in files: name, elements and bytes of a block.
const ENCODINGS: [(u32, Encoding, &str, u64, u64); 14] = [
    (0, Encoding::F32, "F32", 1, 4),
    (1, Encoding::F16, "F16", 1, 2),
    (2, Encoding::Q4_0, "Q4_0", 32, 18),
    (3, Encoding::Q4_1, "Q4_1", 32, 20),
    (6, Encoding::Q5_0, "Q5_0", 32, 22),
    (7, Encoding::Q5_1, "Q5_1", 32, 24),
    (8, Encoding::Q8_0, "Q8_0", 32, 34),
    (10, Encoding::Q2K, "Q2_K", 256, 84),
    (11, Encoding::Q3K, "Q3_K", 256, 110),
    (12, Encoding::Q4K, "Q4_K", 256, 144),
    (13, Encoding::Q5K, "Q5_K", 256, 176),
    (14, Encoding::Q6K, "Q6_K", 256, 210),
    (15, Encoding::Q8K, "Q8_K", 256, 292),
    (30, Encoding::BF16, "BF16", 1, 2),
];

/// Names of those that are not read.
const OTHERS: [(u32, &str); 11] = [
    (9, "Q8_1"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (39, "MXFP4"),
];

impl Encoding {
    /// # Errors
    /// The name of an encoding that is not supported.
    pub(super) fn from_id(id: u32) -> Result<Self, String> {
        let known = ENCODINGS.iter().find(|encoding| encoding.0 == id);
        known.map(|encoding| encoding.1).ok_or_else(|| {
            let other = OTHERS.iter().find(|other| other.0 == id);
            other.map_or_else(|| format!("GGUF type {id}"), |other| other.1.to_owned())
        })
    }

    pub(super) fn supported() -> String {
        ENCODINGS.map(|encoding| encoding.2).join(", ")
    }

    fn entry(self) -> &'static (u32, Self, &'static str, u64, u64) {
        let own = ENCODINGS.iter().find(|encoding| encoding.1 == self);
        own.unwrap_or(&ENCODINGS[0])
    }

    pub(super) fn name(self) -> &'static str {
        self.entry().2
    }

    pub(super) fn block_elements(self) -> u64 {
        self.entry().3
    }

    pub(super) fn block_bytes(self) -> u64 {
        self.entry().4
    }

    /// The values of whole blocks.
    pub(super) fn read(self, blocks: &[u8]) -> Values {
        let floats = |read: fn(&[u8]) -> f32, width: usize| {
            Values::Floats(blocks.chunks_exact(width).map(read).collect())
        };
        let affine = |group_size: usize, n_bits: usize, read: fn(&[u8], &mut Affine)| {
            let mut affine = Affine::new(group_size, n_bits);
            let blocks = blocks.chunks_exact(self.block_bytes() as usize);
            blocks.for_each(|block| read(block, &mut affine));
            Values::Affine(affine)
        };
        match self {
            Self::F32 => floats(f32_at, 4),
            Self::F16 => floats(f16_at, 2),
            Self::BF16 => floats(bf16_at, 2),
            Self::Q4_0 => affine(32, 4, q4_0),
            Self::Q4_1 => affine(32, 4, q4_1),
            Self::Q5_0 => affine(32, 8, q5_0),
            Self::Q5_1 => affine(32, 8, q5_1),
            Self::Q8_0 => affine(32, 8, q8_0),
            Self::Q2K => affine(16, 4, q2_k),
            Self::Q3K => affine(16, 4, q3_k),
            Self::Q4K => affine(32, 4, q4_k),
            Self::Q5K => affine(32, 8, q5_k),
            Self::Q6K => affine(16, 8, q6_k),
            Self::Q8K => affine(32, 8, q8_k),
        }
    }
}

/// What blocks hold.
#[derive(Debug, PartialEq)]
pub(super) enum Values {
    Floats(Vec<f32>),
    Affine(Affine),
}

/// Integers, and a scale and a bias for each `group_size` of them.
#[derive(Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) group_size: usize,
    /// 4 or 8, in which all of them fit.
    pub(super) n_bits: usize,
    pub(super) q: Vec<u8>,
    pub(super) scales: Vec<f32>,
    pub(super) biases: Vec<f32>,
}

impl Affine {
    fn new(group_size: usize, n_bits: usize) -> Self {
        Self {
            group_size,
            n_bits,
            q: Vec::new(),
            scales: Vec::new(),
            biases: Vec::new(),
        }
    }

    fn group(&mut self, scale: f32, bias: f32) {
        self.scales.push(scale);
        self.biases.push(bias);
    }

    /// The low halves of all bytes, then the high ones.
    fn nibbles(&mut self, bytes: &[u8]) {
        self.q.extend(bytes.iter().map(|byte| byte & 15));
        self.q.extend(bytes.iter().map(|byte| byte >> 4));
    }

    /// `scale · q + bias` of each value, rounded once.
    pub(super) fn values(&self) -> Vec<f32> {
        let parameters = self.scales.iter().zip(&self.biases);
        let groups = self.q.chunks_exact(self.group_size).zip(parameters);
        groups
            .flat_map(|(q, (&scale, &bias))| {
                q.iter().map(move |&q| scale.mul_add(f32::from(q), bias))
            })
            .collect()
    }
}

fn f32_at(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn f16_at(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn bf16_at(bytes: &[u8]) -> f32 {
    half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn q4_0(block: &[u8], out: &mut Affine) {
    let scale = f16_at(block);
    out.group(scale, -8.0 * scale);
    out.nibbles(&block[2..]);
}

fn q4_1(block: &[u8], out: &mut Affine) {
    out.group(f16_at(block), f16_at(&block[2..]));
    out.nibbles(&block[4..]);
}

fn q5_0(block: &[u8], out: &mut Affine) {
    let scale = f16_at(block);
    out.group(scale, -16.0 * scale);
    fifth_bits(&block[2..6], &block[6..], out);
}

fn q5_1(block: &[u8], out: &mut Affine) {
    out.group(f16_at(block), f16_at(&block[2..]));
    fifth_bits(&block[4..8], &block[8..], out);
}

/// 32 values of 5 bits, the highest of each in `high`.
fn fifth_bits(high: &[u8], low: &[u8], out: &mut Affine) {
    let first = out.q.len();
    out.nibbles(low);
    for (index, q) in out.q[first..].iter_mut().enumerate() {
        *q |= (high[index / 8] >> (index % 8) & 1) << 4;
    }
}

fn q8_0(block: &[u8], out: &mut Affine) {
    let scale = f16_at(block);
    out.group(scale, -128.0 * scale);
    out.q.extend(block[2..].iter().map(|q| q ^ 0x80));
}

/// Sixteen groups, each with 4 bits of scale and 4 of what is taken away.
fn q2_k(block: &[u8], out: &mut Affine) {
    let (scales, q) = (&block[..16], &block[16..80]);
    let (scale, minimum) = (f16_at(&block[80..]), f16_at(&block[82..]));
    for byte in scales {
        out.group(
            scale * f32::from(byte & 15),
            -minimum * f32::from(byte >> 4),
        );
    }
    out.q.extend(two_bits(q));
}

/// The values of two bits in `bytes`: of 32 bytes the lowest, then the next
/// ones up, then of the other 32.
fn two_bits(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.chunks_exact(32).flat_map(|bytes| {
        [0, 2, 4, 6]
            .into_iter()
            .flat_map(move |shift| bytes.iter().map(move |byte| byte >> shift & 3))
    })
}

/// Sixteen groups with 6 bits of scale, and 3 bits of value, the highest of
/// each in the first 32 bytes.
fn q3_k(block: &[u8], out: &mut Affine) {
    let (high, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let scale = f16_at(&block[108..]);
    for index in 0..16 {
        let four = packed[index % 8] >> (4 * (index / 8)) & 15;
        let two = packed[8 + index % 4] >> (2 * (index / 4)) & 3;
        let scale = scale * (f32::from(two << 4 | four) - 32.0);
        out.group(scale, -4.0 * scale);
    }
    let third = |index: usize| high[index % 32] >> (index / 32) & 1;
    let with_third = |(index, q): (usize, u8)| q | third(index) << 2;
    out.q.extend(two_bits(low).enumerate().map(with_third));
}

/// Scales and minima of the eight groups of a Q4_K or Q5_K block.
fn k_groups(block: &[u8], out: &mut Affine) {
    let (scale, minimum) = (f16_at(block), f16_at(&block[2..]));
    let packed = &block[4..16];
    for index in 0..8 {
        let (six, other) = if index < 4 {
            (packed[index] & 63, packed[index + 4] & 63)
        } else {
            let four = packed[index + 4];
            let high = |byte: u8| byte >> 6 << 4;
            (
                four & 15 | high(packed[index - 4]),
                four >> 4 | high(packed[index]),
            )
        };
        out.group(scale * f32::from(six), -minimum * f32::from(other));
    }
}

fn q4_k(block: &[u8], out: &mut Affine) {
    k_groups(block, out);
    for bytes in block[16..].chunks_exact(32) {
        out.nibbles(bytes);
    }
}

fn q5_k(block: &[u8], out: &mut Affine) {
    k_groups(block, out);
    let high = &block[16..48];
    let first = out.q.len();
    for bytes in block[48..].chunks_exact(32) {
        out.nibbles(bytes);
    }
    for (index, q) in out.q[first..].iter_mut().enumerate() {
        *q |= (high[index % 32] >> (index / 32) & 1) << 4;
    }
}

/// Sixteen groups with 8 bits of scale, and 6 bits of value: 4 in the first 128
/// bytes, the 2 highest in the next 64.
fn q6_k(block: &[u8], out: &mut Affine) {
    let (low, high) = (&block[..128], &block[128..192]);
    let scale = f16_at(&block[208..]);
    for byte in &block[192..208] {
        let scale = scale * f32::from(byte.cast_signed());
        out.group(scale, -32.0 * scale);
    }
    let first = out.q.len();
    for bytes in low.chunks_exact(64) {
        out.nibbles(bytes);
    }
    let q = out.q[first..].iter_mut();
    q.zip(two_bits(high)).for_each(|(q, two)| *q |= two << 4);
}

fn q8_k(block: &[u8], out: &mut Affine) {
    let scale = f32_at(block);
    (0..8).for_each(|_| out.group(scale, -128.0 * scale));
    out.q.extend(block[4..260].iter().map(|q| q ^ 0x80));
}
