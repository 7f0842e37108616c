//! End of requests and queues of a device.

use super::super::inbox::Report;
use super::super::port::HardwareQueue;
use super::super::stats::QueueStats;
use super::limits;
use super::timed_out;
use super::Hardware;
use super::Worker;
use super::LAST;
use crate::namespace::namespace_queue::Owner;
use crate::namespace::steps::Step;
use forebay_io::{monotonic_now, Mem};
use forebay_nvme::transport::tcp::Handle;
use std::time::Duration;
use std::time::Instant;

impl<P: HardwareQueue> Worker<P> {
    /// The prepared source takes the place of the last one. False: that one isn't idle.
    pub(super) fn switch(&mut self) -> bool {
        if !self.suspended || !self.is_quiet() {
            self.next_queue = None;
            return false;
        }
        if let Some(queue) = self.next_queue.take() {
            self.queue = *queue;
            self.limits = limits(&self.queue, &self.setup);
        }
        true
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_idle() && self.hardware.iter().all(|h| h.working.iter().all(Option::is_none))
    }

    pub(super) fn tell_quiet(&mut self) {
        if !self.quiet.is_empty() && self.is_quiet() {
            for to in self.quiet.drain(..) {
                let _ = to.send(());
            }
        }
    }

    /// Fails what is there and what comes: a device can't stop before all its requests are answered.
    pub(super) fn give_up(&mut self) {
        self.failing = true;
        for (at, tag) in std::mem::take(&mut self.held) {
            self.commit(at, tag, -libc::EIO);
        }
        for at in 0..self.hardware.len() {
            for tag in self.hardware[at].lines.remove(|_| true) {
                self.commit(at, tag, -libc::EIO);
            }
            let owners = self.queue.abandon(|owner| owner.connection == at as u32, &mut self.reactor);
            owners.into_iter().for_each(|owner| self.finish(at, owner.command.0, Some(libc::EIO)));
        }
    }

    /// Asks the source for what it holds for too long.
    pub(super) fn sweep(&mut self) {
        let Some(patience) = self.setup.io_timeout else { return };
        if self.sweep_at.is_none_or(|at| self.now < at) {
            return;
        }
        let mut oldest: Option<Instant> = None;
        for (at, one) in self.hardware.iter_mut().enumerate() {
            for (tag, working) in one.working.iter_mut().enumerate() {
                let Some(working) = working.as_mut().filter(|w| !w.given_up) else { continue };
                if self.now.saturating_duration_since(working.began) < patience {
                    oldest = Some(oldest.map_or(working.began, |old| old.min(working.began)));
                    continue;
                }
                working.given_up = true;
                let owner = Owner { connection: at as u32, command: Handle(tag as u16) };
                let unbegun = self.queue.abandon(|of| *of == owner, &mut self.reactor);
                self.finished.extend(unbegun.into_iter().map(timed_out));
            }
        }
        self.sweep_at = oldest.map(|began| began + patience);
    }

    /// No request can come any more, or none is wanted.
    pub(super) fn is_over(&self) -> bool {
        let closed = self.hardware.iter().all(|h| h.open == 0);
        let left = self.leave_by.is_some_and(|by| self.is_quiet() || self.now >= by);
        left || (closed && self.is_quiet())
    }

    /// Makes written data durable before the thread is gone.
    pub(super) fn flush(&mut self) {
        let refused = self.reactor.refused().is_some();
        if !self.limits.write_cache || !self.queue.is_idle() || self.failing || refused {
            return;
        }
        let nobody = Owner { connection: u32::MAX, command: Handle(0) };
        let flush = Step { op: forebay_io::Op::Flush, offset: 0, len: 0, mem: Mem::None };
        self.queue.start(nobody, flush, &mut self.reactor);
        let by = monotonic_now() + LAST;
        while !self.queue.is_idle() && monotonic_now() < by {
            self.run_queue();
            if self.queue.is_idle() {
                return;
            }
            let due = self.queue.next_due().map_or(by, |due| due.min(by));
            self.reactor.wait(1, due, Duration::ZERO);
        }
    }

    pub(super) fn report(&self) -> Report {
        let in_flight = |one: &Hardware<P>, at: usize| {
            let working = one.working.iter().flatten().count();
            let held = self.held.iter().filter(|(of, _)| *of == at).count();
            (working + held + one.lines.len()) as u32
        };
        let queue = |(at, one): (usize, &Hardware<P>)| {
            let mut stats = QueueStats {
                queue: one.queue,
                thread: self.setup.number,
                in_flight: in_flight(one, at),
                counts: one.counts,
                staged_bytes: one.staged_bytes,
                ..QueueStats::default()
            };
            one.read_latency.add_to(&mut stats.read_latency);
            one.write_latency.add_to(&mut stats.write_latency);
            stats
        };
        Report {
            queues: self.hardware.iter().enumerate().map(queue).collect(),
            open: self.hardware.iter().any(|h| h.open > 0),
        }
    }

    /// Memory that the driver or a source may still use is left to it.
    pub(super) fn let_go(self) {
        let (quiet, closed) = (self.is_quiet(), self.hardware.iter().all(|h| h.open == 0));
        let Worker { reactor, queue, hardware, .. } = self;
        if quiet {
            drop(queue);
        } else {
            std::mem::forget(queue);
        }
        // The ring first: with it the driver learns that nobody serves these queues any more.
        drop(reactor);
        if quiet && closed {
            drop(hardware);
        } else {
            hardware.into_iter().for_each(|h| h.port.leave());
        }
    }
}
