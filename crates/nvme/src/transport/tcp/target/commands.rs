//! Commands in flight of the target's end: a slot for each, which its handle names, and R2Ts as their tag.

use super::super::pdu::field;
use super::super::pdu::invalid;
use super::super::pdu::Transfer;
use super::super::pdu::{self, flag};
use super::super::Fatal;
use super::super::FatalStatus;
use super::super::Handle;
use crate::command::Cqe;

/// Commands that may be in flight before Connect has said how many: it comes alone.
const DEPTH_BEFORE_CONNECT: u16 = 2;
/// A place in `Commands::cids` that no identifier equals.
const NO_CID: u32 = u32::MAX;

/// Place of a command.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    pub cid: u16,
    pub cqe: Cqe,
    /// Bytes of data to come from the host: wanted in all, asked for by R2T (or in the capsule), here.
    pub wanted: u32,
    pub granted: u32,
    pub arrived: u32,
    /// An R2T is to be sent, or its data are still to come.
    pub asking: bool,
    /// Its completion is set: data that still come are dropped.
    pub over: bool,
}

/// What is next, once a PDU's data are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// More of those that were asked for.
    Waits,
    /// All of them are here, and the command is over: its response.
    Respond,
    /// More are wanted: an R2T.
    Ask,
    /// All that were asked for are here, and wanted.
    Whole,
}

impl Slot {
    /// Its completion is set.
    pub fn end(&mut self, cqe: Cqe) {
        (self.over, self.cqe) = (true, cqe);
    }

    /// Books the data of a PDU, which are here.
    pub fn data_ended(&mut self, bytes: u32) -> Ended {
        self.arrived += bytes;
        if self.arrived < self.granted {
            return Ended::Waits;
        }
        if self.over {
            return Ended::Respond;
        }
        self.asking = self.wanted > self.granted;
        match self.asking {
            true => Ended::Ask,
            false => Ended::Whole,
        }
    }

    /// The header of H2CData (tcp, section 3.6.2.8), of at most `most` bytes.
    ///
    /// # Errors
    /// They aren't those that may come next.
    fn check_data(&self, header: &Transfer, bytes: u32, most: u32) -> Result<(), Fatal> {
        if header.cid.get() != self.cid {
            return Err(invalid(field::CID, "CCCID isn't that of the command that the transfer tag names"));
        }
        if header.len.get() != bytes {
            return Err(invalid(field::LEN, "DATAL isn't the data's length"));
        }
        if bytes > most {
            return Err(Fatal::new(FatalStatus::LimitExceeded, 0, "data of a PDU exceed MAXH2CDATA"));
        }
        if header.offset.get() != self.arrived {
            return Err(Fatal::new(FatalStatus::DataOutOfRange, 0, "data aren't those behind the last ones"));
        }
        let left = self.granted - self.arrived;
        if bytes > left {
            return Err(Fatal::new(FatalStatus::DataOutOfRange, 0, "more data came than R2T asked for"));
        }
        if (header.ch.flags & flag::LAST != 0) != (bytes == left) {
            return Err(invalid(
                pdu::at::FLAGS,
                "LAST_PDU isn't set on what R2T asked for last, and only there",
            ));
        }
        Ok(())
    }
}

/// Commands in flight, `depth` at most, and slots of some that are answered.
pub(super) struct Commands {
    slots: Vec<Slot>,
    /// Command identifiers of the slots, `NO_CID` where none is in flight that another may conflict with.
    cids: Vec<u32>,
    free: Vec<u16>,
    /// Answered, while the list that holds their payload may still be on its way.
    parked: Vec<u16>,
    depth: u16,
    in_flight: u16,
    /// Bytes of all that are wanted and haven't come.
    awaited: u64,
}

impl Commands {
    pub fn new() -> Commands {
        Commands {
            slots: Vec::new(),
            cids: Vec::new(),
            free: Vec::new(),
            parked: Vec::new(),
            depth: DEPTH_BEFORE_CONNECT,
            in_flight: 0,
            awaited: 0,
        }
    }

    /// Connect said how many may be in flight; how many they are then.
    pub fn set_depth(&mut self, entries: u16) -> u16 {
        self.depth = entries.clamp(DEPTH_BEFORE_CONNECT, 1 << 15);
        self.depth
    }

    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.in_flight == self.depth
    }

    #[inline]
    pub fn awaited(&self) -> u64 {
        self.awaited
    }

    /// A command with this identifier is in flight. A conflict may be looked for among all of them (base, figure 95), and
    /// is.
    #[inline]
    pub fn conflicts(&self, cid: u16) -> bool {
        self.cids.contains(&u32::from(cid))
    }

    /// Takes a slot for a command whose capsule carries so many bytes.
    #[inline]
    pub fn add(&mut self, cid: u16, in_capsule: u32) -> u16 {
        self.in_flight += 1;
        let index = self.free.pop().unwrap_or(self.slots.len() as u16);
        if usize::from(index) == self.slots.len() {
            self.slots.push(Slot::default());
            self.cids.push(NO_CID);
        }
        let slot = Slot { cid, granted: in_capsule, wanted: in_capsule, ..Slot::default() };
        self.slots[usize::from(index)] = slot;
        self.cids[usize::from(index)] = cid.into();
        index
    }

    #[inline]
    pub fn slot(&mut self, index: u16) -> &mut Slot {
        &mut self.slots[usize::from(index)]
    }

    /// More data of a command are wanted; true: an R2T is due.
    pub fn want(&mut self, index: u16, bytes: u32) -> bool {
        self.awaited += u64::from(bytes);
        let slot = self.slot(index);
        assert!(!slot.over, "data are asked for by a command that is completed");
        slot.wanted += bytes;
        let due = bytes > 0 && !slot.asking;
        slot.asking |= due;
        due
    }

    /// Completes a command; false: behind data that are still to come.
    pub fn complete(&mut self, index: u16, cqe: Cqe) -> bool {
        let slot = &mut self.slots[usize::from(index)];
        assert!(!slot.over, "a command is completed once");
        slot.end(cqe);
        // What was never asked for never comes.
        self.awaited -= u64::from(slot.wanted - slot.granted);
        slot.wanted = slot.granted;
        slot.arrived == slot.wanted
    }

    /// No other command conflicts with its identifier any more.
    pub fn forget_cid(&mut self, command: Handle) {
        self.cids[usize::from(command.0)] = NO_CID;
    }

    /// Books the data of H2CData, before they come: the command's slot, their offset, and whether they are wanted.
    ///
    /// # Errors
    /// They aren't those that may come next.
    pub fn data_comes(
        &mut self,
        header: &Transfer,
        bytes: u32,
        most: u32,
    ) -> Result<(u16, u32, bool), Fatal> {
        let index = header.tag.get();
        let slot = match self.slots.get(usize::from(index)) {
            Some(slot) if self.cids[usize::from(index)] != NO_CID && slot.arrived < slot.granted => slot,
            _ => return Err(invalid(field::TAG, "no R2T with this transfer tag is outstanding")),
        };
        slot.check_data(header, bytes, most)?;
        self.awaited -= u64::from(bytes);
        Ok((index, slot.arrived, !slot.over))
    }

    /// A command is answered. `parked`: the list holds its payload, and its slot is free once that is sent.
    #[inline]
    pub fn release(&mut self, index: u16, parked: bool) {
        self.cids[usize::from(index)] = NO_CID;
        self.in_flight -= 1;
        match parked {
            true => self.parked.push(index),
            false => self.free.push(index),
        }
    }

    /// The last list is sent.
    #[inline]
    pub fn list_is_sent(&mut self) {
        self.free.append(&mut self.parked);
    }
}
