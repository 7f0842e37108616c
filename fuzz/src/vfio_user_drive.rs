//! A gateway's drive, and a client that sets up queues as a driver does and then does anything: registers, mappings and
//! doorbells in any order, entries of its queues written under the controller's eyes.

use crate::input::Input;
use forebay_nvme::command::{admin, io, Sqe};
use forebay_nvme::transport::pcie::data::with_prps;
use forebay_nvme::transport::pcie::registers::offset;
use forebay_serve::{Gateway, GatewayConfig, GatewayController, GatewayNamespace, GatewaySubsystem};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

const BASE: u64 = 0x10_0000;
const BYTES: u64 = 256 << 10;
const ENTRIES: u32 = 16;
const QUEUES: u16 = 2;
/// No answer takes longer, but one that never comes.
const PATIENCE: Duration = Duration::from_secs(60);
const MESSAGES_MAX: u32 = 200;

mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
}

/// Every message that is answered is answered once, by its own number, and in time; whatever the client did, the next one
/// finds a drive.
pub fn vfio_user_drive(data: &[u8]) {
    let mut input = Input::new(data);
    let folder = Folder::new();
    let socket = folder.0.join("drive.sock");
    let gateway = gateway(&socket);
    let mut client = Client::new(&socket).expect("it listens");
    assert!(client.greet(), "a first message that is right");
    if input.u8() % 8 > 0 {
        client.set_up();
    }
    for _ in 0..MESSAGES_MAX {
        if input.is_empty() || !client.step(&mut input) {
            break;
        }
    }
    drop(client);
    let mut next = Client::new(&socket).expect("it still listens");
    assert!(next.greet(), "another client is welcome");
    assert!(next.read(0, 0, 8).is_some(), "and finds its capabilities");
    drop(next);
    drop(gateway);
}

/// Goes with what is in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-fuzz-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder of its own");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn gateway(socket: &Path) -> Gateway {
    let namespace = |nsid| GatewayNamespace {
        nsid,
        source: "nil:?size=1m".into(),
        writable: true,
        ..GatewayNamespace::default()
    };
    let controller = GatewayController {
        name: "drive".into(),
        socket: Some(socket.display().to_string()),
        queues: Some(QUEUES),
        queue_depth: Some(ENTRIES as u16),
        ..GatewayController::default()
    };
    let subsystem = GatewaySubsystem {
        nqn: "nqn.2026-11.io.example:fuzz".into(),
        namespaces: vec![namespace(1), namespace(2)],
        controllers: vec![controller],
        ..GatewaySubsystem::default()
    };
    let config = GatewayConfig { threads: 1, subsystems: vec![subsystem], ..GatewayConfig::default() };
    Gateway::start(&config, Box::new(|_| {})).expect("a gateway over nothing")
}

struct Client {
    socket: UnixStream,
    memory: OwnedFd,
    next_id: u16,
    /// Tails of the admin queue and the others, as they are believed to be.
    tails: [u16; QUEUES as usize + 1],
    next_cid: u16,
}

impl Client {
    fn new(path: &Path) -> std::io::Result<Client> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, BYTES)?;
        Ok(Client { socket, memory, next_id: 0, tails: [0; QUEUES as usize + 1], next_cid: 0 })
    }

    /// The answer's payload, empty where it was refused. None: the session is over.
    fn call(&mut self, command: u16, flags: u32, body: &[u8], fd: bool) -> Option<Vec<u8>> {
        self.next_id = self.next_id.wrapping_add(1);
        let size = 16 + body.len() as u32;
        let mut bytes = Vec::with_capacity(size as usize);
        bytes.extend(self.next_id.to_ne_bytes());
        bytes.extend(command.to_ne_bytes());
        [size, flags, 0].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(body);
        let fds = [self.memory.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if fd {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).ok()?;
        const NO_REPLY: u32 = 1 << 4;
        if flags & NO_REPLY != 0 {
            return Some(Vec::new());
        }
        self.answer(command)
    }

    fn answer(&mut self, command: u16) -> Option<Vec<u8>> {
        let mut head = [0; 16];
        if let Err(e) = self.socket.read_exact(&mut head) {
            let late = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
            assert!(!late.contains(&e.kind()), "command {command} is never answered");
            return None;
        }
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        assert_eq!((half(0), half(2)), (self.next_id, command), "an answer to something else");
        let mut body = vec![0; word(4).checked_sub(16).expect("a size with its header") as usize];
        self.socket.read_exact(&mut body).expect("an answer that is whole");
        let refused = word(8) & 1 << 5 != 0;
        assert_eq!(refused, word(12) != 0, "refused with an error's number, and not otherwise");
        Some(body)
    }

    fn greet(&mut self) -> bool {
        let body = [&[0, 0, 1, 0][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat();
        self.call(command::VERSION, 0, &body, false).is_some()
    }

    fn map(&mut self, address: u64, bytes: u64, offset: u64, fd: bool) -> Option<Vec<u8>> {
        let head = [32u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat();
        let rest = [offset, address, bytes].map(u64::to_ne_bytes).concat();
        self.call(command::DMA_MAP, 0, &[head, rest].concat(), fd)
    }

    fn unmap(&mut self, flags: u32, address: u64, bytes: u64) -> Option<Vec<u8>> {
        let head = [24u32.to_ne_bytes(), flags.to_ne_bytes()].concat();
        let rest = [address, bytes].map(u64::to_ne_bytes).concat();
        self.call(command::DMA_UNMAP, 0, &[head, rest].concat(), false)
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Option<Vec<u8>> {
        let body = [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat();
        self.call(command::REGION_READ, 0, &body, false)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Option<Vec<u8>> {
        let count = data.len() as u32;
        let head = [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat();
        self.call(command::REGION_WRITE, 0, &[&head, data].concat(), false)
    }

    fn set(&mut self, register: u64, value: u64, bytes: usize) -> Option<Vec<u8>> {
        self.write(0, register, &value.to_le_bytes()[..bytes])
    }

    /// Returns the place of a queue's submission entries; its completions are in the page behind.
    fn queue(qid: u16) -> u64 {
        BASE + u64::from(qid) * 0x2000
    }

    /// As a driver does: memory, the admin queue, and queues for I/O.
    fn set_up(&mut self) -> Option<()> {
        self.map(BASE, BYTES, 0, true)?;
        self.enable()?;
        for qid in 1..=QUEUES {
            let entries = (ENTRIES - 1) << 16 | u32::from(qid);
            let sqe = |opcode, cdw11: u32| Sqe {
                opcode,
                cdw10: entries.into(),
                cdw11: cdw11.into(),
                ..Sqe::default()
            };
            let interrupts = u32::from(qid) << 16 | 0b11;
            let (submissions, completions) = (Client::queue(qid), Client::queue(qid) + 0x1000);
            self.push(0, with_prps(sqe(admin::CREATE_COMPLETION_QUEUE, interrupts), [completions, 0]));
            let contiguous = u32::from(qid) << 16 | 1;
            self.push(0, with_prps(sqe(admin::CREATE_SUBMISSION_QUEUE, contiguous), [submissions, 0]));
            self.ring(0)?;
        }
        Some(())
    }

    fn enable(&mut self) -> Option<()> {
        self.tails = [0; QUEUES as usize + 1];
        let entries = u64::from(ENTRIES - 1);
        self.set(offset::AQA, entries << 16 | entries, 4)?;
        self.set(offset::ASQ, Client::queue(0), 8)?;
        self.set(offset::ACQ, Client::queue(0) + 0x1000, 8)?;
        self.set(offset::CC, 0x46_0001, 4).map(drop)
    }

    fn push(&mut self, qid: u16, sqe: Sqe) {
        let tail = &mut self.tails[usize::from(qid)];
        let at = Client::queue(qid) - BASE + u64::from(*tail) * 64;
        *tail = (*tail + 1) % ENTRIES as u16;
        self.next_cid = self.next_cid.wrapping_add(1);
        let sqe = Sqe { cid: self.next_cid.into(), ..sqe };
        let _ = rustix::io::pwrite(&self.memory, sqe.as_bytes(), at);
    }

    fn ring(&mut self, qid: u16) -> Option<Vec<u8>> {
        let tail = self.tails[usize::from(qid)].into();
        self.set(0x1000 + u64::from(qid) * 8, tail, 4)
    }

    /// False: the session is over.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let qid = input.u16() % (QUEUES + 1);
        let answered = match input.u8() % 16 {
            0 => self.anything(input),
            1 => {
                let (address, bytes) = (place(input), length(input));
                let offset = u64::from(input.near(&[0, 0, 4096, 8192, BYTES as u32, 1]));
                self.map(address, bytes, offset, input.u8() % 4 > 0)
            }
            2 => {
                let flags = input.near(&[0, 0, 0, 2, 1]);
                self.unmap(flags, place(input), length(input))
            }
            3 => self.map(BASE, BYTES, 0, true),
            4 => self.register(input),
            5 => self.enable().map(|()| Vec::new()),
            6 => {
                let doorbell = 0x1000 + u64::from(input.u8() % 16) * 4;
                let value = input.near(&[0, 1, 2, ENTRIES - 1, ENTRIES, u32::MAX]);
                self.set(doorbell, value.into(), 4)
            }
            7 | 8 => self.ring(qid),
            9 => {
                let region = input.near(&[0, 4, 7, 1, 9]);
                let offset = u64::from(input.near(&[0, 8, 0x14, 0x1c, 0x1000, 0x3ff8, 0x800]));
                self.read(region, offset, input.near(&[4, 8, 1, 64, 4096]))
            }
            10 => {
                let (region, offset) = (input.pick(&[7, 4, 0]), u64::from(input.u16() % 0x1100));
                let length = usize::from(input.u8() % 16);
                self.write(region, offset, input.bytes(length))
            }
            11 => self.interrupts(input),
            12 if input.u8() % 4 == 0 => self.call(command::RESET, 0, &[], false),
            _ => {
                self.push(qid, entry(input));
                Some(Vec::new())
            }
        };
        answered.is_some()
    }

    /// A message of any kind, but for answers: what stands for one is none of a client's to send.
    fn anything(&mut self, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let (command, flags) = (input.u16() % 20, input.u32() & 0x30);
        let length = usize::from(input.u8() % 64);
        let body = input.bytes(length);
        self.call(command, flags, body, input.bool())
    }

    fn register(&mut self, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let all = [offset::CC, offset::AQA, offset::ASQ, offset::ACQ, 0x0c, 0x10, 0x20];
        let register = input.pick(&all);
        let value = match input.u8() % 4 {
            0 => input.u64(),
            1 => place(input),
            _ => u64::from(input.near(&[0x46_0001, 0, 0x46_4001, 0x46_8001, 0x000f_000f])),
        };
        self.set(register, value, input.pick(&[4, 4, 8, 1, 2]))
    }

    fn interrupts(&mut self, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let flags = input.near(&[0x24, 0x21, 0x09, 0x11]);
        let words = [20, flags, 2, input.near(&[0, 1]), input.near(&[0, 1, 3])];
        self.call(command::SET_IRQS, 0, &words.map(u32::to_ne_bytes).concat(), input.bool())
    }
}

/// An address, mostly of something that is there.
fn place(input: &mut Input<'_>) -> u64 {
    match input.u8() % 8 {
        0 => input.u64(),
        1 => u64::MAX - 4095,
        2 => BASE + u64::from(input.u32()),
        _ => BASE + u64::from(input.u8() % 64) * 4096 + u64::from(input.pick(&[0u16, 0, 0, 8, 512, 4088])),
    }
}

fn length(input: &mut Input<'_>) -> u64 {
    match input.u8() % 8 {
        0 => input.u64(),
        _ => u64::from(input.near(&[BYTES as u32, 4096, 8192, 0, 1, 65536])),
    }
}

/// A command: mostly one that there is.
fn entry(input: &mut Input<'_>) -> Sqe {
    let opcode = match input.u8() % 8 {
        0 => input.u8(),
        _ => input.pick(&[
            io::READ,
            io::WRITE,
            io::FLUSH,
            io::COMPARE,
            io::WRITE_ZEROES,
            io::DATASET_MANAGEMENT,
            admin::IDENTIFY,
            admin::GET_LOG_PAGE,
            admin::SET_FEATURES,
            admin::CREATE_COMPLETION_QUEUE,
            admin::CREATE_SUBMISSION_QUEUE,
            admin::DELETE_SUBMISSION_QUEUE,
            admin::DELETE_COMPLETION_QUEUE,
            admin::ABORT,
            admin::ASYNC_EVENT_REQUEST,
            admin::DOORBELL_BUFFER_CONFIG,
        ]),
    };
    let small = [0, 1, 2, 3, 7, 8, (ENTRIES - 1) << 16 | 1, (ENTRIES - 1) << 16 | 2];
    let sqe = Sqe {
        opcode,
        flags: input.pick(&[0, 0, 0, 0x40, 0x80, 1]),
        nsid: input.near(&[1, 1, 2, 0, u32::MAX]).into(),
        cdw10: input.near(&small).into(),
        cdw11: input.near(&[0, 1, 3, 1 << 16 | 1, 1 << 16 | 3, 2 << 16 | 3]).into(),
        cdw12: input.near(&[0, 7, 15, 127, 1 << 30]).into(),
        ..Sqe::default()
    };
    Sqe { flags: sqe.flags, ..with_prps(sqe, [place(input), place(input)]) }
}
