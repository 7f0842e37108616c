//! A queue's doorbell from the function's side: a register and, once Doorbell Buffer Config was carried out, a value in the
//! host's memory with EventIdx beside it.

use crate::transport::pcie::memory::{HostMemory, Unmapped};

/// A new value of a shadow doorbell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rung {
    pub value: u32,
    /// The first since it was announced: until now the register counted.
    pub first: bool,
}

/// The doorbell of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bell {
    /// Addresses of the shadow doorbell and of EventIdx. None: the register is all there is.
    pub shadow: Option<(u64, u64)>,
    /// Last value of the shadow doorbell: a wrong value is told of once.
    pub seen: u32,
    /// It still is as it was when it was announced: the register counts.
    pub fresh: bool,
}

impl Bell {
    /// One whose host has, or hasn't, written its shadow doorbell, and nobody knows what.
    pub fn recovered(shadow: Option<(u64, u64)>, heard: bool) -> Bell {
        Bell { shadow, seen: if heard { u32::MAX } else { 0 }, fresh: !heard }
    }

    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// What is written into the register moves the queue.
    pub fn register_counts(&self) -> bool {
        self.fresh || self.shadow.is_none()
    }

    /// The shadow doorbell moves the queue.
    pub fn is_heard(&self) -> bool {
        !self.register_counts()
    }

    /// Makes a new queue's shadow doorbell start at 0, whatever a queue of that number left behind.
    pub fn begin<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Option<(u64, u64)>,
        event_index: u16,
    ) -> Result<(), Unmapped> {
        self.shadow = shadow;
        if let Some((doorbell, at)) = shadow {
            memory.store(doorbell, 0)?;
            memory.store(at, event_index.into())?;
        }
        Ok(())
    }

    /// Gives a queue in use, which is at `index`, a shadow doorbell. Its host may have counted in it before, or leave it 0
    /// until its next command.
    pub fn announce<M: HostMemory + ?Sized>(
        &mut self,
        memory: &M,
        shadow: Option<(u64, u64)>,
        event_index: u16,
        index: u16,
    ) -> Result<(), Unmapped> {
        self.shadow = shadow;
        if let Some((doorbell, at)) = shadow {
            memory.store(at, event_index.into())?;
            self.fresh = memory.load(doorbell)? == 0;
            self.seen = if self.fresh { 0 } else { index.into() };
        }
        Ok(())
    }

    /// Looks at the shadow doorbell. None: nothing is new.
    #[inline]
    pub fn poll<M: HostMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<Rung>, Unmapped> {
        let Some((doorbell, _)) = self.shadow else { return Ok(None) };
        let value = memory.load(doorbell)?;
        if value == self.seen {
            return Ok(None);
        }
        self.seen = value;
        Ok(Some(Rung { value, first: std::mem::take(&mut self.fresh) }))
    }

    /// Has the host write the register when it passes this index. False: it always does, without a shadow doorbell.
    #[inline]
    pub fn want_beyond<M: HostMemory + ?Sized>(&self, memory: &M, index: u16) -> Result<bool, Unmapped> {
        let Some((_, event_index)) = self.shadow else { return Ok(false) };
        memory.store(event_index, index.into())?;
        Ok(true)
    }
}
