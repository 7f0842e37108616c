//! The possible offsets of random I/Os: the aligned positions of all spans, numbered from 0.

use super::Span;

/// Finds the span of a position in constant expected time: a table over the
/// positions' leading bits narrows a binary search to a span or two.
#[derive(Clone, Debug)]
pub struct Places {
    stride: u64,
    /// Number of the first position of each span, and the total at the end.
    firsts: Vec<u64>,
    shift: u32,
    /// For each value of position >> shift, the span of the bucket's first position.
    guide: Vec<u32>,
}

impl Places {
    /// `positions` says how many positions, at least 1, a span has; each is `stride` bytes from the last.
    pub fn new(spans: &[Span], stride: u64, positions: impl Fn(&Span) -> u64) -> Self {
        let mut firsts = vec![0u64];
        for span in spans {
            firsts.push(firsts[firsts.len() - 1] + positions(span));
        }
        let total = firsts[spans.len()];
        let buckets_bits = (2 * spans.len() as u64).next_power_of_two().trailing_zeros();
        let shift = (64 - total.leading_zeros()).saturating_sub(buckets_bits);
        let guide = (0..=(total - 1) >> shift)
            .map(|bucket| firsts.partition_point(|f| *f <= bucket << shift) as u32 - 1)
            .chain([spans.len() as u32 - 1])
            .collect();
        Places { stride, firsts, shift, guide }
    }

    pub fn total(&self) -> u64 {
        self.firsts[self.firsts.len() - 1]
    }

    /// The span's index and the offset within that span.
    #[inline]
    pub fn at(&self, position: u64) -> (usize, u64) {
        if self.firsts.len() == 2 {
            return (0, position * self.stride);
        }
        let bucket = (position >> self.shift) as usize;
        let (low, high) = (self.guide[bucket] as usize, self.guide[bucket + 1] as usize);
        let above = self.firsts[low + 1..=high].partition_point(|f| *f <= position);
        let span = low + above;
        (span, (position - self.firsts[span]) * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_map_to_spans_in_order() {
        for lengths in [vec![1], vec![5, 5, 5, 5], vec![1, 1, 1, 1000, 1, 1], vec![1 << 40, 1, 3]] {
            let spans: Vec<Span> = lengths.iter().map(|n| Span { target: 0, start: 0, bytes: *n }).collect();
            let places = Places::new(&spans, 8, |s| s.bytes);
            let mut position = 0;
            for (index, length) in lengths.iter().enumerate() {
                for inside in [0, length / 2, length - 1] {
                    assert_eq!(places.at(position + inside), (index, inside * 8));
                }
                position += length;
            }
            assert_eq!(places.total(), position);
        }
    }
}
