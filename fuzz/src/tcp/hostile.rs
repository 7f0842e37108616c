//! Peers that say what they like: PDUs with right shapes and wrong contents, wrong shapes, and plain bytes.

use super::host::Host;
use super::target::Target;
use super::BULK;
use crate::input::Input;
use forebay_nvme::command::{admin, io, Sgl, Sqe, FABRICS};
use forebay_nvme::transport::tcp::pdu::{flag, kind};
use forebay_nvme::transport::tcp::{self, Fatal};
use zerocopy::IntoBytes;

/// Digests that both ends agreed on, as far as a peer heeds them.
#[derive(Clone, Copy)]
struct Digests {
    header: bool,
    data: bool,
}

/// A PDU; the input may change its common header, its digests and its padding.
fn pdu(input: &mut Input<'_>, kind: u8, flags: u8, body: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    let plain = kind <= kind::C2H_TERM_REQ;
    let digests = if plain { Digests { header: false, data: false } } else { digests };
    let hlen = 8 + body.len();
    let mut at = hlen + if digests.header { 4 } else { 0 };
    let pdo = if data.is_empty() { 0 } else { at };
    let mut flags = flags;
    if digests.header {
        flags |= flag::HEADER_DIGEST;
    }
    at += data.len();
    if digests.data && !data.is_empty() {
        flags |= flag::DATA_DIGEST;
        at += 4;
    }
    let mut head = [kind, flags, hlen as u8, pdo as u8, 0, 0, 0, 0];
    head[4..].copy_from_slice(&(at as u32).to_le_bytes());
    if input.u8() == 77 {
        head[usize::from(input.u8() % 8)] ^= input.u8();
    }
    let mut bytes = [&head[..], body].concat();
    if digests.header {
        let wrong = u32::from(input.u8() == 1);
        bytes.extend((crc32c::crc32c(&bytes) ^ wrong).to_le_bytes());
    }
    bytes.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        let wrong = u32::from(input.u8() == 1);
        bytes.extend((crc32c::crc32c(data) ^ wrong).to_le_bytes());
    }
    bytes
}

/// CCCID, TTAG, offset and length: H2CData, C2HData, R2T.
fn transfer(cid: u16, tag: u16, offset: u32, len: u32) -> Vec<u8> {
    [&cid.to_le_bytes()[..], &tag.to_le_bytes(), &offset.to_le_bytes(), &len.to_le_bytes(), &[0; 4]].concat()
}

/// ICReq or ICResp.
fn greeting(input: &mut Input<'_>, kind: u8, digests: Digests, last: u32) -> Vec<u8> {
    let mut body = [0; 120];
    body[3] = u8::from(digests.header) | u8::from(digests.data) << 1;
    body[4..8].copy_from_slice(&last.to_le_bytes());
    if input.u8() == 1 {
        body[usize::from(input.u8() % 8)] = input.u8();
    }
    pdu(input, kind, 0, &body, &[], digests)
}

fn termination(input: &mut Input<'_>, kind: u8) -> Vec<u8> {
    let mut body = [0; 16];
    body[..6].copy_from_slice(&[input.u8() % 8, 0, input.u8(), 0, 0, 0]);
    pdu(input, kind, 0, &body, &[], Digests { header: false, data: false })
}

/// Checks what a fatal error leaves behind: a termination request with its status, unless the peer had ended it; and
/// then silence, whatever still comes.
fn check_end(fatal: Fatal, sent: &[u8], term: u8) {
    if fatal.by_peer {
        return assert!(sent.is_empty());
    }
    assert!((24..=24 + 128).contains(&sent.len()), "a termination request of {} bytes", sent.len());
    assert_eq!((sent[0], sent[8]), (term, fatal.status as u8));
    assert_eq!(sent[4..8], (sent.len() as u32).to_le_bytes());
}

/// R2Ts of a target, read from what it sent.
#[derive(Default)]
struct Seen {
    bytes: Vec<u8>,
    /// (CCCID, TTAG, offset, length) of R2Ts.
    asked: Vec<(u16, u16, u32, u32)>,
    commands: Vec<Command>,
}

/// A command that a host sent.
struct Command {
    cid: u16,
    opcode: u8,
    len: u32,
    in_capsule: bool,
    /// Bytes of its data that were sent, or asked for.
    moved: u32,
}

impl Seen {
    fn take(&mut self, sent: Vec<u8>) {
        self.bytes.extend(sent);
        while let Some(head) = self.bytes.get(..8) {
            let plen = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            assert!(plen >= 8, "what an end sends has its length");
            let Some(pdu) = self.bytes.get(..plen) else { break };
            let half = |at: usize| u16::from_le_bytes([pdu[at], pdu[at + 1]]);
            let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
            match pdu[0] {
                kind::R2T => self.asked.push((half(8), half(10), word(12), word(16))),
                kind::CAPSULE_CMD => self.commands.push(Command {
                    cid: half(10),
                    opcode: pdu[8],
                    len: word(40),
                    in_capsule: pdu[47] == Sgl::IN_CAPSULE,
                    moved: 0,
                }),
                _ => {}
            }
            self.bytes.drain(..plen);
        }
    }
}

/// A target's end against a hostile host.
pub fn nvme_target_end(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    let options = tcp::target::Options {
        header_digest: true,
        data_digest: true,
        in_capsule_max: 8192,
        max_h2c: input.pick(&[4096, 131_072]),
        max_c2h: 4096,
        bulk: input.pick(&BULK),
    };
    let entries = 2 + u16::from(input.u8() % 8);
    let mut target = Target::new(options, entries, choice & 4 != 0);
    let mut seen = Seen::default();
    let mut wire = Vec::new();
    if choice & 24 != 24 {
        let greeting = greeting(&mut input, kind::IC_REQ, digests, 0);
        if let Err(fatal) = target.receives(&greeting) {
            return ended(fatal, &mut target, &wire);
        }
        seen.take(target.sends());
    }
    while !input.is_empty() {
        match input.u8() % 8 {
            0 | 1 => wire.extend(capsule(&mut input, digests)),
            2 => wire.extend(h2c_data(&mut input, &mut seen.asked, digests)),
            3 if (1..6).contains(&input.u8()) => wire.extend(other(&mut input, digests, kind::H2C_TERM_REQ)),
            4 => target.answer(input.u8().into(), input.u8() % 4 == 1),
            5 => seen.take(target.sends()),
            _ => {
                let n = wire.len().min(1 + usize::from(input.u8()) * usize::from(input.u8()));
                match target.receives(&wire[..n]) {
                    Ok(taken) => wire.drain(..taken),
                    Err(fatal) => return ended(fatal, &mut target, &wire),
                };
            }
        }
        assert!(target.end.in_flight() <= entries, "no more in flight than the queue has entries");
        assert!(target.memory.0.len() <= 2 * usize::from(entries), "memory is bounded");
        wire.truncate(1 << 20);
    }
}

fn ended(fatal: Fatal, target: &mut Target, rest: &[u8]) {
    // What was queued before the error isn't sent after it.
    check_end(fatal, &target.sends(), kind::C2H_TERM_REQ);
    assert_eq!(target.receives(rest).map(|_| ()), Err(fatal), "it stays ended");
    assert!(target.sends().is_empty());
}

const OPCODES: [u32; 10] = [
    io::READ as u32,
    io::WRITE as u32,
    io::WRITE as u32,
    io::FLUSH as u32,
    io::COMPARE as u32,
    io::WRITE_ZEROES as u32,
    io::DATASET_MANAGEMENT as u32,
    admin::IDENTIFY as u32,
    admin::SET_FEATURES as u32,
    FABRICS as u32,
];

/// A command; half of them well-formed.
fn capsule(input: &mut Input<'_>, digests: Digests) -> Vec<u8> {
    let opcode = input.near(&OPCODES) as u8;
    let blocks = u32::from(input.u8() % 20);
    let bytes = (blocks + 1) * super::BLOCK_BYTES;
    let most = if input.u8() == 1 { 16_384 } else { 8192 };
    let data_bytes = input.near(&[0, 0, bytes, 16, 4096]).min(most) as usize;
    let sgl = match (data_bytes, input.u8() % 8) {
        (_, 0) => Sgl { kind: input.u8(), length: input.u32().into(), ..Sgl::default() },
        (0, _) => Sgl::transport(input.near(&[bytes, bytes, 4096])),
        (data_bytes, _) => Sgl::in_capsule(data_bytes as u32),
    };
    let sqe = Sqe {
        opcode,
        flags: input.near(&[0x40, 0x40, 0x40, 0]) as u8,
        cid: u16::from(input.u8() % 12).into(),
        nsid: input.near(&[1, 1, 1, 0, 2]).into(),
        sgl,
        cdw10: u32::from(input.u8()).into(),
        cdw12: blocks.into(),
        ..Sqe::default()
    };
    let data: Vec<u8> = (0..data_bytes).map(|at| at as u8).collect();
    pdu(input, kind::CAPSULE_CMD, 0, sqe.as_bytes(), &data, digests)
}

/// Data for an R2T, or a lie about it.
fn h2c_data(input: &mut Input<'_>, asked: &mut Vec<(u16, u16, u32, u32)>, digests: Digests) -> Vec<u8> {
    let pick = usize::from(input.u8());
    let (cid, tag, offset, len) = match asked.len() {
        0 if input.u8() != 77 => return Vec::new(),
        0 => (u16::from(input.u8()), u16::from(input.u8()), 0, 512),
        n => asked[pick % n],
    };
    let mut part = if input.u8() % 4 == 0 { (len / 2) & !3 } else { len }.clamp(1, 65_536);
    let (mut at, mut said, mut flags) = (offset, part, if part == len { flag::LAST } else { 0 });
    match input.u8() {
        1 => at = input.u32(),
        2 => said = input.u32(),
        3 => flags ^= flag::LAST,
        4 => {
            (part, flags) = (part + 4, input.u8() & flag::LAST);
            said = part;
        }
        _ if asked.is_empty() => {}
        _ if part == len => drop(asked.swap_remove(pick % asked.len())),
        _ => {
            let rest = (cid, tag, offset.wrapping_add(part), len - part);
            let index = pick % asked.len();
            asked[index] = rest;
        }
    }
    let data = vec![0x5a; part as usize];
    pdu(input, kind::H2C_DATA, flags, &transfer(cid, tag, at, said), &data, digests)
}

fn other(input: &mut Input<'_>, digests: Digests, term: u8) -> Vec<u8> {
    match input.u8() % 4 {
        0 => termination(input, term),
        1 => {
            let n = usize::from(input.u8());
            input.bytes(n).to_vec()
        }
        2 => {
            let last = input.u32();
            greeting(input, kind::IC_REQ, digests, last)
        }
        _ => {
            let (kind, flags) = (input.u8() % 12, input.u8() & 0b1100);
            let n = usize::from(input.u8() % 32);
            let body = input.bytes(n);
            let m = usize::from(input.u8());
            let data = input.bytes(m);
            pdu(input, kind, flags, body, data, digests)
        }
    }
}

/// A host's end against a hostile controller.
pub fn nvme_host_end(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    let mut host = Host::new(tcp::host::Options {
        header_digest: digests.header,
        data_digest: digests.data,
        depth: 1 + u16::from(input.u8() % 8),
        r2ts: u32::from(input.u8() % 3),
        bulk: input.pick(&BULK),
    });
    host.end.set_in_capsule_max(input.pick(&[0, 8192]));
    let mut seen = Seen::default();
    seen.take(host.sends());
    let max_h2c = input.near(&[131_072, 4096]);
    let mut wire =
        if choice & 24 == 24 { Vec::new() } else { greeting(&mut input, kind::IC_RESP, digests, max_h2c) };
    while !input.is_empty() {
        match input.u8() % 8 {
            0 | 1 => host.submit(input.u8(), u64::from(input.u8()), u32::from(input.u8())),
            2 | 3 => wire.extend(answer(&mut input, &mut seen.commands, digests)),
            4 if (1..6).contains(&input.u8()) => wire.extend(other(&mut input, digests, kind::C2H_TERM_REQ)),
            5 => seen.take(host.sends()),
            _ => {
                let n = wire.len().min(1 + usize::from(input.u8()) * usize::from(input.u8()));
                match host.receives(&wire[..n]) {
                    Ok(taken) => wire.drain(..taken),
                    Err(fatal) => {
                        check_end(fatal, &host.sends(), kind::H2C_TERM_REQ);
                        assert_eq!(host.receives(&wire).map(|_| ()), Err(fatal), "it stays ended");
                        assert!(host.sends().is_empty());
                        return;
                    }
                };
            }
        }
        assert!(host.end.in_flight() <= 8 && host.memory.0.len() <= 8, "no more in flight than the depth");
        assert_eq!(u32::from(host.end.in_flight()), host.submitted - host.completed);
        wire.truncate(1 << 20);
    }
}

/// A response, data or an R2T for a command that is in flight, or a lie about it.
fn answer(input: &mut Input<'_>, commands: &mut Vec<Command>, digests: Digests) -> Vec<u8> {
    if commands.is_empty() {
        return match input.u8() {
            77 => pdu(input, kind::CAPSULE_RESP, 0, &[0; 16], &[], digests),
            _ => Vec::new(),
        };
    }
    let index = usize::from(input.u8()) % commands.len();
    let command = &mut commands[index];
    let (mut cid, mut offset) = (command.cid, command.moved);
    let left = command.len - command.moved;
    let mut len = if input.bool() { left } else { (left / 2) & !3 };
    match input.u8() {
        1 => cid ^= 1 << (input.u8() % 16),
        2 => offset = input.u32(),
        3 => len = input.u32() % 100_000,
        _ => {}
    }
    let data_due = left > 0 && !command.in_capsule;
    let lie = input.u8() == 1;
    match command.opcode {
        io::READ if lie || data_due && len > 0 => {
            command.moved += len.min(left);
            let success = input.bool();
            let flags = match (len == left) ^ (input.u8() == 1) {
                true if success => flag::LAST | flag::SUCCESS,
                true => flag::LAST,
                false => 0,
            };
            if flags & flag::SUCCESS != 0 {
                commands.swap_remove(index);
            }
            let data = vec![0xa5; len.max(1) as usize];
            pdu(input, kind::C2H_DATA, flags, &transfer(cid, 0, offset, len), &data, digests)
        }
        io::WRITE if lie || data_due && len > 0 => {
            command.moved += len.min(left);
            let tag = input.u16();
            pdu(input, kind::R2T, 0, &transfer(cid, tag, offset, len), &[], digests)
        }
        _ => {
            let status = input.near(&[0, 0, 0x4004]) as u16;
            let mut cqe = [0; 16];
            cqe[12..14].copy_from_slice(&cid.to_le_bytes());
            cqe[14..].copy_from_slice(&status.to_le_bytes());
            commands.swap_remove(index);
            pdu(input, kind::CAPSULE_RESP, 0, &cqe, &[], digests)
        }
    }
}
