//! I/Os of a list, in its order and at its times; and the list of those that were started.

use super::rows::Load;
use super::Worker;
use crate::replay::{Player, Turn};
use forebay_io::client::Order;
use forebay_io::queue::Op;
use forebay_model::iolog::Kind;
use forebay_model::job::Sync;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Worker {
    /// Starts the list's next I/O. False when it isn't due, has no room, waits for others, or after the last one.
    pub(super) fn start_replayed(&mut self, now: Instant) -> bool {
        let in_flight = self.client.in_flight();
        let Some(player) = &mut self.player else { return false };
        let io = match player.turn(now, in_flight) {
            Turn::Io(io) => io,
            Turn::Later => return false,
            Turn::Over => {
                self.closing = true;
                return false;
            }
            Turn::Broken(why) => {
                self.shared.stop.store(true, Ordering::Relaxed);
                self.closing = true;
                self.refusal = Some(why);
                return false;
            }
        };
        if self.left.is_none() {
            self.closing = true;
            return false;
        }
        let queue = self.queue_of[io.file as usize];
        if !self.client.queue(queue).takes_more() {
            self.held_back = true;
            return false;
        }
        let op = match io.kind {
            Kind::Read => Op::Read,
            Kind::Write => Op::Write { durable: self.shared.job.sync == Sync::Each },
            Kind::Trim => Op::Deallocate,
            Kind::Sync => Op::Flush,
        };
        let want = if matches!(io.kind, Kind::Read | Kind::Write) { io.len } else { 0 };
        let owner = Load::of(io.file, now);
        let order = Order { queue, op, offset: io.offset, len: io.len, want, owner };
        let Some(tag) = self.client.begin(order, now) else { return false };
        self.player.iter_mut().for_each(|player| player.started(now));
        if want > 0 {
            self.left.take(u64::from(io.len));
        }
        if self.list.is_some() {
            self.list_one(now, &order);
        }
        let makes = self.shared.job.verify || self.shared.job.refill;
        if io.kind == Kind::Write && makes {
            self.fill(tag);
        } else {
            self.client.push(tag, &mut self.reactor);
        }
        true
    }

    /// When the list's next I/O may start, if only time keeps it.
    pub(super) fn player_is_due(&self, now: Instant) -> Option<Instant> {
        let due = self.player.as_deref().and_then(Player::due)?;
        (self.client.has_free() && due > now).then_some(due)
    }

    /// A line of the list of started I/Os.
    #[cold]
    pub(super) fn list_one(&mut self, now: Instant, order: &Order<Load>) {
        let what = match order.op {
            Op::Read => "read",
            Op::Deallocate => "trim",
            Op::Flush => "datasync",
            _ => "write",
        };
        let (target, offset, len) = (order.owner.target, order.offset, order.len);
        self.list.iter_mut().for_each(|list| list.note(now, target, what, offset, len));
    }
}
