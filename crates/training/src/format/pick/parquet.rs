//! The columns of a Parquet file that a run reads: the footer first, then each row group's chunks of these columns, as
//! pyarrow's `read_row_group(group, columns)` asks for them. Samples are whole row group by row group.

use super::{PickSpec, Picker, Piece, Pieces, RecordIndex, Wanted};
use crate::format::bounded::u32_at;
use crate::format::parquet::{Parquet, MAGIC, TAIL_BYTES};
use crate::format::thrift::Reader;
use crate::format::{Damage, Lost, ParseSpec, Parser, COLUMNS_ARE};

/// Read at the end of a file before anything is known of it: pyarrow reads as much.
const TAIL_READ: u64 = 64 << 10;
/// Limit on the footer: that of 200 columns in 10,000 row groups.
const FOOTER_BYTES_MAX: u64 = 256 << 20;

/// Of a file's columns so many are named.
const NAMED_MOST: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Tail,
    /// The footer's part before the tail.
    Footer,
    Data,
}

/// A row group of which samples are wanted.
struct Group {
    /// Rows of the file up to its end, and its own.
    rows_end: u64,
    rows: u64,
    /// Pieces up to the end of its last chunk.
    pieces: usize,
}

/// Chunks of one row group, by the leaves of the schema.
struct Chunk {
    at: u64,
    bytes: u64,
}

pub(crate) struct Columns {
    spec: PickSpec,
    pages: Parquet,
    file_bytes: u64,
    wanted: Wanted,
    stage: Stage,
    pieces: Pieces,
    /// The file's last bytes, and what came before them of the footer.
    tail: Vec<u8>,
    footer: Vec<u8>,
    groups: Vec<Group>,
    /// Index of the group that is being taken; rows before it are whole.
    group: usize,
    whole_rows: u64,
    /// True once this piece is known to be damaged: the rest of it is ignored.
    ignores: bool,
    is_lost: bool,
    lost: Vec<Lost>,
    payload: u64,
}

impl Columns {
    pub(crate) fn new(spec: &PickSpec) -> Columns {
        Columns {
            spec: spec.clone(),
            pages: Parquet::new(&ParseSpec::default()),
            file_bytes: 0,
            wanted: Wanted::default(),
            stage: Stage::Tail,
            pieces: Pieces::default(),
            tail: Vec::new(),
            footer: Vec::new(),
            groups: Vec::new(),
            group: 0,
            whole_rows: 0,
            ignores: false,
            is_lost: false,
            lost: Vec::new(),
            payload: 0,
        }
    }

    fn at_footer(&self, what: impl Into<String>) -> Damage {
        Damage::new(0, self.file_bytes.saturating_sub(TAIL_BYTES as u64), what)
    }

    /// The last bytes have come: where is the footer?
    fn tail_ended(&mut self) -> Result<(), Damage> {
        let end = self.tail.len() - TAIL_BYTES;
        if &self.tail[end + 4..] != MAGIC {
            return Err(self.at_footer("it doesn't end as a Parquet file does"));
        }
        let bytes = u64::from(u32_at(&self.tail, end));
        let room = self.file_bytes - (MAGIC.len() + TAIL_BYTES) as u64;
        if bytes > room.min(FOOTER_BYTES_MAX) {
            let has = self.file_bytes;
            return Err(self.at_footer(format!("its footer says {bytes} bytes, and the file has {has}")));
        }
        if bytes > end as u64 {
            self.stage = Stage::Footer;
            let missing = bytes - end as u64;
            self.pieces.push(self.file_bytes - TAIL_BYTES as u64 - bytes, missing, false);
            return Ok(());
        }
        let begin = end - bytes as usize;
        let footer = self.tail[begin..end].to_vec();
        self.plan(&footer, begin as u64 + self.file_bytes - self.tail.len() as u64)
    }

    fn footer_ended(&mut self) -> Result<(), Damage> {
        let mut footer = std::mem::take(&mut self.footer);
        let end = self.tail.len() - TAIL_BYTES;
        footer.extend_from_slice(&self.tail[..end]);
        let begin = self.file_bytes - (footer.len() + TAIL_BYTES) as u64;
        self.plan(&footer, begin)
    }

    /// Lists the chunks that are wanted. `limit`: where the footer begins.
    fn plan(&mut self, footer: &[u8], limit: u64) -> Result<(), Damage> {
        let (columns, first, end) = (self.spec.columns.clone(), self.wanted.first, self.last_row());
        let mut table = Table {
            columns: &columns,
            names: Vec::new(),
            misdescribed: None,
            leaves: Vec::new(),
            rows: None,
            before: 0,
        };
        let (pieces, groups) = (&mut self.pieces, &mut self.groups);
        let mut odd = None;
        let mut each = |rows_before: u64, rows: u64, chunks: &[Chunk]| {
            let rows_end = rows_before + rows;
            if rows_end <= first || rows_before >= end {
                return;
            }
            let begin = pieces.all.len();
            for chunk in chunks {
                if chunk.at.checked_add(chunk.bytes).is_none_or(|end| end > limit) {
                    odd = Some(format!("its footer has a chunk of {} bytes at {}", chunk.bytes, chunk.at));
                    return;
                }
                pieces.push(chunk.at, chunk.bytes, pieces.all.len() > begin);
            }
            groups.push(Group { rows_end, rows, pieces: pieces.all.len() });
        };
        let read = table.read(footer, &mut each);
        let (rows, leaves) = (table.rows, table.leaves.len());
        let said = table.misdescribed.take();
        let read = read.err().map(|what| said.unwrap_or_else(|| format!("its footer: {what}")));
        if let Some(what) = read.or(odd) {
            return Err(Damage::new(0, limit, what));
        }
        let expected = u64::from(self.spec.samples_per_file);
        match rows {
            _ if leaves == 0 => return Err(Damage::new(0, limit, "its footer has no columns")),
            Some(rows) if expected == 0 || rows == expected => {}
            rows => {
                let what = format!("it holds {} rows, not {expected}", rows.unwrap_or(0));
                return Err(Damage::new(0, limit, what));
            }
        }
        if self.groups.last().is_none_or(|group| group.rows_end < end) {
            return Err(Damage::new(0, limit, "its row groups have fewer rows than the file"));
        }
        self.stage = Stage::Data;
        self.whole_rows = first;
        self.begin_piece();
        self.count_whole();
        Ok(())
    }

    /// One behind the last row that is wanted.
    fn last_row(&self) -> u64 {
        match self.wanted.samples {
            0 => self.wanted.first,
            samples => self.wanted.record(samples - 1).saturating_add(1),
        }
    }

    fn begin_piece(&mut self) {
        self.ignores = false;
        if self.pieces.current < self.pieces.all.len() {
            self.pages.begin_pages(self.pieces.offset());
        }
    }

    /// Row groups whose last piece was taken.
    fn count_whole(&mut self) {
        while let Some(group) = self.groups.get(self.group).filter(|g| g.pieces <= self.pieces.current) {
            self.whole_rows = group.rows_end;
            self.group += 1;
            self.is_lost = false;
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        let before = self.pages.payload_bytes();
        let mut found = Ok(());
        if !self.spec.checks {
            self.payload += bytes.len() as u64;
        } else if !self.ignores {
            found = self.pages.take(bytes);
            self.payload += self.pages.payload_bytes() - before;
        }
        let ended = self.pieces.took(bytes.len());
        if ended && found.is_ok() && self.spec.checks && !self.ignores {
            found = self.pages.pages_ended();
        }
        if let Err(damage) = found {
            self.lose(damage)?;
        }
        if ended {
            self.count_whole();
            self.begin_piece();
        }
        Ok(())
    }

    /// The row group's samples are lost, or all is.
    fn lose(&mut self, damage: Damage) -> Result<(), Damage> {
        let Some(group) = self.groups.get(self.group).filter(|_| self.spec.skips) else { return Err(damage) };
        // A second column of the group costs no sample more.
        let records = if self.is_lost { 0 } else { group.rows };
        self.lost.push(Lost { damage, first: group.rows_end - group.rows, records });
        (self.is_lost, self.ignores) = (true, true);
        Ok(())
    }
}

/// The contents of a footer.
struct Table<'a> {
    /// Columns of the first level, as they come.
    names: Vec<String>,
    /// What is said of a column that isn't there.
    misdescribed: Option<String>,
    columns: &'a [String],
    /// Wanted leaves of the schema.
    leaves: Vec<bool>,
    rows: Option<u64>,
    /// Rows of the groups that were seen.
    before: u64,
}

impl Table<'_> {
    fn read(&mut self, footer: &[u8], each: &mut dyn FnMut(u64, u64, &[Chunk])) -> Result<(), &'static str> {
        Reader::new(footer).fields(|reader, number, kind| {
            match (number, kind) {
                (2, 9) => self.schema(reader)?,
                (3, 5 | 6) => self.rows = u64::try_from(reader.number()?).ok(),
                (4, 9) => reader.list(|reader| self.group(reader, each))?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    /// The schema is a tree, written depth first: which of its leaves lie below a column that is wanted?
    fn schema(&mut self, reader: &mut Reader) -> Result<(), &'static str> {
        let mut open: Vec<i64> = Vec::new();
        let (mut wanted, mut found) = (false, 0);
        reader.list(|reader| {
            let (mut name, mut children) = (&b""[..], 0);
            reader.fields(|reader, number, kind| {
                match (number, kind) {
                    (4, 8) => name = reader.binary()?,
                    (5, 5) => children = reader.number()?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?;
            if open.len() == 1 {
                self.names.push(String::from_utf8_lossy(name).into_owned());
                wanted = self.columns.is_empty() || self.columns.iter().any(|c| c.as_bytes() == name);
                found += usize::from(wanted);
            }
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            let is_root = open.is_empty() && self.leaves.is_empty();
            if children > 0 {
                if open.len() == 64 {
                    return Err("its schema is more than 64 deep");
                }
                open.push(children);
            } else if !is_root {
                self.leaves.push(wanted);
            }
            while open.len() > 1 && open.last().is_some_and(|left| *left <= 0) {
                open.pop();
            }
            Ok(())
        })?;
        if found < self.columns.len() {
            let first = self.columns.iter().find(|c| !self.names.contains(c));
            let listed = self.names.iter().take(NAMED_MOST).cloned().collect::<Vec<_>>().join(", ");
            let more = if self.names.len() > NAMED_MOST { ", …" } else { "" };
            let reads = first.map_or("", String::as_str);
            self.misdescribed = Some(format!("{COLUMNS_ARE}{listed}{more}; the workload reads {reads}"));
            return Err("another column is read");
        }
        Ok(())
    }

    fn group(
        &mut self,
        reader: &mut Reader,
        each: &mut dyn FnMut(u64, u64, &[Chunk]),
    ) -> Result<(), &'static str> {
        let (mut rows, mut leaf, mut chunks) = (0, 0, Vec::new());
        reader.fields(|reader, number, kind| {
            match (number, kind) {
                (1, 9) => reader.list(|reader| {
                    let chunk = chunk(reader)?;
                    if self.leaves.get(leaf).copied().ok_or("a row group has more columns than the schema")? {
                        chunks.push(chunk);
                    }
                    leaf += 1;
                    Ok(())
                })?,
                (3, 5 | 6) => rows = reader.number()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let rows = u64::try_from(rows).map_err(|_| "a row group has fewer than no rows")?;
        if leaf < self.leaves.len() {
            return Err("a row group has fewer columns than the schema");
        }
        let after = self.before.checked_add(rows).ok_or("it has more rows than can be")?;
        each(self.before, rows, &chunks);
        self.before = after;
        Ok(())
    }
}

/// A chunk's place: its dictionary comes first, where it has one.
fn chunk(reader: &mut Reader) -> Result<Chunk, &'static str> {
    let (mut bytes, mut data, mut dictionary) = (-1, -1, -1);
    reader.fields(|reader, number, kind| {
        if (number, kind) != (3, 12) {
            return Ok(false);
        }
        reader.fields(|reader, number, kind| {
            match (number, kind) {
                (7, 5 | 6) => bytes = reader.number()?,
                (9, 5 | 6) => data = reader.number()?,
                (11, 5 | 6) => dictionary = reader.number()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(true)
    })?;
    let at = if dictionary > 0 { data.min(dictionary) } else { data };
    match (u64::try_from(at), u64::try_from(bytes)) {
        (Ok(at), Ok(bytes)) => Ok(Chunk { at, bytes }),
        _ => Err("a chunk has no place in the file"),
    }
}

impl Picker for Columns {
    fn begin(&mut self, file_bytes: u64, wanted: Wanted, _: Option<&RecordIndex>) -> Result<(), Damage> {
        (self.file_bytes, self.wanted, self.stage) = (file_bytes, wanted, Stage::Tail);
        self.pieces.clear();
        self.groups.clear();
        self.tail.clear();
        self.footer = Vec::new();
        self.pages.begin(file_bytes);
        (self.group, self.whole_rows, self.payload) = (0, wanted.first, 0);
        (self.ignores, self.is_lost) = (false, false);
        self.lost.clear();
        if file_bytes < (MAGIC.len() + TAIL_BYTES) as u64 {
            return Err(Damage::new(0, 0, format!("{file_bytes} bytes are no Parquet file")));
        }
        let bytes = file_bytes.min(TAIL_READ);
        self.pieces.push(file_bytes - bytes, bytes, false);
        Ok(())
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces.all
    }

    fn goal(&self, upto: u64) -> u64 {
        if self.stage != Stage::Data {
            return self.pieces.end();
        }
        let Some(last) = upto.checked_sub(1).map(|last| self.wanted.record(last)) else {
            return self.pieces.at;
        };
        let group = self.groups.partition_point(|group| group.rows_end <= last);
        let pieces = self.groups.get(group).map_or(self.pieces.all.len(), |group| group.pieces);
        pieces.checked_sub(1).map_or(0, |i| self.pieces.all[i].end).max(self.pieces.at)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        match self.stage {
            Stage::Tail => {
                self.tail.extend_from_slice(bytes);
                if self.pieces.took(bytes.len()) {
                    return self.tail_ended();
                }
            }
            Stage::Footer => {
                self.footer.extend_from_slice(bytes);
                if self.pieces.took(bytes.len()) {
                    return self.footer_ended();
                }
            }
            Stage::Data => return self.data(bytes),
        }
        Ok(())
    }

    fn samples(&self) -> u64 {
        match self.stage {
            Stage::Data => self.wanted.before(self.whole_rows),
            _ => 0,
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.payload
    }

    fn lost(&mut self, into: &mut Vec<Lost>) {
        into.append(&mut self.lost);
    }
}
