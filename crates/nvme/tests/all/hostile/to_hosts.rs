//! Tests of a host whose target breaks the rules.

use super::*;
use forebay_nvme::command::Cqe;

// promise: NTP-4
#[test]
fn a_host_refuses_a_bad_beginning() {
    let wrong = |change: fn(&mut IcResp)| {
        let mut response = ic_resp(0);
        change(&mut response);
        response
    };
    for (response, expected) in [
        (wrong(|r| r.format = 1.into()), (UnsupportedParameter, 8)),
        (wrong(|r| r.cpda = 32), (InvalidHeaderField, 10)),
        (wrong(|r| r.digests = 1), (InvalidHeaderField, 11)),
        (wrong(|r| r.digests = 2), (InvalidHeaderField, 11)),
        (wrong(|r| r.max_h2c = 4092.into()), (InvalidHeaderField, 12)),
        (wrong(|r| r.max_h2c = 4098.into()), (InvalidHeaderField, 12)),
        (wrong(|r| r.ch.hlen = 24), (InvalidHeaderField, 2)),
        (wrong(|r| r.ch.plen = 24.into()), (InvalidHeaderField, 4)),
        (wrong(|r| r.ch.kind = kind::IC_REQ), (InvalidHeaderField, 0)),
        (wrong(|r| r.ch.kind = 0x0a), (InvalidHeaderField, 0)),
    ] {
        let quoted = &response.as_bytes()[..usize::from(response.ch.hlen)];
        host_ends(new_host(1, 0), response.as_bytes(), expected, quoted);
    }
    let response = CapsuleResp { ch: ch(kind::CAPSULE_RESP, 0, 24, 0, 24), cqe: Cqe::default() };
    host_ends(new_host(1, 0), response.as_bytes(), (SequenceError, 0), response.as_bytes());
    host_ends(
        connected_host(),
        ic_resp(0).as_bytes(),
        (SequenceError, 0),
        &ic_resp(0).as_bytes()[..28][..24],
    );
}

#[test]
fn a_host_learns_which_digests_were_refused() {
    for digests in 0..4 {
        let mut host = new_host(1, 3);
        let response = ic_resp(digests);
        host.memory.data.clear();
        let taken = response.as_bytes();
        let expect = host.end.expect();
        expect.own[..128].copy_from_slice(taken);
        host.end.received(128);
        let event = host.end.next().expect("a good ICResp");
        let (header_digest, data_digest) = (digests & 1 != 0, digests & 2 != 0);
        assert_eq!(event, Some(host::Event::Ready { max_h2c: 131_072, header_digest, data_digest }));
    }
}

// promise: NTP-4
#[test]
fn a_host_refuses_what_answers_no_command() {
    let response = |cid| CapsuleResp {
        ch: ch(kind::CAPSULE_RESP, 0, 24, 0, 24),
        cqe: Cqe::new(cid, Status::SUCCESS, 0),
    };
    for cid in [2, 5, 16, 0xffff] {
        host_ends(busy_host(), response(cid).as_bytes(), (InvalidHeaderField, 20), response(cid).as_bytes());
        let bytes = transfer(kind::C2H_DATA, flag::LAST, cid, 0, 0, 4096);
        host_ends(busy_host(), bytes.as_bytes(), (InvalidHeaderField, 8), bytes.as_bytes());
        let bytes = transfer(kind::R2T, 0, cid, 0, 0, 4096);
        host_ends(busy_host(), bytes.as_bytes(), (InvalidHeaderField, 8), bytes.as_bytes());
    }
    let mut host = busy_host();
    feed_host(&mut host, response(0).as_bytes()).expect("an answer");
    host_ends(host, response(0).as_bytes(), (InvalidHeaderField, 20), response(0).as_bytes());
    // An answer to the slot's command before the one that is in flight now.
    let mut host = busy_host();
    feed_host(&mut host, response(0).as_bytes()).expect("an answer");
    assert_eq!(host.read(1, 8192), Ok(Handle(0)));
    host.sends();
    host_ends(host, response(0).as_bytes(), (InvalidHeaderField, 20), response(0).as_bytes());
    // An answer to a command that wasn't sent yet.
    let mut host = connected_host();
    host.read(1, 8192).expect("a free slot");
    host_ends(host, response(0).as_bytes(), (InvalidHeaderField, 20), response(0).as_bytes());
}

// promise: NTP-4
#[test]
fn a_host_refuses_data_that_it_did_not_ask_for() {
    let bad = |flags, cid, offset, len| transfer(kind::C2H_DATA, flags, cid, 0, offset, len);
    let mut short = bad(flag::LAST, 0, 0, 4096);
    short.len = 8192.into();
    for (header, expected) in [
        (bad(flag::LAST, 1, 0, 4096), (DataOutOfRange, 0)),
        (bad(flag::LAST, 0, 0, 8196), (DataOutOfRange, 0)),
        (bad(flag::LAST, 0, 4, 4096), (DataOutOfRange, 0)),
        (bad(flag::LAST, 0, u32::MAX - 3, 4096), (DataOutOfRange, 0)),
        (bad(flag::LAST, 0, 0, 0), (InvalidHeaderField, 4)),
        (bad(flag::SUCCESS, 0, 0, 4096), (InvalidHeaderField, 1)),
        (short, (InvalidHeaderField, 16)),
    ] {
        host_ends(busy_host(), header.as_bytes(), expected, header.as_bytes());
    }
    let first = data(kind::C2H_DATA, flag::LAST, 0, 0, 0, 4096);
    let more = bad(flag::LAST, 0, 4096, 4096);
    host_ends(busy_host(), &[&first, more.as_bytes()].concat(), (SequenceError, 0), more.as_bytes());
}

// promise: NTP-4
#[test]
fn a_host_refuses_r2ts_out_of_range_and_beyond_the_limit() {
    let r2t = |cid, offset, len| transfer(kind::R2T, 0, cid, 3, offset, len);
    for (header, expected) in [
        (r2t(0, 0, 4096), (DataOutOfRange, 0)),
        (r2t(1, 0, WRITE_LEN + 1), (DataOutOfRange, 0)),
        (r2t(1, WRITE_LEN, 1), (DataOutOfRange, 0)),
        (r2t(1, u32::MAX, u32::MAX), (DataOutOfRange, 0)),
        (r2t(1, 0, 0), (InvalidHeaderField, 16)),
    ] {
        host_ends(busy_host(), header.as_bytes(), expected, header.as_bytes());
    }
    let (first, second) = (r2t(1, 0, 4096), r2t(1, 4096, 4096));
    let both = [first.as_bytes(), second.as_bytes()].concat();
    host_ends(busy_host(), &both, (LimitExceeded, 0), second.as_bytes());
    for (again, offset) in [(r2t(1, 0, 4096), 0), (r2t(1, 4095, 8), 4095)] {
        let mut host = busy_host();
        feed_host(&mut host, first.as_bytes()).expect("an R2T");
        assert_eq!(host.sends().len(), 24 + 4096);
        host_ends(host, again.as_bytes(), (DataOutOfRange, 0), again.as_bytes());
        assert!(offset < 4096);
    }
    let mut host = new_host(2, 0);
    feed_host(&mut host, ic_resp(0).as_bytes()).expect("a good ICResp");
    host.write(0, WRITE_LEN).expect("a free slot");
    host.sends();
    let both = [r2t(0, 0, 4096).as_bytes(), r2t(0, 4096, 4096).as_bytes()].concat();
    feed_host(&mut host, &both).expect("two R2Ts at once, as the host allowed");
    assert_eq!(host.sends().len(), 2 * (24 + 4096));
    let in_capsule = {
        let mut host = connected_host();
        host.end.set_in_capsule_max(8192);
        host.write(0, 512).expect("a free slot");
        host.sends();
        host
    };
    host_ends(in_capsule, r2t(0, 0, 512).as_bytes(), (DataOutOfRange, 0), r2t(0, 0, 512).as_bytes());
}

#[test]
fn an_r2t_of_a_command_that_fails_is_not_answered() {
    let mut host = busy_host();
    let r2t = transfer(kind::R2T, 0, 1, 3, 0, 4096);
    let failed = Cqe::new(1, Status::fatal(Code::WRITE_FAULT), 0);
    let response = CapsuleResp { ch: ch(kind::CAPSULE_RESP, 0, 24, 0, 24), cqe: failed };
    feed_host(&mut host, &[r2t.as_bytes(), response.as_bytes()].concat()).expect("an early failure");
    assert_eq!(host.done[0].cqe.status().code, Code::WRITE_FAULT);
    assert!(host.sends().is_empty(), "its memory isn't sent any more");
}
