//! A queue of times in which the soonest is always replaced, never just removed:
//! what slots in flight and busy servers both need.

/// A binary heap of (time, tag), soonest first. Among equal times any may come first, always the same one.
#[derive(Clone, Debug)]
pub struct Soonest {
    /// Ends in a sentinel if there is an even number of entries, so that a node with a left child has a right one.
    heap: Vec<(u64, u32)>,
    len: usize,
}

const SENTINEL: (u64, u32) = (u64::MAX, u32::MAX);

impl Soonest {
    /// Builds the heap of at least one entry.
    pub fn new(entries: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let mut heap: Vec<(u64, u32)> = entries.into_iter().collect();
        assert!(!heap.is_empty(), "nothing comes soonest of nothing");
        // An ascending list is a heap.
        heap.sort_unstable();
        let len = heap.len();
        if len % 2 == 0 {
            heap.push(SENTINEL);
        }
        Soonest { heap, len }
    }

    #[inline]
    pub fn first(&self) -> (u64, u32) {
        self.heap[0]
    }

    /// Puts `entry` in the place of the soonest: one walk down, half the work of a pop and a push.
    #[inline]
    pub fn replace_first(&mut self, entry: (u64, u32)) {
        let heap = self.heap.as_mut_slice();
        let mut hole = 0;
        let mut left = 1;
        while left + 1 < heap.len() {
            // Without a branch: which child is sooner can't be foretold.
            let child = left + usize::from(heap[left + 1].0 < heap[left].0);
            if heap[child].0 >= entry.0 {
                break;
            }
            heap[hole] = heap[child];
            hole = child;
            left = 2 * hole + 1;
        }
        heap[hole] = entry;
        debug_assert!(hole < self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Xoshiro256;

    #[test]
    fn entries_come_in_order_whatever_replaces_them() {
        let mut random = Xoshiro256::new(3);
        for count in 1..40 {
            let mut times: Vec<u64> = (0..count).map(|_| random.next_u64() >> 60).collect();
            let mut soonest = Soonest::new(times.iter().map(|t| (*t, 0)));
            for _ in 0..200 {
                times.sort_unstable();
                assert_eq!(soonest.first().0, times[0]);
                times[0] += random.next_u64() >> 60;
                soonest.replace_first((times[0], 0));
            }
        }
    }

    #[test]
    fn the_latest_time_of_all_may_be_an_entry() {
        let mut soonest = Soonest::new([(1, 1), (2, 2)]);
        soonest.replace_first((u64::MAX, 3));
        assert_eq!(soonest.first(), (2, 2));
        soonest.replace_first((u64::MAX, 4));
        assert_eq!(soonest.first().0, u64::MAX);
        assert!([3, 4].contains(&soonest.first().1));
    }
}
