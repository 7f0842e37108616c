//! All of it without a network: a session, two ends, a controller and a disk of bytes, over links that cut and break.

mod served;

use super::link::{content, Host, Random};
use forebay_nvme::controller::connect::Ids;
use forebay_nvme::controller::subsystem::{HostSettings, Hosts, Kind, Limits, Namespace, Optimal, Subsystem};
use forebay_nvme::host::{self as session, Action, Event, RequestId, Session};
use forebay_nvme::nvm::{self, Op};
use forebay_nvme::transport::tcp::host::{Data, Options};
use served::{Role, Served, TargetShared};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const NQN: &str = "nqn.2014-08.org.example:disks";
const BLOCK: usize = 512;
const REGION: usize = 16 << 10;
const REGIONS: usize = 24;

fn subsystem() -> Subsystem {
    let namespace = Namespace {
        block_bytes: BLOCK as u32,
        blocks: (REGIONS * REGION / BLOCK) as u64,
        read_only: false,
        volatile_write_cache: false,
        deallocate: false,
        uuid: Some([7; 16]),
        nguid: None,
        eui64: None,
        ana_group: 1,
        optimal: Optimal::default(),
    };
    Subsystem {
        nqn: NQN.into(),
        serial: "F0REBAY".into(),
        model: "Forebay".into(),
        firmware: "1.0".into(),
        kind: Kind::Nvm { namespaces: BTreeMap::from([(1, namespace)]), ana: BTreeMap::new() },
        hosts: Hosts::Any(HostSettings::default()),
        limits: Limits { in_capsule_bytes: 8192, ..Limits::default() },
    }
}

/// One connection with its link.
struct Pipe {
    host: Host,
    served: Served,
    to_target: Vec<u8>,
    to_host: Vec<u8>,
}

impl Pipe {
    fn new(digests: bool, depth: u16, bulk: usize) -> Pipe {
        let mut host =
            Host::new(Options { header_digest: digests, data_digest: digests, depth, r2ts: 1, bulk });
        host.end.set_in_capsule_max(8192);
        Pipe { host, served: Served::new(), to_target: vec![], to_host: vec![] }
    }

    /// Some bytes move, some commands are carried out. False: nothing was left to do.
    fn turn(&mut self, shared: &mut TargetShared, random: &mut Random) -> bool {
        let mut moved = false;
        self.to_target.extend(self.host.sends());
        if !self.to_target.is_empty() {
            let n = 1 + random.below(self.to_target.len());
            let n = self.served.receives(&self.to_target[..n], shared);
            self.to_target.drain(..n);
            moved = true;
        }
        while !self.served.ready.is_empty() && (random.below(3) > 0 || !moved) {
            self.served.work(random.below(1 << 16), shared);
            moved = true;
        }
        self.served.effects(shared);
        self.to_host.extend(self.served.sends());
        if !self.to_host.is_empty() {
            let n = 1 + random.below(self.to_host.len());
            let n = self.host.receives(&self.to_host[..n]).expect("no fatal error");
            self.to_host.drain(..n);
            moved = true;
        }
        moved
    }
}

/// A host with a controller that is up.
struct Association {
    shared: TargetShared,
    session: Session,
    admin: Pipe,
    request_ids: HashMap<u16, RequestId>,
    random: Random,
    digests: bool,
}

impl Association {
    fn new(digests: bool, seed: u64) -> Association {
        let shared = TargetShared {
            subsystem: Arc::new(subsystem()),
            ids: Ids::new(1..=100),
            controllers: BTreeMap::new(),
            disk: vec![0; REGIONS * REGION],
            now_ms: 1000,
        };
        let options = session::Options {
            host_nqn: "nqn.2014-08.org.example:host".into(),
            host_id: [9; 16],
            subsystem_nqn: NQN.into(),
            queues: 1,
            queue_entries: 17,
            keep_alive_ms: 0,
            timeout_ms: 1 << 30,
            namespace: None,
        };
        let session = Session::new(options, shared.now_ms);
        let admin = Pipe::new(digests, session::ADMIN_ENTRIES - 1, 4096);
        let random = Random::new(seed);
        let mut association =
            Association { shared, session, admin, request_ids: HashMap::new(), random, digests };
        assert_eq!(association.until_event(), Event::Ready);
        association
    }

    /// The next thing that the session tells of.
    fn until_event(&mut self) -> Event {
        for _ in 0..1_000_000 {
            match self.session.next(self.shared.now_ms).expect("a session that goes well") {
                Action::Event(event) => return event,
                Action::Submit(request) => self.submit(request),
                Action::Authenticate { .. } => panic!("nobody asked for that"),
                Action::Wait { until_ms } => {
                    if !self.admin.turn(&mut self.shared, &mut self.random) {
                        self.shared.now_ms = until_ms;
                    }
                    self.reap();
                }
            }
        }
        panic!("nothing happens");
    }

    fn submit(&mut self, request: session::Request) {
        let (data, memory) = match request.data {
            session::Data::None => (Data::None, vec![]),
            session::Data::In(len) => (Data::In { len }, vec![0; len as usize]),
            session::Data::Out(bytes) => (Data::Out { len: bytes.len() as u32 }, bytes),
        };
        let command = self.admin.host.submit(request.sqe, data, memory).expect("room");
        self.request_ids.insert(command.0, request.request_id);
    }

    fn reap(&mut self) {
        for done in self.admin.host.done.drain(..) {
            let request_id = self.request_ids.remove(&done.command.0).expect("submitted");
            let data = &done.data[..done.received as usize];
            self.session.completed(request_id, &done.cqe, data, self.shared.now_ms);
        }
    }

    /// An I/O queue that is connected.
    fn io_queue(&mut self, bulk: usize) -> Pipe {
        let request = self.session.connect_io(1).expect("a queue that was granted");
        let session::Data::Out(data) = request.data else { panic!("Connect has data") };
        let mut pipe = Pipe::new(self.digests, self.session.controller().queue_entries - 1, bulk);
        let len = data.len() as u32;
        pipe.host.submit(request.sqe, Data::Out { len }, data).expect("room");
        while pipe.host.done.is_empty() {
            pipe.turn(&mut self.shared, &mut self.random);
        }
        let done = pipe.host.done.remove(0);
        assert_eq!(self.session.connected_io(1, &done.cqe), Ok(None));
        pipe.host.end.set_in_capsule_max(self.session.controller().in_capsule_bytes);
        pipe
    }

    /// The link of the I/O queue is cut. What the target had received it may still carry out, or not.
    fn cut(&mut self, mut pipe: Pipe) {
        while !pipe.served.ready.is_empty() && self.random.below(2) == 0 {
            pipe.served.work(self.random.below(1 << 16), &mut self.shared);
        }
        let Role::Io(id, qid) = pipe.served.role else { panic!("an I/O queue") };
        self.shared.controllers.get_mut(&id).expect("its controller").disconnect_io(qid);
    }
}

/// Possible content of a region of the disk: what was acknowledged last, or what was written since.
#[derive(Clone)]
struct Region {
    may_hold: Vec<Vec<u8>>,
}

/// Write under way on a region: its range, and its content.
struct Job {
    region: usize,
    range: std::ops::Range<usize>,
    op: Op,
    after: Vec<u8>,
}

/// A command at random on a free region.
fn start(pipe: &mut Pipe, random: &mut Random, regions: &mut [Region], jobs: &mut HashMap<u16, Job>) -> bool {
    let region = random.below(REGIONS);
    if jobs.values().any(|job| job.region == region) || pipe.host.end.in_flight() == 16 {
        return false;
    }
    let first = random.below(REGION / BLOCK);
    let blocks = 1 + random.below(REGION / BLOCK - first);
    let range = first * BLOCK..(first + blocks) * BLOCK;
    let (slba, len) = ((region * REGION / BLOCK + first) as u64, (blocks * BLOCK) as u32);
    let known = &regions[region].may_hold;
    let (op, sqe, data, memory) = match random.below(6) {
        0 | 1 => (Op::Read, nvm::read(1, slba, blocks as u32), Data::In { len }, vec![0; len as usize]),
        2 if known.len() == 1 => {
            let expected = known[0][range.clone()].to_vec();
            (Op::Compare, nvm::compare(1, slba, blocks as u32), Data::Out { len }, expected)
        }
        3 => {
            let op = Op::WriteZeroes { deallocate: false };
            (op, nvm::write_zeroes(1, slba, blocks as u32, false, false), Data::None, vec![])
        }
        4 => (Op::Flush, nvm::flush(1), Data::None, vec![]),
        _ => {
            let bytes = content(random.next() as u32, len);
            (Op::Write, nvm::write(1, slba, blocks as u32, false), Data::Out { len }, bytes)
        }
    };
    // Old content isn't known for sure behind a cut: then the whole region is written anew first.
    let known = known.len() == 1;
    if !known && matches!(op, Op::Write | Op::WriteZeroes { .. }) {
        return false;
    }
    let mut after = regions[region].may_hold[0].clone();
    match op {
        Op::Write => after[range.clone()].copy_from_slice(&memory),
        Op::WriteZeroes { .. } => after[range.clone()].fill(0),
        _ => {}
    }
    if after != regions[region].may_hold[0] {
        regions[region].may_hold.push(after.clone());
    }
    let command = pipe.host.submit(sqe, data, memory).expect("room");
    jobs.insert(command.0, Job { region, range, op, after });
    true
}

/// Checks what was completed against what the disk may hold.
fn check(pipe: &mut Pipe, regions: &mut [Region], jobs: &mut HashMap<u16, Job>) -> usize {
    let done: Vec<_> = pipe.host.done.drain(..).collect();
    for done in &done {
        let job = jobs.remove(&done.command.0).expect("submitted");
        assert!(done.cqe.status().is_success(), "{:?} {:?}", job.op, done.cqe.status());
        let region = &mut regions[job.region];
        match job.op {
            Op::Read => {
                assert_eq!(done.received as usize, job.range.len());
                // Which of them it holds is known from now on, where all of it was read.
                region.may_hold.retain(|held| held[job.range.clone()] == done.data);
                assert!(!region.may_hold.is_empty(), "a wrong byte");
            }
            Op::Write | Op::WriteZeroes { .. } => region.may_hold = vec![job.after],
            _ => {}
        }
    }
    done.len()
}

fn run(digests: bool, bulk: usize, seed: u64, cuts: usize, commands: usize) {
    let mut association = Association::new(digests, seed);
    let namespace = &association.session.namespaces()[&1];
    assert_eq!(
        (namespace.block_bytes as usize, namespace.blocks as usize),
        (BLOCK, REGIONS * REGION / BLOCK)
    );
    let mut regions = vec![Region { may_hold: vec![vec![0; REGION]] }; REGIONS];
    for cut in 0..=cuts {
        let mut pipe = association.io_queue(bulk);
        let mut jobs = HashMap::new();
        let mut done = 0;
        while done < commands {
            start(&mut pipe, &mut association.random, &mut regions, &mut jobs);
            pipe.turn(&mut association.shared, &mut association.random);
            done += check(&mut pipe, &mut regions, &mut jobs);
        }
        if cut < cuts {
            association.cut(pipe);
            continue;
        }
        while pipe.turn(&mut association.shared, &mut association.random) {}
        check(&mut pipe, &mut regions, &mut jobs);
        assert!(jobs.is_empty(), "all is answered");
    }
    for (region, on_disk) in regions.iter().zip(association.shared.disk.chunks(REGION)) {
        assert!(region.may_hold.iter().any(|held| held == on_disk), "a wrong byte on the disk");
    }
    association.session.shut_down(association.shared.now_ms);
    while !association.session.is_shut_down() {
        match association.session.next(association.shared.now_ms).expect("a session that goes well") {
            Action::Submit(request) => association.submit(request),
            Action::Wait { until_ms } => {
                if !association.admin.turn(&mut association.shared, &mut association.random) {
                    association.shared.now_ms = until_ms;
                }
                association.reap();
            }
            other => panic!("{other:?}"),
        }
    }
}

// promise: NTP-6
#[test]
fn a_namespace_holds_what_was_written_through_all_layers() {
    for (seed, digests, bulk) in [(1, false, 0), (2, true, 0), (3, false, 65_536), (4, true, 65_536)] {
        run(digests, bulk, seed, 0, 400);
    }
}

// promise: NTP-6
#[test]
fn a_cut_link_loses_nothing_that_was_acknowledged() {
    for seed in 0..6 {
        run(seed % 2 == 0, 4096 * (seed as usize % 3), seed, 12, 30);
    }
}
