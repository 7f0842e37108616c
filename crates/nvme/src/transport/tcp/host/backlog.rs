//! What the host's end is to send.

use super::super::pdu::flag;
use super::super::pdu::kind;
use super::super::pdu::CapsuleCmd;
use super::super::pdu::CommonHeader;
use super::super::pdu::Rules;
use super::super::pdu::Transfer;
use super::super::Handle;
use super::super::Outgoing;
use super::commands::Commands;
use super::Data;
use super::HEADER;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// An R2T to answer.
pub(super) struct Asked {
    pub slot: u16,
    pub cid: u16,
    pub tag: u16,
    pub offset: u32,
    pub len: u32,
}

/// Commands to send, and R2Ts to answer, each in order.
pub(super) struct Backlog {
    commands: VecDeque<u16>,
    asked: VecDeque<Asked>,
    /// Counts lists made by `HostEnd::take_outgoing`.
    round: u32,
}

impl Backlog {
    pub fn new(depth: u16) -> Backlog {
        Backlog {
            commands: VecDeque::with_capacity(usize::from(depth)),
            asked: VecDeque::with_capacity(usize::from(depth)),
            round: 0,
        }
    }

    #[inline]
    pub fn push(&mut self, slot: u16) {
        self.commands.push_back(slot);
    }

    #[inline]
    pub fn ask(&mut self, asked: Asked) {
        self.asked.push_back(asked);
    }

    /// The list that was begun last.
    #[inline]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Another list begins.
    #[inline]
    pub fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Lists all of it, by the connection's rules; data in PDUs of at most `max_h2c`.
    pub fn list(&mut self, commands: &mut Commands, rules: &Rules, max_h2c: u32, out: &mut Outgoing) {
        while let Some(index) = self.commands.pop_front() {
            self.list_command(index, commands, rules, out);
        }
        while let Some(asked) = self.asked.pop_front() {
            self.list_data(&asked, commands, rules, max_h2c, out);
        }
    }

    #[inline]
    fn list_command(&self, index: u16, commands: &mut Commands, rules: &Rules, out: &mut Outgoing) {
        let slot = commands.slot(index);
        slot.sent = true;
        let data = match slot.data {
            Data::Out { len } if slot.in_capsule => len,
            _ => 0,
        };
        let ch = CommonHeader::new(kind::CAPSULE_CMD, size_of::<CapsuleCmd>(), data, rules);
        out.push_header(&ch, CapsuleCmd { ch, sqe: slot.sqe }.as_bytes());
        if data > 0 {
            slot.listed = self.round;
            out.push_data(&ch, Handle(index), 0, data);
        }
    }

    /// Answers an R2T, in PDUs of at most MAXH2CDATA (tcp, section 3.3.2).
    fn list_data(
        &self,
        asked: &Asked,
        commands: &mut Commands,
        rules: &Rules,
        max_h2c: u32,
        out: &mut Outgoing,
    ) {
        let slot = commands.slot(asked.slot);
        if !slot.in_flight || slot.sqe.cid.get() != asked.cid {
            return; // The controller completed it meanwhile.
        }
        slot.r2ts -= 1;
        slot.listed = self.round;
        let mut done = 0;
        while done < asked.len {
            let len = (asked.len - done).min(max_h2c);
            let mut ch = CommonHeader::new(kind::H2C_DATA, HEADER, len, rules);
            if done + len == asked.len {
                ch.flags |= flag::LAST;
            }
            let offset = asked.offset + done;
            let header = Transfer {
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
