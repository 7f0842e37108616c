//! A zip's header holds the checksum of data that comes after it. Rather than go back, a file's last four bytes of
//! content are chosen so that the checksum is the one that the header promised.

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// The four bytes (a little-endian word) that, after bytes whose CRC-32 is `before`, make it `target`.
///
/// CRC-32 takes a word in by xor and then 32 steps of a shift register, each of which can be taken back.
pub(crate) fn word(before: u32, target: u32) -> u32 {
    let back = (0..32).fold(!target, |register, _| match register >> 31 {
        0 => register << 1,
        _ => ((register ^ POLYNOMIAL) << 1) | 1,
    });
    !before ^ back
}

#[cfg(test)]
mod tests {
    use super::super::sums::crc32;

    #[test]
    fn any_checksum_can_be_had() {
        for (start, target) in [(&b""[..], 0), (b"a", u32::MAX), (b"123456789", 0xDEAD_BEEF)] {
            let before = crc32(0, start);
            let last = super::word(before, target).to_le_bytes();
            assert_eq!(crc32(before, &last), target);
        }
    }
}
