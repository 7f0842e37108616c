//! The controller's end of a connection.

mod incoming;
mod outgoing;

use super::frame::{Framer, Step};
use super::pdu;
use super::pdu::field;
use super::pdu::invalid;
use super::pdu::kind;
use super::pdu::read;
use super::pdu::CapsuleCmd;
use super::pdu::Carries;
use super::pdu::{Parts, Rules, Transfer};
use super::Expect;
use super::Fatal;
use super::FatalStatus;
use super::Handle;
use super::Place;
use crate::command::{Cqe, Sgl, Sqe, FABRICS};
use crate::status::Code;
use crate::transport::flow::Flow;
use std::collections::VecDeque;
use std::ops::Range;

/// Data that any Fabrics or admin command may carry in its capsule (tcp, section 3.3.1).
const IN_CAPSULE_LEAST: u32 = 8192;
/// Commands that may be in flight before Connect has said how many: it comes alone.
const DEPTH_BEFORE_CONNECT: u16 = 2;
/// A place in `TargetEnd::cids` that no identifier equals.
const NO_CID: u32 = u32::MAX;

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
    Placed(Place),
    Copy {
        place: Place,
        bytes: &'a [u8],
    },
    /// A data PDU (or a capsule's data) with a digest is complete: compare with CRC32C of `place`. If it differs,
    /// complete the command with Transient Transport Error.
    DataEnd {
        place: Place,
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
    state: State,
    incoming: Rules,
    outgoing: Rules,
    slots: Vec<Slot>,
    /// Command identifiers of the slots, `NO_CID` where none is in flight that another may conflict with.
    cids: Vec<u32>,
    free: Vec<u16>,
    /// Answered, while the list that holds their payload may still be on its way.
    parked: Vec<u16>,
    depth: u16,
    in_flight: u16,
    flow: Flow,
    /// Bytes asked for by R2T that haven't come.
    awaited: u64,
    /// Segments ready to be sent, in order.
    ready: VecDeque<Ready>,
    /// All data of this command are here, to be told behind their digest.
    arrived: Option<Handle>,
    term: Option<Vec<u8>>,
}

enum State {
    /// ICReq is awaited.
    Start,
    /// ICResp is to be sent.
    Answering,
    Ready,
    Ended(Fatal),
}

#[derive(Clone, Copy)]
struct Ready {
    slot: u16,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    R2t,
    Response,
    Data { len: u32 },
}

#[derive(Clone, Copy, Default)]
struct Slot {
    cid: u16,
    cqe: Cqe,
    /// Bytes of data to come from the host: wanted in all, asked for by R2T (or in the capsule), here.
    wanted: u32,
    granted: u32,
    arrived: u32,
    /// An R2T is to be sent, or its data are still to come.
    asking: bool,
    /// Its completion is set: data that still come are dropped.
    over: bool,
}

/// An event, before it borrows.
enum Found {
    Ready,
    Command(Handle, Sqe, u32),
    Placed(Place),
    Copy(Place, Range<usize>),
    DataEnd(Place, u32),
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
            state: State::Start,
            incoming: Rules { align: 4, ..Rules::default() },
            outgoing: Rules { align: 4, ..Rules::default() },
            slots: Vec::new(),
            cids: Vec::new(),
            free: Vec::new(),
            parked: Vec::new(),
            depth: DEPTH_BEFORE_CONNECT,
            in_flight: 0,
            flow: Flow::None,
            awaited: 0,
            ready: VecDeque::new(),
            arrived: None,
            term: None,
        }
    }

    /// On Connect, before it is completed: entries of the submission queue (SQSIZE + 1; a command more than that
    /// many is fatal), and whether the host left SQ flow control on (CATTR bit 2 clear). Without it completions
    /// carry no SQHD, and only then may a read end with the SUCCESS flag (tcp, section 3.3.2).
    pub fn set_depth(&mut self, entries: u16, flow_control: bool) {
        self.depth = entries.clamp(DEPTH_BEFORE_CONNECT, 1 << 15);
        self.flow = Flow::of(self.depth, flow_control);
    }

    /// Commands that came and whose answer wasn't listed yet.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Asks for the next `len` bytes of the command's data by R2T. They may be asked for piece by piece;
    /// `DataComplete` comes when all that were asked for so far are here.
    pub fn request(&mut self, command: Handle, len: u32) {
        let slot = &mut self.slots[usize::from(command.0)];
        assert!(!slot.over, "data are asked for by a command that is completed");
        slot.wanted += len;
        self.awaited += u64::from(len);
        if len > 0 && !slot.asking {
            slot.asking = true;
            self.ready.push_back(Ready { slot: command.0, what: What::R2t });
        }
    }

    /// Sends `len` bytes of the command's data, then completes it: with the SUCCESS flag instead of a response
    /// where flow control is off and `cqe` says no more than success. Ends with `Segment::Release`; the handle is
    /// free when that is sent.
    pub fn send(&mut self, command: Handle, len: u32, cqe: Cqe) {
        let slot = &mut self.slots[usize::from(command.0)];
        assert!(
            !slot.over && slot.arrived == slot.wanted,
            "a read is completed once, and has no data to come"
        );
        slot.over = true;
        slot.cqe = cqe;
        self.ready.push_back(Ready { slot: command.0, what: What::Data { len } });
    }

    /// Completes a command without data to the host. Its handle is free. SQHD and CID are filled in here. It may come
    /// before `DataComplete`, but not while a receive into that command's payload is under way: data still to come
    /// are dropped here, and the completion goes out behind them.
    pub fn complete(&mut self, command: Handle, cqe: Cqe) {
        let slot = &mut self.slots[usize::from(command.0)];
        assert!(!slot.over, "a command is completed once");
        slot.over = true;
        slot.cqe = cqe;
        // What was never asked for never comes.
        self.awaited -= u64::from(slot.wanted - slot.granted);
        slot.wanted = slot.granted;
        if slot.arrived == slot.wanted {
            self.ready.push_back(Ready { slot: command.0, what: What::Response });
        } else {
            self.framer.forget(command);
        }
    }

    /// An Asynchronous Event Request is kept until there is an event. No other command conflicts with its identifier:
    /// SPDK's host gives its requests up before it shuts a controller down, and uses their identifiers for that.
    pub fn keep_event_request(&mut self, command: Handle) {
        self.cids[usize::from(command.0)] = NO_CID;
    }

    /// A command is answered.
    fn release(&mut self, index: u16) {
        self.cids[usize::from(index)] = NO_CID;
        self.in_flight -= 1;
    }

    pub fn expect(&mut self) -> Expect<'_> {
        let header = if self.incoming.header_digest { pdu::DIGEST_LEN } else { 0 };
        let (lead, bulk) = match self.state {
            State::Start => (size_of::<pdu::IcReq>(), 0),
            // Whatever still comes is taken, and dropped.
            State::Ended(_) => (usize::MAX, 0),
            // Data of a large write would mostly be copied where the own buffer took all it can.
            _ if self.awaited > self.options.bulk as u64 => (size_of::<CapsuleCmd>() + header, 0),
            _ => (size_of::<CapsuleCmd>() + header, self.options.bulk),
        };
        self.framer.expect(lead, bulk)
    }

    pub fn received(&mut self, n: usize) {
        self.framer.received(n);
        if let State::Ended(_) = self.state {
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
        if !matches!(self.state, State::Ended(_)) {
            if !fatal.by_peer {
                self.term = Some(pdu::term_req(kind::C2H_TERM_REQ, &fatal, self.framer.quote()));
            }
            self.state = State::Ended(fatal);
            self.framer.end();
        }
        fatal
    }

    fn advance(&mut self) -> Result<Option<Found>, Fatal> {
        if let State::Ended(fatal) = self.state {
            return Err(fatal);
        }
        if let Some(command) = self.arrived.take() {
            // A wrong digest may have completed it already.
            if !self.slots[usize::from(command.0)].over {
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
    fn data_ended(&mut self, place: &Place) -> Option<Handle> {
        let index = place.command.0;
        let slot = &mut self.slots[usize::from(index)];
        slot.arrived += place.len;
        if slot.arrived < slot.granted {
            return None;
        }
        if slot.over {
            self.ready.push_back(Ready { slot: index, what: What::Response });
            return None;
        }
        slot.asking = slot.wanted > slot.granted;
        if slot.asking {
            self.ready.push_back(Ready { slot: index, what: What::R2t });
            return None;
        }
        Some(place.command)
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
            State::Start => ch.kind == kind::IC_REQ,
            _ => ch.kind != kind::IC_REQ && matches!(self.state, State::Ready),
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
        self.state = State::Answering;
        Ok(Header::Found(Found::Ready))
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
