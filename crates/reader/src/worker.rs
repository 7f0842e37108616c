//! One thread of the thread pool: its slots, its streams, and how it fills a part.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

mod fetch;
mod mix;
mod stage;

pub(crate) use fetch::copied_here;

use super::layout::{
    add, aligned, choose, copy_out, direct, failed, plain, short, split, Layout, Manner, Run,
};
use super::load::{self, Load, Loader};
use super::many::Opened;
use super::request::{Place, Range, Request, Source};
use super::windows::{Gathered, Windows};
use super::SLOT_BYTES;
use forebay_io::arena::Arena;
use forebay_io::clock;
use forebay_io::gpu::cuda::{Cuda, CudaError, Device, DeviceMemory, Event, Registered, Stream};
use forebay_model::Error;
use forebay_storage::path::mapped::Wakeup;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Slot sizes that are tried in turn where pinning is refused.
const SLOT_BYTES_TRIED: [usize; 4] = [SLOT_BYTES, 1 << 20, 256 << 10, 64 << 10];
/// Time between two queries of a copy: a sleep costs less than a query. `NAP` is half of the 80 µs of a 4 MiB copy;
/// copies below `SHORT_COPY` and above `LONG_COPY` have their own.
const NAP: Duration = Duration::from_micros(40);
const NAP_SHORT: Duration = Duration::from_micros(5);
const NAP_LONG: Duration = Duration::from_micros(250);
/// At most this much is lost at the end of a request, and this much where it came sooner than the one before.
const NAP_MAX: Duration = Duration::from_millis(1);
const NAP_FIRST_MAX: Duration = Duration::from_millis(4);
/// Copies below this are over before a nap would be.
const SHORT_COPY: usize = 256 << 10;
/// Copies above this take a millisecond or more.
const LONG_COPY: usize = 32 << 20;

/// Returns the time to sleep: a quarter of the time waited so far behind other workers' copies; for a long copy half
/// of what the last one took.
fn nap(bytes: usize, waited: Duration, last: Duration) -> Duration {
    if bytes >= LONG_COPY && waited < NAP_LONG {
        return (last / 2).clamp(NAP_LONG, NAP_FIRST_MAX);
    }
    let least = match bytes {
        0..SHORT_COPY => NAP_SHORT,
        SHORT_COPY..LONG_COPY => NAP,
        _ => NAP_LONG,
    };
    least.max((waited / 4).min(NAP_MAX))
}

/// Slots, pinned once a GPU is fed from them. Fields in the order in which they must go.
struct Stage {
    pinned: Option<Registered>,
    arena: Arena,
    free: Vec<usize>,
    /// True if it isn't known of some slot whether the device still reads it: its context failed.
    lost: bool,
}

impl Stage {
    /// Unpins the slots; memory that the device may still read stays where it is.
    fn give_back(self) {
        let Stage { pinned, arena, lost, .. } = self;
        drop(pinned);
        if lost {
            std::mem::forget(arena);
        }
    }
}

/// One GPU, seen from this worker.
struct Outlet {
    device: Arc<Device>,
    stream: Arc<Mutex<Stream>>,
    spare: Vec<Event>,
    /// Numbers of rows, for each slot.
    numbers: Option<DeviceMemory>,
}

/// Origin of copies.
enum From {
    Slot(usize),
    /// A registered window: its number, and the file's generation when the copy was queued.
    Window(Arc<Windows>, u32, u64),
    /// Rows out of several, whose numbers came through the slot, or lay there; for a request that others of its copies may end.
    Rows(Arc<Windows>, Gathered, Option<usize>, Arc<Request>),
}

/// Copies under way.
struct Flight {
    gpu: u32,
    from: From,
    bytes: usize,
    event: Event,
    /// The request of which a part ends with it.
    ends: Option<Arc<Request>>,
}

#[derive(Default)]
pub(crate) struct Worker {
    loader: Loader,
    flights: VecDeque<Flight>,
    outlets: Vec<Outlet>,
    stage: Option<Stage>,
    wakeup: Option<Arc<Wakeup>>,
    /// Time for which the last copy was waited for.
    waited: Duration,
}

// SAFETY: a worker moves to its thread before it has any slot, and stays there.
unsafe impl Send for Worker {}

impl Worker {
    pub(crate) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Reads one part, and queues its copies where it goes to a GPU.
    pub(crate) fn serve(&mut self, request: &Arc<Request>, index: usize) {
        let source = request.source();
        let done = match request.table() {
            _ if request.is_dropped() => Ok(None),
            Some(table) => self.fill_rows(request, &source, table, index),
            None => {
                let part = request.part(index);
                match part[0].to.gpu() {
                    None => self.fill_host(request, &source, part).map(|()| None),
                    Some(gpu) => self.feed_gpu(request, &source, part, gpu).map(Some),
                }
            }
        };
        // The request lets go of its file at its end, and so must we.
        drop(source);
        match done {
            // Its last flight ends the part.
            Ok(Some(stream)) => request.part_queued(Some(&stream)),
            Ok(None) => {
                request.part_queued(None);
                request.part_done();
            }
            Err(error) => {
                request.fail(error);
                self.drain();
                request.part_queued(None);
                request.part_done();
            }
        }
    }

    /// Lets go of what has been copied. `wait`: naps until something has.
    pub(crate) fn reap(&mut self, wait: bool) {
        let began = wait.then(clock::now);
        while let Some(flight) = self.flights.front() {
            match (flight.event.is_done(), began) {
                (Ok(false), Some(began)) => {
                    std::thread::sleep(nap(flight.bytes, began.elapsed(), self.waited));
                    continue;
                }
                (Ok(false), None) => return,
                (Ok(true), _) => self.land(None),
                (Err(why), _) => self.land(Some(&why)),
            }
            if let Some(began) = began {
                self.waited = began.elapsed();
                return;
            }
        }
    }

    fn land(&mut self, failed: Option<&CudaError>) {
        let Some(flight) = self.flights.pop_front() else { return };
        let unchanged = match flight.from {
            From::Slot(slot) => {
                self.give_slot_back(slot, failed.is_none());
                true
            }
            From::Window(windows, number, generation) => windows.release(number, generation),
            From::Rows(windows, held, slot, request) => {
                if let Some(slot) = slot {
                    self.give_slot_back(slot, failed.is_none());
                }
                let unchanged = windows.release_all(&held);
                if !unchanged && flight.ends.is_none() {
                    request.fail(request.changed());
                }
                unchanged
            }
        };
        if let Some(outlet) = self.outlets.iter_mut().find(|o| o.device.index() == flight.gpu) {
            outlet.spare.push(flight.event);
        }
        if let Some(request) = flight.ends {
            if let Some(why) = failed {
                request.fail(copy_failed(flight.gpu, why));
            } else if !unchanged {
                request.fail(request.changed());
            }
            request.part_done();
        }
    }

    /// Waits for every copy under way.
    pub(crate) fn drain(&mut self) {
        for outlet in &self.outlets {
            // What fails here fails again when its event is looked at.
            let _ = outlet.stream.lock().expect("no holder panics").synchronize();
        }
        while self.has_flights() {
            self.reap(true);
        }
    }

    // Towards host memory ---------------------------------------------------------------------------

    fn fill_host(&mut self, request: &Request, source: &Source, part: &[Range]) -> Result<(), Error> {
        let mut loads = Vec::new();
        let mut opened = Opened::default();
        for (tag, piece) in part.iter().enumerate() {
            let Place::Host(at) = piece.to else { unreachable!("parts have one kind of place") };
            let at = at as *mut u8;
            let way = choose(source, piece, &mut opened)?;
            match way {
                Manner::Mapped(from) => copy_out(piece, from, at, source)?,
                // SAFETY: the destination's owner keeps it until the request has ended.
                Manner::Cached(fd) => match unsafe { load::cached(fd, piece.offset, at, piece.bytes) } {
                    Ok(Some(_)) => {}
                    Ok(None) => loads.push(plain(fd, piece, at, tag)),
                    Err(why) => return Err(failed(source, piece, &why)),
                },
                Manner::Direct(fd, unit) if aligned(piece, at, unit) => {
                    add(&request.counts.direct, piece.bytes);
                    add(&request.counts.uncached, piece.bytes);
                    loads.push(plain(fd, piece, at, tag));
                    continue;
                }
                Manner::Direct(fd, _) => {
                    self.through_slot(source, piece, fd, at)?;
                    add(&request.counts.uncached, piece.bytes);
                }
            }
            add(&request.counts.staged, piece.bytes);
        }
        self.run(source, part, &mut loads)?;
        opened.check_unchanged(source)
    }

    /// O_DIRECT into memory that isn't aligned for it.
    fn through_slot(&mut self, source: &Source, piece: &Range, fd: RawFd, to: *mut u8) -> Result<(), Error> {
        let (slot, slot_bytes) = self.free_slot(None)?;
        let base = self.slot_at(slot);
        let done = split(std::slice::from_ref(piece), slot_bytes).iter().try_fold(0, |done, piece| {
            let (mut load, head) = direct(fd, piece, base, 0);
            self.run(source, std::slice::from_ref(piece), std::slice::from_mut(&mut load))?;
            // SAFETY: the slot holds head + bytes, as was just read; the destination is its owner's promise.
            unsafe { std::ptr::copy_nonoverlapping(base.add(head), to.add(done), piece.bytes) };
            Ok(done + piece.bytes)
        });
        self.stage.as_mut().expect("it gave the slot").free.push(slot);
        done.map(|_| ())
    }

    fn run(&mut self, source: &Source, part: &[Range], loads: &mut [Load]) -> Result<(), Error> {
        // SAFETY: loads are made for slots and places that hold what they ask for.
        unsafe { self.loader.run(loads) }.map_err(|(tag, why)| failed(source, &part[tag], &why))?;
        match loads.iter().find(|l| l.got < l.want) {
            Some(l) => Err(short(source, &part[l.tag], l.offset + l.got as u64)),
            None => Ok(()),
        }
    }

    // Towards a GPU ---------------------------------------------------------------------------------

    fn feed_gpu(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        part: &[Range],
        gpu: u32,
    ) -> Result<Arc<Mutex<Stream>>, Error> {
        let (outlet, stream) = self.outlet_after(request, gpu)?;
        if part[0].bytes > SLOT_BYTES && self.queue_window(request, source, &part[0], outlet)? {
            return Ok(stream);
        }
        self.feed_slots(request, source, part, outlet)?;
        self.ends_with_the_last(request);
        Ok(stream)
    }

    /// The GPU's outlet, whose stream waits for what must end before bytes are written.
    fn outlet_after(&mut self, request: &Request, gpu: u32) -> Result<(usize, Arc<Mutex<Stream>>), Error> {
        let outlet = self.outlet(gpu)?;
        let stream = self.outlets[outlet].stream.clone();
        for after in &request.after {
            let after = after.lock().expect("no holder panics");
            let waits = stream.lock().expect("no holder panics").wait_for(&after);
            waits.map_err(|why| copy_failed(gpu, &why))?;
        }
        Ok((outlet, stream))
    }

    fn ends_with_the_last(&mut self, request: &Arc<Request>) {
        match self.flights.back_mut() {
            Some(last) => last.ends = Some(request.clone()),
            None => unreachable!("a part has a byte at least, and its copy a flight"),
        }
    }

    /// Through slots, and from there to the GPU.
    fn feed_slots(
        &mut self,
        request: &Request,
        source: &Source,
        part: &[Range],
        outlet: usize,
    ) -> Result<(), Error> {
        let slot_bytes = self.free_slot_bytes(outlet)?;
        let mut rest: Cow<[Range]> = split(part, slot_bytes);
        let mut uncached = Vec::new();
        let mut past_cache = false;
        loop {
            let taken = self.fill_slot(request, source, &rest, &mut uncached, past_cache, outlet)?;
            rest = Cow::Owned(rest[taken..].to_vec());
            if rest.is_empty() && !uncached.is_empty() {
                // What the page cache lacks comes by O_DIRECT, all at once.
                rest = Cow::Owned(std::mem::take(&mut uncached));
                past_cache = true;
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// A copy by the GPU out of a window of the page cache. False where its bytes must go another way.
    fn queue_window(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        piece: &Range,
        outlet: usize,
    ) -> Result<bool, Error> {
        let (Source::One { reader, .. }, Place::Device { gpu, at: to }) = (source, piece.to) else {
            return Ok(false);
        };
        let Some(windows) = reader.windows() else { return Ok(false) };
        let wakeup = self.wakeup.get_or_insert_with(wakes_this_thread).clone();
        let meanwhile = || {
            self.reap(false);
            !request.is_dropped()
        };
        let Some(held) = windows.hold(piece.offset, &wakeup, meanwhile) else { return Ok(false) };
        let outlet = &mut self.outlets[outlet];
        let queued = held.queue(&wakeup, || {
            let stream = outlet.stream.lock().expect("no holder panics");
            // SAFETY: the window holds the piece, and stays registered until it is released, after the event below;
            // the destination is its owner's promise.
            unsafe { stream.copy_to_device(to, held.at, piece.bytes)? };
            let event = outlet.spare.pop().map_or_else(|| outlet.device.event(), Ok)?;
            stream.record(&event).map(|()| event)
        });
        let from = From::Window(windows.clone(), held.number, held.generation);
        match queued {
            Ok(event) => {
                let ends = Some(request.clone());
                self.flights.push_back(Flight { gpu, from, bytes: piece.bytes, event, ends });
                add(&request.counts.mapped, piece.bytes);
                Ok(true)
            }
            Err(why) => {
                let _ = outlet.stream.lock().expect("no holder panics").synchronize();
                windows.release(held.number, held.generation);
                Err(copy_failed(gpu, &why))
            }
        }
    }

    /// Fills one slot with the first of `pieces` and queues its copies; how many pieces it took. Short ones that
    /// aren't cached are put off into `uncached`, to be read past the cache together.
    fn fill_slot(
        &mut self,
        request: &Request,
        source: &Source,
        pieces: &[Range],
        uncached: &mut Vec<Range>,
        past_cache: bool,
        outlet: usize,
    ) -> Result<usize, Error> {
        let (slot, slot_bytes) = self.free_slot(Some(outlet))?;
        let base = self.slot_at(slot);
        let mut layout = Layout::new(base, slot_bytes);
        let mut opened = Opened::default();
        let laid = layout.lay(request, source, pieces, uncached, past_cache, &mut opened);
        let Layout { mut loads, runs, .. } = layout;
        let filled = laid.and_then(|taken| {
            self.run(source, pieces, &mut loads)?;
            opened.check_unchanged(source).map(|()| taken)
        });
        let sent = filled.and_then(|taken| {
            let sent = if runs.is_empty() {
                Ok(())
            } else {
                in_turn(source, || self.send(outlet, slot, base, &runs))
            };
            sent.map(|()| taken).map_err(|why| copy_failed(self.outlets[outlet].device.index(), &why))
        });
        if runs.is_empty() {
            self.give_slot_back(slot, true);
        } else if sent.is_err() {
            self.give_slot_up(outlet, slot);
        }
        sent
    }

    fn send(&mut self, outlet: usize, slot: usize, base: *mut u8, runs: &[Run]) -> Cuda<()> {
        let outlet = &mut self.outlets[outlet];
        let stream = outlet.stream.lock().expect("no holder panics");
        for run in runs {
            // SAFETY: the run lies in the slot, which stays taken until the event below has passed; the
            // destination is its owner's promise.
            unsafe { stream.copy_to_device(run.to, base.add(run.from), run.bytes)? };
        }
        let event = outlet.spare.pop().map_or_else(|| outlet.device.event(), Ok)?;
        stream.record(&event)?;
        let (gpu, bytes) = (outlet.device.index(), runs.iter().map(|r| r.bytes).sum());
        self.flights.push_back(Flight { gpu, from: From::Slot(slot), bytes, event, ends: None });
        Ok(())
    }

    // What it works with ----------------------------------------------------------------------------
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.drain();
        if let Some(stage) = self.stage.take() {
            stage.give_back();
        }
    }
}

/// Calls the driver. While the file is being registered each call waits for a window, and this one has the next turn.
fn in_turn<T>(source: &Source, call: impl FnOnce() -> T) -> T {
    match source {
        Source::One { reader, .. } if reader.is_registering() => match reader.windows() {
            Some(windows) => windows.turn(call),
            None => call(),
        },
        _ => call(),
    }
}

/// Rung by the registrar when a window was decided on.
fn wakes_this_thread() -> Arc<Wakeup> {
    let thread = std::thread::current();
    Wakeup::new(move || thread.unpark())
}

fn copy_failed(gpu: u32, why: &CudaError) -> Error {
    let next = "if the CUDA context is gone, a new process; forebay doctor";
    Error::run(format!("copy to GPU {gpu}"), why.to_string(), next)
}
