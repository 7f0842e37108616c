//! The controller's end of NVMe/RDMA against a host that sends what it likes, a card that is done in whatever order, and
//! a namespace that answers late, refuses, and gives up.

use crate::input::Input;
use forebay_nvme::command::{Cqe, Sgl, Sqe, FABRICS};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::rdma::data::{kind, Keyed, KEYED_BYTES_MAX};
use forebay_nvme::transport::rdma::target::{pieces, Event, Op, TargetEnd};
use forebay_nvme::transport::tcp::Handle;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

const CAPSULE_MOST: usize = 64 + 512;
/// Extra posts, as the engine has them: two for each command, and one of the longest list.
const SLACK: usize = 17;

/// State of a command in a simpler truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// To be acted on; bytes that its SGL names, and whether the host sends them from its memory.
    Taken {
        bytes: u32,
        fetched: bool,
    },
    /// Its data are to be copied out of its capsule.
    InCapsule,
    Asked(u32),
    Fetching,
    /// Its data are here: told as placed, or as complete.
    Here,
    Answered {
        bytes: u32,
        released: bool,
    },
    Sending {
        released: bool,
    },
    /// Its memory is to be told as free.
    Releasing,
}

struct World {
    end: TargetEnd,
    commands: usize,
    flow_control: bool,
    at: BTreeMap<u16, (At, u16)>,
    receives: Vec<u16>,
    /// A receive whose bytes are being copied.
    lent: Option<u16>,
    capsules: BTreeMap<u16, usize>,
    fetching: Vec<(Handle, usize)>,
    sending: Vec<(Handle, usize)>,
    room: usize,
    came: usize,
    answers: usize,
}

/// Each command is answered once, and what is under way is left alone, whatever comes.
pub fn nvme_rdma_target_end(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(2 + usize::from(input.u8() % 6), input.bool());
    while !input.is_empty() {
        if !world.step(&mut input) {
            return;
        }
        world.take();
    }
    world.run_until_quiet();
}

impl World {
    fn new(commands: usize, flow_control: bool) -> World {
        let mut end = TargetEnd::new(commands as u16);
        end.set_depth(commands as u16, flow_control);
        World {
            end,
            commands,
            flow_control,
            at: BTreeMap::new(),
            receives: (0..commands as u16).collect(),
            lent: None,
            capsules: BTreeMap::new(),
            fetching: Vec::new(),
            sending: Vec::new(),
            room: 2 * commands + SLACK,
            came: 0,
            answers: 0,
        }
    }

    /// False: the connection is over.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.u8() % 8 {
            0 => self.comes(&capsule(input)),
            1 => match input.u8() {
                0..=16 => self.comes(input.bytes(CAPSULE_MOST)),
                _ => self.comes(&capsule(input)),
            },
            2 | 3 => self.hears().is_some(),
            4 => self.acts(input.u8().into(), input.u8()),
            5 => self.gives_up(input.u8().into()),
            6 => self.posts(usize::from(input.u8())),
            _ => self.completes(input.u8().into()),
        }
    }

    /// A message of the host's, if there is a receive for it.
    fn comes(&mut self, capsule: &[u8]) -> bool {
        let Some(receive) = self.receives.pop() else { return true };
        if self.end.came(receive, capsule).is_err() {
            assert!(capsule.len() < size_of::<Sqe>(), "a command is refused");
            return false;
        }
        assert!(capsule.len() >= size_of::<Sqe>(), "what is no command is taken");
        self.capsules.insert(receive, capsule.len());
        self.came += 1;
        true
    }

    /// One event, if there is one. None: the connection is over.
    fn hears(&mut self) -> Option<bool> {
        self.lent = None;
        let Ok(event) = self.end.next() else {
            assert!(self.came - self.answers > self.commands, "a host within its depth is served");
            return None;
        };
        let Some(event) = event else { return Some(false) };
        match event {
            Event::Command { command, sqe, in_capsule } => {
                assert!(usize::from(command.0) < 2 * self.commands, "handles are bounded");
                let (bytes, outward) = (sqe.sgl.length.get(), sqe.direction() == 0b01);
                let at = match in_capsule {
                    0 => At::Taken { bytes, fetched: outward && bytes > 0 },
                    _ => At::InCapsule,
                };
                let old = self.at.insert(command.0, (at, sqe.cid.get()));
                assert!(old.is_none(), "handle {} is given twice", command.0);
            }
            Event::Copy { place, receive, range } => {
                assert_eq!(self.at[&place.command.0].0, At::InCapsule);
                assert!(range.start >= size_of::<Sqe>() && range.end <= self.capsules[&receive]);
                assert_eq!((place.offset, place.len as usize), (0, range.len()));
                self.put(place.command, At::Here);
                self.lent = Some(receive);
            }
            Event::Placed(place) => assert_eq!(self.at[&place.command.0].0, At::Here),
            Event::DataComplete { command } => assert_eq!(self.at[&command.0].0, At::Here),
        }
        Some(true)
    }

    fn put(&mut self, command: Handle, at: At) {
        self.at.get_mut(&command.0).expect("a command that came").0 = at;
    }

    fn find(&self, which: usize, wanted: impl Fn(&At) -> bool) -> Option<(Handle, At)> {
        let of: Vec<_> = self.at.iter().filter(|(_, (at, _))| wanted(at)).collect();
        of.get(which % of.len().max(1)).map(|(handle, (at, _))| (Handle(**handle), *at))
    }

    /// The namespace does what one of its commands asks for.
    fn acts(&mut self, which: usize, how: u8) -> bool {
        let Some((command, At::Taken { bytes, fetched })) =
            self.find(which, |at| matches!(at, At::Taken { .. }))
        else {
            return true;
        };
        if fetched && how % 4 > 0 {
            self.end.request(command, bytes);
            self.put(command, At::Asked(bytes));
        } else if !fetched && how % 4 > 0 {
            // More than the host named at times, which is answered with a status.
            let len = if how == 255 { bytes.saturating_add(1) } else { bytes };
            self.end.send(command, len, Cqe::default());
            let bytes = if len == bytes { bytes } else { 0 };
            self.put(command, At::Answered { bytes, released: true });
        } else {
            self.completed(command, Code::INVALID_FIELD);
        }
        true
    }

    fn completed(&mut self, command: Handle, code: Code) {
        self.end.complete(command, Cqe::new(0, Status::fatal(code), 0));
        self.put(command, At::Answered { bytes: 0, released: false });
    }

    /// A command is completed whose data are here, or would have come.
    fn gives_up(&mut self, which: usize) -> bool {
        let may = |at: &At| matches!(at, At::InCapsule | At::Asked(_) | At::Here);
        if let Some((command, _)) = self.find(which, may) {
            if !self.end.receives_into(command) {
                self.completed(command, Code::ABORT_REQUESTED);
            }
        }
        true
    }

    /// The card is given up to `most` posts.
    fn posts(&mut self, most: usize) -> bool {
        let mut room = self.room.min(most);
        while let Some(op) = self.end.next_op(room) {
            let posts = op.posts();
            assert!(posts <= room, "more posts than there is room for");
            (room, self.room) = (room - posts, self.room - posts);
            match op {
                Op::Fetch { command, bytes, from } => {
                    check(from, bytes, posts);
                    assert_eq!(self.at[&command.0].0, At::Asked(bytes));
                    self.fetching.push((command, posts));
                    self.put(command, At::Fetching);
                }
                Op::Answer { command, bytes, to, response, .. } => {
                    check(to, bytes, posts - 1);
                    self.answers += 1;
                    if self.flow_control {
                        assert_eq!(usize::from(response.sqhd.get()), self.answers % self.commands);
                    }
                    self.sending.push((command, posts));
                    self.answered(command, bytes, &response);
                }
            }
        }
        true
    }

    /// Checks an answer: to what the namespace has seen, as it said; to the rest, with what is wrong.
    fn answered(&mut self, command: Handle, bytes: u32, response: &Cqe) {
        let Some((at, cid)) = self.at.get(&command.0).copied() else {
            assert!(bytes == 0 && !response.status().is_success(), "nobody answered it");
            self.at.insert(command.0, (At::Sending { released: false }, response.cid.get()));
            return;
        };
        let At::Answered { bytes: said, released } = at else { panic!("it is answered at {at:?}") };
        assert_eq!((bytes, response.cid.get()), (said, cid));
        self.put(command, At::Sending { released });
    }

    /// Something that was posted is done: which is the card's choice, but responses are acknowledged in order.
    fn completes(&mut self, which: usize) -> bool {
        if !self.fetching.is_empty() && (which % 2 == 0 || self.sending.is_empty()) {
            let (command, posts) = self.fetching.swap_remove(which / 2 % self.fetching.len());
            assert!(self.end.receives_into(command));
            self.room += posts;
            self.end.fetched(command);
            self.put(command, At::Here);
            assert!(self.end.receives_into(command), "until it is told as placed");
        } else if !self.sending.is_empty() {
            let (command, posts) = self.sending.remove(0);
            self.room += posts;
            self.end.sent(command);
            match self.at.remove(&command.0) {
                Some((At::Sending { released: true }, cid)) => {
                    self.at.insert(command.0, (At::Releasing, cid));
                }
                Some((At::Sending { released: false }, _)) => {}
                at => panic!("it is acknowledged at {at:?}"),
            }
        }
        true
    }

    /// Takes back receives and memory.
    fn take(&mut self) {
        let mut again = Vec::new();
        self.end.take_receives(&mut again);
        for receive in again {
            assert!(!self.receives.contains(&receive), "receive {receive} is posted twice");
            assert_ne!(self.lent, Some(receive), "it is still read");
            self.receives.push(receive);
        }
        let mut released = Vec::new();
        self.end.take_released(&mut released);
        for command in released {
            assert!(
                matches!(self.at.remove(&command.0), Some((At::Releasing, _))),
                "{command:?} is released twice"
            );
        }
    }

    /// Until nothing moves: all that came is answered then.
    fn run_until_quiet(&mut self) {
        loop {
            let mut moved = false;
            loop {
                match self.hears() {
                    None => return,
                    Some(false) => break,
                    Some(true) => moved = true,
                }
                self.take();
            }
            while self.find(0, |at| matches!(at, At::Taken { .. })).is_some() {
                moved |= self.acts(0, 1);
            }
            while let Some((command, _)) = self.find(0, |at| *at == At::Here) {
                self.completed(command, Code::SUCCESS);
                moved = true;
            }
            self.posts(usize::MAX);
            moved |= !self.fetching.is_empty() || !self.sending.is_empty();
            self.completes(1);
            self.completes(0);
            self.take();
            if !moved {
                break;
            }
        }
        assert!(self.end.is_sent() && !self.end.has_news() && self.at.is_empty(), "{:?}", self.at);
        assert_eq!((self.answers, self.receives.len()), (self.came, self.commands));
        assert_eq!(self.room, 2 * self.commands + SLACK);
    }
}

/// A post for each stretch, which together name all bytes.
fn check(list: &[Keyed], bytes: u32, posts: usize) {
    let mut end = 0;
    for (at, piece) in pieces(list, bytes) {
        assert!(at == end && piece.bytes > 0 && piece.bytes <= KEYED_BYTES_MAX);
        end += piece.bytes;
    }
    assert_eq!((end, pieces(list, bytes).count()), (bytes, posts));
}

/// A command much as hosts send them.
fn capsule(input: &mut Input<'_>) -> Vec<u8> {
    let opcode = match input.u8() {
        choice if choice < 240 => [0x00, 0x01, 0x02, 0x05, 0x09, FABRICS][usize::from(choice) % 6],
        _ => input.u8(),
    };
    let flags = input.pick(&[1 << 6, 1 << 6, 1 << 6, 2 << 6, 0]);
    let mut sqe = Sqe { opcode, flags, cid: u16::from(input.u8() % 16).into(), ..Sqe::default() };
    let choice = input.u8();
    let (kind, stretches, behind) = match choice % 8 {
        0..=2 => (kind::KEYED, 0, 0),
        3 => (kind::KEYED_INVALIDATE, 0, 0),
        4 => (Sgl::IN_CAPSULE, 0, usize::from(input.u8())),
        5 | 6 => (kind::SEGMENT_IN_CAPSULE, usize::from(input.u8() % 18), 0),
        _ => (input.u8(), 0, usize::from(input.u8())),
    };
    let length = match (kind, stretches) {
        (kind::SEGMENT_IN_CAPSULE, n) if choice < 240 => 16 * n as u32,
        (Sgl::IN_CAPSULE, _) if choice < 240 => behind as u32,
        _ => input.near(&[0, 16, 512, 4096, KEYED_BYTES_MAX]),
    };
    let address = if choice < 240 { 0 } else { input.u16() };
    sqe.sgl = Sgl { address: u64::from(address).into(), length: length.into(), reserved: [0; 3], kind };
    let mut capsule = sqe.as_bytes().to_vec();
    for _ in 0..stretches {
        let bytes = input.near(&[0, 1, 512, 4096, KEYED_BYTES_MAX]) & KEYED_BYTES_MAX;
        let keyed =
            Keyed { address: input.u8().into(), bytes, key: input.u8().into(), invalidate: input.bool() };
        capsule.extend_from_slice(keyed.to_sgl().as_bytes());
    }
    capsule.resize(capsule.len() + behind, choice);
    capsule
}
