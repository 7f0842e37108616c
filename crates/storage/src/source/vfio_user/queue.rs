//! A worker's queue over its share of a drive's I/O queues.

use super::care::DriveState;
use super::maps::{covers, Span};
use super::queue_pair::{Payload, QueuePair};
use super::stage::Stage;
use super::{Drive, Live};
use crate::source::nvme::{lock, Command, Outcome, Work, REST};
use crate::source::QueueNeeds;
use forebay_io::{monotonic_now, Done, Fault, Full, Geometry, Io, Op, Queue, Reactor, RingCompletion, Via};
use forebay_model::Error;
use forebay_nvme::command::Cqe;
use forebay_nvme::nvm;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which closing waits for the kernel to let go of what it was given.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Time in which an aborted command may still complete before its controller is reset, which frees its memory.
const ABANDON_AFTER: Duration = Duration::from_millis(500);

/// Further state of a command.
#[derive(Default)]
struct Own {
    /// The staging slot that its payload goes through.
    slot: Option<u32>,
    /// The device has it.
    out: bool,
}

pub(crate) struct VfioUserQueue {
    drive: Arc<Drive>,
    work: Work<Own>,
    spin: Duration,
    token: u32,
    watch: u64,
    share: Vec<u16>,
    /// Generation of the drive as this queue last saw it.
    generation: u64,
    live: Option<Arc<Live>>,
    lost: Option<String>,
    maps_version: u64,
    spans: Vec<Span>,
    pairs: Vec<QueuePair>,
    pairs_made: u32,
    stage: Option<Stage>,
    /// Since when there is no drive for what is pending.
    stranded: Option<Instant>,
    rests_until: Option<Instant>,
    /// When abandoned I/Os cost the controller a reset.
    cut: Option<Instant>,
    /// When commands are looked at that may have taken too long.
    look_at: Option<Instant>,
    turn: usize,
    completions: Vec<RingCompletion>,
}

impl VfioUserQueue {
    pub(crate) fn open(
        drive: Arc<Drive>,
        needs: QueueNeeds,
        reactor: &mut Reactor,
    ) -> Result<VfioUserQueue, Error> {
        if !reactor.has_ring() {
            return Err(Error::machine(
                drive.options().to_string(),
                "io_uring is disabled or missing on this system",
                "forebay doctor for the reason",
            ));
        }
        let waker = reactor.waker()?;
        let spin = drive.options().spin;
        reactor.spin(spin);
        let share = drive.shared.host.shares.take(needs.worker)?;
        let nsid = drive.options().nsid;
        let mut queue = VfioUserQueue {
            work: Work::new(&drive.shared.host.identity, nsid, needs.depth, 4, Via::Direct),
            spin,
            token: reactor.token(),
            watch: drive.shared.host.wakers.watch(waker),
            pairs: Vec::with_capacity(share.len()),
            share,
            generation: 0,
            live: None,
            lost: None,
            maps_version: 0,
            spans: Vec::new(),
            pairs_made: 0,
            stage: None,
            stranded: None,
            rests_until: None,
            cut: None,
            look_at: None,
            turn: 0,
            completions: Vec::new(),
            drive,
        };
        queue.follow_drive(reactor, &mut Vec::new());
        Ok(queue)
    }

    /// All that there is to do: what completed, what changed, what can be sent.
    fn turn(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        reactor.take(self.token, &mut self.completions);
        for completion in self.completions.drain(..) {
            if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.owns(completion)) {
                pair.completed(completion);
            }
        }
        let now = monotonic_now();
        self.collect(now, reactor, done);
        if self.generation != self.drive.shared.generation.load(Ordering::Acquire) {
            self.follow_drive(reactor, done);
        }
        self.dispatch(reactor, now);
        self.give_up(now, done);
        for pair in &mut self.pairs {
            pair.ring_again(now, reactor, self.token);
            pair.doze(now, self.spin, reactor, self.token);
        }
    }

    /// Books what the device completed.
    fn collect(&mut self, now: Instant, reactor: &mut Reactor, done: &mut Vec<Done>) {
        for index in 0..self.pairs.len() {
            let mut any = false;
            while let Some((command, cqe)) = self.pairs[index].take() {
                any = true;
                self.book(index, command, &cqe, now, done);
            }
            let pair = &mut self.pairs[index];
            if any {
                pair.release(now, reactor, self.token);
            }
            if let (Some(why), Some(live)) = (&pair.broken, &self.live) {
                self.drive.shared.trouble(live.number, why);
            }
        }
    }

    /// Follows the drive: the device that was is gone, or another one is there.
    fn follow_drive(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.generation = self.drive.shared.generation.load(Ordering::Acquire);
        let state = self.drive.shared.state();
        let (live, clean) = match &state {
            DriveState::Live(live) => (Some(live.clone()), true),
            DriveState::Connecting { clean, .. } | DriveState::Lost { clean, .. } => (None, *clean),
        };
        let number = |live: &Option<Arc<Live>>| live.as_ref().map(|l| l.number);
        if number(&live) == number(&self.live) && live.is_some() {
            return;
        }
        self.lost = match &state {
            DriveState::Lost { why, .. } => Some(why.clone()),
            _ => None,
        };
        self.close_pairs(clean, reactor, done);
        self.live = live;
        self.maps_version = 0;
        let Some(live) = &self.live else { return };
        for qid in &self.share {
            let parts = lock(&live.pairs).remove(qid);
            let Some(parts) = parts else { continue };
            let traffic = self.drive.shared.host.notes.traffic(0, *qid);
            self.pairs.push(QueuePair::new(self.pairs_made, *qid, parts, live.sgl, traffic, reactor));
            self.pairs_made = self.pairs_made.wrapping_add(1) % (u32::MAX / 2);
        }
    }

    /// Takes leave of a device's queues.
    fn close_pairs(&mut self, clean: bool, reactor: &mut Reactor, done: &mut Vec<Done>) {
        // What the ring was told of their descriptors must reach it before they are closed.
        reactor.submit();
        let mut gone = Vec::new();
        for pair in &mut self.pairs {
            pair.cancel(reactor, self.token);
            pair.close(&mut gone);
        }
        self.pairs.clear();
        // The last ones first, so that they stand in order.
        gone.sort_by_key(|c| self.work.commands[*c as usize].started);
        for command in gone.into_iter().rev() {
            self.work.commands[command as usize].own.out = false;
            self.gone(command, clean, done);
        }
    }

    /// The device went, and nobody knows what became of this command.
    fn gone(&mut self, command: u32, clean: bool, done: &mut Vec<Done>) {
        let c = &self.work.commands[command as usize];
        if self.work.is_abandoned(command) {
            return self.end(command, Err(Fault::errno(libc::ECANCELED)), done);
        }
        let repeatable = matches!(c.op, Op::Read | Op::Flush) || self.drive.options().replay_writes;
        let (errno, text) = match (repeatable, clean) {
            (true, true) => return self.work.pending.push_front(command),
            (_, false) => (
                libc::EIO,
                "the device stopped answering while this was in flight, and couldn't be reset: it isn't tried again, \
                 because the device might still move its bytes",
            ),
            // Not EIO: nothing is wrong with the medium, and who asked may ask again.
            (false, true) => (
                libc::ECONNRESET,
                "the device was lost while this was in flight: it may or may not have been carried out \
                 (replay_writes=1 would repeat it)",
            ),
        };
        self.end(command, Err(Fault::note(errno, text)), done);
    }

    /// Books a command that completed.
    fn book(&mut self, pair: usize, command: u32, cqe: &Cqe, now: Instant, done: &mut Vec<Done>) {
        let (status, pair) = (cqe.status(), &self.pairs[pair]);
        let c = &mut self.work.commands[command as usize];
        c.own.out = false;
        pair.traffic.took(now.saturating_duration_since(c.started));
        if status.is_success() {
            if let (Op::Read, Some(slot), Some(stage)) = (c.op, c.own.slot, &self.stage) {
                stage.copy_out(slot, c.mem, c.len as usize);
            }
            self.stranded = None;
            return self.end(command, Ok(()), done);
        }
        match self.work.outcome(command, status) {
            Outcome::End(fault) => {
                self.stranded = None;
                self.end(command, Err(fault), done);
            }
            Outcome::Elsewhere => {
                self.rests_until = Some(now + REST);
                self.work.pending.push_front(command);
            }
            Outcome::Again => {
                pair.traffic.retries.fetch_add(1, Ordering::Relaxed);
                self.work.pending.push_front(command);
            }
        }
    }

    fn end(&mut self, command: u32, result: Result<(), Fault>, done: &mut Vec<Done>) {
        let slot = self.work.commands[command as usize].own.slot.take();
        if let (Some(slot), Some(stage)) = (slot, &mut self.stage) {
            stage.give_back(slot);
        }
        self.work.end(command, result, done);
    }

    /// Sends what is pending where it can go.
    fn dispatch(&mut self, reactor: &mut Reactor, now: Instant) {
        if self.rests_until.is_some_and(|until| now >= until) {
            self.rests_until = None;
        }
        if self.work.pending.is_empty() {
            // What a drive took and didn't complete goes on waiting.
            self.stranded = self.stranded.filter(|_| self.work.has_commands());
            return;
        }
        if self.is_stranded() {
            self.stranded.get_or_insert(now);
            return;
        }
        self.look_at_maps();
        while let Some(command) = self.work.pending.front().copied() {
            let inline = self.work.commands[command as usize].op == Op::Deallocate;
            let Some(pair) = self.choose(inline) else { break };
            let Some(place) = self.place(command) else { break };
            self.work.pending.pop_front();
            let (sqe, range) = self.work.sqe(command);
            let payload = match (place, &range) {
                (Some((at, bytes)), _) => Payload::At(at, bytes),
                (None, Some(range)) => Payload::Inline(nvm::range_bytes(std::slice::from_ref(range))),
                (None, None) => Payload::None,
            };
            let c = &mut self.work.commands[command as usize];
            (c.tries, c.started, c.own.out) = (c.tries + 1, now, true);
            self.pairs[pair].put(command, sqe, payload, now);
        }
        for pair in &mut self.pairs {
            pair.publish(reactor, self.token);
        }
        if self.look_at.is_none() {
            self.look_at = self.drive.options().io_timeout.map(|most| now + most);
        }
    }

    /// No drive takes commands now.
    fn is_stranded(&self) -> bool {
        self.pairs.is_empty() || self.rests_until.is_some()
    }

    fn look_at_maps(&mut self) {
        let (version, Some(live)) = (self.drive.shared.maps.version(), &self.live) else { return };
        if self.maps_version != version + 1 {
            self.maps_version = version + 1;
            self.spans = self.drive.shared.maps.spans(live.number);
        }
    }

    /// A pair with room, in turn.
    fn choose(&mut self, inline: bool) -> Option<usize> {
        let count = self.pairs.len();
        let chosen =
            (self.turn..self.turn + count).map(|i| i % count).find(|i| self.pairs[*i].has_room(inline))?;
        self.turn = (chosen + 1) % count;
        Some(chosen)
    }

    /// Returns the device's address of the payload: Some(None) where there is none, None where there is no place yet.
    #[allow(clippy::option_option)]
    fn place(&mut self, command: u32) -> Option<Option<(u64, u32)>> {
        let c = &mut self.work.commands[command as usize];
        if !matches!(c.op, Op::Read | Op::Write { .. }) {
            return Some(None);
        }
        // Scattered memory has no single address, and is staged.
        let (at, bytes) = (c.mem.host_ptr() as u64, c.len);
        if c.own.slot.is_none() && at % 4 == 0 && covers(&self.spans, at, bytes.into()) {
            return Some(Some((at, bytes)));
        }
        let drive = &self.drive;
        let stage = self.stage.get_or_insert_with(|| Stage::new(drive, drive.transfer_bytes()));
        if c.own.slot.is_none() {
            c.own.slot = stage.take();
        }
        let slot = c.own.slot?;
        let at = stage.place(slot);
        // The device has to have it before it is used; a worker is woken then.
        if !covers(&self.spans, at, bytes.into()) {
            return None;
        }
        if matches!(c.op, Op::Write { .. }) {
            stage.copy_in(slot, c.mem, bytes as usize);
        }
        self.work.staged(command);
        Some(Some((at, bytes)))
    }

    /// Gives up commands that have waited long enough.
    fn give_up(&mut self, now: Instant, done: &mut Vec<Done>) {
        if self.cut.is_some_and(|cut| now >= cut) {
            self.cut = None;
            let held = |(c, command): (u32, &Command<Own>)| command.own.out && self.work.is_abandoned(c);
            if (0..).zip(&self.work.commands).any(held) {
                self.trouble("a command that was given up on never completed");
            }
        }
        if self.look_at.is_some_and(|at| now >= at) {
            self.look_for_late(now);
        }
        let refusal = self.stage.as_ref().and_then(Stage::refusal);
        let stranded = self.stranded.filter(|_| self.is_stranded());
        let Some(since) = stranded.or(refusal.as_ref().map(|_| now)) else { return };
        let waited = now.saturating_duration_since(since);
        let late = self.drive.options().fast_io_fail.is_some_and(|most| waited >= most);
        if self.lost.is_none() && refusal.is_none() && !late {
            return;
        }
        let state = self.drive.shared.state();
        let (errno, text) = match (&self.lost, refusal) {
            (Some(why), _) => (libc::ENODEV, format!("the drive is lost: {why}")),
            (None, Some(why)) => (libc::EFAULT, format!("its memory can't be mapped into the device: {why}")),
            (None, None) => {
                let why = state.why().unwrap_or("it can't serve now");
                (
                    libc::EHOSTUNREACH,
                    format!(
                        "no drive that completes I/O for {:.1} s (fast_io_fail_tmo): {why}",
                        waited.as_secs_f64()
                    ),
                )
            }
        };
        let text: Box<str> = text.into();
        while let Some(command) = self.work.pending.pop_front() {
            self.end(command, Err(Fault::note(errno, text.clone())), done);
        }
        self.stranded = None;
    }

    /// A command that takes longer than it may costs the controller a reset.
    fn look_for_late(&mut self, now: Instant) {
        let Some(most) = self.drive.options().io_timeout else { return };
        let oldest = self.work.commands.iter().filter(|c| c.own.out).map(|c| c.started).min();
        self.look_at = oldest.map(|started| started + most);
        if self.look_at.is_some_and(|at| now >= at) {
            self.look_at = Some(now + most);
            self.trouble(&format!("a command took longer than {} s (io_timeout)", most.as_secs_f64()));
        }
    }

    fn trouble(&self, why: &str) {
        if let Some(live) = &self.live {
            self.drive.shared.trouble(live.number, why);
        }
    }
}

impl Queue for VfioUserQueue {
    fn geometry(&self) -> Geometry {
        self.work.geometry()
    }

    fn in_flight(&self) -> u32 {
        self.work.in_flight()
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        self.work.push(io)
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        if !self.work.pending.is_empty() {
            let now = monotonic_now();
            self.dispatch(reactor, now);
            for pair in &mut self.pairs {
                pair.doze(now, self.spin, reactor, self.token);
            }
        }
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.work.reap(done);
        self.turn(reactor, done);
    }

    fn abandon(&mut self, tag: u32, _reactor: &mut Reactor) {
        let Some(waiting) = self.work.abandon(tag) else { return };
        self.cut.get_or_insert(monotonic_now() + ABANDON_AFTER);
        if let Some(live) = &self.live {
            let out = |(_, c): &(u32, &Command<Own>)| c.own.out && c.tag == tag;
            for (command, _) in (0..).zip(&self.work.commands).filter(out) {
                let place = self.pairs.iter().find_map(|l| Some((l.qid, l.cid_of(command)?)));
                place.iter().for_each(|(qid, cid)| self.drive.shared.abort(live.number, *qid, *cid));
            }
        }
        // What no device has yet needn't wait for one.
        let mut done = Vec::new();
        for command in waiting {
            self.end(command, Err(Fault::errno(libc::ECANCELED)), &mut done);
        }
        self.work.keep(done);
    }

    fn next_due(&self) -> Option<Instant> {
        if self.work.is_ready() {
            return Some(monotonic_now());
        }
        if !self.work.has_commands() {
            return None;
        }
        let pairs = self.pairs.iter().filter_map(|pair| pair.due(self.spin));
        let patience = self.drive.options().fast_io_fail;
        let stranded = self.stranded.filter(|_| self.is_stranded());
        let stranded = stranded.and_then(|since| since.checked_add(patience?));
        pairs.chain(stranded).chain(self.rests_until).chain(self.cut).chain(self.look_at).min()
    }

    fn wakes_at_first(&self) -> bool {
        true
    }

    fn close(&mut self, reactor: &mut Reactor) {
        let until = monotonic_now() + CLOSE_WITHIN;
        self.pairs.iter_mut().for_each(|pair| pair.cancel(reactor, self.token));
        reactor.submit();
        while self.pairs.iter().any(QueuePair::is_armed) && monotonic_now() < until {
            reactor.wait(1, until, Duration::ZERO);
            reactor.take(self.token, &mut self.completions);
            for completion in self.completions.drain(..) {
                if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.owns(completion)) {
                    pair.completed(completion);
                }
            }
        }
    }
}

impl Drop for VfioUserQueue {
    /// The next queue gets these pairs, unless something is in flight: then a reset makes new ones.
    fn drop(&mut self) {
        let shared = &self.drive.shared;
        shared.host.wakers.unwatch(self.watch);
        if let Some(live) = &self.live {
            for pair in self.pairs.drain(..) {
                match pair.into_parts() {
                    Some((qid, parts)) => drop(lock(&live.pairs).insert(qid, parts)),
                    None => shared.trouble(live.number, "a worker left its queue with commands in it"),
                }
            }
        }
        shared.host.shares.give_back(&self.share);
    }
}
