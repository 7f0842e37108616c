//! JPEG (ITU-T T.81, annex B): markers and their segments, and scans up to the next marker. Nothing is decoded; JPEG has no
//! checksums, so what is checked is that the framing holds from the first byte to the last.

use super::bounded::{u16_be, Gather};
use super::npy::expected;
use super::{Damage, ParseSpec, Parser};

const START: u8 = 0xD8;
const END: u8 = 0xD9;
const SCAN: u8 = 0xDA;

#[derive(Clone, Copy, Debug, PartialEq)]
enum JpegState {
    Start,
    /// 0xFF, then a marker; more of 0xFF may stand before it.
    Marker,
    Length {
        marker: u8,
    },
    Segment {
        marker: u8,
        left: u64,
    },
    Scan,
    /// In a scan, behind 0xFF.
    ScanMarker,
    Done,
}

pub(crate) struct Jpeg {
    samples_per_file: u64,
    file_bytes: u64,
    at: u64,
    state: JpegState,
    gather: Gather,
    /// Markers before this one, and where it begins.
    markers: u64,
    start: u64,
    has_frame: bool,
    has_scan: bool,
}

impl Jpeg {
    pub(crate) fn new(spec: &ParseSpec) -> Jpeg {
        Jpeg {
            samples_per_file: u64::from(spec.samples_per_file),
            file_bytes: 0,
            at: 0,
            state: JpegState::Start,
            gather: Gather::default(),
            markers: 0,
            start: 0,
            has_frame: false,
            has_scan: false,
        }
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage::new(self.markers, self.start, what)
    }

    fn next_marker(&mut self) {
        self.markers += 1;
        self.start = self.at;
        self.gather.start(2);
        self.state = JpegState::Marker;
    }

    fn gathered(&mut self) -> Result<(), Damage> {
        let head = self.gather.bytes();
        let (first, second) = (head[head.len() - 2], head[head.len() - 1]);
        match self.state {
            JpegState::Start if (first, second) == (0xFF, START) => self.next_marker(),
            JpegState::Start => {
                let what = "it doesn't begin as a JPEG does (DLIO 3.0 writes random bytes under that name: --level bytes)";
                return Err(self.damage(what));
            }
            JpegState::Marker if first != 0xFF => {
                return Err(self.damage(format!("{first:#04x} {second:#04x} is not a marker")));
            }
            // Filling.
            JpegState::Marker if second == 0xFF => {
                self.gather.start(2);
                let mut again: &[u8] = &[0xFF];
                self.gather.fill(&mut again);
            }
            JpegState::Marker => self.marker(second)?,
            JpegState::Length { marker } => {
                let bytes = u64::from(u16_be(head, 0));
                let rest = self.file_bytes.saturating_sub(self.at);
                if bytes < 2 || bytes - 2 > rest {
                    let what = format!(
                        "segment {marker:#04x} says {bytes} bytes, and the file ends after {}",
                        rest + 2
                    );
                    return Err(self.damage(what));
                }
                self.state = JpegState::Segment { marker, left: bytes - 2 };
                self.segment_ended(0);
            }
            _ => {}
        }
        Ok(())
    }

    fn marker(&mut self, marker: u8) -> Result<(), Damage> {
        match marker {
            END if self.has_scan => self.state = JpegState::Done,
            END => return Err(self.damage("the image ends without a scan")),
            SCAN if !self.has_frame => return Err(self.damage("a scan comes before its frame")),
            // Of no length.
            0x01 | 0xD0..=0xD7 => self.next_marker(),
            0x00 | START => return Err(self.damage(format!("marker {marker:#04x} may not stand here"))),
            _ => {
                // Frames: C0 to CF without tables (C4), extensions (C8), conditioning (CC).
                self.has_frame |= matches!(marker, 0xC0..=0xCF) && !matches!(marker, 0xC4 | 0xC8 | 0xCC);
                self.gather.start(2);
                self.state = JpegState::Length { marker };
            }
        }
        Ok(())
    }

    /// Notes that a segment has ended, so many bytes later.
    fn segment_ended(&mut self, bytes: u64) {
        let JpegState::Segment { marker, left } = self.state else { return };
        let left = left - bytes;
        self.state = JpegState::Segment { marker, left };
        if left > 0 {
            return;
        }
        if marker == SCAN {
            self.has_scan = true;
            self.state = JpegState::Scan;
        } else {
            self.next_marker();
        }
    }

    /// Behind 0xFF in a scan: a stuffed zero and restarts belong to it, anything else ends it.
    fn in_scan(&mut self, byte: u8) -> Result<(), Damage> {
        match byte {
            0x00 | 0xD0..=0xD7 => self.state = JpegState::Scan,
            0xFF => {}
            marker => {
                self.markers += 1;
                self.start = self.at - 2;
                self.marker(marker)?;
            }
        }
        Ok(())
    }
}

impl Parser for Jpeg {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        (self.at, self.markers, self.start) = (0, 0, 0);
        (self.has_frame, self.has_scan) = (false, false);
        self.state = JpegState::Start;
        self.gather.start(2);
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            let before = bytes.len();
            match self.state {
                JpegState::Scan => {
                    let found = memchr::memchr(0xFF, bytes);
                    bytes = &bytes[found.map_or(bytes.len(), |at| at + 1)..];
                    self.at += (before - bytes.len()) as u64;
                    if found.is_some() {
                        self.state = JpegState::ScanMarker;
                    }
                }
                JpegState::ScanMarker => {
                    self.at += 1;
                    self.in_scan(bytes[0])?;
                    bytes = &bytes[1..];
                }
                JpegState::Segment { left, .. } => {
                    let now = left.min(bytes.len() as u64);
                    bytes = &bytes[now as usize..];
                    self.at += now;
                    self.segment_ended(now);
                }
                // Readers stop there, and cameras do append.
                JpegState::Done => {
                    self.at += before as u64;
                    bytes = &[];
                }
                JpegState::Start | JpegState::Marker | JpegState::Length { .. } => {
                    if self.gather.fill_at(&mut bytes, &mut self.at) {
                        self.gathered()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Damage> {
        if self.state != JpegState::Done {
            let inside = self.at - self.start;
            return Err(
                self.damage(format!("the file ends {inside} bytes behind a marker, inside the image"))
            );
        }
        if self.at != self.file_bytes {
            return Err(self.damage(format!("the file ends after {} of {} bytes", self.at, self.file_bytes)));
        }
        expected(1, self.samples_per_file).map_err(|what| Damage::new(0, 0, what))
    }

    fn samples(&self) -> u64 {
        u64::from(self.state == JpegState::Done && self.at == self.file_bytes)
    }

    fn payload_bytes(&self) -> u64 {
        self.at
    }
}
