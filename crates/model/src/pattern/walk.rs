//! Sequential offsets with holes, backwards ones among them.

use super::Span;

/// State of a walk with holes.
///
/// With a hole after each I/O, the next one begins so far behind the end of the last: `skip` below 0 goes back. A walk that
/// leaves its span goes on with the next one: at its start, or, going back, that far before its end. The very first I/O is
/// at the start in any case. With a hole after every so many bytes, those lie in zones, and the next zone begins `skip`
/// bytes behind the end of the last.
#[derive(Clone, Debug)]
pub struct Walk {
    skip: i64,
    every: Option<u64>,
    span: usize,
    /// End of the last I/O, from the start of the span; None before the first.
    end: Option<u64>,
    zone: u64,
}

impl Walk {
    pub fn new(skip: i64, every: Option<u64>) -> Walk {
        Walk { skip, every, span: 0, end: None, zone: 0 }
    }

    /// The span and the offset in it of the next I/O, of at most `len` bytes; and its length.
    #[inline]
    pub fn next(&mut self, spans: &[Span], len: u64) -> (usize, u64, u64) {
        let at = match (self.end, self.every) {
            (None, _) => 0,
            (Some(end), None) => self.after_a_hole(spans, end),
            (Some(end), Some(every)) => self.in_zones(spans, end, every),
        };
        let len = len.min(spans[self.span].bytes - at);
        self.end = Some(at + len);
        (self.span, at, len)
    }

    fn after_a_hole(&mut self, spans: &[Span], end: u64) -> u64 {
        match end.checked_add_signed(self.skip).filter(|at| *at < spans[self.span].bytes) {
            Some(at) => at,
            None => {
                self.span = (self.span + 1) % spans.len();
                let bytes = spans[self.span].bytes;
                if self.skip < 0 {
                    bytes.saturating_sub(self.skip.unsigned_abs())
                } else {
                    0
                }
            }
        }
    }

    fn in_zones(&mut self, spans: &[Span], end: u64, every: u64) -> u64 {
        let bytes = spans[self.span].bytes;
        let mut at = end;
        if end - self.zone >= every {
            self.zone = self.zone.saturating_add(every).saturating_add(self.skip.unsigned_abs());
            at = self.zone;
        }
        if at < bytes {
            return at;
        }
        self.span = (self.span + 1) % spans.len();
        self.zone = 0;
        0
    }
}
