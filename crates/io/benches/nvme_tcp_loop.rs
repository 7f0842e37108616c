//! Reads between a host's end and a target's over loopback, one thread each, with nothing in front and nothing
//! behind: what is left of the network's speed before a source or a controller costs anything.
//!
//! `cargo bench -p forebay-training --bench nvme_tcp_loop [-- SECONDS]`

use forebay_io::{
    fill_memory, stream_digest, Arena, CpuTimes, Mem, Reactor, RingCompletion, RingOptions, Stream,
    StreamOptions, StreamReceived,
};
use forebay_model::job::Pages;
use forebay_model::units::BYTES_PER_GIB;
use forebay_nvme::command::{io, Cqe, Sqe};
use forebay_nvme::transport::tcp::host::{self, Data, HostEnd};
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::PayloadPlace;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
struct Case {
    len: u32,
    depth: u16,
    digests: bool,
    bulk: usize,
}

#[derive(Default)]
struct Counts {
    reads: u64,
    receives: u64,
    waits: u64,
    cpu_s: f64,
}

fn at(arena: &Arena) -> impl Fn(PayloadPlace) -> Mem + '_ {
    |place| arena.slot(usize::from(place.command.0)).after(place.offset as usize)
}

fn memory(case: Case) -> Arena {
    Arena::new(2 * usize::from(case.depth) + 2, case.len as usize, Pages::Thp).expect("memory")
}

fn reactor() -> (Reactor, u32) {
    let mut reactor =
        Reactor::with_ring(RingOptions { depth: 64, ..RingOptions::default() }).expect("a ring");
    let token = reactor.token();
    (reactor, token)
}

fn wait(reactor: &mut Reactor, token: u32, completions: &mut Vec<RingCompletion>) {
    reactor.wait(1, Instant::now() + Duration::from_secs(1), Duration::ZERO);
    reactor.take(token, completions);
}

/// Answers reads until the host has gone. Returns this thread's CPU time, s.
fn serve(socket: TcpStream, case: Case) -> f64 {
    let (mut reactor, token) = reactor();
    let arena = memory(case);
    let end = TargetEnd::new(target::Options {
        header_digest: true,
        data_digest: true,
        in_capsule_max: 8192,
        max_h2c: 1 << 20,
        max_c2h: 1 << 20,
        bulk: 8192,
    });
    let mut stream = Stream::new(socket.into(), end, token, 0, StreamOptions::default()).expect("a stream");
    let (mut completions, mut released) = (Vec::new(), Vec::new());
    loop {
        while matches!(stream.receive(&mut reactor, &at(&arena)), Ok(StreamReceived::Some)) {
            while let Some(event) = stream.end().next().expect("no fatal error") {
                match event {
                    target::Event::Ready { .. } => stream.end().set_depth(case.depth + 1, false),
                    target::Event::Command { command, .. } => {
                        stream.end().send(command, case.len, Cqe::default());
                    }
                    _ => {}
                }
            }
        }
        stream.send(&mut reactor, &at(&arena));
        stream.take_released(&mut released);
        released.clear();
        if matches!(stream.receive(&mut reactor, &at(&arena)), Ok(StreamReceived::Ended) | Err(_)) {
            stream.close(&mut reactor);
            while !stream.is_quiet() {
                wait(&mut reactor, token, &mut completions);
                completions.drain(..).for_each(|c| stream.completed(c));
            }
            return CpuTimes::of_thread().total_s();
        }
        wait(&mut reactor, token, &mut completions);
        completions.drain(..).for_each(|c| stream.completed(c));
    }
}

fn read(stream: &mut Stream<HostEnd>, case: Case) {
    let sqe = Sqe { opcode: io::READ, ..Sqe::default() };
    stream.end().submit(sqe, Data::In { len: case.len }).expect("room");
}

/// Reads at full depth for `time`.
fn drive(socket: TcpStream, case: Case, time: Duration) -> Counts {
    let (mut reactor, token) = reactor();
    let arena = memory(case);
    let Case { digests, depth, bulk, .. } = case;
    let options = host::Options { header_digest: digests, data_digest: digests, depth, r2ts: 1, bulk };
    let mut stream = Stream::new(socket.into(), HostEnd::new(options), token, 0, StreamOptions::default())
        .expect("a stream");
    let (mut completions, mut counts, mut crc) = (Vec::new(), Counts::default(), 0);
    let (end, cpu_s) = (Instant::now() + time, CpuTimes::of_thread().total_s());
    while Instant::now() < end {
        while let StreamReceived::Some = stream.receive(&mut reactor, &at(&arena)).expect("a connection") {
            counts.receives += 1;
            let mut room = 0;
            while let Some(event) = stream.end().next().expect("no fatal error") {
                match event {
                    host::Event::Ready { .. } => room += depth,
                    host::Event::Placed(place) if digests => {
                        crc = stream_digest(crc, at(&arena)(place), place.len);
                    }
                    host::Event::Copy { place, bytes } => {
                        fill_memory(at(&arena)(place), bytes);
                        if digests {
                            crc = stream_digest(crc, at(&arena)(place), place.len);
                        }
                    }
                    host::Event::DataEnd { digest, .. } => {
                        assert_eq!(std::mem::take(&mut crc), digest);
                    }
                    host::Event::Completed { .. } => {
                        counts.reads += 1;
                        room += 1;
                    }
                    host::Event::Placed(_) => {}
                }
            }
            (0..room).for_each(|_| read(&mut stream, case));
        }
        stream.send(&mut reactor, &at(&arena));
        wait(&mut reactor, token, &mut completions);
        counts.waits += 1;
        completions.drain(..).for_each(|c| stream.completed(c));
    }
    counts.cpu_s = CpuTimes::of_thread().total_s() - cpu_s;
    counts
}

fn main() {
    let seconds = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(2.0);
    println!("  bytes  depth  digests    bulk      GiB/s      IOPS  us/read  receives/read  waits/read  CPU us/read: host  target");
    for (len, depth, digests, bulk) in [
        (4096, 1, false, 0),
        (4096, 1, false, 8192),
        (4096, 32, false, 0),
        (4096, 32, false, 65_536),
        (131_072, 8, false, 0),
        (131_072, 8, true, 0),
        (1 << 20, 8, false, 0),
        (1 << 20, 8, true, 0),
    ] {
        let case = Case { len, depth, digests, bulk };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (served, _) = listener.accept().expect("a connection");
        let target = std::thread::spawn(move || serve(served, case));
        let counts = drive(socket, case, Duration::from_secs_f64(seconds));
        let target_s = target.join().expect("a target that ends well");
        let rate = counts.reads as f64 / seconds;
        let per_read = |n: f64| n / counts.reads.max(1) as f64;
        println!(
            "{len:7}  {depth:5}  {digests:7}  {bulk:6}  {:9.2}  {rate:8.0}  {:7.1}  {:13.2}  {:10.2}  {:17.2}  {:6.2}",
            rate * f64::from(len) / BYTES_PER_GIB,
            f64::from(depth) * 1e6 / rate,
            per_read(counts.receives as f64),
            per_read(counts.waits as f64),
            per_read(counts.cpu_s * 1e6),
            per_read(target_s * 1e6),
        );
    }
}
