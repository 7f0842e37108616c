//! The size of each I/O.

use super::PatternSpec;
use crate::job::{IoMix, SizeShare};
use crate::random::{Below, Xoshiro256};

#[derive(Clone, Debug)]
pub enum Sizes {
    One(u64),
    /// least + k × step for k below a count.
    Range {
        least: u64,
        step: u64,
        steps: Below,
    },
    Mix {
        reads: Shares,
        writes: Shares,
    },
}

impl Sizes {
    pub fn from_spec(spec: &PatternSpec) -> Sizes {
        if let Some(IoMix { reads, writes }) = &spec.mix {
            return Sizes::Mix { reads: Shares::from_list(reads), writes: Shares::from_list(writes) };
        }
        let step = spec.io_bytes_step.unwrap_or(spec.io_bytes);
        let steps = (spec.io_bytes_max.unwrap_or(spec.io_bytes) - spec.io_bytes) / step;
        match steps {
            0 => Sizes::One(spec.io_bytes),
            _ => Sizes::Range { least: spec.io_bytes, step, steps: Below::new(steps + 1) },
        }
    }

    /// A size that doesn't depend on whether the I/O reads; None of a mix.
    #[inline]
    pub fn draw(&self, random: &mut Xoshiro256) -> Option<u64> {
        match self {
            Sizes::One(bytes) => Some(*bytes),
            Sizes::Range { least, step, steps } => Some(least + steps.draw(random) * step),
            Sizes::Mix { .. } => None,
        }
    }

    #[inline]
    pub fn draw_for(&self, is_read: bool, random: &mut Xoshiro256) -> u64 {
        match self {
            Sizes::Mix { reads, writes } => if is_read { reads } else { writes }.draw(random),
            _ => self.draw(random).unwrap_or(0),
        }
    }
}

/// Sizes by their shares.
#[derive(Clone, Debug)]
pub struct Shares {
    below: Below,
    /// The sum of the shares up to this one, and its size.
    ends: Vec<(u64, u64)>,
}

impl Shares {
    fn from_list(list: &[SizeShare]) -> Shares {
        let mut end = 0;
        let ends: Vec<(u64, u64)> = list
            .iter()
            .map(|s| {
                end += u64::from(s.share);
                (end, s.bytes)
            })
            .collect();
        Shares { below: Below::new(end.max(1)), ends }
    }

    #[inline]
    fn draw(&self, random: &mut Xoshiro256) -> u64 {
        let drawn = self.below.draw(random);
        let at = self.ends.partition_point(|(end, _)| *end <= drawn);
        self.ends[at.min(self.ends.len() - 1)].1
    }
}
