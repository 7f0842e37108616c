//! The header of a safetensors file, as its format description gives it: JSON that names each tensor with its type,
//! shape and place in the bytes that follow. Anybody may have written it, so nothing in it is believed.

use crate::Error;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// The format's own limit on a header.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// More dimensions than any framework has.
const DIMENSIONS_MAX: usize = 64;
const METADATA: &str = "__metadata__";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype {
    pub name: &'static str,
    /// Bits of one element.
    pub bits: u32,
}

const fn dtype(name: &'static str, bits: u32) -> Dtype {
    Dtype { name, bits }
}

pub const DTYPES: &[Dtype] = &[
    dtype("BOOL", 8),
    dtype("F4", 4),
    dtype("F6_E2M3", 6),
    dtype("F6_E3M2", 6),
    dtype("U8", 8),
    dtype("I8", 8),
    dtype("F8_E5M2", 8),
    dtype("F8_E4M3", 8),
    dtype("F8_E8M0", 8),
    dtype("F8_E4M3FNUZ", 8),
    dtype("F8_E5M2FNUZ", 8),
    dtype("I16", 16),
    dtype("U16", 16),
    dtype("F16", 16),
    dtype("BF16", 16),
    dtype("I32", 32),
    dtype("U32", 32),
    dtype("F32", 32),
    dtype("C64", 64),
    dtype("F64", 64),
    dtype("I64", 64),
    dtype("U64", 64),
];

/// One tensor; `begin` and `end` count from where the header ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub begin: u64,
    pub end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their data, which they cover without gap or overlap.
    pub tensors: Vec<Tensor>,
    pub metadata: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Entries in their order; a name that stands twice is refused, since readers differ in which they take.
struct Entries {
    tensors: Vec<(String, Described)>,
    metadata: Vec<(String, String)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entries, D::Error> {
        from.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Entries { tensors: Vec::new(), metadata: Vec::new() };
        let mut seen = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("{name:?} stands twice")));
            }
            if name == METADATA {
                let texts: std::collections::BTreeMap<String, String> = map.next_value()?;
                entries.metadata = texts.into_iter().collect();
            } else {
                entries.tensors.push((name, map.next_value()?));
            }
        }
        Ok(entries)
    }
}

impl Header {
    /// `data_bytes`: what the file holds after the header.
    pub fn parse(json: &[u8], data_bytes: u64) -> Result<Header, Error> {
        if json.len() as u64 > HEADER_BYTES_MAX {
            return Err(wrong(format!("{} bytes of it; the format allows {HEADER_BYTES_MAX}", json.len())));
        }
        if json.first() != Some(&b'{') {
            return Err(wrong("it doesn't begin with '{'"));
        }
        let entries: Entries = serde_json::from_slice(json).map_err(|e| wrong(e.to_string()))?;
        let tensors: Result<Vec<Tensor>, Error> =
            entries.tensors.into_iter().map(|(name, described)| Tensor::new(name, described)).collect();
        let mut tensors = tensors?;
        tensors.sort_by_key(|t| (t.begin, t.end));
        cover(&tensors, data_bytes)?;
        Ok(Header { tensors, metadata: entries.metadata })
    }
}

impl Tensor {
    fn new(name: String, described: Described) -> Result<Tensor, Error> {
        let Described { dtype, shape, data_offsets: [begin, end] } = described;
        let dtype = DTYPES
            .iter()
            .find(|known| known.name == dtype)
            .ok_or_else(|| wrong(format!("tensor {name:?} is of an unknown type {dtype:?}")))?;
        if shape.len() > DIMENSIONS_MAX {
            return Err(wrong(format!("tensor {name:?} has {} dimensions", shape.len())));
        }
        let elements = shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
        let bits = elements.and_then(|n| n.checked_mul(u64::from(dtype.bits))).filter(|bits| bits % 8 == 0);
        let held = end.checked_sub(begin);
        if bits.is_none() || held != bits.map(|b| b / 8) {
            return Err(wrong(format!(
                "tensor {name:?}: {shape:?} of {} doesn't fill the bytes from {begin} to {end}",
                dtype.name
            )));
        }
        Ok(Tensor { name, dtype: *dtype, shape, begin, end })
    }
}

/// Each byte belongs to one tensor.
fn cover(tensors: &[Tensor], data_bytes: u64) -> Result<(), Error> {
    let mut at = 0;
    for tensor in tensors {
        if tensor.begin != at {
            let what =
                if tensor.begin < at { "overlaps the one before it" } else { "leaves a gap before it" };
            return Err(wrong(format!("tensor {:?} begins at {} and {what}", tensor.name, tensor.begin)));
        }
        at = tensor.end;
    }
    if at != data_bytes {
        return Err(wrong(format!("its tensors end at byte {at}, and the file has {data_bytes} for them")));
    }
    Ok(())
}

fn wrong(found: impl Into<String>) -> Error {
    Error::request("a safetensors header", found, "the file as its author published it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header_of(tensors: &[(usize, u64)]) -> (String, u64) {
        let mut at = 0;
        let described: Vec<String> = tensors
            .iter()
            .enumerate()
            .map(|(i, (dtype, n))| {
                let d = DTYPES[dtype % DTYPES.len()];
                // Whole bytes for the types below a byte.
                let n = if d.bits < 8 { n * 4 } else { *n };
                let begin = at;
                at += n * u64::from(d.bits) / 8;
                format!(r#""t{i}":{{"dtype":"{}","shape":[{n}],"data_offsets":[{begin},{at}]}}"#, d.name)
            })
            .collect();
        (format!("{{{}}}  ", described.join(",")), at)
    }

    proptest! {
        // promise: PYT-10
        #[test]
        fn what_is_accepted_covers_the_data_once(
            tensors in prop::collection::vec((0usize..40, 0u64..1000), 0..20), flip in any::<(prop::sample::Index, u8)>(),
        ) {
            let (text, bytes) = header_of(&tensors);
            let header = Header::parse(text.as_bytes(), bytes).unwrap();
            prop_assert_eq!(header.tensors.len(), tensors.len());
            prop_assert!(Header::parse(text.as_bytes(), bytes + 1).is_err());

            let mut broken = text.into_bytes();
            let at = flip.0.index(broken.len());
            broken[at] ^= flip.1;
            if let Ok(header) = Header::parse(&broken, bytes) {
                let mut at = 0;
                for t in &header.tensors {
                    prop_assert_eq!(t.begin, at);
                    prop_assert_eq!((t.end - t.begin) * 8, t.shape.iter().product::<u64>() * u64::from(t.dtype.bits));
                    at = t.end;
                }
                prop_assert_eq!(at, bytes);
            }
        }
    }

    // promise: PYT-10
    #[test]
    fn headers_that_lie_are_refused_with_the_reason() {
        let one = |d: &str| format!(r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{d}}}}}"#);
        for (text, bytes, reason) in [
            (one("[0,8]"), 9, "has 9"),
            (one("[0,8]"), 7, "has 7"),
            (one("[4,12]"), 12, "gap"),
            (one("[8,0]"), 8, "doesn't fill"),
            (one("[0,12]"), 12, "doesn't fill"),
            (one("[-1,7]"), 8, "invalid value"),
            (" {}".into(), 0, "begin with"),
            ("{".into(), 0, "EOF"),
            ("{} x".into(), 0, "trailing"),
            (r#"{"a":1}"#.into(), 0, "invalid type"),
            (r#"{"__metadata__":{"a":1}}"#.into(), 0, "invalid type"),
            (r#"{"a":{"dtype":"F9","shape":[],"data_offsets":[0,0]}}"#.into(), 0, "unknown type"),
            (
                r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.into(),
                0,
                "doesn't fill",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#.into(),
                2,
                "twice",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#.into(),
                3,
                "overlaps",
            ),
        ] {
            let error = Header::parse(text.as_bytes(), bytes).unwrap_err();
            assert!(error.found.contains(reason), "{text}: {error}");
        }
        let deep = format!("{}{}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
        assert!(Header::parse(deep.as_bytes(), 0).is_err());
    }
}
