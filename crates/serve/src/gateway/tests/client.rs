//! A client of the vfio-user protocol, as small as can be: one memfd of memory, all of it mapped; registers and
//! doorbells by messages, or doorbells by stores where it maps them; interrupts not asked for.

use crate::gateway::dma::{Asked, Map, Table};
use crate::gateway::shm::{self, Doorbells};
use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::host::{Event, Options};
use forebay_nvme::transport::pcie::host::{self, Bar, Host, HostQueue, Rung, Step, MEMORY_BYTES};
use forebay_nvme::transport::pcie::registers::{Doorbell, DOORBELLS};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Start of the memory as the function addresses it.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const BYTES: u64 = 16 << 20;
/// Start of payload.
pub(crate) const DATA: u64 = BASE + (4 << 20);
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    pub socket: UnixStream,
    pub memory: OwnedFd,
    /// The same memory, as this end sees it.
    pub map: Arc<Map>,
    /// Rings there, and never by a message.
    doorbells: Option<Doorbells>,
    next_id: u16,
}

/// What VERSION says of a client.
const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":8}}\0";

impl Client {
    /// Connects, and maps its memory. A gateway that hasn't heard yet that the client before is gone sends this one away, as
    /// it does any second one: it comes again.
    pub(crate) fn new(path: &Path) -> Client {
        Client::saying(path, CAPABILITIES)
    }

    /// One that maps the doorbells that it is offered. `says`: whether VERSION names its capabilities.
    pub(crate) fn mapping(path: &Path, says: bool) -> Client {
        let mut client = Client::saying(path, if says { CAPABILITIES } else { &[] });
        client.doorbells = Some(client.map_doorbells());
        client
    }

    fn saying(path: &Path, capabilities: &[u8]) -> Client {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut client = Client::connect(path);
            match client.try_to_greet(capabilities) {
                Ok(()) => {
                    client.map_memory();
                    return client;
                }
                Err(sent_away) => assert!(Instant::now() < until, "{sent_away}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn connect(path: &Path) -> Client {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let memory = memfd_create("client", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, BYTES).unwrap();
        let table = Table::default();
        let asked = Asked { address: BASE, bytes: BYTES, offset: 0, readable: true, writable: true };
        table.map(asked, Some(memory.try_clone().unwrap())).unwrap();
        Client { socket, memory, map: table.map_now(), doorbells: None, next_id: 0 }
    }

    pub(crate) fn greet(&mut self) {
        self.try_to_greet(CAPABILITIES).unwrap();
    }

    fn try_to_greet(&mut self, capabilities: &[u8]) -> std::io::Result<()> {
        let message = self.message(1, 0, &[&[0, 0, 1, 0][..], capabilities].concat());
        net::send(&self.socket, &message, SendFlags::NOSIGNAL)?;
        self.receive()?.unwrap();
        Ok(())
    }

    pub(crate) fn map_memory(&mut self) {
        let memory = self.memory.try_clone().unwrap();
        self.dma_map(BASE, BYTES, 0, Some(&memory)).unwrap();
    }

    /// The part of BAR 0 that may be mapped (DEVICE_GET_REGION_INFO, capability "sparse mmap"), and its file.
    pub(crate) fn offered(&mut self) -> Option<(u64, u64, OwnedFd)> {
        let words = [4096u32, 0, 0, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        self.send(5, 0, &words, &[]);
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).unwrap();
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })?;
        let word = |at: usize| u64::from_ne_bytes(bytes[16 + at..24 + at].try_into().unwrap());
        let at = (word(8) >> 32) as usize;
        assert_eq!((word(at) as u16, word(at + 8) as u32), (1, 1), "one area of a sparse mapping");
        Some((word(at + 16), word(at + 24), fd))
    }

    fn map_doorbells(&mut self) -> Doorbells {
        let (offset, bytes, fd) = self.offered().expect("doorbells that may be mapped");
        assert_eq!((offset, bytes), (DOORBELLS, shm::PAGE_BYTES));
        Doorbells::adopt(fd).unwrap()
    }

    fn message(&mut self, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        self.next_id = self.next_id.wrapping_add(1);
        let mut bytes = Vec::new();
        bytes.extend(self.next_id.to_ne_bytes());
        bytes.extend(command.to_ne_bytes());
        bytes.extend((16 + body.len() as u32).to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    pub(crate) fn send(&mut self, command: u16, flags: u32, body: &[u8], fds: &[&OwnedFd]) {
        let bytes = self.message(command, flags, body);
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// The answer's payload, or its errno.
    pub(crate) fn receive(&mut self) -> std::io::Result<Result<Vec<u8>, u32>> {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head)?;
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut body)?;
        Ok(if word(8) & 0x20 != 0 { Err(word(12)) } else { Ok(body) })
    }

    pub(crate) fn call(&mut self, command: u16, body: &[u8], fds: &[&OwnedFd]) -> Result<Vec<u8>, u32> {
        self.send(command, 0, body, fds);
        self.receive().unwrap()
    }

    pub(crate) fn dma_map(
        &mut self,
        address: u64,
        bytes: u64,
        offset: u64,
        fd: Option<&OwnedFd>,
    ) -> Result<Vec<u8>, u32> {
        let head = [32u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat();
        let rest = [offset, address, bytes].map(u64::to_ne_bytes).concat();
        self.call(2, &[head, rest].concat(), fd.as_slice())
    }

    pub(crate) fn dma_unmap(&mut self, address: u64, bytes: u64) -> Result<Vec<u8>, u32> {
        let head = [24u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat();
        self.call(3, &[head, [address, bytes].map(u64::to_ne_bytes).concat()].concat(), &[])
    }

    pub(crate) fn region_read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let body = [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat();
        self.call(9, &body, &[]).map(|answer| answer[16..].to_vec())
    }

    pub(crate) fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<Vec<u8>, u32> {
        let count = data.len() as u32;
        let body = [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes(), data].concat();
        self.call(10, &body, &[])
    }

    pub(crate) fn fill(&self, address: u64, bytes: &[u8]) {
        self.map.write(address, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read(address, &mut bytes).unwrap();
        bytes
    }
}

impl Bar for Client {
    fn read(&mut self, offset: u64, bytes: usize) -> Result<u64, String> {
        let answer = self.region_read(0, offset, bytes as u32).map_err(|e| e.to_string())?;
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&answer);
        Ok(u64::from_le_bytes(value))
    }

    fn write(&mut self, offset: u64, bytes: usize, value: u64) -> Result<(), String> {
        if let (Some(doorbells), Some(doorbell)) = (&self.doorbells, Doorbell::at(offset, 0)) {
            doorbells.set(doorbell, value as u32);
            return Ok(());
        }
        self.region_write(0, offset, &value.to_le_bytes()[..bytes]).map(|_| ()).map_err(|e| e.to_string())
    }
}

/// A driver over it, with its I/O queues.
pub(crate) struct Driver {
    pub client: Client,
    pub host: Host,
    pub queues: Vec<HostQueue>,
    began: Instant,
}

impl Driver {
    /// Brings the controller up, with so many I/O queues of 64 entries, without interrupts.
    pub(crate) fn new(client: Client, queues: u16) -> Driver {
        Driver::with_queues(client, queues, |_| None)
    }

    /// Each queue has the interrupt vector that `vector` says.
    pub(crate) fn with_queues(client: Client, queues: u16, vector: impl Fn(u16) -> Option<u16>) -> Driver {
        let options = Options {
            host_nqn: "nqn.2026-11.io.example:host".into(),
            host_id: [7; 16],
            subsystem_nqn: super::NQN.into(),
            queues,
            queue_entries: 64,
            keep_alive_ms: 0,
            timeout_ms: 60_000,
            namespace: None,
        };
        let host = Host::new(options, BASE, 0);
        let mut driver = Driver { client, host, queues: Vec::new(), began: Instant::now() };
        driver.until(|step| matches!(step, Step::Event(Event::Ready)));
        let each = host::queue_bytes(64);
        for qid in 1..=queues {
            let address = BASE + MEMORY_BYTES.next_multiple_of(4096) + u64::from(qid - 1) * each;
            driver.host.create_queue(qid, 64, address, vector(qid));
            let Step::Queue(queue) = driver.until(|step| matches!(step, Step::Queue(_))) else {
                unreachable!()
            };
            driver.queues.push(queue);
        }
        driver
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(crate) fn until(&mut self, wanted: impl Fn(&Step) -> bool) -> Step {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (map, now_ms) = (self.client.map.clone(), self.now_ms());
            let step = self.host.next(&mut self.client, &*map, now_ms).unwrap();
            if wanted(&step) {
                return step;
            }
            assert!(Instant::now() < deadline, "{step:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn ring(&mut self, rung: Option<Rung>) {
        if let Some(Rung { offset, value }) = rung {
            Bar::write(&mut self.client, offset, 4, value.into()).unwrap();
        }
    }

    /// Submits a command that moves `bytes` at `address` of its memory.
    pub(crate) fn submit(&mut self, queue: usize, sqe: Sqe, address: u64, bytes: u32) -> u16 {
        let cid = self.push(queue, sqe, address, bytes);
        self.ring_for(queue);
        cid
    }

    /// Several, which all move the same bytes, by one doorbell.
    pub(crate) fn submit_together(
        &mut self,
        queue: usize,
        all: impl Iterator<Item = Sqe>,
        address: u64,
        bytes: u32,
    ) {
        all.for_each(|sqe| {
            self.push(queue, sqe, address, bytes);
        });
        self.ring_for(queue);
    }

    fn push(&mut self, queue: usize, sqe: Sqe, address: u64, bytes: u32) -> u16 {
        let map = self.client.map.clone();
        let list = DATA - (1 << 20);
        let sqe = if bytes > 0 { host::point(&*map, sqe, address, bytes, false, list).unwrap() } else { sqe };
        self.queues[queue].push(&*map, sqe).unwrap().expect("the queue has room")
    }

    fn ring_for(&mut self, queue: usize) {
        let rung = self.queues[queue].ring(&*self.client.map.clone()).unwrap();
        self.ring(rung);
    }

    /// The next completion. None: none came in that time.
    pub(crate) fn reap(&mut self, queue: usize, within: Duration) -> Option<Cqe> {
        let (map, began) = (self.client.map.clone(), Instant::now());
        loop {
            if let Some(cqe) = self.queues[queue].reap(&*map).unwrap() {
                let rung = self.queues[queue].release(&*map).unwrap();
                self.ring(rung);
                return Some(cqe);
            }
            // What doesn't come at once is waited for without keeping a processor busy.
            match began.elapsed() {
                waited if waited >= within => return None,
                waited if waited < Duration::from_millis(1) => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    pub(crate) fn run(&mut self, queue: usize, sqe: Sqe, address: u64, bytes: u32) -> Cqe {
        let cid = self.submit(queue, sqe, address, bytes);
        let cqe = self.reap(queue, PATIENCE).expect("a completion in time");
        assert_eq!(cqe.cid.get(), cid);
        cqe
    }
}
