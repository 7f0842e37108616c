//! PDUs sent by the host's end.

use super::super::pdu;
use super::super::pdu::flag;
use super::super::pdu::kind;
use super::super::pdu::CapsuleCmd;
use super::super::pdu::CommonHeader;
use super::super::Handle;
use super::super::Outgoing;
use super::Asked;
use super::Data;
use super::HostEnd;
use super::State;
use super::HEADER;
use zerocopy::IntoBytes;

impl HostEnd {
    /// Appends all that can be sent now. What it lists is sent before it is called again.
    pub fn take_outgoing(&mut self, out: &mut Outgoing) {
        self.round = self.round.wrapping_add(1);
        match self.state {
            State::Greeting => {
                self.state = State::Greeted;
                out.push_bytes(self.ic_req().as_bytes());
            }
            State::Greeted => {}
            State::Ready => {
                while let Some(index) = self.commands.pop_front() {
                    self.list_command(index, out);
                }
                while let Some(asked) = self.asked.pop_front() {
                    self.list_data(&asked, out);
                }
            }
            State::Ended(_) => {
                if let Some(term) = self.term.take() {
                    out.push_bytes(&term);
                }
            }
        }
    }

    pub(super) fn ic_req(&self) -> pdu::IcReq {
        let header = if self.options.header_digest { pdu::digest::HEADER } else { 0 };
        let data = if self.options.data_digest { pdu::digest::DATA } else { 0 };
        pdu::IcReq {
            ch: CommonHeader::plain(kind::IC_REQ, size_of::<pdu::IcReq>(), 0),
            format: 0.into(),
            hpda: 0,
            digests: header | data,
            max_r2t: (self.options.r2ts - 1).into(),
            reserved: [0; 112],
        }
    }

    pub(super) fn list_command(&mut self, index: u16, out: &mut Outgoing) {
        let slot = &mut self.slots[usize::from(index)];
        slot.sent = true;
        let data = match slot.data {
            Data::Out { len } if slot.in_capsule => len,
            _ => 0,
        };
        let ch = CommonHeader::new(kind::CAPSULE_CMD, size_of::<CapsuleCmd>(), data, &self.outgoing);
        out.push_header(&ch, CapsuleCmd { ch, sqe: slot.sqe }.as_bytes());
        if data > 0 {
            slot.listed = self.round;
            out.push_data(&ch, Handle(index), 0, data);
        }
    }

    /// Answers an R2T, in PDUs of at most MAXH2CDATA (tcp, section 3.3.2).
    pub(super) fn list_data(&mut self, asked: &Asked, out: &mut Outgoing) {
        let slot = &mut self.slots[usize::from(asked.slot)];
        if !slot.in_flight || slot.sqe.cid.get() != asked.cid {
            return; // The controller completed it meanwhile.
        }
        slot.r2ts -= 1;
        slot.listed = self.round;
        let mut done = 0;
        while done < asked.len {
            let len = (asked.len - done).min(self.max_h2c);
            let mut ch = CommonHeader::new(kind::H2C_DATA, HEADER, len, &self.outgoing);
            if done + len == asked.len {
                ch.flags |= flag::LAST;
            }
            let offset = asked.offset + done;
            let header = pdu::Transfer {
                ch,
                cid: asked.cid.into(),
                tag: asked.tag.into(),
                offset: offset.into(),
                len: len.into(),
                reserved: [0; 4],
            };
            out.push_header(&ch, header.as_bytes());
            out.push_data(&ch, Handle(asked.slot), offset, len);
            done += len;
        }
    }
}
