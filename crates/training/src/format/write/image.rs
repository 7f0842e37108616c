//! JPEG and PNG, of one grey channel.

use super::{FileShape, Layout, Part, Sum, WriteSpec};
use std::collections::VecDeque;

/// A valid JPEG of as many bytes as DLIO 3.0 gives a file of that name (which holds nothing but random bytes). Most of it
/// is comment segments with content; the image is grey, and decodes in no time.
pub(crate) struct Jpeg;

/// Limit on a comment, with its marker and length.
const COMMENT_BYTES_MAX: u64 = 2 + 65535;
const COMMENT_HEAD_BYTES: u64 = 4;
const END: &[u8] = &[0xFF, 0xD9];

impl Jpeg {
    pub(crate) fn new(_spec: &WriteSpec) -> Jpeg {
        Jpeg
    }

    fn side(bytes: u32) -> u16 {
        bytes.clamp(1, u16::MAX.into()) as u16
    }

    fn start() -> Vec<u8> {
        [&[0xFF, 0xD8, 0xFF, 0xE0, 0, 16][..], b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"].concat()
    }

    /// Tables, frame and scan. One code of one bit each: a difference of nothing, and the end of a block.
    fn image(shape: FileShape) -> Vec<u8> {
        let (rows, columns) = (Jpeg::side(shape.rows), Jpeg::side(shape.columns));
        let mut out = [&[0xFF, 0xDB, 0, 67, 0][..], &[1; 64]].concat();
        out.extend([0xFF, 0xC0, 0, 11, 8]);
        out.extend(rows.to_be_bytes());
        out.extend(columns.to_be_bytes());
        out.extend([1, 1, 0x11, 0]);
        for class in [0x00, 0x10] {
            out.extend([0xFF, 0xC4, 0, 20, class, 1]);
            out.extend([0; 16]);
        }
        out.extend([0xFF, 0xDA, 0, 8, 1, 1, 0x00, 0, 63, 0]);
        let blocks = u64::from(rows.div_ceil(8)) * u64::from(columns.div_ceil(8));
        out.resize(out.len() + (blocks / 4) as usize, 0);
        // Two bits a block; ones fill up the last byte.
        if blocks % 4 > 0 {
            out.push(0xFF >> (2 * (blocks % 4)));
        }
        out
    }

    /// Bytes of all comments together.
    fn filling(shape: FileShape) -> u64 {
        let fixed = (Jpeg::start().len() + Jpeg::image(shape).len() + END.len()) as u64;
        match shape.sample_bytes().saturating_sub(fixed) {
            0 => 0,
            few => few.max(COMMENT_HEAD_BYTES),
        }
    }
}

impl Layout for Jpeg {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        let fixed = Jpeg::start().len() + Jpeg::image(shape).len() + END.len();
        fixed as u64 + Jpeg::filling(shape)
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        if step > 0 {
            return false;
        }
        parts.push_back(Part::Bytes(Jpeg::start()));
        let mut left = Jpeg::filling(shape);
        while left > 0 {
            let mut comment = left.min(COMMENT_BYTES_MAX);
            // What is left is no comment, or has room for one.
            if (1..COMMENT_HEAD_BYTES).contains(&(left - comment)) {
                comment -= COMMENT_HEAD_BYTES;
            }
            left -= comment;
            let length = (comment - 2) as u16;
            parts.push_back(Part::Bytes([&[0xFF, 0xFE][..], &length.to_be_bytes()].concat()));
            parts.push_back(Part::Content(comment - COMMENT_HEAD_BYTES));
        }
        parts.push_back(Part::Bytes([&Jpeg::image(shape)[..], END].concat()));
        true
    }
}

/// Random pixels, which no filter and no deflating makes smaller: rows lie in stored blocks.
pub(crate) struct Png;

/// Limit on a deflate block.
const STORED_BYTES_MAX: u64 = 65535;
const STORED_HEAD_BYTES: u64 = 5;
/// Deflate with the fastest compression, no dictionary (RFC 1950).
const ZLIB_HEAD: [u8; 2] = [0x78, 0x01];
const CHUNK_BYTES: u64 = 12;
const SUM_BYTES: u64 = 4;

impl Png {
    pub(crate) fn new(_spec: &WriteSpec) -> Png {
        Png
    }

    /// Longer ones don't fit a block with their filter's byte.
    fn columns(shape: FileShape) -> u64 {
        u64::from(shape.columns).min(STORED_BYTES_MAX - 1)
    }

    fn rows_per_block(shape: FileShape) -> u64 {
        STORED_BYTES_MAX / (Png::columns(shape) + 1)
    }

    fn blocks(shape: FileShape) -> u64 {
        u64::from(shape.rows).div_ceil(Png::rows_per_block(shape))
    }

    fn start(shape: FileShape) -> [Part; 5] {
        let head = [&shape.rows_and_columns()[..], &[8, 0, 0, 0, 0]].concat();
        [
            Part::Bytes([&b"\x89PNG\r\n\x1a\n"[..], &13u32.to_be_bytes()].concat()),
            Part::Sum(Sum::Crc32),
            Part::Bytes([&b"IHDR"[..], &head].concat()),
            Part::Crc32,
            Part::Adler(true),
        ]
    }
}

impl FileShape {
    /// Dimensions as in IHDR: width, then height.
    fn rows_and_columns(self) -> Vec<u8> {
        [(Png::columns(self) as u32).to_be_bytes(), self.rows.to_be_bytes()].concat()
    }
}

impl Layout for Png {
    fn file_bytes(&self, shape: FileShape) -> u64 {
        let blocks = Png::blocks(shape);
        let pixels = u64::from(shape.rows) * (Png::columns(shape) + 1);
        let ends = 8 + CHUNK_BYTES + 13 + CHUNK_BYTES + ZLIB_HEAD.len() as u64 + SUM_BYTES;
        ends + pixels + blocks * (CHUNK_BYTES + STORED_HEAD_BYTES)
    }

    fn parts(&self, shape: FileShape, step: u64, parts: &mut VecDeque<Part>) -> bool {
        let (blocks, width) = (Png::blocks(shape), Png::columns(shape) + 1);
        if step >= blocks {
            return false;
        }
        if step == 0 {
            parts.extend(Png::start(shape));
        }
        let rows = Png::rows_per_block(shape).min(u64::from(shape.rows) - step * Png::rows_per_block(shape));
        let (first, last) = (step == 0, step + 1 == blocks);
        let mut bytes = STORED_HEAD_BYTES + rows * width;
        bytes += if first { ZLIB_HEAD.len() as u64 } else { 0 } + if last { SUM_BYTES } else { 0 };
        let length = (rows * width) as u16;
        let mut head = b"IDAT".to_vec();
        head.extend(if first { &ZLIB_HEAD[..] } else { &[] });
        head.push(u8::from(last));
        head.extend(length.to_le_bytes());
        head.extend((!length).to_le_bytes());
        parts.extend([
            Part::Bytes((bytes as u32).to_be_bytes().to_vec()),
            Part::Sum(Sum::Crc32),
            Part::Bytes(head),
        ]);
        for _ in 0..rows {
            parts.extend([Part::Filter, Part::Content(width - 1)]);
        }
        if last {
            parts.push_back(Part::Adler32);
        }
        parts.push_back(Part::Crc32);
        if last {
            let end = [&[0; 4][..], b"IEND", &[0xAE, 0x42, 0x60, 0x82]].concat();
            parts.push_back(Part::Bytes(end));
        }
        true
    }
}
