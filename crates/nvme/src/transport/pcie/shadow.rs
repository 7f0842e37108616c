//! Shadow doorbells (base, section 5.8, Doorbell Buffer Config, and appendix B.5): doorbells in the host's memory,
//! beside them the indices at whose passing the host must write the register all the same.

use super::registers::Doorbell;

/// Addresses of the two buffers. Each is one memory page, laid out as the doorbell registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    pub doorbells: u64,
    pub event_indices: u64,
    /// CAP.DSTRD.
    pub stride: u8,
    /// CC.MPS: what each buffer has.
    pub page_bytes: u32,
}

impl Shadow {
    /// Returns the addresses of this queue's doorbell and its EventIdx. None: the page ends before; such a queue has
    /// registers only.
    pub fn addresses_of(self, doorbell: Doorbell) -> Option<(u64, u64)> {
        let at = doorbell.index() << (2 + self.stride);
        (at + 4 <= u64::from(self.page_bytes)).then(|| (self.doorbells + at, self.event_indices + at))
    }
}

/// Returns whether a doorbell that went from `old` to `new` passed EventIdx, so that the register must be written: the
/// index is within what was added, in arithmetic of 16 bits (base, appendix B.5).
pub fn passes(event_index: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event_index).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_is_leaving_the_index_behind() {
        assert!(passes(0, 0, 1) && passes(3, 2, 5) && passes(4, 2, 5));
        assert!(!passes(5, 2, 5), "not yet");
        assert!(!passes(1, 2, 5), "long ago");
        assert!(passes(7, 7, 0), "around the end of a queue of 8");
    }

    #[test]
    fn queues_beyond_the_page_have_registers_only() {
        let shadow = Shadow { doorbells: 0x1000, event_indices: 0x2000, stride: 0, page_bytes: 4096 };
        assert_eq!(shadow.addresses_of(Doorbell::Submission(0)), Some((0x1000, 0x2000)));
        assert_eq!(shadow.addresses_of(Doorbell::Completion(511)), Some((0x1ffc, 0x2ffc)));
        assert_eq!(shadow.addresses_of(Doorbell::Submission(512)), None);
        let wide = Shadow { stride: 4, ..shadow };
        assert_eq!(wide.addresses_of(Doorbell::Completion(1)), Some((0x10c0, 0x20c0)));
    }
}
