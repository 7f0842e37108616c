//! A worker's free slots.

use std::collections::VecDeque;

/// Tags of free slots.
///
/// For host memory, the slot freed last is used first, because its bytes are still in the CPU cache. For a GPU, slots
/// are used in turn, so that I/Os that start together are adjacent at both ends and are transferred by one copy.
pub(crate) struct FreeSlots {
    tags: VecDeque<u32>,
    in_turn: bool,
}

impl FreeSlots {
    /// `count` slots, all free.
    pub(crate) fn new(count: u32, in_turn: bool) -> FreeSlots {
        let tags = if in_turn { (0..count).collect() } else { (0..count).rev().collect() };
        FreeSlots { tags, in_turn }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.in_turn {
            self.tags.pop_front()
        } else {
            self.tags.pop_back()
        }
    }

    #[inline]
    pub(crate) fn give(&mut self, tag: u32) {
        self.tags.push_back(tag);
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.tags.len()
    }
}

#[cfg(test)]
mod tests {
    use super::FreeSlots;

    #[test]
    fn slots_into_a_gpu_take_turns_and_others_are_used_while_warm() {
        let rounds = |in_turn| {
            let mut free = FreeSlots::new(4, in_turn);
            let mut taken = Vec::new();
            for _ in 0..2 {
                let round: Vec<u32> = (0..2).filter_map(|_| free.take()).collect();
                taken.push(round.clone());
                round.into_iter().for_each(|tag| free.give(tag));
            }
            taken
        };
        assert_eq!(rounds(true), [[0, 1], [2, 3]]);
        assert_eq!(rounds(false), [[0, 1], [1, 0]]);
    }
}
