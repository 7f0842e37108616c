//! The two ends of an NVMe/TCP connection, with the link in the test's hands.

use super::link::{content, Asks, Host, Random, Target};
use forebay_nvme::command::Cqe;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::{host, target, Fatal};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
struct Shape {
    header_digest: bool,
    data_digest: bool,
    depth: u16,
    flow_control: bool,
    in_capsule_max: u32,
    host_bulk: usize,
    target_bulk: usize,
    max_h2c: u32,
    max_c2h: u32,
    asks: Asks,
    /// Bytes that cross the link at once, at most.
    piece: usize,
}

const PLAIN: Shape = Shape {
    header_digest: false,
    data_digest: false,
    depth: 16,
    flow_control: false,
    in_capsule_max: 8192,
    host_bulk: 0,
    target_bulk: 8192,
    max_h2c: 131_072,
    max_c2h: 131_072,
    asks: Asks::AtOnce,
    piece: usize::MAX,
};

struct Pair {
    host: Host,
    target: Target,
    to_target: Vec<u8>,
    to_host: Vec<u8>,
    piece: usize,
    random: Random,
}

impl Pair {
    fn new(shape: Shape, seed: u64) -> Pair {
        let mut host = Host::new(host::Options {
            header_digest: shape.header_digest,
            data_digest: shape.data_digest,
            depth: shape.depth,
            r2ts: 1,
            bulk: shape.host_bulk,
        });
        host.end.set_in_capsule_max(shape.in_capsule_max);
        let options = target::Options {
            header_digest: true,
            data_digest: true,
            in_capsule_max: 8192,
            max_h2c: shape.max_h2c,
            max_c2h: shape.max_c2h,
            bulk: shape.target_bulk,
        };
        let mut target = Target::new(options, shape.depth + 1, shape.flow_control);
        target.asks = shape.asks;
        let random = Random::new(seed);
        Pair { host, target, to_target: vec![], to_host: vec![], piece: shape.piece, random }
    }

    /// Both ends agree.
    fn connected(shape: Shape, seed: u64) -> Pair {
        let mut pair = Pair::new(shape, seed);
        while !pair.host.ready {
            pair.turn().expect("a connection");
        }
        pair
    }

    /// Bytes move, in pieces; commands are answered, in any order.
    fn turn(&mut self) -> Result<bool, Fatal> {
        let mut moved = false;
        self.to_target.extend(self.host.sends());
        if !self.to_target.is_empty() {
            let n = 1 + self.random.below(self.piece.min(self.to_target.len()));
            let n = self.target.receives(&self.to_target[..n])?;
            self.to_target.drain(..n);
            moved = true;
        }
        while !self.target.waiting.is_empty() && self.random.below(4) > 0 {
            let pick = self.random.below(1 << 16);
            self.target.answer(pick);
            moved = true;
        }
        moved |= !self.target.waiting.is_empty();
        self.to_host.extend(self.target.sends());
        if !self.to_host.is_empty() {
            let n = 1 + self.random.below(self.piece.min(self.to_host.len()));
            let n = self.host.receives(&self.to_host[..n])?;
            self.to_host.drain(..n);
            moved = true;
        }
        Ok(moved)
    }

    /// Until nothing moves.
    fn run_until_quiet(&mut self) {
        while self.turn().expect("no fatal error") {}
        assert_eq!(
            (self.host.end.in_flight(), self.target.end.in_flight()),
            (0, 0),
            "nothing is left in flight"
        );
        assert!(self.host.memory.data.is_empty() && self.target.memory.data.is_empty(), "all memory is free");
    }

    /// Runs `count` commands of random kinds and sizes, as many in flight as fit.
    fn traffic(&mut self, count: u32, len_max: usize) {
        let mut asked = HashMap::new();
        let mut checked = 0;
        for seed in 0..count {
            let len = 1 + self.random.below(len_max) as u32;
            let mut kind = self.random.below(5);
            let command = loop {
                let command = match kind {
                    0 | 1 => self.host.read(seed, len),
                    2 | 3 => self.host.write(seed, len),
                    _ => self.host.flush(),
                };
                match command {
                    Ok(command) => break command,
                    Err(host::Busy) => assert!(self.turn().expect("no fatal error")),
                }
                checked += self.check(&mut asked);
                kind = kind.min(4);
            };
            checked += self.check(&mut asked);
            asked.insert(command.0, (kind, seed, len));
        }
        self.run_until_quiet();
        checked += self.check(&mut asked);
        assert_eq!(checked, count);
    }

    /// Checks what was completed.
    fn check(&mut self, asked: &mut HashMap<u16, (usize, u32, u32)>) -> u32 {
        let mut checked = 0;
        for done in self.host.done.drain(..) {
            let (kind, seed, len) = asked.remove(&done.command.0).expect("completed once");
            assert!(done.cqe.status().is_success(), "{:?}", done.cqe.status());
            if kind < 2 {
                assert_eq!(done.received, len);
                assert!(done.data == content(seed, len), "what was read is what was sent");
            }
            checked += 1;
        }
        checked
    }
}

// promise: NTP-2
#[test]
fn what_one_end_is_given_arrives_at_the_other() {
    for digests in 0..4 {
        let shape = Shape { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, ..PLAIN };
        Pair::connected(shape, 7).traffic(300, 40_000);
    }
}

// promise: NTP-2
#[test]
fn a_stream_cut_at_every_byte_says_the_same() {
    for digests in 0..4 {
        let shape =
            Shape { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, piece: 1, ..PLAIN };
        Pair::connected(shape, 3).traffic(40, 600);
    }
}

// promise: NTP-3
#[test]
fn large_reads_go_straight_to_their_place() {
    let mut pair = Pair::connected(Shape { depth: 4, ..PLAIN }, 1);
    for seed in 0..4 {
        pair.host.read(seed, 1 << 20).expect("a free slot");
    }
    pair.run_until_quiet();
    assert_eq!((pair.host.memory.placed, pair.host.memory.copied), (4 << 20, 0));
}

#[test]
fn large_reads_go_straight_to_their_place_where_small_ones_may_be_copied() {
    let mut pair = Pair::connected(Shape { depth: 4, host_bulk: 65_536, ..PLAIN }, 1);
    for seed in 0..3 {
        // Between them the connection is idle, and a receive may be waiting.
        pair.host.read(seed, 1 << 17).expect("a free slot");
        pair.run_until_quiet();
        assert_eq!(pair.host.end.expect().own.len(), 24);
    }
    assert_eq!((pair.host.memory.placed, pair.host.memory.copied), (3 << 17, 0));
    pair.host.read(4, 4096).expect("a free slot");
    pair.run_until_quiet();
    assert_eq!(pair.host.end.expect().own.len(), 65_536, "small reads follow small ones");
}

// promise: NTP-3
#[test]
fn small_reads_come_many_with_one_receive() {
    let mut pair = Pair::connected(Shape { depth: 32, host_bulk: 65_536, piece: usize::MAX, ..PLAIN }, 1);
    for seed in 0..8 {
        pair.host.read(seed, 4096).expect("a free slot");
    }
    let bytes = pair.host.sends();
    assert_eq!(pair.target.receives(&bytes), Ok(bytes.len()), "eight capsules come with one receive");
    while !pair.target.waiting.is_empty() {
        pair.target.answer(0);
    }
    let bytes = pair.target.sends();
    assert_eq!(pair.host.receives(&bytes), Ok(bytes.len()), "eight answers come with one receive");
    assert_eq!(pair.host.done.len(), 8);
}

#[test]
fn a_queue_that_is_full_hands_the_command_back() {
    let mut pair = Pair::connected(Shape { depth: 2, ..PLAIN }, 1);
    pair.host.flush().expect("a free slot");
    pair.host.flush().expect("a free slot");
    assert_eq!(pair.host.flush(), Err(host::Busy));
    pair.run_until_quiet();
    pair.host.flush().expect("a free slot");
}

// promise: NTP-5
#[test]
fn a_data_digest_that_differs_fails_a_read() {
    let mut pair = Pair::connected(Shape { data_digest: true, ..PLAIN }, 1);
    pair.host.corrupt = true;
    pair.host.read(1, 5000).expect("a free slot");
    pair.run_until_quiet();
    assert_eq!(pair.host.done[0].cqe.status(), Status::again(Code::TRANSIENT_TRANSPORT_ERROR));
}

// promise: NTP-5
#[test]
fn a_data_digest_that_differs_fails_a_write_and_nothing_else() {
    for len in [512, 20_000] {
        let mut pair = Pair::connected(Shape { data_digest: true, max_h2c: 4096, ..PLAIN }, 1);
        pair.host.write(1, len).expect("a free slot");
        pair.to_target.extend(pair.host.sends());
        if len > 8192 {
            pair.target.receives(&std::mem::take(&mut pair.to_target)).expect("a command");
            pair.host.receives(&pair.target.sends()).expect("an R2T");
            pair.to_target.extend(pair.host.sends());
        }
        pair.to_target[100] ^= 0x10;
        pair.run_until_quiet();
        pair.host.write(2, len).expect("a free slot");
        pair.run_until_quiet();
        let codes: Vec<Code> = pair.host.done.iter().map(|done| done.cqe.status().code).collect();
        assert_eq!((codes, pair.target.wrong), (vec![Code::TRANSIENT_TRANSPORT_ERROR, Code::SUCCESS], 1));
    }
}

#[test]
fn a_command_may_be_refused_while_its_data_come() {
    for target_bulk in [0, 8192] {
        for header_digest in [false, true] {
            let shape = Shape { asks: Asks::Rejects, target_bulk, header_digest, data_digest: true, ..PLAIN };
            let mut pair = Pair::connected(Shape { piece: 700, ..shape }, 5);
            for len in [1, 512, 8192, 100_000] {
                pair.host.write(len, len).expect("a free slot");
            }
            pair.run_until_quiet();
            assert!(pair
                .host
                .done
                .iter()
                .all(|done| done.cqe.status() == Status::fatal(Code::INVALID_FIELD)));
            assert_eq!((pair.host.done.len(), pair.target.memory.copied), (4, 0), "their data are dropped");
        }
    }
}

#[test]
fn completion_in_the_middle_of_a_transfer_waits_for_what_was_asked_for() {
    let mut pair = Pair::connected(Shape { max_h2c: 4096, target_bulk: 0, ..PLAIN }, 1);
    let command = pair.host.write(1, 30_000).expect("a free slot");
    let bytes = pair.host.sends();
    pair.target.receives(&bytes).expect("a command");
    pair.host.receives(&pair.target.sends()).expect("an R2T");
    let bytes = pair.host.sends();
    let mut at = pair.target.receives(&bytes[..5000]).expect("the first data");
    pair.target.end.complete(command, Cqe::new(0, Status::fatal(Code::WRITE_FAULT), 0));
    pair.target.memory.data.clear();
    assert!(pair.target.sends().is_empty(), "data still come");
    while at < bytes.len() {
        at += pair.target.receives(&bytes[at..]).expect("data of no use");
    }
    pair.host.receives(&pair.target.sends()).expect("a response");
    assert_eq!(pair.host.done[0].cqe.status().code, Code::WRITE_FAULT);
    assert_eq!(pair.target.end.in_flight(), 0);
}

#[test]
fn the_queue_head_is_told_with_flow_control_and_only_then() {
    let heads = |flow_control| {
        let mut pair = Pair::connected(Shape { depth: 2, flow_control, ..PLAIN }, 1);
        (0..4)
            .map(|seed| {
                pair.host.read(seed, 512).expect("a free slot");
                pair.run_until_quiet();
                pair.host.done[seed as usize].cqe.sqhd.get()
            })
            .collect::<Vec<u16>>()
    };
    assert_eq!(heads(true), [1, 2, 0, 1]);
    // The first completion is that of Connect.
    assert_eq!(heads(false), [0xffff, 0, 0, 0]);
}

#[test]
fn a_cut_link_leaves_both_ends_waiting() {
    let mut pair = Pair::connected(PLAIN, 1);
    pair.host.read(1, 70_000).expect("a free slot");
    let bytes = pair.host.sends();
    pair.target.receives(&bytes).expect("a command");
    pair.target.answer(0);
    let bytes = pair.target.sends();
    let mut at = 0;
    while at < bytes.len() - 1 {
        at += pair.host.receives(&bytes[at..bytes.len() - 1]).expect("data");
    }
    assert!(pair.host.done.is_empty(), "a read is over with its last byte");
    pair.host.receives(&bytes[at..]).expect("the last byte");
    assert_eq!(pair.host.done.len(), 1);
}

fn shapes() -> impl Strategy<Value = Shape> {
    let asks = prop_oneof![Just(Asks::AtOnce), (1u32..6000).prop_map(Asks::InPieces)];
    let bulk = || prop_oneof![Just(0), Just(100), Just(5000), Just(70_000)];
    let most = || prop_oneof![Just(4096), Just(8192), Just(1 << 20)];
    let piece = prop_oneof![1usize..64, 64usize..5000, Just(usize::MAX)];
    let digests = (any::<bool>(), any::<bool>(), any::<bool>());
    (digests, 1u16..24, 0u32..9000, bulk(), bulk(), most(), most(), asks, piece).prop_map(
        |(flags, depth, in_capsule_max, host_bulk, target_bulk, max_h2c, max_c2h, asks, piece)| Shape {
            header_digest: flags.0,
            data_digest: flags.1,
            flow_control: flags.2,
            in_capsule_max: in_capsule_max.min(8192),
            depth,
            host_bulk,
            target_bulk,
            max_h2c,
            max_c2h,
            asks,
            piece,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    // promise: NTP-2
    #[test]
    fn any_two_ends_agree_over_any_link(shape in shapes(), seed: u64, len_max in 1usize..12_000) {
        let len_max = if shape.piece < 64 { len_max.min(1500) } else { len_max };
        Pair::connected(shape, seed).traffic(40, len_max);
    }
}
