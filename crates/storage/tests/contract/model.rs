//! The simplest truth: a device that is a vector of bytes, beside what was asked
//! of the real one. Bytes that a fault left in doubt are marked, and only those.

use super::rig::Request;
use forebay_io::Op;
use forebay_model::random::Xoshiro256;

pub struct Flat {
    pub bytes: Vec<u8>,
    /// Bytes of a write that was swallowed on its way: old ones, new ones or a mix.
    pub in_doubt: Vec<bool>,
}

impl Flat {
    pub fn new(bytes: Vec<u8>) -> Flat {
        Flat { in_doubt: vec![false; bytes.len()], bytes }
    }

    fn range(&self, offset: u64, len: usize) -> std::ops::Range<usize> {
        let from = (offset as usize).min(self.bytes.len());
        from..(from + len).min(self.bytes.len())
    }

    /// The first `moved` bytes of the request took effect.
    pub fn apply(&mut self, request: &Request, moved: usize) {
        let range = self.range(request.offset, moved);
        match request.op {
            Op::Write { .. } => {
                let len = range.len();
                self.bytes[range.clone()].copy_from_slice(&request.data[..len]);
            }
            Op::WriteZeroes | Op::Deallocate => self.bytes[range.clone()].fill(0),
            Op::Read | Op::Flush => return,
        }
        self.in_doubt[range].fill(false);
    }

    /// Marks a request whose outcome is unknown.
    pub fn doubt(&mut self, request: &Request) {
        if !matches!(request.op, Op::Read | Op::Flush) {
            let range = self.range(request.offset, request.len as usize);
            self.in_doubt[range].fill(true);
        }
    }

    /// The first byte from `offset` on that `got` has wrong, doubt aside.
    pub fn differs(&self, offset: u64, got: &[u8]) -> Option<usize> {
        let range = self.range(offset, got.len());
        // At once, where it can be: byte by byte takes most of the time of all cases.
        if self.bytes[range.clone()] == got[..range.len()] {
            return None;
        }
        let mut at = range.zip(got);
        at.find(|(i, byte)| !self.in_doubt[*i] && self.bytes[*i] != **byte).map(|(i, _)| i)
    }
}

/// Shape of a random request.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub bytes: u64,
    pub unit: u64,
    pub units_max: u64,
    pub writes: bool,
}

/// Batches of requests in which no two touch the same bytes, so that their order doesn't matter.
pub fn batches(seed: u64, count: usize, shape: Shape) -> Vec<Vec<Request>> {
    let mut random = Xoshiro256::new(seed);
    let mut below = |n: u64| ((random.next_f64() * n as f64) as u64).min(n.saturating_sub(1));
    let units = shape.bytes / shape.unit;
    let mut all: Vec<Vec<Request>> = vec![Vec::new()];
    for i in 0..count as u64 {
        let long = 1 + below(shape.units_max.min(units));
        let (offset, len) = (below(units - long + 1) * shape.unit, long * shape.unit);
        let data = || super::cases::noise(seed ^ i, len as usize);
        let request = match below(10) {
            _ if !shape.writes => Request::read(offset, len as u32),
            0..=3 => Request::read(offset, len as u32),
            4..=6 => Request::write(offset, data()),
            7 => Request { op: Op::Write { durable: true }, ..Request::write(offset, data()) },
            8 => Request::zeroes(Op::WriteZeroes, offset, len as u32),
            _ => Request::zeroes(Op::Deallocate, offset, len as u32),
        };
        let apart =
            |other: &Request| offset + len <= other.offset || other.offset + u64::from(other.len) <= offset;
        if !all.last().is_some_and(|batch| batch.iter().all(apart)) {
            all.push(Vec::new());
        }
        if let Some(batch) = all.last_mut() {
            batch.push(request);
        }
    }
    all
}
