//! Fletcher's checksum of 32 bits, as HDF5 stores it behind a chunk (File Format Specification 3.0, IV.A.2.l): over 16-bit words,
//! the first byte of each the higher one.

/// A sum under way. Two sums modulo 65535, kept below 2^48 between folds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fletcher32 {
    plain: u64,
    weighted: u64,
    /// The first byte of a word whose second hasn't come.
    half: Option<u8>,
}

/// Words after which the sums are folded.
const WORDS: usize = 1 << 14;

impl Fletcher32 {
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        if let (Some(high), [low, rest @ ..]) = (self.half, bytes) {
            self.half = None;
            self.words(&[high, *low]);
            bytes = rest;
        }
        for some in bytes.chunks(2 * WORDS) {
            let whole = some.len() / 2 * 2;
            self.words(&some[..whole]);
            self.half = some.get(whole).copied();
        }
    }

    fn words(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(2) {
            self.plain += u64::from(u16::from_be_bytes([word[0], word[1]]));
            self.weighted += self.plain;
        }
        (self.plain, self.weighted) = (fold(self.plain), fold(self.weighted));
    }

    /// The sum; an odd last byte counts as a word whose other byte is zero.
    pub(crate) fn sum(mut self) -> u32 {
        if let Some(high) = self.half.take() {
            self.words(&[high, 0]);
        }
        (self.weighted as u32) << 16 | self.plain as u32
    }

    /// Returns whether it is the sum that four bytes store. Libraries before 1.6.3 swapped the bytes of each half on
    /// some machines.
    pub(crate) fn is(self, stored: [u8; 4]) -> bool {
        let sum = self.sum();
        let swapped = (sum & 0x00FF_00FF) << 8 | (sum & 0xFF00_FF00) >> 8;
        [sum, swapped].contains(&u32::from_le_bytes(stored))
    }
}

/// Modulo 65535; 65535 stands for a multiple that isn't zero.
fn fold(mut sum: u64) -> u64 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By the definition, word by word.
    fn plainly(bytes: &[u8]) -> u32 {
        let (mut a, mut b) = (0u64, 0u64);
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(2), 0);
        for word in padded.chunks(2) {
            a += u64::from(word[0]) * 256 + u64::from(word[1]);
            b += a;
            (a, b) = (fold(a), fold(b));
        }
        (b as u32) << 16 | a as u32
    }

    proptest! {
        #[test]
        fn pieces_sum_to_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(0usize..400, 0..5)) {
            let mut sum = Fletcher32::default();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            cuts.windows(2).for_each(|cut| sum.add(&bytes[cut[0]..cut[1]]));
            prop_assert_eq!(sum.sum(), plainly(&bytes));
            prop_assert!(sum.is(plainly(&bytes).to_le_bytes()));
        }
    }

    #[test]
    fn long_runs_of_the_greatest_word_do_not_overflow() {
        let bytes = vec![0xFF; 1 << 20];
        let mut sum = Fletcher32::default();
        sum.add(&bytes);
        assert_eq!(sum.sum(), plainly(&bytes));
    }
}
