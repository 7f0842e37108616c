//! Cost of one command at each end of an NVMe/TCP connection, without the network and the payload's copy.
//!
//! `cargo bench -p forebay-training --bench nvme_tcp_ends`: nanoseconds per command, the best of 20 passes, each in
//! batches of `DEPTH`. It lives here because `forebay-nvme` knows no clock.

use forebay_nvme::command::{io, Cqe, Sqe};
use forebay_nvme::transport::tcp::host::{self, Data, HostEnd};
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::{Handle, Outgoing, Segment};
use std::hint::black_box;
use std::time::{Duration, Instant};

const DEPTH: u16 = 32;
const BATCHES: u32 = 2000;
const BULK: usize = 1 << 18;

/// Time per step, over a pass.
#[derive(Clone, Copy, Default)]
struct Times {
    submit: Duration,
    command: Duration,
    send: Duration,
    complete: Duration,
}

struct Ends {
    host: HostEnd,
    target: TargetEnd,
    out: Outgoing,
    wire: Vec<u8>,
    commands: Vec<Handle>,
}

/// The bytes that a list stands for; payload is zeros.
fn flatten(out: &mut Outgoing, wire: &mut Vec<u8>) {
    wire.clear();
    for segment in out.segments.drain(..) {
        match segment {
            Segment::Bytes { start, end } => wire.extend_from_slice(&out.bytes[start..end]),
            Segment::Payload { len, .. } => wire.resize(wire.len() + len as usize, 0),
            Segment::Digest => wire.extend_from_slice(&[0; 4]),
            Segment::Release { .. } => {}
        }
    }
    out.bytes.clear();
}

fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *total += start.elapsed();
    result
}

fn host_takes(host: &mut HostEnd, wire: &[u8], total: &mut Duration) -> u32 {
    let (mut at, mut completed) = (0, 0);
    while at < wire.len() {
        let expect = host.expect();
        let placed = expect.payload.map_or(0, |place| place.len as usize).min(wire.len() - at);
        let n = expect.own.len().min(wire.len() - at - placed);
        expect.own[..n].copy_from_slice(&wire[at + placed..][..n]);
        at += placed + n;
        timed(total, || {
            host.received(placed + n);
            while let Some(event) = host.next().expect("no fatal error") {
                completed += u32::from(matches!(black_box(event), host::Event::Completed { .. }));
            }
        });
    }
    completed
}

fn target_takes(ends: &mut Ends, total: &mut Duration) {
    let expect = ends.target.expect();
    expect.own[..ends.wire.len()].copy_from_slice(&ends.wire);
    timed(total, || {
        ends.target.received(ends.wire.len());
        while let Some(event) = ends.target.next().expect("no fatal error") {
            if let target::Event::Command { command, .. } = black_box(event) {
                ends.commands.push(command);
            }
        }
    });
}

fn connected(header_digest: bool, bulk: usize) -> Ends {
    let options = host::Options { header_digest, data_digest: false, depth: DEPTH, r2ts: 1, bulk };
    let (data, most) = (false, 1 << 20);
    let target = TargetEnd::new(target::Options {
        header_digest,
        data_digest: data,
        in_capsule_max: 8192,
        max_h2c: most,
        max_c2h: most,
        bulk: BULK,
    });
    let mut ends = Ends {
        host: HostEnd::new(options),
        target,
        out: Outgoing::default(),
        wire: vec![],
        commands: vec![],
    };
    let mut ignored = Duration::ZERO;
    ends.host.take_outgoing(&mut ends.out);
    flatten(&mut ends.out, &mut ends.wire);
    target_takes(&mut ends, &mut ignored);
    ends.target.set_depth(DEPTH + 1, false);
    ends.target.take_outgoing(&mut ends.out);
    flatten(&mut ends.out, &mut ends.wire);
    host_takes(&mut ends.host, &ends.wire, &mut ignored);
    ends
}

/// Reads of `len` bytes, `DEPTH` at a time.
fn pass(ends: &mut Ends, len: u32) -> Times {
    let mut times = Times::default();
    for _ in 0..BATCHES {
        timed(&mut times.submit, || {
            for _ in 0..DEPTH {
                ends.host.submit(Sqe { opcode: io::READ, ..Sqe::default() }, Data::In { len }).expect("room");
            }
            ends.host.take_outgoing(&mut ends.out);
        });
        flatten(&mut ends.out, &mut ends.wire);
        target_takes(ends, &mut times.command);
        timed(&mut times.send, || {
            for command in ends.commands.drain(..) {
                ends.target.send(command, len, Cqe::default());
            }
            ends.target.take_outgoing(&mut ends.out);
        });
        flatten(&mut ends.out, &mut ends.wire);
        let completed = host_takes(&mut ends.host, &ends.wire, &mut times.complete);
        assert_eq!(completed, u32::from(DEPTH));
    }
    times
}

fn main() {
    println!("ns per command         submit  command  send  complete");
    for (name, len, digest, bulk) in [
        ("read 4k, in bulk", 4096, false, BULK),
        ("read 4k, in place", 4096, false, 0),
        ("read 4k, header digest", 4096, true, BULK),
    ] {
        let mut ends = connected(digest, bulk);
        let passes: Vec<Times> = (0..20).map(|_| pass(&mut ends, len)).collect();
        let best = |step: fn(&Times) -> Duration| {
            let best = passes.iter().map(step).min().unwrap_or_default();
            best.as_nanos() as f64 / f64::from(BATCHES * u32::from(DEPTH))
        };
        let (submit, command) = (best(|t| t.submit), best(|t| t.command));
        let (send, complete) = (best(|t| t.send), best(|t| t.complete));
        println!("{name:22} {submit:6.1}  {command:7.1}  {send:4.1}  {complete:8.1}");
    }
}
