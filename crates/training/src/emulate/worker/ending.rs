//! The end of an emulator's worker, and the accounting of its processor time.

use super::Latencies;
use super::Worker;
use super::GRACE;
use forebay_io::clock;
use std::sync::atomic::Ordering;

impl Worker {
    /// Writes down how long this thread was on a processor, and how long it waited for one.
    pub(super) fn account(&mut self, now: u64) {
        self.accounted = now;
        let Ok(text) = std::fs::read_to_string("/proc/thread-self/schedstat") else { return };
        let mut words = text.split_ascii_whitespace().filter_map(|w| w.parse::<u64>().ok());
        if let (Some(cpu), Some(queued)) = (words.next(), words.next()) {
            let counters = self.counters();
            counters.cpu_ns.store(cpu, Ordering::Relaxed);
            counters.queued_ns.store(queued, Ordering::Relaxed);
        }
    }

    /// Waits for what the kernel still writes to; memory that it won't let go of is left to it.
    pub(super) fn close(mut self) -> Latencies {
        // Copies end before the slots go.
        self.copiers.iter_mut().for_each(|copier| copier.finish());
        self.copiers.iter_mut().for_each(|copier| copier.reap(&mut self.copies));
        for (tag, fault) in std::mem::take(&mut self.copies) {
            self.end_copy(tag, fault);
        }
        let under_way: Vec<u32> = self.client.tags().collect();
        under_way.into_iter().for_each(|tag| self.client.abandon(tag, &mut self.reactor));
        for tag in self.client.take_owed(|_| true) {
            self.slots.is_back(tag);
        }
        let Worker { client, reactor, slots, flights, shared, index, .. } = &mut self;
        let ways = &shared.board.counters[*index].ways;
        let is_back = client.drain(reactor, clock::now() + GRACE, |client, over| {
            let flight = &flights[over.tag as usize];
            match flight.to {
                // It got to the GPU, whoever waits for it.
                Some(_) => ways.add(over.via, client.ticket(over.tag).moved.min(flight.want).into()),
                None => slots.is_back(over.tag),
            }
        });
        let now = self.now();
        self.account(now);
        let latencies = std::mem::take(&mut self.latencies);
        if !is_back || self.slots.any_lent() {
            std::mem::forget(self);
        } else {
            self.client.close(&mut self.reactor);
        }
        latencies
    }
}
