//! I/Os of a checkpoint that fail, or take too long.

use super::Part;
use super::Worker;
use forebay_io::{ring_refused, Fault, LateIo, Op, Submission};
use forebay_model::Error;
use std::time::Duration;
use std::time::Instant;

impl Worker {
    pub(super) fn name(&self, asked: &Submission<Part>) -> String {
        let Submission { op, offset, owner, .. } = asked;
        let what = match op {
            Op::Flush => "flush".into(),
            Op::Read => format!("read of {} bytes at {offset}", owner.span.len),
            _ => format!("write of {} bytes at {offset}", owner.span.io_len),
        };
        match &self.files[owner.file] {
            Some(file) => {
                format!("{what} of {} by rank {}", file.place.path.display(), self.flows[file.flow].rank)
            }
            None => what,
        }
    }

    pub(super) fn io_failed(&mut self, tag: u32, fault: &Fault) {
        let name = self.name(&self.resources.client.io(tag).submission);
        let errors = &mut self.report.tally.errors;
        errors.failed += 1;
        if fault.errno == libc::EINVAL {
            errors.misaligned += 1;
        }
        self.report.tally.example(format!("{name}: {fault}"));
        let next = match fault.errno {
            libc::ENOSPC | libc::EDQUOT => "df -h; a smaller --scale, fewer --writes, or another --dir",
            _ => "dmesg | tail; forebay doctor",
        };
        self.fail(Error::run(name, fault.to_string(), next));
        self.release(tag);
    }

    /// Names I/Os that took longer than the time-out, and asks for their slots back; one that isn't given back either
    /// is left to the kernel, memory and all.
    pub(super) fn abandon_overdue(&mut self, now: Instant) {
        let timeout = Duration::from_secs_f64(self.spec.timeout_s);
        let mut late = std::mem::take(&mut self.late);
        self.resources.client.give_up_late(now, timeout, &mut self.resources.reactor, &mut late);
        for (tag, what) in late.drain(..) {
            match what {
                LateIo::TimedOut => {
                    self.report.tally.errors.timed_out += 1;
                    let name = self.name(&self.resources.client.io(tag).submission);
                    let found = format!("unfinished after ‹timeout_s› {} s", self.spec.timeout_s);
                    self.report.tally.example(format!("{name}: {found}"));
                    self.fail(Error::run(name, found, "dmesg | tail; a longer ‹timeout_s›"));
                }
                LateIo::NeverTaken => self.release(tag),
                LateIo::Lost => self.in_flight -= 1,
            }
        }
    }

    /// Nothing that is under way is ever heard of: memory that the kernel may still write to is left to it.
    pub(super) fn give_up_all(&mut self, why: &std::io::Error) {
        self.fail(ring_refused(why));
        for (tag, what) in self.resources.client.give_up_all() {
            match what {
                LateIo::Lost => self.in_flight -= 1,
                _ => self.release(tag),
            }
        }
    }
}
