//! PDUs received from the host.

use super::super::pdu;
use super::super::pdu::field;
use super::super::pdu::flag;
use super::super::pdu::invalid;
use super::super::pdu::Parts;
use super::super::pdu::Transfer;
use super::super::Fatal;
use super::super::FatalStatus;
use super::super::Handle;
use super::check_sgl;
use super::Found;
use super::Header;
use super::Ready;
use super::Slot;
use super::TargetEnd;
use super::What;
use super::NO_CID;
use crate::command::Cqe;
use crate::command::Sqe;
use crate::status::Code;
use crate::status::Status;

impl TargetEnd {
    /// CapsuleCmd (tcp, section 3.6.2.6).
    pub(super) fn capsule(&mut self, sqe: Sqe, parts: &Parts) -> Result<Header, Fatal> {
        if parts.data > self.options.in_capsule_max {
            return Err(invalid(pdu::at::PLEN, "a capsule carries more data than capsules may"));
        }
        if self.in_flight == self.depth {
            return Err(Fatal::new(
                FatalStatus::SequenceError,
                0,
                "more commands than the queue has entries",
            ));
        }
        let refusal = self.refusal(&sqe, parts.data);
        let index = self.slot(sqe.cid.get());
        let command = Handle(index);
        let slot = &mut self.slots[usize::from(index)];
        slot.granted = parts.data;
        slot.wanted = parts.data;
        if let Some(code) = refusal {
            slot.over = true;
            slot.cqe = Cqe::new(sqe.cid.get(), Status::fatal(code), 0);
            if parts.data == 0 {
                self.ready.push_back(Ready { slot: index, what: What::Response });
            }
        }
        if parts.data > 0 {
            self.framer.begin(parts, command, 0, refusal.is_none());
        } else {
            self.framer.consume(parts);
        }
        Ok(match refusal {
            Some(_) => Header::Taken,
            None => Header::Found(Found::Command(command, sqe, parts.data)),
        })
    }

    /// Why a command is completed here, and never seen by a controller.
    pub(super) fn refusal(&self, sqe: &Sqe, in_capsule: u32) -> Option<Code> {
        // A conflict may be looked for among all commands in flight (base, figure 95), and is.
        if self.cids.contains(&u32::from(sqe.cid.get())) {
            return Some(Code::COMMAND_ID_CONFLICT);
        }
        check_sgl(sqe, in_capsule).err()
    }

    /// Takes a slot for a command.
    pub(super) fn slot(&mut self, cid: u16) -> u16 {
        self.in_flight += 1;
        let index = self.free.pop().unwrap_or(self.slots.len() as u16);
        if usize::from(index) == self.slots.len() {
            self.slots.push(Slot::default());
            self.cids.push(NO_CID);
        }
        self.slots[usize::from(index)] = Slot { cid, ..Slot::default() };
        self.cids[usize::from(index)] = cid.into();
        index
    }

    /// H2CData (tcp, section 3.6.2.8).
    pub(super) fn data(&mut self, header: &Transfer, parts: &Parts) -> Result<Header, Fatal> {
        let index = header.tag.get();
        let slot = match self.slots.get_mut(usize::from(index)) {
            Some(slot) if self.cids[usize::from(index)] != NO_CID && slot.arrived < slot.granted => slot,
            _ => return Err(invalid(field::TAG, "no R2T with this transfer tag is outstanding")),
        };
        if header.cid.get() != slot.cid {
            return Err(invalid(field::CID, "CCCID isn't that of the command that the transfer tag names"));
        }
        if header.len.get() != parts.data {
            return Err(invalid(field::LEN, "DATAL isn't the data's length"));
        }
        if parts.data > self.options.max_h2c {
            return Err(Fatal::new(FatalStatus::LimitExceeded, 0, "data of a PDU exceed MAXH2CDATA"));
        }
        if header.offset.get() != slot.arrived {
            return Err(Fatal::new(FatalStatus::DataOutOfRange, 0, "data aren't those behind the last ones"));
        }
        let left = slot.granted - slot.arrived;
        if parts.data > left {
            return Err(Fatal::new(FatalStatus::DataOutOfRange, 0, "more data came than R2T asked for"));
        }
        if (header.ch.flags & flag::LAST != 0) != (parts.data == left) {
            return Err(invalid(
                pdu::at::FLAGS,
                "LAST_PDU isn't set on what R2T asked for last, and only there",
            ));
        }
        let (offset, kept) = (slot.arrived, !slot.over);
        self.awaited -= u64::from(parts.data);
        self.framer.begin(parts, Handle(index), offset, kept);
        Ok(Header::Taken)
    }
}
