//! PDUs sent by the target's end.

use super::super::pdu;
use super::super::pdu::flag;
use super::super::pdu::kind;
use super::super::pdu::CapsuleResp;
use super::super::pdu::CommonHeader;
use super::super::pdu::Transfer;
use super::super::Handle;
use super::super::Outgoing;
use super::super::Segment;
use super::Ready;
use super::State;
use super::TargetEnd;
use super::What;
use crate::command::Cqe;
use zerocopy::IntoBytes;

impl TargetEnd {
    pub fn take_outgoing(&mut self, out: &mut Outgoing) {
        self.free.append(&mut self.parked);
        match self.state {
            State::Start => {}
            State::Answering => {
                self.state = State::Ready;
                out.push_bytes(self.ic_resp().as_bytes());
            }
            State::Ready => {
                while let Some(Ready { slot, what }) = self.ready.pop_front() {
                    match what {
                        What::R2t => self.list_r2t(slot, out),
                        What::Response => self.list_response(slot, out),
                        What::Data { len } => self.list_data(slot, len, out),
                    }
                }
            }
            State::Ended(_) => {
                if let Some(term) = self.term.take() {
                    out.push_bytes(&term);
                }
            }
        }
    }

    pub(super) fn ic_resp(&self) -> pdu::IcResp {
        let header = if self.incoming.header_digest { pdu::digest::HEADER } else { 0 };
        let data = if self.incoming.data_digest { pdu::digest::DATA } else { 0 };
        pdu::IcResp {
            ch: CommonHeader::plain(kind::IC_RESP, size_of::<pdu::IcResp>(), 0),
            format: 0.into(),
            cpda: 0,
            digests: header | data,
            max_h2c: self.options.max_h2c.into(),
            reserved: [0; 112],
        }
    }

    /// One R2T for all that is wanted: a command never has a second one outstanding, whatever MAXR2T allows.
    pub(super) fn list_r2t(&mut self, index: u16, out: &mut Outgoing) {
        let slot = &mut self.slots[usize::from(index)];
        let len = slot.wanted - slot.granted;
        if len == 0 {
            return; // It was completed meanwhile.
        }
        let ch = CommonHeader::new(kind::R2T, size_of::<Transfer>(), 0, &self.outgoing);
        let header = Transfer {
            ch,
            cid: slot.cid.into(),
            tag: index.into(),
            offset: slot.granted.into(),
            len: len.into(),
            reserved: [0; 4],
        };
        slot.granted = slot.wanted;
        out.push_header(&ch, header.as_bytes());
    }

    pub(super) fn list_response(&mut self, index: u16, out: &mut Outgoing) {
        let slot = &self.slots[usize::from(index)];
        let ch = CommonHeader::new(kind::CAPSULE_RESP, size_of::<CapsuleResp>(), 0, &self.outgoing);
        let cqe = Cqe { cid: slot.cid.into(), sqhd: self.flow.head().into(), ..slot.cqe };
        out.push_header(&ch, CapsuleResp { ch, cqe }.as_bytes());
        self.release(index);
        self.free.push(index);
    }

    /// A read's data, in PDUs of at most `max_c2h`, and its response.
    pub(super) fn list_data(&mut self, index: u16, len: u32, out: &mut Outgoing) {
        let slot = self.slots[usize::from(index)];
        let success = len > 0 && self.flow.may_say_success(&slot.cqe);
        let mut offset = 0;
        while offset < len {
            let part = (len - offset).min(self.options.max_c2h);
            let mut ch = CommonHeader::new(kind::C2H_DATA, size_of::<Transfer>(), part, &self.outgoing);
            if offset + part == len {
                ch.flags |= flag::LAST | if success { flag::SUCCESS } else { 0 };
            }
            let (cid, offset_field) = (slot.cid.into(), offset.into());
            let header = Transfer { ch, cid, offset: offset_field, len: part.into(), ..Transfer::default() };
            out.push_header(&ch, header.as_bytes());
            out.push_data(&ch, Handle(index), offset, part);
            offset += part;
        }
        if success {
            self.release(index);
        } else {
            self.list_response(index, out);
            self.free.pop();
        }
        self.parked.push(index);
        out.segments.push(Segment::Release { command: Handle(index) });
    }
}
