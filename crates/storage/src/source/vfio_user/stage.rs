//! Memory that the device has, for payload whose own memory it can't have: that
//! of others, which no descriptor names. It costs a copy, which is counted.

use super::{Drive, Mapping};
use forebay_io::{Arena, Mem};
use forebay_model::job::Pages;
use std::sync::Arc;

/// Commands that may be staged at once.
const SLOTS: usize = 8;

pub(super) struct Stage {
    // Before the memory that it maps.
    mapping: Result<Mapping, String>,
    arena: Option<Arena>,
    free: Vec<u32>,
}

impl Stage {
    /// Slots for commands of up to `bytes`; the device has them a moment later.
    pub(crate) fn new(drive: &Arc<Drive>, bytes: u32) -> Stage {
        match Arena::shared(SLOTS, bytes as usize, Pages::Small) {
            Ok(arena) => {
                let mapping = drive.lend_soon(&arena).ok_or_else(|| "it has no descriptor".to_string());
                Stage { mapping, arena: Some(arena), free: (0..SLOTS as u32).collect() }
            }
            Err(e) => Stage { mapping: Err(e.to_string()), arena: None, free: Vec::new() },
        }
    }

    /// Why it can't be used at all.
    pub(crate) fn refusal(&self) -> Option<String> {
        match &self.mapping {
            Ok(mapping) => mapping.refusal(),
            Err(why) => Some(why.clone()),
        }
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    fn slot(&self, slot: u32) -> Option<Mem> {
        Some(self.arena.as_ref()?.slot(slot as usize))
    }

    /// The slot's address.
    pub(crate) fn place(&self, slot: u32) -> u64 {
        self.slot(slot).map_or(0, |mem| mem.host_ptr() as u64)
    }

    pub(crate) fn copy_in(&self, slot: u32, from: Mem, bytes: usize) {
        if let Some(slot) = self.slot(slot) {
            super::shm::gather(slot, from, bytes);
        }
    }

    pub(crate) fn copy_out(&self, slot: u32, to: Mem, bytes: usize) {
        if let Some(slot) = self.slot(slot) {
            super::shm::scatter(slot, to, bytes);
        }
    }
}
