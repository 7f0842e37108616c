//! The random numbers of Python's module `random`: the Mersenne Twister MT19937 (Matsumoto, Nishimura 1998), seeded by a
//! whole number, and drawn from as CPython does. The reference's users are drawn from it, one after another, before its
//! threads begin: with the same numbers they are the same users.

const WORDS: usize = 624;
const MIDDLE: usize = 397;
const UPPER: u32 = 0x8000_0000;
const LOWER: u32 = 0x7FFF_FFFF;
const TWIST: u32 = 0x9908_B0DF;

pub(super) struct Python {
    state: [u32; WORDS],
    next: usize,
}

impl Python {
    /// As `random.seed(seed)` does it: the 32-bit words of the seed are the key.
    pub(super) fn new(seed: u64) -> Python {
        let words = [seed as u32, (seed >> 32) as u32];
        let key = if words[1] == 0 { &words[..1] } else { &words[..] };
        let mut state = [0u32; WORDS];
        state[0] = 19_650_218;
        for i in 1..WORDS {
            let before = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(before ^ before >> 30).wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        for _ in 0..WORDS.max(key.len()) {
            let before = state[i - 1];
            let mixed = state[i] ^ (before ^ before >> 30).wrapping_mul(1_664_525);
            state[i] = mixed.wrapping_add(key[j]).wrapping_add(j as u32);
            i = Self::after(&mut state, i);
            j = (j + 1) % key.len();
        }
        for _ in 1..WORDS {
            let before = state[i - 1];
            let mixed = state[i] ^ (before ^ before >> 30).wrapping_mul(1_566_083_941);
            state[i] = mixed.wrapping_sub(i as u32);
            i = Self::after(&mut state, i);
        }
        state[0] = UPPER;
        Python { state, next: WORDS }
    }

    fn after(state: &mut [u32; WORDS], i: usize) -> usize {
        if i + 1 < WORDS {
            return i + 1;
        }
        state[0] = state[WORDS - 1];
        1
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            for i in 0..WORDS {
                let joined = self.state[i] & UPPER | self.state[(i + 1) % WORDS] & LOWER;
                let twist = if joined & 1 == 1 { TWIST } else { 0 };
                self.state[i] = self.state[(i + MIDDLE) % WORDS] ^ joined >> 1 ^ twist;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9D2C_5680;
        word ^= word << 15 & 0xEFC6_0000;
        word ^ word >> 18
    }

    /// `random.random()`: uniform in [0, 1), 53 bits.
    pub(super) fn uniform(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// `random.randrange(bound)`: as many bits as the bound has, drawn again until they are below it.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "nothing lies below 0");
        let bits = u32::BITS - bound.leading_zeros();
        loop {
            let drawn = self.word() >> (u32::BITS - bits);
            if drawn < bound {
                return drawn;
            }
        }
    }

    /// `random.randint(least, most)`.
    pub(super) fn between(&mut self, (least, most): (u32, u32)) -> u32 {
        least + self.below(most - least + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What CPython 3.11 draws.
    #[test]
    fn the_numbers_are_those_of_cpython() {
        let mut random = Python::new(42);
        assert_eq!(random.uniform(), 0.6394267984578837);
        assert_eq!(random.uniform(), 0.025010755222666936);
        assert_eq!(random.between((512, 4096)), 1638);
        assert_eq!(Python::new(1 << 40).uniform(), 0.1036394562812375);
    }
}
