//! Windows that processors copy when a file is first read, while others are registered: the driver registers pages at 0.6 to
//! 0.85 of the link's rate, and what it leaves of the link is theirs. The next pass finds the others registered, and has
//! these registered, too.

use super::{MappedQueue, Place};
use forebay_io::arena::Mem;
use forebay_io::clock;
use forebay_io::gpu::cuda::Device;
use forebay_io::gpu::relay::{self, Fill, Memory, Relay, TOGETHER};
use forebay_io::queue::{Fault, Via};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More workers would each need some of their own.
const WORKERS_MAX: u32 = 2;
/// Windows of an eighth of what is in flight: some are being registered, one is copied, and others are read
/// meanwhile. Shorter ones register at a lower rate.
pub(crate) const WINDOWS_IN_FLIGHT: u64 = 8;
/// Longer ones register no faster then, and the relays need longer for one than others take to be registered.
pub(crate) const RELAYED_WINDOW_BYTES_MAX: u64 = 32 << 20;
const IN_FLIGHT_BYTES_MIN: u64 = WINDOWS_IN_FLIGHT * (16 << 20);
/// Interval at which copies are checked: a look at a word of memory.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// If a copy takes so long, the driver is asked whether it still goes on.
const LATE: Duration = Duration::from_secs(1);

/// Returns the number of relays of each worker of a job, whose readers keep so many bytes under way together; 0: all
/// its windows are registered, if they may be.
pub(crate) fn relays_of(job: &JobSpec, in_flight_bytes: u64) -> u32 {
    let pays = !job.op.is_random() && in_flight_bytes >= IN_FLIGHT_BYTES_MIN;
    let has_room = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    if !pays || !has_room || job.workers > WORKERS_MAX {
        return 0;
    }
    (relay::useful() as u32).div_ceil(job.workers.max(1))
}

/// Relays of a worker, which its queues share.
#[derive(Clone)]
pub(crate) struct Relays(Rc<RefCell<Vec<Relay>>>);

impl Relays {
    /// # Errors
    /// As for `Relay::open`.
    pub(crate) fn open(device: &Arc<Device>, count: u32, slot_bytes: usize) -> Result<Relays, Error> {
        let memory = Memory::of(count as usize, slot_bytes)?;
        let opened = memory.into_iter().map(|memory| Relay::open(device, memory)).collect::<Result<_, _>>();
        opened.map(|relays: Vec<Relay>| Relays(Rc::new(RefCell::new(relays))))
    }

    fn are_whole(&self) -> bool {
        !self.0.borrow().iter().any(Relay::is_broken)
    }
}

/// Outcome of a block.
#[derive(Default)]
struct Outcome {
    bytes: AtomicU32,
    errno: AtomicI32,
}

/// A piece on its way by a relay.
pub(super) struct Relayed {
    id: u32,
    relay: usize,
    block: u32,
    outcome: Arc<Outcome>,
    since: Instant,
}

impl MappedQueue {
    /// Hands pieces of windows that were left out to relays, as far as those have room.
    pub(super) fn relay(&mut self) {
        if self.left.is_empty() {
            return;
        }
        let Some(relays) = self.relays.clone().filter(Relays::are_whole) else {
            return self.bounce_left();
        };
        let mut open = relays.0.borrow_mut();
        let worth = TOGETHER.min(self.left.len() as u32);
        if !open.iter().any(|relay| relay.room() >= worth) {
            return;
        }
        let registry = self.registry.clone();
        let _turn = registry.turns().enter();
        while let Some(id) = self.left.front().copied() {
            let (number, relay) =
                open.iter_mut().enumerate().max_by_key(|(_, relay)| relay.room()).expect("there are some");
            if relay.room() == 0 {
                return;
            }
            self.left.pop_front();
            let piece = self.pieces[id as usize];
            let Mem::Device { at: to, .. } = self.flight(piece.tag).io.mem.after(piece.at as usize) else {
                unreachable!("bytes for a GPU")
            };
            let (before, outcome) = (relay.last(), Arc::new(Outcome::default()));
            let fill = filling(self.file.target.file.clone(), piece.offset, outcome.clone());
            let queued = relay.queue(fill, to, piece.len as usize);
            match queued {
                Ok(()) => {
                    self.pieces[id as usize].place = Place::Relayed;
                    let block = relay.last();
                    self.relayed.push(Relayed { id, relay: number, block, outcome, since: clock::now() });
                }
                // Nothing of it was queued.
                Err(_) if relay.last() == before => {
                    relay.drain();
                    self.unstaged.push_back(id);
                    return;
                }
                Err(why) => {
                    relay.drain();
                    self.end_piece(id, Err(Fault::note(libc::EIO, why.to_string())), Via::Nothing, 0);
                    return;
                }
            }
        }
    }

    /// Without relays, what was left to them is read as what isn't cached is.
    pub(super) fn bounce_left(&mut self) {
        while let Some(id) = self.left.pop_front() {
            self.unstaged.push_back(id);
        }
    }

    pub(super) fn reap_relayed(&mut self) {
        if self.relayed.is_empty() {
            return;
        }
        let relays = self.relays.clone().expect("it has pieces");
        let mut open = relays.0.borrow_mut();
        let now = clock::now();
        if self.relayed.iter().any(|r| now.duration_since(r.since) > LATE) {
            open.iter_mut().for_each(Relay::drain);
        }
        let mut ended = Vec::new();
        self.relayed.retain(|r| {
            let over = open[r.relay].is_over(r.block);
            if over {
                ended.push((r.id, r.outcome.clone(), open[r.relay].has_copied(r.block)));
            }
            !over
        });
        for (id, outcome, has_copied) in ended {
            let result = match outcome.errno.load(Ordering::Acquire) {
                _ if !has_copied => Err(Fault::note(libc::EIO, "a copy to the GPU failed; forebay doctor")),
                0 => Ok(outcome.bytes.load(Ordering::Acquire)),
                errno => Err(Fault::errno(errno)),
            };
            self.end_piece(id, result, Via::Staged, 0);
        }
    }

    /// Waits until nothing is written any more for this queue.
    pub(super) fn end_relayed(&mut self) {
        if let (false, Some(relays)) = (self.relayed.is_empty(), &self.relays) {
            relays.0.borrow_mut().iter_mut().for_each(Relay::drain);
        }
    }

    pub(super) fn relays_due(&self) -> Option<Instant> {
        (!self.relayed.is_empty() || !self.left.is_empty()).then(|| clock::now() + LOOK_AGAIN)
    }
}

/// Reads a piece out of the page cache, which reads in what it lacks.
fn filling(file: Arc<File>, offset: u64, outcome: Arc<Outcome>) -> Fill {
    Box::new(move |buffer| {
        let mut got = 0;
        while got < buffer.len() {
            match file.read_at(&mut buffer[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(bytes) => got += bytes,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    outcome.errno.store(e.raw_os_error().unwrap_or(libc::EIO), Ordering::Release);
                    return;
                }
            }
        }
        outcome.bytes.store(got as u32, Ordering::Release);
    })
}
