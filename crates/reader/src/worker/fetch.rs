//! Rows of a table, and pages: fetched by the GPU itself out of registered windows, or copied out of the mapping, or into
//! slots, by this worker.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::copies::{copy_failed, From, Launch, COPIES_MAX};
use super::{in_turn, wakes_this_thread, Worker};
use crate::gpu_numbers::GpuNumbers;
use crate::layout::{add, short};
use crate::load;
use crate::pages::{By, PagePart, Pages, PIECES_MAX};
use crate::place::{Address, Range, Run};
use crate::repeats::{here, repeats_pay, split_repeats};
use crate::request::{Request, Source};
use crate::room::Room;
use crate::rows::{append, Fetch, Layout, Numbers, Table, NUMBERS_BYTES};
use crate::windows::{Gathered, Windows};
use crate::{PIECES_PER_PART, SLOTS};
use forebay_io::{
    guarded_row_copy, has_copy_guard, CopyStores, CudaHostCopies, CudaStream, GpuRows, RowPiece, RowScatter,
    ROW_ELSEWHERE,
};
use forebay_model::Error;
use forebay_storage::MappedWakeup;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Least bytes of link time that a row read by the GPU takes, however short it is.
const ROW_TAKES_BYTES: usize = 1500;

/// Runs of this length on the average take the copy engine less time than a launch that reads them across the link: by a call
/// each, and many by one call.
const PACKED_RUN_BYTES: usize = 4 << 20;
const PACKED_IN_BATCHES_BYTES: usize = 256 << 10;

/// Rows that this worker is to bring: the i-th of `numbers` to `to` + i × `row_bytes`.
#[derive(Clone, Copy)]
struct Part<'a> {
    request: &'a Arc<Request>,
    source: &'a Source,
    layout: Layout,
    numbers: &'a [u64],
    /// None of them is `ELSEWHERE`.
    dense: bool,
    to: Address,
    /// Where they lie, if not in the file.
    memory: Option<*const u8>,
}

impl Part<'_> {
    fn to_device(self) -> u64 {
        let Address::Device { at, .. } = self.to else { unreachable!("rows for a GPU") };
        at
    }

    /// Row n from `from` + n × its step on, by numbers that lie in a slot.
    fn launch<'b>(
        &self,
        kernel: &'b GpuRows,
        (base, step): (*const u8, u64),
        slot: usize,
        numbers_at: usize,
    ) -> Launch<'b> {
        let (rows, row_bytes, to) = (self.numbers.len(), self.layout.row_bytes, self.to_device());
        Launch { kernel, base, step, slot, numbers_at, rows, row_bytes, to }
    }

    fn ranges(self) -> Vec<Range> {
        self.layout.ranges(self.numbers, self.to)
    }
}

impl Worker {
    /// Reads the rows of a part; the stream that carries their copies, where they go to a GPU.
    pub(super) fn fill_rows(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        table: &Table,
        index: usize,
    ) -> Result<Option<Arc<Mutex<CudaStream>>>, Error> {
        let (span, to) = table.part(index);
        let read;
        let numbers = match &table.numbers {
            Numbers::Here(all) => &all.numbers()[span],
            Numbers::Ordered(of) => {
                let hash;
                (read, hash) = of.part(span);
                request.counts.hash.fetch_add(hash, Ordering::Relaxed);
                &read[..]
            }
            Numbers::GpuNumbers(there) => match self.fetch_there(request, source, table, there, index)? {
                Some(stream) => return Ok(Some(stream)),
                None => {
                    read = there.read(span).map_err(|why| copy_failed(there.gpu(), &why))?;
                    &read[..]
                }
            },
        };
        if !table.is_dense() && here(numbers) == 0 {
            return Ok(None);
        }
        let memory = table.memory.as_ref().map(|memory| memory.base());
        let part =
            Part { request, source, layout: table.layout, numbers, dense: table.is_dense(), to, memory };
        let gpu = match to {
            Address::Host(at) => {
                let (rest, _) = copy_rows(&part, at as *mut u8)?;
                return self.fill_host(request, source, &rest).map(|()| None);
            }
            Address::Device { gpu, .. } => gpu,
        };
        let (outlet, stream) = self.copies.outlet_after(request, gpu)?;
        let slot_bytes = self.copies.free_slot_bytes(outlet)?;
        match &table.fetch {
            Fetch::Gpu(kernel) if memory.is_some() && slot_bytes >= NUMBERS_BYTES => {
                self.fetch_from_memory(&part, kernel, outlet)?;
            }
            // What lies in memory isn't read from its file.
            Fetch::Gpu(_) if memory.is_some() => self.send_few(&part, slot_bytes, outlet)?,
            Fetch::Processors(_) if memory.is_some() && slot_bytes < table.slot_bytes(numbers.len()) => {
                self.send_few(&part, slot_bytes, outlet)?;
            }
            // Hardly anything may be pinned, so hardly anything is registered.
            Fetch::Gpu(_) if slot_bytes < NUMBERS_BYTES => self.feed_rest(&part, &part.ranges(), outlet)?,
            Fetch::Gpu(kernel) => self.fetch_rows(&part, kernel, outlet)?,
            Fetch::Processors(_) if slot_bytes < table.slot_bytes(numbers.len()) => {
                self.feed_rest(&part, &part.ranges(), outlet)?;
            }
            Fetch::Processors(scatter) => self.send_rows(&part, scatter.as_ref(), outlet)?,
        }
        self.copies.ends_with_the_last(request, index);
        Ok(Some(stream))
    }

    fn feed_rest(&mut self, part: &Part, rest: &[Range], outlet: usize) -> Result<(), Error> {
        rest.chunks(PIECES_PER_PART)
            .try_for_each(|some| self.feed_slots(part.request, part.source, some, outlet, None))
    }

    /// Each row once, where many come twice, and through slots those that lie in no window that the GPU may read.
    fn fetch_rows(&mut self, part: &Part, kernel: &GpuRows, outlet: usize) -> Result<(), Error> {
        if !repeats_pay(part.numbers) {
            let rest = self.queue_rows(part, kernel, outlet)?;
            return self.feed_rest(part, &rest, outlet);
        }
        let (once, again) = split_repeats(part.numbers);
        let rest =
            self.queue_rows(&Part { numbers: &once, dense: again.is_empty(), ..*part }, kernel, outlet)?;
        self.feed_rest(part, &rest, outlet)?;
        if again.is_empty() {
            return Ok(());
        }
        // On the stream that carried the first of each.
        let (slot, _) = self.copies.free_slot(Some(outlet))?;
        self.copies.numbers_in(slot, 0, again.len()).copy_from_slice(&again);
        let (base, step) = (part.to_device() as *const u8, part.layout.row_bytes as u64);
        let part = &Part { numbers: &again, dense: false, ..*part };
        match self.copies.launch(&part.launch(kernel, (base, step), slot, 0), outlet) {
            Ok(event) => {
                let bytes = here(&again) * part.layout.row_bytes;
                add(&part.request.counts.repeated, bytes);
                self.copies.fly(outlet, From::Slot(slot), bytes, event);
                Ok(())
            }
            Err(why) => {
                self.copies.give_slot_up(outlet, slot);
                Err(self.copies.failed(outlet, &why))
            }
        }
    }

    /// Launches what fetches the rows of a part; those that must go another way.
    fn queue_rows(&mut self, part: &Part, kernel: &GpuRows, outlet: usize) -> Result<Vec<Range>, Error> {
        let Source::One { reader, .. } = part.source else { unreachable!("tables are of one file") };
        let windows = reader.windows().expect("made before the request was").clone();
        let wakeup = self.wakeup.get_or_insert_with(wakes_this_thread).clone();
        let (slot, _) = self.copies.free_slot(Some(outlet))?;
        let laid = self.copies.numbers_in(slot, 0, part.numbers.len());
        let meanwhile = || {
            self.copies.reap(false);
            !part.request.is_dropped()
        };
        let (held, rest) = part.layout.lay(&windows, part.numbers, part.to, &wakeup, meanwhile, laid);
        let Some(held) = held else {
            self.copies.give_slot_back(slot, true);
            return Ok(rest);
        };
        let elsewhere: usize = rest.iter().map(|range| range.bytes).sum();
        let fetched = here(part.numbers) * part.layout.row_bytes - elsewhere;
        let base = windows.base().wrapping_add(part.layout.start as usize);
        let launch = part.launch(kernel, (base, part.layout.step), slot, 0);
        match windows.queue(&wakeup, || self.copies.launch(&launch, outlet)) {
            Ok(event) => {
                let from = From::Rows(windows, held, Some(slot), part.request.clone());
                self.copies.fly(outlet, from, as_long_as(fetched, part.layout), event);
                add(&part.request.counts.mapped, fetched);
                Ok(rest)
            }
            Err(why) => {
                self.copies.give_slot_up(outlet, slot);
                windows.release_all(&held);
                Err(self.copies.failed(outlet, &why))
            }
        }
    }

    /// Launches what fetches rows out of memory that the GPU may read, where they were read before.
    fn fetch_from_memory(&mut self, part: &Part, kernel: &GpuRows, outlet: usize) -> Result<(), Error> {
        let base = part.memory.expect("asked of such alone");
        let (slot, _) = self.copies.free_slot(Some(outlet))?;
        self.copies.numbers_in(slot, 0, part.numbers.len()).copy_from_slice(part.numbers);
        let bytes = part.numbers.len() * part.layout.row_bytes;
        let launch = part.launch(kernel, (base, part.layout.step), slot, 0);
        match in_turn(part.source, || self.copies.launch(&launch, outlet)) {
            Ok(event) => {
                add(&part.request.counts.staged, bytes);
                self.copies.fly(outlet, From::Slot(slot), as_long_as(bytes, part.layout), event);
                Ok(())
            }
            Err(why) => {
                self.copies.give_slot_up(outlet, slot);
                Err(self.copies.failed(outlet, &why))
            }
        }
    }

    /// As `send_rows`, of rows in memory, as many at a time as a slot holds.
    fn send_few(&mut self, part: &Part, slot_bytes: usize, outlet: usize) -> Result<(), Error> {
        let row_bytes = part.layout.row_bytes;
        let each = (slot_bytes / row_bytes).max(1);
        part.numbers.chunks(each).enumerate().try_for_each(|(at, numbers)| {
            let to = part.to.after(at * each * row_bytes);
            self.send_rows(&Part { numbers, to, ..*part }, None, outlet)
        })
    }

    /// Rows by numbers that lie in the GPU's memory; None where not all of the file may be read there any more.
    fn fetch_there(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        table: &Table,
        numbers: &GpuNumbers,
        index: usize,
    ) -> Result<Option<Arc<Mutex<CudaStream>>>, Error> {
        let (Source::One { reader, .. }, Fetch::Gpu(kernel)) = (source, &table.fetch) else {
            unreachable!("tables are of one file, and processors don't reach these numbers")
        };
        let (span, Address::Device { gpu, at: to }) = table.part(index) else {
            unreachable!("rows for a GPU")
        };
        let windows: Arc<Windows> = reader.windows().expect("made before the request was").clone();
        let (outlet, stream) = self.copies.outlet_after(request, gpu)?;
        let wakeup = self.wakeup.get_or_insert_with(wakes_this_thread).clone();
        let Some(held) = windows.hold_whole() else { return Ok(None) };
        let Layout { start, step, row_bytes } = table.layout;
        let (base, rows) = (windows.base().wrapping_add(start as usize), span.len());
        let at = numbers.address(span.start);
        let queued = windows.queue(&wakeup, || {
            self.copies.queue(outlet, |stream| {
                // SAFETY: the windows are held until the event has passed, and so stay the numbers, each of which is a row
                // inside; the destination is its owner's promise.
                unsafe { kernel.queue(stream, base, step, at, to, rows as u64, row_bytes as u64) }
            })
        });
        match queued {
            Ok(event) => {
                let from = From::Rows(windows, held, None, request.clone());
                self.copies.fly(outlet, from, as_long_as(rows * row_bytes, table.layout), event);
                self.copies.ends_with_the_last(request, index);
                add(&request.counts.mapped, rows * row_bytes);
                Ok(Some(stream))
            }
            Err(why) => {
                self.copies.wait_for(outlet);
                windows.release_all(&held);
                Err(copy_failed(gpu, &why))
            }
        }
    }

    /// Rows copied out of the mapping into a slot, and from there to their places by one copy; by one launch where others
    /// lie between them.
    fn send_rows(&mut self, part: &Part, scatter: Option<&GpuRows>, outlet: usize) -> Result<(), Error> {
        let (slot, _) = self.copies.free_slot(Some(outlet))?;
        let (base, row_bytes) = (self.copies.slot_at(slot), part.layout.row_bytes);
        let (rest, runs) = match copy_rows(part, base) {
            Ok(copied) => copied,
            Err(error) => {
                self.copies.give_slot_back(slot, true);
                return Err(error);
            }
        };
        let sent = match scatter {
            _ if runs.is_empty() => {
                self.copies.give_slot_back(slot, true);
                Ok(())
            }
            Some(kernel) if runs.len() > COPIES_MAX => {
                let numbers_at = (part.numbers.len() * row_bytes).next_multiple_of(size_of::<u64>());
                let laid = self.copies.numbers_in(slot, numbers_at, part.numbers.len());
                laid.fill(ROW_ELSEWHERE);
                for run in &runs {
                    let first = run.from / row_bytes;
                    (first..first + run.bytes / row_bytes).for_each(|i| laid[i] = i as u64);
                }
                let launch = part.launch(kernel, (base, row_bytes as u64), slot, numbers_at);
                let bytes = runs.iter().map(|run| run.bytes).sum();
                in_turn(part.source, || self.copies.launch(&launch, outlet))
                    .map(|event| self.copies.fly(outlet, From::Slot(slot), bytes, event))
            }
            _ => in_turn(part.source, || self.copies.send(outlet, slot, base, &runs)),
        };
        if let Err(why) = sent {
            self.copies.give_slot_up(outlet, slot);
            return Err(self.copies.failed(outlet, &why));
        }
        self.feed_rest(part, &rest, outlet)
    }
}

/// What a launch for a part of pages reads: windows that are held.
struct Open<'a> {
    windows: &'a Arc<Windows>,
    held: Gathered,
    wakeup: Arc<MappedWakeup>,
}

impl Worker {
    /// Queues what brings the pages of a part; the stream that carries the last of it.
    pub(super) fn bring_pages(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        pages: &Pages,
        index: usize,
    ) -> Result<Arc<Mutex<CudaStream>>, Error> {
        let (outlet, stream) = match pages.by {
            By::Processors => self.copies.outlet_after(request, pages.gpu)?,
            _ => self.copies.outlet_of_two_after(request, pages.gpu)?,
        };
        let part = pages.part(index);
        let runs = part.runs();
        self.copies.free_slot_bytes(outlet)?;
        let kernel =
            pages.scatter.as_ref().filter(|_| pages.by != By::Processors && self.copies.takes_lists());
        if let Some(kernel) = kernel {
            if let Some(stream) = self.fetch_pages(request, source, (pages, &part), &runs, kernel, outlet)? {
                self.copies.ends_with_the_last(request, index);
                return Ok(stream);
            }
        }
        self.feed_slots(request, source, &runs, outlet, Some((pages, &part)))?;
        self.copies.ends_with_the_last(request, index);
        Ok(stream)
    }

    /// None where some of them lie in windows that the GPU may not read.
    fn fetch_pages(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        (pages, part): (&Pages, &PagePart),
        runs: &[Range],
        kernel: &RowScatter,
        outlet: usize,
    ) -> Result<Option<Arc<Mutex<CudaStream>>>, Error> {
        let Source::One { reader, .. } = source else { unreachable!("pages are of one file") };
        let Some(windows) = reader.windows() else { return Ok(None) };
        let bytes: usize = runs.iter().map(|run| run.bytes).sum();
        // One that lies in the mapping is called by its byte there.
        let there: Vec<Run> =
            runs.iter().map(|r| Run { from: r.offset as usize, to: r.offset, bytes: r.bytes }).collect();
        let base = windows.base() as u64;
        let mut pieces = part.pieces(base, &there);
        if pieces.len() > PIECES_MAX {
            return Ok(None);
        }
        let (slot, _) = self.copies.free_slot(Some(outlet))?;
        let Some(open) = self.opened(request, windows, runs) else {
            self.copies.give_slot_back(slot, true);
            return Ok(None);
        };
        let room = self.room_for(runs, bytes, pages.part_bytes_max(), outlet);
        let mut packs = CudaHostCopies::default();
        if let Some(room) = &room {
            let to = room.address() + (slot * pages.part_bytes_max()) as u64;
            let mut packed = there;
            let mut at = 0;
            for run in &mut packed {
                // A copy may not go over the edge of what was registered at once.
                let mut done = 0;
                while done < run.bytes {
                    let begin = run.from + done;
                    let in_window = windows.bytes_each as usize - begin % windows.bytes_each as usize;
                    let bytes = in_window.min(run.bytes - done);
                    packs.push(windows.base().wrapping_add(begin), to + (at + done) as u64, bytes);
                    done += bytes;
                }
                run.from = at;
                at += run.bytes;
            }
            pieces = part.pieces(to, &packed);
        }
        self.launched(request, open, (slot, outlet), (kernel, &pieces), &packs, room, bytes).map(Some)
    }

    #[allow(clippy::too_many_arguments)]
    fn launched(
        &mut self,
        request: &Arc<Request>,
        open: Open,
        (slot, outlet): (usize, usize),
        what: (&RowScatter, &[RowPiece]),
        packs: &CudaHostCopies,
        room: Option<Arc<Room>>,
        bytes: usize,
    ) -> Result<Arc<Mutex<CudaStream>>, Error> {
        let Open { windows, held, wakeup } = open;
        let queued = windows.queue(&wakeup, || self.copies.scatter(outlet, slot, what, packs));
        match queued {
            Ok((event, stream)) => {
                let from = From::Pages(windows.clone(), held, slot, request.clone(), room);
                self.copies.fly(outlet, from, bytes, event);
                add(&request.counts.mapped, bytes);
                Ok(stream)
            }
            Err(why) => {
                self.copies.give_slot_up(outlet, slot);
                windows.release_all(&held);
                Err(copy_failed(self.copies.device(outlet).index(), &why))
            }
        }
    }

    /// Holds the windows of these runs, which are registered first if they aren't; None where one may not be read.
    fn opened<'a>(
        &mut self,
        request: &Request,
        windows: &'a Arc<Windows>,
        runs: &[Range],
    ) -> Option<Open<'a>> {
        let wakeup = self.wakeup.get_or_insert_with(wakes_this_thread).clone();
        if let Some(held) = windows.hold_whole() {
            return Some(Open { windows, held, wakeup });
        }
        let mut wanted: Vec<(u32, u64)> = Vec::new();
        for run in runs {
            let last = windows.number_of(run.offset + run.bytes as u64 - 1);
            for number in windows.number_of(run.offset)..=last {
                match wanted.last_mut() {
                    Some((of, bytes)) if *of == number => *bytes += run.bytes as u64,
                    _ => wanted.push((number, run.bytes as u64)),
                }
            }
        }
        let meanwhile = || {
            self.copies.reap(false);
            !request.is_dropped()
        };
        let held = windows.hold_all(&wanted, &wakeup, meanwhile)?;
        if held.numbers.len() < wanted.len() {
            windows.release_all(&held);
            return None;
        }
        Some(Open { windows, held, wakeup })
    }

    /// Room in which long runs are packed, for as many parts as there are slots; None for short ones, or without memory for it.
    fn room_for(&mut self, runs: &[Range], bytes: usize, each: usize, outlet: usize) -> Option<Arc<Room>> {
        let device = self.copies.device(outlet);
        let least = if device.copies_batches() { PACKED_IN_BATCHES_BYTES } else { PACKED_RUN_BYTES };
        if bytes < runs.len() * least {
            return None;
        }
        if !self.room.as_ref().is_some_and(|room| room.holds(device, SLOTS * each)) {
            self.room = Room::take(device, SLOTS * each).ok().map(Arc::new);
        }
        self.room.clone()
    }
}

/// The length of a copy that takes as long as these rows: how often it is asked whether they have come goes by that.
fn as_long_as(bytes: usize, layout: Layout) -> usize {
    bytes.max(bytes / layout.row_bytes * ROW_TAKES_BYTES)
}

/// Copies rows of a request on the thread that asks for them, and ends it. Only where they go to host memory, come to `most`
/// bytes and lie in cached parts of the mapping; false otherwise, and nothing was copied.
pub(crate) fn copied_here(request: &Arc<Request>, most: u64) -> bool {
    let is_short = |table: &&Table| table.is_dense() && table.bytes() <= most && table.memory.is_none();
    let Some(table) = request.table().filter(is_short) else {
        return false;
    };
    let (Address::Host(at), Numbers::Here(numbers)) = (table.to, &table.numbers) else { return false };
    let (source, numbers) = (request.source(), numbers.numbers());
    let Source::One { reader, .. } = &*source else { unreachable!("tables are of one file") };
    if request.is_dropped() || !has_copy_guard() {
        return false;
    }
    let Some(file) = reader.resident_rows(table.layout, numbers) else { return false };
    let (layout, to) = (table.layout, table.to);
    let part = Part { request, source: &source, layout, numbers, dense: true, to, memory: None };
    match copy_each(&part, file, at as *mut u8) {
        Ok(()) => add(&request.counts.staged, numbers.len() * table.layout.row_bytes),
        Err(error) => request.fail(error),
    }
    reader.note_copied();
    // The request lets go of its file at its end, and so must we.
    drop(source);
    for part in 0..request.part_count() {
        request.part_queued(None);
        request.part_done(part);
    }
    true
}

/// Copies what is cached out of the mapping, each row to its place from `at` on: what isn't, and what was copied.
fn copy_rows(part: &Part, at: *mut u8) -> Result<(Vec<Range>, Vec<Run>), Error> {
    let Source::One { reader, .. } = part.source else { unreachable!("tables are of one file") };
    let (layout, bytes) = (part.layout, part.layout.row_bytes);
    let first = match part.to {
        Address::Device { at, .. } | Address::Host(at) => at,
    };
    if let Some(from) = part.memory.or_else(|| reader.whole().filter(|_| part.dense)) {
        copy_each(part, from, at)?;
        let bytes = part.numbers.len() * bytes;
        add(&part.request.counts.staged, bytes);
        return Ok((Vec::new(), vec![Run { from: 0, to: first, bytes }]));
    }
    let mut rest = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    let mut copied = 0;
    for (i, number) in part.numbers.iter().enumerate().filter(|(_, number)| **number != ROW_ELSEWHERE) {
        let range = layout.range(i, *number, part.to);
        let Some(from) = reader.resident(range.offset, bytes) else {
            append(&mut rest, range);
            continue;
        };
        let place = i * bytes;
        // SAFETY: `at` has room for every row of the part, and the row lies in the mapping.
        let got = unsafe { load::out_of_mapping(at.add(place), from, bytes, CopyStores::Cached) };
        if got < bytes {
            return Err(short(part.source, &range, range.offset + got as u64));
        }
        copied += bytes;
        match runs.last_mut() {
            Some(run) if run.from + run.bytes == place => run.bytes += bytes,
            _ => runs.push(Run { from: place, to: first + place as u64, bytes }),
        }
    }
    add(&part.request.counts.staged, copied);
    Ok((rest, runs))
}

/// Copies rows of a file that is cached as a whole, one behind the other to `at`.
fn copy_each(part: &Part, file: *const u8, at: *mut u8) -> Result<(), Error> {
    let Layout { start, step, row_bytes } = part.layout;
    let base = file.wrapping_add(start as usize);
    // SAFETY: `at` has room for every row of the part, and each lies in the mapping, as the request saw.
    let left = unsafe { guarded_row_copy(at, base, (part.numbers, step), row_bytes) };
    let Some(first) = part.numbers.len().checked_sub(left).filter(|_| left > 0) else { return Ok(()) };
    let range = part.layout.range(first, part.numbers[first], part.to);
    let (from, to) = (file.wrapping_add(range.offset as usize), at.wrapping_add(first * row_bytes));
    // SAFETY: as above.
    let got = unsafe { load::out_of_mapping(to, from, row_bytes, CopyStores::Cached) };
    Err(short(part.source, &range, range.offset + got as u64))
}
