//! A small target: a thread for each connection that blocks, the namespace in memory. It is there to be killed.

use forebay_nvme::command::{Cqe, Sqe, FABRICS};
use forebay_nvme::controller::connect::Connect;
use forebay_nvme::controller::subsystem::{Hosts, Kind, Limits, Namespace, Optimal, Subsystem};
use forebay_nvme::controller::{self, Answer, Controller, Effect};
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::{self, Geometry, Op, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::target::{Event, Options, TargetEnd};
use forebay_nvme::transport::tcp::{Handle, Outgoing, PayloadPlace, Segment};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const NQN: &str = "nqn.2014-08.org.example:fake";
pub const BLOCK: u32 = 512;

struct House {
    subsystem: Arc<Subsystem>,
    data: Arc<Mutex<Vec<u8>>>,
    controllers: Mutex<HashMap<u16, Controller>>,
    connections: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
    stop: AtomicBool,
    /// Reads that are never answered …
    stalls: AtomicU32,
    /// … but by an Abort of it: (controller, queue, identifier).
    aborted: Mutex<Vec<(u16, u16, u16)>>,
    aborts: AtomicU32,
    /// Aborts are answered, and do nothing.
    deaf: AtomicBool,
    began: Instant,
}

pub struct Fake {
    pub address: SocketAddr,
    house: Arc<House>,
}

fn subsystem(blocks: u64) -> Subsystem {
    let namespace = Namespace {
        block_bytes: BLOCK,
        blocks,
        read_only: false,
        volatile_write_cache: false,
        deallocate: true,
        uuid: Some([9; 16]),
        nguid: None,
        eui64: None,
        ana_group: 1,
        optimal: Optimal::default(),
    };
    Subsystem {
        nqn: NQN.into(),
        serial: "1".into(),
        model: "fake".into(),
        firmware: "1".into(),
        kind: Kind::Nvm { namespaces: BTreeMap::from([(1, namespace)]), ana: BTreeMap::new() },
        hosts: Hosts::Any(Default::default()),
        limits: Limits { transfer_bytes: Some(128 << 10), in_capsule_bytes: 8192, ..Limits::default() },
    }
}

impl Fake {
    /// On a port that is free, or that one.
    pub fn start(data: Arc<Mutex<Vec<u8>>>, port: u16) -> Fake {
        // Who had that port before may still be ending.
        let listener = (0..3000)
            .find_map(|_| {
                let bound = TcpListener::bind(("127.0.0.1", port)).ok();
                if bound.is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                bound
            })
            .expect("a port");
        let blocks = data.lock().unwrap().len() as u64 / u64::from(BLOCK);
        let house = Arc::new(House {
            subsystem: Arc::new(subsystem(blocks)),
            data,
            controllers: Mutex::default(),
            connections: Mutex::default(),
            stop: AtomicBool::new(false),
            stalls: AtomicU32::new(0),
            aborted: Mutex::default(),
            aborts: AtomicU32::new(0),
            deaf: AtomicBool::new(false),
            began: Instant::now(),
        });
        let address = listener.local_addr().unwrap();
        let own = house.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let mut connections = own.connections.lock().unwrap();
                if own.stop.load(Ordering::Relaxed) {
                    return;
                }
                socket.set_nodelay(true).unwrap();
                let (other, house) = (socket.try_clone().unwrap(), own.clone());
                let thread = std::thread::spawn(move || Served::new(socket, &house).run());
                connections.push((other, thread));
            }
        });
        Fake { address, house }
    }

    /// All connections end where they are, and no new one is taken.
    pub fn kill(&self) {
        // Held: no connection is taken meanwhile that would be missed.
        let connections = self.house.connections.lock().unwrap();
        self.house.stop.store(true, Ordering::Relaxed);
        drop(connections);
        self.cut();
        let _ = TcpStream::connect(self.address);
    }

    /// All connections end where they are: what they haven't written by the return of this, they never will.
    pub fn cut(&self) {
        let connections = std::mem::take(&mut *self.house.connections.lock().unwrap());
        for (socket, _) in &connections {
            let _ = socket.shutdown(Shutdown::Both);
        }
        for (_, thread) in connections {
            let _ = thread.join();
        }
    }

    /// The next reads are never answered, but where the host aborts them.
    pub fn stall(&self, reads: u32) {
        self.house.stalls.store(reads, Ordering::Relaxed);
    }

    /// Returns the number of stalls still to come.
    #[allow(dead_code, reason = "not every test needs all of it")]
    pub fn stalls(&self) -> u32 {
        self.house.stalls.load(Ordering::Relaxed)
    }

    /// From now on Abort aborts nothing.
    pub fn hear_no_abort(&self) {
        self.house.deaf.store(true, Ordering::Relaxed);
    }

    /// Aborts that came.
    pub fn aborts(&self) -> u32 {
        self.house.aborts.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Default)]
struct Command {
    sqe: Sqe,
    data: Vec<u8>,
    in_capsule: u32,
}

struct Served<'a> {
    house: &'a House,
    socket: TcpStream,
    end: TargetEnd,
    commands: HashMap<u16, Command>,
    /// (controller, queue) once it is connected.
    queue: Option<(u16, u16)>,
    /// Handles of Asynchronous Event Requests.
    parked: HashMap<u16, Handle>,
}

impl<'a> Served<'a> {
    fn new(socket: TcpStream, house: &'a House) -> Served<'a> {
        let end = TargetEnd::new(Options {
            header_digest: true,
            data_digest: true,
            in_capsule_max: 8192,
            max_h2c: 64 << 10,
            max_c2h: 64 << 10,
            bulk: 4096,
        });
        Served { house, socket, end, commands: HashMap::new(), queue: None, parked: HashMap::new() }
    }

    fn run(mut self) {
        let _ = self.serve();
        if let Some((cntlid, qid)) = self.queue {
            let mut controllers = self.house.controllers.lock().unwrap();
            match qid {
                0 => drop(controllers.remove(&cntlid)),
                qid => {
                    if let Some(c) = controllers.get_mut(&cntlid) {
                        c.disconnect_io(qid);
                    }
                }
            }
        }
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            self.send()?;
            let expect = self.end.expect();
            let n = match expect.payload {
                Some(place) => {
                    let n = self.socket.read(&mut buffer[..place.len as usize])?;
                    let data = &mut self.commands.get_mut(&place.command.0).unwrap().data;
                    data[place.offset as usize..][..n].copy_from_slice(&buffer[..n]);
                    n
                }
                None => self.socket.read(expect.own)?,
            };
            if n == 0 {
                return Ok(());
            }
            self.end.received(n);
            loop {
                match self.end.next() {
                    Ok(None) => break,
                    Ok(Some(Event::Copy { place, bytes })) => {
                        let data = &mut self.commands.get_mut(&place.command.0).unwrap().data;
                        data[place.offset as usize..][..bytes.len()].copy_from_slice(bytes);
                    }
                    Ok(Some(Event::Command { command, sqe, in_capsule })) => {
                        let data = vec![0; in_capsule as usize];
                        self.commands.insert(command.0, Command { sqe, data, in_capsule });
                        if in_capsule == 0 {
                            self.execute(command);
                        }
                    }
                    Ok(Some(Event::DataComplete { command })) => self.execute(command),
                    Ok(Some(Event::DataEnd { place, digest })) => {
                        let data = &self.commands[&place.command.0].data;
                        let found = crc32c::crc32c(&data[place.offset as usize..][..place.len as usize]);
                        assert_eq!(found, digest, "the host's digest");
                    }
                    Ok(Some(_)) => {}
                    Err(fatal) => {
                        let _ = self.send();
                        return Err(std::io::Error::other(fatal));
                    }
                }
            }
        }
    }

    fn execute(&mut self, command: Handle) {
        let Command { sqe, data, in_capsule } = &self.commands[&command.0];
        let (sqe, in_capsule) = (*sqe, *in_capsule);
        match self.queue {
            None => {
                let data = data.clone();
                self.connect(command, &sqe, &data);
            }
            Some((cntlid, 0)) => {
                let data = data.clone();
                self.admin(command, cntlid, &sqe, &data);
            }
            Some(_) if sqe.opcode == FABRICS => {
                let answer = controller::fabrics_on_io_queue(&sqe, false);
                self.answer(command, answer);
            }
            Some(_) => self.io(command, &sqe, in_capsule),
        }
    }

    fn connect(&mut self, command: Handle, sqe: &Sqe, data: &[u8]) {
        let now = self.house.began.elapsed().as_millis() as u64;
        let mut controllers = self.house.controllers.lock().unwrap();
        let admitted = Connect::parse(sqe, data).and_then(|connect| {
            if connect.qid == 0 {
                let id = (1..).find(|id| !controllers.contains_key(id)).unwrap();
                let (controller, admitted) =
                    Controller::connect(self.house.subsystem.clone(), &connect, id, now)?;
                controllers.insert(id, controller);
                return Ok((id, admitted));
            }
            let controller = controllers.get_mut(&connect.cntlid).ok_or(connect.no_controller())?;
            Ok((connect.cntlid, controller.connect_io(&connect, now)?))
        });
        drop(controllers);
        match admitted {
            Ok((id, admitted)) => {
                self.queue = Some((id, admitted.qid));
                self.end.set_depth(admitted.entries, !admitted.no_flow_control);
                self.end.complete(command, admitted.completion(0));
            }
            Err(refusal) => self.end.complete(command, Cqe::new(0, refusal.status, refusal.result)),
        }
        self.commands.remove(&command.0);
    }

    fn admin(&mut self, command: Handle, cntlid: u16, sqe: &Sqe, data: &[u8]) {
        let now = self.house.began.elapsed().as_millis() as u64;
        let mut controllers = self.house.controllers.lock().unwrap();
        let Some(controller) = controllers.get_mut(&cntlid) else { return };
        let answer = controller.execute(command.0, sqe, data, now);
        let mut parked = Vec::new();
        while let Some(effect) = controller.next_effect() {
            match effect {
                Effect::Complete { tag, cqe } => parked.push((tag, cqe)),
                Effect::Abort { tag, sqid, cid } => {
                    self.house.aborts.fetch_add(1, Ordering::Relaxed);
                    let hears = !self.house.deaf.load(Ordering::Relaxed);
                    if hears {
                        self.house.aborted.lock().unwrap().push((cntlid, sqid, cid));
                    }
                    controller.aborted(tag, hears);
                }
                // All is durable that there is; a host that leaves waits for this.
                Effect::ShutDown => controller.shut_down_complete(),
                _ => {}
            }
        }
        drop(controllers);
        self.answer(command, answer);
        for (tag, cqe) in parked {
            if let Some(handle) = self.parked.remove(&tag) {
                self.end.complete(handle, cqe);
            }
        }
    }

    fn answer(&mut self, command: Handle, answer: Answer) {
        match answer {
            Answer::Complete(cqe) | Answer::Close(cqe) => {
                self.end.complete(command, cqe);
                self.commands.remove(&command.0);
            }
            Answer::Data { data, cqe } => {
                let len = data.len() as u32;
                self.commands.get_mut(&command.0).unwrap().data = data;
                self.end.send(command, len, cqe);
            }
            Answer::Parked => drop(self.parked.insert(command.0, command)),
            Answer::Authenticate => unreachable!("nobody is asked to"),
        }
    }

    fn io(&mut self, command: Handle, sqe: &Sqe, in_capsule: u32) {
        let namespaces = self.house.subsystem.namespaces().unwrap();
        let namespace = namespaces.get(&sqe.nsid.get());
        let geometry = namespace.map(|n| Geometry::new(n, AnaState::Optimized, Some(128 << 10)));
        let request = match nvm::Request::parse(sqe, geometry.as_ref(), in_capsule) {
            Ok(request) => request,
            Err(status) => return self.answer(command, Answer::Complete(Cqe::new(0, status, 0))),
        };
        let held = self.commands.get_mut(&command.0).unwrap();
        if let Transfer::FromHost(len) = request.transfer {
            if held.data.is_empty() {
                held.data = vec![0; len as usize];
                return self.end.request(command, len);
            }
        }
        let mut disk = self.house.data.lock().unwrap();
        let range = request.offset as usize..(request.offset + request.bytes) as usize;
        match request.op {
            Op::Read => {
                let stalls = &self.house.stalls;
                if stalls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                    drop(disk);
                    return self.stall(command, sqe.cid.get());
                }
                held.data = disk[range].to_vec();
                let len = held.data.len() as u32;
                drop(disk);
                return self.end.send(command, len, Cqe::new(0, Status::SUCCESS, 0));
            }
            Op::Write => disk[range].copy_from_slice(&held.data),
            Op::WriteZeroes { .. } => disk[range].fill(0),
            Op::DatasetManagement { ranges, .. } => {
                for (offset, len) in nvm::ranges(&held.data, ranges, &geometry.unwrap()).unwrap() {
                    disk[offset as usize..][..len as usize].fill(0);
                }
            }
            _ => {}
        }
        drop(disk);
        self.answer(command, Answer::Complete(Cqe::new(0, Status::SUCCESS, 0)));
    }

    /// Nothing more happens on this connection until that command is aborted.
    fn stall(&mut self, command: Handle, cid: u16) {
        let (cntlid, qid) = self.queue.expect("I/O comes on a queue");
        let mut byte = [0];
        self.socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        while !self.house.stop.load(Ordering::Relaxed) {
            let mut aborted = self.house.aborted.lock().unwrap();
            if let Some(at) = aborted.iter().position(|named| *named == (cntlid, qid, cid)) {
                aborted.remove(at);
                drop(aborted);
                let cqe = Cqe::new(0, Status::again(Code::ABORT_REQUESTED), 0);
                self.answer(command, Answer::Complete(cqe));
                break;
            }
            drop(aborted);
            match self.socket.peek(&mut byte) {
                Ok(0) => break,
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => {}
            }
        }
        self.socket.set_read_timeout(None).unwrap();
    }

    fn send(&mut self) -> std::io::Result<()> {
        let mut out = Outgoing::default();
        self.end.take_outgoing(&mut out);
        let (mut bytes, mut crc) = (Vec::new(), 0);
        let mut gone = Vec::new();
        for segment in &out.segments {
            match *segment {
                Segment::Bytes { start, end } => {
                    crc = 0;
                    bytes.extend_from_slice(&out.bytes[start..end]);
                }
                Segment::Payload { command, offset, len } => {
                    let PayloadPlace { offset, len, .. } = PayloadPlace { command, offset, len };
                    let payload = &self.commands[&command.0].data[offset as usize..][..len as usize];
                    crc = crc32c::crc32c_append(crc, payload);
                    bytes.extend_from_slice(payload);
                }
                Segment::Digest => bytes.extend_from_slice(&crc.to_le_bytes()),
                Segment::Release { command } => gone.push(command),
            }
        }
        self.socket.write_all(&bytes)?;
        gone.iter().for_each(|command| drop(self.commands.remove(&command.0)));
        Ok(())
    }
}
