//! PNG (W3C PNG, third edition, section 5): signature, then chunks `length · type · data · CRC-32 of type and data`.
//! Nothing is inflated.

use super::bounded::{u32_be, Gather};
use super::npy::expected;
use super::sums::crc32;
use super::{Damage, ParseSpec, Parser};

const SIGNATURE: &[u8; 8] = b"\x89PNG\r\n\x1a\n";
const HEAD_BYTES: usize = 8;
const SUM_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum PngState {
    Signature,
    Head,
    Data { left: u64 },
    Sum,
    Done,
}

pub(crate) struct Png {
    samples_per_file: u64,
    file_bytes: u64,
    at: u64,
    state: PngState,
    gather: Gather,
    kind: [u8; 4],
    crc: u32,
    /// Chunks before this one, and where it begins.
    chunks: u64,
    start: u64,
    /// Payload of IDAT.
    payload: u64,
}

impl Png {
    pub(crate) fn new(spec: &ParseSpec) -> Png {
        Png {
            samples_per_file: u64::from(spec.samples_per_file),
            file_bytes: 0,
            at: 0,
            state: PngState::Signature,
            gather: Gather::default(),
            kind: [0; 4],
            crc: 0,
            chunks: 0,
            start: 0,
            payload: 0,
        }
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage::new(self.chunks, self.start, what)
    }

    fn name(&self) -> String {
        self.kind.escape_ascii().to_string()
    }

    fn gathered(&mut self) -> Result<(), Damage> {
        match self.state {
            PngState::Signature if self.gather.bytes() != SIGNATURE => {
                return Err(self.damage("it doesn't begin as a PNG does"));
            }
            PngState::Signature => self.next_chunk(),
            PngState::Head => self.head()?,
            _ => self.sum()?,
        }
        Ok(())
    }

    fn next_chunk(&mut self) {
        self.start = self.at;
        self.gather.start(HEAD_BYTES);
        self.state = PngState::Head;
    }

    fn head(&mut self) -> Result<(), Damage> {
        let head = self.gather.bytes();
        let bytes = u64::from(u32_be(head, 0));
        self.kind = std::array::from_fn(|i| head[4 + i]);
        self.crc = crc32(0, &self.kind);
        let rest = self.file_bytes.saturating_sub(self.at);
        if bytes + SUM_BYTES as u64 > rest {
            let what = format!(
                "chunk {} says {bytes} bytes and 4 of checksum, and the file ends after {rest}",
                self.name()
            );
            return Err(self.damage(what));
        }
        if (self.chunks == 0) != (&self.kind == b"IHDR") || (&self.kind == b"IHDR" && bytes != 13) {
            return Err(self.damage(format!("chunk {} of {bytes} bytes may not stand here", self.name())));
        }
        self.state = PngState::Data { left: bytes };
        if bytes == 0 {
            self.await_sum();
        }
        Ok(())
    }

    fn await_sum(&mut self) {
        self.gather.start(SUM_BYTES);
        self.state = PngState::Sum;
    }

    fn sum(&mut self) -> Result<(), Damage> {
        let stored = u32_be(self.gather.bytes(), 0);
        if stored != self.crc {
            let of = format!("chunk {}", self.name());
            return Err(Damage::sum(self.chunks, self.start, &of, "CRC-32", stored, self.crc));
        }
        if &self.kind == b"IEND" {
            if self.payload == 0 {
                return Err(self.damage("the image ends without an IDAT chunk"));
            }
            self.state = PngState::Done;
            return Ok(());
        }
        self.chunks += 1;
        self.next_chunk();
        Ok(())
    }
}

impl Parser for Png {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        (self.at, self.chunks, self.start, self.payload) = (0, 0, 0, 0);
        self.state = PngState::Signature;
        self.gather.start(SIGNATURE.len());
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            match self.state {
                PngState::Data { left } => {
                    let (now, rest) = bytes.split_at(left.min(bytes.len() as u64) as usize);
                    self.crc = crc32(self.crc, now);
                    self.at += now.len() as u64;
                    self.payload += if &self.kind == b"IDAT" { now.len() as u64 } else { 0 };
                    bytes = rest;
                    self.state = PngState::Data { left: left - now.len() as u64 };
                    if self.state == (PngState::Data { left: 0 }) {
                        self.await_sum();
                    }
                }
                PngState::Done => {
                    return Err(Damage::new(
                        self.chunks,
                        self.at,
                        format!("{} bytes follow the IEND chunk", self.file_bytes.saturating_sub(self.at)),
                    ));
                }
                _ => {
                    if self.gather.fill_at(&mut bytes, &mut self.at) {
                        self.gathered()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if self.state != PngState::Done {
            let inside = self.at - self.start;
            return Err(self.damage(format!("the file ends {inside} bytes into the chunk")));
        }
        expected(1, self.samples_per_file).map_err(|what| Damage::new(0, 0, what))
    }

    fn samples(&self) -> u64 {
        u64::from(self.state == PngState::Done)
    }

    fn payload_bytes(&self) -> u64 {
        self.payload
    }
}
