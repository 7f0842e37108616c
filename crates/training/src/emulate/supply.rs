//! Holds back what was read: to a rate that was asked for, and to what a modelled
//! drive would deliver over content that is read meanwhile.

use super::Shared;
use forebay_io::Rate;
use forebay_model::units::BYTES_PER_GIB;
use forebay_storage::SharedDrive;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A worker's reads that have to wait, by when they may be seen.
pub(crate) struct Delays {
    supply: Option<Arc<Rate>>,
    model: Option<SharedDrive>,
    /// When the run began, of the model's time.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Delays {
    pub(crate) fn new(shared: &Shared) -> Delays {
        Delays { supply: shared.supply.clone(), model: shared.model.clone(), waiting: BinaryHeap::new() }
    }

    pub(crate) fn any(&self) -> bool {
        self.supply.is_some() || self.model.is_some()
    }

    /// When the bytes of a read that is issued now may be seen.
    pub(crate) fn visible_at(&mut self, shared: &Shared, now: u64, offset: u64, bytes: u32) -> u64 {
        let supplied = self.supply.as_ref().map_or(now, |rate| rate.hand_on(bytes.into(), now));
        let modelled =
            self.model.as_ref().map_or(now, |drive| shared.since(drive.ready_at(offset, bytes.into())));
        supplied.max(modelled)
    }

    /// A read is complete, and must wait.
    pub(crate) fn add(&mut self, due: u64, tag: u32) {
        self.waiting.push(Reverse((due, tag)));
    }

    pub(crate) fn next(&mut self, now: u64) -> Option<u32> {
        let Reverse((due, tag)) = *self.waiting.peek()?;
        (due <= now).then(|| {
            self.waiting.pop();
            tag
        })
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((due, _))| *due)
    }
}

/// The rate that was asked for.
pub(crate) fn rate_of(spec: &forebay_model::training::EmulateSpec) -> Option<Arc<Rate>> {
    spec.supply_gib_s.map(|gib_s| Arc::new(Rate::new(Some((gib_s * BYTES_PER_GIB).max(1.0) as u64))))
}
