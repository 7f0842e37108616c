//! The host's end of a connection.

mod backlog;
mod commands;

use super::frame::{Framer, Step};
use super::pdu;
use super::pdu::field;
use super::pdu::invalid;
use super::pdu::kind;
use super::pdu::read;
use super::pdu::CapsuleResp;
use super::pdu::Carries;
use super::pdu::CommonHeader;
use super::pdu::Parts;
use super::pdu::Rules;
use super::Expect;
use super::Fatal;
use super::FatalStatus;
use super::Handle;
use super::Outgoing;
use super::PayloadPlace;
use crate::command::{Cqe, Sgl, Sqe};
use crate::status::Status;
use backlog::{Asked, Backlog};
use commands::Commands;
use std::ops::Range;
use zerocopy::IntoBytes;

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
    /// Bytes arrived directly at their place.
    Placed(PayloadPlace),
    /// Bytes that lie in the own buffer: copy them to their place.
    Copy { place: PayloadPlace, bytes: &'a [u8] },
    /// A data PDU with a digest is complete: compare with CRC32C of that PDU's payload, which is `place`; if it
    /// differs, call `HostEnd::digest_failed` before `next`, and the command completes as failed.
    DataEnd { place: PayloadPlace, digest: u32 },
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
    state: HostState,
    /// Rules for PDUs that come, and for those that go.
    incoming: Rules,
    outgoing: Rules,
    max_h2c: u32,
    in_capsule_max: u32,
    commands: Commands,
    backlog: Backlog,
    /// The data PDU that is coming has SUCCESS set: it completes its command.
    success: bool,
    completed: Option<(Handle, Cqe)>,
    term: Option<Vec<u8>>,
}

enum HostState {
    /// ICReq is still to be sent.
    Greeting,
    Greeted,
    Ready,
    Ended(Fatal),
}

/// An event, before it borrows.
enum Found {
    Ready,
    Placed(PayloadPlace),
    Copy(PayloadPlace, Range<usize>),
    DataEnd(PayloadPlace, u32),
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
        HostEnd {
            options: Options { depth, r2ts: options.r2ts.max(1), ..options },
            framer: Framer::new(options.bulk),
            state: HostState::Greeting,
            incoming: Rules { align: 4, ..Rules::default() },
            outgoing: Rules { align: 4, ..Rules::default() },
            max_h2c: 0,
            in_capsule_max: 0,
            commands: Commands::new(depth),
            backlog: Backlog::new(depth),
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
        if self.commands.is_full() || matches!(self.state, HostState::Ended(_)) {
            return Err(Busy);
        }
        let in_capsule = matches!(data, Data::Out { len } if len > 0 && len <= self.in_capsule_max);
        sqe.flags = sqe.flags & !PSDT_MASK | PSDT_SGL;
        sqe.sgl = match data {
            Data::Out { len } if in_capsule => Sgl::in_capsule(len),
            Data::None => Sgl::transport(0),
            Data::In { len } | Data::Out { len } => Sgl::transport(len),
        };
        let index = self.commands.add(sqe, data, in_capsule);
        self.backlog.push(index);
        Ok(Handle(index))
    }

    /// The command identifier that a command in flight has on the wire.
    pub fn cid(&self, command: Handle) -> u16 {
        self.commands.cid(command)
    }

    /// Commands submitted and not completed.
    pub fn in_flight(&self) -> u16 {
        self.commands.in_flight()
    }

    pub fn expect(&mut self) -> Expect<'_> {
        let (lead, bulk) = match self.state {
            HostState::Greeting | HostState::Greeted => (size_of::<pdu::IcResp>(), 0),
            // Whatever still comes is taken, and dropped.
            HostState::Ended(_) => (usize::MAX, 0),
            HostState::Ready => {
                let lead = HEADER + if self.incoming.header_digest { pdu::DIGEST_LEN } else { 0 };
                (lead, if self.commands.reads_are_small() { self.options.bulk } else { 0 })
            }
        };
        self.framer.expect(lead, bulk)
    }

    /// `n` bytes came, to where `expect` said.
    pub fn received(&mut self, n: usize) {
        self.framer.received(n);
        if let HostState::Ended(_) = self.state {
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
            Found::Completed(command, cqe) => self.commands.complete(command, cqe, self.backlog.round()),
        }))
    }

    /// The digest of a data PDU differed: the command will complete with Transient Transport Error.
    pub fn digest_failed(&mut self, command: Handle) {
        self.commands.fail(command);
    }

    /// A command that completed as `held`: nothing of its data is still to be sent.
    pub fn release(&mut self, command: Handle) {
        self.commands.release(command);
    }

    fn end(&mut self, fatal: Fatal) -> Fatal {
        if !matches!(self.state, HostState::Ended(_)) {
            if !fatal.by_peer {
                self.term = Some(pdu::term_req(kind::H2C_TERM_REQ, &fatal, self.framer.quote()));
            }
            self.state = HostState::Ended(fatal);
            self.framer.end();
        }
        fatal
    }

    fn advance(&mut self) -> Result<Option<Found>, Fatal> {
        if let HostState::Ended(fatal) = self.state {
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
        Cqe::new(self.commands.cid(command), Status::SUCCESS, 0)
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
            HostState::Greeted => ch.kind == kind::IC_RESP,
            _ => ch.kind != kind::IC_RESP && matches!(self.state, HostState::Ready),
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
        self.state = HostState::Ready;
        Ok(Header::Found(Found::Ready))
    }

    fn response(&mut self, cqe: Cqe, parts: &Parts) -> Result<Header, Fatal> {
        let index = self.commands.find(cqe.cid.get(), field::RESP_CID)?;
        self.framer.consume(parts);
        Ok(Header::Found(Found::Completed(Handle(index), cqe)))
    }

    fn data(&mut self, header: &pdu::Transfer, parts: &Parts) -> Result<Header, Fatal> {
        let index = self.commands.find(header.cid.get(), field::CID)?;
        let (offset, success) = self.commands.slot(index).data_comes(header, parts.data)?;
        self.success = success;
        self.framer.begin(parts, Handle(index), offset, true);
        Ok(Header::Taken)
    }

    fn asked_for(&mut self, header: &pdu::Transfer, parts: &Parts) -> Result<Header, Fatal> {
        let (cid, tag) = (header.cid.get(), header.tag.get());
        let slot = self.commands.find(cid, field::CID)?;
        let (offset, len) = self.commands.slot(slot).asked_for(header, self.options.r2ts)?;
        self.backlog.ask(Asked { slot, cid, tag, offset, len });
        self.framer.consume(parts);
        Ok(Header::Taken)
    }

    /// Appends all that can be sent now. What it lists is sent before it is called again.
    pub fn take_outgoing(&mut self, out: &mut Outgoing) {
        self.backlog.begin();
        match self.state {
            HostState::Greeting => {
                self.state = HostState::Greeted;
                out.push_bytes(self.ic_req().as_bytes());
            }
            HostState::Greeted => {}
            HostState::Ready => {
                self.backlog.list(&mut self.commands, &self.outgoing, self.max_h2c, out);
            }
            HostState::Ended(_) => {
                if let Some(term) = self.term.take() {
                    out.push_bytes(&term);
                }
            }
        }
    }

    fn ic_req(&self) -> pdu::IcReq {
        pdu::IcReq {
            ch: CommonHeader::plain(kind::IC_REQ, size_of::<pdu::IcReq>(), 0),
            format: 0.into(),
            hpda: 0,
            digests: pdu::digest::used(self.options.header_digest, self.options.data_digest),
            max_r2t: (self.options.r2ts - 1).into(),
            reserved: [0; 112],
        }
    }
}

impl Data {
    fn is_large_read(self) -> bool {
        matches!(self, Data::In { len } if len > COPIED_MAX)
    }
}
