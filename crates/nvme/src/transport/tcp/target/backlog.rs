//! What the target's end is to send.

use super::super::pdu::flag;
use super::super::pdu::kind;
use super::super::pdu::CapsuleResp;
use super::super::pdu::CommonHeader;
use super::super::pdu::Rules;
use super::super::pdu::Transfer;
use super::super::Handle;
use super::super::Outgoing;
use super::super::Segment;
use super::commands::Commands;
use crate::command::Cqe;
use crate::transport::flow::Flow;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

#[derive(Clone, Copy)]
enum What {
    R2t,
    Response,
    Data { len: u32 },
}

/// Segments ready to be sent, in order, of a connection with this flow control.
pub(super) struct Backlog {
    /// Command's slot, and what of it.
    ready: VecDeque<(u16, What)>,
    flow: Flow,
    /// Longest payload of one C2HData PDU, bytes.
    max_c2h: u32,
}

impl Backlog {
    pub fn new(max_c2h: u32) -> Backlog {
        Backlog { ready: VecDeque::new(), flow: Flow::None, max_c2h }
    }

    pub fn set_flow(&mut self, flow: Flow) {
        self.flow = flow;
    }

    #[inline]
    pub fn ask(&mut self, slot: u16) {
        self.ready.push_back((slot, What::R2t));
    }

    #[inline]
    pub fn respond(&mut self, slot: u16) {
        self.ready.push_back((slot, What::Response));
    }

    #[inline]
    pub fn send(&mut self, slot: u16, len: u32) {
        self.ready.push_back((slot, What::Data { len }));
    }

    /// Lists all of it, by the connection's rules.
    pub fn list(&mut self, commands: &mut Commands, rules: &Rules, out: &mut Outgoing) {
        while let Some((slot, what)) = self.ready.pop_front() {
            match what {
                What::R2t => list_r2t(slot, commands, rules, out),
                What::Response => {
                    self.list_response(slot, commands, rules, out);
                    commands.release(slot, false);
                }
                What::Data { len } => self.list_data(slot, len, commands, rules, out),
            }
        }
    }

    #[inline]
    fn list_response(&mut self, index: u16, commands: &mut Commands, rules: &Rules, out: &mut Outgoing) {
        let slot = commands.slot(index);
        let ch = CommonHeader::new(kind::CAPSULE_RESP, size_of::<CapsuleResp>(), 0, rules);
        let cqe = Cqe { cid: slot.cid.into(), sqhd: self.flow.head().into(), ..slot.cqe };
        out.push_header(&ch, CapsuleResp { ch, cqe }.as_bytes());
    }

    /// A read's data, in PDUs of at most `max_c2h`, and its response.
    #[inline]
    fn list_data(
        &mut self,
        index: u16,
        len: u32,
        commands: &mut Commands,
        rules: &Rules,
        out: &mut Outgoing,
    ) {
        let slot = *commands.slot(index);
        let success = len > 0 && self.flow.may_say_success(&slot.cqe);
        let mut offset = 0;
        while offset < len {
            let part = (len - offset).min(self.max_c2h);
            let mut ch = CommonHeader::new(kind::C2H_DATA, size_of::<Transfer>(), part, rules);
            if offset + part == len {
                ch.flags |= flag::LAST | if success { flag::SUCCESS } else { 0 };
            }
            let (cid, offset_field) = (slot.cid.into(), offset.into());
            let header = Transfer { ch, cid, offset: offset_field, len: part.into(), ..Transfer::default() };
            out.push_header(&ch, header.as_bytes());
            out.push_data(&ch, Handle(index), offset, part);
            offset += part;
        }
        if !success {
            self.list_response(index, commands, rules, out);
        }
        commands.release(index, true);
        out.segments.push(Segment::Release { command: Handle(index) });
    }
}

/// One R2T for all that is wanted: a command never has a second one outstanding, whatever MAXR2T allows.
fn list_r2t(index: u16, commands: &mut Commands, rules: &Rules, out: &mut Outgoing) {
    let slot = commands.slot(index);
    let len = slot.wanted - slot.granted;
    if len == 0 {
        return; // It was completed meanwhile.
    }
    let ch = CommonHeader::new(kind::R2T, size_of::<Transfer>(), 0, rules);
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
