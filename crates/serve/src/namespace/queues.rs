//! A thread's queues of namespaces, by number.

use super::namespace_queue::{Finished, NamespaceQueue, Owner};
use super::volume::Volume;
use forebay_io::Reactor;
use forebay_model::Error;
use std::sync::Arc;
use std::time::Instant;

/// A queue keeps its number until it ends, which it does only when it is retired and no command names it; then another
/// may have the number.
pub(crate) struct QueueTable<O = Owner> {
    thread: usize,
    queues: Vec<Option<NamespaceQueue<O>>>,
}

impl<O: Copy> QueueTable<O> {
    pub(crate) fn new(thread: usize) -> QueueTable<O> {
        QueueTable { thread, queues: Vec::new() }
    }

    /// Opens a queue of its source. Returns its number.
    pub(crate) fn open(
        &mut self,
        volume: Arc<Volume>,
        io_bytes_max: u32,
        reactor: &mut Reactor,
    ) -> Result<u32, Error> {
        let queue = NamespaceQueue::open(volume, io_bytes_max, self.thread as u32, reactor)?;
        let number = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if number == self.queues.len() {
            self.queues.push(None);
        }
        self.queues[number] = Some(queue);
        Ok(number as u32)
    }

    /// The number of the volume's queue, if it has one here.
    pub(crate) fn number_of(&self, volume: &Arc<Volume>) -> Option<u32> {
        let is = |queue: &NamespaceQueue<O>| Arc::ptr_eq(&queue.volume, volume);
        self.queues.iter().position(|queue| queue.as_ref().is_some_and(is)).map(|number| number as u32)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&NamespaceQueue<O>> {
        self.queues.get(number as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut NamespaceQueue<O>> {
        self.queues.get_mut(number as usize)?.as_mut()
    }

    /// By number, as the executor counts in them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Option<NamespaceQueue<O>>] {
        &mut self.queues
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamespaceQueue<O>> {
        self.queues.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NamespaceQueue<O>> {
        self.queues.iter_mut().flatten()
    }

    /// Starts what was pushed, and appends what is done.
    pub(crate) fn turn(&mut self, reactor: &mut Reactor, finished: &mut Vec<Finished<O>>) {
        self.iter_mut().for_each(|queue| queue.turn(reactor, finished));
    }

    /// Has `is_used` say of each queue whether it stays: it is asked of its number.
    pub(crate) fn retire(&mut self, is_used: impl Fn(u32) -> bool) {
        for (number, queue) in (0..).zip(&mut self.queues) {
            queue.iter_mut().for_each(|queue| queue.retired = !is_used(number));
        }
    }

    /// Some queue is retired, and hasn't ended.
    pub(crate) fn has_retired(&self) -> bool {
        self.iter().any(|queue| queue.retired)
    }

    /// Ends queues that are retired and have nothing under way. `is_used`: commands are between two steps on the queue of
    /// that number. True: some ended.
    pub(crate) fn end_retired(&mut self, is_used: impl Fn(u32) -> bool) -> bool {
        let mut some = false;
        for (number, place) in (0..).zip(&mut self.queues) {
            let over = |queue: &mut NamespaceQueue<O>| queue.retired && queue.is_idle() && !is_used(number);
            if let Some(queue) = place.take_if(over) {
                queue.end(self.thread);
                some = true;
            }
        }
        some
    }

    /// Asks the sources to give up on all that `whose` names. Returns those that they hadn't got yet: they are over.
    pub(crate) fn abandon(&mut self, whose: impl Fn(&O) -> bool, reactor: &mut Reactor) -> Vec<O> {
        self.iter_mut().flat_map(|queue| queue.abandon(&whose, reactor)).collect()
    }

    /// Something was pushed that isn't started.
    pub(crate) fn is_pushed(&self) -> bool {
        self.iter().any(NamespaceQueue::is_pushed)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.iter().all(NamespaceQueue::is_idle)
    }

    /// When one of them has something due though nothing comes.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.iter().filter_map(NamespaceQueue::next_due).min()
    }

    /// Shows other threads what was counted here, up to `now`.
    pub(crate) fn publish(&mut self, now: Instant) {
        let thread = self.thread;
        self.iter_mut().for_each(|queue| queue.publish(thread, now));
    }

    /// The thread goes: what was counted here stays with the volumes.
    pub(crate) fn end(&self) {
        self.iter().for_each(|queue| queue.end(self.thread));
    }
}
