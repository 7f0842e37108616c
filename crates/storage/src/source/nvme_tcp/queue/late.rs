//! I/Os that wait for a path, take too long or are given up.

use super::NvmeTcpQueue;
use super::ABORT_WITHIN;
use forebay_io::{Done, Fault, Op, Reactor};
use std::time::Duration;
use std::time::Instant;

impl NvmeTcpQueue {
    /// A connection went, and nobody knows what became of this command.
    pub(super) fn lost(&mut self, command: u32, done: &mut Vec<Done>) {
        let c = &self.work.commands[command as usize];
        if self.work.is_abandoned(command) {
            return self.work.end(command, Err(Fault::errno(libc::ECANCELED)), done);
        }
        let repeatable = matches!(c.op, Op::Read | Op::Flush) || self.remote.options().replay_writes;
        if repeatable {
            self.work.pending.push_front(command);
        } else {
            // Not EIO: nothing is wrong with the medium, and who asked may ask again.
            let fault = Fault::note(
                libc::ECONNRESET,
                "the connection was lost while this was in flight: it may or may not have been carried out \
                 (replay_writes=1 would repeat it)",
            );
            self.work.end(command, Err(fault), done);
        }
    }

    /// Gives up commands that have waited long enough.
    pub(super) fn give_up(&mut self, reactor: &mut Reactor, now: Instant, done: &mut Vec<Done>) {
        if self.cut.is_some_and(|cut| now >= cut) {
            self.cut = None;
            self.cut_abandoned(reactor, done);
        }
        if self.look_at.is_some_and(|at| now >= at) {
            self.look_for_late(reactor, now);
        }
        let Some(since) = self.stranded.filter(|_| self.is_stranded()) else { return };
        let waited = now.saturating_duration_since(since);
        let lost = self.views.iter().all(|v| v.lost.is_some());
        let late = self.remote.options().fast_io_fail.is_some_and(|most| waited >= most);
        if !(lost || late) {
            return;
        }
        let errno = if lost { libc::ENODEV } else { libc::EHOSTUNREACH };
        let text: Box<str> = self.why_stranded(lost, waited).into();
        // What comes after them needn't wait anew: the clock runs on until a path completes one.
        while let Some(command) = self.work.pending.pop_front() {
            self.work.end(command, Err(Fault::note(errno, text.clone())), done);
        }
    }

    pub(super) fn why_stranded(&self, lost: bool, waited: Duration) -> String {
        let paths = self.remote.paths();
        let of = |p: &crate::source::nvme::PathReport| match (&p.why, p.ana) {
            (Some(why), _) => format!("{}: {why}", p.address),
            (None, Some(ana)) => format!("{}: {ana}", p.address),
            (None, None) => format!("{}: {}, without the namespace", p.address, p.state),
        };
        let refused = self.pairs.iter().find_map(|pair| pair.refusal());
        let each = paths.iter().map(of).chain(refused).collect::<Vec<_>>().join("; ");
        match lost {
            true => format!("no path is left: {each}"),
            false => {
                let waited = waited.as_secs_f64();
                format!("no path that completes I/O for {waited:.1} s (fast_io_fail_tmo): {each}")
            }
        }
    }

    /// The controller is asked to abort what takes too long; where that doesn't end it, the connection goes.
    pub(super) fn look_for_late(&mut self, reactor: &mut Reactor, now: Instant) {
        let shared = &self.remote.shared;
        let Some(most) = shared.options.io_timeout else { return };
        let grace = most.min(ABORT_WITHIN);
        self.look_at = None;
        for pair in &mut self.pairs {
            let mut ends = false;
            let on_it: Vec<u32> = pair.commands().collect();
            for command in on_it {
                let c = &mut self.work.commands[command as usize];
                let mut due = c.own.asked.map_or(c.started + most, |asked| asked + grace);
                if now >= due {
                    ends |= c.own.asked.is_some();
                    c.own.asked = Some(now);
                    pair.abort(command, shared);
                    due = now + grace;
                }
                self.look_at = Some(self.look_at.map_or(due, |at| at.min(due)));
            }
            if ends {
                let limit = most.as_secs_f64();
                let why = format!(
                    "a command took longer than {limit} s (io_timeout), and Abort didn't end it in {} s",
                    grace.as_secs_f64()
                );
                pair.fail(&why, shared, reactor);
                self.unsettled = true;
            }
        }
    }

    /// Abandoned commands that still didn't complete: their connections go, and with them the controller's hold on
    /// their memory.
    pub(super) fn cut_abandoned(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        let held = |c: &u32| self.work.is_abandoned(*c);
        let pending: Vec<u32> = self.work.pending.iter().copied().filter(held).collect();
        let out: Vec<u32> = (0..self.work.commands.len() as u32).filter(held).collect();
        self.work.pending.retain(|c| !pending.contains(c));
        for command in pending {
            self.work.end(command, Err(Fault::errno(libc::ECANCELED)), done);
        }
        for pair in &mut self.pairs {
            if out.iter().any(|command| pair.has(*command)) {
                pair.fail("a command that was given up on never completed", &self.remote.shared, reactor);
                self.unsettled = true;
            }
        }
    }
}
