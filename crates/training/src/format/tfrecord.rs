//! TFRecord: `length (8) · masked CRC32C of it (4) · data · masked CRC32C of it (4)`, record after record
//! (tensorflow/core/lib/io/record_writer.cc), each an `Example`.

use super::bounded::{u32_at, u64_at, Gather};
use super::example::Walk;
use super::sums::{crc32c, masked_crc32c};
use super::{Damage, Lost, ParseSpec, Parser};

const HEAD_BYTES: u64 = 12;
const FOOT_BYTES: u64 = 4;

enum TfRecordState {
    Head,
    Data { left: u64 },
    Foot,
}

pub(crate) struct TfRecord {
    samples_per_file: u64,
    /// A record whose data is damaged is lost, and the next one read.
    skips: bool,
    lost: Vec<Lost>,
    file_bytes: u64,
    at: u64,
    state: TfRecordState,
    gather: Gather,
    /// Checksum of this record's data so far.
    crc: u32,
    record_start: u64,
    walk: Walk,
    /// Oddities found by the walk. A wrong checksum explains it better, so it waits for that.
    odd: Option<&'static str>,
    samples: u64,
    payload: u64,
}

impl TfRecord {
    pub(crate) fn new(spec: &ParseSpec) -> TfRecord {
        TfRecord {
            samples_per_file: u64::from(spec.samples_per_file),
            skips: spec.skips,
            lost: Vec::new(),
            file_bytes: 0,
            at: 0,
            state: TfRecordState::Head,
            gather: Gather::default(),
            crc: 0,
            record_start: 0,
            walk: Walk::default(),
            odd: None,
            samples: 0,
            payload: 0,
        }
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage::new(self.samples, self.record_start, what)
    }

    fn head(&mut self) -> Result<(), Damage> {
        let head = self.gather.bytes();
        let (bytes, stored) = (u64_at(head, 0), u32_at(head, 8));
        let found = masked_crc32c(crc32c(0, &head[..8]));
        if stored != found {
            let of = "the record's length";
            return Err(Damage::sum(self.samples, self.record_start, of, "masked CRC32C", stored, found));
        }
        let rest = self.file_bytes.saturating_sub(self.at);
        if bytes.checked_add(FOOT_BYTES).is_none_or(|all| all > rest) {
            return Err(self.damage(format!(
                "the record says {bytes} bytes and {FOOT_BYTES} of checksum, and the file ends after {rest}"
            )));
        }
        self.crc = 0;
        self.odd = None;
        self.walk.begin(bytes);
        self.state = TfRecordState::Data { left: bytes };
        if bytes == 0 {
            self.data_ended();
        }
        Ok(())
    }

    fn data(&mut self, bytes: &[u8], left: u64) {
        self.crc = crc32c(self.crc, bytes);
        if self.odd.is_none() {
            self.odd = self.walk.take(bytes).err();
        }
        let left = left - bytes.len() as u64;
        self.state = TfRecordState::Data { left };
        if left == 0 {
            self.data_ended();
        }
    }

    fn data_ended(&mut self) {
        self.odd = self.odd.or(self.walk.end().err());
        self.state = TfRecordState::Foot;
        self.gather.start(FOOT_BYTES as usize);
    }

    /// Checks the data against its checksum.
    fn sound(&self) -> Result<(), Damage> {
        let (stored, found) = (u32_at(self.gather.bytes(), 0), masked_crc32c(self.crc));
        if stored != found {
            let of = "the record's data";
            return Err(Damage::sum(self.samples, self.record_start, of, "masked CRC32C", stored, found));
        }
        match self.odd {
            Some(odd) => Err(self.damage(format!("the record's data is no Example: {odd}"))),
            None => Ok(()),
        }
    }

    fn foot(&mut self) -> Result<(), Damage> {
        match self.sound() {
            Ok(()) => self.payload += self.walk.value_bytes,
            // Its length was right: the next record begins here.
            Err(damage) if self.skips => self.lost.push(Lost { damage, first: self.samples, records: 1 }),
            Err(damage) => return Err(damage),
        }
        self.samples += 1;
        self.record_start = self.at;
        self.state = TfRecordState::Head;
        self.gather.start(HEAD_BYTES as usize);
        Ok(())
    }
}

impl Parser for TfRecord {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.at = 0;
        self.record_start = 0;
        self.samples = 0;
        self.payload = 0;
        self.lost.clear();
        self.state = TfRecordState::Head;
        self.gather.start(HEAD_BYTES as usize);
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            if let TfRecordState::Data { left } = self.state {
                let (now, rest) = bytes.split_at(left.min(bytes.len() as u64) as usize);
                self.at += now.len() as u64;
                self.data(now, left);
                bytes = rest;
                continue;
            }
            let complete = self.gather.fill_at(&mut bytes, &mut self.at);
            match self.state {
                TfRecordState::Head if complete => self.head()?,
                TfRecordState::Foot if complete => self.foot()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if !matches!(self.state, TfRecordState::Head) || !self.gather.bytes().is_empty() {
            let got = self.at - self.record_start;
            return Err(self.damage(format!("the file ends {got} bytes into the record")));
        }
        if self.samples_per_file > 0 && self.samples != self.samples_per_file {
            let what = format!("the file holds {} records, not {}", self.samples, self.samples_per_file);
            return Err(Damage::new(self.samples, self.at, what));
        }
        Ok(())
    }

    fn samples(&self) -> u64 {
        self.samples
    }

    fn payload_bytes(&self) -> u64 {
        self.payload
    }

    fn lost(&mut self, into: &mut Vec<Lost>) {
        into.append(&mut self.lost);
    }
}
