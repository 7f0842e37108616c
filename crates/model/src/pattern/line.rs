//! Sequential offsets without holes: a position in the spans.

use super::permutation::Permutation;
use super::Span;
use crate::random::derive;

/// The span that is being covered, and what is left of it.
#[derive(Clone, Debug)]
pub struct Line {
    index: usize,
    rest: Span,
    shuffle: Option<Shuffle>,
}

/// Order of the spans in a pass.
#[derive(Clone, Debug)]
struct Shuffle {
    seed: u64,
    pass: u64,
    order: Permutation,
}

impl Line {
    pub fn new(spans: &[Span]) -> Line {
        Line { index: 0, rest: spans[0], shuffle: None }
    }

    /// The spans in random order, new in each pass.
    pub fn shuffled(spans: &[Span], seed: u64) -> Line {
        let order = Permutation::new(spans.len() as u64, derive(seed, 0));
        let rest = spans[order.at(0) as usize];
        Line { index: 0, rest, shuffle: Some(Shuffle { seed, pass: 0, order }) }
    }

    /// The target, the offset in it, and the length of the next I/O, `len` at most; and whether it was the last of all spans.
    #[inline]
    pub fn next(&mut self, spans: &[Span], len: u64) -> (u32, u64, u64, bool) {
        let len = len.min(self.rest.bytes);
        let (target, offset) = (self.rest.target, self.rest.start);
        self.rest.start += len;
        self.rest.bytes -= len;
        if self.rest.bytes == 0 {
            self.index = (self.index + 1) % spans.len();
            self.rest = spans[self.place(spans.len() as u64)];
            return (target, offset, len, self.index == 0);
        }
        (target, offset, len, false)
    }

    /// The span that is number `index` of this pass.
    fn place(&mut self, spans: u64) -> usize {
        let Some(shuffle) = &mut self.shuffle else { return self.index };
        if self.index == 0 {
            shuffle.pass += 1;
            shuffle.order = Permutation::new(spans, derive(shuffle.seed, shuffle.pass));
        }
        shuffle.order.at(self.index as u64) as usize
    }
}
