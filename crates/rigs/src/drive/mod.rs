//! A small emulated drive: one thread for its socket, its registers and its queues, the namespace in memory. It moves
//! bytes by pread and pwrite on what it was lent. It is there to be killed, stalled, and lied to.

mod memory;

use forebay_nvme::command::Sqe;
use forebay_nvme::controller::subsystem::{Hosts, Kind, Limits, Namespace, Optimal, Subsystem};
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::{self, Geometry, Op};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::data::{walk, Piece};
use forebay_nvme::transport::pcie::device::{Device, Effect, Settings};
use forebay_nvme::transport::pcie::queue::{CompletionQueue, Interrupt};
use forebay_nvme::transport::pcie::registers::Doorbell;
use forebay_nvme::transport::pcie::{HostMemory, Unmapped};
use memory::Memory;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::BTreeMap;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const BLOCK: u32 = 512;
/// Time that it sleeps at a time: it is rung where there is something to do.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Faults that it is asked for, and its observations.
#[derive(Default)]
pub struct Control {
    pub stop: AtomicBool,
    /// Reads that are never completed.
    pub stalls: AtomicU32,
    /// It answers nothing any more, as a stopped process, once `still` says so.
    pub frozen: AtomicBool,
    pub still: AtomicBool,
    /// The connection is cut.
    pub cut: AtomicBool,
    /// DMA_MAP of regions longer than this is refused.
    pub map_bytes_max: AtomicU64,
    /// Its controller has no shadow doorbells.
    pub plain_doorbells: AtomicBool,
    pub doorbell_messages: AtomicU64,
    pub maps: AtomicU64,
    pub unmaps: AtomicU64,
    pub connections: AtomicU64,
}

impl Control {
    /// Returns when the drive answers nothing any more: what comes after this stays where it is.
    #[allow(dead_code, reason = "not every test freezes its drive")]
    pub fn freeze(&self) {
        self.still.store(false, Ordering::Relaxed);
        self.frozen.store(true, Ordering::Relaxed);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.still.load(Ordering::Relaxed) {
            assert!(Instant::now() < until, "the drive never stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[allow(dead_code, reason = "not every test freezes its drive")]
    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::Relaxed);
    }
}

pub struct Drive {
    pub socket: PathBuf,
    pub control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
    _home: tempfile::TempDir,
}

fn subsystem(blocks: u64) -> Subsystem {
    let namespace = Namespace {
        block_bytes: BLOCK,
        blocks,
        read_only: false,
        volatile_write_cache: false,
        deallocate: true,
        uuid: Some([7; 16]),
        nguid: None,
        eui64: None,
        ana_group: 1,
        optimal: Optimal::default(),
    };
    Subsystem {
        nqn: "nqn.2014-08.org.example:drive".into(),
        serial: "1".into(),
        model: "drive".into(),
        firmware: "1".into(),
        kind: Kind::Nvm { namespaces: BTreeMap::from([(1, namespace)]), ana: BTreeMap::new() },
        hosts: Hosts::Any(Default::default()),
        limits: Limits { transfer_bytes: Some(128 << 10), queues: 8, ..Limits::default() },
    }
}

impl Drive {
    pub fn start(data: Arc<Mutex<Vec<u8>>>) -> Drive {
        Drive::with(data, Control::default())
    }

    pub fn with(data: Arc<Mutex<Vec<u8>>>, control: Control) -> Drive {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("s");
        let control = Arc::new(control);
        let thread = serve(&socket, data, control.clone());
        Drive { socket, control, thread: Some(thread), _home: home }
    }

    pub fn uri(&self, more: &str) -> String {
        format!("vfio-user:{}?{more}", self.socket.display())
    }

    /// The process is gone, its socket stays as a file.
    pub fn kill(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = UnixStream::connect(&self.socket); // It may be waiting for somebody.
            thread.join().unwrap();
        }
    }

    /// Another process in its place.
    pub fn restart(&mut self, data: Arc<Mutex<Vec<u8>>>) {
        self.kill();
        std::fs::remove_file(&self.socket).unwrap();
        self.control.stop.store(false, Ordering::Relaxed);
        self.thread = Some(serve(&self.socket, data, self.control.clone()));
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve(socket: &Path, data: Arc<Mutex<Vec<u8>>>, control: Arc<Control>) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if control.stop.load(Ordering::Relaxed) {
                return;
            }
            control.connections.fetch_add(1, Ordering::Relaxed);
            Served::new(stream, &data, &control).run();
            if control.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    })
}

struct Served<'a> {
    stream: UnixStream,
    data: &'a Mutex<Vec<u8>>,
    control: &'a Control,
    device: Device,
    memory: Memory,
    config: Vec<u8>,
    interrupts: BTreeMap<u32, OwnedFd>,
    queues: BTreeMap<u16, CompletionQueue>,
    began: Instant,
}

fn number(body: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(body[at..at + 4].try_into().unwrap())
}

fn long(body: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(body[at..at + 8].try_into().unwrap())
}

fn numbers(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

impl<'a> Served<'a> {
    fn new(stream: UnixStream, data: &'a Mutex<Vec<u8>>, control: &'a Control) -> Served<'a> {
        let blocks = data.lock().unwrap().len() as u64 / u64::from(BLOCK);
        let shadow_doorbells = !control.plain_doorbells.load(Ordering::Relaxed);
        let settings = Settings { vectors: 9, shadow_doorbells, ..Settings::default() };
        let mut config = vec![0; 256];
        // Capabilities; class; a power-management capability, then MSI-X.
        (config[6], config[9], config[10], config[11], config[0x34]) = (1 << 4, 2, 8, 1, 0x40);
        (config[0x40], config[0x41], config[0x50]) = (0x01, 0x50, 0x11);
        Served {
            stream,
            data,
            control,
            device: Device::new(Arc::new(subsystem(blocks)), settings, 0),
            memory: Memory::default(),
            config,
            interrupts: BTreeMap::new(),
            queues: BTreeMap::new(),
            began: Instant::now(),
        }
    }

    fn run(mut self) {
        self.stream.set_nonblocking(true).unwrap();
        while !self.control.stop.load(Ordering::Relaxed) && !self.control.cut.swap(false, Ordering::Relaxed) {
            let frozen = self.control.frozen.load(Ordering::Relaxed);
            self.control.still.store(frozen, Ordering::Relaxed);
            if frozen {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let Some(heard) = self.hear() else { return };
            if !(heard | self.serve_queues()) {
                let _ = poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&NAP));
            }
        }
    }

    /// Some message was answered; None: the driver hung up.
    fn hear(&mut self) -> Option<bool> {
        let (mut head, mut fds) = ([0; 16], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut head)];
        let came = match recvmsg(&self.stream, &mut parts, &mut control, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => return Some(false),
            Err(_) => return None,
            Ok(came) if came.bytes == 0 => return None,
            Ok(came) => came,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        self.stream.set_nonblocking(false).unwrap();
        self.stream.read_exact(&mut head[came.bytes..]).ok()?;
        let mut body = vec![0; number(&head, 4) as usize - 16];
        self.stream.read_exact(&mut body).ok()?;
        self.stream.set_nonblocking(true).unwrap();
        let command = u16::from_ne_bytes([head[2], head[3]]);
        let answer = self.execute(command, &body, fds);
        self.serve_admin();
        if number(&head, 8) & 0x10 != 0 {
            return Some(true);
        }
        let (flags, errno, body) = match answer {
            Ok(body) => (1, 0, body),
            Err(errno) => (0x21, errno as u32, Vec::new()),
        };
        let mut message = head[..4].to_vec();
        message.extend(numbers(&[16 + body.len() as u32, flags, errno]));
        message.extend(body);
        self.stream.write_all(&message).ok()?;
        Some(true)
    }

    fn execute(&mut self, command: u16, body: &[u8], fds: Vec<OwnedFd>) -> Result<Vec<u8>, i32> {
        match command {
            1 => {
                let mut answer = vec![0, 0, 1, 0];
                answer.extend_from_slice(b"{\"capabilities\":{\"max_msg_fds\":4}}\0");
                Ok(answer)
            }
            2 => {
                let (address, bytes) = (long(body, 16), long(body, 24));
                let most = self.control.map_bytes_max.load(Ordering::Relaxed);
                if most > 0 && bytes > most {
                    return Err(libc::ENOMEM);
                }
                self.control.maps.fetch_add(1, Ordering::Relaxed);
                self.memory.0.push((address, bytes, fds.into_iter().next().ok_or(libc::EINVAL)?));
                Ok(Vec::new())
            }
            3 => {
                let (address, bytes) = (long(body, 8), long(body, 16));
                let before = self.memory.0.len();
                self.memory.0.retain(|(begin, len, _)| (*begin, *len) != (address, bytes));
                self.control.unmaps.fetch_add((before - self.memory.0.len()) as u64, Ordering::Relaxed);
                Ok(body.to_vec())
            }
            4 => Ok(numbers(&[16, 3, 9, 5])),
            5 => {
                let bytes = if number(body, 8) == 0 { self.device.bar_bytes() } else { 256 };
                let mut answer = numbers(&[32, 3, number(body, 8), 0]);
                answer.extend(bytes.to_ne_bytes());
                answer.extend(0u64.to_ne_bytes());
                Ok(answer)
            }
            7 => Ok(numbers(&[16, 1, number(body, 8), 9])),
            8 => {
                let start = number(body, 12);
                self.interrupts.extend((start..).zip(fds));
                Ok(Vec::new())
            }
            9 => Ok(self.read_region(body)),
            10 => Ok(self.write_region(body)),
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    fn read_region(&mut self, body: &[u8]) -> Vec<u8> {
        let (offset, region, count) = (long(body, 0), number(body, 8), number(body, 12) as usize);
        let mut value = vec![0; count];
        match region {
            0 => self.device.read(offset, &mut value),
            _ => value.copy_from_slice(&self.config[offset as usize..][..count]),
        }
        [&body[..16], &value].concat()
    }

    fn write_region(&mut self, body: &[u8]) -> Vec<u8> {
        let (offset, region) = (long(body, 0), number(body, 8));
        match region {
            0 => {
                let is_io = Doorbell::at(offset, 0)
                    .is_some_and(|d| !matches!(d, Doorbell::Submission(0) | Doorbell::Completion(0)));
                self.control.doorbell_messages.fetch_add(is_io.into(), Ordering::Relaxed);
                self.device.write(&self.memory, offset, &body[16..]);
            }
            _ => self.config[offset as usize..][..body.len() - 16].copy_from_slice(&body[16..]),
        }
        body[..16].to_vec()
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Admin commands, and what they ask for.
    fn serve_admin(&mut self) {
        loop {
            let more = self.device.work(&self.memory, self.now_ms());
            let mut any = false;
            while let Some(effect) = self.device.next_effect() {
                any = true;
                self.act(effect);
            }
            if !(more || any) {
                return;
            }
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::OpenCompletion(queue) => drop(self.queues.insert(queue.id(), queue)),
            Effect::OpenSubmission { cqid, queue } => {
                let _ = self.queues.get_mut(&cqid).unwrap().open(&self.memory, queue);
            }
            Effect::CloseSubmission { cqid, sqid } => {
                let queue = self.queues.get_mut(&cqid).unwrap();
                queue.close(sqid);
                for slot in queue.in_flight_of(sqid).collect::<Vec<_>>() {
                    let _ = queue.complete(&self.memory, slot, Status::again(Code::ABORTED_SQ_DELETION), 0);
                }
                queue.remove(sqid);
                self.device.submission_closed(sqid);
            }
            Effect::CloseCompletion { cqid } => {
                self.queues.remove(&cqid);
                self.device.completion_closed(cqid);
            }
            Effect::CloseQueues => {
                self.queues.clear();
                self.device.queues_closed();
            }
            Effect::Abort { cqid, sqid, cid } => {
                let queue = self.queues.get_mut(&cqid);
                let found = queue.and_then(|queue| Some((queue.find(sqid, cid)?, queue)));
                let aborted = found.is_some();
                if let Some((slot, queue)) = found {
                    let _ = queue.complete(&self.memory, slot, Status::again(Code::ABORT_REQUESTED), 0);
                    self.signal(cqid);
                }
                self.device.aborted(sqid, cid, aborted);
            }
            Effect::Ring { cqid, doorbell, value } => {
                let _ = self.queues.get_mut(&cqid).map(|queue| queue.ring(doorbell, value));
            }
            Effect::Shadow(shadow) => {
                for queue in self.queues.values_mut() {
                    let _ = queue.set_shadow(&self.memory, shadow);
                }
            }
            Effect::ShutDown => self.device.shut_down_complete(),
            Effect::Interrupt(vector) => self.interrupt(vector),
            Effect::Fatal(why) => eprintln!("the drive met: {why}"),
            Effect::Coalescing(_) | Effect::WriteCache { .. } => {}
        }
    }

    fn interrupt(&self, vector: u16) {
        if let Some(fd) = self.interrupts.get(&vector.into()) {
            rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
        }
    }

    fn signal(&mut self, cqid: u16) {
        let now = self.began.elapsed().as_micros() as u64;
        if let Some(Interrupt::Now(vector)) = self.queues.get_mut(&cqid).map(|queue| queue.interrupt(now)) {
            self.interrupt(vector);
        }
    }

    /// The queues, one command after the other; whether there were any.
    fn serve_queues(&mut self) -> bool {
        let mut any = false;
        for cqid in self.queues.keys().copied().collect::<Vec<_>>() {
            let mut queue = self.queues.remove(&cqid).unwrap();
            let mut step = || -> Result<(), forebay_nvme::transport::pcie::queue::QueueFault> {
                queue.poll(&self.memory)?;
                while let Some(fetched) = queue.fetch(&self.memory)? {
                    any = true;
                    if let Some(status) = self.carry_out(&fetched.sqe) {
                        queue.complete(&self.memory, fetched.slot, status, 0)?;
                    }
                }
                // It always may fall asleep, so that it has to be rung; unless something came meanwhile.
                any |= !queue.sleep(&self.memory)?;
                Ok(())
            };
            if let Err(fault) = step() {
                self.device.fault(fault);
            }
            self.queues.insert(cqid, queue);
            self.signal(cqid);
        }
        any
    }

    /// None: it is never answered.
    fn carry_out(&self, sqe: &Sqe) -> Option<Status> {
        let subsystem = self.device.controller().subsystem().clone();
        let namespace = subsystem.namespaces().unwrap().get(&sqe.nsid.get());
        let geometry = namespace.map(|n| Geometry::new(n, AnaState::Optimized, Some(128 << 10)));
        let request = match nvm::Request::parse_pcie(sqe, geometry.as_ref()) {
            Ok(request) => request,
            Err(status) => return Some(status),
        };
        let bytes = request.transfer.bytes();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut sink = |piece: Piece| {
            pieces.push(piece);
            match self.memory.contains(piece.address, piece.bytes.into()) {
                true => Ok(()),
                false => Err(Unmapped { address: piece.address, bytes: piece.bytes.into() }),
            }
        };
        if let Err(status) = walk(&self.memory, sqe, bytes, self.device.page_bytes(), &mut sink) {
            return Some(status);
        }
        let mut disk = self.data.lock().unwrap();
        let range = request.offset as usize..(request.offset + request.bytes) as usize;
        match request.op {
            Op::Read => {
                let stalls = &self.control.stalls;
                if stalls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                    return None;
                }
                let mut at = range.start;
                for piece in pieces {
                    self.memory.write(piece.address, &disk[at..at + piece.bytes as usize]).unwrap();
                    at += piece.bytes as usize;
                }
            }
            Op::Write => disk[range].copy_from_slice(&self.payload(&pieces)),
            Op::WriteZeroes { .. } => disk[range].fill(0),
            Op::DatasetManagement { ranges, deallocate: true } => {
                let data = self.payload(&pieces);
                let done = nvm::ranges(&data, ranges, geometry.as_ref().unwrap())
                    .map(|all| all.for_each(|(at, len)| disk[at as usize..(at + len) as usize].fill(0)));
                if let Err(status) = done {
                    return Some(status);
                }
            }
            _ => {}
        }
        Some(Status::SUCCESS)
    }

    fn payload(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in pieces {
            let mut part = vec![0; piece.bytes as usize];
            self.memory.read(piece.address, &mut part).unwrap();
            all.extend(part);
        }
        all
    }
}
