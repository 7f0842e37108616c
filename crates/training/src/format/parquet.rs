//! Parquet (parquet-format, `parquet.thrift`), front to back: magic, pages, each behind a header that says how long it is
//! and, where the writer put it there, its CRC-32; then indexes, the footer, its length, magic. Nothing is decoded.

use super::bounded::{u32_at, Gather};
use super::npy::expected;
use super::sums::crc32;
use super::thrift::{Seen, Walk};
use super::{Damage, ParseSpec, Parser};

pub(super) const MAGIC: &[u8; 4] = b"PAR1";
pub(super) const TAIL_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum ParquetState {
    Magic,
    /// A page's header, an index, a Bloom filter's header or the footer: fields tell.
    Struct,
    Page {
        left: u64,
        stored: Option<u32>,
    },
    Tail {
        footer_bytes: u64,
    },
    Done,
}

pub(crate) struct Parquet {
    samples_per_file: u64,
    file_bytes: u64,
    at: u64,
    state: ParquetState,
    gather: Gather,
    walk: Walk,
    crc: u32,
    /// Pages before this one, and where its header begins.
    pages: u64,
    start: u64,
    payload: u64,
    rows: u64,
}

impl Parquet {
    pub(crate) fn new(spec: &ParseSpec) -> Parquet {
        Parquet {
            samples_per_file: u64::from(spec.samples_per_file),
            file_bytes: 0,
            at: 0,
            state: ParquetState::Magic,
            gather: Gather::default(),
            walk: Walk::default(),
            crc: 0,
            pages: 0,
            start: 0,
            payload: 0,
            rows: 0,
        }
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage::new(self.pages, self.start, what)
    }

    fn next_struct(&mut self) {
        self.start = self.at;
        self.walk = Walk::default();
        self.state = ParquetState::Struct;
    }

    /// Begins to take pages, from there on in the file. Pages are counted on.
    pub(super) fn begin_pages(&mut self, offset: u64) {
        self.at = offset;
        self.next_struct();
    }

    /// Checks that they ended where a page does.
    pub(super) fn pages_ended(&self) -> Result<(), Damage> {
        if self.state == ParquetState::Struct && self.walk.bytes == 0 {
            return Ok(());
        }
        let inside = self.at - self.start;
        Err(self.damage(format!("the column's chunk ends {inside} bytes into a page")))
    }

    /// A struct has ended: what was it?
    fn reported(&mut self) -> Result<(), Damage> {
        let rest = self.file_bytes.saturating_sub(self.at);
        match self.walk.fields {
            // FileMetaData: version, schema, rows.
            [_, Seen::Number(_), Seen::List, Seen::Number(rows), ..] if rows >= 0 => {
                self.rows = rows as u64;
                self.gather.start(TAIL_BYTES);
                self.state = ParquetState::Tail { footer_bytes: self.walk.bytes };
            }
            // PageHeader: type, length, packed length, perhaps a checksum.
            [_, Seen::Number(_), Seen::Number(_), Seen::Number(bytes), crc, ..] => {
                let Some(left) = u64::try_from(bytes).ok().filter(|left| *left <= rest) else {
                    let what = format!("the page says {bytes} bytes, and the file ends after {rest}");
                    return Err(self.damage(what));
                };
                let stored = if let Seen::Number(crc) = crc { Some(crc as u32) } else { None };
                self.crc = 0;
                self.state = ParquetState::Page { left, stored };
                self.page(&mut &[][..])?;
            }
            // A Bloom filter's header: bytes, algorithm, hash, packing.
            [_, Seen::Number(bytes), Seen::Struct, ..]
                if u64::try_from(bytes).is_ok_and(|bytes| bytes <= rest) =>
            {
                self.state = ParquetState::Page { left: bytes as u64, stored: None };
                self.page(&mut &[][..])?;
            }
            // An index of columns or of offsets; what some writers repeat of a column behind its pages.
            [_, Seen::List, ..]
            | [_, Seen::Number(_), Seen::List, Seen::List, ..]
            | [_, Seen::Nothing, Seen::Number(_), Seen::Struct, ..] => self.next_struct(),
            _ => return Err(self.damage("this is neither a page, an index nor the footer")),
        }
        Ok(())
    }

    fn page(&mut self, bytes: &mut &[u8]) -> Result<(), Damage> {
        let ParquetState::Page { left, stored } = self.state else { return Ok(()) };
        let (now, rest) = bytes.split_at(left.min(bytes.len() as u64) as usize);
        if stored.is_some() {
            self.crc = crc32(self.crc, now);
        }
        self.at += now.len() as u64;
        self.payload += now.len() as u64;
        *bytes = rest;
        let left = left - now.len() as u64;
        self.state = ParquetState::Page { left, stored };
        if left > 0 {
            return Ok(());
        }
        if let Some(stored) = stored.filter(|stored| *stored != self.crc) {
            return Err(Damage::sum(self.pages, self.start, "the page", "CRC-32", stored, self.crc));
        }
        self.pages += 1;
        self.next_struct();
        Ok(())
    }

    fn gathered(&mut self) -> Result<(), Damage> {
        let bytes = self.gather.bytes();
        match self.state {
            ParquetState::Magic if bytes != MAGIC => {
                Err(self.damage("it doesn't begin as a Parquet file does"))
            }
            ParquetState::Magic => {
                self.next_struct();
                Ok(())
            }
            ParquetState::Tail { footer_bytes }
                if u64::from(u32_at(bytes, 0)) != footer_bytes || &bytes[4..] != MAGIC =>
            {
                let said = u32_at(bytes, 0);
                Err(self.damage(format!(
                    "a footer of {footer_bytes} bytes ends with length {said}, or another magic"
                )))
            }
            _ => {
                self.state = ParquetState::Done;
                Ok(())
            }
        }
    }
}

impl Parser for Parquet {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        (self.at, self.pages, self.start, self.payload, self.rows) = (0, 0, 0, 0, 0);
        self.state = ParquetState::Magic;
        self.gather.start(MAGIC.len());
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            let before = bytes.len();
            match self.state {
                ParquetState::Page { .. } => self.page(&mut bytes)?,
                ParquetState::Struct => {
                    let ended = self.walk.take(&mut bytes).map_err(|what| self.damage(what))?;
                    self.at += (before - bytes.len()) as u64;
                    if ended {
                        self.reported()?;
                    }
                }
                ParquetState::Magic | ParquetState::Tail { .. } => {
                    if self.gather.fill_at(&mut bytes, &mut self.at) {
                        self.gathered()?;
                    }
                }
                ParquetState::Done => {
                    let left = self.file_bytes.saturating_sub(self.at);
                    return Err(Damage::new(self.pages, self.at, format!("{left} bytes follow the footer")));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if self.state != ParquetState::Done {
            let inside = self.at - self.start;
            return Err(self.damage(format!("the file ends {inside} bytes into a page or the footer")));
        }
        expected(self.rows, self.samples_per_file).map_err(|what| self.damage(what))
    }

    fn samples(&self) -> u64 {
        if self.state == ParquetState::Done {
            self.rows
        } else {
            0
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.payload
    }
}
