//! Copies from a worker to its GPUs: pinned slots that they start from, a stream for each GPU, and what is under way on it.
//! A slot, or a window of a file, is kept from whatever else until the copies out of it have ended.

#![allow(unsafe_code, reason = "memory that Python lends, by address")]

use crate::devices;
use crate::kept::KeptMemory;
use crate::pages::{data_bytes, PagePart, Pages, LIST_BYTES, PIECES_MAX};
use crate::place::Run;
use crate::request::Request;
use crate::room::Room;
use crate::rows::NUMBERS_BYTES;
use crate::windows::{Gathered, Windows};
use crate::{SLOTS, SLOT_BYTES};
use forebay_io::{
    monotonic_now, Cuda, CudaDevice, CudaError, CudaEvent, CudaHostCopies, CudaStream, DeviceMemory, GpuRows,
    RegisteredMemory, RowPiece, RowScatter,
};
use forebay_model::job;
use forebay_model::Error;
use std::collections::VecDeque;
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
/// More copies than this take longer than one launch that scatters.
pub(super) const COPIES_MAX: usize = 4;
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
    pinned: Option<RegisteredMemory>,
    arena: KeptMemory,
    free: Vec<usize>,
    /// True if it isn't known of some slot whether the device still reads it: its context failed.
    lost: bool,
}

impl Stage {
    fn new(arena: KeptMemory, pinned: Option<RegisteredMemory>) -> Stage {
        Stage { pinned, arena, free: (0..SLOTS).collect(), lost: false }
    }

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
    device: Arc<CudaDevice>,
    stream: Arc<Mutex<CudaStream>>,
    /// Takes pages to their places beside the other: while the next are on their way, or at the other's ends.
    aside: Option<Arc<Mutex<CudaStream>>>,
    /// The last launch for pages out of the host's memory was its.
    was_aside: bool,
    spare: Vec<CudaEvent>,
    /// Numbers of rows, for each slot.
    numbers: Option<DeviceMemory>,
}

impl Outlet {
    fn event(&mut self) -> Cuda<CudaEvent> {
        self.spare.pop().map_or_else(|| CudaEvent::on(&self.device), Ok)
    }

    /// Waits for all that is queued on its streams.
    fn synchronize(&self) -> Cuda<()> {
        let streams = std::iter::once(&self.stream).chain(&self.aside);
        let ended = |stream: &Arc<Mutex<CudaStream>>| stream.lock().expect("no holder panics").synchronize();
        streams.map(ended).fold(Ok(()), Result::and)
    }

    /// Queues by `call` on its stream; the event that passes when it has ended.
    fn queue(&mut self, call: impl FnOnce(&CudaStream) -> Cuda<()>) -> Cuda<CudaEvent> {
        let stream = self.stream.clone();
        self.queue_on(&stream, call)
    }

    /// As `queue`, on one of its streams.
    fn queue_on(
        &mut self,
        stream: &Mutex<CudaStream>,
        call: impl FnOnce(&CudaStream) -> Cuda<()>,
    ) -> Cuda<CudaEvent> {
        let stream = stream.lock().expect("no holder panics");
        call(&stream)?;
        let event = self.event()?;
        stream.record(&event).map(|()| event)
    }
}

/// Origin of copies.
pub(crate) enum From {
    Slot(usize),
    /// Memory of who queued the copy, by a number that it is told by (`take_landed`).
    Lent(u32),
    /// A registered window: its number, and the file's generation when the copy was queued.
    Window(Arc<Windows>, u32, u64),
    /// Rows out of several, whose numbers came through the slot, or lay there; for a request that others of its copies may end.
    Rows(Arc<Windows>, Gathered, Option<usize>, Arc<Request>),
    /// Pages out of several, whose list came through the slot; in the room they lie packed on their way.
    Pages(Arc<Windows>, Gathered, usize, Arc<Request>, Option<Arc<Room>>),
}

/// Copies under way.
struct Flight {
    gpu: u32,
    from: From,
    bytes: usize,
    event: CudaEvent,
    /// The request of which a part ends with it, and which.
    ends: Option<(Arc<Request>, usize)>,
}

/// Rows that a launch brings to `to`: row n from `base` + n × `step`, by numbers in a slot from byte `numbers_at` on.
pub(super) struct Launch<'a> {
    pub(super) kernel: &'a GpuRows,
    pub(super) base: *const u8,
    pub(super) step: u64,
    pub(super) slot: usize,
    pub(super) numbers_at: usize,
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
    pub(super) to: u64,
}

#[derive(Default)]
pub(crate) struct Copies {
    flights: VecDeque<Flight>,
    outlets: Vec<Outlet>,
    stage: Option<Stage>,
    /// Time for which the last copy was waited for.
    waited: Duration,
    /// Lent memory that is copied no more, and what failed.
    landed: Vec<(u32, Option<Error>)>,
}

impl Copies {
    /// Some are under way.
    pub(crate) fn any(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Lets go of what has been copied. `wait`: naps until something has.
    pub(crate) fn reap(&mut self, wait: bool) {
        let began = wait.then(monotonic_now);
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
            From::Lent(number) => {
                self.landed.push((number, failed.map(|why| copy_failed(flight.gpu, why))));
                true
            }
            From::Window(windows, number, generation) => windows.release(number, generation),
            From::Rows(windows, held, slot, request) => {
                if let Some(slot) = slot {
                    self.give_slot_back(slot, failed.is_none());
                }
                released(&windows, &held, &request, flight.ends.is_some())
            }
            From::Pages(windows, held, slot, request, room) => {
                drop(room);
                self.give_slot_back(slot, failed.is_none());
                released(&windows, &held, &request, flight.ends.is_some())
            }
        };
        if let Some(outlet) = self.outlets.iter_mut().find(|o| o.device.index() == flight.gpu) {
            outlet.spare.push(flight.event);
        }
        if let Some((request, part)) = flight.ends {
            if let Some(why) = failed {
                request.fail(copy_failed(flight.gpu, why));
            } else if !unchanged {
                request.fail(request.changed());
            }
            request.part_done(part);
        }
    }

    /// Lent memory that came back since it was asked last.
    pub(crate) fn take_landed(&mut self) -> Option<(u32, Option<Error>)> {
        self.landed.pop()
    }

    /// Waits for every copy under way.
    pub(crate) fn drain(&mut self) {
        for outlet in &self.outlets {
            // What fails here fails again when its event is looked at.
            let _ = outlet.synchronize();
        }
        while self.any() {
            self.reap(true);
        }
    }

    /// The GPU's outlet, whose streams wait for what must end before bytes are written.
    pub(crate) fn outlet_after(
        &mut self,
        request: &Request,
        gpu: u32,
    ) -> Result<(usize, Arc<Mutex<CudaStream>>), Error> {
        let outlet = self.outlet(gpu)?;
        let Outlet { stream, aside, .. } = &self.outlets[outlet];
        for after in &request.after {
            let after = after.lock().expect("no holder panics");
            let mut streams = std::iter::once(stream).chain(aside);
            let waits = streams.try_for_each(|one| one.lock().expect("no holder panics").wait_for(&after));
            waits.map_err(|why| copy_failed(gpu, &why))?;
        }
        Ok((outlet, stream.clone()))
    }

    /// As `outlet_after`, with a second stream: pages are taken to their places by both.
    pub(super) fn outlet_of_two_after(
        &mut self,
        request: &Request,
        gpu: u32,
    ) -> Result<(usize, Arc<Mutex<CudaStream>>), Error> {
        let outlet = self.outlet(gpu)?;
        let Outlet { device, aside, .. } = &mut self.outlets[outlet];
        if aside.is_none() {
            let made = CudaStream::on(device).map_err(|why| copy_failed(gpu, &why))?;
            *aside = Some(Arc::new(Mutex::new(made)));
        }
        self.outlet_after(request, gpu)
    }

    /// The request's part ends with the last of its copies.
    pub(super) fn ends_with_the_last(&mut self, request: &Arc<Request>, part: usize) {
        match self.flights.back_mut() {
            Some(last) => last.ends = Some((request.clone(), part)),
            None => unreachable!("a part has a byte at least, and its copy a flight"),
        }
    }

    /// `read`: the device doesn't read it any more.
    pub(super) fn give_slot_back(&mut self, slot: usize, read: bool) {
        let stage = self.stage.as_mut().expect("it gave the slot");
        if read {
            stage.free.push(slot);
        } else {
            stage.lost = true;
        }
    }

    /// After a failure: some copies of the slot may be under way.
    pub(super) fn give_slot_up(&mut self, outlet: usize, slot: usize) {
        let ended = self.outlets[outlet].synchronize().is_ok();
        self.give_slot_back(slot, ended);
    }

    /// The GPU's outlet, by its number here.
    pub(super) fn outlet(&mut self, gpu: u32) -> Result<usize, Error> {
        if let Some(at) = self.outlets.iter().position(|o| o.device.index() == gpu) {
            return Ok(at);
        }
        let device = devices::device(gpu)?;
        let stream = CudaStream::on(&device).map_err(|why| copy_failed(gpu, &why))?;
        self.outlets.push(Outlet {
            device,
            stream: Arc::new(Mutex::new(stream)),
            aside: None,
            was_aside: false,
            spare: Vec::new(),
            numbers: None,
        });
        Ok(self.outlets.len() - 1)
    }

    pub(crate) fn device(&self, outlet: usize) -> &Arc<CudaDevice> {
        &self.outlets[outlet].device
    }

    /// What was queued has failed.
    pub(crate) fn failed(&self, outlet: usize, why: &CudaError) -> Error {
        copy_failed(self.outlets[outlet].device.index(), why)
    }

    /// Queues by `call` on the GPU's stream; the event that passes when it has ended.
    pub(crate) fn queue(
        &mut self,
        outlet: usize,
        call: impl FnOnce(&CudaStream) -> Cuda<()>,
    ) -> Cuda<CudaEvent> {
        self.outlets[outlet].queue(call)
    }

    /// Waits for all that is queued on the GPU's stream.
    pub(crate) fn wait_for(&self, outlet: usize) {
        let _ = self.outlets[outlet].synchronize();
    }

    /// Size of slots that a GPU can be fed from.
    pub(super) fn free_slot_bytes(&mut self, outlet: usize) -> Result<usize, Error> {
        self.set_stage(Some(outlet))?;
        Ok(self.stage.as_ref().expect("just set").arena.slot_bytes())
    }

    pub(super) fn slot_at(&self, slot: usize) -> *mut u8 {
        self.stage.as_ref().expect("it gave the slot").arena.slot(slot).host_ptr()
    }

    /// A slot that nothing is copied from, and its size.
    pub(super) fn free_slot(&mut self, outlet: Option<usize>) -> Result<(usize, usize), Error> {
        self.set_stage(outlet)?;
        loop {
            let stage = self.stage.as_mut().expect("just set");
            if let Some(slot) = stage.free.pop() {
                return Ok((slot, stage.arena.slot_bytes()));
            }
            if self.flights.is_empty() {
                // All were lost to failures.
                self.stage.take().expect("just set").give_back();
                self.set_stage(outlet)?;
            }
            self.reap(true);
        }
    }

    /// Makes the slots, and pins them for a GPU: smaller ones where the system refuses.
    fn set_stage(&mut self, outlet: Option<usize>) -> Result<(), Error> {
        let device = outlet.map(|o| self.outlets[o].device.clone());
        let ready = self.stage.as_ref().is_some_and(|s| s.pinned.is_some() || device.is_none());
        if ready {
            return Ok(());
        }
        let mut refused = None;
        for slot_bytes in SLOT_BYTES_TRIED {
            let arena = match self.stage.take() {
                Some(stage) if stage.arena.slot_bytes() == slot_bytes => stage.arena,
                _ => KeptMemory::slots(SLOTS, slot_bytes, job::Pages::Thp)?,
            };
            let Some(device) = &device else {
                self.stage = Some(Stage::new(arena, None));
                return Ok(());
            };
            let (at, bytes) = arena.whole();
            // SAFETY: the arena goes after its registration, by the order of Stage's fields.
            match unsafe { device.register(at.as_ptr(), bytes, false) } {
                Ok(pinned) => {
                    self.stage = Some(Stage::new(arena, Some(pinned)));
                    return Ok(());
                }
                // Another worker's copy failed meanwhile.
                Err(why) if why.is_of_a_lost_context() => return Err(copy_failed(device.index(), &why)),
                Err(why) => refused = Some((bytes, why)),
            }
        }
        let (bytes, why) = refused.expect("every size was refused");
        Err(Error::machine(
            format!("pin {bytes} bytes of host memory"),
            why.to_string(),
            "ulimit -l unlimited; or free GPU memory that other programs hold",
        ))
    }

    /// Queues a launch.
    pub(super) fn launch(&mut self, launch: &Launch, outlet: usize) -> Cuda<CudaEvent> {
        let Launch { rows, row_bytes, .. } = *launch;
        let from = self.slot_at(launch.slot).wrapping_add(launch.numbers_at);
        let outlet = &mut self.outlets[outlet];
        let numbers = match outlet.numbers.take() {
            Some(there) => there,
            None => outlet.device.allocate(SLOTS * NUMBERS_BYTES)?,
        };
        let at = outlet.numbers.insert(numbers).address() + (launch.slot * NUMBERS_BYTES) as u64;
        outlet.queue(|stream| {
            // SAFETY: slot and numbers are this launch's until the event has passed, and what it reads stays as long:
            // windows that are held, the slot, or the destination, which is its owner's promise.
            unsafe {
                stream.copy_to_device(at, from, rows * size_of::<u64>())?;
                let (base, step, rows, row_bytes) = (launch.base, launch.step, rows as u64, row_bytes as u64);
                launch.kernel.queue(stream, base, step, at, launch.to, rows, row_bytes)
            }
        })
    }

    /// Copies that were queued are under way, until their event.
    pub(crate) fn fly(&mut self, outlet: usize, from: From, bytes: usize, event: CudaEvent) {
        let gpu = self.outlets[outlet].device.index();
        self.flights.push_back(Flight { gpu, from, bytes, event, ends: None });
    }

    /// Room for `count` numbers in a slot that was taken, from byte `at` on.
    pub(super) fn numbers_in<'a>(&self, slot: usize, at: usize, count: usize) -> &'a mut [u64] {
        // SAFETY: nothing is copied from the slot, which is ours until it is given back and has room for them.
        unsafe { std::slice::from_raw_parts_mut(self.slot_at(slot).add(at).cast::<u64>(), count) }
    }

    /// Writes a list of pieces to the end of a slot that was taken, where the GPU reads it: a copy of it would keep the link's
    /// engine from its long ones, and a launch waiting. Returns where it lies.
    fn list_in(&mut self, slot: usize, pieces: &[RowPiece]) -> u64 {
        let stage = self.stage.as_ref().expect("it gave the slot");
        let at = self.slot_at(slot).wrapping_add(stage.arena.slot_bytes() - LIST_BYTES);
        // SAFETY: nothing is copied from the slot, which is ours; `data_bytes` leaves room for a list, and slots end on pages.
        unsafe { std::ptr::copy_nonoverlapping(pieces.as_ptr(), at.cast::<RowPiece>(), pieces.len()) };
        at as u64
    }

    /// Whether slots have room for a list of pieces.
    pub(super) fn takes_lists(&self) -> bool {
        let slot_bytes = self.stage.as_ref().map_or(0, |stage| stage.arena.slot_bytes());
        data_bytes(slot_bytes, true) < slot_bytes
    }

    /// Queues the copies of `runs` out of registered memory into a room, if one is given, and a launch that takes `pieces` from
    /// there, or from where they lie, to their places; the event after it, and the stream that has it. For an outlet of two streams.
    pub(super) fn scatter(
        &mut self,
        outlet: usize,
        slot: usize,
        (kernel, pieces): (&RowScatter, &[RowPiece]),
        packs: &CudaHostCopies,
    ) -> Cuda<(CudaEvent, Arc<Mutex<CudaStream>>)> {
        let list = self.list_in(slot, pieces);
        let outlet = &mut self.outlets[outlet];
        let launch = |stream: &CudaStream| {
            // SAFETY: the list is this launch's until its event has passed; so is what it reads (windows that are held, the slot,
            // or the room), and the places are their owner's promise.
            unsafe { kernel.queue(stream, list, pieces.len() as u64, longest(pieces)) }
        };
        let aside = outlet.aside.clone().expect("it has two streams");
        if packs.is_empty() {
            // In turn: one launch fills the link where the other's ends.
            outlet.was_aside = !outlet.was_aside;
            let stream = if outlet.was_aside { aside } else { outlet.stream.clone() };
            return outlet.queue_on(&stream, launch).map(|event| (event, stream));
        }
        let packed = outlet.queue(|stream| {
            // SAFETY: the run lies in windows that are held, and the room is this flight's.
            unsafe { stream.copy_all_to_device(packs) }
        })?;
        let event =
            outlet.queue_on(&aside, |stream| stream.wait_for(&packed).and_then(|()| launch(stream)))?;
        // It has been waited for as it is now.
        outlet.spare.push(packed);
        Ok((event, aside))
    }

    /// Queues what takes a slot's `runs` to the pages of a part: one launch, or where that can't be, or isn't worth it, a copy
    /// for each.
    pub(super) fn send_pages(
        &mut self,
        outlet: usize,
        slot: usize,
        (pages, part): (&Pages, &PagePart),
        runs: &[Run],
    ) -> Cuda<()> {
        let base = self.slot_at(slot);
        let pieces = part.pieces(base as u64, runs);
        let apart = joined(&pieces, base);
        let kernel = pages.scatter.as_ref().filter(|_| self.takes_lists() && pieces.len() <= PIECES_MAX);
        let Some(kernel) = kernel.filter(|_| apart.len() > COPIES_MAX) else {
            return self.send(outlet, slot, base, &apart);
        };
        let list = self.list_in(slot, &pieces);
        let event = self.outlets[outlet].queue(|stream| {
            // SAFETY: slot and list are this launch's until its event has passed; the places are their owner's promise.
            unsafe { kernel.queue(stream, list, pieces.len() as u64, longest(&pieces)) }
        })?;
        self.fly(outlet, From::Slot(slot), runs.iter().map(|run| run.bytes).sum(), event);
        Ok(())
    }

    /// Queues copies of a slot's `runs` to their places.
    pub(super) fn send(&mut self, outlet: usize, slot: usize, base: *mut u8, runs: &[Run]) -> Cuda<()> {
        let event = self.outlets[outlet].queue(|stream| {
            // SAFETY: the run lies in the slot, which stays taken until the event has passed; the destination is its
            // owner's promise.
            let copy = |run: &Run| unsafe { stream.copy_to_device(run.to, base.add(run.from), run.bytes) };
            runs.iter().try_for_each(copy)
        })?;
        self.fly(outlet, From::Slot(slot), runs.iter().map(|r| r.bytes).sum(), event);
        Ok(())
    }
}

fn longest(pieces: &[RowPiece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0)
}

/// Pieces of a slot at `base`, those that touch on both sides as one.
fn joined(pieces: &[RowPiece], base: *mut u8) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        let (from, bytes) = (piece.from as usize - base as usize, piece.bytes as usize);
        match runs.last_mut() {
            Some(run) if run.from + run.bytes == from && run.to + run.bytes as u64 == piece.to => {
                run.bytes += bytes
            }
            _ => runs.push(Run { from, to: piece.to, bytes }),
        }
    }
    runs
}

/// Lets go of windows. False where the file changed, which the request is told here if no part ends with this.
fn released(windows: &Windows, held: &Gathered, request: &Request, ends: bool) -> bool {
    let unchanged = windows.release_all(held);
    if !unchanged && !ends {
        request.fail(request.changed());
    }
    unchanged
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.drain();
        if let Some(stage) = self.stage.take() {
            stage.give_back();
        }
    }
}

pub(super) fn copy_failed(gpu: u32, why: &CudaError) -> Error {
    let next = "if the CUDA context is gone, a new process; forebay doctor";
    Error::run(format!("copy to GPU {gpu}"), why.to_string(), next)
}
