//! Queries of dependent reads: what a vector index on disk asks of a drive. A query is so many rounds, one after the other; in
//! each a beam of nodes is read in every segment, and the next begins when all of them are there.

use super::DEPTH_MAX;
use crate::units::{format_bytes, parse_bytes};
use crate::Error;

/// `hops=50,beam=4,node=8k,segments=7`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// Rounds of a query.
    pub hops: u32,
    /// Nodes that a round reads in each segment.
    pub beam: u32,
    pub node_bytes: u64,
    /// Parts of the data, of equal size, that are searched side by side.
    pub segments: u32,
}

const EXAMPLE: &str = "‹dependent› hops=50,beam=4,node=8k,segments=7";
const HOPS_MAX: u32 = 1 << 20;

impl Rounds {
    /// # Errors
    /// `Request`: a key or number that isn't understood, or more reads in a round than can be in flight.
    pub fn parse(text: &str) -> Result<Rounds, Error> {
        let refused = |found: String| Err(Error::request(format!("‹dependent› {text}"), found, EXAMPLE));
        let mut rounds = Rounds { hops: 0, beam: 1, node_bytes: 4096, segments: 1 };
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').unwrap_or((part, ""));
            let number = value.parse::<u32>().ok().filter(|n| (1..=HOPS_MAX).contains(n));
            match (key, number) {
                ("hops", Some(number)) => rounds.hops = number,
                ("beam", Some(number)) => rounds.beam = number,
                ("segments", Some(number)) => rounds.segments = number,
                ("node", _) => match parse_bytes(value) {
                    Ok(bytes) if bytes > 0 => rounds.node_bytes = bytes,
                    _ => return refused(format!("node={value} is no size")),
                },
                ("hops" | "beam" | "segments", None) => {
                    return refused(format!("{key}={value} is not a whole number from 1 to {HOPS_MAX}"))
                }
                _ => return refused(format!("has no key '{key}': they are hops, beam, node and segments")),
            }
        }
        if rounds.hops == 0 {
            return refused("doesn't say how many hops a query has".into());
        }
        match u64::from(rounds.beam) * u64::from(rounds.segments) {
            reads if reads > DEPTH_MAX.into() => {
                refused(format!("a round would be {reads} reads, and {DEPTH_MAX} can be in flight"))
            }
            _ => Ok(rounds),
        }
    }

    /// Reads of a round.
    pub fn width(&self) -> u32 {
        self.beam * self.segments
    }

    pub fn query_bytes(&self) -> u64 {
        (u64::from(self.hops) * u64::from(self.width())).saturating_mul(self.node_bytes)
    }

    /// Refuses data that has no node for each segment.
    pub fn check_nodes(&self, nodes: u64) -> Result<(), Error> {
        if nodes >= self.segments.into() {
            return Ok(());
        }
        let found = format!("the data has {nodes} nodes of {}", format_bytes(self.node_bytes));
        Err(Error::request(
            format!("‹dependent› with {} segments", self.segments),
            found,
            "more data, or fewer segments",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: BEN-54
    #[test]
    fn what_is_asked_is_understood_or_named() {
        let rounds = Rounds::parse("hops=50, beam=4,node=8k,segments=7").unwrap();
        assert_eq!((rounds.width(), rounds.query_bytes()), (28, 11_468_800));
        assert_eq!(
            Rounds::parse("hops=3").unwrap(),
            Rounds { hops: 3, beam: 1, node_bytes: 4096, segments: 1 }
        );
        for (text, found) in [
            ("", "no key ''"),
            ("beam=4", "how many hops"),
            ("hops=0", "hops=0 is not"),
            ("hops=x", "hops=x is not"),
            ("hops=4,node=0", "node=0 is no size"),
            ("hops=4,width=2", "no key 'width'"),
            ("hops=4,beam=64,segments=65", "4160 reads"),
        ] {
            let error = Rounds::parse(text).unwrap_err();
            assert!(error.found.contains(found), "{text}: {error}");
        }
        assert!(rounds.check_nodes(7).is_ok() && rounds.check_nodes(6).is_err());
    }
}
