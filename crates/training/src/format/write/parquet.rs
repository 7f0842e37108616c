//! Parquet with one uncompressed page per column of a row group, each with its CRC-32; values are content. A number of 4 or
//! 8 bytes is a column of its type, anything else (bytes, halves, several values) one of fixed-length byte strings.

use super::{FileShape, Layout, Part, Sum, WriteSpec};
use forebay_model::random::mix;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

const MAGIC: &[u8] = b"PAR1";
/// Lengths of pages are signed 32-bit numbers.
pub(crate) const PAGE_BYTES_MAX: u64 = i32::MAX as u64;

/// A column: `values` of its type in each sample.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    pub name: String,
    /// float32, int64, uint8 …
    #[serde(rename = "type")]
    pub kind: String,
    pub values: u32,
}

/// Parquet's physical types.
const INT32: i64 = 1;
const INT64: i64 = 2;
const FLOAT: i64 = 4;
const DOUBLE: i64 = 5;
const FIXED_LEN_BYTE_ARRAY: i64 = 7;

impl Column {
    /// Length of one value; None for an unknown type.
    pub(crate) fn value_bytes(&self) -> Option<u64> {
        match self.kind.as_str() {
            "int8" | "uint8" => Some(1),
            "int16" | "float16" => Some(2),
            "int32" | "float32" => Some(4),
            "int64" | "float64" => Some(8),
            _ => None,
        }
    }

    /// Bytes of one sample.
    fn bytes(&self) -> u64 {
        self.value_bytes().unwrap_or(0) * u64::from(self.values)
    }

    fn physical(&self) -> i64 {
        match (self.kind.as_str(), self.values) {
            ("int32", 1) => INT32,
            ("int64", 1) => INT64,
            ("float32", 1) => FLOAT,
            ("float64", 1) => DOUBLE,
            _ => FIXED_LEN_BYTE_ARRAY,
        }
    }
}

pub(crate) struct Parquet {
    seed: u64,
    rows: u64,
    row_group: u64,
    columns: Vec<Column>,
}

impl Parquet {
    /// Without columns: one of bytes, `data`, as long as a sample is.
    pub(crate) fn new(spec: &WriteSpec) -> Parquet {
        let row_group = u64::from(if spec.row_group == 0 { spec.samples_per_file } else { spec.row_group });
        Parquet {
            seed: spec.seed,
            rows: u64::from(spec.samples_per_file),
            row_group: row_group.max(1),
            columns: spec.columns.clone(),
        }
    }

    fn columns(&self, shape: FileShape) -> Vec<Column> {
        if !self.columns.is_empty() {
            return self.columns.clone();
        }
        let values = u32::try_from(shape.sample_bytes()).unwrap_or(u32::MAX);
        vec![Column { name: "data".into(), kind: "uint8".into(), values }]
    }

    fn groups(&self) -> u64 {
        self.rows.div_ceil(self.row_group)
    }

    fn rows_of(&self, group: u64) -> u64 {
        self.row_group.min(self.rows - group * self.row_group)
    }

    /// CRC-32 of a page, promised by its header. Pages too short to keep the promise are zeroes.
    fn crc(&self, shape: FileShape, group: u64, column: usize, bytes: u64) -> u32 {
        if bytes < 4 {
            return super::super::sums::crc32(0, &vec![0; bytes as usize]);
        }
        let sum = mix(self.seed ^ mix(u64::from(shape.number) << 32 ^ group) ^ mix(column as u64)) as u32;
        // Numbers of this size take five bytes in a header: files of one shape are of one length.
        sum & 0x3fff_ffff | 0x4000_0000
    }

    fn page_head(&self, rows: u64, bytes: u64, crc: u32) -> Vec<u8> {
        let mut head = Compact::default();
        head.number(1, 5, 0);
        head.number(2, 5, bytes as i64);
        head.number(3, 5, bytes as i64);
        head.number(4, 5, i64::from(crc as i32));
        // A data page: values, plain, and the encoding of levels that there aren't.
        head.begin(5);
        head.number(1, 5, rows as i64);
        head.number(2, 5, 0);
        head.number(3, 5, 3);
        head.number(4, 5, 3);
        head.end();
        head.end();
        head.bytes
    }

    /// Offset and length, with its header, of each column's page, group by group.
    fn chunks(&self, shape: FileShape, columns: &[Column]) -> Vec<Vec<(u64, u64)>> {
        let mut at = MAGIC.len() as u64;
        let group = |group| {
            let rows = self.rows_of(group);
            let chunk = |(index, column): (usize, &Column)| {
                let bytes = column.bytes() * rows;
                let head = self.page_head(rows, bytes, self.crc(shape, group, index, bytes));
                let place = (at, head.len() as u64 + bytes);
                at += place.1;
                place
            };
            columns.iter().enumerate().map(chunk).collect()
        };
        (0..self.groups()).map(group).collect()
    }

    fn footer(&self, columns: &[Column], chunks: &[Vec<(u64, u64)>]) -> Vec<u8> {
        let mut out = Compact::default();
        out.number(1, 5, 2);
        out.list(2, columns.len() as u64 + 1);
        out.enter();
        out.text(4, "schema");
        out.number(5, 5, columns.len() as i64);
        out.end();
        for column in columns {
            out.enter();
            out.number(1, 5, column.physical());
            if column.physical() == FIXED_LEN_BYTE_ARRAY {
                out.number(2, 5, column.bytes() as i64);
            }
            // Required.
            out.number(3, 5, 0);
            out.text(4, &column.name);
            out.end();
        }
        out.number(3, 6, self.rows as i64);
        out.list(4, chunks.len() as u64);
        for (group, places) in chunks.iter().enumerate() {
            self.group_meta(&mut out, group, columns, places);
        }
        out.text(6, "forebay");
        out.end();
        let length = out.bytes.len() as u32;
        [&out.bytes[..], &length.to_le_bytes(), MAGIC].concat()
    }

    fn group_meta(&self, out: &mut Compact, group: usize, columns: &[Column], places: &[(u64, u64)]) {
        let rows = self.rows_of(group as u64) as i64;
        let total: u64 = places.iter().map(|(_, bytes)| bytes).sum();
        out.enter();
        out.list(1, columns.len() as u64);
        for (column, (at, bytes)) in columns.iter().zip(places) {
            out.enter();
            out.number(2, 6, *at as i64);
            out.begin(3);
            out.number(1, 5, column.physical());
            // Plain.
            out.numbers(2, &[0]);
            out.texts(3, &[&column.name]);
            out.number(4, 5, 0);
            out.number(5, 6, rows);
            out.number(6, 6, *bytes as i64);
            out.number(7, 6, *bytes as i64);
            out.number(9, 6, *at as i64);
            out.end();
            out.end();
        }
        out.number(2, 6, total as i64);
        out.number(3, 6, rows);
        out.end();
    }
}

impl Layout for Parquet {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        let columns = self.columns(shape);
        let chunks = self.chunks(shape, &columns);
        let end =
            chunks.last().and_then(|group| group.last()).map_or(MAGIC.len() as u64, |(at, bytes)| at + bytes);
        end + self.footer(&columns, &chunks).len() as u64
    }

    /// A step is a row group, and the last one the footer.
    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        let columns = self.columns(shape);
        if step > self.groups() {
            return false;
        }
        if step == self.groups() {
            let chunks = self.chunks(shape, &columns);
            parts.push_back(Part::Bytes(self.footer(&columns, &chunks)));
            return true;
        }
        if step == 0 {
            parts.push_back(Part::Bytes(MAGIC.to_vec()));
        }
        let rows = self.rows_of(step);
        for (index, column) in columns.iter().enumerate() {
            let bytes = column.bytes() * rows;
            let crc = self.crc(shape, step, index, bytes);
            parts.push_back(Part::Bytes(self.page_head(rows, bytes, crc)));
            if bytes < 4 {
                parts.push_back(Part::Bytes(vec![0; bytes as usize]));
                continue;
            }
            parts.extend([Part::Sum(Sum::Crc32), Part::Content(bytes - 4), Part::ForceCrc32(crc)]);
        }
        true
    }
}

/// Thrift's compact protocol, as far as it is needed. The outermost struct is open from the start.
struct Compact {
    bytes: Vec<u8>,
    /// The last field's number, for each struct that is open.
    last: Vec<i64>,
}

impl Default for Compact {
    fn default() -> Compact {
        Compact { bytes: Vec::new(), last: vec![0] }
    }
}

impl Compact {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn zigzag(&mut self, value: i64) {
        self.varint((value << 1 ^ value >> 63) as u64);
    }

    fn field(&mut self, number: i64, kind: u8) {
        let last = self.last.last_mut().expect("a struct is open");
        let delta = (number - *last) as u8;
        *last = number;
        self.bytes.push(delta << 4 | kind);
    }

    /// A field of 32 (kind 5) or 64 bits (6).
    fn number(&mut self, number: i64, kind: u8, value: i64) {
        self.field(number, kind);
        self.zigzag(value);
    }

    fn text(&mut self, number: i64, text: &str) {
        self.field(number, 8);
        self.varint(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn begin(&mut self, number: i64) {
        self.field(number, 12);
        self.enter();
    }

    fn enter(&mut self) {
        self.last.push(0);
    }

    fn end(&mut self) {
        self.bytes.push(0);
        self.last.pop();
    }

    fn list_head(&mut self, number: i64, kind: u8, count: u64) {
        self.field(number, 9);
        if count < 15 {
            self.bytes.push((count as u8) << 4 | kind);
        } else {
            self.bytes.push(15 << 4 | kind);
            self.varint(count);
        }
    }

    /// A list of structs, each of which is opened and closed.
    fn list(&mut self, number: i64, count: u64) {
        self.list_head(number, 12, count);
    }

    fn numbers(&mut self, number: i64, values: &[i64]) {
        self.list_head(number, 5, values.len() as u64);
        values.iter().for_each(|value| self.zigzag(*value));
    }

    fn texts(&mut self, number: i64, texts: &[&str]) {
        self.list_head(number, 8, texts.len() as u64);
        for text in texts {
            self.varint(text.len() as u64);
            self.bytes.extend(text.as_bytes());
        }
    }
}
