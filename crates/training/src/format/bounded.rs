//! A header that comes in pieces: gathered up to a length that is known step by step.

/// Bytes of one header. Keeps its memory from header to header.
#[derive(Default)]
pub(crate) struct Gather {
    bytes: Vec<u8>,
    need: usize,
}

impl Gather {
    /// A new header, whose first `need` bytes are wanted.
    pub(crate) fn start(&mut self, need: usize) {
        self.bytes.clear();
        self.need = need;
    }

    /// `more` bytes beyond those that came.
    pub(crate) fn extend(&mut self, more: usize) {
        self.need = self.bytes.len() + more;
    }

    /// Moves what is wanted from the front of `from`; true once all of it has come.
    pub(crate) fn fill(&mut self, from: &mut &[u8]) -> bool {
        let take = from.len().min(self.need - self.bytes.len());
        let (head, rest) = from.split_at(take);
        self.bytes.extend_from_slice(head);
        *from = rest;
        self.bytes.len() == self.need
    }

    /// `fill`, with the place in the file moved on by what was taken.
    pub(crate) fn fill_at(&mut self, from: &mut &[u8], at: &mut u64) -> bool {
        let before = from.len();
        let complete = self.fill(from);
        *at += (before - from.len()) as u64;
        complete
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Big-endian, as images have them.
pub(crate) fn u16_be(bytes: &[u8], at: usize) -> u16 {
    u16_at(bytes, at).swap_bytes()
}

pub(crate) fn u32_be(bytes: &[u8], at: usize) -> u32 {
    u32_at(bytes, at).swap_bytes()
}
