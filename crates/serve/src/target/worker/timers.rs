//! Timed work of a thread: timers of its connections, sweeps, its last flush.

use super::super::connection::Connection;
use super::super::connection::Role;
use super::Worker;
use super::FOREVER;
use super::NOBODY;
use super::STOP;
use crate::namespace::lane::Lane;
use crate::namespace::lane::Owner;
use crate::namespace::steps::FLUSH;
use forebay_io::clock;
use forebay_nvme::transport::tcp::Handle;
use std::cmp::Reverse;
use std::time::Duration;
use std::time::Instant;

impl Worker {
    /// Has the connection looked at then, or before.
    pub(crate) fn arm(&mut self, c: &mut Connection, at: Instant) {
        if c.timer_at.is_none_or(|armed| at < armed) {
            c.timer_at = Some(at);
            self.timers.push(Reverse((at, c.id.index, c.id.serial)));
        }
    }

    pub(super) fn run_timers(&mut self) {
        while let Some(&Reverse((at, index, serial))) = self.timers.peek().filter(|t| t.0 .0 <= self.now) {
            self.timers.pop();
            self.with(index, |worker, c| {
                if c.id.serial == serial && c.timer_at == Some(at) {
                    c.timer_at = None;
                    worker.timer(c);
                }
            });
        }
        if self.sweep_at.is_some_and(|at| at <= self.now) {
            self.sweep();
        }
    }

    /// A connection's time has come: for its handshake, its last words, its keep-alive, or its host's limits.
    pub(super) fn timer(&mut self, c: &mut Connection) {
        if c.closing {
            return;
        }
        if let Some(until) = c.lingers_until {
            if until <= self.now {
                return self.end(c, "");
            }
            return self.arm(c, until);
        }
        if let Role::New = c.role {
            let by = c.began + Duration::from_secs_f64(self.shared.config.handshake_s);
            if by <= self.now {
                return self.break_off(c, "no Connect came in time");
            }
            return self.arm(c, by);
        }
        if c.is_locked() {
            let by = c.began + Duration::from_secs_f64(self.shared.config.handshake_s);
            if by <= self.now {
                return self.break_off(c, "the host did not authenticate in time");
            }
            self.arm(c, by);
        }
        self.check_keep_alive(c);
        c.parked = false;
        if !c.closing && !c.waiting.is_empty() {
            self.want_turn(c);
        }
    }

    /// Ends connections whose peers take or send nothing though it is their turn.
    pub(super) fn sweep(&mut self) {
        let patience = Duration::from_secs_f64(self.shared.config.stall_s);
        self.sweep_at = None;
        for index in 0..self.connections.len() as u32 {
            self.with(index, |worker, c| {
                let sends = !c.link.is_sent();
                let late = |since: Instant| worker.now.saturating_duration_since(since) > patience;
                if c.closing {
                } else if sends && late(c.sent_at) {
                    worker.break_off(c, "the host doesn't receive what is sent");
                } else if c.collecting > 0 && late(c.data_at) {
                    worker.break_off(c, "the host doesn't send the data that it announced");
                } else if sends || c.collecting > 0 {
                    worker.want_sweep();
                }
            });
        }
    }

    pub(crate) fn want_sweep(&mut self) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(self.now + Duration::from_secs_f64(self.shared.config.stall_s / 2.0));
        }
    }

    /// When to wake though nothing comes.
    pub(super) fn due(&self) -> Instant {
        let timer = self.timers.peek().map(|t| t.0 .0);
        let lanes = self.lanes.iter().flatten().filter_map(Lane::next_due).min();
        let all = [timer, lanes, self.sweep_at, self.stop_by];
        all.into_iter().flatten().min().unwrap_or(self.now + FOREVER)
    }

    /// Makes hosts' writes durable before the server is gone.
    pub(super) fn flush_all(&mut self) {
        if self.reactor.refused().is_some() {
            return;
        }
        let owner = Owner { connection: NOBODY, command: Handle(0) };
        for lane in self.lanes.iter_mut().flatten().filter(|l| l.volume.write_cache && l.is_idle()) {
            lane.start(owner, FLUSH, &mut self.reactor);
        }
        let by = clock::now() + STOP;
        loop {
            self.run_lanes();
            let now = clock::now();
            if self.lanes.iter().flatten().all(Lane::is_idle) || now >= by {
                return;
            }
            let due = self.lanes.iter().flatten().filter_map(Lane::next_due).min();
            self.reactor.wait(1, due.map_or(by, |d| d.min(by)), Duration::ZERO);
        }
    }

    /// Memory that the kernel or a device may still write to is left to it.
    pub(super) fn let_go(self) {
        let quiet = self.is_empty();
        self.lanes.iter().flatten().for_each(|lane| lane.end(self.number));
        let Worker { connections, lanes, reactor, pool, cards, .. } = self;
        drop((connections, cards));
        if quiet {
            drop((lanes, reactor, pool));
        } else {
            std::mem::forget((lanes, pool));
            drop(reactor);
        }
    }
}
