//! The controller's end of a connection.
//!
//! Its driver posts receives and tells of each capsule that came (`came`); it posts what `next_op` lists, and tells when
//! an RDMA READ is done (`fetched`) and when a response is acknowledged (`sent`). What a capsule says of its data stays
//! here: a command goes out with the SGL that it would have over TCP (Transport SGL Data Block, or an offset within the
//! capsule), so that what serves commands needn't know how they came.

use super::data::{named, Data, Keyed, KeyedList};
use crate::command::{Cqe, Sgl, Sqe, FABRICS};
use crate::status::{Code, Status};
use crate::transport::flow::Flow;
use crate::transport::tcp::{Fatal, FatalStatus, Handle, PayloadPlace};
use std::collections::VecDeque;
use std::ops::Range;
use zerocopy::FromBytes;

/// A place in `TargetEnd::cids` that no identifier equals.
const NO_CID: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command. `in_capsule` bytes of data came with it: `Copy` brings them next.
    Command { command: Handle, sqe: Sqe, in_capsule: u32 },
    /// Copies those bytes of the capsule in that receive to their place. They stay until `next` is called again.
    Copy { place: PayloadPlace, receive: u16, range: Range<usize> },
    /// The host's device was read.
    Placed(PayloadPlace),
    /// All data of the command are here.
    DataComplete { command: Handle },
}

/// Request to be posted.
#[derive(Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// RDMA READ of `bytes` in all, into the command's memory. Then `fetched`.
    Fetch { command: Handle, bytes: u32, from: &'a [Keyed] },
    /// RDMA WRITE of `bytes` in all, from the command's memory, and behind it the response. Then `sent`.
    Answer { command: Handle, bytes: u32, to: &'a [Keyed], response: Cqe, invalidate: Option<u32> },
}

impl Op<'_> {
    /// Posts that it takes.
    pub fn posts(&self) -> usize {
        match self {
            Op::Fetch { bytes, from, .. } => stretches(from, *bytes),
            Op::Answer { bytes, to, .. } => stretches(to, *bytes) + 1,
        }
    }
}

/// Stretches that so many bytes take.
fn stretches(list: &[Keyed], bytes: u32) -> usize {
    pieces(list, bytes).count()
}

/// The host's memory that so many bytes of a command lie in: each stretch, and how far into the data it begins.
pub fn pieces(list: &[Keyed], bytes: u32) -> impl Iterator<Item = (u32, Keyed)> + '_ {
    let mut offset = 0;
    list.iter().filter_map(move |keyed| {
        let piece = Keyed { bytes: keyed.bytes.min(bytes - offset), ..*keyed };
        let at = offset;
        offset += piece.bytes;
        (piece.bytes > 0).then_some((at, piece))
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Free,
    /// The driver has it.
    Taken,
    /// Its READ is to be posted; then under way.
    Asking,
    Fetching,
    /// Its response is to be posted; then under way.
    Answering,
    Sending,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    cid: u16,
    phase: Phase,
    cqe: Cqe,
    /// Bytes to be fetched, or to be written before the response.
    bytes: u32,
    /// The driver waits for its release.
    has_data: bool,
    list: KeyedList,
}

/// A capsule that came and wasn't looked at yet.
#[derive(Debug)]
struct Came {
    receive: u16,
    sqe: Sqe,
    list: KeyedList,
    data: Result<Data, Status>,
}

/// Data of a capsule that are handed over.
#[derive(Debug)]
enum Capsule {
    None,
    Waiting(PayloadPlace, u16, Range<usize>),
    Lent(PayloadPlace, u16),
}

#[derive(Debug)]
pub struct TargetEnd {
    commands: u16,
    in_flight: u16,
    /// Responses that aren't acknowledged.
    sending: u16,
    slots: Vec<Slot>,
    /// Command identifiers of the slots, `NO_CID` where none is in flight that another may conflict with.
    cids: Vec<u32>,
    free: Vec<u16>,
    came: VecDeque<Came>,
    capsule: Capsule,
    fetched: VecDeque<u16>,
    /// Told as placed; all its data are here.
    complete: Option<Handle>,
    ready: VecDeque<u16>,
    /// Acknowledged, with data that the driver knows of.
    released: Vec<u16>,
    /// Receives whose capsules are done with.
    receives: Vec<u16>,
    flow: Flow,
}

impl TargetEnd {
    /// `commands`: as both ends agreed, receives that the driver posts.
    pub fn new(commands: u16) -> TargetEnd {
        TargetEnd {
            commands,
            in_flight: 0,
            sending: 0,
            slots: Vec::new(),
            cids: Vec::new(),
            free: Vec::new(),
            came: VecDeque::new(),
            capsule: Capsule::None,
            fetched: VecDeque::new(),
            complete: None,
            ready: VecDeque::new(),
            released: Vec::new(),
            receives: Vec::new(),
            flow: Flow::None,
        }
    }

    /// On Connect, before it is completed; as of NVMe/TCP.
    pub fn set_depth(&mut self, entries: u16, flow_control: bool) {
        self.flow = Flow::new(entries.max(2), flow_control);
    }

    /// A message came in that receive.
    ///
    /// # Errors
    /// It is no command.
    pub fn came(&mut self, receive: u16, capsule: &[u8]) -> Result<(), Fatal> {
        let Ok((mut sqe, behind)) = Sqe::read_from_prefix(capsule) else {
            return Err(broken("a capsule is shorter than a command"));
        };
        let mut list = KeyedList::default();
        let data = found(&sqe, behind, &mut list);
        sqe.sgl = match &data {
            Ok(Data::InCapsule(range)) => Sgl::in_capsule(range.len() as u32),
            // At most 16 descriptors of 2^24 bytes.
            Ok(Data::Keyed) => Sgl::transport(list.bytes() as u32),
            Ok(Data::None) | Err(_) => Sgl::default(),
        };
        self.came.push_back(Came { receive, sqe, list, data });
        Ok(())
    }

    /// Returns the next event, in order.
    #[allow(clippy::should_implement_trait, reason = "it gives errors, and goes on after None")]
    pub fn next(&mut self) -> Result<Option<Event>, Fatal> {
        if let Some(command) = self.complete.take() {
            if self.slot(command).phase == Phase::Taken {
                return Ok(Some(Event::DataComplete { command }));
            }
        }
        match std::mem::replace(&mut self.capsule, Capsule::None) {
            Capsule::Waiting(place, receive, range) if self.slot(place.command).phase == Phase::Taken => {
                self.capsule = Capsule::Lent(place, receive);
                return Ok(Some(Event::Copy { place, receive, range }));
            }
            Capsule::Waiting(_, receive, _) => self.receives.push(receive),
            Capsule::Lent(place, receive) => {
                self.receives.push(receive);
                if self.slot(place.command).phase == Phase::Taken {
                    return Ok(Some(Event::DataComplete { command: place.command }));
                }
            }
            Capsule::None => {}
        }
        if let Some(index) = self.fetched.pop_front() {
            let slot = &mut self.slots[usize::from(index)];
            slot.phase = Phase::Taken;
            let command = Handle(index);
            self.complete = Some(command);
            return Ok(Some(Event::Placed(PayloadPlace { command, offset: 0, len: slot.bytes })));
        }
        while let Some(came) = self.came.pop_front() {
            if self.in_flight == self.commands {
                return Err(broken("more commands than the queue has entries"));
            }
            let Some(index) = self.take_slot() else {
                // Until a response is acknowledged.
                self.came.push_front(came);
                return Ok(None);
            };
            if let Some(event) = self.begin(index, came) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn begin(&mut self, index: u16, came: Came) -> Option<Event> {
        let Came { receive, sqe, list, data } = came;
        let cid = sqe.cid.get();
        let conflict = self.cids.contains(&u32::from(cid));
        self.in_flight += 1;
        self.cids[usize::from(index)] = cid.into();
        self.slots[usize::from(index)] = Slot { cid, phase: Phase::Taken, list, ..Slot::default() };
        let refusal = match &data {
            _ if conflict => Some(Status::fatal(Code::COMMAND_ID_CONFLICT)),
            Err(status) => Some(*status),
            Ok(_) => None,
        };
        if let Some(status) = refusal {
            self.receives.push(receive);
            self.complete(Handle(index), Cqe::new(cid, status, 0));
            return None;
        }
        let command = Handle(index);
        let in_capsule = match data {
            Ok(Data::InCapsule(range)) if !range.is_empty() => {
                let len = range.len() as u32;
                self.capsule = Capsule::Waiting(PayloadPlace { command, offset: 0, len }, receive, range);
                len
            }
            _ => {
                self.receives.push(receive);
                0
            }
        };
        Some(Event::Command { command, sqe, in_capsule })
    }

    /// Twice as many as there are commands: the host sends the next when it has a response, which may be before the
    /// response's acknowledgement is here.
    fn take_slot(&mut self) -> Option<u16> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let most = usize::from(self.commands).saturating_mul(2).min(usize::from(u16::MAX) - 1);
        (self.slots.len() < most).then(|| {
            self.slots.push(Slot::default());
            self.cids.push(NO_CID);
            (self.slots.len() - 1) as u16
        })
    }

    fn slot(&mut self, command: Handle) -> &mut Slot {
        &mut self.slots[usize::from(command.0)]
    }

    /// Has the command's `bytes` of data fetched: all that its SGL names.
    pub fn request(&mut self, command: Handle, bytes: u32) {
        let slot = self.slot(command);
        assert!(slot.phase == Phase::Taken, "data are asked for by a command that is completed");
        (slot.phase, slot.bytes) = (Phase::Asking, bytes);
        self.ready.push_back(command.0);
    }

    /// An RDMA READ may be writing to that command's memory.
    pub fn receives_into(&self, command: Handle) -> bool {
        let phase = self.slots.get(usize::from(command.0)).map(|slot| slot.phase);
        phase == Some(Phase::Fetching) || self.fetched.contains(&command.0)
    }

    /// Writes `len` bytes of the command's data to the host, then completes it. Its handle and its memory are free when
    /// `take_released` names it.
    pub fn send(&mut self, command: Handle, len: u32, cqe: Cqe) {
        let slot = self.slot(command);
        slot.has_data = true;
        if u64::from(len) > slot.list.bytes() {
            let cqe = Cqe::new(slot.cid, Status::fatal(Code::DATA_SGL_LENGTH_INVALID), 0);
            return self.answer(command, 0, cqe);
        }
        self.answer(command, len, cqe);
    }

    /// An Asynchronous Event Request is kept until there is an event. No other command conflicts with its identifier.
    pub fn keep_event_request(&mut self, command: Handle) {
        self.cids[usize::from(command.0)] = NO_CID;
    }

    /// Completes a command without data to the host. SQHD and CID are filled in here. Not while `receives_into`.
    pub fn complete(&mut self, command: Handle, cqe: Cqe) {
        self.answer(command, 0, cqe);
    }

    fn answer(&mut self, command: Handle, bytes: u32, cqe: Cqe) {
        let slot = self.slot(command);
        let was = std::mem::replace(&mut slot.phase, Phase::Answering);
        assert!(
            matches!(was, Phase::Taken | Phase::Asking),
            "a command is completed once, and has no data to come"
        );
        (slot.bytes, slot.cqe) = (bytes, cqe);
        // In the place of what was to be fetched.
        if was == Phase::Taken {
            self.ready.push_back(command.0);
        }
    }

    /// The next to post, if it takes no more posts than there is room for.
    pub fn next_op(&mut self, room: usize) -> Option<Op<'_>> {
        let index = *self.ready.front()?;
        let at = usize::from(index);
        let (slot, command) = (&mut self.slots[at], Handle(index));
        let asks = slot.phase == Phase::Asking;
        if stretches(slot.list.as_slice(), slot.bytes) + usize::from(!asks) > room {
            return None;
        }
        self.ready.pop_front();
        if asks {
            slot.phase = Phase::Fetching;
            return Some(Op::Fetch { command, bytes: slot.bytes, from: slot.list.as_slice() });
        }
        slot.phase = Phase::Sending;
        self.sending += 1;
        self.in_flight -= 1;
        self.cids[at] = NO_CID;
        let response = Cqe { cid: slot.cid.into(), sqhd: self.flow.head().into(), ..slot.cqe };
        let list = &slot.list;
        Some(Op::Answer {
            command,
            bytes: slot.bytes,
            to: list.as_slice(),
            response,
            invalidate: list.invalidates(),
        })
    }

    /// All of a command's RDMA READs are done.
    pub fn fetched(&mut self, command: Handle) {
        if self.slot(command).phase == Phase::Fetching {
            self.fetched.push_back(command.0);
        }
    }

    /// A command's response is acknowledged, and with it what was written before.
    pub fn sent(&mut self, command: Handle) {
        let slot = self.slot(command);
        if slot.phase != Phase::Sending {
            return;
        }
        let has_data = std::mem::take(slot).has_data;
        self.sending -= 1;
        match has_data {
            true => self.released.push(command.0),
            false => self.free.push(command.0),
        }
    }

    /// Appends commands that `send` completed, and whose memory is free: so are their handles, from here on.
    pub fn take_released(&mut self, into: &mut Vec<Handle>) {
        into.extend(self.released.iter().copied().map(Handle));
        self.free.append(&mut self.released);
    }

    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Receives that may be posted again.
    pub fn take_receives(&mut self, into: &mut Vec<u16>) {
        into.append(&mut self.receives);
    }

    /// Nothing is to be posted, and all responses are acknowledged.
    pub fn is_sent(&self) -> bool {
        self.ready.is_empty() && self.sending == 0
    }

    /// `next` has something to say.
    pub fn has_news(&self) -> bool {
        let waits = !self.came.is_empty()
            && (!self.free.is_empty() || self.slots.len() < usize::from(self.commands) * 2);
        waits || !self.fetched.is_empty() || self.complete.is_some() || !matches!(self.capsule, Capsule::None)
    }
}

/// Returns the place of a command's data, or the status that says what is wrong with its SGL.
fn found(sqe: &Sqe, behind: &[u8], list: &mut KeyedList) -> Result<Data, Status> {
    let direction = sqe.direction();
    if direction == 0 {
        return Ok(Data::None);
    }
    // As in most of Set Features: what kind of SGL has no data says nothing.
    if matches!(sqe.sgl.kind, Sgl::DATA_BLOCK | Sgl::TRANSPORT) && sqe.sgl.length.get() == 0 {
        return Ok(Data::None);
    }
    // PSDT: an SGL, whatever metadata have; of Fabrics commands it is reserved.
    if sqe.opcode != FABRICS && !matches!(sqe.flags >> 6, 1 | 2) {
        return Err(Status::fatal(Code::INVALID_FIELD));
    }
    named(sqe, behind, direction & 0b01 == 0, list)
}

fn broken(what: &'static str) -> Fatal {
    Fatal { status: FatalStatus::SequenceError, field: 0, what, by_peer: false }
}
