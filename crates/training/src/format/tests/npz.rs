//! Files of numpy, as numpy and Python's zipfile lay them out.

use super::*;
use std::io::Write;

/// Returns a file of `|u1`, with its header padded as numpy does.
pub(crate) fn npy_file(shape: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes(), data].concat()
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Packing {
    Stored,
    Stored64,
    Deflated,
    Descriptor,
}

fn deflate(data: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(data).and_then(|()| out.finish()).expect("memory")
}

/// A zip as Python's zipfile lays it out.
pub(crate) fn zip_of(members: &[(&str, Vec<u8>)], packing: Packing) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let deflated = matches!(packing, Packing::Deflated | Packing::Descriptor);
        let packed = if deflated { deflate(data) } else { data.clone() };
        let crc = slow_crc(0xEDB8_8320, data).to_le_bytes();
        let (packed_bytes, bytes) = (packed.len() as u32, data.len() as u32);
        let (later, wide) = (packing == Packing::Descriptor, packing == Packing::Stored64);
        let offset = file.len() as u32;
        let method = [if deflated { 8u8 } else { 0 }, 0];
        let flags = [if later { 8u8 } else { 0 }, 0];
        let known = [&crc[..], &packed_bytes.to_le_bytes(), &bytes.to_le_bytes()].concat();
        let sizes = match packing {
            Packing::Descriptor => [0u8; 12].to_vec(),
            Packing::Stored64 => [&crc[..], &[0xff; 8]].concat(),
            _ => known.clone(),
        };
        let extra = if wide {
            [&[1u8, 0, 16, 0][..], &u64::from(bytes).to_le_bytes(), &u64::from(packed_bytes).to_le_bytes()]
                .concat()
        } else {
            vec![]
        };
        let lengths = [(name.len() as u16).to_le_bytes(), (extra.len() as u16).to_le_bytes()].concat();
        file.extend(
            [
                b"PK\x03\x04\x2d\x00",
                &flags[..],
                &method,
                &[0; 4],
                &sizes,
                &lengths,
                name.as_bytes(),
                &extra,
                &packed,
            ]
            .concat(),
        );
        if later {
            file.extend([b"PK\x07\x08", &known[..]].concat());
        }
        directory.extend(
            [
                b"PK\x01\x02\x2d\x03\x2d\x00",
                &flags[..],
                &method,
                &[0; 4],
                &known,
                &(name.len() as u16).to_le_bytes(),
                &[0; 12],
                &offset.to_le_bytes(),
                name.as_bytes(),
            ]
            .concat(),
        );
    }
    let count = (members.len() as u16).to_le_bytes();
    let (at, bytes) = ((file.len() as u32).to_le_bytes(), (directory.len() as u32).to_le_bytes());
    [&file[..], &directory, b"PK\x05\x06\x00\x00\x00\x00", &count, &count, &bytes, &at, &[0, 0]].concat()
}

pub(crate) const PACKINGS: [Packing; 4] =
    [Packing::Stored, Packing::Stored64, Packing::Deflated, Packing::Descriptor];

pub(crate) fn npz_file(packing: Packing) -> Vec<u8> {
    let (x, y) = (npy_file("(40, 50, 2)", &pattern(4000)), npy_file("(2,)", &[0, 0]));
    zip_of(&[("x.npy", x), ("y.npy", y)], packing)
}
