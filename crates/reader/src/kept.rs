//! Memory of the host that isn't used any more, kept for the next loader, thread or batch of this process: the system clears what
//! it hands out, which takes longer than reading into it from a fast disk.

use forebay_io::{Arena, PerProcess};
use forebay_model::job::Pages;
use forebay_model::Error;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};

/// Bytes that are kept: the batches and the windows of a loader with usual settings, and half of what one may use for batches
/// without being asked. What is longer is as much as a whole data set: kept for the next, it would be missed elsewhere.
const BYTES_MAX: usize = 512 << 20;
const HUGE_PAGE: usize = 2 << 20;

#[derive(Default)]
struct Kept {
    /// The first was given back first.
    arenas: VecDeque<Arena>,
}

/// A child shares no lock with its parent's threads, and the pages that it has of them are copies.
static KEPT: PerProcess<Mutex<Kept>> = PerProcess::new();

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().expect("no holder panics")
}

/// Bytes that it takes of the system.
fn bytes(arena: &Arena) -> usize {
    arena.whole().1
}

impl Kept {
    /// So many slots of at least so many bytes, if they haven't many more.
    fn take(&mut self, count: usize, wanted: usize) -> Option<Arena> {
        let fits = |arena: &Arena| {
            let each = arena.slot_bytes();
            arena.count() == count && each >= wanted && each / 2 <= wanted
        };
        // Of those as long the last: caches may have some of it.
        let found = self.arenas.iter().enumerate().rev().filter(|(_, arena)| fits(arena));
        let at = found.min_by_key(|(_, arena)| bytes(arena)).map(|(at, _)| at)?;
        self.arenas.remove(at)
    }

    /// Keeps memory; what goes in its place.
    fn put(&mut self, arena: Arena, most: usize) -> Vec<Arena> {
        if bytes(&arena) > most {
            return vec![arena];
        }
        self.arenas.push_back(arena);
        let mut gone = Vec::new();
        while self.arenas.iter().map(bytes).sum::<usize>() > most {
            gone.extend(self.arenas.pop_front());
        }
        gone
    }
}

/// Memory of the host that is kept once it isn't used any more. What lay there before may still lie there.
pub struct KeptMemory(Option<Arena>);

impl KeptMemory {
    /// One slot of so many bytes or more.
    ///
    /// # Errors
    /// `Machine`: there is no memory.
    pub fn take(bytes: usize, pages: Pages) -> Result<KeptMemory, Error> {
        KeptMemory::slots(1, whole_pages(bytes), pages)
    }

    /// As `take`, if some is kept: the system is asked for none.
    pub fn again(bytes: usize) -> Option<KeptMemory> {
        kept().take(1, whole_pages(bytes)).map(|arena| KeptMemory(Some(arena)))
    }

    /// As `take`, of several slots.
    pub(super) fn slots(count: usize, bytes_each: usize, pages: Pages) -> Result<KeptMemory, Error> {
        let there = kept().take(count, bytes_each);
        there.map_or_else(|| Arena::new(count, bytes_each, pages), Ok).map(|arena| KeptMemory(Some(arena)))
    }

    /// Frees what is kept.
    pub(super) fn release() {
        let arenas = std::mem::take(&mut kept().arenas);
        drop(arenas);
    }
}

/// All bytes of the huge pages that one slot of so many takes: whoever is next may want a few more.
fn whole_pages(bytes: usize) -> usize {
    // The system refuses what is longer.
    bytes.clamp(1, isize::MAX as usize).next_multiple_of(HUGE_PAGE)
}

impl Deref for KeptMemory {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        // Huge pages of the system's pool are few, and another program may wait for them.
        let Some(arena) = self.0.take().filter(|arena| !arena.is_of_the_huge_page_pool()) else { return };
        let gone = kept().put(arena, BYTES_MAX);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: usize = 4 << 20;

    fn arena(bytes: usize) -> Arena {
        Arena::new(1, bytes, Pages::Small).unwrap()
    }

    // promise: FEED-5
    #[test]
    fn memory_is_kept_up_to_a_limit_and_lent_where_little_of_it_would_lie_idle() {
        let mut kept = Kept::default();
        let put = |kept: &mut Kept, bytes| -> Vec<usize> {
            kept.put(arena(bytes), 3 * EACH).iter().map(|arena| arena.slot_bytes()).collect()
        };
        assert!(put(&mut kept, EACH).is_empty());
        assert!(put(&mut kept, EACH + 4096).is_empty());
        // That takes two huge pages more: the oldest goes.
        assert_eq!(put(&mut kept, EACH), [EACH]);
        assert!(kept.take(1, EACH / 4).is_none(), "most of it would lie idle");
        assert!(kept.take(1, 2 * EACH).is_none() && kept.take(2, EACH / 2).is_none(), "none is that long");
        assert_eq!(kept.take(1, EACH - 1).map(|arena| arena.slot_bytes()), Some(EACH), "the least that fits");
        assert_eq!(kept.take(1, EACH - 1).map(|arena| arena.slot_bytes()), Some(EACH + 4096));
        assert!(put(&mut kept, EACH).is_empty());
        assert_eq!(put(&mut kept, 4 * EACH), [4 * EACH], "more than is ever kept, for which none goes");
        let first = kept.arenas[0].whole();
        assert!(put(&mut kept, EACH).is_empty());
        let last = kept.arenas[1].whole();
        assert_eq!([1, 1].map(|count| kept.take(count, EACH).unwrap().whole()), [last, first]);
    }

    // promise: FEED-5
    #[test]
    fn one_slot_is_all_of_its_huge_pages_and_found_again_by_whatever_takes_as_many() {
        for (bytes, pages) in [(0, 1), (1 << 20, 1), (HUGE_PAGE, 1), (HUGE_PAGE + 1, 2)] {
            assert_eq!(whole_pages(bytes), pages * HUGE_PAGE);
        }
        let none = KeptMemory::take(usize::MAX, Pages::Thp).err().map(|error| error.kind);
        assert_eq!(none, Some(forebay_model::Kind::Machine));
    }
}
