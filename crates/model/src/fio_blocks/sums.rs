//! The checksums of fio's blocks. Each starts at its own value and ends without a last inversion, so that none of them is
//! what other programs call by the same name.

/// Returns the CRC of the bytes as they come, highest bit first (`0x04C1_1DB7`).
pub fn crc32(bytes: &[u8]) -> u64 {
    const TABLE: [u32; 256] = forwards();
    let step = |sum: u32, byte: &u8| (sum << 8) ^ TABLE[((sum >> 24) ^ u32::from(*byte)) as usize];
    bytes.iter().fold(0, step).into()
}

/// Castagnoli's, begun with all bits set.
pub fn crc32c(bytes: &[u8]) -> u64 {
    u64::from(!crc32c::crc32c(bytes))
}

pub fn crc64(bytes: &[u8]) -> u64 {
    const TABLE: [u64; 256] = backwards(0x95AC_9329_AC4B_C9B5);
    bytes.iter().fold(0, |sum, byte| TABLE[((sum ^ u64::from(*byte)) & 0xFF) as usize] ^ (sum >> 8))
}

pub fn crc16(bytes: &[u8]) -> u64 {
    const TABLE: [u64; 256] = backwards(0xA001);
    bytes.iter().fold(0, |sum, byte| TABLE[((sum ^ u64::from(*byte)) & 0xFF) as usize] ^ (sum >> 8))
}

pub fn crc7(bytes: &[u8]) -> u64 {
    const TABLE: [u8; 256] = sevens();
    bytes.iter().fold(0u8, |sum, byte| TABLE[usize::from((sum << 1) ^ byte)]).into()
}

const XX: [u32; 5] = [0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D, 0x27D4_EB2F, 0x1656_67B1];
const XX_SEED: u32 = 1;

/// XXH32 with the seed 1.
pub fn xxhash(bytes: &[u8]) -> u64 {
    let word = |four: &[u8]| u32::from_le_bytes(std::array::from_fn(|i| four[i]));
    let stripes = bytes.chunks_exact(16);
    let mut rest = stripes.remainder();
    let mut sum = XX_SEED.wrapping_add(XX[4]);
    if bytes.len() >= 16 {
        let begun = XX_SEED.wrapping_add(XX[0]);
        let mut lanes =
            [begun.wrapping_add(XX[1]), XX_SEED.wrapping_add(XX[1]), XX_SEED, XX_SEED.wrapping_sub(XX[0])];
        for stripe in stripes {
            for (lane, four) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
                let mixed = lane.wrapping_add(word(four).wrapping_mul(XX[1]));
                *lane = mixed.rotate_left(13).wrapping_mul(XX[0]);
            }
        }
        let turned = lanes.iter().zip([1, 7, 12, 18]).map(|(lane, by)| lane.rotate_left(by));
        sum = turned.fold(0, u32::wrapping_add);
    }
    sum = sum.wrapping_add(bytes.len() as u32);
    while let Some((four, after)) = rest.split_at_checked(4) {
        sum = sum.wrapping_add(word(four).wrapping_mul(XX[2])).rotate_left(17).wrapping_mul(XX[3]);
        rest = after;
    }
    for byte in rest {
        sum = sum.wrapping_add(u32::from(*byte).wrapping_mul(XX[4])).rotate_left(11).wrapping_mul(XX[0]);
    }
    sum = (sum ^ (sum >> 15)).wrapping_mul(XX[1]);
    sum = (sum ^ (sum >> 13)).wrapping_mul(XX[2]);
    (sum ^ (sum >> 16)).into()
}

/// Remainders of each byte, lowest bit first.
const fn backwards(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u64, 0);
        while bit < 8 {
            sum = (sum >> 1) ^ if sum & 1 == 1 { polynomial } else { 0 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

const fn forwards() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = ((byte as u32) << 24, 0);
        while bit < 8 {
            sum = (sum << 1) ^ if sum >> 31 == 1 { 0x04C1_1DB7 } else { 0 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

const fn sevens() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u8, 0);
        while bit < 8 {
            sum = (sum << 1) ^ if sum & 0x80 != 0 { 0x09 << 1 } else { 0 };
            bit += 1;
        }
        table[byte] = sum >> 1;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogued checksums of "123456789", without what they do at the end: CRC-32/CKSUM's polynomial without a
    /// length, CRC-32C, CRC-64/REDIS, CRC-16/ARC, CRC-7/MMC. XXH32 by its published vectors' algorithm is held against fio
    /// in `tests/test_fio_blocks.py`.
    #[test]
    fn sums_of_nine_digits_are_those_of_the_catalogue() {
        let digits = b"123456789";
        assert_eq!(crc32(digits), 0x89A1_897F);
        assert_eq!(crc32c(digits), u64::from(!0xE306_9283_u32));
        assert_eq!(crc64(digits), 0xE9C6_D914_C4B8_D9CA);
        assert_eq!(crc16(digits), 0xBB3D);
        assert_eq!(crc7(digits), 0x75);
    }
}
