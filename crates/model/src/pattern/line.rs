//! Sequential offsets without holes: a position in the spans.

use super::Span;

/// The span that is being covered, and what is left of it.
#[derive(Clone, Debug)]
pub struct Line {
    index: usize,
    rest: Span,
}

impl Line {
    pub fn new(spans: &[Span]) -> Line {
        Line { index: 0, rest: spans[0] }
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
            self.rest = spans[self.index];
            return (target, offset, len, self.index == 0);
        }
        (target, offset, len, false)
    }
}
