//! The offsets of a job's I/Os: the values of `--distribution` and `--io-mix`.

use crate::units::{parse_bytes, IO_BYTES_MAX};
use crate::Error;

/// Entries of a mix, zones, or blocks of a list, at most.
const ENTRIES_MAX: usize = 1024;

/// Distribution of random offsets.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Distribution {
    #[default]
    Uniform,
    /// Zipf's law with this exponent.
    Zipf(f64),
    /// Parts of the data, from its start on, each with its share of the I/Os.
    Zoned(Vec<Zone>),
    /// These blocks in turn, again and again.
    Listed { blocks: Vec<u64>, moves_on: bool },
}

/// Zone of per cent of the data that gets per cent of the I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    pub ios_pct: u8,
    pub data_pct: u8,
}

/// A size of I/Os, and how many of them have it in relation to the other shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeShare {
    pub bytes: u64,
    pub share: u32,
}

/// The sizes that reads and writes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoMix {
    pub reads: Vec<SizeShare>,
    pub writes: Vec<SizeShare>,
}

impl Distribution {
    /// `uniform`, `zipf:1.2`, `zoned:50/5,30/15,20/80`, `list:2,0,1` or, moving on by its own length after each round,
    /// `list+:2,0,1`. None if the text is neither.
    pub fn parse(text: &str) -> Option<Distribution> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "uniform" if text == kind => Some(Distribution::Uniform),
            "zipf" => rest.parse().ok().filter(|t| *t > 0.0 && *t < 3.0).map(Distribution::Zipf),
            "zoned" => zones(rest).map(Distribution::Zoned),
            "list" | "list+" => {
                let blocks: Vec<u64> = rest.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
                let fits = blocks.len() <= ENTRIES_MAX;
                fits.then_some(Distribution::Listed { blocks, moves_on: kind == "list+" })
            }
            _ => None,
        }
    }
}

/// Both columns must come to 100 %.
fn zones(text: &str) -> Option<Vec<Zone>> {
    let zone = |entry: &str| {
        let (ios, data) = entry.split_once('/')?;
        Some(Zone { ios_pct: ios.parse().ok()?, data_pct: data.parse().ok()? })
    };
    let zones: Vec<Zone> = text.split(',').map(zone).collect::<Option<_>>()?;
    let sum = |of: fn(&Zone) -> u8| zones.iter().map(|z| u64::from(of(z))).sum::<u64>();
    let whole = sum(|z| z.ios_pct) == 100 && sum(|z| z.data_pct) == 100;
    let empty = zones.iter().any(|z| z.ios_pct > 0 && z.data_pct == 0);
    (whole && !empty && zones.len() <= ENTRIES_MAX).then_some(zones)
}

impl IoMix {
    /// `4k=60,64k=40`, or for reads and writes each, `4k=60,64k=40/1m=100`. Shares are of their total, whatever that is.
    pub fn parse(text: &str) -> Result<IoMix, Error> {
        let bad = |found: &str| {
            Error::request(format!("‹io_mix› {text}"), found, "‹io_mix› 4k=60,64k=40, or READS/WRITES")
        };
        let entry = |entry: &str| {
            let (size, share) = entry.split_once('=').ok_or_else(|| bad("is not SIZE=SHARE,SIZE=SHARE"))?;
            let bytes = parse_bytes(size).ok().filter(|b| (1..=IO_BYTES_MAX).contains(b));
            Ok(SizeShare {
                bytes: bytes.ok_or_else(|| bad("a size must be 1 byte to 1 GiB"))?,
                share: share
                    .parse()
                    .ok()
                    .filter(|s| *s > 0)
                    .ok_or_else(|| bad("a share is a whole number above 0"))?,
            })
        };
        let side = |side: &str| side.split(',').map(entry).collect::<Result<Vec<_>, Error>>();
        let (reads, writes) = text.split_once('/').unwrap_or((text, text));
        let mix = IoMix { reads: side(reads)?, writes: side(writes)? };
        let most = mix.reads.len().max(mix.writes.len());
        if most > ENTRIES_MAX {
            return Err(bad("has more than 1,024 sizes"));
        }
        Ok(mix)
    }

    fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.reads.iter().chain(&self.writes).map(|s| s.bytes)
    }

    pub fn least(&self) -> u64 {
        self.sizes().min().unwrap_or(1)
    }

    pub fn most(&self) -> u64 {
        self.sizes().max().unwrap_or(1)
    }

    /// The greatest common divisor of all sizes.
    pub fn step(&self) -> u64 {
        self.sizes().fold(0, |a, b| {
            let (mut a, mut b) = (a, b);
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        })
    }

    /// Bytes per I/O in the mean, with so many per cent of reads.
    pub fn mean_bytes(&self, reads_pct: u8) -> f64 {
        let mean = |side: &[SizeShare]| {
            let shares: f64 = side.iter().map(|s| f64::from(s.share)).sum();
            side.iter().map(|s| s.bytes as f64 * f64::from(s.share)).sum::<f64>() / shares
        };
        let reads = f64::from(reads_pct) / 100.0;
        reads * mean(&self.reads) + (1.0 - reads) * mean(&self.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distribution_is_read_and_what_does_not_add_up_is_not() {
        assert_eq!(Distribution::parse("uniform"), Some(Distribution::Uniform));
        assert_eq!(Distribution::parse("zipf:1.2"), Some(Distribution::Zipf(1.2)));
        let zone = |ios_pct, data_pct| Zone { ios_pct, data_pct };
        let zoned = Distribution::Zoned(vec![zone(50, 5), zone(30, 15), zone(20, 80)]);
        assert_eq!(Distribution::parse("zoned:50/5,30/15,20/80"), Some(zoned));
        let listed = |moves_on| Distribution::Listed { blocks: vec![2, 0, 1], moves_on };
        assert_eq!(Distribution::parse("list:2,0,1"), Some(listed(false)));
        assert_eq!(Distribution::parse("list+:2,0,1"), Some(listed(true)));
        for none in [
            "",
            "uniform:",
            "zipf",
            "zipf:3",
            "zipf:NaN",
            "zoned:",
            "zoned:50/50",
            "zoned:100/0",
            "zoned:60/50,40/51",
            "zoned:100/0,0/100",
            "list:",
            "list:-1",
            "pareto:0.9",
        ] {
            assert_eq!(Distribution::parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_mix_knows_its_least_its_greatest_and_what_divides_it() {
        let mix = IoMix::parse("512=10,1536=30,4k=60/64k=1").unwrap();
        assert_eq!((mix.least(), mix.most(), mix.step()), (512, 65536, 512));
        assert!((mix.mean_bytes(100) - (51.2 + 460.8 + 2457.6)).abs() < 1e-9);
        assert!((mix.mean_bytes(50) - (2969.6 + 65536.0) / 2.0).abs() < 1e-9);
        for bad in ["", "4k", "4k=0", "4k=1,", "0=1", "2g=1", "4k=x", "4k=1/"] {
            let error = IoMix::parse(bad).unwrap_err();
            assert!(error.asked.starts_with("‹io_mix›") && !error.next.is_empty(), "{error}");
        }
    }
}
