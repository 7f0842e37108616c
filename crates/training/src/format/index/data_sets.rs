//! Data sets of an HDF5 file whose rows lie in it as they are: contiguous, or in chunks of whole rows without a filter.

use super::ReadAt;
use crate::format::bounded::{u16_at, u32_at};
use crate::format::hdf5::walk::{self, DataLayout, Walk};
use crate::format::hdf5::SIGNATURE;
use crate::format::Damage;

/// Filters by their identifiers, as The HDF Group registers them.
const FILTERS: &[(u16, &str)] = &[
    (1, "deflate (gzip)"),
    (2, "shuffle"),
    (3, "Fletcher-32 sums"),
    (4, "szip"),
    (5, "n-bit"),
    (6, "scale-offset"),
    (32000, "LZF"),
    (32001, "Blosc"),
    (32004, "LZ4"),
    (32008, "bitshuffle"),
    (32015, "Zstandard"),
    (32026, "Blosc2"),
];

/// Bytes of a number, exponent's bits and mantissa's bits.
const FLOATS: [(u32, u8, u8); 3] = [(2, 5, 10), (4, 8, 23), (8, 11, 52)];

/// Bytes before the superblock at most, where a user's own stand there: a power of two.
const USER_BLOCK_MAX: u64 = 1 << 30;

/// A data set of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSet {
    /// With those of its groups: `train/x`.
    pub name: String,
    pub dims: Vec<u64>,
    /// Type of an item, as NumPy writes it; `|V12` where it is bytes to us.
    pub item: String,
    /// Of a row: an item for each place of all sides but the first.
    pub row_bytes: u64,
    /// Rows that lie one behind the other: how many, and the byte of the first.
    pub runs: Vec<(u64, u64)>,
}

/// The named data sets, or all of the root group, or of all groups where that has none, by name. One that doesn't lie in the file
/// as it is is an error that names it.
///
/// # Errors
/// What isn't HDF5, or isn't read here, with its place.
pub fn index_data_sets(
    file_bytes: u64,
    wanted: Option<&[String]>,
    read: &mut ReadAt<'_>,
) -> Result<Vec<DataSet>, Damage> {
    let base = superblock_at(file_bytes, read)?;
    let from_root = |name: &String| name.trim_start_matches('/').to_string();
    let wanted: Option<Vec<String>> = wanted.map(|names| names.iter().map(from_root).collect());
    let mut walk = walked(file_bytes, base, Some(wanted.as_deref().unwrap_or_default()), read)?;
    if wanted.is_none() && walk.sets.is_empty() {
        walk = walked(file_bytes, base, None, read)?;
    }
    let is_known = |name: &String| walk.sets.iter().any(|set| set.name == *name);
    if let Some(name) = wanted.iter().flatten().find(|name| !is_known(name)) {
        let known = walk.sets.iter().map(|set| set.name.as_str()).take(12).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "no other".to_string() } else { known };
        return Err(Damage::new(0, 0, format!("it has no data set {name}, of {known}")));
    }
    let is_chosen = |set: &&walk::DataSet| wanted.as_ref().is_none_or(|wanted| wanted.contains(&set.name));
    let chosen = walk.sets.iter().filter(is_chosen);
    let mut found = chosen.map(plain).collect::<Result<Vec<_>, _>>()?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    for (_, at) in found.iter_mut().flat_map(|set| &mut set.runs) {
        *at += base;
    }
    Ok(found)
}

/// A walk that is through. `base`: bytes before the superblock.
fn walked(
    file_bytes: u64,
    base: u64,
    wanted: Option<&[String]>,
    read: &mut ReadAt<'_>,
) -> Result<Walk, Damage> {
    let mut walk = Walk::listing(file_bytes - base, base, wanted);
    let mut bytes = Vec::new();
    while let Some((at, length)) = walk.asks() {
        bytes.resize(length as usize, 0);
        read(base + at, &mut bytes).map_err(|error| Damage::new(0, base + at, error.to_string()))?;
        walk.answer(&bytes).map_err(|(at, what)| Damage::new(0, base.saturating_add(at), what))?;
    }
    Ok(walk)
}

/// Returns where the superblock begins: behind a block of the user's, if there is one. 0 where there is none at all.
fn superblock_at(file_bytes: u64, read: &mut ReadAt<'_>) -> Result<u64, Damage> {
    let mut signature = [0; SIGNATURE.len()];
    let powers =
        std::iter::successors(Some(512_u64), |at| Some(at * 2)).take_while(|at| *at <= USER_BLOCK_MAX);
    for at in std::iter::once(0).chain(powers).take_while(|at| at + 8 <= file_bytes) {
        read(at, &mut signature).map_err(|error| Damage::new(0, at, error.to_string()))?;
        if &signature == SIGNATURE {
            return Ok(at);
        }
    }
    Ok(0)
}

fn plain(set: &walk::DataSet) -> Result<DataSet, Damage> {
    let wrong = |at: u64, what: &str| Damage::new(0, at, format!("data set {} {what}", set.name));
    let item = item(&set.item).map_err(|what| wrong(0, what))?;
    let rows = set.dims[0];
    let row_bytes = set.dims[1..].iter().try_fold(set.item_bytes, |all, side| all.checked_mul(*side));
    let row_bytes =
        row_bytes.filter(|bytes| *bytes > 0).ok_or_else(|| wrong(0, "has rows without a byte"))?;
    if let Some(filter) = set.filter {
        let name = FILTERS.iter().find(|(id, _)| *id == filter).map(|(_, name)| (*name).to_string());
        let name = name.unwrap_or_else(|| format!("filter {filter}"));
        return Err(wrong(0, &format!("went through {name}: its chunks aren't its rows")));
    }
    let runs = match &set.place {
        _ if rows == 0 => Vec::new(),
        DataLayout::Contiguous { at, .. } => vec![(rows, *at)],
        DataLayout::Chunked { .. } => {
            let Some(each) = set.rows_a_chunk else {
                return Err(wrong(0, "has chunks that split its rows"));
            };
            let mut chunks = set.chunks.clone();
            chunks.sort_unstable();
            let whole = chunks.len() as u64 == rows.div_ceil(each);
            if !whole || chunks.iter().zip(0..).any(|((row, _), n)| *row != n * each) {
                return Err(wrong(0, "has a chunk two times, and another not at all"));
            }
            chunks.iter().map(|(row, at)| (each.min(rows - row), *at)).collect()
        }
        DataLayout::Header => return Err(wrong(0, "lies in its own header (compact)")),
        DataLayout::Absent(why) => return Err(wrong(0, &format!("isn't in this file: {why}"))),
    };
    Ok(DataSet { name: set.name.clone(), dims: set.dims.clone(), item, row_bytes, runs })
}

/// Type of an item, by its message: class, bits of the class, bytes, properties.
fn item(message: &[u8]) -> Result<String, &'static str> {
    let class = message.first().map_or(u8::MAX, |first| first & 0x0f);
    let (bits, bytes) = (message.get(1).copied().unwrap_or(0), u32_at_or_0(message, 4));
    let is_number = class <= 1;
    if is_number && bits & 0x41 != 0 {
        return Err("has big-endian numbers, which are handed out as they lie");
    }
    match class {
        0 if matches!(bytes, 1 | 2 | 4 | 8) && is_full(message, bytes) => {
            let sign = if bits & 8 == 0 { 'u' } else { 'i' };
            Ok(format!("{}{sign}{bytes}", if bytes == 1 { '|' } else { '<' }))
        }
        1 if message.len() >= 20 && is_full(message, bytes) => {
            let own = (bytes, message[13], message[15]);
            Ok(if FLOATS.contains(&own) { format!("<f{bytes}") } else { format!("|V{bytes}") })
        }
        // What it counts in.
        8 => item(message.get(8..).unwrap_or_default()),
        9 => Err("has items of any length, which lie elsewhere"),
        7 => Err("has references for items"),
        u8::MAX => Err("doesn't say what an item is"),
        _ => Ok(format!("|V{bytes}")),
    }
}

/// Whether all bits of the number count.
fn is_full(message: &[u8], bytes: u32) -> bool {
    message.len() >= 12 && u16_at(message, 8) == 0 && u32::from(u16_at(message, 10)) == 8 * bytes
}

fn u32_at_or_0(message: &[u8], at: usize) -> u32 {
    if message.len() >= at + 4 {
        u32_at(message, at)
    } else {
        0
    }
}
