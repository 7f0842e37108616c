//! Commands that were fetched and have no completion yet, each in a slot.

use crate::command::Sqe;

/// A command that is to be carried out. `slot` is free again once it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Below `CompletionQueue::slots`.
    pub slot: u16,
    pub sqid: u16,
    pub sqe: Sqe,
}

/// Place of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub sqid: u16,
    /// In flight; a free slot's `sqe` means nothing.
    taken: bool,
    /// Its identifier is entered in its submission queue.
    pub entered: bool,
    pub sqe: Sqe,
}

/// Commands in flight, of all submission queues of a completion queue.
#[derive(Debug)]
pub(super) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl InFlight {
    pub fn new(slots: u16) -> InFlight {
        let free = Slot { sqid: 0, taken: false, entered: false, sqe: Sqe::default() };
        InFlight { slots: vec![free; slots.into()], free: (0..slots).rev().collect() }
    }

    /// Commands that may be in flight.
    #[inline]
    pub fn slots(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Commands that are.
    #[inline]
    pub fn count(&self) -> u16 {
        self.slots() - self.free.len() as u16
    }

    /// Puts a command into a free slot, and says into which. None: there is none.
    #[inline]
    pub fn add(&mut self, sqid: u16, entered: bool, sqe: Sqe) -> Option<u16> {
        let slot = self.free.pop()?;
        self.slots[usize::from(slot)] = Slot { sqid, taken: true, entered, sqe };
        Some(slot)
    }

    /// Puts a command into the slot that it was in before. False: that one is not free.
    pub fn put_back(&mut self, slot: u16, sqid: u16, entered: bool, sqe: Sqe) -> bool {
        let Some(at) = self.free.iter().position(|other| *other == slot) else { return false };
        self.free.remove(at);
        self.slots[usize::from(slot)] = Slot { sqid, taken: true, entered, sqe };
        true
    }

    /// Frees a slot, and returns what was in it. None: it is free already.
    #[inline]
    pub fn remove(&mut self, slot: u16) -> Option<Slot> {
        let place = self.slots.get_mut(usize::from(slot)).filter(|place| place.taken)?;
        place.taken = false;
        self.free.push(slot);
        Some(*place)
    }

    /// All of them, by their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Slot)> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.taken)
    }

    /// The first slot whose command is such a one.
    pub fn find(&self, is: impl Fn(&Slot) -> bool) -> Option<u16> {
        self.iter().find(|(_, slot)| is(slot)).map(|(at, _)| at)
    }

    /// A slot's command.
    pub fn command(&self, slot: u16) -> Option<Fetched> {
        let place = self.slots.get(usize::from(slot)).filter(|place| place.taken)?;
        Some(Fetched { slot, sqid: place.sqid, sqe: place.sqe })
    }
}
