//! The host's end of a connection.

mod incoming;
mod outgoing;

use super::frame::{Framer, Step};
use super::pdu;
use super::pdu::field;
use super::pdu::invalid;
use super::pdu::kind;
use super::pdu::read;
use super::pdu::CapsuleResp;
use super::pdu::Carries;
use super::pdu::Parts;
use super::pdu::Rules;
use super::Expect;
use super::Fatal;
use super::FatalStatus;
use super::Handle;
use super::Place;
use crate::command::{Cqe, Sgl, Sqe};
use crate::status::Status;
use std::collections::VecDeque;
use std::ops::Range;

/// Reads up to this many bytes are cheaper copied than received by themselves.
pub const COPIED_MAX: u32 = 8192;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub header_digest: bool,
    pub data_digest: bool,
    /// Commands in flight; the queue has one entry more.
    pub depth: u16,
    /// R2Ts that a command may have outstanding.
    pub r2ts: u32,
    /// Bytes that one receive may take into the own buffer, payload among them, which then comes as `Event::Copy`.
    /// Used only while every read in flight, and the last one, is small (`COPIED_MAX`): many small answers come with one receive. 0:
    /// never more than the next header, no payload passes through the own buffer, a receive or two for each PDU.
    pub bulk: usize,
}

/// Data that travel with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    None,
    /// From the controller; at most `len` bytes.
    In {
        len: u32,
    },
    /// To the controller; in the capsule where it fits (`in_capsule_max`), else as the controller asks for it.
    Out {
        len: u32,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// ICResp came: commands may be submitted. `max_h2c`: MAXH2CDATA.
    Ready { max_h2c: u32, header_digest: bool, data_digest: bool },
    /// Bytes arrived straight at their place.
    Placed(Place),
    /// Bytes that lie in the own buffer: copy them to their place.
    Copy { place: Place, bytes: &'a [u8] },
    /// A data PDU with a digest is complete: compare with CRC32C of that PDU's payload, which is `place`; if it
    /// differs, call `HostEnd::digest_failed` before `next`, and the command completes as failed.
    DataEnd { place: Place, digest: u32 },
    /// The command is over; `received` bytes of its data came. A data PDU with the SUCCESS flag gives it, too, with
    /// a completion made up here. Its payload's memory is free, and its handle may come again, but for one case.
    /// `held`: its data stand in the list that the driver was given last. The answer may come before the driver knows
    /// that all of that is sent; then memory and handle are free once it is, and `HostEnd::release` was called.
    Completed { command: Handle, cqe: Cqe, received: u32, held: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// PSDT: SGLs, in every command on fabrics (base, figure 86).
const PSDT_SGL: u8 = 0b01 << 6;
const PSDT_MASK: u8 = 0b11 << 6;
/// Length of every header that comes after ICResp.
const HEADER: usize = 24;

pub struct HostEnd {
    options: Options,
    framer: Framer,
    state: State,
    /// Rules for PDUs that come, and for those that go.
    incoming: Rules,
    outgoing: Rules,
    max_h2c: u32,
    in_capsule_max: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Low bits of a command identifier: its slot. Above them: how often that slot was used.
    slot_mask: u16,
    in_flight: u16,
    /// Reads in flight above `COPIED_MAX`.
    large: u16,
    /// The last read was not: the next one, which an idle connection waits for, won't be either.
    small: bool,
    /// Commands to send, in order.
    commands: VecDeque<u16>,
    /// R2Ts to answer, in order.
    asked: VecDeque<Asked>,
    /// Counts lists made by `take_outgoing`.
    round: u32,
    /// The data PDU that is coming has SUCCESS set: it completes its command.
    success: bool,
    completed: Option<(Handle, Cqe)>,
    term: Option<Vec<u8>>,
}

enum State {
    /// ICReq is still to be sent.
    Greeting,
    Greeted,
    Ready,
    Ended(Fatal),
}

struct Slot {
    sqe: Sqe,
    data: Data,
    in_flight: bool,
    sent: bool,
    in_capsule: bool,
    /// The controller said that no data follow.
    last: bool,
    /// A data digest differed.
    failed: bool,
    /// Bytes of a read that came, or of a write that were asked for.
    moved: u32,
    r2ts: u32,
    /// The list that has payload of it.
    listed: u32,
}

/// An R2T to answer.
struct Asked {
    slot: u16,
    cid: u16,
    tag: u16,
    offset: u32,
    len: u32,
}

/// An event, before it borrows.
enum Found {
    Ready,
    Placed(Place),
    Copy(Place, Range<usize>),
    DataEnd(Place, u32),
    Completed(Handle, Cqe),
}

/// Result of a header.
enum Header {
    Wait,
    Taken,
    Found(Found),
}

impl HostEnd {
    /// The ICReq is outgoing at once.
    pub fn new(options: Options) -> HostEnd {
        let depth = options.depth.clamp(1, 1 << 14);
        let slots = usize::from(depth) * 2;
        HostEnd {
            options: Options { depth, r2ts: options.r2ts.max(1), ..options },
            framer: Framer::new(options.bulk),
            state: State::Greeting,
            incoming: Rules { align: 4, ..Rules::default() },
            outgoing: Rules { align: 4, ..Rules::default() },
            max_h2c: 0,
            in_capsule_max: 0,
            slots: Vec::with_capacity(slots),
            free: Vec::with_capacity(slots),
            slot_mask: (slots.next_power_of_two() - 1) as u16,
            in_flight: 0,
            large: 0,
            small: false,
            commands: VecDeque::with_capacity(usize::from(depth)),
            asked: VecDeque::with_capacity(usize::from(depth)),
            round: 0,
            success: false,
            completed: None,
            term: None,
        }
    }

    /// Bytes of data that may lie in a command capsule: 8192 on the admin queue by the specification, else from
    /// IOCCSZ. 0 until it is set.
    pub fn set_in_capsule_max(&mut self, bytes: u32) {
        self.in_capsule_max = bytes.min(pdu::DATA_MAX);
    }

    /// Queues a command. The command identifier, PSDT and the SGL are filled in here. Err: `depth` are in flight, or
    /// the connection is over.
    pub fn submit(&mut self, mut sqe: Sqe, data: Data) -> Result<Handle, Busy> {
        if self.in_flight == self.options.depth || matches!(self.state, State::Ended(_)) {
            return Err(Busy);
        }
        let in_capsule = matches!(data, Data::Out { len } if len > 0 && len <= self.in_capsule_max);
        sqe.flags = sqe.flags & !PSDT_MASK | PSDT_SGL;
        sqe.sgl = match data {
            Data::Out { len } if in_capsule => Sgl::in_capsule(len),
            Data::None => Sgl::transport(0),
            Data::In { len } | Data::Out { len } => Sgl::transport(len),
        };
        let index = self.slot();
        let slot = &mut self.slots[usize::from(index)];
        sqe.cid = slot.sqe.cid;
        *slot = Slot { sqe, data, in_flight: true, in_capsule, ..Slot::default() };
        self.in_flight += 1;
        self.large += u16::from(data.is_large_read());
        if let Data::In { .. } = data {
            self.small = !data.is_large_read();
        }
        self.commands.push_back(index);
        Ok(Handle(index))
    }

    /// A free slot; its command identifier is set.
    fn slot(&mut self) -> u16 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        let index = self.slots.len() as u16;
        let sqe = Sqe { cid: index.into(), ..Sqe::default() };
        self.slots.push(Slot { sqe, ..Slot::default() });
        index
    }

    /// The command identifier that a command in flight has on the wire.
    pub fn cid(&self, command: Handle) -> u16 {
        self.slots[usize::from(command.0)].sqe.cid.get()
    }

    /// Commands submitted and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    pub fn expect(&mut self) -> Expect<'_> {
        let (lead, bulk) = match self.state {
            State::Greeting | State::Greeted => (size_of::<pdu::IcResp>(), 0),
            // Whatever still comes is taken, and dropped.
            State::Ended(_) => (usize::MAX, 0),
            State::Ready => {
                let lead = HEADER + if self.incoming.header_digest { pdu::DIGEST_LEN } else { 0 };
                (lead, if self.small && self.large == 0 { self.options.bulk } else { 0 })
            }
        };
        self.framer.expect(lead, bulk)
    }

    /// `n` bytes came, to where `expect` said.
    pub fn received(&mut self, n: usize) {
        self.framer.received(n);
        if let State::Ended(_) = self.state {
            self.framer.end();
        }
    }

    /// Returns the next event that the bytes mean, until None. On Err an H2CTermReq is outgoing (unless `by_peer`):
    /// send it, close.
    #[allow(clippy::should_implement_trait, reason = "an iterator's items can't borrow from it")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Fatal> {
        let found = match self.advance() {
            Ok(found) => found,
            Err(fatal) => return Err(self.end(fatal)),
        };
        Ok(found.map(|found| match found {
            Found::Ready => Event::Ready {
                max_h2c: self.max_h2c,
                header_digest: self.incoming.header_digest,
                data_digest: self.incoming.data_digest,
            },
            Found::Placed(place) => Event::Placed(place),
            Found::Copy(place, range) => Event::Copy { place, bytes: self.framer.slice(range) },
            Found::DataEnd(place, digest) => Event::DataEnd { place, digest },
            Found::Completed(command, cqe) => self.complete(command, cqe),
        }))
    }

    /// The digest of a data PDU differed: the command will complete with Transient Transport Error.
    pub fn digest_failed(&mut self, command: Handle) {
        self.slots[usize::from(command.0)].failed = true;
    }

    fn end(&mut self, fatal: Fatal) -> Fatal {
        if !matches!(self.state, State::Ended(_)) {
            if !fatal.by_peer {
                self.term = Some(pdu::term_req(kind::H2C_TERM_REQ, &fatal, self.framer.quote()));
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
        if let Some((command, cqe)) = self.completed.take() {
            return Ok(Some(Found::Completed(command, cqe)));
        }
        loop {
            match self.framer.step() {
                Step::Wait => return Ok(None),
                Step::Placed(place) => return Ok(Some(Found::Placed(place))),
                Step::Copy(place, range) => return Ok(Some(Found::Copy(place, range))),
                Step::End { place, digest, .. } => {
                    let success = std::mem::take(&mut self.success).then(|| self.success_cqe(place.command));
                    if let Some(digest) = digest {
                        self.completed = success.map(|cqe| (place.command, cqe));
                        return Ok(Some(Found::DataEnd(place, digest)));
                    }
                    if let Some(cqe) = success {
                        return Ok(Some(Found::Completed(place.command, cqe)));
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

    /// The completion that a data PDU with SUCCESS stands for (tcp, section 3.3.2).
    fn success_cqe(&self, command: Handle) -> Cqe {
        Cqe::new(self.slots[usize::from(command.0)].sqe.cid.get(), Status::SUCCESS, 0)
    }

    fn header(&mut self) -> Result<Header, Fatal> {
        let Some(ch) = self.framer.head() else { return Ok(Header::Wait) };
        let (hlen, carries) = match ch.kind {
            kind::C2H_TERM_REQ => return self.terminated(),
            kind::IC_RESP => (size_of::<pdu::IcResp>(), Carries::Nothing),
            kind::C2H_DATA => (HEADER, Carries::Data),
            kind::CAPSULE_RESP | kind::R2T => (HEADER, Carries::Nothing),
            _ => return Err(invalid(pdu::at::KIND, "a controller doesn't send this PDU type")),
        };
        let in_sequence = match self.state {
            State::Greeted => ch.kind == kind::IC_RESP,
            _ => ch.kind != kind::IC_RESP && matches!(self.state, State::Ready),
        };
        if !in_sequence {
            return Err(Fatal::new(
                FatalStatus::SequenceError,
                0,
                "ICResp comes once, first, and answers ICReq",
            ));
        }
        let parts = ch.parts(hlen, carries, &self.incoming)?;
        let Some(header) = self.framer.header(parts.header) else { return Ok(Header::Wait) };
        if self.incoming.header_digest {
            pdu::check_header_digest(header, hlen)?;
        }
        match ch.kind {
            kind::CAPSULE_RESP => {
                let CapsuleResp { cqe, .. } = read(header);
                self.response(cqe, &parts)
            }
            kind::C2H_DATA => {
                let transfer = read(header);
                self.data(&transfer, &parts)
            }
            kind::R2T => {
                let transfer = read(header);
                self.asked_for(&transfer, &parts)
            }
            _ => {
                let response = read(header);
                self.agreed(&response, &parts)
            }
        }
    }

    fn terminated(&mut self) -> Result<Header, Fatal> {
        match self.framer.header(size_of::<pdu::TermReq>()) {
            Some(header) => Err(pdu::ended_by_peer(&read(header))),
            None => Ok(Header::Wait),
        }
    }

    /// ICResp (tcp, section 3.6.2.3).
    fn agreed(&mut self, response: &pdu::IcResp, parts: &Parts) -> Result<Header, Fatal> {
        let max_h2c = response.max_h2c.get();
        let header_digest = response.digests & pdu::digest::HEADER != 0;
        let data_digest = response.digests & pdu::digest::DATA != 0;
        if response.format.get() != 0 {
            let what = "the controller's PDU format version isn't 0";
            return Err(Fatal::new(FatalStatus::UnsupportedParameter, field::FORMAT, what));
        }
        if response.cpda > pdu::PDA_MAX {
            return Err(invalid(field::PDA, "CPDA is above 31"));
        }
        if header_digest && !self.options.header_digest || data_digest && !self.options.data_digest {
            return Err(invalid(field::DIGESTS, "a digest is enabled that wasn't asked for"));
        }
        if max_h2c < pdu::MAX_H2C_LEAST || max_h2c % 4 != 0 {
            return Err(invalid(field::MAX_H2C, "MAXH2CDATA is below 4096 or no multiple of 4"));
        }
        self.framer.consume(parts);
        self.max_h2c = max_h2c.min(pdu::DATA_MAX);
        self.incoming = Rules { header_digest, data_digest, align: 4 };
        self.outgoing = Rules { align: 4 * (u32::from(response.cpda) + 1), ..self.incoming };
        self.state = State::Ready;
        Ok(Header::Found(Found::Ready))
    }
}

impl Data {
    fn is_large_read(self) -> bool {
        matches!(self, Data::In { len } if len > COPIED_MAX)
    }
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
