//! The header of a GGUF file: its metadata and where its tensors lie, checked
//! before MLX reads them, for MLX trusts it.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use super::LoadError;

const SUPPORTED: &str = "F32, F16, Q4_0, Q4_1, Q8_0";
const MAX_DIMENSIONS: u32 = 4;
const ALIGNMENT: &str = "general.alignment";

/// A value of the metadata. Numbers of all widths are kept as f64: what is read
/// from them is far below 2^53.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(f64),
    Bool(bool),
    Text(String),
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: HashMap<String, Value>,
    /// Names and shapes, outermost dimension first.
    pub(super) tensors: Vec<(String, Vec<usize>)>,
}

impl Header {
    /// # Errors
    /// When the file is not a whole GGUF file or has tensors of a type that is
    /// not supported.
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let read = |source| LoadError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let mut reader = Reader {
            path,
            input: BufReader::new(file),
            at: 0,
            length,
        };
        reader.header()
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A number that is a token id or a count.
    pub(super) fn index(&self, key: &str) -> Option<u32> {
        self.number(key)
            .filter(|number| number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number))
            .map(|number| number as u32)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn bool(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key)? {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn texts(&self, key: &str) -> &[String] {
        match self.metadata.get(key) {
            Some(Value::Texts(texts)) => texts,
            _ => &[],
        }
    }

    pub(super) fn numbers(&self, key: &str) -> &[f64] {
        match self.metadata.get(key) {
            Some(Value::Numbers(numbers)) => numbers,
            _ => &[],
        }
    }
}

/// How the elements of a tensor are stored.
struct Encoding {
    name: &'static str,
    block_elements: u64,
    block_bytes: u64,
}

/// The encodings MLX reads without loss.
fn encoding(id: u32) -> Result<Encoding, String> {
    let (name, block_elements, block_bytes) = match id {
        0 => ("F32", 1, 4),
        1 => ("F16", 1, 2),
        2 => ("Q4_0", 32, 18),
        3 => ("Q4_1", 32, 20),
        8 => ("Q8_0", 32, 34),
        other => return Err(encoding_name(other)),
    };
    Ok(Encoding {
        name,
        block_elements,
        block_bytes,
    })
}

fn encoding_name(id: u32) -> String {
    let name = match id {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        30 => "BF16",
        _ => return format!("GGUF type {id}"),
    };
    name.to_owned()
}

struct Reader<'a> {
    path: &'a Path,
    input: BufReader<File>,
    /// Bytes read so far.
    at: u64,
    /// Bytes in the file.
    length: u64,
}

impl Reader<'_> {
    fn header(&mut self) -> Result<Header, LoadError> {
        if self.length < 4 || &self.bytes::<4>()? != b"GGUF" {
            return Err(self.malformed("it does not begin with GGUF"));
        }
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            return Err(self.malformed(format!("its version is {version}, supported are 2 and 3")));
        }
        let (n_tensors, n_values) = (self.u64()?, self.u64()?);
        let mut metadata = HashMap::new();
        for _ in 0..n_values {
            let key = self.text()?;
            let kind = self.u32()?;
            let value = self.value(kind)?;
            // MLX reads an alignment of this type only, and must find the
            // tensors where they were checked to be.
            if key == ALIGNMENT && kind != 4 {
                return Err(self.malformed(format!("{ALIGNMENT} has type {kind}, not u32")));
            }
            metadata.insert(key, value);
        }
        let mut places = Vec::new();
        for _ in 0..n_tensors {
            places.push(self.place()?);
        }
        self.check_places(&metadata, &places)?;
        let tensors = places
            .into_iter()
            .map(|place| (place.name, place.shape))
            .collect();
        Ok(Header { metadata, tensors })
    }

    fn check_places(
        &self,
        metadata: &HashMap<String, Value>,
        places: &[Place],
    ) -> Result<(), LoadError> {
        let alignment = match metadata.get(ALIGNMENT) {
            None => 32,
            Some(Value::Number(number)) if *number >= 1.0 => *number as u64,
            Some(_) => return Err(self.malformed(format!("{ALIGNMENT} is 0"))),
        };
        let start = self
            .at
            .checked_next_multiple_of(alignment)
            .unwrap_or(u64::MAX);
        let end = places
            .iter()
            .map(|place| {
                start
                    .saturating_add(place.offset)
                    .saturating_add(place.n_bytes)
            })
            .max()
            .unwrap_or(start);
        if end > self.length {
            return Err(self.truncated(end));
        }
        let mut names: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        if let Some([name, _]) = twice {
            return Err(self.malformed(format!("it has two tensors `{name}`")));
        }
        Ok(())
    }

    /// One entry of the list of tensors.
    fn place(&mut self) -> Result<Place, LoadError> {
        let name = self.text()?;
        let n_dimensions = self.u32()?;
        if n_dimensions > MAX_DIMENSIONS {
            return Err(self.malformed(format!("tensor `{name}` has {n_dimensions} dimensions")));
        }
        let mut lengths = Vec::new();
        for _ in 0..n_dimensions {
            lengths.push(self.u64()?);
        }
        let (kind, offset) = (self.u32()?, self.u64()?);
        let encoding = encoding(kind).map_err(|found| LoadError::UnsupportedEncoding {
            tensor: name.clone(),
            found,
            supported: SUPPORTED,
        })?;
        let row = lengths.first().copied().unwrap_or(1);
        let fits = lengths.iter().all(|&length| i32::try_from(length).is_ok());
        let n_bytes = lengths
            .iter()
            .try_fold(1_u64, |n, &length| n.checked_mul(length))
            .and_then(|n| (n / encoding.block_elements).checked_mul(encoding.block_bytes))
            .filter(|_| fits && row.is_multiple_of(encoding.block_elements))
            .ok_or_else(|| {
                self.malformed(format!(
                    "tensor `{name}` cannot have shape {lengths:?} as {}",
                    encoding.name
                ))
            })?;
        let shape = lengths
            .iter()
            .rev()
            .map(|&length| length as usize)
            .collect();
        Ok(Place {
            name,
            shape,
            offset,
            n_bytes,
        })
    }

    fn value(&mut self, kind: u32) -> Result<Value, LoadError> {
        match kind {
            7 => Ok(Value::Bool(self.bytes::<1>()?[0] != 0)),
            8 => Ok(Value::Text(self.text()?)),
            9 => self.array(),
            _ => Ok(Value::Number(self.number(kind)?)),
        }
    }

    fn array(&mut self) -> Result<Value, LoadError> {
        let (kind, count) = (self.u32()?, self.u64()?);
        // Every element takes a byte at least, so `count` is bounded before
        // anything is allocated for it.
        if count > self.length - self.at {
            return Err(self.truncated(self.at.saturating_add(count)));
        }
        match kind {
            8 => (0..count)
                .map(|_| self.text())
                .collect::<Result<_, _>>()
                .map(Value::Texts),
            9 => Err(self.malformed("its metadata has an array of arrays")),
            _ => (0..count)
                .map(|_| self.number(kind))
                .collect::<Result<_, _>>()
                .map(Value::Numbers),
        }
    }

    fn number(&mut self, kind: u32) -> Result<f64, LoadError> {
        Ok(match kind {
            0 | 7 => f64::from(self.bytes::<1>()?[0]),
            1 => f64::from(i8::from_le_bytes(self.bytes()?)),
            2 => f64::from(u16::from_le_bytes(self.bytes()?)),
            3 => f64::from(i16::from_le_bytes(self.bytes()?)),
            4 => f64::from(self.u32()?),
            5 => f64::from(i32::from_le_bytes(self.bytes()?)),
            6 => f64::from(f32::from_le_bytes(self.bytes()?)),
            10 => self.u64()? as f64,
            11 => i64::from_le_bytes(self.bytes()?) as f64,
            12 => f64::from_le_bytes(self.bytes()?),
            other => return Err(self.malformed(format!("its metadata has type {other}"))),
        })
    }

    fn text(&mut self) -> Result<String, LoadError> {
        let length = self.u64()?;
        if length > self.length - self.at {
            return Err(self.truncated(self.at.saturating_add(length)));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.malformed("a text in its metadata is not UTF-8"))
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), LoadError> {
        let end = self.at + bytes.len() as u64;
        if end > self.length {
            return Err(self.truncated(end));
        }
        self.input
            .read_exact(bytes)
            .map_err(|source| LoadError::Read {
                path: self.path.to_owned(),
                source,
            })?;
        self.at = end;
        Ok(())
    }

    fn truncated(&self, needed: u64) -> LoadError {
        LoadError::Truncated {
            path: self.path.to_owned(),
            found: self.length,
            needed,
        }
    }

    fn malformed(&self, reason: impl Into<String>) -> LoadError {
        LoadError::Malformed {
            path: self.path.to_owned(),
            format: "GGUF",
            reason: reason.into(),
        }
    }
}

/// Where a tensor lies.
struct Place {
    name: String,
    shape: Vec<usize>,
    /// From the start of the tensors' data, in bytes.
    offset: u64,
    n_bytes: u64,
}
