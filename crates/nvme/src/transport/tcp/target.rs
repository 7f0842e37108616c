//! The controller's end of a connection.

mod backlog;
mod commands;

use super::frame::{Framer, Step};
use super::pdu;
use super::pdu::field;
use super::pdu::invalid;
use super::pdu::kind;
use super::pdu::read;
use super::pdu::CapsuleCmd;
use super::pdu::Carries;
use super::pdu::CommonHeader;
use super::pdu::{Parts, Rules, Transfer};
use super::Expect;
use super::Fatal;
use super::FatalStatus;
use super::Handle;
use super::Outgoing;
use super::PayloadPlace;
use crate::command::{Cqe, Sgl, Sqe, FABRICS};
use crate::status::{Code, Status};
use crate::transport::flow::Flow;
use backlog::Backlog;
use commands::{Commands, Ended};
use std::ops::Range;
use zerocopy::IntoBytes;

/// Data that any Fabrics or admin command may carry in its capsule (tcp, section 3.3.1).
const IN_CAPSULE_LEAST: u32 = 8192;
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Digest that a host may have.
    pub header_digest: bool,
    pub data_digest: bool,
    /// Data that a command capsule may carry, bytes; 8192 where it is less, for Fabrics and admin commands.
    pub in_capsule_max: u32,
    /// MAXH2CDATA: longest H2CData PDU's payload, bytes, a multiple of 4, at least 4096.
    pub max_h2c: u32,
    /// Longest payload of one C2HData PDU, bytes, a multiple of 4.
    pub max_c2h: u32,
    /// Bytes that one receive may take into the own buffer: many capsules, with what data they carry.
    pub bulk: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// ICReq came and was answered.
    Ready {
        header_digest: bool,
        data_digest: bool,
    },
    /// A command. `in_capsule` bytes of data follow it: `expect` names their place before anything else may come,
    /// so the driver gives them one before it receives on.
    Command {
        command: Handle,
        sqe: Sqe,
        in_capsule: u32,
    },
    Placed(PayloadPlace),
    Copy {
        place: PayloadPlace,
        bytes: &'a [u8],
    },
    /// A data PDU (or a capsule's data) with a digest is complete: compare with CRC32C of `place`. If it differs,
    /// complete the command with Transient Transport Error.
    DataEnd {
        place: PayloadPlace,
        digest: u32,
    },
    /// All data that were in the capsule or asked for by `request` are here.
    DataComplete {
        command: Handle,
    },
}

pub struct TargetEnd {
    options: Options,
    framer: Framer,
    state: TargetState,
    incoming: Rules,
    outgoing: Rules,
    commands: Commands,
    backlog: Backlog,
    /// All data of this command are here, to be told behind their digest.
    arrived: Option<Handle>,
    term: Option<Vec<u8>>,
}

enum TargetState {
    /// ICReq is awaited.
    Start,
    /// ICResp is to be sent.
    Answering,
    Ready,
    Ended(Fatal),
}

/// An event, before it borrows.
enum Found {
    Ready,
    Command(Handle, Sqe, u32),
    Placed(PayloadPlace),
    Copy(PayloadPlace, Range<usize>),
    DataEnd(PayloadPlace, u32),
    DataComplete(Handle),
}

/// Result of a header.
enum Header {
    Wait,
    Taken,
    Found(Found),
}

impl TargetEnd {
    pub fn new(options: Options) -> TargetEnd {
        let options = Options {
            in_capsule_max: options.in_capsule_max.clamp(IN_CAPSULE_LEAST, pdu::DATA_MAX),
            max_h2c: (options.max_h2c & !3).clamp(pdu::MAX_H2C_LEAST, pdu::DATA_MAX),
            max_c2h: (options.max_c2h & !3).clamp(pdu::MAX_H2C_LEAST, pdu::DATA_MAX),
            ..options
        };
        TargetEnd {
            options,
            framer: Framer::new(options.bulk),
            state: TargetState::Start,
            incoming: Rules { align: 4, ..Rules::default() },
            outgoing: Rules { align: 4, ..Rules::default() },
            commands: Commands::new(),
            backlog: Backlog::new(options.max_c2h),
            arrived: None,
            term: None,
        }
    }

    /// On Connect, before it is completed: entries of the submission queue (SQSIZE + 1; a command more than that
    /// many is fatal), and whether the host left SQ flow control on (CATTR bit 2 clear). Without it completions
    /// carry no SQHD, and only then may a read end with the SUCCESS flag (tcp, section 3.3.2).
    pub fn set_depth(&mut self, entries: u16, flow_control: bool) {
        let depth = self.commands.set_depth(entries);
        self.backlog.set_flow(Flow::new(depth, flow_control));
    }

    /// Commands that came and whose answer wasn't listed yet.
    pub fn in_flight(&self) -> u16 {
        self.commands.in_flight()
    }

    /// Asks for the next `len` bytes of the command's data by R2T. They may be asked for piece by piece;
    /// `DataComplete` comes when all that were asked for so far are here.
    pub fn request(&mut self, command: Handle, len: u32) {
        if self.commands.want(command.0, len) {
            self.backlog.ask(command.0);
        }
    }

    /// Sends `len` bytes of the command's data, then completes it: with the SUCCESS flag instead of a response
    /// where flow control is off and `cqe` says no more than success. Ends with `Segment::Release`; the handle is
    /// free when that is sent.
    pub fn send(&mut self, command: Handle, len: u32, cqe: Cqe) {
        let slot = self.commands.slot(command.0);
        assert!(
            !slot.over && slot.arrived == slot.wanted,
            "a read is completed once, and has no data to come"
        );
        slot.end(cqe);
        self.backlog.send(command.0, len);
    }

    /// Completes a command without data to the host. Its handle is free. SQHD and CID are filled in here. It may come
    /// before `DataComplete`, but not while a receive into that command's payload is under way: data still to come
    /// are dropped here, and the completion goes out behind them.
    pub fn complete(&mut self, command: Handle, cqe: Cqe) {
        if self.commands.complete(command.0, cqe) {
            self.backlog.respond(command.0);
        } else {
            self.framer.forget(command);
        }
    }

    /// An Asynchronous Event Request is kept until there is an event. No other command conflicts with its identifier:
    /// SPDK's host gives its requests up before it shuts a controller down, and uses their identifiers for that.
    pub fn keep_event_request(&mut self, command: Handle) {
        self.commands.forget_cid(command);
    }

    pub fn expect(&mut self) -> Expect<'_> {
        let header = if self.incoming.header_digest { pdu::DIGEST_LEN } else { 0 };
        let (lead, bulk) = match self.state {
            TargetState::Start => (size_of::<pdu::IcReq>(), 0),
            // Whatever still comes is taken, and dropped.
            TargetState::Ended(_) => (usize::MAX, 0),
            // Data of a large write would mostly be copied where the own buffer took all it can.
            _ if self.commands.awaited() > self.options.bulk as u64 => (size_of::<CapsuleCmd>() + header, 0),
            _ => (size_of::<CapsuleCmd>() + header, self.options.bulk),
        };
        self.framer.expect(lead, bulk)
    }

    pub fn received(&mut self, n: usize) {
        self.framer.received(n);
        if let TargetState::Ended(_) = self.state {
            self.framer.end();
        }
    }

    /// On Err a C2HTermReq is outgoing (unless `by_peer`): send it, then close.
    #[allow(clippy::should_implement_trait, reason = "an iterator's items can't borrow from it")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Fatal> {
        let found = match self.advance() {
            Ok(found) => found,
            Err(fatal) => return Err(self.end(fatal)),
        };
        Ok(found.map(|found| match found {
            Found::Ready => Event::Ready {
                header_digest: self.incoming.header_digest,
                data_digest: self.incoming.data_digest,
            },
            Found::Command(command, sqe, in_capsule) => Event::Command { command, sqe, in_capsule },
            Found::Placed(place) => Event::Placed(place),
            Found::Copy(place, range) => Event::Copy { place, bytes: self.framer.slice(range) },
            Found::DataEnd(place, digest) => Event::DataEnd { place, digest },
            Found::DataComplete(command) => Event::DataComplete { command },
        }))
    }

    fn end(&mut self, fatal: Fatal) -> Fatal {
        if !matches!(self.state, TargetState::Ended(_)) {
            if !fatal.by_peer {
                self.term = Some(pdu::term_req(kind::C2H_TERM_REQ, &fatal, self.framer.quote()));
            }
            self.state = TargetState::Ended(fatal);
            self.framer.end();
        }
        fatal
    }

    fn advance(&mut self) -> Result<Option<Found>, Fatal> {
        if let TargetState::Ended(fatal) = self.state {
            return Err(fatal);
        }
        if let Some(command) = self.arrived.take() {
            // A wrong digest may have completed it already.
            if !self.commands.slot(command.0).over {
                return Ok(Some(Found::DataComplete(command)));
            }
        }
        loop {
            match self.framer.step() {
                Step::Wait => return Ok(None),
                Step::Placed(place) => return Ok(Some(Found::Placed(place))),
                Step::Copy(place, range) => return Ok(Some(Found::Copy(place, range))),
                Step::End { place, digest, kept } => {
                    let whole = self.data_ended(&place);
                    match digest {
                        Some(digest) if kept => {
                            self.arrived = whole;
                            return Ok(Some(Found::DataEnd(place, digest)));
                        }
                        _ => {}
                    }
                    if let Some(command) = whole {
                        return Ok(Some(Found::DataComplete(command)));
                    }
                }
                Step::Header => match self.header()? {
                    Header::Wait => return Ok(None),
                    Header::Taken => {}
                    Header::Found(found) => return Ok(Some(found)),
                },
            }
        }
    }

    /// Books the data of a PDU. Some: all that were asked for are here, and wanted.
    fn data_ended(&mut self, place: &PayloadPlace) -> Option<Handle> {
        let index = place.command.0;
        match self.commands.slot(index).data_ended(place.len) {
            Ended::Waits => {}
            Ended::Respond => self.backlog.respond(index),
            Ended::Ask => self.backlog.ask(index),
            Ended::Whole => return Some(place.command),
        }
        None
    }

    fn header(&mut self) -> Result<Header, Fatal> {
        let Some(ch) = self.framer.head() else { return Ok(Header::Wait) };
        let (hlen, carries) = match ch.kind {
            kind::H2C_TERM_REQ => return self.terminated(),
            kind::IC_REQ => (size_of::<pdu::IcReq>(), Carries::Nothing),
            kind::CAPSULE_CMD => (size_of::<CapsuleCmd>(), Carries::Perhaps),
            kind::H2C_DATA => (size_of::<Transfer>(), Carries::Data),
            _ => return Err(invalid(pdu::at::KIND, "a host doesn't send this PDU type")),
        };
        let in_sequence = match self.state {
            TargetState::Start => ch.kind == kind::IC_REQ,
            _ => ch.kind != kind::IC_REQ && matches!(self.state, TargetState::Ready),
        };
        if !in_sequence {
            let what = "ICReq comes once, first, and nothing before its answer";
            return Err(Fatal::new(FatalStatus::SequenceError, 0, what));
        }
        let parts = ch.parts(hlen, carries, &self.incoming)?;
        let Some(header) = self.framer.header(parts.header) else { return Ok(Header::Wait) };
        if self.incoming.header_digest {
            pdu::check_header_digest(header, hlen)?;
        }
        match ch.kind {
            kind::CAPSULE_CMD => {
                let CapsuleCmd { sqe, .. } = read(header);
                self.capsule(sqe, &parts)
            }
            kind::H2C_DATA => {
                let transfer = read(header);
                self.data(&transfer, &parts)
            }
            _ => {
                let request = read(header);
                self.agreed(&request, &parts)
            }
        }
    }

    fn terminated(&mut self) -> Result<Header, Fatal> {
        match self.framer.header(size_of::<pdu::TermReq>()) {
            Some(header) => Err(pdu::ended_by_peer(&read(header))),
            None => Ok(Header::Wait),
        }
    }

    /// ICReq (tcp, section 3.6.2.2).
    fn agreed(&mut self, request: &pdu::IcReq, parts: &Parts) -> Result<Header, Fatal> {
        if request.format.get() != 0 {
            let what = "the host's PDU format version isn't 0";
            return Err(Fatal::new(FatalStatus::UnsupportedParameter, field::FORMAT, what));
        }
        if request.hpda > pdu::PDA_MAX {
            return Err(invalid(field::PDA, "HPDA is above 31"));
        }
        self.framer.consume(parts);
        let header_digest = self.options.header_digest && request.digests & pdu::digest::HEADER != 0;
        let data_digest = self.options.data_digest && request.digests & pdu::digest::DATA != 0;
        self.incoming = Rules { header_digest, data_digest, align: 4 };
        self.outgoing = Rules { align: 4 * (u32::from(request.hpda) + 1), ..self.incoming };
        self.state = TargetState::Answering;
        Ok(Header::Found(Found::Ready))
    }

    /// CapsuleCmd (tcp, section 3.6.2.6).
    fn capsule(&mut self, sqe: Sqe, parts: &Parts) -> Result<Header, Fatal> {
        if parts.data > self.options.in_capsule_max {
            return Err(invalid(pdu::at::PLEN, "a capsule carries more data than capsules may"));
        }
        if self.commands.is_full() {
            return Err(Fatal::new(
                FatalStatus::SequenceError,
                0,
                "more commands than the queue has entries",
            ));
        }
        let refusal = self.refusal(&sqe, parts.data);
        let index = self.commands.add(sqe.cid.get(), parts.data);
        let command = Handle(index);
        if let Some(code) = refusal {
            self.commands.slot(index).end(Cqe::new(sqe.cid.get(), Status::fatal(code), 0));
            if parts.data == 0 {
                self.backlog.respond(index);
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
    fn refusal(&self, sqe: &Sqe, in_capsule: u32) -> Option<Code> {
        if self.commands.conflicts(sqe.cid.get()) {
            return Some(Code::COMMAND_ID_CONFLICT);
        }
        check_sgl(sqe, in_capsule).err()
    }

    /// H2CData (tcp, section 3.6.2.8).
    fn data(&mut self, header: &Transfer, parts: &Parts) -> Result<Header, Fatal> {
        let most = self.options.max_h2c;
        let (index, offset, wanted) = self.commands.data_comes(header, parts.data, most)?;
        self.framer.begin(parts, Handle(index), offset, wanted);
        Ok(Header::Taken)
    }

    pub fn take_outgoing(&mut self, out: &mut Outgoing) {
        self.commands.list_is_sent();
        match self.state {
            TargetState::Start => {}
            TargetState::Answering => {
                self.state = TargetState::Ready;
                out.push_bytes(self.ic_resp().as_bytes());
            }
            TargetState::Ready => self.backlog.list(&mut self.commands, &self.outgoing, out),
            TargetState::Ended(_) => {
                if let Some(term) = self.term.take() {
                    out.push_bytes(&term);
                }
            }
        }
    }

    fn ic_resp(&self) -> pdu::IcResp {
        pdu::IcResp {
            ch: CommonHeader::plain(kind::IC_RESP, size_of::<pdu::IcResp>(), 0),
            format: 0.into(),
            cpda: 0,
            digests: pdu::digest::used(self.incoming.header_digest, self.incoming.data_digest),
            max_h2c: self.options.max_h2c.into(),
            reserved: [0; 112],
        }
    }
}

/// Checks a command's SGL against what its capsule carries (tcp, section 3.3.1; base, section 4.1.2).
fn check_sgl(sqe: &Sqe, in_capsule: u32) -> Result<(), Code> {
    let direction = sqe.direction();
    let (none, to_controller) = (direction == 0b00, direction & 0b01 != 0);
    if none {
        return if in_capsule == 0 { Ok(()) } else { Err(Code::INVALID_FIELD) };
    }
    // PSDT says SGL (base, section 3.3.3.1); in Fabrics commands it is reserved.
    if sqe.opcode != FABRICS && !matches!(sqe.flags >> 6, 0b01 | 0b10) {
        return Err(Code::INVALID_FIELD);
    }
    match sqe.sgl.kind {
        // No data, as in most of Set Features: what kind of SGL has none says nothing.
        _ if sqe.sgl.length.get() == 0 && in_capsule == 0 => Ok(()),
        Sgl::TRANSPORT if in_capsule == 0 => Ok(()),
        Sgl::TRANSPORT => Err(Code::DATA_SGL_LENGTH_INVALID),
        Sgl::IN_CAPSULE if !to_controller => Err(Code::INVALID_FIELD),
        // No capsule data have an offset: Identify says ICDOFF 0.
        Sgl::IN_CAPSULE if sqe.sgl.address.get() != 0 => Err(Code::SGL_OFFSET_INVALID),
        Sgl::IN_CAPSULE if sqe.sgl.length.get() != in_capsule => Err(Code::DATA_SGL_LENGTH_INVALID),
        Sgl::IN_CAPSULE => Ok(()),
        _ => Err(Code::SGL_TYPE_INVALID),
    }
}
