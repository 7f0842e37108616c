//! Head and tail of a circular queue (base, section 3.3.1).

use serde::{Deserialize, Serialize};

/// Indices of a queue: entries from head to tail are occupied, all but one may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// At least 2.
    entries: u16,
    head: u16,
    tail: u16,
}

impl Ring {
    pub fn new(entries: u16) -> Ring {
        Ring { entries: entries.max(2), head: 0, tail: 0 }
    }

    /// None: no queue has such indices.
    pub fn at(entries: u16, head: u16, tail: u16) -> Option<Ring> {
        Some(Ring { entries, head, tail }).filter(|ring| ring.is_sound())
    }

    /// As it can have become: one that came from elsewhere need not be.
    pub fn is_sound(self) -> bool {
        self.entries >= 2 && self.head < self.entries && self.tail < self.entries
    }

    pub fn entries(self) -> u16 {
        self.entries
    }

    pub fn head(self) -> u16 {
        self.head
    }

    pub fn tail(self) -> u16 {
        self.tail
    }

    /// Entries from `from` up to `to`.
    fn between(self, from: u16, to: u16) -> u16 {
        if to >= from {
            to - from
        } else {
            self.entries - from + to
        }
    }

    pub fn occupied(self) -> u16 {
        self.between(self.head, self.tail)
    }

    pub fn room(self) -> u16 {
        self.entries - 1 - self.occupied()
    }

    pub fn is_empty(self) -> bool {
        self.head == self.tail
    }

    /// The index behind `at`.
    pub fn next(self, at: u16) -> u16 {
        if at + 1 == self.entries {
            0
        } else {
            at + 1
        }
    }

    /// The index before `at`.
    pub fn previous(self, at: u16) -> u16 {
        if at == 0 {
            self.entries - 1
        } else {
            at - 1
        }
    }

    /// One entry was taken. True: the head is at the queue's start again.
    pub fn take(&mut self) -> bool {
        debug_assert!(!self.is_empty());
        self.head = self.next(self.head);
        self.head == 0
    }

    /// One entry was added. True: the tail is at the queue's start again.
    pub fn add(&mut self) -> bool {
        debug_assert!(self.room() > 0);
        self.tail = self.next(self.tail);
        self.tail == 0
    }

    /// The producer says where its tail is. False, and nothing changes: no such entry, or there would be fewer entries
    /// than before, which says that it overtook the head.
    pub fn move_tail(&mut self, tail: u32) -> bool {
        let Some(tail) = self.index(tail) else { return false };
        let forward = self.between(self.head, tail) >= self.occupied();
        if forward {
            self.tail = tail;
        }
        forward
    }

    /// The consumer says where its head is. False, and nothing changes: no such entry, or it is beyond the tail.
    pub fn move_head(&mut self, head: u32) -> bool {
        let Some(head) = self.index(head) else { return false };
        let there = self.between(self.head, head) <= self.occupied();
        if there {
            self.head = head;
        }
        there
    }

    fn index(self, value: u32) -> Option<u16> {
        u16::try_from(value).ok().filter(|index| *index < self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn one_entry_always_stays_free() {
        let mut ring = Ring::new(2);
        assert_eq!((ring.room(), ring.occupied()), (1, 0));
        assert!(!ring.add());
        assert_eq!((ring.room(), ring.occupied()), (0, 1));
        assert!(!ring.take() && ring.is_empty());
        assert!(ring.add() && ring.take());
    }

    #[test]
    fn doorbells_that_cannot_be_change_nothing() {
        let mut ring = Ring::new(8);
        assert!(ring.move_tail(5) && !ring.move_tail(8) && !ring.move_tail(65_536 + 6));
        assert!(!ring.move_tail(4), "fewer than before");
        assert!(ring.move_head(3) && !ring.move_head(6) && !ring.move_head(2) && ring.move_head(3));
        assert!(ring.move_tail(2), "around the end, up to the head");
        assert_eq!((ring.room(), ring.occupied()), (0, 7));
        assert!(!ring.move_tail(3), "onto the head: none would be left");
    }

    proptest! {
        /// Against a queue of numbers.
        #[test]
        fn a_ring_counts_as_a_queue_does(entries in 2u16..20, steps in prop::collection::vec(0u16..40, 1..200)) {
            let mut ring = Ring::new(entries);
            let mut queue = VecDeque::new();
            let mut next = 0u32;
            for step in steps {
                let index = |n: u32| n % u32::from(entries);
                match step % 2 {
                    0 if queue.len() < usize::from(entries) - 1 => {
                        queue.push_back(next);
                        next += 1;
                        ring.add();
                    }
                    1 if !queue.is_empty() => {
                        prop_assert_eq!(u32::from(ring.head()), index(queue.pop_front().unwrap()));
                        ring.take();
                    }
                    _ => {}
                }
                prop_assert_eq!(usize::from(ring.occupied()), queue.len());
                prop_assert_eq!(ring.room(), entries - 1 - ring.occupied());
                prop_assert_eq!(u32::from(ring.tail()), index(next));
                let (mut moved, asked) = (ring, u32::from(step / 2));
                let room = u32::from(ring.room());
                let ahead = (asked + u32::from(entries) - index(next)) % u32::from(entries);
                prop_assert_eq!(moved.move_tail(asked), asked < u32::from(entries) && ahead <= room);
            }
        }
    }
}
