//! Commands in flight of the host's end: a slot for each, which its identifier on the wire names.

use super::super::pdu::field;
use super::super::pdu::invalid;
use super::super::pdu::Transfer;
use super::super::pdu::{self, flag};
use super::super::Fatal;
use super::super::FatalStatus;
use super::super::Handle;
use super::{Data, Event};
use crate::command::{Cqe, Sqe};
use crate::status::{Code, Status};

/// Place of a command.
pub(super) struct Slot {
    pub sqe: Sqe,
    pub data: Data,
    pub in_flight: bool,
    pub sent: bool,
    pub in_capsule: bool,
    /// The controller said that no data follow.
    last: bool,
    /// A data digest differed.
    failed: bool,
    /// Bytes of a read that came, or of a write that were asked for.
    moved: u32,
    pub r2ts: u32,
    /// The list that has payload of it.
    pub listed: u32,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            sqe: Sqe::default(),
            data: Data::None,
            in_flight: false,
            sent: false,
            in_capsule: false,
            last: false,
            failed: false,
            moved: 0,
            r2ts: 0,
            listed: 0,
        }
    }
}

impl Slot {
    /// Books the data of a C2HData PDU (tcp, section 3.6.2.9), before they come: their offset, and whether they complete
    /// the command.
    ///
    /// # Errors
    /// They aren't those that may come next.
    pub fn data_comes(&mut self, header: &Transfer, bytes: u32) -> Result<(u32, bool), Fatal> {
        let beyond = |what| Err(Fatal::new(FatalStatus::DataOutOfRange, 0, what));
        let Data::In { len } = self.data else { return beyond("data came for a command that reads none") };
        if self.last {
            return Err(Fatal::new(
                FatalStatus::SequenceError,
                0,
                "data came behind a command's last data PDU",
            ));
        }
        if header.len.get() != bytes {
            return Err(invalid(field::LEN, "DATAL isn't the data's length"));
        }
        let last = header.ch.flags & flag::LAST != 0;
        let success = header.ch.flags & flag::SUCCESS != 0;
        if success && !last {
            return Err(invalid(pdu::at::FLAGS, "SUCCESS is set, LAST_PDU isn't"));
        }
        if header.offset.get() != self.moved {
            return beyond("data aren't those behind the last ones");
        }
        if bytes > len - self.moved {
            return beyond("more data came than the command asked for");
        }
        let offset = self.moved;
        self.moved += bytes;
        self.last = last;
        Ok((offset, success))
    }

    /// Books an R2T (tcp, section 3.6.2.10), of which `most` may be outstanding: offset and length of what it asks for.
    ///
    /// # Errors
    /// It asks for what it may not.
    pub fn asked_for(&mut self, header: &Transfer, most: u32) -> Result<(u32, u32), Fatal> {
        let beyond = |what| Err(Fatal::new(FatalStatus::DataOutOfRange, 0, what));
        let len = match self.data {
            Data::Out { len } if !self.in_capsule => len,
            _ => return beyond("R2T for a command with nothing to send"),
        };
        if self.r2ts == most {
            return Err(Fatal::new(FatalStatus::LimitExceeded, 0, "more R2Ts than MAXR2T are outstanding"));
        }
        let (offset, wanted) = (header.offset.get(), header.len.get());
        if wanted == 0 {
            return Err(invalid(field::LEN, "R2TL is 0"));
        }
        // Each byte goes once, and in order: what was asked for is never asked for again.
        if offset < self.moved || offset > len || wanted > len - offset {
            return beyond("R2T for data sent before, or not the command's");
        }
        self.moved = offset + wanted;
        self.r2ts += 1;
        Ok((offset, wanted))
    }
}

/// Commands in flight, `depth` at most, and slots of some that are over but whose data may still be on their way.
pub(super) struct Commands {
    depth: u16,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Low bits of a command identifier: its slot. Above them: how often that slot was used.
    slot_mask: u16,
    in_flight: u16,
    /// Reads in flight above `COPIED_MAX`.
    large: u16,
    /// The last read was not: the next one, which an idle connection waits for, won't be either.
    small: bool,
}

impl Commands {
    pub fn new(depth: u16) -> Commands {
        let slots = usize::from(depth) * 2;
        Commands {
            depth,
            slots: Vec::with_capacity(slots),
            free: Vec::with_capacity(slots),
            slot_mask: (slots.next_power_of_two() - 1) as u16,
            in_flight: 0,
            large: 0,
            small: false,
        }
    }

    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.in_flight == self.depth
    }

    /// Every read in flight, and the last one, is small.
    #[inline]
    pub fn reads_are_small(&self) -> bool {
        self.small && self.large == 0
    }

    #[inline]
    pub fn slot(&mut self, index: u16) -> &mut Slot {
        &mut self.slots[usize::from(index)]
    }

    /// The command identifier that a command in flight has on the wire.
    #[inline]
    pub fn cid(&self, command: Handle) -> u16 {
        self.slots[usize::from(command.0)].sqe.cid.get()
    }

    /// Puts a command into a free slot, which gives it its identifier, and says into which.
    #[inline]
    pub fn add(&mut self, mut sqe: Sqe, data: Data, in_capsule: bool) -> u16 {
        let index = self.free_slot();
        let slot = self.slot(index);
        sqe.cid = slot.sqe.cid;
        *slot = Slot { sqe, data, in_flight: true, in_capsule, ..Slot::default() };
        self.in_flight += 1;
        self.large += u16::from(data.is_large_read());
        if let Data::In { .. } = data {
            self.small = !data.is_large_read();
        }
        index
    }

    /// A free slot; its command identifier is set.
    fn free_slot(&mut self) -> u16 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        let index = self.slots.len() as u16;
        let sqe = Sqe { cid: index.into(), ..Sqe::default() };
        self.slots.push(Slot { sqe, ..Slot::default() });
        index
    }

    /// The slot of a command that the controller has.
    ///
    /// # Errors
    /// There is none: `field` of the header is wrong.
    pub fn find(&self, cid: u16, field: u32) -> Result<u16, Fatal> {
        let index = cid & self.slot_mask;
        match self.slots.get(usize::from(index)) {
            Some(slot) if slot.sent && slot.in_flight && slot.sqe.cid.get() == cid => Ok(index),
            _ => Err(invalid(field, "no command with this identifier is in flight")),
        }
    }

    /// The digest of a data PDU differed.
    pub fn fail(&mut self, command: Handle) {
        self.slot(command.0).failed = true;
    }

    /// A command is over; `round`: the list that was made last.
    pub fn complete(&mut self, command: Handle, mut cqe: Cqe, round: u32) -> Event<'static> {
        let slot = &mut self.slots[usize::from(command.0)];
        if slot.failed && cqe.status().is_success() {
            cqe.status = Status::again(Code::TRANSIENT_TRANSPORT_ERROR).to_bits().into();
        }
        let received = match slot.data {
            Data::In { .. } => slot.moved,
            _ => 0,
        };
        slot.in_flight = false;
        let held = slot.listed == round;
        // The next command of this slot has another identifier, and never FFFFh.
        let cid = slot.sqe.cid.get().wrapping_add(self.slot_mask.wrapping_add(1));
        slot.sqe.cid = if cid == u16::MAX { command.0 } else { cid }.into();
        self.in_flight -= 1;
        self.large -= u16::from(slot.data.is_large_read());
        if !held {
            self.free.push(command.0);
        }
        Event::Completed { command, cqe, received, held }
    }

    /// A command that completed as `held`: nothing of its data is still to be sent.
    #[inline]
    pub fn release(&mut self, command: Handle) {
        self.free.push(command.0);
    }
}
