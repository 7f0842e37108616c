//! Copies from a worker's slots to the destination: one copier for each GPU, none where bytes end in the slots.

use super::super::Shared;
use forebay_io::{Copier, Fault, Mem};
use forebay_model::Error;
use std::time::Instant;

pub(super) struct Copies {
    copiers: Vec<Box<dyn Copier>>,
    /// Kept, so that it is allocated once.
    ended: Vec<(u32, Option<Fault>)>,
}

impl Copies {
    pub(super) fn open(shared: &Shared) -> Result<Copies, Error> {
        let copiers = shared.run_state.destination.as_ref().map_or(Ok(Vec::new()), |to| to.copiers())?;
        Ok(Copies { copiers, ended: Vec::new() })
    }

    /// What is parsed is copied on.
    pub(super) fn are_made(&self) -> bool {
        !self.copiers.is_empty()
    }

    /// Begins a copy to GPU number `turn`.
    pub(super) fn start(&mut self, turn: usize, tag: u32, from: Mem, to: Mem, bytes: usize) {
        self.copiers[turn].start(tag, from, to, bytes);
    }

    pub(super) fn submit(&mut self) {
        self.copiers.iter_mut().for_each(|copier| copier.submit());
    }

    /// Copies that have ended, by tag; `spare` gives the list back.
    pub(super) fn reap(&mut self) -> Vec<(u32, Option<Fault>)> {
        let mut ended = std::mem::take(&mut self.ended);
        self.copiers.iter_mut().for_each(|copier| copier.reap(&mut ended));
        ended
    }

    pub(super) fn spare(&mut self, ended: Vec<(u32, Option<Fault>)>) {
        self.ended = ended;
    }

    /// Waits for all that were begun, and returns them.
    pub(super) fn finish(&mut self) -> Vec<(u32, Option<Fault>)> {
        self.copiers.iter_mut().for_each(|copier| copier.finish());
        self.reap()
    }

    /// When there may next be something to reap.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.copiers.iter().filter_map(|copier| copier.next_due()).min()
    }
}
