//! Random numbers that are the same on every machine and in every version:
//! a seed in a record must bring back the same offsets years later, so the
//! generators are written out here and held to their published vectors.

/// One step of SplitMix64 (Steele, Lea, Flood 2014): advances `state`, returns a mixed word.
#[inline]
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mix(*state)
}

/// SplitMix64's finaliser: a bijection in which each input bit sways each output bit.
#[inline]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// An independent seed for stream number `stream` (a worker, a repeat, a pass) of `seed`.
#[inline]
pub fn derive(seed: u64, stream: u64) -> u64 {
    mix(mix(seed).wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

/// xoshiro256++ 1.0 (Blackman, Vigna 2019).
#[derive(Clone, Debug)]
pub struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    /// Fills the state from SplitMix64, as the authors advise.
    pub fn new(seed: u64) -> Self {
        let mut from = seed;
        Xoshiro256 { state: std::array::from_fn(|_| split_mix(&mut from)) }
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let word = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        word
    }

    /// Uniform in [0, 1), 53 bits.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Uniform integers below a bound, without bias and without a division per draw (Lemire 2019).
#[derive(Clone, Copy, Debug)]
pub struct Below {
    bound: u64,
    /// 2^64 mod bound: products whose low half is under this are drawn again.
    reject: u64,
}

impl Below {
    /// `bound` must be above 0.
    pub fn new(bound: u64) -> Self {
        assert!(bound > 0, "nothing lies below 0");
        Below { bound, reject: bound.wrapping_neg() % bound }
    }

    #[inline]
    pub fn draw(self, random: &mut Xoshiro256) -> u64 {
        loop {
            let product = u128::from(random.next_u64()) * u128::from(self.bound);
            if product as u64 >= self.reject {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_gives_the_published_words() {
        let mut state = 1234567;
        let words: Vec<u64> = (0..5).map(|_| split_mix(&mut state)).collect();
        assert_eq!(
            words,
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423,
                4593380528125082431,
                16408922859458223821
            ]
        );
    }

    #[test]
    fn xoshiro_gives_the_published_words() {
        let mut random = Xoshiro256 { state: [1, 2, 3, 4] };
        let words: Vec<u64> = (0..10).map(|_| random.next_u64()).collect();
        assert_eq!(
            words,
            [
                41943041,
                58720359,
                3588806011781223,
                3591011842654386,
                9228616714210784205,
                9973669472204895162,
                14011001112246962877,
                12406186145184390807,
                15849039046786891736,
                10450023813501588000
            ]
        );
    }

    #[test]
    fn draws_stay_below_their_bound_at_both_ends_of_the_range() {
        let mut random = Xoshiro256::new(1);
        for bound in [1, 2, 3, (1 << 63) - 1, 1 << 63, u64::MAX] {
            let below = Below::new(bound);
            assert!((0..1000).all(|_| below.draw(&mut random) < bound));
        }
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let seeds: std::collections::HashSet<u64> = (0..1000).map(|s| derive(7, s)).collect();
        assert_eq!(seeds.len(), 1000);
    }
}
