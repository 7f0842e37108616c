//! Where samples lie in files that don't hold them as rows: files in the shards of WebDataset, values of fixed width in the
//! pages of Parquet, records of TFRecord, arrays of .npz, data sets of HDF5. Only headers are read; nothing is trusted.

mod archive;
mod data_sets;
mod records;

pub use archive::{index_archive, ArchiveArray};
pub use data_sets::index_data_sets;
pub use records::index_records;

use super::bounded::u32_at;
use super::parquet::{MAGIC, TAIL_BYTES};
use super::thrift::Reader;
pub(crate) use super::webdataset::Member;
use super::webdataset::WebDataset;
use super::{tar, Damage, Parser};

/// Fills the buffer from the file's byte on.
pub type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> std::io::Result<()> + 'a;

/// Limit on a Parquet footer, and on a page's header.
const FOOTER_BYTES_MAX: u64 = 256 << 20;
const PAGE_HEADER_BYTES_MAX: u64 = 64 << 10;
const PAGE_HEADER_BYTES: u64 = 256;

/// Files of samples of a shard, in its order.
///
/// # Errors
/// What isn't an archive, or isn't read here, with its place.
pub fn index_shard(file_bytes: u64, read: &mut ReadAt<'_>) -> Result<Vec<Member>, Damage> {
    let mut parser = WebDataset::listing();
    parser.begin(file_bytes);
    let (mut at, mut block) = (0u64, [0; tar::BLOCK_BYTES]);
    while at < file_bytes {
        let bytes = (file_bytes - at).min(block.len() as u64) as usize;
        read(at, &mut block[..bytes]).map_err(|error| Damage::new(0, at, error.to_string()))?;
        parser.take(&block[..bytes])?;
        at += bytes as u64 + parser.pass_content();
    }
    parser.end()?;
    Ok(parser.into_listed())
}

/// Physical types, as Parquet numbers them, with the bytes of a value; what has none isn't of fixed width.
const TYPES: [(&str, u64); 8] = [
    ("BOOLEAN", 0),
    ("INT32", 4),
    ("INT64", 8),
    ("INT96", 12),
    ("FLOAT", 4),
    ("DOUBLE", 8),
    ("BYTE_ARRAY", 0),
    ("FIXED_LEN_BYTE_ARRAY", 0),
];
const FIXED: usize = 7;
const CODECS: [&str; 8] = ["UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"];
const PLAIN: i64 = 0;

/// A column of a Parquet file whose values lie in it as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainColumn {
    pub name: String,
    /// INT32, INT64, INT96, FLOAT, DOUBLE or FIXED_LEN_BYTE_ARRAY; UINT32, UINT64 or FLOAT16 where the schema says so.
    pub kind: &'static str,
    /// Of a value.
    pub bytes: u64,
    /// Values that lie one behind the other: how many, and the byte of the first.
    pub runs: Vec<(u64, u64)>,
}

struct Leaf {
    name: String,
    kind: usize,
    bytes: u64,
    repetition: i64,
    /// Its own level alone lies above it.
    is_flat: bool,
    meaning: Meaning,
}

/// What a column's values are beyond their physical type.
#[derive(Clone, Copy, Default)]
struct Meaning {
    is_unsigned: bool,
    is_half: bool,
}

impl Meaning {
    /// From the schema's converted type, which unsigned integers are of from 11 to 14.
    fn convert(&mut self, reader: &mut Reader<'_>) -> Parsed<()> {
        self.is_unsigned |= (11..=14).contains(&reader.number()?);
        Ok(())
    }

    /// From its logical type: a union, whose member 10 is an integer, with a sign or without, and 15 a float of 16 bits.
    fn logical(&mut self, reader: &mut Reader<'_>) -> Parsed<()> {
        reader.fields(|reader, member, of| {
            match (member, of) {
                (10, 12) => reader.fields(|_, inside, truth| {
                    self.is_unsigned |= (inside, truth) == (2, 2);
                    Ok(false)
                })?,
                (15, 12) => {
                    self.is_half = true;
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}

impl Leaf {
    fn kind(&self) -> &'static str {
        match TYPES[self.kind].0 {
            "INT32" if self.meaning.is_unsigned => "UINT32",
            "INT64" if self.meaning.is_unsigned => "UINT64",
            "FIXED_LEN_BYTE_ARRAY" if self.meaning.is_half && self.bytes == 2 => "FLOAT16",
            kind => kind,
        }
    }
}

struct Chunk {
    leaf: usize,
    codec: i64,
    values: u64,
    data: u64,
    has_dictionary: bool,
    is_elsewhere: bool,
}

/// The named columns of a file, or all. A column that isn't plain is an error that names it.
///
/// # Errors
/// What isn't Parquet, or isn't read here, with its place.
pub fn index_plain_columns(
    file_bytes: u64,
    columns: Option<&[String]>,
    read: &mut ReadAt<'_>,
) -> Result<(u64, Vec<PlainColumn>), Damage> {
    let (begin, footer) = footer(file_bytes, read)?;
    let wrong = |what: &str| Damage::new(0, begin, format!("its footer: {what}"));
    let (mut leaves, mut chunks, mut rows) = (Vec::new(), Vec::new(), 0);
    Reader::new(&footer)
        .fields(|reader, number, kind| {
            match (number, kind) {
                (2, 9) => leaves = schema(reader)?,
                (3, 5 | 6) => rows = unsigned(reader)?,
                (4, 9) => reader.list(|reader| group(reader, &mut chunks))?,
                _ => return Ok(false),
            }
            Ok(true)
        })
        .map_err(wrong)?;
    let is_wanted = |name: &str| columns.is_none_or(|columns| columns.iter().any(|c| c == name));
    if let Some(name) =
        columns.into_iter().flatten().find(|name| leaves.iter().all(|leaf| leaf.name != **name))
    {
        let known = leaves.iter().map(|leaf| leaf.name.as_str()).take(12).collect::<Vec<_>>().join(", ");
        return Err(Damage::new(0, begin, format!("it has no column {name}, of {known}")));
    }
    let mut found = Vec::new();
    for (number, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| is_wanted(&leaf.name)) {
        let mut runs = Vec::new();
        check(leaf).map_err(|what| Damage::new(0, begin, what))?;
        for chunk in chunks.iter().filter(|chunk| chunk.leaf == number) {
            pages(leaf, chunk, begin, read, &mut runs)?;
        }
        if runs.iter().try_fold(0u64, |all, (values, _)| all.checked_add(*values)) != Some(rows) {
            return Err(wrong(&format!(
                "column {} has not as many values as the file has rows, {rows}",
                leaf.name
            )));
        }
        found.push(PlainColumn { name: leaf.name.clone(), kind: leaf.kind(), bytes: leaf.bytes, runs });
    }
    Ok((rows, found))
}

/// Where the footer begins, and its bytes.
fn footer(file_bytes: u64, read: &mut ReadAt<'_>) -> Result<(u64, Vec<u8>), Damage> {
    let framing = (MAGIC.len() + TAIL_BYTES) as u64;
    if file_bytes < framing {
        return Err(Damage::new(0, 0, format!("{file_bytes} bytes are no Parquet file")));
    }
    let (at, mut tail) = (file_bytes - TAIL_BYTES as u64, [0; TAIL_BYTES]);
    let failed = |at: u64| move |error: std::io::Error| Damage::new(0, at, error.to_string());
    read(at, &mut tail).map_err(failed(at))?;
    if &tail[4..] != MAGIC {
        return Err(Damage::new(0, at, "it doesn't end as a Parquet file does"));
    }
    let bytes = u64::from(u32_at(&tail, 0));
    if bytes > (file_bytes - framing).min(FOOTER_BYTES_MAX) {
        return Err(Damage::new(
            0,
            at,
            format!("its footer says {bytes} bytes, and the file has {file_bytes}"),
        ));
    }
    let (begin, mut footer) = (at - bytes, vec![0; bytes as usize]);
    read(begin, &mut footer).map_err(failed(begin))?;
    Ok((begin, footer))
}

type Parsed<T> = Result<T, &'static str>;

fn unsigned(reader: &mut Reader<'_>) -> Parsed<u64> {
    u64::try_from(reader.number()?).map_err(|_| "a number is negative that can't be")
}

/// The leaves of the schema, which is a tree written depth first; one that lies deeper is called by its whole path.
fn schema(reader: &mut Reader<'_>) -> Parsed<Vec<Leaf>> {
    let (mut leaves, mut open, mut is_root) = (Vec::new(), Vec::<(i64, String)>::new(), true);
    reader.list(|reader| {
        let (mut name, mut kind, mut bytes, mut repetition, mut children) = (&b""[..], -1, 0, 0, 0);
        let mut meaning = Meaning::default();
        reader.fields(|reader, number, of| {
            match (number, of) {
                (1, 5) => kind = reader.number()?,
                (2, 5) => bytes = unsigned(reader)?,
                (3, 5) => repetition = reader.number()?,
                (4, 8) => name = reader.binary()?,
                (5, 5) => children = reader.number()?,
                (6, 5) => meaning.convert(reader)?,
                (10, 12) => meaning.logical(reader)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let is_flat = open.len() == 1;
        let mut path = String::from_utf8_lossy(name).into_owned();
        if let Some((left, before)) = open.last_mut() {
            *left -= 1;
            path.insert_str(0, before);
        }
        if children > 0 {
            if open.len() == 64 {
                return Err("its schema is more than 64 deep");
            }
            open.push((children, if is_root { String::new() } else { path + "." }));
        } else if !is_root {
            let kind = usize::try_from(kind)
                .ok()
                .filter(|kind| *kind < TYPES.len())
                .ok_or("a column has no known type")?;
            let bytes = if kind == FIXED { bytes } else { TYPES[kind].1 };
            leaves.push(Leaf { name: path, kind, bytes, repetition, is_flat, meaning });
        }
        is_root = false;
        while open.len() > 1 && open.last().is_some_and(|(left, _)| *left <= 0) {
            open.pop();
        }
        Ok(())
    })?;
    Ok(leaves)
}

fn group(reader: &mut Reader<'_>, chunks: &mut Vec<Chunk>) -> Parsed<()> {
    let mut leaf = 0;
    reader.fields(|reader, number, kind| {
        if (number, kind) != (1, 9) {
            return Ok(false);
        }
        reader.list(|reader| {
            chunks.push(chunk(reader, leaf)?);
            leaf += 1;
            Ok(())
        })?;
        Ok(true)
    })
}

fn chunk(reader: &mut Reader<'_>, leaf: usize) -> Parsed<Chunk> {
    let mut found = Chunk { leaf, codec: 0, values: 0, data: 0, has_dictionary: false, is_elsewhere: false };
    reader.fields(|reader, number, kind| {
        match (number, kind) {
            (1, 8) => found.is_elsewhere = !reader.binary()?.is_empty(),
            (3, 12) => reader.fields(|reader, number, kind| {
                match (number, kind) {
                    (4, 5) => found.codec = reader.number()?,
                    (5, 5 | 6) => found.values = unsigned(reader)?,
                    (9, 5 | 6) => found.data = unsigned(reader)?,
                    (11, 5 | 6) => found.has_dictionary = unsigned(reader)? > 0,
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

/// Refuses columns that can't be plain, by their names.
fn check(leaf: &Leaf) -> Result<(), String> {
    let what = match leaf {
        leaf if !leaf.is_flat || leaf.repetition == 2 => "is nested or repeated".into(),
        leaf if leaf.bytes == 0 => {
            format!("is of type {}, which has no fixed width in bytes", TYPES[leaf.kind].0)
        }
        _ => return Ok(()),
    };
    Err(format!("column {} {what}", leaf.name))
}

#[derive(Default)]
struct Page {
    kind: i64,
    unpacked: u64,
    bytes: u64,
    values: u64,
    encoding: i64,
    /// Of version 2: bytes of levels.
    levels: u64,
}

fn page(reader: &mut Reader<'_>) -> Parsed<Page> {
    let mut found = Page { encoding: -1, ..Page::default() };
    reader.fields(|reader, number, kind| {
        match (number, kind) {
            (1, 5) => found.kind = reader.number()?,
            (2, 5) => found.unpacked = unsigned(reader)?,
            (3, 5) => found.bytes = unsigned(reader)?,
            (5 | 8, 12) => reader.fields(|reader, inside, kind| {
                match (number, inside, kind) {
                    (_, 1, 5) => found.values = unsigned(reader)?,
                    (5, 2, 5) | (8, 4, 5) => found.encoding = reader.number()?,
                    (8, 5 | 6, 5) => found.levels = found.levels.saturating_add(unsigned(reader)?),
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

/// Adds the values of a chunk's pages. `limit`: where the footer begins.
fn pages(
    leaf: &Leaf,
    chunk: &Chunk,
    limit: u64,
    read: &mut ReadAt<'_>,
    runs: &mut Vec<(u64, u64)>,
) -> Result<(), Damage> {
    let (mut at, mut left) = (chunk.data, chunk.values);
    let refused = |at: u64, what: String| Damage::new(0, at, format!("column {} {what}", leaf.name));
    if chunk.is_elsewhere {
        return Err(refused(at, "lies in another file".into()));
    }
    if chunk.codec != 0 {
        let codec = usize::try_from(chunk.codec).ok().and_then(|codec| CODECS.get(codec));
        return Err(refused(at, format!("is compressed by {}", codec.unwrap_or(&"an unknown codec"))));
    }
    if chunk.has_dictionary {
        return Err(refused(at, "is encoded by a dictionary".into()));
    }
    while left > 0 {
        let (header, page) = page_at(at, limit, read).map_err(|what| refused(at, what))?;
        let begin = at + header;
        let end = begin.checked_add(page.bytes).filter(|end| *end <= limit);
        let Some(end) = end else {
            return Err(refused(at, format!("has a page of {} bytes, beyond the file's data", page.bytes)));
        };
        at = end;
        match page.kind {
            0 | 3 => {}
            2 => return Err(refused(begin, "is encoded by a dictionary".into())),
            _ => continue,
        }
        if page.encoding != PLAIN || page.unpacked != page.bytes {
            return Err(refused(begin, format!("has a page that isn't plain (encoding {})", page.encoding)));
        }
        let levels = match (page.kind, leaf.repetition) {
            (3, _) => page.levels,
            (_, 0) => 0,
            _ => {
                let mut length = [0; 4];
                if page.bytes < 4 {
                    return Err(refused(begin, "has a page that is too short for its levels".into()));
                }
                read(begin, &mut length).map_err(|error| refused(begin, error.to_string()))?;
                4 + u64::from(u32::from_le_bytes(length))
            }
        };
        let values = page.values.checked_mul(leaf.bytes).and_then(|bytes| bytes.checked_add(levels));
        if values.is_none_or(|bytes| bytes > page.bytes) {
            return Err(refused(begin, format!("has nulls among the {} values of a page", page.values)));
        }
        if page.values == 0 || page.values > left {
            return Err(refused(
                begin,
                format!("has a page of {} values, where {left} are left", page.values),
            ));
        }
        runs.push((page.values, begin + levels));
        left -= page.values;
    }
    Ok(())
}

/// Bytes of a page's header, and what it says.
fn page_at(at: u64, limit: u64, read: &mut ReadAt<'_>) -> Result<(u64, Page), String> {
    let room = limit.saturating_sub(at).min(PAGE_HEADER_BYTES_MAX);
    let mut bytes = PAGE_HEADER_BYTES.min(room);
    loop {
        let mut header = vec![0; bytes as usize];
        read(at, &mut header).map_err(|error| error.to_string())?;
        let mut reader = Reader::new(&header);
        match page(&mut reader) {
            Ok(page) => return Ok((bytes - reader.left() as u64, page)),
            // Statistics of long values make a long header.
            Err(_) if bytes < room => bytes = (bytes * 4).min(room),
            Err(what) => return Err(format!("has a page header of which {what}")),
        }
    }
}
