//! A gateway's place taken by the next one while our own driver reads and writes: no byte is wrong, no completion lost or
//! doubled, no connection seen to end. What can't be taken over goes on where it was.

use forebay_io::{memlock_limit, Op};
use forebay_rigs::worker::{content, Rig, LONG};
use forebay_serve::{
    call_gateway, GatewayConfig, GatewayController, GatewayNamespace, GatewayService, GatewaySubsystem,
    HandoverLine,
};
use forebay_storage::{Uri, VfioUserDrive, VfioUserOptions};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first half is read, the second half is written.
const HALF: usize = 4 << 20;
const BLOCK: usize = 16 << 10;
const DEPTH: u32 = 8;

struct Home {
    _dir: tempfile::TempDir,
    file: PathBuf,
    socket: PathBuf,
    rpc: PathBuf,
}

impl Home {
    fn new() -> Home {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let home = Home { file: at("f"), socket: at("s"), rpc: at("rpc"), _dir: dir };
        std::fs::write(&home.file, content(2 * HALF)).unwrap();
        home
    }

    fn config(&self, more: impl FnOnce(&mut GatewayNamespace, &mut GatewayController)) -> GatewayConfig {
        let mut namespace = GatewayNamespace {
            nsid: 1,
            source: self.file.display().to_string(),
            writable: true,
            ..GatewayNamespace::default()
        };
        let mut controller = GatewayController {
            name: "drive".into(),
            socket: Some(self.socket.display().to_string()),
            ..GatewayController::default()
        };
        more(&mut namespace, &mut controller);
        GatewayConfig {
            rpc: Some(self.rpc.display().to_string()),
            threads: 2,
            subsystems: vec![GatewaySubsystem {
                nqn: "nqn.2026-11.io.example:gateway".into(),
                namespaces: vec![namespace],
                controllers: vec![controller],
                ..GatewaySubsystem::default()
            }],
            ..GatewayConfig::default()
        }
    }

    fn drive(&self, more: &str) -> Arc<VfioUserDrive> {
        let uri = format!("vfio-user:{}?reconnect_delay=0.1&io_timeout=-1{more}", self.socket.display());
        let options = VfioUserOptions::from_uri(&Uri::parse(&uri).unwrap()).unwrap().clone();
        VfioUserDrive::open(&options, 1).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Two gateways at a time, each with a ring for each interrupt, don't fit below a limit of 64 KiB.
fn little_to_lock() -> bool {
    const NEEDED: u64 = 1 << 20;
    let little = memlock_limit().filter(|limit| *limit < NEEDED);
    little
        .inspect(|n| eprintln!("SKIPPED: {n} bytes may be locked for io_uring: ulimit -l {}", NEEDED >> 10))
        .is_some()
}

fn log(entry: &forebay_serve::LogEntry) {
    eprintln!("{}", entry.to_line());
}

fn start(config: &GatewayConfig) -> GatewayService {
    GatewayService::start(config.clone(), None, Box::new(log)).unwrap_or_else(|e| panic!("{e}"))
}

/// On a busy machine the last commands of a gateway may take longer than it gives them: then it stays.
fn take_over(config: &GatewayConfig) -> GatewayService {
    let until = Instant::now() + LONG;
    loop {
        match GatewayService::take_over(config.clone(), None, Box::new(log)) {
            Ok(next) => return next,
            Err(e) => assert!(e.found.contains("under way") && Instant::now() < until, "{e}"),
        }
    }
}

fn in_flight(service: &GatewayService) -> u32 {
    service.stats().controllers[0].queues.iter().filter(|q| q.qid > 0).map(|q| q.in_flight).sum()
}

fn worker(drive: &Arc<VfioUserDrive>) -> Rig {
    let slots = (DEPTH, BLOCK, true);
    Rig::open(slots, |arena| drive.lend(arena).unwrap(), |needs, reactor| drive.queue(needs, reactor))
}

/// Reads and writes until it is told to stop: each block that is read is compared, and written to its place in the other
/// half. Returns how many were.
fn load(
    home: &Home,
    drive: Arc<VfioUserDrive>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> JoinHandle<Vec<bool>> {
    let wanted = content(2 * HALF);
    let file = home.file.clone();
    std::thread::spawn(move || {
        let mut rig = worker(&drive);
        let mut copied = vec![false; HALF / BLOCK];
        let mut next = 0usize;
        while !stop.load(Ordering::Relaxed) {
            let places: Vec<usize> = (0..DEPTH as usize).map(|n| (next + n * 37) % copied.len()).collect();
            next = (next + 7) % copied.len();
            for (tag, place) in (0..).zip(&places) {
                rig.push(tag, Op::Read, (place * BLOCK) as u64, BLOCK as u32);
            }
            check(&mut rig, &places, |tag, rig, place| {
                let crc = crc32c::crc32c(&wanted[place * BLOCK..][..BLOCK]);
                assert_eq!(rig.crc(tag, BLOCK as u32), crc, "block {place}");
            });
            for (tag, place) in (0..).zip(&places) {
                rig.push(tag, Op::Write { durable: false }, (HALF + place * BLOCK) as u64, BLOCK as u32);
            }
            check(&mut rig, &places, |_, _, place| copied[place] = true);
            done.fetch_add(2 * u64::from(DEPTH), Ordering::Relaxed);
        }
        rig.close();
        let found = std::fs::read(file).unwrap();
        for place in (0..copied.len()).filter(|place| copied[*place]) {
            let at = place * BLOCK;
            assert!(found[HALF + at..][..BLOCK] == wanted[at..][..BLOCK], "block {place} was written so");
        }
        copied
    })
}

/// All that is in flight ends well, each once.
fn check(rig: &mut Rig, places: &[usize], mut each: impl FnMut(u32, &Rig, usize)) {
    let done = rig.finish(LONG);
    assert_eq!(done.len(), places.len(), "none is lost, none comes twice");
    for d in done {
        assert_eq!(d.result, Ok(BLOCK as u32), "block {}", places[d.tag as usize]);
        each(d.tag, rig, places[d.tag as usize]);
    }
}

/// Waits until so many more are done.
fn progress(done: &AtomicU64, more: u64) {
    let (from, until) = (done.load(Ordering::Relaxed), Instant::now() + LONG);
    while done.load(Ordering::Relaxed) < from + more {
        assert!(Instant::now() < until, "nothing moves");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn reads(service: &GatewayService) -> u64 {
    service.stats().controllers[0].queues.iter().map(|q| q.counts.reads).sum()
}

// promise: SNP-7
#[test]
fn the_next_gateway_takes_over_under_load_and_no_host_notices() {
    if little_to_lock() {
        return;
    }
    for (poll, more) in [(false, "&queues=3"), (true, "&queues=2&spin_us=100")] {
        let home = Home::new();
        let config = home.config(|_, controller| controller.poll = poll);
        let mut service = start(&config);
        let drive = home.drive(more);
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let load = load(&home, drive.clone(), stop.clone(), done.clone());
        progress(&done, 64);
        for _ in 0..6 {
            let before = reads(&service);
            let next = take_over(&config);
            assert!(service.has_left() && !next.has_left());
            assert!(service.stats().controllers.is_empty(), "there is nothing left here");
            drop(std::mem::replace(&mut service, next));
            progress(&done, 64);
            assert!(home.socket.exists() && home.rpc.exists(), "they are the next one's");
            assert!(reads(&service) > before, "statistics go on");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap().iter().filter(|copied| **copied).count() > 64);
        let stats = service.stats();
        let one = &stats.controllers[0];
        assert_eq!((one.connections, one.protocol_errors, one.staged_bytes), (1, 0, 0));
        assert_eq!(drive.report().paths[0].reconnects, 0, "it saw no connection end");
        // The admin queue, its interrupt and memory that comes and goes are there, too.
        worker(&drive).close();
        drop(drive);
        service.stop();
        assert!(!home.socket.exists() && !home.rpc.exists());
    }
}

// promise: SNP-7
#[test]
fn what_a_stalled_source_has_of_reads_is_read_again_by_the_next_gateway() {
    if little_to_lock() {
        return;
    }
    let home = Home::new();
    // Every other read never ends, unless it is given up on. Each process draws anew: of the first eight three are stalled,
    // of the first three none.
    let config = home.config(|namespace, _| namespace.faults = Some("seed=21,stall=0.5".into()));
    let mut service = start(&config);
    let drive = home.drive("");
    let mut rig = worker(&drive);
    let wanted = content(2 * HALF);
    (0..DEPTH).for_each(|tag| rig.push(tag, Op::Read, u64::from(tag) * BLOCK as u64, BLOCK as u32));
    let mut ended = Vec::new();
    let until = Instant::now() + LONG;
    while ended.len() < DEPTH as usize - 3 {
        assert!(Instant::now() < until, "{ended:?}");
        ended.extend(rig.finish(Duration::from_millis(10)));
    }
    assert!(ended.len() < DEPTH as usize, "some are stalled");
    let next = take_over(&config);
    drop(std::mem::replace(&mut service, next));
    ended.extend(rig.finish(LONG));
    assert_eq!(ended.len(), DEPTH as usize);
    for d in ended {
        assert_eq!(d.result, Ok(BLOCK as u32));
        let crc = crc32c::crc32c(&wanted[d.tag as usize * BLOCK..][..BLOCK]);
        assert_eq!(rig.crc(d.tag, BLOCK as u32), crc);
    }
    assert_eq!(drive.report().paths[0].reconnects, 0);
    rig.close();
    drop(drive);
    service.stop();
}

// promise: SNP-8
#[test]
fn a_write_that_does_not_end_keeps_the_gateway_where_it_is() {
    let home = Home::new();
    let config = home.config(|namespace, _| namespace.faults = Some("stall=1".into()));
    let service = start(&config);
    let drive = home.drive("");
    let mut rig = worker(&drive);
    rig.push(0, Op::Write { durable: false }, 0, BLOCK as u32);
    assert!(rig.finish_when(|| in_flight(&service) == 1).is_empty());
    let refused =
        GatewayService::take_over(config, None, Box::new(log)).err().expect("it must not be done twice");
    assert!(refused.found.contains("writes"), "{refused}");
    assert!(!service.has_left());
    // It ends where it began: the gateway that has it hears its abort.
    rig.queue.abandon(0, &mut rig.reactor);
    let ended = rig.finish(LONG);
    assert_eq!(ended[0].result.as_ref().unwrap_err().errno, libc::ECANCELED);
    assert_eq!(drive.report().paths[0].reconnects, 0);
    rig.close();
    drop(drive);
    service.stop();
}

// promise: SNP-8
#[test]
fn what_cannot_be_taken_over_goes_on() {
    if little_to_lock() {
        return;
    }
    let home = Home::new();
    let config = home.config(|_, _| {});
    let mut service = start(&config);
    let drive = home.drive("");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = load(&home, drive.clone(), stop.clone(), done.clone());
    progress(&done, 16);

    // Another format: nothing is given, and nobody is connected to.
    let listener = UnixListener::bind(home.rpc.with_extension("next")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let refused = asked(&home.rpc, &home.rpc.with_extension("next"), 999).unwrap_err();
    assert!(refused.asked.contains("999") && refused.found.contains("format 1"), "{refused}");
    assert!(listener.accept().is_err());
    // Nobody listens there.
    asked(&home.rpc, &home.file, 1).unwrap_err();
    // One that goes away when it has heard all.
    listener.set_nonblocking(false).unwrap();
    let curious = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = HandoverLine::new(stream, LONG).unwrap();
        line.receive().unwrap();
        line.send(&forebay_serve::HandoverMessage::Opened, &[]).unwrap();
        let (state, _) = line.receive().unwrap();
        // A seed for fuzz/seeds/snap_state.
        if let Some(path) = std::env::var_os("FOREBAY_STATE_OUT") {
            std::fs::write(path, serde_json::to_vec(&state).unwrap()).unwrap();
        }
    });
    asked(&home.rpc, &home.rpc.with_extension("next"), 1).unwrap_err();
    curious.join().unwrap();
    std::fs::remove_file(home.rpc.with_extension("next")).unwrap();
    progress(&done, 64);
    // One that can't have the source.
    let aside = home.file.with_extension("aside");
    std::fs::rename(&home.file, &aside).unwrap();
    GatewayService::take_over(config.clone(), None, Box::new(log)).err().expect("the source is not there");
    std::fs::rename(&aside, &home.file).unwrap();
    progress(&done, 64);

    assert!(!service.has_left());
    let next = take_over(&config);
    drop(std::mem::replace(&mut service, next));
    progress(&done, 64);
    stop.store(true, Ordering::Relaxed);
    load.join().unwrap();
    assert_eq!(drive.report().paths[0].reconnects, 0);
    drop(drive);
    service.stop();
}

fn asked(rpc: &Path, socket: &Path, format: u64) -> Result<serde_json::Value, forebay_model::Error> {
    let params = serde_json::json!({ "socket": socket.display().to_string(), "format": format });
    call_gateway(rpc, "snap_hand_over", params.as_object().unwrap())
}

// promise: SNP-8
#[test]
fn without_a_gateway_there_taking_over_is_a_start() {
    let home = Home::new();
    let config = home.config(|_, _| {});
    let service =
        GatewayService::take_over(config.clone(), None, Box::new(log)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(service.stats().controllers.len(), 1);
    service.stop();
    let off = GatewayConfig { rpc: Some("off".into()), ..config };
    let refused = GatewayService::take_over(off, None, Box::new(log)).err().expect("nobody can be asked");
    assert!(refused.found.contains("socket"), "{refused}");
}

/// A suspended drive stays so, limits go on, and the file of a writable namespace stays locked throughout.
// promise: SNP-7
#[test]
fn what_rpcs_changed_goes_along() {
    let home = Home::new();
    let config = home.config(|_, _| {});
    let first = start(&config);
    let call = |verb: &str, params: serde_json::Value| {
        call_gateway(&home.rpc, verb, params.as_object().unwrap()).unwrap_or_else(|e| panic!("{e}"))
    };
    let nqn = "nqn.2026-11.io.example:gateway";
    call("nvme_namespace_set_qos", serde_json::json!({ "nqn": nqn, "nsid": 1, "iops": 5000 }));
    call("nvme_controller_suspend", serde_json::json!({ "ctrl": "drive" }));
    let second = take_over(&config);
    drop(first);
    let reported = call("snap_config_get", serde_json::json!({}));
    assert_eq!(reported["subsystems"][0]["namespaces"][0]["qos"]["iops"], 5000);
    let drives = call("nvme_controller_list", serde_json::json!({}));
    assert_eq!(drives[0]["state"], "suspended", "{drives}");
    call("nvme_controller_resume", serde_json::json!({ "ctrl": "drive" }));
    let own = Home {
        rpc: home.rpc.with_extension("other"),
        socket: home.socket.with_extension("other"),
        ..Home::new()
    };
    let other = GatewayConfig {
        rpc: Some(own.rpc.display().to_string()),
        ..home.config(|_, c| c.socket = Some(own.socket.display().to_string()))
    };
    let refused =
        GatewayService::start(other, None, Box::new(log)).err().expect("two may not write to one file");
    assert!(refused.found.contains("locked"), "{refused}");
    let drive = home.drive("");
    let mut rig = worker(&drive);
    assert_eq!(rig.one(Op::Read, 0, BLOCK as u32).result, Ok(BLOCK as u32));
    rig.close();
    drop(drive);
    second.stop();
}
