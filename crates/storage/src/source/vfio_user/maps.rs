//! Memory of ours that the device may read and write: slots of workers, each a
//! memfd's mapping, at the address that it has here. What is lent stays so over
//! reconnections, until its guard is dropped.

use forebay_io::Arena;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A range of addresses; `end` is the first behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub begin: u64,
    pub end: u64,
}

impl Span {
    pub(crate) fn bytes(self) -> u64 {
        self.end - self.begin
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub id: u64,
    pub span: Span,
    pub fd: Arc<OwnedFd>,
    /// The association whose device has it.
    pub mapped_on: Option<u64>,
    /// Its guard is gone.
    pub ended: bool,
    pub refused: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Mutex<(u64, Vec<Entry>)>,
    /// Goes up with each change of what workers may use.
    version: AtomicU64,
}

impl Table {
    pub(crate) fn lock(&self) -> MutexGuard<'_, (u64, Vec<Entry>)> {
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds the arena's memory; None where it has no descriptor.
    pub(crate) fn add(&self, arena: &Arena) -> Option<u64> {
        let fd = arena.fd()?.clone();
        let (at, bytes) = arena.whole();
        let begin = at.as_ptr() as u64;
        let mut entries = self.lock();
        entries.0 += 1;
        let id = entries.0;
        let span = Span { begin, end: begin + bytes as u64 };
        entries.1.push(Entry { id, span, fd, mapped_on: None, ended: false, refused: None });
        Some(id)
    }

    /// Its guard is gone; the device is told by whoever talks to it.
    pub(crate) fn end(&self, id: u64) {
        self.lock().1.iter_mut().filter(|e| e.id == id).for_each(|e| e.ended = true);
        self.changed();
    }

    pub(crate) fn remove(&self, id: u64) {
        self.lock().1.retain(|e| e.id != id);
        self.changed();
    }

    pub(crate) fn get(&self, id: u64) -> Option<Entry> {
        self.lock().1.iter().find(|e| e.id == id).cloned()
    }

    pub(crate) fn mapped(&self, id: u64, outcome: Result<u64, String>) {
        for entry in self.lock().1.iter_mut().filter(|e| e.id == id) {
            match &outcome {
                Ok(number) => entry.mapped_on = Some(*number),
                Err(why) => entry.refused = Some(why.clone()),
            }
        }
        self.changed();
    }

    /// The next thing to tell the device of association `number`.
    pub(crate) fn next(&self, number: u64) -> Option<Entry> {
        let open = |e: &&Entry| match e.ended {
            true => true,
            false => e.mapped_on != Some(number) && e.refused.is_none(),
        };
        self.lock().1.iter().find(open).cloned()
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the spans that the device of association `number` may touch.
    pub(crate) fn spans(&self, number: u64) -> Vec<Span> {
        let of = |e: &Entry| (!e.ended && e.mapped_on == Some(number)).then_some(e.span);
        self.lock().1.iter().filter_map(of).collect()
    }
}

/// Returns whether all of it lies in one of the spans.
pub(crate) fn covers(spans: &[Span], at: u64, bytes: u64) -> bool {
    spans.iter().any(|s| s.begin <= at && at.checked_add(bytes).is_some_and(|end| end <= s.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::job::Pages;

    #[test]
    fn what_is_lent_is_mapped_on_each_association_and_ends_with_its_guard() {
        let table = Table::default();
        assert_eq!(table.add(&Arena::new(1, 4096, Pages::Small).unwrap()), None);
        let arena = Arena::shared(2, 4096, Pages::Small).unwrap();
        let id = table.add(&arena).unwrap();
        assert!(table.spans(1).is_empty());
        assert_eq!(table.next(1).unwrap().id, id);
        table.mapped(id, Ok(1));
        assert!(table.next(1).is_none());
        let at = arena.slot(1).host_ptr() as u64;
        assert!(covers(&table.spans(1), at, 4096) && !covers(&table.spans(1), at, 1 << 30));
        assert!(!covers(&table.spans(1), 0, 1) && !covers(&table.spans(1), u64::MAX, 2));
        assert!(table.spans(2).is_empty(), "a new device has nothing yet");
        assert_eq!(table.next(2).unwrap().id, id);
        table.end(id);
        assert!(table.spans(1).is_empty() && table.next(1).unwrap().ended);
        table.remove(id);
        assert!(table.next(1).is_none());
    }
}
