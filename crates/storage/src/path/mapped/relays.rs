//! Windows that processors copy when a file is first read, while others are registered: the driver registers pages at 0.6 to
//! 0.85 of the link's rate, and what it leaves of the link is theirs. The next pass finds the others registered, and has
//! these registered, too.

use super::bounced::Bounced;
use super::file::Phase;
use super::flights::{Flights, PieceState};
use super::windows::Windows;
use forebay_io::{monotonic_now, CudaDevice, Fault, Mem, Relay, RelayFill, RelayMemory, Via};
use forebay_model::job::JobSpec;
use forebay_model::Error;
use std::cell::RefCell;
use std::collections::VecDeque;
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
const POLL_INTERVAL: Duration = Duration::from_micros(100);
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
    (Relay::useful() as u32).div_ceil(job.workers.max(1))
}

/// Relays of a worker, which its queues share.
#[derive(Clone)]
pub(crate) struct Relays(Rc<RefCell<Vec<Relay>>>);

impl Relays {
    /// # Errors
    /// As for `Relay::open`.
    pub(crate) fn open(device: &Arc<CudaDevice>, count: u32, slot_bytes: usize) -> Result<Relays, Error> {
        let memory = RelayMemory::allocate(count as usize, slot_bytes)?;
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
struct Relayed {
    id: u32,
    relay: usize,
    block: u32,
    outcome: Arc<Outcome>,
    since: Instant,
}

/// Pieces of windows that were left out, which the worker's relays carry.
pub(super) struct LeftOut {
    /// None: its worker has none, and nothing is carried.
    relays: Option<Relays>,
    /// Pieces that wait for a relay, and those that have one.
    waiting: VecDeque<u32>,
    relayed: Vec<Relayed>,
}

impl LeftOut {
    pub(super) fn new(relays: Option<Relays>) -> LeftOut {
        LeftOut { relays, waiting: VecDeque::new(), relayed: Vec::new() }
    }

    /// Returns whether pieces of a window in this phase belong here.
    pub(super) fn takes(&self, phase: Phase) -> bool {
        self.relays.is_some() && phase == Phase::Left
    }

    /// Takes a piece that is no longer than a staging slot.
    pub(super) fn add(&mut self, id: u32) {
        self.waiting.push_back(id);
    }

    /// Hands pieces to relays, as far as those have room; what none can carry is bounced, as what isn't cached is.
    pub(super) fn relay(&mut self, flights: &mut Flights, windows: &Windows, bounced: &mut Bounced) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(relays) = self.relays.as_ref().filter(|relays| relays.are_whole()) else {
            return self.waiting.drain(..).for_each(|id| bounced.add(id));
        };
        let mut open = relays.0.borrow_mut();
        let worth = Relay::TOGETHER.min(self.waiting.len() as u32);
        if !open.iter().any(|relay| relay.room() >= worth) {
            return;
        }
        let _turn = windows.turn();
        while let Some(id) = self.waiting.front().copied() {
            let (number, relay) =
                open.iter_mut().enumerate().max_by_key(|(_, relay)| relay.room()).expect("there are some");
            if relay.room() == 0 {
                return;
            }
            self.waiting.pop_front();
            let piece = flights.piece(id);
            let Mem::Device { at: to, .. } = flights.mem_of(id) else { unreachable!("bytes for a GPU") };
            let (before, outcome) = (relay.last(), Arc::new(Outcome::default()));
            let fill = filling(windows.file().target.file.clone(), piece.offset, outcome.clone());
            match relay.queue(fill, to, piece.len as usize) {
                Ok(()) => {
                    flights.piece_mut(id).place = PieceState::Relayed;
                    let block = relay.last();
                    self.relayed.push(Relayed { id, relay: number, block, outcome, since: monotonic_now() });
                }
                // Nothing of it was queued.
                Err(_) if relay.last() == before => {
                    relay.drain();
                    bounced.add(id);
                    return;
                }
                Err(why) => {
                    relay.drain();
                    flights.end(id, Err(Fault::note(libc::EIO, why.to_string())), Via::Nothing, 0);
                    return;
                }
            }
        }
    }

    /// Ends the pieces that have arrived.
    pub(super) fn reap(&mut self, flights: &mut Flights) {
        let Some(relays) = self.relays.as_ref().filter(|_| !self.relayed.is_empty()) else { return };
        let mut open = relays.0.borrow_mut();
        let now = monotonic_now();
        if self.relayed.iter().any(|r| now.duration_since(r.since) > LATE) {
            open.iter_mut().for_each(Relay::drain);
        }
        self.relayed.retain(|r| {
            let is_over = open[r.relay].is_over(r.block);
            if is_over {
                let result = match r.outcome.errno.load(Ordering::Acquire) {
                    _ if !open[r.relay].has_copied(r.block) => {
                        Err(Fault::note(libc::EIO, "a copy to the GPU failed; forebay doctor"))
                    }
                    0 => Ok(r.outcome.bytes.load(Ordering::Acquire)),
                    errno => Err(Fault::errno(errno)),
                };
                flights.end(r.id, result, Via::Staged, 0);
            }
            !is_over
        });
    }

    /// Ends an I/O's pieces that wait.
    pub(super) fn abandon(&mut self, tag: u32, flights: &mut Flights) {
        flights.cancel_of(tag, &mut self.waiting);
    }

    /// Waits until nothing is written any more for this queue.
    pub(super) fn finish(&mut self) {
        if let (false, Some(relays)) = (self.relayed.is_empty(), &self.relays) {
            relays.0.borrow_mut().iter_mut().for_each(Relay::drain);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        (!self.relayed.is_empty() || !self.waiting.is_empty()).then(|| monotonic_now() + POLL_INTERVAL)
    }
}

/// Reads a piece out of the page cache, which reads in what it lacks.
fn filling(file: Arc<File>, offset: u64, outcome: Arc<Outcome>) -> RelayFill {
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
