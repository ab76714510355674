//! The header of a GGUF file: its metadata and where its tensors lie, checked
//! before any is read.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use super::{LoadError, gguf_blocks::Encoding};

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
    pub(super) tensors: Vec<Place>,
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
            // Other readers know an alignment of this type only.
            if key == ALIGNMENT && kind != 4 {
                return Err(self.malformed(format!("{ALIGNMENT} has type {kind}, not u32")));
            }
            metadata.insert(key, value);
        }
        let mut places = Vec::new();
        for _ in 0..n_tensors {
            places.push(self.place()?);
        }
        self.check_places(&metadata, &mut places)?;
        Ok(Header {
            metadata,
            tensors: places,
        })
    }

    /// Counts offsets from the beginning of the file, within which all tensors
    /// must lie.
    fn check_places(
        &self,
        metadata: &HashMap<String, Value>,
        places: &mut [Place],
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
        let mut end = start;
        for place in &mut *places {
            place.offset = start.saturating_add(place.offset);
            end = end.max(place.offset.saturating_add(place.n_bytes));
        }
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
        let encoding = Encoding::from_id(kind).map_err(|found| LoadError::UnsupportedEncoding {
            tensor: name.clone(),
            found,
            supported: Encoding::supported(),
        })?;
        let row = lengths.first().copied().unwrap_or(1);
        let fits = lengths.iter().all(|&length| i32::try_from(length).is_ok());
        let n_bytes = lengths
            .iter()
            .try_fold(1_u64, |n, &length| n.checked_mul(length))
            .and_then(|n| (n / encoding.block_elements()).checked_mul(encoding.block_bytes()))
            .filter(|_| fits && row.is_multiple_of(encoding.block_elements()))
            .ok_or_else(|| {
                self.malformed(format!(
                    "tensor `{name}` cannot have shape {lengths:?} as {}",
                    encoding.name()
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
            encoding,
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
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) name: String,
    /// Outermost dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) encoding: Encoding,
    /// From the beginning of the file, in bytes.
    pub(super) offset: u64,
    pub(super) n_bytes: u64,
}
