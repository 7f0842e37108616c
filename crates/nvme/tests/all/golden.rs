//! Each PDU as its bytes, written down by hand from the figures (tcp, section 3.6.2).

use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::status::Status;
use forebay_nvme::transport::tcp::host::{self, Data, HostEnd};
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::{Handle, Outgoing, Segment};

/// Bytes from hex, blanks between them.
fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect()
}

fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = hex(text);
    bytes.resize(len, 0);
    bytes
}

fn host_end(digests: bool, r2ts: u32) -> HostEnd {
    HostEnd::new(host::Options { header_digest: digests, data_digest: digests, depth: 8, r2ts, bulk: 0 })
}

fn target_end() -> TargetEnd {
    TargetEnd::new(target::Options {
        header_digest: true,
        data_digest: true,
        in_capsule_max: 8192,
        max_h2c: 0x0002_0000,
        max_c2h: 0x0002_0000,
        bulk: 4096,
    })
}

fn host_sends(end: &mut HostEnd) -> Outgoing {
    let mut out = Outgoing::default();
    end.take_outgoing(&mut out);
    out
}

fn target_sends(end: &mut TargetEnd) -> Outgoing {
    let mut out = Outgoing::default();
    end.take_outgoing(&mut out);
    out
}

fn to_host(end: &mut HostEnd, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let expect = end.expect();
        assert_eq!(expect.payload, None);
        let n = expect.own.len().min(bytes.len() - at);
        expect.own[..n].copy_from_slice(&bytes[at..at + n]);
        end.received(n);
        at += n;
        while at < bytes.len() && end.next().expect("a good PDU").is_some() {}
    }
}

fn to_target(end: &mut TargetEnd, bytes: &[u8]) {
    let expect = end.expect();
    expect.own[..bytes.len()].copy_from_slice(bytes);
    end.received(bytes.len());
}

const IC_REQ: &str = "00 00 80 00 80 00 00 00  00 00 00 00 00 00 00 00";
const IC_RESP: &str = "01 00 80 00 80 00 00 00  00 00 00 00 00 00 02 00";

// promise: NTP-1
#[test]
fn ic_req_and_ic_resp() {
    assert_eq!(host_sends(&mut host_end(false, 1)).bytes, padded(IC_REQ, 128));
    // Both digests, four R2Ts at once.
    let wanted = padded("00 00 80 00 80 00 00 00  00 00 00 03 03 00 00 00", 128);
    assert_eq!(host_sends(&mut host_end(true, 4)).bytes, wanted);

    let mut target = target_end();
    to_target(&mut target, &padded(IC_REQ, 128));
    let ready = target::Event::Ready { header_digest: false, data_digest: false };
    assert_eq!(target.next(), Ok(Some(ready)));
    assert_eq!(target_sends(&mut target).bytes, padded(IC_RESP, 128));
}

fn connected_host(in_capsule_max: u32) -> HostEnd {
    let mut host = host_end(false, 1);
    host_sends(&mut host);
    to_host(&mut host, &padded(IC_RESP, 128));
    let ready = host::Event::Ready { max_h2c: 0x2_0000, header_digest: false, data_digest: false };
    assert_eq!(host.next(), Ok(Some(ready)));
    host.set_in_capsule_max(in_capsule_max);
    host
}

fn connected_target(flow_control: bool) -> TargetEnd {
    let mut target = target_end();
    to_target(&mut target, &padded(IC_REQ, 128));
    assert!(target.next().expect("a good ICReq").is_some());
    target_sends(&mut target);
    target.set_depth(9, flow_control);
    target
}

/// A read of 16 blocks from block 0x11223344: CapsuleCmd.
const READ: &str = "04 00 48 00 48 00 00 00
    02 40 00 00 01 00 00 00  00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  00 20 00 00 00 00 00 5a
    44 33 22 11 00 00 00 00  0f 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00";

fn read_sqe() -> Sqe {
    Sqe { opcode: 0x02, nsid: 1.into(), cdw10: 0x1122_3344.into(), cdw12: 0x0f.into(), ..Sqe::default() }
}

// promise: NTP-1
#[test]
fn a_command_capsule() {
    let mut host = connected_host(0);
    host.submit(read_sqe(), Data::In { len: 0x2000 }).expect("a free slot");
    assert_eq!(host_sends(&mut host).bytes, hex(READ));

    let mut target = connected_target(true);
    to_target(&mut target, &hex(READ));
    match target.next() {
        Ok(Some(target::Event::Command { sqe, in_capsule: 0, .. })) => {
            assert_eq!((sqe.opcode, sqe.nsid.get(), sqe.cdw10.get()), (2, 1, 0x1122_3344));
            assert_eq!((sqe.cid.get(), sqe.sgl.length.get(), sqe.sgl.kind), (0, 0x2000, 0x5a));
        }
        other => panic!("a command, not {other:?}"),
    }
}

// promise: NTP-1
#[test]
fn a_command_capsule_with_data() {
    let mut host = connected_host(8192);
    let write = Sqe { opcode: 0x01, nsid: 1.into(), ..Sqe::default() };
    let command = host.submit(write, Data::Out { len: 0x200 }).expect("a free slot");
    let wanted = hex("04 00 48 48 48 02 00 00
        01 40 00 00 01 00 00 00  00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  00 02 00 00 00 00 00 01
        00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
    let out = host_sends(&mut host);
    assert_eq!(out.bytes, wanted);
    let payload = Segment::Payload { command, offset: 0, len: 0x200 };
    assert_eq!(out.segments, [Segment::Bytes { start: 0, end: 72 }, payload]);
}

// promise: NTP-1
#[test]
fn a_response_capsule() {
    let mut target = connected_target(true);
    to_target(&mut target, &hex(READ));
    let Ok(Some(target::Event::Command { command, .. })) = target.next() else { panic!("a command") };
    target.complete(command, Cqe::new(0, Status::from_bits(0x4004), 0x0807_0605_0403_0201));
    let wanted = hex("05 00 18 00 18 00 00 00  01 02 03 04 05 06 07 08  01 00 00 00 00 00 04 40");
    assert_eq!(target_sends(&mut target).bytes, wanted);

    let mut host = connected_host(0);
    let command = host.submit(read_sqe(), Data::In { len: 0x2000 }).expect("a free slot");
    host_sends(&mut host);
    to_host(&mut host, &wanted);
    match host.next() {
        Ok(Some(host::Event::Completed { command: done, cqe, received: 0, .. })) => {
            assert_eq!((done, cqe.sqhd.get(), cqe.cid.get()), (command, 1, 0));
            assert_eq!((cqe.result.get(), cqe.status.get()), (0x0807_0605_0403_0201, 0x4004));
        }
        other => panic!("a completion, not {other:?}"),
    }
}

// promise: NTP-1
#[test]
fn data_to_the_host_with_and_without_a_response() {
    let sent = |flow_control| {
        let mut target = connected_target(flow_control);
        // The first completion is Connect's.
        for _ in 0..2 {
            to_target(&mut target, &hex(READ));
            let Ok(Some(target::Event::Command { command, .. })) = target.next() else { panic!("a command") };
            assert_eq!(command, Handle(0));
            target.send(command, 0x2000, Cqe::default());
            if target.in_flight() == 1 {
                let out = target_sends(&mut target);
                let payload = Segment::Payload { command, offset: 0, len: 0x2000 };
                assert_eq!(out.segments[1], payload);
                assert_eq!(out.segments.last(), Some(&Segment::Release { command }));
                target_sends(&mut target);
                if flow_control || out.bytes.len() == 24 {
                    return out.bytes;
                }
            }
        }
        panic!("no answer");
    };
    let data = "07 04 18 18 18 20 00 00  00 00 00 00 00 00 00 00  00 20 00 00 00 00 00 00";
    let response = "05 00 18 00 18 00 00 00  00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00";
    assert_eq!(sent(true), hex(&format!("{data} {response}")));
    assert_eq!(sent(false), hex(&data.replacen("04", "0c", 1)));
}

// promise: NTP-1
#[test]
fn an_r2t_and_the_data_it_asks_for() {
    let mut target = connected_target(true);
    let write = READ.replacen("02 40", "01 40", 1);
    to_target(&mut target, &hex(&write));
    let Ok(Some(target::Event::Command { command, .. })) = target.next() else { panic!("a command") };
    target.request(command, 0x2000);
    let wanted = hex("09 00 18 00 18 00 00 00  00 00 00 00 00 00 00 00  00 20 00 00 00 00 00 00");
    assert_eq!(target_sends(&mut target).bytes, wanted);

    let mut host = connected_host(0);
    let sqe = Sqe { opcode: 0x01, ..read_sqe() };
    let command = host.submit(sqe, Data::Out { len: 0x2000 }).expect("a free slot");
    assert_eq!(host_sends(&mut host).bytes, hex(&write));
    // Bytes 0x1000 to 0x1800, transfer tag 0xbeef.
    let asked = hex("09 00 18 00 18 00 00 00  00 00 ef be 00 10 00 00  00 08 00 00 00 00 00 00");
    to_host(&mut host, &asked);
    assert_eq!(host.next(), Ok(None));
    let out = host_sends(&mut host);
    assert_eq!(out.bytes, hex("06 04 18 18 18 08 00 00  00 00 ef be 00 10 00 00  00 08 00 00 00 00 00 00"));
    assert_eq!(out.segments[1], Segment::Payload { command, offset: 0x1000, len: 0x800 });
}

// promise: NTP-1
#[test]
fn digests_follow_header_and_data() {
    let mut host = host_end(true, 1);
    host_sends(&mut host);
    let response = padded("01 00 80 00 80 00 00 00  00 00 00 03 00 00 02 00", 128);
    to_host(&mut host, &response);
    assert!(host.next().expect("a good ICResp").is_some());
    host.set_in_capsule_max(8192);
    let write = Sqe { opcode: 0x01, nsid: 1.into(), ..Sqe::default() };
    let command = host.submit(write, Data::Out { len: 0x200 }).expect("a free slot");
    let flush = host.submit(Sqe::default(), Data::None).expect("a free slot");
    assert_ne!(command, flush);
    let out = host_sends(&mut host);
    // HDGSTF and DDGSTF, PDO behind the header digest, PLEN with both.
    assert_eq!(out.bytes[..8], hex("04 03 48 4c 50 02 00 00"));
    assert_eq!(out.bytes[76..84], hex("04 01 48 00 4c 00 00 00"));
    assert_eq!(out.bytes[72..76], crc32c::crc32c(&out.bytes[..72]).to_le_bytes());
    assert_eq!(
        out.segments,
        [
            Segment::Bytes { start: 0, end: 76 },
            Segment::Payload { command, offset: 0, len: 0x200 },
            Segment::Digest,
            Segment::Bytes { start: 76, end: 152 },
        ]
    );
    // CRC32C as such: the check value of its catalogue entry.
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}

// promise: NTP-1
#[test]
fn termination_requests() {
    let mut target = target_end();
    to_target(&mut target, &hex("05 00 18 00 18 00 00 00"));
    assert!(target.next().is_err());
    let wanted =
        "03 00 18 00 20 00 00 00  01 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  05 00 18 00 18 00 00 00";
    assert_eq!(target_sends(&mut target).bytes, hex(wanted));
    let mut host = connected_host(0);
    to_host(&mut host, &hex("07 00 18 00 18 00 00 00"));
    assert!(host.next().is_err());
    let wanted =
        "02 00 18 00 20 00 00 00  01 00 04 00 00 00 00 00  00 00 00 00 00 00 00 00  07 00 18 00 18 00 00 00";
    assert_eq!(host_sends(&mut host).bytes, hex(wanted));
}
