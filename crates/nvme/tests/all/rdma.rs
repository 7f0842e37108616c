//! The controller's end of NVMe/RDMA against a host and a card in memory: whatever is sent, in whatever order a card
//! completes it, each command is answered once, and its bytes are where they belong.

use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::rdma::data::{kind, put_in_capsule, put_keyed, Keyed, KEYED_BYTES_MAX};
use forebay_nvme::transport::rdma::target::{pieces, Event, Op, TargetEnd};
use forebay_nvme::transport::tcp::Handle;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use zerocopy::{FromBytes, IntoBytes};

const READ: u8 = 0x02;
const WRITE: u8 = 0x01;
const FLUSH: u8 = 0x00;
const COMMANDS: u16 = 4;

fn command(opcode: u8, cid: u16) -> Sqe {
    Sqe { opcode, flags: 1 << 6, cid: cid.into(), ..Sqe::default() }
}

fn keyed(opcode: u8, cid: u16, stretches: &[Keyed]) -> Vec<u8> {
    let mut capsule = Vec::new();
    put_keyed(command(opcode, cid), stretches, &mut capsule);
    capsule
}

fn stretch(address: u64, bytes: u32, key: u32) -> Keyed {
    Keyed { address, bytes, key, invalidate: false }
}

/// One command of the host's.
#[derive(Clone, Debug)]
struct Asked {
    opcode: u8,
    data: Vec<u8>,
    in_capsule: bool,
    /// Stretches that its data lie in.
    pieces: usize,
    invalidate: bool,
    /// Completed before its data are looked at, or asked for.
    refused: bool,
}

fn asked() -> impl Strategy<Value = Asked> {
    let data = prop::collection::vec(any::<u8>(), 1..200);
    (prop_oneof![Just(READ), Just(WRITE), Just(FLUSH)], data, any::<bool>(), 1usize..5, any::<bool>(), 0..8u8)
        .prop_map(|(opcode, data, in_capsule, pieces, invalidate, refused)| Asked {
            opcode,
            in_capsule: in_capsule && opcode == WRITE,
            pieces,
            invalidate,
            refused: refused == 0 && opcode != READ,
            data: if opcode == FLUSH { Vec::new() } else { data },
        })
}

/// Both ends' memory, and the card between them.
struct World {
    end: TargetEnd,
    /// The host's, by key: what it sends, or what came.
    host: BTreeMap<u32, Vec<u8>>,
    /// The controller's, by handle.
    ours: BTreeMap<u16, (Asked, u16, Vec<u8>)>,
    receives: VecDeque<u16>,
    capsules: BTreeMap<u16, Vec<u8>>,
    /// Posted and not completed, with the posts of each.
    fetching: Vec<(Handle, usize)>,
    sending: Vec<(Handle, usize, Cqe, Option<u32>)>,
    room: usize,
    answers: BTreeMap<u16, Cqe>,
    heads: Vec<u16>,
}

impl World {
    fn new() -> World {
        let mut end = TargetEnd::new(COMMANDS);
        end.set_depth(COMMANDS, true);
        World {
            end,
            host: BTreeMap::new(),
            ours: BTreeMap::new(),
            receives: (0..COMMANDS).collect(),
            capsules: BTreeMap::new(),
            fetching: Vec::new(),
            sending: Vec::new(),
            room: 2 * usize::from(COMMANDS) + 5,
            answers: BTreeMap::new(),
            heads: Vec::new(),
        }
    }

    /// The host sends a command, as far as we have a receive for it.
    fn send(&mut self, cid: u16, asked: &Asked) {
        let receive = self.receives.pop_front().expect("a receive for each command in flight");
        let base = u32::from(cid) << 8;
        let parts: Vec<&[u8]> = asked.data.chunks(asked.data.len().div_ceil(asked.pieces).max(1)).collect();
        let named = |(i, part): (usize, &&[u8])| Keyed {
            invalidate: asked.invalidate && i == 0,
            ..stretch(0, part.len() as u32, base + i as u32)
        };
        let list: Vec<Keyed> = parts.iter().enumerate().map(named).collect();
        let mut capsule = Vec::new();
        match (asked.opcode, asked.in_capsule) {
            (FLUSH, _) => put_keyed(command(FLUSH, cid), &[Keyed::default()], &mut capsule),
            (_, true) => put_in_capsule(command(WRITE, cid), &asked.data, &mut capsule),
            _ => put_keyed(command(asked.opcode, cid), &list, &mut capsule),
        }
        for (keyed, part) in list.iter().zip(&parts) {
            let there = if asked.opcode == WRITE { part.to_vec() } else { vec![0; part.len()] };
            self.host.insert(keyed.key, there);
        }
        self.end.came(receive, &capsule).unwrap();
        self.capsules.insert(receive, capsule);
    }

    /// Executes all commands that came.
    fn serve(&mut self, all: &[Asked]) {
        while let Some(event) = self.end.next().unwrap() {
            self.post_receives();
            match event {
                Event::Command { command, sqe, in_capsule } => {
                    let cid = sqe.cid.get();
                    let asked = all[usize::from(cid)].clone();
                    let bytes = asked.data.len() as u32;
                    assert_eq!(sqe.sgl.length.get(), bytes, "the SGL names all data");
                    assert_eq!(in_capsule, if asked.in_capsule { bytes } else { 0 });
                    let refused = asked.refused;
                    let memory = match asked.opcode {
                        READ => asked.data.clone(),
                        _ => vec![0; asked.data.len()],
                    };
                    let (opcode, inside) = (asked.opcode, asked.in_capsule);
                    let old = self.ours.insert(command.0, (asked, cid, memory));
                    assert!(old.is_none(), "handle {} came twice", command.0);
                    match opcode {
                        _ if refused => self.complete(command, Code::INVALID_FIELD),
                        READ => self.end.send(command, bytes, Cqe::default()),
                        WRITE if inside => {}
                        WRITE => self.end.request(command, bytes),
                        _ => self.complete(command, Code::SUCCESS),
                    }
                }
                Event::Copy { place, receive, range } => {
                    let bytes = self.capsules[&receive][range].to_vec();
                    let at = place.offset as usize;
                    self.ours.get_mut(&place.command.0).unwrap().2[at..at + bytes.len()]
                        .copy_from_slice(&bytes);
                }
                Event::Placed(_) => {}
                Event::DataComplete { command } => {
                    let (asked, _, memory) = &self.ours[&command.0];
                    assert_eq!(&asked.data, memory, "what the host wrote came");
                    self.complete(command, Code::SUCCESS);
                }
            }
        }
        self.post_receives();
    }

    fn complete(&mut self, command: Handle, code: Code) {
        // Its memory is free at once.
        self.ours.remove(&command.0);
        self.end.complete(command, Cqe::new(0, Status::fatal(code), 0));
    }

    fn post_receives(&mut self) {
        let mut again = Vec::new();
        self.end.take_receives(&mut again);
        for receive in again {
            assert!(!self.receives.contains(&receive), "receive {receive} is posted twice");
            self.receives.push_back(receive);
        }
    }

    /// Hands what is to be posted to the card, which does it at once and tells of it later.
    fn post(&mut self) {
        while let Some(op) = self.end.next_op(self.room) {
            let posts = op.posts();
            assert!(posts <= self.room);
            self.room -= posts;
            match op {
                Op::Fetch { command, bytes, from } => {
                    let memory = &mut self.ours.get_mut(&command.0).unwrap().2;
                    for (at, keyed) in pieces(from, bytes) {
                        let (at, len) = (at as usize, keyed.bytes as usize);
                        memory[at..at + len].copy_from_slice(&self.host[&keyed.key][..len]);
                    }
                    self.fetching.push((command, posts));
                }
                Op::Answer { command, bytes, to, response, invalidate } => {
                    for (at, keyed) in pieces(to, bytes) {
                        let (at, len) = (at as usize, keyed.bytes as usize);
                        let part = self.ours[&command.0].2[at..at + len].to_vec();
                        self.host.get_mut(&keyed.key).unwrap()[..len].copy_from_slice(&part);
                    }
                    self.heads.push(response.sqhd.get());
                    // The host has it from here on; that it was acknowledged, we hear later.
                    let old = self.answers.insert(response.cid.get(), response);
                    assert!(old.is_none(), "command {} is answered twice", response.cid.get());
                    self.sending.push((command, posts, response, invalidate));
                }
            }
        }
    }

    /// Something that was posted completes: which is the card's choice, but responses are acknowledged in order.
    fn complete_one(&mut self, which: usize) {
        if !self.fetching.is_empty() && (which % 2 == 0 || self.sending.is_empty()) {
            let (command, posts) = self.fetching.remove(which % self.fetching.len());
            self.room += posts;
            self.end.fetched(command);
        } else if !self.sending.is_empty() {
            let (command, posts, ..) = self.sending.remove(0);
            self.room += posts;
            self.end.sent(command);
        }
        let mut released = Vec::new();
        self.end.take_released(&mut released);
        released.iter().for_each(|command| drop(self.ours.remove(&command.0).expect("it is a read's")));
    }
}

proptest! {
    // promise: RHO-14
    #[test]
    fn each_command_is_answered_once_and_its_bytes_are_where_they_belong(
        all in prop::collection::vec(asked(), 1..40), order in prop::collection::vec(any::<usize>(), 1..40),
    ) {
        let mut world = World::new();
        let mut order = order.iter().cycle().copied();
        let mut next = 0;
        while world.answers.len() < all.len() {
            let room = usize::from(COMMANDS) - (next - world.answers.len());
            let idle = usize::from(next == world.answers.len());
            let most = (order.next().unwrap() % (room + 1)).max(idle);
            for _ in 0..most.min(all.len() - next) {
                world.send(next as u16, &all[next]);
                next += 1;
            }
            world.serve(&all);
            world.post();
            world.complete_one(order.next().unwrap());
        }
        while !world.sending.is_empty() {
            world.complete_one(1);
        }
        prop_assert!(world.end.is_sent() && world.ours.is_empty());
        prop_assert_eq!(world.receives.len(), usize::from(COMMANDS));
        prop_assert_eq!(world.room, 2 * usize::from(COMMANDS) + 5);
        for (cid, asked) in all.iter().enumerate() {
            let status = world.answers[&(cid as u16)].status();
            prop_assert_eq!(status.is_success(), !asked.refused, "{}", cid);
            if asked.opcode == READ {
                let base = (cid as u32) << 8;
                let came: Vec<u8> = world.host.range(base..base + 256).flat_map(|(_, part)| part.clone()).collect();
                prop_assert_eq!(&came, &asked.data);
            }
        }
        let heads = (1..=all.len()).map(|n| (n % usize::from(COMMANDS)) as u16);
        prop_assert_eq!(world.heads, heads.collect::<Vec<_>>(), "SQHD goes up by one with each response");
    }

    /// Anything may come as a capsule, and a host that keeps to its depth is always answered.
    // promise: RHO-14
    #[test]
    fn nonsense_is_answered_or_ends_the_connection(
        capsules in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..40),
    ) {
        let mut end = TargetEnd::new(COMMANDS);
        let mut receives: VecDeque<u16> = (0..COMMANDS).collect();
        for capsule in &capsules {
            let Some(receive) = receives.pop_front() else { break };
            if end.came(receive, capsule).is_err() {
                prop_assert!(capsule.len() < size_of::<Sqe>());
                return Ok(());
            }
            while let Some(event) = end.next().unwrap() {
                match event {
                    Event::Command { command, sqe, in_capsule: 0 } => {
                        let length = sqe.sgl.length.get();
                        match sqe.opcode & 0b11 {
                            0b01 if length > 0 => end.request(command, length),
                            0b10 => end.send(command, length, Cqe::default()),
                            _ => end.complete(command, Cqe::default()),
                        }
                    }
                    Event::Copy { range, .. } => prop_assert!(range.end <= capsule.len()),
                    Event::DataComplete { command } => end.complete(command, Cqe::default()),
                    Event::Command { .. } | Event::Placed(_) => {}
                }
            }
            while let Some(op) = end.next_op(64) {
                match op {
                    Op::Fetch { command, bytes, from } => {
                        prop_assert_eq!(pieces(from, bytes).map(|(_, k)| k.bytes).sum::<u32>(), bytes);
                        end.fetched(command);
                    }
                    Op::Answer { command, bytes, to, .. } => {
                        prop_assert!(pieces(to, bytes).map(|(_, k)| k.bytes).sum::<u32>() == bytes);
                        end.sent(command);
                    }
                }
                end.take_released(&mut Vec::new());
            }
            let mut again = Vec::new();
            end.take_receives(&mut again);
            receives.extend(again);
        }
    }
}

/// The statuses of what is answered without anybody having seen it.
fn answers(capsules: &[Vec<u8>]) -> Vec<(u16, Code)> {
    let mut end = TargetEnd::new(COMMANDS);
    for (receive, capsule) in (0..).zip(capsules) {
        end.came(receive, capsule).unwrap();
    }
    while end.next().unwrap().is_some() {}
    let mut reported = Vec::new();
    while let Some(op) = end.next_op(64) {
        let Op::Answer { response, bytes: 0, .. } = op else { panic!("{op:?}") };
        reported.push((response.cid.get(), response.status().code));
    }
    reported
}

// promise: RHO-14
#[test]
fn what_an_sgl_must_not_say_is_answered_with_its_status() {
    let one = stretch(4096, 512, 7);
    let with = |kind: u8, length: u32| {
        let mut sqe = command(WRITE, 3);
        (sqe.sgl.kind, sqe.sgl.length) = (kind, length.into());
        sqe.as_bytes().to_vec()
    };
    let prp = Sqe { flags: 0, ..Sqe::read_from_bytes(&with(0x5a, 512)).unwrap() }.as_bytes().to_vec();
    assert_eq!(answers(&[prp]), [(3, Code::INVALID_FIELD)]);
    assert_eq!(answers(&[with(0x01, 512)]), [(3, Code::SGL_OFFSET_INVALID)], "more than its capsule has");
    assert_eq!(answers(&[with(0x5a, 512)]), [(3, Code::SGL_TYPE_INVALID)], "TCP's descriptor");
    assert_eq!(answers(&[with(kind::SEGMENT_IN_CAPSULE, 16)]), [(3, Code::SGL_OFFSET_INVALID)]);
    let twice = [keyed(WRITE, 9, &[one]), keyed(WRITE, 9, &[one])];
    assert_eq!(answers(&twice), [(9, Code::COMMAND_ID_CONFLICT)]);
}

#[test]
fn data_that_do_not_fit_into_what_the_host_named_are_not_written() {
    let mut end = TargetEnd::new(COMMANDS);
    end.came(0, &keyed(READ, 5, &[stretch(0, 512, 1)])).unwrap();
    let Some(Event::Command { command, .. }) = end.next().unwrap() else { panic!("no command") };
    end.send(command, 513, Cqe::default());
    let Some(Op::Answer { response, bytes: 0, .. }) = end.next_op(1) else { panic!("no response") };
    assert_eq!(response.status().code, Code::DATA_SGL_LENGTH_INVALID);
    let mut released = Vec::new();
    end.sent(command);
    end.take_released(&mut released);
    assert_eq!(released, [command], "its memory is told as free all the same");
}

#[test]
fn a_key_is_invalidated_with_the_response_that_has_it() {
    let mut end = TargetEnd::new(COMMANDS);
    let list = [Keyed { invalidate: true, ..stretch(0, KEYED_BYTES_MAX, 0xabcd) }];
    end.came(0, &keyed(WRITE, 5, &list)).unwrap();
    let Some(Event::Command { command, sqe, in_capsule: 0 }) = end.next().unwrap() else {
        panic!("no command")
    };
    assert_eq!(sqe.sgl.length.get(), KEYED_BYTES_MAX);
    end.complete(command, Cqe::default());
    let Some(Op::Answer { invalidate, .. }) = end.next_op(1) else { panic!("no response") };
    assert_eq!(invalidate, Some(0xabcd));
}

// promise: RHO-14
#[test]
fn a_host_that_sends_more_than_its_depth_is_not_served() {
    let mut end = TargetEnd::new(2);
    for cid in 0..3 {
        end.came(cid, &keyed(READ, cid, &[stretch(0, 512, 1)])).unwrap();
    }
    assert!(end.next().unwrap().is_some() && end.next().unwrap().is_some());
    assert!(end.next().is_err());
}

#[test]
fn a_read_that_waits_for_room_is_posted_when_there_is_some() {
    let mut end = TargetEnd::new(COMMANDS);
    let list: Vec<Keyed> = (0..3).map(|i| stretch(0, 512, i)).collect();
    end.came(0, &keyed(READ, 1, &list)).unwrap();
    let Some(Event::Command { command, .. }) = end.next().unwrap() else { panic!("no command") };
    end.send(command, 1024, Cqe::default());
    assert_eq!(end.next_op(2), None, "two stretches and a response take three");
    assert!(end.next_op(3).is_some_and(|op| op.posts() == 3));
}

#[test]
fn what_was_asked_for_and_given_up_is_not_fetched() {
    let mut end = TargetEnd::new(COMMANDS);
    end.came(0, &keyed(WRITE, 1, &[stretch(0, 512, 1)])).unwrap();
    let Some(Event::Command { command, .. }) = end.next().unwrap() else { panic!("no command") };
    end.request(command, 512);
    assert!(!end.receives_into(command), "nothing is posted yet");
    end.complete(command, Cqe::new(1, Status::again(Code::ABORT_REQUESTED), 0));
    assert!(matches!(end.next_op(8), Some(Op::Answer { bytes: 0, .. })));
    assert_eq!(end.next_op(8), None);
}
