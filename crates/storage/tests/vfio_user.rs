//! The driver of emulated drives against one that is killed, started again, stalled, frozen and wrong: no wrong byte
//! arrives, and nothing waits longer than its time.

use forebay_io::{Arena, Op, Via};
use forebay_model::job::Pages;
use forebay_rigs::drive::{Control, Drive, BLOCK};
use forebay_rigs::worker::{content, Rig, LONG};
use forebay_storage::{Inquiry, Uri, VfioUserDrive, VfioUserOptions};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

fn disk() -> Arc<Mutex<Vec<u8>>> {
    Arc::new(Mutex::new(content(BYTES)))
}

fn options(drive: &Drive, more: &str) -> VfioUserOptions {
    let uri = drive.uri(&format!("reconnect_delay=0.1{more}"));
    VfioUserOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone()
}

fn open(drive: &Drive, more: &str) -> Arc<VfioUserDrive> {
    VfioUserDrive::open(&options(drive, more), 1).unwrap_or_else(|e| panic!("{e}"))
}

fn worker(drive: &Arc<VfioUserDrive>, depth: u32, slot_bytes: usize, shared: bool) -> Rig {
    let lend = |arena: &Arena| drive.lend(arena).unwrap();
    Rig::open((depth, slot_bytes, shared), lend, |needs, reactor| drive.queue(needs, reactor))
}

fn crc_of(disk: &Mutex<Vec<u8>>, offset: u64, len: u32) -> u32 {
    crc32c::crc32c(&disk.lock().unwrap()[offset as usize..][..len as usize])
}

// promise: VUD-1
#[test]
fn what_is_read_is_what_is_there_whatever_tells_of_it() {
    for (more, plain, shared) in [
        ("", false, true),
        ("&queues=3&depth=2", false, true),
        ("&spin_us=100000", false, true),
        ("", true, true),
        ("&spin_us=200", true, true),
        ("", false, false),
        ("&queues=2", true, false),
    ] {
        let disk = disk();
        let control = Control { plain_doorbells: AtomicBool::new(plain), ..Control::default() };
        let device = Drive::with(disk.clone(), control);
        let drive = open(&device, more);
        assert_eq!((drive.bytes(), drive.block_bytes()), (BYTES as u64, BLOCK));
        let mut rig = worker(&drive, 8, 512 << 10, shared);
        for (offset, len) in
            [(0u64, 512u32), (512, 4096), (4096, 130_048), (1 << 19, 1 << 19), (BYTES as u64 - 512, 512)]
        {
            for tag in 0..8 {
                rig.push(tag, Op::Read, offset, len);
            }
            let done = rig.finish(LONG);
            assert_eq!(done.len(), 8, "{more} {plain} {shared}");
            for d in done {
                assert_eq!(d.result, Ok(len), "{more} {plain} {shared} {offset}+{len}");
                assert_eq!(d.via, if shared { Via::Direct } else { Via::Staged }, "{more} {offset}+{len}");
                assert_eq!(
                    rig.crc(d.tag, len),
                    crc_of(&disk, offset, len),
                    "{more} {plain} {shared} {offset}+{len}"
                );
            }
        }
        // Behind the end there is nothing.
        assert_eq!(rig.one(Op::Read, BYTES as u64 - 512, 1024).result, Ok(512));
        assert_eq!(rig.one(Op::Read, BYTES as u64, 1024).result, Ok(0));
        rig.close();
        let report = drive.report();
        assert!(report.queues.iter().map(|q| q.commands).sum::<u64>() > 40, "{report:?}");
    }
}

// promise: VUD-1
#[test]
fn what_is_written_is_there_and_what_is_deallocated_is_not() {
    for shared in [true, false] {
        let disk = disk();
        let device = Drive::start(disk.clone());
        let mut rig = worker(&open(&device, ""), 2, 256 << 10, shared);
        let source = rig.one(Op::Read, 0, 256 << 10);
        assert_eq!(source.result, Ok(256 << 10));
        assert_eq!(rig.one(Op::Write { durable: true }, 512 << 10, 256 << 10).result, Ok(256 << 10));
        assert_eq!(crc_of(&disk, 512 << 10, 256 << 10), crc_of(&disk, 0, 256 << 10));
        assert!(rig.one(Op::Flush, 0, 0).result.is_ok());
        assert_eq!(rig.one(Op::Deallocate, 4096, 8192).result, Ok(8192));
        assert_eq!(rig.one(Op::WriteZeroes, 0, 512).result, Ok(512));
        let disk = disk.lock().unwrap();
        assert!(disk[4096..12288].iter().chain(&disk[..512]).all(|b| *b == 0));
        assert_eq!(disk[512..4096], content(BYTES)[512..4096]);
        rig.close();
    }
}

// promise: VUD-2
#[test]
fn the_next_worker_gets_the_queues_of_the_last_and_its_memory_goes() {
    let disk = disk();
    let device = Drive::start(disk.clone());
    let drive = open(&device, "&queues=2");
    for round in 1..=3u64 {
        let mut rig = worker(&drive, 4, 8192, true);
        for tag in 0..4 {
            rig.push(tag, Op::Read, u64::from(tag) * 8192, 8192);
        }
        for d in rig.finish(LONG) {
            assert_eq!((d.result, d.via), (Ok(8192), Via::Direct));
            assert_eq!(rig.crc(d.tag, 8192), crc_of(&disk, u64::from(d.tag) * 8192, 8192));
        }
        rig.close();
        assert_eq!(device.control.unmaps.load(Ordering::Relaxed), round, "the slots are mapped no more");
    }
    assert_eq!(device.control.connections.load(Ordering::Relaxed), 1);
}

// promise: VUD-3
#[test]
fn reads_go_on_where_a_killed_drive_comes_back() {
    let disk = disk();
    let mut device = Drive::start(disk.clone());
    let drive = open(&device, "&queues=2");
    let mut rig = worker(&drive, 4, 65536, true);
    device.control.stalls.store(2, Ordering::Relaxed);
    for tag in 0..4 {
        rig.push(tag, Op::Read, u64::from(tag) * 65536, 65536);
    }
    assert!(rig.finish(Duration::from_millis(300)).len() <= 2, "two are stalled");
    device.control.stalls.store(0, Ordering::Relaxed);
    device.restart(disk.clone());
    let done = rig.finish(LONG);
    assert!(done.len() >= 2);
    for d in done {
        assert_eq!(d.result, Ok(65536));
        assert_eq!(rig.crc(d.tag, 65536), crc_of(&disk, u64::from(d.tag) * 65536, 65536));
    }
    let path = &drive.report().paths[0];
    assert_eq!((path.state.as_str(), path.reconnects), ("live", 1));
    assert_eq!(rig.one(Op::Read, 4096, 4096).via, Via::Direct, "its slots were mapped again");
    rig.close();
}

// promise: SNP-9, VUD-3
#[test]
fn a_write_that_a_killed_drive_had_fails_and_says_why() {
    let disk = disk();
    let mut device = Drive::start(disk.clone());
    let mut rig = worker(&open(&device, ""), 1, 4096, true);
    device.control.freeze();
    rig.push(0, Op::Write { durable: false }, 0, 4096);
    assert!(rig.finish(Duration::from_millis(100)).is_empty());
    device.restart(disk);
    device.control.thaw();
    let done = rig.finish(LONG);
    let fault = done[0].result.as_ref().unwrap_err();
    assert!(fault.to_string().contains("replay_writes"), "{fault}");
    assert_eq!(fault.errno, libc::ECONNRESET, "to hosts, no fault of the medium: {fault}");
    assert_eq!(rig.one(Op::Write { durable: false }, 0, 4096).result, Ok(4096));
    rig.close();
}

// promise: VUD-3
#[test]
fn a_drive_that_is_gone_for_good_fails_what_waits() {
    let disk = disk();
    let mut device = Drive::start(disk.clone());
    let mut rig = worker(&open(&device, "&ctrl_loss_tmo=0"), 1, 4096, true);
    assert_eq!(rig.one(Op::Read, 0, 4096).result, Ok(4096));
    device.kill();
    let fault = rig.one(Op::Read, 0, 4096).result.unwrap_err();
    assert_eq!(fault.errno, libc::ENODEV, "{fault}");
    rig.close();
    let mut device = Drive::start(disk);
    let mut rig = worker(&open(&device, "&fast_io_fail_tmo=0.3"), 1, 4096, true);
    device.kill();
    let fault = rig.one(Op::Read, 0, 4096).result.unwrap_err();
    assert_eq!(fault.errno, libc::EHOSTUNREACH, "{fault}");
    rig.close();
}

// promise: VUD-4
#[test]
fn a_read_that_is_given_up_on_is_aborted() {
    let disk = disk();
    let device = Drive::start(disk.clone());
    let drive = open(&device, "");
    let mut rig = worker(&drive, 2, 4096, true);
    device.control.stalls.store(1, Ordering::Relaxed);
    rig.push(0, Op::Read, 0, 4096);
    assert!(rig.finish_when(|| device.control.stalls.load(Ordering::Relaxed) == 0).is_empty());
    let asked = Instant::now();
    rig.queue.abandon(0, &mut rig.reactor);
    let done = rig.finish(LONG);
    // Abort has half a second for it.
    let in_time = asked.elapsed() < Duration::from_millis(450);
    assert_eq!(done[0].result.as_ref().unwrap_err().errno, libc::ECANCELED);
    assert_eq!(rig.one(Op::Read, 0, 4096).result, Ok(4096));
    let connections = device.control.connections.load(Ordering::Relaxed);
    assert!(connections == 1 || !in_time, "{connections}: a reset");
    rig.close();
}

// promise: VUD-4
#[test]
fn a_read_that_takes_too_long_costs_a_reset_and_is_read_again() {
    let disk = disk();
    let device = Drive::start(disk.clone());
    let drive = open(&device, "&io_timeout=1");
    let mut rig = worker(&drive, 2, 4096, true);
    device.control.stalls.store(1, Ordering::Relaxed);
    assert_eq!(rig.one(Op::Read, 8192, 4096).result, Ok(4096));
    assert_eq!(rig.crc(0, 4096), crc_of(&disk, 8192, 4096));
    let report = drive.report();
    assert!(report.paths[0].reconnects > 0, "{report:?}");
    assert!(report.events.iter().any(|e| e.text.contains("io_timeout")), "{report:?}");
    rig.close();
}

// promise: VUD-4
#[test]
fn a_drive_that_answers_nothing_fails_what_it_has_in_time() {
    let disk = disk();
    let device = Drive::start(disk);
    let drive = open(&device, "&io_timeout=1");
    let mut rig = worker(&drive, 1, 4096, true);
    assert_eq!(rig.one(Op::Read, 0, 4096).result, Ok(4096));
    device.control.freeze();
    let fault = rig.one(Op::Read, 0, 4096).result.unwrap_err();
    assert!(fault.to_string().contains("stopped answering"), "{fault}");
    device.control.thaw();
    assert_eq!(rig.one(Op::Read, 0, 4096).result, Ok(4096));
    rig.close();
}

// promise: VUD-5
#[test]
fn a_drive_that_is_identified_says_what_it_grants_and_leaves_it_free() {
    let device = Drive::start(disk());
    let inquiry = Inquiry { host_nqn: None, timeout: LONG };
    let ask = |more: &str, one: bool| Uri::parse(&device.uri(more)).unwrap().identify(&inquiry, one).unwrap();
    for one in [false, true] {
        let report = ask("", one).unwrap();
        assert_eq!((report.controller.model.as_str(), report.controller.queues), ("drive", 8));
        let found: Vec<_> = report.namespaces.iter().map(|n| (n.nsid, n.blocks)).collect();
        assert_eq!(found, [(1, BYTES as u64 / u64::from(BLOCK))]);
    }
    assert!(ask("nsid=2", true).is_err(), "there is no such namespace");
    let mut rig = worker(&open(&device, ""), 1, 4096, true);
    assert_eq!(rig.one(Op::Read, 0, 4096).result, Ok(4096));
    rig.close();
}

// promise: VUD-5
#[test]
fn memory_that_the_drive_refuses_is_named() {
    let control = Control { map_bytes_max: AtomicU64::new(4 << 20), ..Control::default() };
    let device = Drive::with(disk(), control);
    let drive = open(&device, "");
    let arena = Arena::shared(8, 1 << 20, Pages::Small).unwrap();
    let Err(refused) = drive.lend(&arena) else { panic!("it was mapped") };
    assert!(refused.to_string().contains("8388608 bytes"), "{refused}");
}

// promise: VUD-5
#[test]
fn what_is_no_drive_is_an_error_and_no_more() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("s");
    let options = VfioUserOptions::new(socket.clone());
    assert!(VfioUserDrive::open(&options, 1).is_err(), "nobody is there");
    let listener = UnixListener::bind(&socket).unwrap();
    let answers: [&[u8]; 6] = [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[0xff; 64],
        &[1, 0, 1, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 1, 0, 255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 1, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0],
    ];
    let serving = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(answer);
        }
    });
    for _ in answers {
        let error = VfioUserDrive::open(&options, 1).unwrap_err();
        assert!(error.to_string().contains("vfio-user:"), "{error}");
    }
    serving.join().unwrap();
}
