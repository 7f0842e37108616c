//! PDUs received from the target.

use super::super::pdu;
use super::super::pdu::field;
use super::super::pdu::flag;
use super::super::pdu::invalid;
use super::super::pdu::Parts;
use super::super::Fatal;
use super::super::FatalStatus;
use super::super::Handle;
use super::Asked;
use super::Data;
use super::Event;
use super::Found;
use super::Header;
use super::HostEnd;
use crate::command::Cqe;
use crate::status::Code;
use crate::status::Status;

impl HostEnd {
    /// The slot of a command that the controller has.
    pub(super) fn find(&self, cid: u16, field: u32) -> Result<u16, Fatal> {
        let index = cid & self.slot_mask;
        match self.slots.get(usize::from(index)) {
            Some(slot) if slot.sent && slot.in_flight && slot.sqe.cid.get() == cid => Ok(index),
            _ => Err(invalid(field, "no command with this identifier is in flight")),
        }
    }

    pub(super) fn response(&mut self, cqe: Cqe, parts: &Parts) -> Result<Header, Fatal> {
        let index = self.find(cqe.cid.get(), field::RESP_CID)?;
        self.framer.consume(parts);
        Ok(Header::Found(Found::Completed(Handle(index), cqe)))
    }

    /// C2HData (tcp, section 3.6.2.9).
    pub(super) fn data(&mut self, header: &pdu::Transfer, parts: &Parts) -> Result<Header, Fatal> {
        let index = self.find(header.cid.get(), field::CID)?;
        let slot = &mut self.slots[usize::from(index)];
        let Data::In { len } = slot.data else {
            return Err(Fatal::new(
                FatalStatus::DataOutOfRange,
                0,
                "data came for a command that reads none",
            ));
        };
        if slot.last {
            return Err(Fatal::new(
                FatalStatus::SequenceError,
                0,
                "data came behind a command's last data PDU",
            ));
        }
        if header.len.get() != parts.data {
            return Err(invalid(field::LEN, "DATAL isn't the data's length"));
        }
        let last = header.ch.flags & flag::LAST != 0;
        let success = header.ch.flags & flag::SUCCESS != 0;
        if success && !last {
            return Err(invalid(pdu::at::FLAGS, "SUCCESS is set, LAST_PDU isn't"));
        }
        if header.offset.get() != slot.moved {
            return Err(Fatal::new(FatalStatus::DataOutOfRange, 0, "data aren't those behind the last ones"));
        }
        if parts.data > len - slot.moved {
            return Err(Fatal::new(
                FatalStatus::DataOutOfRange,
                0,
                "more data came than the command asked for",
            ));
        }
        let offset = slot.moved;
        slot.moved += parts.data;
        slot.last = last;
        self.success = success;
        self.framer.begin(parts, Handle(index), offset, true);
        Ok(Header::Taken)
    }

    /// R2T (tcp, section 3.6.2.10).
    pub(super) fn asked_for(&mut self, header: &pdu::Transfer, parts: &Parts) -> Result<Header, Fatal> {
        let index = self.find(header.cid.get(), field::CID)?;
        let slot = &mut self.slots[usize::from(index)];
        let len = match slot.data {
            Data::Out { len } if !slot.in_capsule => len,
            _ => {
                return Err(Fatal::new(
                    FatalStatus::DataOutOfRange,
                    0,
                    "R2T for a command with nothing to send",
                ))
            }
        };
        if slot.r2ts == self.options.r2ts {
            return Err(Fatal::new(FatalStatus::LimitExceeded, 0, "more R2Ts than MAXR2T are outstanding"));
        }
        let (offset, wanted) = (header.offset.get(), header.len.get());
        if wanted == 0 {
            return Err(invalid(field::LEN, "R2TL is 0"));
        }
        // Each byte goes once, and in order: what was asked for is never asked for again.
        if offset < slot.moved || offset > len || wanted > len - offset {
            return Err(Fatal::new(
                FatalStatus::DataOutOfRange,
                0,
                "R2T for data sent before, or not the command's",
            ));
        }
        slot.moved = offset + wanted;
        slot.r2ts += 1;
        let (cid, tag) = (header.cid.get(), header.tag.get());
        self.asked.push_back(Asked { slot: index, cid, tag, offset, len: wanted });
        self.framer.consume(parts);
        Ok(Header::Taken)
    }

    pub(super) fn complete(&mut self, command: Handle, mut cqe: Cqe) -> Event<'static> {
        let slot = &mut self.slots[usize::from(command.0)];
        if slot.failed && cqe.status().is_success() {
            cqe.status = Status::again(Code::TRANSIENT_TRANSPORT_ERROR).to_bits().into();
        }
        let received = match slot.data {
            Data::In { .. } => slot.moved,
            _ => 0,
        };
        slot.in_flight = false;
        let held = slot.listed == self.round;
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
    pub fn release(&mut self, command: Handle) {
        self.free.push(command.0);
    }
}
