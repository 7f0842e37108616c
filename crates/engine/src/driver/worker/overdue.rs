//! Which I/Os have taken too long, and what becomes of them.

use super::{Worker, GRACE, LOOK, STANDSTILL};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Worker {
    /// What is done by now is collected before anything is called overdue: while this thread didn't run, nobody looked.
    pub(super) fn look(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next_look);
        self.next_look = now + LOOK.min(self.shared.interval);
        let timeout = self.timeout();
        if late > STANDSTILL {
            self.forgive(late);
        }
        if self.slots.iter().any(|slot| slot.busy && now.saturating_duration_since(slot.issued) > timeout) {
            self.reactor.flush();
            self.collect();
            self.settle();
            self.settle_chores();
        }
        self.abandon_overdue(now);
    }

    /// Whoever was to do the I/Os may have stood still, too: none has used up that part of its time.
    fn forgive(&mut self, stood_still: Duration) {
        for slot in self.slots.iter_mut().filter(|slot| slot.busy) {
            slot.issued += stood_still;
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.shared.job.timeout_s)
    }

    /// Names I/Os that took longer than the time-out and asks for their slots back; one that isn't given
    /// back either is left to the kernel, memory and all.
    pub(super) fn abandon_overdue(&mut self, now: Instant) {
        let timeout = self.timeout();
        for tag in 0..self.slots.len() as u32 {
            let slot = self.slots[tag as usize];
            let age = now.saturating_duration_since(slot.issued);
            if !slot.busy || age <= timeout {
                continue;
            }
            if !slot.abandoned {
                self.slots[tag as usize].abandoned = true;
                self.tally.errors.timed_out += 1;
                self.tally.example(format!(
                    "{}: unfinished after --timeout {} s",
                    self.name(&slot),
                    self.shared.job.timeout_s
                ));
                if !slot.chore {
                    self.queues[slot.queue as usize].abandon(tag, &mut self.reactor);
                }
                self.shared.stop.store(true, Ordering::Relaxed);
            } else if let Some(at) = self.again.iter().position(|t| *t == tag) {
                // No queue has it.
                self.again.swap_remove(at);
                self.book_unfinished(tag, now);
                self.release(tag);
            } else if age > timeout + GRACE {
                self.book_unfinished(tag, now);
                self.tally.lost += 1;
                self.in_flight -= 1;
                self.slots[tag as usize].busy = false;
            }
        }
    }
}
