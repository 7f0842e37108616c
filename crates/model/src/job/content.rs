//! The content of writes without verification: `--content`, how far it compresses, and how often it is repeated.

use crate::random::{derive, Below, Xoshiro256};
use crate::Error;

const CHUNK_DEFAULT: u32 = 512;
const CHUNK_MAX: u32 = 1 << 20;
const SET_MAX: u64 = 1 << 48;
/// Contents of the set are numbered apart from all others.
const SET: u64 = 0x5e7_c0de;

/// `compress=50,chunk=512`: of each 512 bytes the last half is zeroes. `dedupe=30`: three of ten writes carry what the one
/// before did, or, with `set=1000`, one of 1,000 contents that all workers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blend {
    pub compress_pct: u8,
    pub chunk: u32,
    pub dedupe_pct: u8,
    pub set: Option<u64>,
}

impl Blend {
    /// # Errors
    /// `Request`, naming the part that isn't one.
    pub fn parse(text: &str) -> Result<Blend, Error> {
        let refused = |found: String| {
            Error::request(format!("‹content› {text}"), found, "‹content› compress=50,dedupe=30")
        };
        let mut blend = Blend { compress_pct: 0, chunk: CHUNK_DEFAULT, dedupe_pct: 0, set: None };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let most = match name {
                "compress" | "dedupe" => 100,
                "chunk" => u64::from(CHUNK_MAX),
                "set" => SET_MAX,
                _ => return Err(refused(format!("'{name}' is not one of compress, chunk, dedupe, set"))),
            };
            let least = u64::from(matches!(name, "chunk" | "set"));
            let number = value.parse().ok().filter(|n| (least..=most).contains(n));
            let number: u64 = number.ok_or_else(|| refused(format!("'{part}' isn't {least} to {most}")))?;
            match name {
                "compress" => blend.compress_pct = number as u8,
                "dedupe" => blend.dedupe_pct = number as u8,
                "chunk" => blend.chunk = number as u32,
                _ => blend.set = Some(number),
            }
        }
        if blend.set.is_some() && blend.dedupe_pct == 0 {
            return Err(refused("set says what dedupe repeats".into()));
        }
        Ok(blend)
    }

    /// Zeroes the part of a buffer that compresses away.
    pub fn thin(&self, bytes: &mut [u8]) {
        if self.compress_pct == 0 {
            return;
        }
        for chunk in bytes.chunks_mut(self.chunk as usize) {
            let kept = chunk.len() * usize::from(100 - self.compress_pct) / 100;
            chunk[kept..].fill(0);
        }
    }
}

/// One worker's writes: which content each carries.
#[derive(Clone, Debug)]
pub struct Blender {
    pub blend: Blend,
    seed: u64,
    own: u64,
    count: u64,
    last: Option<u64>,
    random: Xoshiro256,
}

impl Blender {
    pub fn new(blend: Blend, seed: u64, worker: u32) -> Blender {
        let own = derive(seed, u64::from(worker) + 1);
        Blender { blend, seed, own, count: 0, last: None, random: Xoshiro256::new(own) }
    }

    /// The seed of the next write's content.
    pub fn next_seed(&mut self) -> u64 {
        let again = Below::new(100).draw(&mut self.random) < u64::from(self.blend.dedupe_pct);
        match (again, self.blend.set, self.last) {
            (true, Some(set), _) => derive(self.seed ^ SET, Below::new(set).draw(&mut self.random)),
            (true, None, Some(last)) => last,
            _ => {
                self.count += 1;
                let fresh = derive(self.own, self.count);
                self.last = Some(fresh);
                fresh
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn seeds(rule: &str, worker: u32, count: usize) -> Vec<u64> {
        let mut blender = Blender::new(Blend::parse(rule).unwrap(), 7, worker);
        (0..count).map(|_| blender.next_seed()).collect()
    }

    // promise: BEN-31
    #[test]
    fn so_many_writes_carry_what_another_did() {
        let distinct = |seeds: &[u64]| seeds.iter().collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(&seeds("compress=50", 0, 1000)), 1000);
        let repeated = seeds("dedupe=30", 0, 10_000);
        let again = repeated.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!((2_800..3_200).contains(&again), "{again} of 10,000");
        assert_eq!(distinct(&seeds("dedupe=100", 0, 1000)), 1);
        let (a, b) = (seeds("dedupe=100,set=8", 0, 1000), seeds("dedupe=100,set=8", 1, 1000));
        assert_eq!((distinct(&a), distinct(&[a, b].concat())), (8, 8), "workers share the set");
        let (a, b) = (seeds("dedupe=50,set=8", 0, 1000), seeds("dedupe=50,set=8", 1, 1000));
        let all = distinct(&[a, b].concat());
        assert!((900..1_124).contains(&all), "{all} distinct of 2,000");
    }

    // promise: BEN-31
    #[test]
    fn so_much_of_each_chunk_is_zeroes() {
        let mut bytes = vec![1u8; 1100];
        Blend::parse("compress=75,chunk=512").unwrap().thin(&mut bytes);
        assert!(bytes[..128].iter().all(|b| *b == 1) && bytes[128..512].iter().all(|b| *b == 0));
        assert!(bytes[512..640].iter().all(|b| *b == 1) && bytes[640..1024].iter().all(|b| *b == 0));
        assert_eq!(bytes[1024..].iter().map(|b| usize::from(*b)).sum::<usize>(), 19);
        let mut whole = vec![1u8; 512];
        Blend::parse("dedupe=1").unwrap().thin(&mut whole);
        assert_eq!(whole, vec![1u8; 512]);
    }

    #[test]
    fn what_is_no_rule_is_refused_by_its_part() {
        for (text, named) in [
            ("", "''"),
            ("compress", "'compress'"),
            ("compress=101", "'compress=101'"),
            ("dedupe=-1", "'dedupe=-1'"),
            ("chunk=0", "'chunk=0'"),
            ("set=0,dedupe=1", "'set=0'"),
            ("set=5", "what dedupe repeats"),
            ("zeroes=5", "'zeroes'"),
        ] {
            let error = Blend::parse(text).unwrap_err();
            assert!(error.found.contains(named) && error.asked.starts_with("‹content›"), "{text}: {error}");
        }
    }
}
