//! Processing of arrived data: parsed while it is in the processor's cache, copied on, reported to the scheduler.

use super::super::board::{add, ACCOUNT_NS};
use super::super::reading::Reading;
use super::{Active, Flight, Worker};
use crate::format::Damage;
use forebay_io::client::{End, Over};
use forebay_io::queue::Fault;
use forebay_model::Error;

impl Worker {
    /// Books a read.
    pub(super) fn arrive(&mut self, over: Over) {
        let Over { tag, end, via, .. } = over;
        let moved = self.client.ticket(tag).moved;
        let flight = &mut self.flights[tag as usize];
        flight.got = moved.min(flight.want);
        let straight = flight.to.is_some();
        match end {
            End::Whole => {}
            End::Early => flight.errno = libc::ENODATA,
            End::Failed(fault) | End::GivenUp(fault) => {
                flight.errno = fault.errno;
                self.notes.extend(fault.note.map(|note| (tag, note)));
            }
        }
        let flight = *flight;
        if straight {
            // It counts from here on, by the way that it took.
            self.counters().ways.add(via, flight.got.into());
        } else {
            self.slots.is_back(tag);
        }
        if flight.due > 0 {
            self.delays.add(flight.due, tag);
        } else {
            self.flights[tag as usize].landed = true;
        }
    }

    /// Parses what has landed, stream by stream, in the order of its bytes.
    pub(super) fn digest(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.actives.len() {
            if self.actives[index].is_none() {
                continue;
            }
            let mut active = self.actives[index].take().expect("it was looked at");
            while let Some(tag) =
                active.slots.front().copied().filter(|tag| self.flights[*tag as usize].landed)
            {
                active.slots.pop_front();
                self.digest_one(&mut active, tag);
                any = true;
                if active.slots.is_empty() && active.pushed >= active.goal {
                    active.goal = active.reading.goal(active.upto);
                }
            }
            self.copiers.iter_mut().for_each(|copier| copier.submit());
            any |= self.settle_copies(&mut active);
            let is_quiet = active.slots.is_empty() && active.copying.is_empty();
            let is_over = is_quiet && (active.reading.is_dead || active.pushed >= active.goal);
            if is_over && active.reading.is_dead {
                self.skip(&mut active);
                any = true;
            }
            if is_over {
                self.give_back(active);
            } else {
                self.actives[index] = Some(active);
            }
        }
        any
    }

    fn digest_one(&mut self, active: &mut Active, tag: u32) {
        let flight = self.flights[tag as usize];
        self.in_flight -= 1;
        let begin = self.now();
        self.latencies.read.record(begin.saturating_sub(flight.began));
        let found = self.parse(active, tag, &flight);
        let end = self.now();
        self.count(&flight, end - begin);
        let found = found.and_then(|()| is_long_enough(&active.reading));
        for (damage, samples) in active.reading.take_lost() {
            self.lost(active.file, &damage, samples);
        }
        if let Err(damage) = found {
            self.let_go(active, tag);
            let whole = active.reading.samples().min(active.upto);
            self.report(active, whole, end);
            active.reading.give_up();
            self.damaged(active.file, &damage);
            return;
        }
        let samples = active.reading.samples().min(active.upto);
        if samples > active.seen {
            let count = u64::from(samples - active.seen);
            self.latencies.sample.record_n((end - active.since) / count, count);
            (active.seen, active.since) = (samples, end);
        }
        self.pass_on(active, tag, samples, end);
        if end - self.accounted >= ACCOUNT_NS {
            self.account(end);
        }
    }

    /// Takes the bytes of a read as the next ones of their file. An error says what is wrong with them.
    fn parse(&mut self, active: &mut Active, tag: u32, flight: &Flight) -> Result<(), Damage> {
        let reading = &mut active.reading;
        match flight.errno {
            _ if reading.is_dead => Ok(()),
            0 if active.straight.is_some() => {
                reading.pass((flight.want - flight.head).into());
                Ok(())
            }
            0 => reading.take(&self.slots.bytes(tag)[flight.head as usize..flight.want as usize]),
            libc::ENODATA => {
                let ends = flight.offset + u64::from(flight.got);
                let what = format!("the file ends there; it had {} bytes when it was opened", reading.bytes);
                Err(Damage::new(reading.records(), ends, what))
            }
            errno => {
                let what = match self.note_of(tag) {
                    Some(note) => note.into(),
                    None => format!("reading failed: {}", std::io::Error::from_raw_os_error(errno)),
                };
                Err(Damage::new(reading.records(), flight.offset, what))
            }
        }
    }

    /// Books what a read brought, and how long it took to parse.
    fn count(&self, flight: &Flight, parse_ns: u64) {
        let counters = self.counters();
        add(&counters.parse_ns, parse_ns);
        add(&counters.ios, 1);
        if self.copiers.is_empty() {
            // Others are counted where they end.
            let whole = flight.errno == 0;
            let got = if whole { flight.want } else { flight.got };
            counters.ways.add(self.via, got.saturating_sub(flight.head).into());
        }
    }

    /// Copies parsed data to its destination, or drops it.
    fn pass_on(&mut self, active: &mut Active, tag: u32, samples: u32, now: u64) {
        if active.reading.is_dead || self.copiers.is_empty() {
            self.let_go(active, tag);
            self.report(active, samples, now);
        } else if active.straight.is_some() {
            self.flights[tag as usize].whole = samples;
            self.keep(active, tag);
            self.report(active, samples, now);
        } else {
            self.copy_on(active, tag, samples);
        }
    }

    /// Sends what was parsed to the destination.
    fn copy_on(&mut self, active: &mut Active, tag: u32, samples: u32) {
        let Some(destination) = self.shared.board.destination.as_ref() else { return };
        let turn = destination.turn_of(active.rank);
        let to = match destination.take(turn) {
            Ok(to) => to,
            Err(error) => {
                self.client.release(tag);
                active.reading.give_up();
                self.board().fail(error);
                return;
            }
        };
        let flight = &mut self.flights[tag as usize];
        (flight.to, flight.whole) = (Some(to), samples);
        let (head, want) = (flight.head as usize, flight.want as usize);
        active.copying.push_back(tag);
        self.copiers[turn].start(tag, self.slots.lend(tag).after(head), to, want - head);
    }

    /// Completes samples whose bytes arrived at the destination, where they stay until their step.
    fn settle_copies(&mut self, active: &mut Active) -> bool {
        if self.copiers.is_empty() {
            return false;
        }
        let mut copies = std::mem::take(&mut self.copies);
        self.copiers.iter_mut().for_each(|copier| copier.reap(&mut copies));
        for (tag, fault) in copies.drain(..) {
            self.end_copy(tag, fault);
        }
        self.copies = copies;
        let mut any = false;
        while let Some(tag) = active.copying.front().copied().filter(|tag| self.flights[*tag as usize].copied)
        {
            active.copying.pop_front();
            let whole = self.flights[tag as usize].whole;
            self.keep(active, tag);
            let now = self.now();
            self.report(active, whole, now);
            any = true;
        }
        any
    }

    /// A copy to the destination has ended, and its bytes count.
    pub(super) fn end_copy(&mut self, tag: u32, fault: Option<Fault>) {
        let flight = &mut self.flights[tag as usize];
        flight.copied = true;
        let bytes = flight.want - flight.head;
        self.slots.is_back(tag);
        match fault {
            None => self.counters().ways.add(self.via, bytes.into()),
            Some(fault) => {
                let asked = format!("copy to {}", self.shared.spec.destination);
                self.board().fail(Error::run(asked, fault.to_string(), "nvidia-smi; dmesg | tail"));
            }
        }
    }

    /// Keeps what lies at the destination until its step.
    fn keep(&mut self, active: &Active, tag: u32) {
        self.client.release(tag);
        let Flight { to, whole, .. } = self.flights[tag as usize];
        if let (Some(destination), Some(piece)) = (&self.shared.board.destination, to) {
            // Of the sample that ends last, which may be under way.
            let last = u64::from(whole.min(active.stream.samples - 1));
            let number = active.stream.position + last * u64::from(active.stream.stride);
            let batch = (number / u64::from(self.shared.plan.batch)) as u32;
            destination.keep(batch, destination.turn_of(active.rank), piece);
        }
    }

    /// Releases what was read, and is not wanted.
    fn let_go(&mut self, active: &Active, tag: u32) {
        self.client.release(tag);
        let piece = self.flights[tag as usize].to.take();
        if let (Some(destination), Some(piece)) = (&self.shared.board.destination, piece) {
            destination.give_back(destination.turn_of(active.rank), piece);
        }
    }

    /// Tells the scheduler of samples that are whole.
    pub(super) fn report(&mut self, active: &mut Active, samples: u32, now: u64) {
        if samples <= active.reported {
            return;
        }
        let sound = active.reading.sound(samples - active.reported);
        add(&self.counters().samples, sound.into());
        active.reported = samples;
        self.tell(active, samples, now);
    }

    pub(super) fn give_back(&mut self, mut active: Active) {
        // Whoever reads it next has a queue of its own.
        if let Some(queue) = active.straight.take() {
            drop(self.client.remove(queue));
        }
        add(&self.counters().payload_bytes, active.reading.take_payload());
        // The epoch may have ended with its last sample, and the next one begun.
        self.board().change(|s| match s.begun() == active.epoch {
            true => s.give_back(active.rank, active.lane, active.reading),
            false => s.drop_off(active.reading),
        });
    }

    pub(super) fn tell(&self, active: &Active, samples: u32, now: u64) {
        self.board().change(|s| {
            if s.begun() == active.epoch {
                s.report(active.rank, active.lane, samples, now);
            }
        });
    }
}

/// A file that holds fewer samples than were expected of it is damaged.
fn is_long_enough(reading: &Reading) -> Result<(), Damage> {
    if !reading.is_short() {
        return Ok(());
    }
    let records = reading.records();
    let what = format!("the file holds {records} samples, fewer than the workload says");
    Err(Damage::new(records, reading.at, what))
}
