//! PRPs and SGLs, against the simplest truth: bytes at addresses, one by one.

use crate::world::Random;
use forebay_nvme::command::{Sgl, Sqe};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data::{self, Piece, DESCRIPTORS_MAX};
use forebay_nvme::transport::pcie::host::point;
use forebay_nvme::transport::pcie::memory::{HostMemory, Ram, Unmapped};
use proptest::prelude::*;

const BASE: u64 = 0x1_0000_0000;
const BYTES: u64 = 4 << 20;

/// Returns a walk's pieces, checked for what a walk promises.
fn walked(memory: &Ram, sqe: &Sqe, bytes: u32, page_bytes: u32) -> Result<Vec<Piece>, Status> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut calls = 0;
    data::walk(memory, sqe, bytes, page_bytes, &mut |piece| {
        calls += 1;
        assert!(calls <= DESCRIPTORS_MAX.max(bytes / page_bytes + 2), "bounded");
        let (address, length) = (piece.address, u64::from(piece.bytes));
        if !memory.contains(address, length) {
            return Err(Unmapped { address, bytes: length });
        }
        if let Some(last) = pieces.last() {
            assert_ne!(last.address + u64::from(last.bytes), piece.address, "neighbours come as one");
        }
        pieces.push(piece);
        Ok(())
    })?;
    assert_eq!(pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>(), u64::from(bytes));
    Ok(pieces)
}

/// The address of each byte, every 4th of them.
fn addresses(pieces: &[Piece]) -> Vec<u64> {
    let all = pieces.iter().flat_map(|piece| piece.address..piece.address + u64::from(piece.bytes));
    all.step_by(4).collect()
}

fn put(memory: &Ram, address: u64, entries: &[u64]) {
    for (at, entry) in entries.iter().enumerate() {
        memory.write(address + at as u64 * 8, &entry.to_le_bytes()).expect("in memory");
    }
}

/// PRPs for pages anywhere, their lists chained over pages of their own; beside them, where each byte is.
fn prps(memory: &Ram, random: &mut Random, bytes: u32, page_bytes: u32) -> (Sqe, Vec<u64>) {
    let page = u64::from(page_bytes);
    // Lists lie in the first part of the memory, data behind it.
    let data_page =
        |random: &mut Random| BASE + (1 << 20) + random.below(((3 << 20) / page) as usize) as u64 * page;
    let offset = random.below(page_bytes as usize / 4) as u64 * 4;
    let first = data_page(random) + offset;
    let mut truth: Vec<u64> = (first..first + u64::from(bytes).min(page - offset)).collect();
    let mut pages = Vec::new();
    while truth.len() < bytes as usize {
        let next = if random.rarely(2) { truth.last().unwrap() + 1 } else { data_page(random) };
        let next = if memory.contains(next, page) { next } else { data_page(random) };
        pages.push(next);
        truth.extend(next..next + page.min(u64::from(bytes) - truth.len() as u64));
    }
    let second = match pages.len() {
        0 => random.next(),
        1 => pages[0],
        _ => {
            let per_page = page / 8;
            let mut at = BASE + random.below(per_page as usize) as u64 * 8;
            let (start, mut list) = (at, 0);
            while list < pages.len() {
                let here = (page - at % page) as usize / 8;
                if pages.len() - list <= here {
                    put(memory, at, &pages[list..]);
                    break;
                }
                put(memory, at, &pages[list..list + here - 1]);
                list += here - 1;
                let next = (at / page + 1) * page;
                put(memory, at + (here as u64 - 1) * 8, &[next]);
                at = next;
            }
            start
        }
    };
    (data::with_prps(Sqe::default(), [first, second]), truth.into_iter().step_by(4).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    // promise: PCI-4
    #[test]
    fn prps_name_each_byte_in_order(seed: u64, pages in prop_oneof![0u32..6, 0u32..300, 500u32..560], extra in 1u32..1024, power in 0u32..3) {
        let (memory, mut random) = (Ram::new(BASE, BYTES), Random::new(seed));
        let page_bytes = 4096 << power;
        let bytes = ((pages * page_bytes).min(2 << 20) + extra * 4) & !3;
        let (sqe, truth) = prps(&memory, &mut random, bytes, page_bytes);
        prop_assert!(addresses(&walked(&memory, &sqe, bytes, page_bytes).unwrap()) == truth);
    }

    // promise: PCI-4
    #[test]
    fn sgls_name_each_byte_in_order(seed: u64, blocks in 1usize..300) {
        let (memory, mut random) = (Ram::new(BASE, BYTES), Random::new(seed));
        let mut truth: Vec<(u64, u32)> = Vec::new();
        let mut descriptors = Vec::new();
        for _ in 0..blocks {
            let length = if random.rarely(8) { 0 } else { 1 + random.below(900) as u32 };
            let address = BASE + (1 << 20) + random.below(3 << 19) as u64;
            descriptors.push(Sgl::data_block(address, length));
            if length > 0 { truth.push((address, length)); }
        }
        let bytes: u32 = truth.iter().map(|one| one.1).sum();
        prop_assume!(bytes > 0);
        let sqe = sgl(&memory, &mut random, &descriptors);
        let found = walked(&memory, &sqe, bytes, 4096).unwrap();
        let found: Vec<u64> = found.iter().flat_map(|p| p.address..p.address + u64::from(p.bytes)).collect();
        let truth: Vec<u64> = truth.iter().flat_map(|(a, n)| *a..a + u64::from(*n)).collect();
        prop_assert!(found == truth);
        prop_assert_eq!(walked(&memory, &sqe, bytes + 1, 4096), Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)));
        prop_assert_eq!(walked(&memory, &sqe, bytes - 1, 4096).is_err(), true);
    }

    // promise: PCI-4
    #[test]
    fn what_a_driver_points_to_is_what_a_walk_finds(page in 0u64..64, at in 0u64..1024, bytes in 1u32..(2 << 20), sgl: bool) {
        let memory = Ram::new(BASE, BYTES);
        let address = BASE + (1 << 20) + page * 4096 + at * 4;
        let sqe = point(&memory, Sqe::default(), address, bytes, sgl, BASE + 8 * 4096).unwrap();
        prop_assert_eq!(walked(&memory, &sqe, bytes, 4096), Ok(vec![Piece { address, bytes }]));
    }

    // promise: PCI-4
    #[test]
    fn any_data_pointer_ends_in_pieces_or_a_status(words in prop::array::uniform2(any::<u64>()), flags: u8, bytes: u32, seed: u64) {
        let (memory, mut random) = (Ram::new(BASE, 64 << 10), Random::new(seed));
        // Memory full of pointers into itself, and of SGL segments that name themselves.
        for at in (0..64u64 << 10).step_by(8) {
            let value = match random.below(3) {
                0 => BASE + random.below(16) as u64 * 4096,
                1 => 0x2000_0000_0000_0000 | random.next() & 0xff0,
                _ => random.next(),
            };
            put(&memory, BASE + at, &[value]);
        }
        let near = words.map(|word| if word % 4 > 0 { BASE + word % (64 << 10) / 8 * 8 } else { word });
        let sqe = Sqe { flags, ..data::with_prps(Sqe::default(), near) };
        let _ = walked(&memory, &sqe, bytes % (8 << 20), 4096);
    }
}

/// The descriptors, in segments of any size.
fn sgl(memory: &Ram, random: &mut Random, descriptors: &[Sgl]) -> Sqe {
    let flags = 0x40;
    if let [only] = descriptors {
        return Sqe { flags, sgl: *only, ..Sqe::default() };
    }
    let mut segments: Vec<Vec<Sgl>> = Vec::new();
    let mut rest = descriptors;
    while !rest.is_empty() {
        let (here, after) = rest.split_at(rest.len().min(1 + random.below(100)));
        segments.push(here.to_vec());
        rest = after;
    }
    // From the last to the first, so that each knows where the next is.
    let mut next: Option<Sgl> = None;
    let mut at = BASE;
    for mut segment in segments.into_iter().rev() {
        let kind = if next.is_some() { 0x20 } else { 0x30 };
        segment.extend(next);
        for (index, descriptor) in segment.iter().enumerate() {
            memory.write(at + index as u64 * 16, zerocopy::IntoBytes::as_bytes(descriptor)).unwrap();
        }
        let length = segment.len() as u32 * 16;
        next = Some(Sgl { kind, ..Sgl::data_block(at, length) });
        at += u64::from(length);
    }
    Sqe { flags, sgl: next.expect("there is one"), ..Sqe::default() }
}

fn status_of(memory: &Ram, sqe: Sqe, bytes: u32) -> Code {
    walked(memory, &sqe, bytes, 4096).expect_err("it is wrong").code
}

// promise: PCI-4
#[test]
fn wrong_prps_get_the_status_that_the_specification_names() {
    let memory = Ram::new(BASE, BYTES);
    let with = |prps| data::with_prps(Sqe::default(), prps);
    assert_eq!(status_of(&memory, with([BASE + 2, 0]), 512), Code::PRP_OFFSET_INVALID);
    assert_eq!(status_of(&memory, with([BASE, BASE + 4100]), 8192), Code::PRP_OFFSET_INVALID, "a page");
    assert_eq!(status_of(&memory, with([BASE, BASE + 4100]), 16384), Code::PRP_OFFSET_INVALID, "a list");
    assert_eq!(status_of(&memory, with([0, 0]), 512), Code::DATA_TRANSFER_ERROR);
    assert_eq!(status_of(&memory, with([BASE, BASE + BYTES]), 16384), Code::DATA_TRANSFER_ERROR, "the list");
    assert_eq!(status_of(&memory, with([u64::MAX - 3, 0]), 512), Code::DATA_TRANSFER_ERROR);
    put(&memory, BASE + 8192, &[BASE, BASE + 4]);
    assert_eq!(status_of(&memory, with([BASE, BASE + 8192]), 12288), Code::PRP_OFFSET_INVALID, "an entry");
    // A list at a page's last entry points on, and only to a page's start.
    put(&memory, BASE + 4088, &[BASE + 4088]);
    assert_eq!(status_of(&memory, with([BASE, BASE + 4088]), 16384), Code::PRP_OFFSET_INVALID);
    let reserved = Sqe { flags: 0xc0, ..with([BASE, 0]) };
    assert_eq!(status_of(&memory, reserved, 512), Code::INVALID_FIELD);
}

// promise: PCI-4
#[test]
fn lists_that_lead_in_circles_end_with_the_data() {
    let memory = Ram::new(BASE, BYTES);
    // A list whose last entry is itself: 511 pages of data each time around.
    let list = BASE + (1 << 20);
    put(&memory, list, &[BASE; 511]);
    put(&memory, list + 4088, &[list]);
    let sqe = data::with_prps(Sqe::default(), [BASE + (2 << 20), list]);
    let pieces = walked(&memory, &sqe, 3 << 20, 4096).expect("it names every page");
    assert_eq!(pieces.len(), 768);
}

// promise: PCI-4
#[test]
fn wrong_sgls_get_the_status_that_the_specification_names() {
    let memory = Ram::new(BASE, BYTES);
    let with = |address, length, kind| Sqe {
        flags: 0x40,
        sgl: Sgl { kind, ..Sgl::data_block(address, length) },
        ..Sqe::default()
    };
    assert_eq!(status_of(&memory, with(BASE, 512, 0x00), 1024), Code::DATA_SGL_LENGTH_INVALID);
    assert_eq!(status_of(&memory, with(BASE, 1024, 0x00), 512), Code::DATA_SGL_LENGTH_INVALID);
    for kind in [0x01, 0x10, 0x40, 0x5a, 0xf0, 0x21] {
        assert_eq!(status_of(&memory, with(BASE, 512, kind), 512), Code::SGL_TYPE_INVALID, "{kind:#x}");
    }
    for length in [0, 8, 17] {
        assert_eq!(status_of(&memory, with(BASE, length, 0x30), 512), Code::INVALID_SGL_SEGMENT);
    }
    assert_eq!(status_of(&memory, with(BASE + BYTES, 32, 0x30), 512), Code::DATA_TRANSFER_ERROR);
    assert_eq!(status_of(&memory, with(u64::MAX - 15, 32, 0x30), 512), Code::DATA_TRANSFER_ERROR);
    let too_many = (DESCRIPTORS_MAX + 1) * 16;
    assert_eq!(status_of(&memory, with(BASE, too_many, 0x30), 512), Code::SGL_DESCRIPTOR_COUNT_INVALID);
    // A segment of one descriptor that names itself.
    let itself = Sgl { kind: 0x20, ..Sgl::data_block(BASE, 16) };
    memory.write(BASE, zerocopy::IntoBytes::as_bytes(&itself)).unwrap();
    assert_eq!(status_of(&memory, with(BASE, 16, 0x20), 512), Code::SGL_DESCRIPTOR_COUNT_INVALID);
    // One that isn't the last, and ends with data; a last one that points on.
    let block = Sgl::data_block(BASE + 4096, 512);
    memory.write(BASE, zerocopy::IntoBytes::as_bytes(&block)).unwrap();
    assert_eq!(status_of(&memory, with(BASE, 16, 0x20), 512), Code::INVALID_SGL_SEGMENT);
    memory.write(BASE, zerocopy::IntoBytes::as_bytes(&itself)).unwrap();
    assert_eq!(status_of(&memory, with(BASE, 16, 0x30), 512), Code::INVALID_SGL_SEGMENT);
}
