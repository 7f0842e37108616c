//! CRC32C on processors with VPCLMULQDQ and AVX2, but no AVX-512 that could be used.
//!
//! Two units of the processor work at the same time: one multiplies polynomials, by which the first part of a block is
//! folded into 128 bytes again and again, and one has the instruction `crc32`, which takes three more parts, a word of
//! each in turn, for its result comes three cycles late. What they come to is put together by arithmetic (`power`).

use forebay_model::crc32c::power;
use std::arch::asm;
use std::arch::x86_64::*;

/// Bytes that are folded at once.
const FOLD: usize = 128;
/// Words that each of the three other parts advances by meanwhile.
const WORDS: usize = 5;
/// Rounds of a block: long ones, for what they come to costs as much as a few rounds to put together.
const LONG: usize = 128;
const SHORT: usize = 16;

/// Bytes of a block.
const fn block_bytes(rounds: usize) -> usize {
    rounds * (FOLD + 3 * 8 * WORDS)
}

/// Multipliers of the low and the high half of 16 bytes that stand for the same bytes `bytes` further on.
const fn fold_by(bytes: u64) -> [i64; 2] {
    [power(8 * bytes + 31) as i64, power(8 * bytes - 33) as i64]
}

/// Multiplier of a remainder that has `bytes` more behind it, once `crc32` has reduced it.
const fn behind(bytes: usize) -> i32 {
    power(8 * bytes as u64 - 33) as i32
}

pub(crate) fn is_possible() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// Continues `so_far` over `bytes`. Only where it `is_possible`.
pub(crate) fn crc32c(so_far: u32, mut bytes: &[u8]) -> u32 {
    assert!(is_possible(), "whoever chose this way looked");
    let mut state = !so_far;
    while bytes.len() >= block_bytes(LONG) {
        // SAFETY: the processor has what it takes, and a block is there.
        state = unsafe { block::<LONG>(state, bytes.as_ptr()) };
        bytes = &bytes[block_bytes(LONG)..];
    }
    while bytes.len() >= block_bytes(SHORT) {
        // SAFETY: as above.
        state = unsafe { block::<SHORT>(state, bytes.as_ptr()) };
        bytes = &bytes[block_bytes(SHORT)..];
    }
    ::crc32c::crc32c_append(!state, bytes)
}

/// The state after one block more.
///
/// # Safety
/// The processor has these features, and `block_bytes(ROUNDS)` can be read from there.
// SAFETY: `folded` lies before `parts`, and each of the parts has `part` bytes; nothing behind the block is read.
#[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
unsafe fn block<const ROUNDS: usize>(state: u32, folded: *const u8) -> u32 {
    let part = ROUNDS * WORDS * 8;
    let parts = folded.add(ROUNDS * FOLD);
    let mut x = [load(folded), load(folded.add(32)), load(folded.add(64)), load(folded.add(96))];
    x[0] = _mm256_xor_si256(x[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32)));
    let by = both(const { fold_by(FOLD as u64) });
    let mut crcs = [0; 3];
    for round in 0..ROUNDS {
        for word in round * WORDS..(round + 1) * WORDS {
            crcs[0] = _mm_crc32_u64(crcs[0], word_at(parts.add(8 * word)));
            crcs[1] = _mm_crc32_u64(crcs[1], word_at(parts.add(part + 8 * word)));
            crcs[2] = _mm_crc32_u64(crcs[2], word_at(parts.add(2 * part + 8 * word)));
        }
        if round > 0 {
            let from = folded.add(round * FOLD);
            x[0] = fold(x[0], by, load(from));
            x[1] = fold(x[1], by, load(from.add(32)));
            x[2] = fold(x[2], by, load(from.add(64)));
            x[3] = fold(x[3], by, load(from.add(96)));
        }
    }
    let first = remainder(x);
    after(first, const { behind(3 * ROUNDS * WORDS * 8) })
        ^ after(crcs[0] as u32, const { behind(2 * ROUNDS * WORDS * 8) })
        ^ after(crcs[1] as u32, const { behind(ROUNDS * WORDS * 8) })
        ^ crcs[2] as u32
}

/// Returns the remainder of 128 bytes.
///
/// # Safety
/// As of `block`.
// SAFETY: values only.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
unsafe fn remainder(x: [__m256i; 4]) -> u32 {
    let by_32 = both(const { fold_by(32) });
    let (front, back) = (fold(x[0], by_32, x[1]), fold(x[2], by_32, x[3]));
    let all = fold(front, both(const { fold_by(64) }), back);
    let [low, high] = const { fold_by(16) };
    let by_16 = _mm_set_epi64x(high, low);
    let first = _mm256_castsi256_si128(all);
    let products =
        _mm_xor_si128(_mm_clmulepi64_si128(first, by_16, 0x00), _mm_clmulepi64_si128(first, by_16, 0x11));
    let last = _mm_xor_si128(products, _mm256_extracti128_si256(all, 1));
    let half = _mm_crc32_u64(0, _mm_cvtsi128_si64(last) as u64);
    _mm_crc32_u64(half, _mm_extract_epi64(last, 1) as u64) as u32
}

/// # Safety
/// As of `block`.
// SAFETY: values only.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
unsafe fn after(crc: u32, by: i32) -> u32 {
    let product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(crc as i32), _mm_cvtsi32_si128(by), 0);
    _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64) as u32
}

/// `x`, moved on, and what lies there. The intrinsic for these two instructions asks for a later Rust.
///
/// # Safety
/// As of `block`.
// SAFETY: the instructions touch nothing but their operands.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
unsafe fn fold(x: __m256i, by: __m256i, there: __m256i) -> __m256i {
    let (low, high): (__m256i, __m256i);
    asm!(
        "vpclmulqdq {low}, {x}, {by}, 0x00",
        "vpclmulqdq {high}, {x}, {by}, 0x11",
        x = in(ymm_reg) x,
        by = in(ymm_reg) by,
        low = out(ymm_reg) low,
        high = lateout(ymm_reg) high,
        options(pure, nomem, nostack, preserves_flags),
    );
    _mm256_xor_si256(_mm256_xor_si256(low, there), high)
}

/// # Safety
/// As of `block`.
// SAFETY: values only.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn both([low, high]: [i64; 2]) -> __m256i {
    _mm256_setr_epi64x(low, high, low, high)
}

/// # Safety
/// 32 bytes can be read there.
// SAFETY: the caller's promise.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(at: *const u8) -> __m256i {
    _mm256_loadu_si256(at.cast())
}

/// # Safety
/// Eight bytes can be read there.
// SAFETY: the caller's promise.
#[inline]
unsafe fn word_at(at: *const u8) -> u64 {
    at.cast::<u64>().read_unaligned()
}
