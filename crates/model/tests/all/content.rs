//! Seeded content: any range is what a byte-at-a-time reading says, and each kind of damage gets its name.

use forebay_model::content::{check, file_id, fill, Found, Mismatch, BLOCK_BYTES};
use proptest::prelude::*;

const SEED: u64 = 7;

fn written(seed: u64, file: u64, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buf = vec![0xEE; bytes];
    fill(&mut buf, seed, file, offset);
    buf
}

/// The same content one byte at a time, straight from the description of a block.
fn byte_at(seed: u64, file: u64, at: u64) -> u8 {
    let mut block = [0u8; BLOCK_BYTES];
    fill(&mut block, seed, file, at - at % BLOCK_BYTES as u64);
    block[(at % BLOCK_BYTES as u64) as usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_range_equals_its_bytes_one_by_one(offset in 0u64..20_000, len in 0usize..9_000, seed: u64, file: u64, high in prop::bool::ANY) {
        let offset = if high { (1 << 63) - 40_000 + offset } else { offset };
        let buf = written(seed, file, offset, len);
        for (i, byte) in buf.iter().enumerate().step_by(61).chain(buf.iter().enumerate().rev().take(3)) {
            prop_assert_eq!(*byte, byte_at(seed, file, offset + i as u64));
        }
        prop_assert_eq!(check(&buf, seed, file, offset), Ok(()));
    }

    // promise: BEN-9
    #[test]
    fn any_wrong_byte_is_found_where_it_is(offset in 0u64..20_000, len in 1usize..9_000, at: prop::sample::Index, flip in 1u8..=255) {
        let mut buf = written(SEED, 1, offset, len);
        let at = at.index(len);
        buf[at] ^= flip;
        let error = check(&buf, SEED, 1, offset).unwrap_err();
        prop_assert_eq!(error.at, offset + at as u64);
        prop_assert_eq!(error.blocks_bad, 1);
        let corrupt = Found::Corrupt { wrong_bytes: 1 };
        // Of a part of one byte, all is wrong; and a zero there reads as never written.
        prop_assert!(error.found == corrupt || len == 1 || offset % 4096 + len as u64 > 4096 || offset % 4096 > 4094, "{error}");
    }

    #[test]
    fn checking_arbitrary_bytes_never_panics(buf in prop::collection::vec(any::<u8>(), 0..9000), offset: u64) {
        let offset = offset >> 1;
        let outcome = check(&buf, SEED, 1, offset);
        // A few bytes may be right by chance.
        prop_assert!(buf.len() < 16 || outcome.is_err());
    }
}

#[test]
fn a_block_is_as_described_word_by_word() {
    let block = written(SEED, 0x1234, 8192, BLOCK_BYTES);
    let word = |i: usize| u64::from_le_bytes(block[i * 8..i * 8 + 8].try_into().unwrap());
    assert_eq!(&block[..8], b"FOREBAY1");
    assert_eq!([word(1), word(2), word(3)], [SEED, 0x1234, 8192]);
    let key = word(4);
    assert_eq!(key, 2935220691535254153, "files that an older build wrote must stay readable");
    for i in 5..512 {
        let value = key.wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(i as u64));
        assert_eq!(word(i), value ^ (value >> 32), "word {i}");
    }
}

#[test]
fn blocks_share_no_words() {
    let mut words = std::collections::HashSet::new();
    for (seed, file) in [(1, 1), (1, 2), (2, 1)] {
        let buf = written(seed, file, 0, 64 * BLOCK_BYTES);
        for block in buf.chunks_exact(BLOCK_BYTES) {
            words.extend(block[40..].chunks_exact(8).map(<[u8]>::to_vec));
        }
    }
    assert_eq!(words.len(), 3 * 64 * (512 - 5));
}

fn named(error: &Mismatch) -> String {
    error.describe(|file| (file == file_id("forebay.0")).then(|| "forebay.0".to_string()))
}

#[test]
fn a_misplaced_block_is_named() {
    let file = file_id("forebay.0");
    let mut buf = written(SEED, file, 0, 4 * BLOCK_BYTES);
    buf.copy_within(4096..8192, 8192);
    let error = check(&buf, SEED, file, 0).unwrap_err();
    assert_eq!(error.found, Found::Misplaced { file, offset: 4096 });
    assert_eq!(named(&error), "block at 8192 of forebay.0 holds block 4096 of forebay.0");
}

// promise: BEN-9
#[test]
fn content_of_another_seed_file_or_writer_is_told_apart() {
    let file = file_id("forebay.0");
    let other = file_id("forebay.1");
    let found = |buf: &[u8]| check(buf, SEED, file, 4096).unwrap_err();
    let elsewhere = found(&written(SEED, other, 4096, 8192));
    assert_eq!(elsewhere.found, Found::Misplaced { file: other, offset: 4096 });
    assert_eq!(elsewhere.blocks_bad, 2);
    let older = found(&written(8, file, 4096, 4096));
    assert_eq!(older.found, Found::OtherSeed { seed: 8, file, offset: 4096 });
    assert_eq!(
        named(&older),
        "block at 4096 of forebay.0 holds block 4096 of forebay.0 as written with seed 8"
    );
    assert_eq!(found(&[0; 4096]).found, Found::Zeroes);
    assert_eq!(found(&[0xAB; 4096]).found, Found::Foreign);
}

#[test]
fn damage_counts_its_bytes_and_its_blocks() {
    let mut buf = written(SEED, 1, 0, 4 * BLOCK_BYTES);
    for at in [5000, 5001, 7000, 9000] {
        buf[at] ^= 1;
    }
    let error = check(&buf, SEED, 1, 0).unwrap_err();
    assert_eq!(
        error,
        Mismatch { file: 1, at: 5000, found: Found::Corrupt { wrong_bytes: 3 }, blocks_bad: 2 }
    );
}

#[test]
fn a_damaged_header_is_damage_not_a_stranger() {
    let mut buf = written(SEED, 1, 0, BLOCK_BYTES);
    buf[3] ^= 0x10;
    assert_eq!(check(&buf, SEED, 1, 0).unwrap_err().found, Found::Corrupt { wrong_bytes: 1 });
}

#[test]
fn file_numbers_are_fnv_1a() {
    assert_eq!(file_id(""), 0xCBF2_9CE4_8422_2325);
    assert_eq!(file_id("a"), 0xAF63_DC4C_8601_EC8C);
    assert_eq!(file_id("foobar"), 0x8594_4171_F739_67E8);
}
