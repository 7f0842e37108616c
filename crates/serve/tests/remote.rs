//! The NVMe/TCP host against a target that is cut off, killed, started again and stalled: whatever happens to the
//! way, no wrong byte arrives.

#[path = "remote/ana.rs"]
mod ana;
#[path = "remote/link.rs"]
mod link;
#[path = "remote/steady.rs"]
mod steady;

use forebay_io::{fill_memory, Op, Via};
use forebay_rigs::fake::{Fake, BLOCK, NQN};
use forebay_rigs::worker::{content, Rig, LONG};
use forebay_storage::{NvmeTcpOptions, NvmeTcpRemote, Uri};
use link::{Link, Mischief, Random};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BYTES: usize = 4 << 20;
/// Options of a patient host, unless a test asks for less.
const PATIENT: &str = "io_timeout=60&fast_io_fail_tmo=120";

fn disk() -> Arc<Mutex<Vec<u8>>> {
    Arc::new(Mutex::new(content(BYTES)))
}

fn options(fakes: &[&Fake], more: &str) -> NvmeTcpOptions {
    let addresses: Vec<SocketAddr> = fakes.iter().map(|f| f.address).collect();
    options_to(&addresses, more)
}

fn options_to(addresses: &[SocketAddr], more: &str) -> NvmeTcpOptions {
    let paths: String = addresses[1..].iter().map(|a| format!("&path={a}")).collect();
    let own = |key: &&str| !more.contains(&format!("&{}=", key.split('=').next().unwrap()));
    let patient: Vec<&str> = PATIENT.split('&').filter(own).collect();
    let patient = patient.join("&");
    let uri = format!("nvme+tcp://{}/{NQN}?kato=1&reconnect_delay=0.1&{patient}{paths}{more}", addresses[0]);
    NvmeTcpOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone()
}

fn worker(remote: &Arc<NvmeTcpRemote>, depth: u32, slot_bytes: usize) -> Rig {
    Rig::open((depth, slot_bytes, false), |_| None::<()>, |needs, reactor| remote.queue(needs, reactor))
}

fn crc_of(disk: &Mutex<Vec<u8>>, offset: u64, len: u32) -> u32 {
    crc32c::crc32c(&disk.lock().unwrap()[offset as usize..][..len as usize])
}

// promise: RHO-1
#[test]
fn what_is_read_is_what_is_there() {
    for more in ["", "&hdgst=1&ddgst=1", "&bulk=0&hdgst=1&queues=3", "&bulk=0&ddgst=1&depth=2"] {
        let disk = disk();
        let fake = Fake::start(disk.clone(), 0);
        let remote = NvmeTcpRemote::open(&options(&[&fake], more), 1).unwrap();
        assert_eq!((remote.bytes(), remote.block_bytes()), (BYTES as u64, BLOCK));
        let mut rig = worker(&remote, 8, 1 << 20);
        for (offset, len) in
            [(0u64, 512u32), (512, 4096), (4096, 130_048), (1 << 20, 1 << 20), (BYTES as u64 - 512, 512)]
        {
            for tag in 0..8 {
                rig.push(tag, Op::Read, offset, len);
            }
            let done = rig.finish(LONG);
            assert_eq!(done.len(), 8, "{more}");
            for d in done {
                assert_eq!(d.result, Ok(len), "{more} {offset}+{len}");
                // Small reads may come many with one receive, and what follows them with them.
                let may_be_copied = !more.contains("bulk=0") && len < 1 << 20;
                assert!(d.via == Via::Fabric || may_be_copied, "{more} {offset}+{len}");
                assert_eq!(rig.crc(d.tag, len), crc_of(&disk, offset, len), "{more} {offset}+{len}");
            }
        }
        // Behind the end there is nothing.
        assert_eq!(rig.one(Op::Read, BYTES as u64 - 512, 1024).result, Ok(512));
        assert_eq!(rig.one(Op::Read, BYTES as u64, 1024).result, Ok(0));
        rig.close();
    }
}

// promise: RHO-6
#[test]
fn a_read_that_is_never_answered_gives_its_memory_back_when_it_is_abandoned() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    let remote = NvmeTcpRemote::open(&options(&[&fake], ""), 1).unwrap();
    let mut rig = worker(&remote, 2, 4096);
    fake.stall(1);
    rig.push(0, Op::Read, 0, 4096);
    assert!(rig.finish_when(|| fake.stalls() == 0).is_empty());
    rig.push(1, Op::Read, 4096, 4096);
    rig.queue.abandon(0, &mut rig.reactor);
    let done = rig.finish(LONG);
    let of = |tag| done.iter().find(|d| d.tag == tag).expect("it ends").result.clone();
    assert_eq!(of(0).unwrap_err().errno, libc::ECANCELED);
    assert_eq!(of(1), Ok(4096), "the other one is none the worse");
    assert_eq!(rig.one(Op::Read, 8192, 4096).result, Ok(4096), "and the path is there again");
    assert_eq!(rig.crc(0, 4096), crc_of(&disk, 8192, 4096));
    rig.close();
}

// promise: RHO-13
#[test]
fn a_command_that_takes_too_long_is_aborted_and_sent_again_on_the_same_connection() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    // As long as the answer to the Abort may take, too.
    let remote = NvmeTcpRemote::open(&options(&[&fake], "&io_timeout=3"), 1).unwrap();
    let mut rig = worker(&remote, 2, 4096);
    fake.stall(1);
    let began = Instant::now();
    rig.push(0, Op::Read, 0, 4096);
    let done = rig.finish(LONG);
    assert_eq!(done[0].result, Ok(4096));
    assert_eq!(rig.crc(0, 4096), crc_of(&disk, 0, 4096));
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!((fake.aborts(), remote.paths()[0].reconnects), (1, 0), "{:?}", remote.notes());
    let (notes, _) = remote.notes();
    assert!(notes.iter().any(|(_, text)| text.contains("asked to abort")), "{notes:?}");
    rig.close();
}

// promise: RHO-13
#[test]
fn where_an_abort_does_not_help_the_connection_goes_and_the_read_is_sent_on_another() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    fake.hear_no_abort();
    let remote = NvmeTcpRemote::open(&options(&[&fake], "&io_timeout=1"), 1).unwrap();
    let mut rig = worker(&remote, 2, 4096);
    fake.stall(1);
    rig.push(0, Op::Read, 0, 4096);
    let done = rig.finish(LONG);
    assert_eq!(done[0].result, Ok(4096));
    assert_eq!(rig.crc(0, 4096), crc_of(&disk, 0, 4096));
    assert!(fake.aborts() > 0 && remote.paths()[0].reconnects > 0, "{:?}", remote.notes());
    let (notes, _) = remote.notes();
    assert!(notes.iter().any(|(_, text)| text.contains("io_timeout")), "{notes:?}");
    rig.close();
}

/// Reads all over the disk, many at once, and compares each; returns how long the slowest took.
fn read_about(rig: &mut Rig, disk: &Mutex<Vec<u8>>, random: &mut Random, reads: u32, what: &str) -> Duration {
    let depth = rig.queue.geometry().depth;
    let mut asked = vec![None; depth as usize];
    let (mut started, mut slowest) = (0, Duration::ZERO);
    let mut until = Instant::now() + LONG;
    while started < reads || rig.queue.in_flight() > 0 {
        assert!(Instant::now() < until, "{what}: {} reads are still under way", rig.queue.in_flight());
        for tag in 0..depth {
            if asked[tag as usize].is_none() && started < reads {
                let len = (1 + random.below(256) as u32) * BLOCK;
                let offset =
                    random.below((BYTES as u64 - u64::from(len)) / u64::from(BLOCK)) * u64::from(BLOCK);
                asked[tag as usize] = Some((offset, len, Instant::now()));
                rig.push(tag, Op::Read, offset, len);
                started += 1;
            }
        }
        rig.queue.submit(&mut rig.reactor);
        rig.turn();
        for d in std::mem::take(&mut rig.done) {
            let (offset, len, since) = asked[d.tag as usize].take().expect("it was asked for");
            until = Instant::now() + LONG;
            slowest = slowest.max(since.elapsed());
            assert_eq!(d.result, Ok(len), "{what}: {offset}+{len}");
            assert_eq!(
                rig.crc(d.tag, len),
                crc_of(disk, offset, len),
                "{what}: wrong bytes at {offset}+{len}"
            );
        }
    }
    slowest
}

// promise: RHO-2
#[test]
fn a_link_that_is_cut_anywhere_costs_time_and_no_byte() {
    for seed in 1..=4 {
        let disk = disk();
        let fake = Fake::start(disk.clone(), 0);
        let mischief = Mischief { cut_within: Some(3_000_000), ..Mischief::default() };
        let link = Link::to(fake.address, mischief, seed);
        let what = format!("seed {seed}");
        let remote =
            (0..20).find_map(|_| NvmeTcpRemote::open(&options_to(&[link.address], "&queues=2"), 1).ok());
        let remote = remote.expect("one of twenty attempts comes through");
        let mut rig = worker(&remote, 8, 128 << 10);
        read_about(&mut rig, &disk, &mut Random::new(seed), 200, &what);
        assert!(link.done.load(Ordering::Relaxed) > 0, "{what}: nothing was cut");
        let paths = remote.paths();
        assert!(paths[0].reconnects > 0, "{what}: {paths:?}");
        assert!(remote.notes().0.iter().any(|(_, text)| text.contains("connected again")), "{what}");
        link.behave();
        read_about(&mut rig, &disk, &mut Random::new(seed), 20, &what);
        rig.close();
    }
}

// promise: RHO-2
#[test]
fn what_a_link_changes_is_found_by_digests_and_read_again() {
    for seed in 1..=4 {
        let disk = disk();
        let fake = Fake::start(disk.clone(), 0);
        let mischief = Mischief { flip_one_in: Some(2_000_000), ..Mischief::default() };
        let link = Link::to(fake.address, mischief, seed);
        let what = format!("seed {seed}");
        let remote = NvmeTcpRemote::open(&options_to(&[link.address], "&hdgst=1&ddgst=1"), 1).unwrap();
        let mut rig = worker(&remote, 8, 128 << 10);
        read_about(&mut rig, &disk, &mut Random::new(seed), 200, &what);
        assert!(link.done.load(Ordering::Relaxed) > 0, "{what}: nothing was changed");
        let retries: u64 = remote.traffic().iter().map(|t| t.retries.load(Ordering::Relaxed)).sum();
        assert!(retries > 0 || remote.paths()[0].reconnects > 0, "{what}: nobody noticed");
        rig.close();
    }
}

// promise: RHO-3
#[test]
fn a_target_that_is_killed_and_started_again_is_waited_for() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    let port = fake.address.port();
    let remote = NvmeTcpRemote::open(&options(&[&fake], ""), 1).unwrap();
    let mut rig = worker(&remote, 8, 128 << 10);
    let mut random = Random::new(7);
    read_about(&mut rig, &disk, &mut random, 50, "before");
    fake.kill();
    drop(fake);
    for tag in 0..8 {
        rig.push(tag, Op::Read, u64::from(tag) << 17, 128 << 10);
    }
    assert!(rig.finish(Duration::from_millis(300)).is_empty(), "they wait for it");
    let fake = Fake::start(disk.clone(), port);
    let done = rig.finish(LONG);
    assert_eq!(done.len(), 8);
    for d in done {
        assert_eq!(d.result, Ok(128 << 10));
        assert_eq!(rig.crc(d.tag, 128 << 10), crc_of(&disk, u64::from(d.tag) << 17, 128 << 10));
    }
    read_about(&mut rig, &disk, &mut random, 50, "after");
    rig.close();
    drop(fake);
}

// promise: RHO-4, GWY-10
#[test]
fn writes_whose_outcome_is_unknown_fail_and_say_so() {
    const LEN: u32 = 64 << 10;
    for seed in 1..=3 {
        let disk = disk();
        let before = disk.lock().unwrap().clone();
        let fake = Fake::start(disk.clone(), 0);
        let remote = NvmeTcpRemote::open(&options(&[&fake], ""), 1).unwrap();
        let mut rig = worker(&remote, 8, LEN as usize);
        let mut random = Random::new(seed);
        let mut unknown = 0;
        // Ten, and more where each cut came between two writes.
        for round in 0..500u64 {
            if round >= 10 && unknown > 0 {
                break;
            }
            for tag in 0..8u32 {
                let mark = [(1 + round * 8 + u64::from(tag)) as u8; LEN as usize];
                fill_memory(rig.arena.slot(tag as usize), &mark);
                let offset = u64::from(tag) * u64::from(LEN);
                rig.push(tag, Op::Write { durable: true }, offset, LEN);
            }
            rig.queue.submit(&mut rig.reactor);
            for _ in 0..random.below(6) {
                rig.turn();
            }
            if round % 2 == 0 {
                fake.cut();
            }
            let done = rig.finish(LONG);
            assert_eq!(done.len(), 8, "seed {seed}, round {round}");
            for d in done {
                let at = d.tag as usize * LEN as usize;
                let held = disk.lock().unwrap()[at..at + LEN as usize].to_vec();
                let mark = (1 + round * 8 + u64::from(d.tag)) as u8;
                match d.result {
                    Ok(n) => {
                        assert!(n == LEN && held == [mark; LEN as usize], "acknowledged, and not there")
                    }
                    Err(fault) => {
                        unknown += 1;
                        let said = fault.to_string();
                        assert!(said.contains("it may or may not have been carried out"), "{said}");
                        assert_eq!(
                            fault.errno,
                            libc::ECONNRESET,
                            "to hosts, no fault of the medium: {fault}"
                        );
                    }
                }
            }
        }
        assert!(unknown > 0, "seed {seed}: no write was under way at any cut");
        assert_eq!(
            disk.lock().unwrap()[8 * LEN as usize..],
            before[8 * LEN as usize..],
            "elsewhere nothing changed"
        );
        rig.close();
    }
}

/// A write's answer may come before this side knows that all of its data are sent: meanwhile nobody else may get its
/// place on the connection.
#[test]
fn reads_and_writes_mixed_at_depth_each_get_their_own_answer() {
    const LEN: u32 = 16 << 10;
    let places = BYTES as u64 / u64::from(LEN);
    for (seed, more) in [(1, "&queues=1"), (2, "&queues=1&hdgst=1&ddgst=1"), (3, "&queues=2&ddgst=1&bulk=0")]
    {
        let disk = disk();
        let fake = Fake::start(disk.clone(), 0);
        let remote = NvmeTcpRemote::open(&options(&[&fake], more), 1).unwrap();
        let mut rig = worker(&remote, 16, LEN as usize);
        let mut random = Random::new(seed);
        // Of each tag: what it does, and where; places are written and read by one at a time.
        let mut under_way: [Option<(Op, u64)>; 16] = [None; 16];
        let (mut ended, mut until) = (0, Instant::now() + LONG);
        while ended < 2000 {
            for tag in 0..16u32 {
                if under_way[tag as usize].is_some() || random.below(3) == 0 {
                    continue;
                }
                let offset =
                    random.below(places / 16) * 16 * u64::from(LEN) + u64::from(tag) * u64::from(LEN);
                let op = if random.below(2) == 0 { Op::Read } else { Op::Write { durable: false } };
                let mark = [random.below(256) as u8; LEN as usize];
                fill_memory(rig.arena.slot(tag as usize), &mark);
                rig.push(tag, op, offset, LEN);
                under_way[tag as usize] = Some((op, offset));
            }
            rig.queue.submit(&mut rig.reactor);
            rig.turn();
            for done in std::mem::take(&mut rig.done) {
                let (op, offset) = under_way[done.tag as usize].take().expect("it was under way");
                assert_eq!(done.result, Ok(LEN), "seed {seed}: {op:?} at {offset}");
                assert_eq!(
                    rig.crc(done.tag, LEN),
                    crc_of(&disk, offset, LEN),
                    "seed {seed}: {op:?} at {offset}"
                );
                ended += 1;
                until = Instant::now() + LONG;
            }
            assert!(Instant::now() < until, "seed {seed}: after {ended} these are lost: {under_way:?}");
        }
        rig.finish(LONG);
        rig.close();
    }
}

// promise: RHO-4
#[test]
fn writes_are_sent_again_where_that_was_asked_for() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    let remote = NvmeTcpRemote::open(&options(&[&fake], "&replay_writes=1"), 1).unwrap();
    let mut rig = worker(&remote, 8, 64 << 10);
    for round in 0..10u8 {
        for tag in 0..8u32 {
            fill_memory(rig.arena.slot(tag as usize), &[round; 64 << 10]);
            rig.push(tag, Op::Write { durable: false }, u64::from(tag) << 16, 64 << 10);
        }
        rig.queue.submit(&mut rig.reactor);
        rig.turn();
        fake.cut();
        let done = rig.finish(LONG);
        assert!(done.len() == 8 && done.iter().all(|d| d.result == Ok(64 << 10)), "{done:?}");
        assert!(disk.lock().unwrap()[..8 << 16] == [round; 8 << 16]);
    }
    rig.close();
}

// promise: RHO-3
#[test]
fn io_fails_in_time_where_no_path_is_up_and_for_good_where_none_is_left() {
    let disk = disk();
    let fake = Fake::start(disk.clone(), 0);
    let open = |more: &str| NvmeTcpRemote::open(&options(&[&fake], more), 1).unwrap();
    let hopeful = open("&fast_io_fail_tmo=0.5&ctrl_loss_tmo=-1");
    let patient = open("&fast_io_fail_tmo=-1&ctrl_loss_tmo=2");
    let (mut first, mut second) = (worker(&hopeful, 2, 4096), worker(&patient, 2, 4096));
    assert_eq!(first.one(Op::Read, 0, 4096).result, Ok(4096));
    assert_eq!(second.one(Op::Read, 0, 4096).result, Ok(4096));
    fake.kill();
    drop(fake);
    let began = Instant::now();
    let fault = first.one(Op::Read, 0, 4096).result.unwrap_err();
    assert!(fault.to_string().contains("fast_io_fail_tmo"), "{fault}");
    assert!(began.elapsed() >= Duration::from_millis(450), "{:?}", began.elapsed());
    let until = Instant::now() + LONG;
    while patient.paths()[0].state != "lost" {
        assert!(Instant::now() < until, "{:?}", patient.paths());
        std::thread::sleep(Duration::from_millis(50));
    }
    let fault = second.one(Op::Read, 0, 4096).result.unwrap_err();
    assert!(fault.errno == libc::ENODEV && fault.to_string().contains("ctrl_loss_tmo"), "{fault}");
    first.close();
    second.close();
}

// promise: RHO-5
#[test]
fn two_paths_share_the_work_and_one_carries_on_alone() {
    for policy in ["round-robin", "queue-depth"] {
        let disk = disk();
        let (one, other) = (Fake::start(disk.clone(), 0), Fake::start(disk.clone(), 0));
        let remote =
            NvmeTcpRemote::open(&options(&[&one, &other], &format!("&iopolicy={policy}")), 1).unwrap();
        let until = Instant::now() + LONG;
        while remote.paths().iter().any(|p| p.state != "live") {
            assert!(Instant::now() < until, "{:?}", remote.paths());
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rig = worker(&remote, 8, 128 << 10);
        let mut random = Random::new(3);
        loop {
            read_about(&mut rig, &disk, &mut random, 100, policy);
            let traffic = remote.traffic();
            let carried: Vec<u64> = traffic.iter().map(|t| t.commands.load(Ordering::Relaxed)).collect();
            if carried.len() == 2 && carried.iter().all(|n| *n > 10) {
                break;
            }
            // The queue of one may have come a little later.
            assert!(Instant::now() < until, "{policy}: {carried:?}");
        }
        rig.push(0, Op::Read, 0, 4096);
        rig.queue.submit(&mut rig.reactor);
        one.kill();
        read_about_after(&mut rig, &disk, &mut random, policy);
        rig.close();
    }
}

/// Nothing waits for the path that went.
fn read_about_after(rig: &mut Rig, disk: &Mutex<Vec<u8>>, random: &mut Random, what: &str) {
    assert_eq!(rig.finish(LONG).len(), 1);
    let slowest = read_about(rig, disk, random, 100, what);
    assert!(slowest < Duration::from_secs(20), "{what}: {slowest:?}");
}

// promise: RHO-7
#[test]
fn what_cannot_be_opened_says_why() {
    let disk = disk();
    let fake = Fake::start(disk, 0);
    let refusal = |options: &NvmeTcpOptions, workers: u32| {
        NvmeTcpRemote::open(options, workers).unwrap_err().to_string()
    };
    let other = NvmeTcpOptions { nqn: "nqn.2014-08.org.example:other".into(), ..options(&[&fake], "") };
    for (options, workers, found) in [
        (other, 1, "refuses the subsystem name"),
        (options(&[&fake], "&nsid=7"), 1, "namespace 7"),
        (options(&[&fake], "&queues=2"), 3, "3 workers"),
    ] {
        let text = refusal(&options, workers);
        assert!(text.contains(found), "{text}");
    }
    let address = fake.address;
    fake.kill();
    drop(fake);
    let text = refusal(&options_to(&[address], ""), 1);
    // Its listener may be closing still.
    assert!(["refused", "reset", "closed"].iter().any(|word| text.contains(word)), "{text}");
}
