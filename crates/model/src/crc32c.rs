//! CRC32C (Castagnoli) as arithmetic of polynomials over two elements, for
//! checksums whose pieces are computed apart: on a GPU, or in any order.
//!
//! A polynomial of degree under 32 is a word whose highest bit is x⁰, as CRC32C
//! orders bits. The checksum of bytes M is M·x³², with the first 32 bits
//! inverted, modulo the CRC's polynomial, inverted.

const POLYNOMIAL: u32 = 0x82F6_3B78;
/// x⁰.
const ONE: u32 = 1 << 31;
/// x to this power is 1 again: the polynomial is x + 1 times a primitive one of degree 31.
const ORDER: u64 = (1 << 31) - 1;

/// Product of two polynomials.
pub const fn product(a: u32, mut b: u32) -> u32 {
    let (mut sum, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 == 1 {
            sum ^= b;
        }
        b = (b >> 1) ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    sum
}

/// x to the power of 8 × `bytes`: what `bytes` further bytes multiply a remainder by.
pub fn shift(bytes: u64) -> u32 {
    power((u128::from(bytes) * 8 % u128::from(ORDER)) as u64)
}

/// The shift that takes `shift(bytes)` back.
pub fn unshift(bytes: u64) -> u32 {
    let forth = (u128::from(bytes) * 8 % u128::from(ORDER)) as u64;
    power((ORDER - forth) % ORDER)
}

/// x to that power.
pub const fn power(mut exponent: u64) -> u32 {
    let (mut result, mut square) = (ONE, ONE >> 1);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = product(result, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    result
}

/// The checksum of bytes whose remainder (of M alone, without the 32 zeroes behind it) is known.
pub fn of_remainder(remainder: u32, bytes: u64) -> u32 {
    !(product(remainder, shift(4)) ^ product(u32::MAX, shift(bytes)))
}

/// The checksum of two pieces in a row, of theirs and the second's length in bytes.
pub fn joined(first: u32, second: u32, second_bytes: u64) -> u32 {
    product(first, shift(second_bytes)) ^ second
}

/// For each of a word's bytes, lowest first, each of its 256 values times `by`: a product in four look-ups.
pub fn product_table(by: u32) -> Vec<u32> {
    (0..4).flat_map(|byte| (0..256u32).map(move |value| product(value << (8 * byte), by))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as RFC 3720 (iSCSI), appendix B.4, defines it.
    fn truth(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |s, _| (s >> 1) ^ if s & 1 == 1 { POLYNOMIAL } else { 0 })
        })
    }

    fn remainder(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |sum, byte| product(sum, shift(1)) ^ u32::from(*byte) << 24)
    }

    #[test]
    fn examples_of_the_standard() {
        assert_eq!(truth(b"123456789"), 0xE306_9283);
        assert_eq!(truth(&[0; 32]), 0x8A91_36AA);
        assert_eq!(truth(&[0xFF; 32]), 0x62A8_AB43);
    }

    // promise: VER-5
    #[test]
    fn a_remainder_becomes_the_checksum() {
        for text in ["", "1", "123456789", "a longer text than the others, of more than 32 bytes"] {
            assert_eq!(
                of_remainder(remainder(text.as_bytes()), text.len() as u64),
                truth(text.as_bytes()),
                "{text}"
            );
        }
    }

    // promise: VER-5
    #[test]
    fn pieces_join_at_any_place() {
        let text: Vec<u8> = (0..97u8).map(|i| i.wrapping_mul(73)).collect();
        for at in 0..=text.len() {
            let (a, b) = text.split_at(at);
            assert_eq!(joined(truth(a), truth(b), b.len() as u64), truth(&text), "at {at}");
        }
    }

    #[test]
    fn shifts_are_taken_back_and_tables_multiply() {
        for bytes in [0, 1, 3, 511, 4096, 1 << 40, u64::MAX] {
            let word = 0x1234_5678;
            assert_eq!(product(product(word, shift(bytes)), unshift(bytes)), word, "{bytes}");
            let table = product_table(shift(bytes));
            let looked_up = (0..4).fold(0, |sum, i| sum ^ table[256 * i + (word >> (8 * i) & 255) as usize]);
            assert_eq!(looked_up, product(word, shift(bytes)));
        }
    }
}
