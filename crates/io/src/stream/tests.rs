use super::*;
use crate::arena::Arena;
use crate::reactor::RingOptions;
use forebay_model::job::Pages;
use forebay_nvme::transport::tcp::Segment;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// An end that sends what it is told and expects what it is told.
#[derive(Default)]
struct Script {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    /// Payload to expect, each followed by `own` bytes.
    places: VecDeque<PayloadPlace>,
    own: Vec<u8>,
    own_filled: usize,
    /// A payload is whole, its `own` bytes aren't here yet.
    between: bool,
    owns: Vec<Vec<u8>>,
}

impl End for Script {
    fn take_outgoing(&mut self, out: &mut Outgoing) {
        out.bytes.append(&mut self.bytes);
        out.segments.append(&mut self.segments);
    }

    fn expect(&mut self) -> Expect<'_> {
        let payload = self.places.front().copied().filter(|_| !self.between);
        Expect { payload, own: &mut self.own[self.own_filled..] }
    }

    fn received(&mut self, mut n: usize) {
        if let Some(place) = self.places.front_mut().filter(|_| !self.between) {
            let here = n.min(place.len as usize);
            place.offset += here as u32;
            place.len -= here as u32;
            n -= here;
            if place.len == 0 {
                self.places.pop_front();
                self.between = true;
            }
        }
        self.own_filled += n;
        if self.own_filled == self.own.len() {
            self.owns.push(self.own.clone());
            self.own_filled = 0;
            self.between = false;
        }
    }
}

impl Script {
    fn say(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.segments.push(Segment::Bytes { start, end: start + bytes.len() });
    }
}

fn pair(options: Options) -> (Stream<Script>, TcpStream, Reactor) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let mut reactor = Reactor::with_ring(RingOptions { depth: 8, ..RingOptions::default() }).unwrap();
    let token = reactor.token();
    let script = Script { own: vec![0; 4], ..Script::default() };
    (Stream::new(socket.into(), script, token, 3, options).unwrap(), peer, reactor)
}

/// Waits for completions and gives them to the stream. False: none came in a while.
fn pump(stream: &mut Stream<Script>, reactor: &mut Reactor) -> bool {
    reactor.wait(1, Instant::now() + Duration::from_millis(100), Duration::ZERO);
    let mut completions = Vec::new();
    reactor.take(stream.port.token, &mut completions);
    let any = !completions.is_empty();
    for c in completions {
        assert_eq!(stream_index(c), 3);
        stream.completed(c);
    }
    any
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn send_all(options: Options, digested: bool) {
    const LEN: usize = 3 << 20;
    let (mut stream, mut peer, mut reactor) = pair(options);
    let arena = Arena::new(2, LEN, Pages::Small).unwrap();
    let data = pattern(2 * LEN);
    fill_memory(arena.slot(0), &data[..LEN]);
    fill_memory(arena.slot(1), &data[LEN..]);
    let at = |p: PayloadPlace| arena.slot(p.command.0 as usize).after(p.offset as usize);
    let mut wanted = Vec::new();
    for command in [0u16, 1] {
        let payload = &data[command as usize * LEN..][..LEN];
        let end = stream.end();
        end.say(b"header");
        wanted.extend_from_slice(b"header");
        let halves = [(0, 1000), (1000, LEN as u32 - 1000)];
        for (offset, len) in halves {
            end.segments.push(Segment::Payload { command: Handle(command), offset, len });
        }
        wanted.extend_from_slice(payload);
        if digested {
            end.segments.push(Segment::Digest);
            wanted.extend_from_slice(&::crc32c::crc32c(payload).to_le_bytes());
        }
        end.segments.push(Segment::Release { command: Handle(command) });
    }
    let total = wanted.len();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; total];
        // Late, so that the socket's buffer fills up meanwhile.
        std::thread::sleep(Duration::from_millis(50));
        peer.read_exact(&mut got).unwrap();
        got
    });
    let mut released = Vec::new();
    let began = Instant::now();
    while !stream.is_sent() || released.len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "stuck: {released:?}");
        stream.send(&mut reactor, &at);
        stream.take_released(&mut released);
        if !stream.is_quiet() {
            pump(&mut stream, &mut reactor);
        }
    }
    assert_eq!(released, [Handle(0), Handle(1)]);
    assert!(reader.join().unwrap() == wanted, "other bytes came out");
}

// promise: RHO-8
#[test]
fn what_is_listed_goes_out_whole_and_is_then_released() {
    send_all(Options::default(), false);
}

// promise: RHO-8
#[test]
fn short_sends_go_on_where_they_ended() {
    send_all(Options { send_buffer: Some(8192), ..Options::default() }, false);
}

// promise: RHO-8
#[test]
fn digests_follow_the_payload_that_they_are_of() {
    send_all(Options::default(), true);
}

// promise: RHO-8
#[test]
fn zero_copy_releases_when_the_kernel_lets_go() {
    send_all(Options { zero_copy: true, ..Options::default() }, true);
}

// promise: RHO-8
#[test]
fn payload_lands_in_its_place_and_the_rest_in_the_end() {
    const LEN: usize = 300_000;
    let (mut stream, mut peer, mut reactor) = pair(Options::default());
    let arena = Arena::new(2, LEN, Pages::Small).unwrap();
    let at = |p: PayloadPlace| arena.slot(p.command.0 as usize).after(p.offset as usize);
    let data = pattern(2 * LEN);
    let sent = data.clone();
    let writer = std::thread::spawn(move || {
        for (i, part) in sent.chunks(LEN).enumerate() {
            for piece in part.chunks(70_001) {
                peer.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            peer.write_all(&[i as u8; 4]).unwrap();
        }
        // And closes.
    });
    for command in [0, 1] {
        stream.end().places.push_back(PayloadPlace { command: Handle(command), offset: 0, len: LEN as u32 });
    }
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(60));
        match stream.receive(&mut reactor, &at).unwrap() {
            Received::Some => {}
            Received::Later => drop(pump(&mut stream, &mut reactor)),
            Received::Ended => break,
        }
    }
    writer.join().unwrap();
    assert_eq!(stream.end().owns, [[0u8; 4], [1; 4]]);
    let mut crc = 0;
    for i in 0..2 {
        crc = stream_digest(crc, arena.slot(i), LEN as u32);
    }
    assert_eq!(crc, ::crc32c::crc32c(&data));
}

// promise: RHO-8
#[test]
fn an_exchange_costs_the_sender_one_wait() {
    let (mut stream, mut peer, mut reactor) = pair(Options::default());
    let at = |_: PayloadPlace| Mem::None;
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 4];
        while peer.read_exact(&mut bytes).is_ok() {
            peer.write_all(&bytes).unwrap();
        }
    });
    let mut in_one = 0;
    for i in 0..100u8 {
        stream.end().say(&[i; 4]);
        stream.send(&mut reactor, &at);
        assert_eq!(stream.receive(&mut reactor, &at).unwrap(), Received::Later);
        let mut waits = 0;
        // The send is over with, and the wait is for the answer, unless that is late.
        while stream.receive(&mut reactor, &at).unwrap() == Received::Later {
            pump(&mut stream, &mut reactor);
            waits += 1;
        }
        assert_eq!(stream.end().owns.pop().unwrap(), [i; 4]);
        in_one += u32::from(waits == 1);
    }
    assert!(in_one > 0, "no exchange took a single wait");
    drop(stream);
    echo.join().unwrap();
}

/// Receives all that comes until the stream ends; how often the receiver found something.
fn drain(stream: &mut Stream<Script>, reactor: &mut Reactor, arena: &Arena) -> u32 {
    let at = |p: PayloadPlace| arena.slot(p.command.0 as usize).after(p.offset as usize);
    let mut wakes = 0;
    loop {
        match stream.receive(reactor, &at).unwrap() {
            Received::Some => {}
            Received::Ended => return wakes,
            Received::Later => {
                wakes += u32::from(pump(stream, reactor));
            }
        }
    }
}

#[test]
fn who_waits_for_announced_payload_is_woken_for_much_of_it_or_the_rest() {
    const LEN: usize = 300 << 10;
    let (mut stream, mut peer, mut reactor) = pair(Options::default());
    let arena = Arena::new(1, LEN, Pages::Small).unwrap();
    let data = pattern(LEN);
    stream.end().places.push_back(PayloadPlace { command: Handle(0), offset: 0, len: LEN as u32 });
    let sent = data.clone();
    let writer = std::thread::spawn(move || {
        peer.set_nodelay(true).unwrap();
        for piece in sent.chunks(1 << 10) {
            peer.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        peer.write_all(b"tail").unwrap();
    });
    let wakes = drain(&mut stream, &mut reactor, &arena);
    writer.join().unwrap();
    assert_eq!(stream.end().owns, [b"tail"]);
    let came = stream_digest(0, arena.slot(0), LEN as u32);
    assert_eq!(came, ::crc32c::crc32c(&data));
    // Three hundred, where each piece wakes.
    assert!(wakes < 100, "woken {wakes} times");
}

#[test]
fn a_peer_that_ends_within_announced_payload_is_noticed() {
    let (mut stream, mut peer, mut reactor) = pair(Options::default());
    let arena = Arena::new(1, 1 << 20, Pages::Small).unwrap();
    stream.end().places.push_back(PayloadPlace { command: Handle(0), offset: 0, len: 1 << 20 });
    peer.write_all(&pattern(5000)).unwrap();
    drop(peer);
    drain(&mut stream, &mut reactor, &arena);
    assert_eq!(stream.end().places[0].offset, 5000);
}

#[test]
fn a_closed_stream_becomes_quiet() {
    let (mut stream, _peer, mut reactor) = pair(Options::default());
    let at = |_: PayloadPlace| Mem::None;
    assert_eq!(stream.receive(&mut reactor, &at).unwrap(), Received::Later);
    stream.close(&mut reactor);
    assert!(!stream.is_quiet());
    assert_eq!(stream.receive(&mut reactor, &at).unwrap(), Received::Ended);
    while !stream.is_quiet() {
        pump(&mut stream, &mut reactor);
    }
}

#[test]
fn a_connection_is_made_or_refused_without_waiting() {
    let listener = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let mut reactor = Reactor::with_ring(RingOptions { depth: 8, ..RingOptions::default() }).unwrap();
    let token = reactor.token();
    let at = |_: PayloadPlace| Mem::None;
    let connect = |reactor: &mut Reactor| {
        let script = Script { own: vec![0; 4], ..Script::default() };
        Stream::connect(address, script, token, 3, Options::default(), reactor).unwrap()
    };
    let mut stream = connect(&mut reactor);
    stream.end().say(b"ping");
    stream.send(&mut reactor, &at);
    while !stream.is_connected() {
        pump(&mut stream, &mut reactor);
    }
    stream.send(&mut reactor, &at);
    reactor.flush();
    let (mut peer, _) = listener.accept().unwrap();
    let mut bytes = [0; 4];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");
    drop((peer, listener));
    while !stream.is_quiet() {
        pump(&mut stream, &mut reactor);
    }
    let mut stream = connect(&mut reactor);
    while stream.connecting {
        pump(&mut stream, &mut reactor);
    }
    let refused = stream.receive(&mut reactor, &at).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
}
