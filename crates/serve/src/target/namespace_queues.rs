//! A thread's queues of the namespaces that its hosts use: one for each, opened when the first command wants it.

use super::log::Level;
use super::message::Report;
use super::shared::TargetShared;
use super::stats::NamespaceStats;
use super::subsystem::Volumes;
use crate::namespace::namespace_queue::{Finished, NamespaceQueue, Owner};
use crate::namespace::queues::QueueTable;
use crate::namespace::steps::FLUSH;
use crate::namespace::volume;
use forebay_io::Reactor;
use forebay_nvme::controller::Health;
use forebay_nvme::status::{Code, Status};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

/// Commands name a queue by its number: it stays theirs until none of them is left, also where the namespace has gone.
pub(super) struct NamespaceQueues {
    shared: Arc<TargetShared>,
    table: QueueTable,
    /// The number of each namespace's queue, by subsystem and nsid.
    numbers: Vec<BTreeMap<u32, u32>>,
    /// The namespaces of each subsystem, as they were when `generation` was current.
    views: Vec<Arc<Volumes>>,
    generation: u64,
}

impl NamespaceQueues {
    pub(super) fn new(shared: Arc<TargetShared>, thread: usize) -> NamespaceQueues {
        NamespaceQueues {
            table: QueueTable::new(thread),
            numbers: vec![BTreeMap::new(); shared.subsystems.len()],
            // Before the views: a change between the two is followed at once.
            generation: shared.generation.load(Ordering::Acquire),
            views: shared.subsystems.iter().map(|s| s.volumes()).collect(),
            shared,
        }
    }

    /// The number of a namespace's queue, which is opened if it isn't. None: there is no such namespace.
    #[inline]
    pub(super) fn open(
        &mut self,
        subsystem: usize,
        nsid: u32,
        reactor: &mut Reactor,
    ) -> Result<Option<u32>, Status> {
        match self.numbers[subsystem].get(&nsid) {
            Some(number) => Ok(Some(*number)),
            None => self.open_new(subsystem, nsid, reactor),
        }
    }

    fn open_new(
        &mut self,
        subsystem: usize,
        nsid: u32,
        reactor: &mut Reactor,
    ) -> Result<Option<u32>, Status> {
        let Some(volume) = self.views[subsystem].get(&nsid).cloned() else { return Ok(None) };
        let longest = self.shared.config.max_transfer.0 as u32;
        let source = volume.source.clone();
        let number = self.table.open(volume, longest, reactor).map_err(|e| {
            let fields = [("source", source.into()), ("why", e.to_string().into())];
            self.shared.log.say(Level::Error, "source not opened", &fields);
            Status::again(Code::NAMESPACE_NOT_READY)
        })?;
        self.numbers[subsystem].insert(nsid, number);
        Ok(Some(number))
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&NamespaceQueue> {
        self.table.get(number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut NamespaceQueue> {
        self.table.get_mut(number)
    }

    /// All, by number, as the executor counts in them.
    pub(super) fn as_mut_slice(&mut self) -> &mut [Option<NamespaceQueue>] {
        self.table.as_mut_slice()
    }

    /// The first namespace after `nsid` that holds what isn't durable.
    pub(super) fn next_cached(&self, subsystem: usize, nsid: u32) -> Option<u32> {
        let after = self.views[subsystem].range(nsid + 1..);
        after.into_iter().find(|(_, volume)| volume.write_cache).map(|(nsid, _)| *nsid)
    }

    /// Begins to make durable what hosts wrote to a subsystem. Returns how many steps of `owner` that takes.
    pub(super) fn flush_subsystem(&mut self, subsystem: usize, owner: Owner, reactor: &mut Reactor) -> u32 {
        let (mut last, mut begun) = (0, 0);
        while let Some(nsid) = self.next_cached(subsystem, last) {
            if let Ok(Some(number)) = self.open(subsystem, nsid, reactor) {
                let queue = self.get_mut(number).expect("it was just found");
                queue.start(owner, FLUSH, reactor);
                begun += 1;
            }
            last = nsid;
        }
        begun
    }

    /// Begins to make durable what hosts wrote to any queue that has nothing under way.
    pub(super) fn flush_idle(&mut self, owner: Owner, reactor: &mut Reactor) {
        for queue in self.table.iter_mut().filter(|queue| queue.volume.write_cache && queue.is_idle()) {
            queue.start(owner, FLUSH, reactor);
        }
    }

    /// Starts what was pushed, and appends what is done. A queue whose namespace is gone ends once nothing is under way
    /// on it; `is_used`: commands are between two steps on the queue of that number.
    pub(super) fn turn(
        &mut self,
        reactor: &mut Reactor,
        finished: &mut Vec<Finished>,
        is_used: impl Fn(u32) -> bool,
    ) {
        self.table.turn(reactor, finished);
        self.table.end_retired(is_used);
    }

    /// Asks the sources to give up on all that `whose` names. Returns those that they hadn't got yet: they are over.
    pub(super) fn abandon(&mut self, whose: impl Fn(&Owner) -> bool, reactor: &mut Reactor) -> Vec<Owner> {
        self.table.abandon(whose, reactor)
    }

    /// Namespaces may have come or gone: queues of those that are gone finish what they have.
    pub(super) fn follow_changes(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        for (at, subsystem) in self.shared.subsystems.iter().enumerate() {
            let view = subsystem.volumes();
            let table = &mut self.table;
            self.numbers[at].retain(|nsid, number| {
                let Some(queue) = table.get_mut(*number) else { return false };
                let same = view.get(nsid).is_some_and(|volume| Arc::ptr_eq(volume, &queue.volume));
                queue.retired = !same;
                same
            });
            self.views[at] = view;
        }
    }

    /// Something was pushed that isn't started.
    pub(super) fn is_pushed(&self) -> bool {
        self.table.is_pushed()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.table.is_idle()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.table.next_due()
    }

    /// Shows other threads what was counted here, up to `now`.
    pub(super) fn publish(&mut self, now: Instant) {
        self.table.publish(now);
    }

    /// Health counters of a subsystem's namespaces, over all threads.
    pub(super) fn health(&self, subsystem: usize) -> Health {
        volume::health(self.views[subsystem].values().map(|volume| &**volume))
    }

    pub(super) fn add_to(&self, report: &mut Report) {
        for (subsystem, numbers) in self.numbers.iter().enumerate() {
            for (nsid, number) in numbers {
                let Some(queue) = self.get(*number) else { continue };
                let mut stats = NamespaceStats { nsid: *nsid, ..Default::default() };
                queue.add_to(&mut stats);
                report.namespaces.push((subsystem, stats));
            }
        }
    }

    /// The thread goes: what was counted here stays with the volumes.
    pub(super) fn end(&self) {
        self.table.end();
    }
}
