//! One connection with an emulated drive: its PCI function, its controller, and
//! the memory that their queues lie in. One thread drives it.

use super::client::{Client, Trouble, Wrong};
use super::queue_pair::{Bell, PairParts};
use super::shm;
use super::wire::{IoFd, IRQ_MSIX, REGION_BAR0, REGION_CONFIG};
use super::{Live, Options};
use crate::source::nvme::{Cause, Stranger};
use forebay_io::monotonic_now;
use forebay_nvme::host::{self, Event, Failure, FailureKind};
use forebay_nvme::identify::Controller;
use forebay_nvme::transport::pcie::host::{queue_bytes, Bar, Host, HostQueue, Step, MEMORY_BYTES};
use forebay_nvme::transport::pcie::registers::Doorbell;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest time of one request of the socket, and of one admin command.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for a controller to stop when it is reset, before its connection is just closed.
const RESET_WITHIN: Duration = Duration::from_secs(3);
const RESET_POLL: Duration = Duration::from_millis(2);
/// While a controller comes up it is looked at so often, whether it interrupts or not.
const SETUP_POLL_MS: u64 = 5;
/// And else.
const POLL_MS: u64 = 1000;

/// Lists of addresses that a queue has: commands without SGLs have one each.
const LISTS_MAX: u64 = 256;
const PAGE: u64 = 4096;
const NAME: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000";

/// PCI configuration space (PCI Express Base 6.0, section 7.5.1): command and class code; capabilities.
mod config {
    pub(crate) const COMMAND: u64 = 0x04;
    /// Memory Space Enable, Bus Master Enable.
    pub(crate) const COMMAND_ON: u16 = 1 << 1 | 1 << 2;
    pub(crate) const STATUS: u64 = 0x06;
    pub(crate) const STATUS_CAPABILITIES: u16 = 1 << 4;
    pub(crate) const CLASS: u64 = 0x08;
    /// Mass storage, non-volatile memory, NVM Express (pcie, section 3.8.1.4).
    pub(crate) const CLASS_NVME: u32 = 0x01_08_02;
    pub(crate) const CAPABILITIES: u64 = 0x34;
    pub(crate) const MSIX: u8 = 0x11;
    /// Message Control of MSI-X: enable.
    pub(crate) const MSIX_ENABLE: u16 = 1 << 15;
    /// More capabilities than fit is a loop.
    pub(crate) const CAPABILITIES_MAX: usize = 48;
}

/// Registers that are read though no `Host` is at work (base, figure 33): CC and CSTS.
mod register {
    pub(crate) const CC: u64 = 0x14;
    pub(crate) const CC_ENABLE: u32 = 1;
    pub(crate) const CSTS: u64 = 0x1c;
    pub(crate) const CSTS_READY: u32 = 1;
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub why: String,
    pub cause: Cause,
    /// Trying again won't help.
    pub for_good: bool,
    /// The device touches our memory no more: it said so, or it is gone.
    pub clean: bool,
}

impl From<Trouble> for Ended {
    fn from(trouble: Trouble) -> Ended {
        let gone = matches!(trouble.wrong, Wrong::Gone(_));
        if gone && trouble.asked == super::wire::Command::Version.name() {
            let why = format!("it hangs up before a word, as where another client has the drive ({trouble})");
            return Ended { cause: Cause::Taken, why, for_good: false, clean: true };
        }
        Ended { cause: Cause::Other, why: trouble.to_string(), for_good: false, clean: gone }
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        let for_good = failure.kind == FailureKind::Refused;
        Ended { cause: Cause::from_failure(&failure), why: failure.to_string(), for_good, clean: false }
    }
}

impl From<Stranger> for Ended {
    fn from(stranger: Stranger) -> Ended {
        Ended { cause: stranger.cause(), why: stranger.why, for_good: stranger.for_good, clean: true }
    }
}

fn refused(why: impl Into<String>) -> Ended {
    Ended { cause: Cause::Other, why: why.into(), for_good: true, clean: true }
}

/// BAR0 by messages.
struct Registers<'a>(&'a mut Client);

impl Bar for Registers<'_> {
    fn read(&mut self, offset: u64, bytes: usize) -> Result<u64, String> {
        let mut value = [0; 8];
        self.0.read(REGION_BAR0, offset, &mut value[..bytes]).map_err(|e| e.to_string())?;
        Ok(u64::from_le_bytes(value))
    }

    fn write(&mut self, offset: u64, bytes: usize, value: u64) -> Result<(), String> {
        self.0.write(REGION_BAR0, offset, &value.to_le_bytes()[..bytes]).map_err(|e| e.to_string())
    }
}

pub(super) struct Function {
    pub client: Client,
    pub host: Host,
    memory: Arc<shm::Shared>,
    /// By vector; the first is the admin queue's.
    interrupts: Vec<Arc<OwnedFd>>,
    bells: Vec<IoFd>,
    entries: u16,
    created: BTreeMap<u16, HostQueue>,
    wanted: u16,
    began: Instant,
}

impl Function {
    /// Connects, and makes the function ready for its controller to be brought up. `asked`: I/O queues that
    /// the controller is asked for; `made`: those that will be made at most. `namespace`: the only one to identify;
    /// `within`: how long a request or an admin command may take.
    pub(crate) fn open(
        options: &Options,
        asked: u16,
        made: u16,
        namespace: Option<u32>,
        within: Duration,
    ) -> Result<Function, Ended> {
        let mut client = Client::connect(&options.socket, within)?;
        is_nvme(&mut client)?;
        let vectors = client.interrupts(IRQ_MSIX)?.count.min(2048) as u16;
        if vectors < 2 {
            return Err(refused(format!("it has {vectors} MSI-X vectors, and at least 2 are needed")));
        }
        let queues = made.min(vectors - 1);
        let doorbells = Doorbell::Completion(queues).offset(0) + 4;
        let bytes = client.region(REGION_BAR0)?.bytes;
        if bytes < doorbells {
            return Err(refused(format!(
                "its BAR0 has {bytes} bytes, and {queues} I/O queues need {doorbells}"
            )));
        }
        let entries = options.depth.saturating_add(1).max(2);
        let bytes = MEMORY_BYTES + u64::from(queues) * pair_bytes(entries);
        let memory = shm::Shared::new(bytes as usize)
            .map_err(|e| refused(format!("no memory for its queues: {e}")))?;
        client.map(memory.fd(), memory.address(), memory.bytes() as u64)?;
        let interrupts = interrupts(&mut client, queues)?;
        turn_on(&mut client)?;
        // A server without them is told by messages.
        let bells = match client.io_fds(REGION_BAR0) {
            Ok(bells) => bells,
            Err(Trouble { wrong: Wrong::Refused(_), .. }) => Vec::new(),
            Err(trouble) => return Err(trouble.into()),
        };
        let options = host::Options {
            // A function knows no names; they must be well-formed all the same.
            host_nqn: NAME.into(),
            host_id: [0; 16],
            subsystem_nqn: NAME.into(),
            queues: asked.min(vectors - 1),
            queue_entries: entries,
            keep_alive_ms: 0,
            timeout_ms: within.as_millis() as u64,
            namespace,
        };
        let host = Host::new(options, memory.address(), 0);
        Ok(Function {
            client,
            host,
            memory: Arc::new(memory),
            interrupts,
            bells,
            entries,
            created: BTreeMap::new(),
            wanted: 0,
            began: monotonic_now(),
        })
    }

    /// Signalled when the admin queue has completions.
    pub(crate) fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupts[0].as_fd()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(crate) fn step(&mut self) -> Result<Step, Ended> {
        let now = self.now_ms();
        let mut bar = Registers(&mut self.client);
        Ok(self.host.next(&mut bar, &*self.memory, now)?)
    }

    /// The controller is up: asks for its I/O queues. How many there will be.
    pub(crate) fn create_queues(&mut self) -> u16 {
        let info = self.host.session().controller();
        let entries = self.entries.min(info.queue_entries);
        self.wanted = info.queues.min(self.interrupts.len() as u16 - 1);
        for qid in 1..=self.wanted {
            let (address, _) = self.place(qid);
            self.host.create_queue(qid, entries, address, Some(qid));
        }
        self.wanted
    }

    /// True: it was the last.
    pub(crate) fn created(&mut self, queue: HostQueue) -> bool {
        self.created.insert(queue.id(), queue);
        self.created.len() == usize::from(self.wanted)
    }

    /// Returns the places of a queue pair and its lists.
    fn place(&self, qid: u16) -> (u64, u64) {
        let at = self.memory.address() + MEMORY_BYTES + u64::from(qid - 1) * pair_bytes(self.entries);
        (at, at + queue_bytes(self.entries).next_multiple_of(PAGE))
    }

    /// Returns what workers need, once all queues are there.
    pub(crate) fn live(&mut self, number: u64) -> Live {
        let created = std::mem::take(&mut self.created);
        let pair = |(qid, queue): (u16, HostQueue)| {
            let lists = (0..lists(self.entries)).map(|n| self.place(qid).1 + n * PAGE).collect();
            let bells = [Doorbell::Submission(qid), Doorbell::Completion(qid)].map(|bell| self.bell(bell));
            let interrupt = self.interrupts[usize::from(qid)].clone();
            (qid, PairParts { queue, memory: self.memory.clone(), interrupt, bells, lists })
        };
        let pairs = created.into_iter().map(pair).collect::<BTreeMap<_, _>>();
        let session = self.host.session();
        let controller = session.controller().clone();
        Live {
            number,
            queues: pairs.len() as u16,
            sgl: Controller::read(&controller.raw).is_some_and(|c| matches!(c.sgls.get() & 0b11, 1 | 2)),
            controller,
            pairs: Mutex::new(pairs),
        }
    }

    fn bell(&self, doorbell: Doorbell) -> Bell {
        let offset = doorbell.offset(self.host.capabilities().doorbell_stride());
        let bell = self.bells.iter().find(|bell| bell.offset == offset);
        // A descriptor carries no value: the shadow doorbell does.
        match bell.filter(|_| self.host.shadow().is_some()) {
            Some(bell) => Bell::Descriptor(bell.fd.clone()),
            None => Bell::Line(self.client.line()),
        }
    }

    /// Stops the controller, so that it touches memory no more. False: it doesn't.
    pub(crate) fn quiesce(&mut self) -> bool {
        self.stop_controller().unwrap_or_else(|trouble| matches!(trouble.wrong, Wrong::Gone(_)))
    }

    fn stop_controller(&mut self) -> Result<bool, Trouble> {
        let until = monotonic_now() + RESET_WITHIN;
        let cc = self.register(register::CC)?;
        let off = (cc & !register::CC_ENABLE).to_le_bytes();
        self.client.write(REGION_BAR0, register::CC, &off)?;
        while self.register(register::CSTS)? & register::CSTS_READY != 0 {
            if monotonic_now() >= until {
                return Ok(false);
            }
            std::thread::sleep(RESET_POLL);
        }
        Ok(true)
    }

    fn register(&mut self, offset: u64) -> Result<u32, Trouble> {
        let mut value = [0; 4];
        self.client.read(REGION_BAR0, offset, &mut value)?;
        Ok(u32::from_le_bytes(value))
    }
}

/// Checks that it emulates an NVMe controller on PCI.
fn is_nvme(client: &mut Client) -> Result<(), Ended> {
    if !client.info()?.is_pci {
        return Err(refused("what it emulates is not a PCI device"));
    }
    let class = read_config::<4>(client, config::CLASS).map(u32::from_le_bytes)? >> 8;
    if class != config::CLASS_NVME {
        return Err(refused(format!(
            "what it emulates is not an NVMe controller: its class is {class:#08x}"
        )));
    }
    Ok(())
}

fn lists(entries: u16) -> u64 {
    u64::from(entries).min(LISTS_MAX)
}

fn pair_bytes(entries: u16) -> u64 {
    queue_bytes(entries).next_multiple_of(PAGE) + lists(entries) * PAGE
}

/// A descriptor for each vector. The admin queue's is polled; those of I/O queues are read by a ring, which a
/// descriptor that never blocks would refuse at once.
fn interrupts(client: &mut Client, queues: u16) -> Result<Vec<Arc<OwnedFd>>, Ended> {
    let flags = |vector| if vector == 0 { EventfdFlags::NONBLOCK } else { EventfdFlags::empty() };
    let make = |vector| eventfd(0, EventfdFlags::CLOEXEC | flags(vector)).map(Arc::new);
    let fds: Vec<Arc<OwnedFd>> = (0..=queues)
        .map(make)
        .collect::<Result<_, _>>()
        .map_err(|e| refused(format!("no descriptors for its interrupts: {e} (ulimit -n)")))?;
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    client.set_interrupts(IRQ_MSIX, &borrowed)?;
    Ok(fds)
}

fn read_config<const N: usize>(client: &mut Client, offset: u64) -> Result<[u8; N], Trouble> {
    let mut value = [0; N];
    client.read(REGION_CONFIG, offset, &mut value)?;
    Ok(value)
}

/// Lets the function see memory, and interrupt.
fn turn_on(client: &mut Client) -> Result<(), Trouble> {
    let command = u16::from_le_bytes(read_config(client, config::COMMAND)?) | config::COMMAND_ON;
    client.write(REGION_CONFIG, config::COMMAND, &command.to_le_bytes())?;
    let status = u16::from_le_bytes(read_config(client, config::STATUS)?);
    if status & config::STATUS_CAPABILITIES == 0 {
        return Ok(());
    }
    let [mut at] = read_config(client, config::CAPABILITIES)?;
    for _ in 0..config::CAPABILITIES_MAX {
        // The two lowest bits are reserved; nothing lies in the header.
        at &= !0b11;
        if at < 0x40 {
            break;
        }
        let [id, next] = read_config(client, at.into())?;
        if id == config::MSIX {
            let control = u16::from_le_bytes(read_config(client, u64::from(at) + 2)?) | config::MSIX_ENABLE;
            return client.write(REGION_CONFIG, u64::from(at) + 2, &control.to_le_bytes());
        }
        at = next;
    }
    Ok(())
}

/// Waits until the controller, `wake` or the clock has something. `setup`: the controller is coming up or going, and is
/// looked at often. Err: the connection is over.
pub(super) fn wait(
    function: &mut Function,
    until_ms: u64,
    wake: Option<BorrowedFd<'_>>,
    setup: bool,
) -> Result<(), Ended> {
    let poll_ms = if setup { SETUP_POLL_MS } else { POLL_MS };
    let left = until_ms.saturating_sub(function.now_ms()).min(poll_ms);
    let limit = Timespec { tv_sec: (left / 1000) as i64, tv_nsec: (left % 1000 * 1_000_000) as i64 };
    let all = [Some(function.client.socket()), Some(function.interrupt()), wake];
    let mut fds: Vec<PollFd<'_>> =
        all.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&limit));
    let heard = !fds[0].revents().is_empty();
    // What these eventfds have counted; they never block.
    for fd in all.into_iter().skip(1).flatten() {
        let _ = rustix::io::read(fd, &mut [0u8; 8]);
    }
    if !heard {
        return Ok(());
    }
    function.client.drain().map_err(|wrong| {
        let gone = matches!(wrong, Wrong::Gone(_));
        Ended { cause: Cause::Other, why: wrong.to_string(), for_good: false, clean: gone }
    })
}

/// An event in words, for the record; None for those that aren't worth one.
pub(super) fn words(event: &Event) -> Option<String> {
    match event {
        Event::Warning(result) => Some(format!("the controller warns, event {result:#x}")),
        Event::Gone(nsid) => Some(format!("namespace {nsid} is gone")),
        Event::Changed(nsid) => Some(format!("namespace {nsid} changed")),
        Event::Ready | Event::Ana => None,
    }
}
