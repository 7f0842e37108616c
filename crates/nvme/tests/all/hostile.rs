//! Tests of each end of an NVMe/TCP connection whose peer breaks the rules (tcp, sections 3.4 to 3.6).

mod to_hosts;

use super::link::{content, Asks, Host, Target};
use forebay_nvme::command::{admin, io, Sgl, Sqe, FABRICS};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::pdu::{
    flag, kind, CapsuleCmd, CapsuleResp, CommonHeader, IcReq, IcResp, TermReq, Transfer,
};
use forebay_nvme::transport::tcp::{host, target, Fatal, FatalStatus, Handle};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};
use FatalStatus::*;

const ENTRIES: u16 = 4;
const MAX_H2C: u32 = 4096;
const WRITE_LEN: u32 = 10_000;

fn ch(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32) -> CommonHeader {
    CommonHeader { kind, flags, hlen, pdo, plen: plen.into() }
}

fn ic_req(digests: u8) -> IcReq {
    IcReq {
        ch: ch(kind::IC_REQ, 0, 128, 0, 128),
        format: 0.into(),
        hpda: 0,
        digests,
        max_r2t: 0.into(),
        reserved: [0; 112],
    }
}

fn ic_resp(digests: u8) -> IcResp {
    IcResp {
        ch: ch(kind::IC_RESP, 0, 128, 0, 128),
        format: 0.into(),
        cpda: 0,
        digests,
        max_h2c: 131_072.into(),
        reserved: [0; 112],
    }
}

fn sqe(opcode: u8, cid: u16, sgl: Sgl) -> Sqe {
    Sqe { opcode, flags: 0x40, cid: cid.into(), sgl, ..Sqe::default() }
}

fn capsule(sqe: Sqe, data: &[u8]) -> Vec<u8> {
    let pdo = if data.is_empty() { 0 } else { 72 };
    let ch = ch(kind::CAPSULE_CMD, 0, 72, pdo, 72 + data.len() as u32);
    [CapsuleCmd { ch, sqe }.as_bytes(), data].concat()
}

fn read_capsule(cid: u16) -> Vec<u8> {
    capsule(sqe(io::READ, cid, Sgl::transport(8192)), &[])
}

fn transfer(kind: u8, flags: u8, cid: u16, tag: u16, offset: u32, len: u32) -> Transfer {
    let (pdo, plen) = if kind == kind::R2T { (0, 24) } else { (24, 24 + len) };
    Transfer {
        ch: ch(kind, flags, 24, pdo, plen),
        cid: cid.into(),
        tag: tag.into(),
        offset: offset.into(),
        len: len.into(),
        reserved: [0; 4],
    }
}

fn data(kind: u8, flags: u8, cid: u16, tag: u16, offset: u32, len: u32) -> Vec<u8> {
    let header = transfer(kind, flags, cid, tag, offset, len);
    [header.as_bytes(), &vec![0; len as usize]].concat()
}

fn feed_target(target: &mut Target, bytes: &[u8]) -> Result<(), Fatal> {
    let mut at = 0;
    while at < bytes.len() {
        at += target.receives(&bytes[at..])?;
    }
    Ok(())
}

fn feed_host(host: &mut Host, bytes: &[u8]) -> Result<(), Fatal> {
    let mut at = 0;
    while at < bytes.len() {
        at += host.receives(&bytes[at..])?;
    }
    Ok(())
}

fn new_target(bulk: usize) -> Target {
    let options = target::Options {
        header_digest: true,
        data_digest: true,
        in_capsule_max: 8192,
        max_h2c: MAX_H2C,
        max_c2h: 131_072,
        bulk,
    };
    Target::new(options, ENTRIES, false)
}

fn connected_target(digests: u8) -> Target {
    let mut target = new_target(8192);
    feed_target(&mut target, ic_req(digests).as_bytes()).expect("a good ICReq");
    assert_eq!(target.sends().len(), 128);
    target
}

/// A target with a write in flight whose data it asked for: cid 9, transfer tag 0.
fn asking_target() -> Target {
    let mut target = connected_target(0);
    let write = sqe(io::WRITE, 9, Sgl::transport(WRITE_LEN));
    feed_target(&mut target, &capsule(write, &[])).expect("a good write");
    assert_eq!(target.sends(), transfer(kind::R2T, 0, 9, 0, 0, WRITE_LEN).as_bytes());
    target
}

/// Checks the error that ends the connection, and its PDU: `quoted` is the header that was wrong.
fn check_term(result: Result<(), Fatal>, sent: &[u8], kind: u8, expected: (FatalStatus, u32), quoted: &[u8]) {
    let fatal = result.expect_err("a fatal error");
    assert_eq!((fatal.status, fatal.field, fatal.by_peer), (expected.0, expected.1, false), "{fatal}");
    let (term, quote) = TermReq::read_from_prefix(sent).expect("a termination request");
    assert_eq!((term.ch.kind, term.ch.hlen, term.ch.plen.get()), (kind, 24, sent.len() as u32), "{fatal}");
    assert_eq!((term.status.get(), term.field.get()), (expected.0 as u16, expected.1), "{fatal}");
    assert_eq!(quote, quoted, "{fatal}");
}

fn target_ends(mut target: Target, bytes: &[u8], expected: (FatalStatus, u32), quoted: &[u8]) {
    let commands = target.commands;
    let result = feed_target(&mut target, bytes);
    check_term(result, &target.sends(), kind::C2H_TERM_REQ, expected, quoted);
    assert!(feed_target(&mut target, &read_capsule(1)).is_err(), "nothing is accepted any more");
    assert!(target.sends().is_empty(), "and nothing said");
    assert_eq!(target.commands, commands);
}

fn host_ends(mut host: Host, bytes: &[u8], expected: (FatalStatus, u32), quoted: &[u8]) {
    let result = feed_host(&mut host, bytes);
    check_term(result, &host.sends(), kind::H2C_TERM_REQ, expected, quoted);
    assert!(feed_host(&mut host, ic_resp(0).as_bytes()).is_err(), "nothing is accepted any more");
    assert!(host.sends().is_empty(), "and nothing said");
    assert_eq!(host.flush(), Err(host::Busy));
}

// promise: NTP-4
#[test]
fn a_target_refuses_a_bad_beginning() {
    let good = ic_req(0);
    let wrong = |change: fn(&mut IcReq)| {
        let mut request = ic_req(0);
        change(&mut request);
        request
    };
    for (request, expected) in [
        (wrong(|r| r.format = 1.into()), (UnsupportedParameter, 8)),
        (wrong(|r| r.hpda = 32), (InvalidHeaderField, 10)),
        (wrong(|r| r.ch.hlen = 127), (InvalidHeaderField, 2)),
        (wrong(|r| r.ch.flags = flag::HEADER_DIGEST), (InvalidHeaderField, 1)),
        (wrong(|r| r.ch.plen = 129.into()), (InvalidHeaderField, 4)),
        (wrong(|r| r.ch.plen = 127.into()), (InvalidHeaderField, 4)),
        (wrong(|r| r.ch.kind = kind::IC_RESP), (InvalidHeaderField, 0)),
        (wrong(|r| r.ch.kind = 0x08), (InvalidHeaderField, 0)),
        (wrong(|r| r.ch.kind = 0xff), (InvalidHeaderField, 0)),
    ] {
        let quoted = &request.as_bytes()[..usize::from(request.ch.hlen)];
        target_ends(new_target(0), request.as_bytes(), expected, quoted);
    }
    target_ends(new_target(8192), &read_capsule(1), (SequenceError, 0), &read_capsule(1));
    target_ends(connected_target(0), good.as_bytes(), (SequenceError, 0), good.as_bytes());
    let early = [good.as_bytes(), &read_capsule(1)].concat();
    let mut target = new_target(8192);
    assert_eq!(feed_target(&mut target, &early).map_err(|fatal| fatal.status), Err(SequenceError));
}

#[test]
fn garbage_ends_a_connection_with_its_first_eight_bytes() {
    target_ends(new_target(0), b"GET / HT", (InvalidHeaderField, 0), b"GET / HT");
}

// promise: NTP-4
#[test]
fn a_target_refuses_bad_lengths_and_flags() {
    let capsule = |flags, hlen, pdo, plen| {
        let ch = ch(kind::CAPSULE_CMD, flags, hlen, pdo, plen);
        CapsuleCmd { ch, sqe: sqe(io::WRITE, 1, Sgl::in_capsule(512)) }
    };
    for (capsule, field) in [
        (capsule(0, 71, 72, 584), 2),
        (capsule(0, 255, 72, 584), 2),
        (capsule(flag::HEADER_DIGEST, 72, 72, 584), 1),
        (capsule(flag::DATA_DIGEST, 72, 72, 584), 1),
        (capsule(0, 72, 71, 584), 3),
        (capsule(0, 72, 74, 584), 3),
        (capsule(0, 72, 0, 584), 3),
        (capsule(0, 72, 76, 76), 4),
        (capsule(0, 72, 252, 200), 4),
        (capsule(0, 72, 72, 71), 4),
        (capsule(0, 72, 0, 0), 4),
        (capsule(0, 72, 72, 72 + 8193), 4),
        (capsule(0, 72, 72, u32::MAX), 4),
    ] {
        let quoted = &capsule.as_bytes()[..usize::from(capsule.ch.hlen).min(72)];
        target_ends(connected_target(0), capsule.as_bytes(), (InvalidHeaderField, field), quoted);
    }
}

// promise: NTP-4
#[test]
fn a_wrong_header_digest_is_fatal_and_named() {
    let mut pdu = read_capsule(1);
    (pdu[1], pdu[4]) = (flag::HEADER_DIGEST, 76);
    let digest = crc32c::crc32c(&pdu);
    for (bad, ok) in [(digest, true), (digest ^ 1, false), (0, false)] {
        let bytes = [&pdu[..], &bad.to_le_bytes()].concat();
        if ok {
            feed_target(&mut connected_target(1), &bytes).expect("a good digest");
        } else {
            target_ends(connected_target(1), &bytes, (HeaderDigest, bad), &pdu);
        }
    }
    let cleared = read_capsule(1);
    target_ends(connected_target(1), &cleared, (InvalidHeaderField, 1), &cleared);
}

// promise: NTP-4
#[test]
fn a_target_refuses_data_that_it_did_not_ask_for() {
    let good = data(kind::H2C_DATA, 0, 9, 0, 0, MAX_H2C);
    let mut target = asking_target();
    feed_target(&mut target, &good).expect("data that were asked for");
    let bad = |flags, cid, tag, offset, len| transfer(kind::H2C_DATA, flags, cid, tag, offset, len);
    let mut short = bad(0, 9, 0, 0, 4096);
    short.len = 4092.into();
    for (header, expected) in [
        (bad(0, 9, 1, 0, 4096), (InvalidHeaderField, 10)),
        (bad(0, 9, 0xffff, 0, 4096), (InvalidHeaderField, 10)),
        (bad(0, 8, 0, 0, 4096), (InvalidHeaderField, 8)),
        (short, (InvalidHeaderField, 16)),
        (bad(0, 9, 0, 0, 4100), (LimitExceeded, 0)),
        (bad(0, 9, 0, 4, 4096), (DataOutOfRange, 0)),
        (bad(0, 9, 0, u32::MAX, 4096), (DataOutOfRange, 0)),
        (bad(flag::LAST, 9, 0, 0, 4096), (InvalidHeaderField, 1)),
        (bad(0, 9, 0, 0, 0), (InvalidHeaderField, 4)),
    ] {
        target_ends(asking_target(), header.as_bytes(), expected, header.as_bytes());
    }
    let again = bad(0, 9, 0, 0, 4096);
    let bytes = [&good, again.as_bytes()].concat();
    target_ends(asking_target(), &bytes, (DataOutOfRange, 0), again.as_bytes());
    let most = [&good[..], &data(kind::H2C_DATA, 0, 9, 0, 4096, 4096)].concat();
    let beyond = bad(flag::LAST, 9, 0, 8192, WRITE_LEN - 8192 + 4);
    target_ends(
        asking_target(),
        &[&most, beyond.as_bytes()].concat(),
        (DataOutOfRange, 0),
        beyond.as_bytes(),
    );
    let unmarked = bad(0, 9, 0, 8192, WRITE_LEN - 8192);
    let bytes = [&most, unmarked.as_bytes()].concat();
    target_ends(asking_target(), &bytes, (InvalidHeaderField, 1), unmarked.as_bytes());
    let none = bad(flag::LAST, 9, 0, 0, 512);
    target_ends(connected_target(0), none.as_bytes(), (InvalidHeaderField, 10), none.as_bytes());
}

#[test]
fn data_for_a_command_that_is_over_are_refused() {
    let mut target = connected_target(0);
    target.asks = Asks::Rejects;
    feed_target(&mut target, &capsule(sqe(io::WRITE, 9, Sgl::transport(512)), &[])).expect("a write");
    assert_eq!(target.sends().len(), 24, "it is refused at once");
    let late = transfer(kind::H2C_DATA, flag::LAST, 9, 0, 0, 512);
    target_ends(target, late.as_bytes(), (InvalidHeaderField, 10), late.as_bytes());
}

// promise: NTP-4
#[test]
fn one_command_more_than_the_queue_has_entries_is_fatal() {
    let full: Vec<u8> = (0..ENTRIES).flat_map(read_capsule).collect();
    let mut target = connected_target(0);
    feed_target(&mut target, &full).expect("as many as there are entries");
    target_ends(target, &read_capsule(ENTRIES), (SequenceError, 0), &read_capsule(ENTRIES));
    // Those that are refused count, too: nobody makes a target remember more than its queue holds.
    let conflicts: Vec<u8> = (0..ENTRIES).flat_map(|_| read_capsule(1)).collect();
    let mut target = connected_target(0);
    feed_target(&mut target, &conflicts).expect("as many as there are entries");
    target_ends(target, &read_capsule(1), (SequenceError, 0), &read_capsule(1));
}

/// The status of the only command that `bytes` hold, or None where the controller got it.
fn answer(bytes: &[u8]) -> Option<Status> {
    let mut target = connected_target(0);
    feed_target(&mut target, bytes).expect("no fatal error");
    let sent = target.sends();
    assert!(sent.len() <= 24);
    let (response, _) = CapsuleResp::read_from_prefix(&sent).ok()?;
    feed_target(&mut target, &read_capsule(77)).expect("the connection goes on");
    assert_eq!((target.commands, target.end.in_flight()), (1, 1));
    Some(response.cqe.status())
}

// promise: NTP-5
#[test]
fn an_sgl_that_lies_completes_its_command() {
    let sgl = |kind, address: u64, length: u32| Sgl {
        kind,
        address: address.into(),
        length: length.into(),
        ..Sgl::default()
    };
    let data = [7; 512];
    let fabrics_write = Sqe { nsid: 0x01.into(), ..sqe(FABRICS, 1, Sgl::in_capsule(511)) };
    let unmarked = Sqe { flags: 0, ..sqe(io::READ, 1, Sgl::transport(512)) };
    for (sqe, data, code) in [
        (sqe(io::WRITE, 1, sgl(0x01, 0, 511)), &data[..], Code::DATA_SGL_LENGTH_INVALID),
        (sqe(io::WRITE, 1, sgl(0x01, 0, 513)), &data, Code::DATA_SGL_LENGTH_INVALID),
        (sqe(io::WRITE, 1, sgl(0x01, 0, u32::MAX)), &data, Code::DATA_SGL_LENGTH_INVALID),
        (sqe(io::WRITE, 1, sgl(0x01, 0, 512)), &[], Code::DATA_SGL_LENGTH_INVALID),
        (sqe(io::WRITE, 1, sgl(0x01, 4, 508)), &data, Code::SGL_OFFSET_INVALID),
        (sqe(io::WRITE, 1, sgl(0x01, u64::MAX, 512)), &data, Code::SGL_OFFSET_INVALID),
        (sqe(io::WRITE, 1, sgl(0x5a, 0, 512)), &data, Code::DATA_SGL_LENGTH_INVALID),
        (sqe(io::WRITE, 1, sgl(0x40, 0, 512)), &[], Code::SGL_TYPE_INVALID),
        (sqe(io::READ, 1, sgl(0x00, 0, 512)), &[], Code::SGL_TYPE_INVALID),
        (sqe(io::READ, 1, sgl(0x30, 0, 512)), &[], Code::SGL_TYPE_INVALID),
        (sqe(io::READ, 1, sgl(0x01, 0, 512)), &data, Code::INVALID_FIELD),
        (sqe(io::FLUSH, 1, sgl(0x01, 0, 512)), &data, Code::INVALID_FIELD),
        (unmarked, &[], Code::INVALID_FIELD),
        (fabrics_write, &data, Code::DATA_SGL_LENGTH_INVALID),
    ] {
        assert_eq!(answer(&capsule(sqe, data)), Some(Status::fatal(code)), "{sqe:?}");
    }
    let flush = capsule(sqe(io::FLUSH, 1, Sgl::default()), &[]);
    let event = capsule(sqe(admin::ASYNC_EVENT_REQUEST, 1, Sgl::transport(0)), &[]);
    let feature = capsule(sqe(admin::SET_FEATURES, 1, Sgl::default()), &[]);
    for bytes in [flush, event, feature] {
        let mut target = connected_target(0);
        feed_target(&mut target, &bytes).expect("no fatal error");
        assert_eq!((target.commands, target.sends().len()), (1, 0), "without data an SGL says nothing");
    }
}

// promise: NTP-5
#[test]
fn a_command_identifier_in_use_is_a_conflict_and_harms_nothing() {
    let mut target = connected_target(0);
    let write = sqe(io::WRITE, 5, Sgl::in_capsule(512));
    let data = content(0, 512);
    feed_target(&mut target, &read_capsule(5)).expect("a read");
    feed_target(&mut target, &capsule(write, &data)).expect("a conflict isn't fatal");
    let sent = target.sends();
    let (response, rest) = CapsuleResp::read_from_prefix(&sent).expect("a response");
    assert_eq!((response.cqe.cid.get(), rest.len()), (5, 0));
    assert_eq!(response.cqe.status(), Status::fatal(Code::COMMAND_ID_CONFLICT));
    target.answer(0);
    assert_eq!(target.sends().len(), 24 + 8192, "the first is answered");
    feed_target(&mut target, &capsule(write, &data)).expect("the identifier is free again");
    assert_eq!((target.commands, target.waiting.len()), (2, 1));
}

// promise: NTP-5
#[test]
fn no_command_conflicts_with_an_event_request() {
    let mut target = connected_target(0);
    let event = capsule(sqe(admin::ASYNC_EVENT_REQUEST, 5, Sgl::transport(0)), &[]);
    feed_target(&mut target, &event).expect("an event request");
    target.end.keep_event_request(Handle(0));
    let keep_alive = capsule(sqe(admin::KEEP_ALIVE, 5, Sgl::transport(0)), &[]);
    feed_target(&mut target, &keep_alive).expect("the same identifier");
    assert_eq!((target.commands, target.waiting.len()), (2, 2));
    feed_target(&mut target, &keep_alive).expect("a conflict with the second");
    for status in [Code::COMMAND_ID_CONFLICT, Code::SUCCESS, Code::SUCCESS] {
        let sent = target.sends();
        let (response, rest) = CapsuleResp::read_from_prefix(&sent).expect("a response");
        assert_eq!((response.cqe.cid.get(), response.cqe.status().code, rest.len()), (5, status, 0));
        if !target.waiting.is_empty() {
            target.answer(target.waiting.len() - 1);
        }
    }
}

#[test]
fn a_peer_that_ends_the_connection_is_not_answered() {
    let term = |kind, status: u16, field: u32, quote: usize| {
        let ch = ch(kind, 0, 24, 0, 24 + quote as u32);
        let term = TermReq { ch, status: status.into(), field: field.into(), ..TermReq::default() };
        [term.as_bytes(), &vec![0xaa; quote]].concat()
    };
    for (status, expected) in [(1, InvalidHeaderField), (3, HeaderDigest), (6, UnsupportedParameter)] {
        for quote in [0, 24, 128] {
            let mut target = connected_target(1);
            let fatal =
                feed_target(&mut target, &term(kind::H2C_TERM_REQ, status, 77, quote)).expect_err("an end");
            assert_eq!((fatal.status, fatal.field, fatal.by_peer), (expected, 77, true));
            assert!(target.sends().is_empty());
            let mut host = connected_host();
            let fatal =
                feed_host(&mut host, &term(kind::C2H_TERM_REQ, status, 77, quote)).expect_err("an end");
            assert_eq!((fatal.status, fatal.field, fatal.by_peer), (expected, 77, true));
            assert!(host.sends().is_empty());
        }
    }
}

fn new_host(r2ts: u32, digests: u8) -> Host {
    let (header_digest, data_digest) = (digests & 1 != 0, digests & 2 != 0);
    let mut host = Host::new(host::Options { header_digest, data_digest, depth: 4, r2ts, bulk: 0 });
    assert_eq!(host.sends().len(), 128);
    host
}

fn connected_host() -> Host {
    let mut host = new_host(1, 0);
    feed_host(&mut host, ic_resp(0).as_bytes()).expect("a good ICResp");
    host
}

/// A host with a read of 8192 bytes (cid 0) and a write of 10,000 (cid 1) in flight.
fn busy_host() -> Host {
    let mut host = connected_host();
    assert_eq!(host.read(0, 8192), Ok(Handle(0)));
    assert_eq!(host.write(0, WRITE_LEN), Ok(Handle(1)));
    assert_eq!(host.sends().len(), 2 * 72);
    host
}

/// Padding between header and data (HPDA, CPDA).
// promise: NTP-2
#[test]
fn data_are_aligned_as_the_peer_asked() {
    for (pda, digests, c2h_pdo, capsule_pdo) in
        [(0, 0, 24, 72), (0, 1, 28, 76), (31, 1, 128, 128), (9, 3, 40, 80)]
    {
        let mut target = new_target(8192);
        let request = IcReq { hpda: pda, ..ic_req(digests) };
        feed_target(&mut target, request.as_bytes()).expect("a good ICReq");
        target.sends();
        let mut host = new_host(1, digests);
        let response = IcResp { cpda: pda, ..ic_resp(digests) };
        feed_host(&mut host, response.as_bytes()).expect("a good ICResp");
        host.end.set_in_capsule_max(8192);
        host.read(3, 5000).expect("a free slot");
        host.write(4, 5000).expect("a free slot");
        let sent = host.sends();
        let write = sent.len() - (capsule_pdo + 5000 + if digests & 2 != 0 { 4 } else { 0 });
        assert_eq!((sent[write], usize::from(sent[write + 3])), (kind::CAPSULE_CMD, capsule_pdo));
        feed_target(&mut target, &sent).expect("padding is skipped");
        while !target.waiting.is_empty() {
            target.answer(0);
        }
        let sent = target.sends();
        assert_eq!((sent[0], usize::from(sent[3])), (kind::C2H_DATA, c2h_pdo));
        feed_host(&mut host, &sent).expect("padding is skipped");
        assert!(host.done[0].data == content(3, 5000));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Any bytes: an event, a wait or a termination, and never more in flight than the queue holds.
    // promise: NTP-4
    #[test]
    fn any_bytes_leave_both_ends_standing(
        digests in 0u8..4,
        connected: bool,
        pieces in prop::collection::vec((0u8..12, 0u8..4, 0u8..6, prop::collection::vec(any::<u8>(), 0..200)), 0..12),
    ) {
        let mut target = if connected { connected_target(digests) } else { new_target(64) };
        let mut host = if connected && digests == 0 { busy_host() } else { new_host(1, digests) };
        for (kind, flags, cid, noise) in pieces {
            let header = Transfer {
                ch: ch(kind, flags, if kind == 4 { 72 } else { 24 }, 24, 24 + noise.len() as u32),
                cid: u16::from(cid).into(),
                ..Transfer::read_from_prefix(&[&noise[..], &[0; 24]].concat()).expect("24 bytes").0
            };
            let bytes = [header.as_bytes(), &noise].concat();
            let _ = feed_target(&mut target, &bytes);
            let _ = feed_host(&mut host, &bytes);
            prop_assert!(target.end.in_flight() <= ENTRIES && host.end.in_flight() <= 4);
        }
    }
}
