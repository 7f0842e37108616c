//! One thread of the thread pool: how it fills a part. Bytes come to host memory by its loader, and from there, or out of
//! windows and mappings, to GPUs by its copies.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

mod copies;
mod fetch;
mod mix;
mod queue;

pub(crate) use copies::{Copies, From};
pub(crate) use fetch::copied_here;
pub(crate) use mix::mix;

use super::by_cufile::KnownFile;
use super::layout::{
    add, by_fastest, choose, copy_out, direct, failed, past, past_by_all, plain, short, split, Layout, Manner,
};
use super::load::{self, Fill, Load, Loader, PassThrough};
use super::opened::Opened;
use super::pages::{data_bytes, By, PagePart, Pages};
use super::place::{aligned, Address, Range};
use super::request::{Request, Source};
use super::room::Room;
use super::SLOT_BYTES;
use copies::copy_failed;
use forebay_io::{copy_memory, system_copy_waits, CudaStream};
use forebay_model::Error;
use forebay_storage::MappedWakeup;
use queue::Queue;
use std::borrow::Cow;
use std::io::Result as IoResult;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(crate) struct Worker {
    /// Copies on to GPUs. They end first.
    copies: Copies,
    /// Long reads on their way to GPUs.
    queue: Queue,
    /// Reads into host memory.
    loader: Loader,
    /// Buffer of reads out of the page cache to places that the system is slow to copy to.
    pass: PassThrough,
    wakeup: Option<Arc<MappedWakeup>>,
    /// Memory of a GPU that pages pass through, while one request is served.
    room: Option<Arc<Room>>,
}

// SAFETY: a worker moves to its thread before it has any slot, and stays there.
unsafe impl Send for Worker {}

impl Worker {
    /// Copies or reads are under way, of which requests are to be told, or there is something to be given back.
    pub(crate) fn has_flights(&self) -> bool {
        self.copies.any() || self.queue.is_used()
    }

    /// Lets go of what has been copied. `wait`: until something has, or has been read.
    pub(crate) fn reap(&mut self, wait: bool) {
        match (self.queue.is_used(), wait) {
            (true, true) => self.queue.turn_or_give_back(&mut self.copies),
            (true, false) => self.queue.turn(&mut self.copies, false),
            (false, _) => self.copies.reap(wait),
        }
    }

    /// Does what was taken of a request: one part, or all of them in their order.
    pub(crate) fn serve(&mut self, request: &Arc<Request>, index: usize) {
        match request.pages() {
            Some(Pages { by: By::Gpu, .. }) => {
                (0..request.part_count()).for_each(|part| self.serve_part(request, part));
            }
            _ => self.serve_part(request, index),
        }
        self.room = None;
    }

    /// Reads one part, and queues its copies where it goes to a GPU.
    fn serve_part(&mut self, request: &Arc<Request>, index: usize) {
        let source = request.source();
        let done = match (request.pages(), request.table()) {
            _ if request.is_dropped() => Ok(None),
            (None, None) if request.is_queued_long() => {
                match self.queue.begin_part(&mut self.copies, request, &source, index) {
                    Ok(true) => return,
                    Ok(false) => self.feed_gpu(request, &source, request.part(index)).map(Some),
                    Err(error) => Err(error),
                }
            }
            (Some(pages), _) => self.bring_pages(request, &source, pages, index).map(Some),
            (None, Some(table)) => self.fill_rows(request, &source, table, index),
            (None, None) if request.fills_cache() => {
                self.fill_cache(&source, request.part(index)).map(|()| None)
            }
            (None, None) => {
                let part = request.part(index);
                match part[0].to.gpu() {
                    None => self.fill_host(request, &source, part).map(|()| None),
                    Some(_) => match source.known() {
                        Some(known) => through_cufile(known, request, &source, part).map(|()| None),
                        None => self.feed_gpu(request, &source, part).map(Some),
                    },
                }
            }
        };
        source.note_copied();
        // The request lets go of its file at its end, and so must we.
        drop(source);
        end_part(&mut self.copies, request, index, done);
    }

    /// Reads ranges into the page cache by way of their file's mapping.
    fn fill_cache(&mut self, source: &Source, part: &[Range]) -> Result<(), Error> {
        let Source::One { reader, .. } = source else { unreachable!("parts of one file") };
        let mut ranges: Vec<Fill> = part
            .iter()
            .map(|piece| {
                let Address::Host(at) = piece.to else { unreachable!("places in a mapping") };
                Fill { at: at as usize, bytes: piece.bytes, errno: None }
            })
            .collect();
        // SAFETY: they lie in the mapping, which the request's file keeps.
        unsafe { self.loader.fill(&mut ranges) };
        for (piece, range) in part.iter().zip(ranges) {
            match range.errno {
                None | Some(0) => reader.note_filled(piece.offset),
                Some(errno) => return Err(failed(source, piece, &std::io::Error::from_raw_os_error(errno))),
            }
        }
        Ok(())
    }

    fn fill_host(&mut self, request: &Request, source: &Source, part: &[Range]) -> Result<(), Error> {
        let mut loads = Vec::new();
        let mut opened = Opened::default();
        let past_cache = past_by_all(source, part);
        for (tag, piece) in part.iter().enumerate() {
            let Address::Host(at) = piece.to else { unreachable!("parts have one kind of place") };
            let at = at as *mut u8;
            let way = match past_cache {
                Some(reader) => past(reader),
                None => choose(source, piece, &mut opened)?,
            };
            match way {
                Manner::Mapped(from) => copy_out(piece, from, at, source, request.bytes())?,
                // SAFETY: the destination's owner keeps it until the request has ended.
                Manner::Cached(fd) => match unsafe { self.cached(fd, piece, at, request.bytes()) } {
                    Ok(Some(_)) => {}
                    Ok(None) => loads.push(plain(fd, piece, at, tag)),
                    Err(why) => return Err(failed(source, piece, &why)),
                },
                Manner::Direct(fd, unit) if aligned(piece, at, unit) => {
                    add(&request.counts.direct, piece.bytes);
                    add(&request.counts.uncached, piece.bytes);
                    loads.push(Load { direct: true, ..plain(fd, piece, at, tag) });
                    continue;
                }
                Manner::Direct(fd, _) => {
                    self.through_slot(source, piece, fd, at, request.bytes())?;
                    add(&request.counts.uncached, piece.bytes);
                }
            }
            add(&request.counts.staged, piece.bytes);
        }
        self.run(source, part, &mut loads)?;
        opened.check_unchanged(source)
    }

    /// Reads from the page cache without waiting for the device; None if something is missing. `asked`: bytes of the request.
    ///
    /// # Safety
    /// `at` has room for the piece.
    unsafe fn cached(
        &mut self,
        fd: RawFd,
        piece: &Range,
        at: *mut u8,
        asked: u64,
    ) -> IoResult<Option<usize>> {
        if !system_copy_waits(at, piece.offset) {
            // SAFETY: the caller's promise.
            return unsafe { load::cached(fd, piece.offset, at, piece.bytes) };
        }
        let copy = |to, from, bytes| {
            by_fastest(piece.to, (piece.bytes, bytes), asked, |stores| {
                // SAFETY: the buffer has that much, and `at` room for all of it.
                unsafe { copy_memory(to, from, bytes, stores) }
            });
        };
        // SAFETY: the caller's promise.
        unsafe { self.pass.cached(fd, piece.offset, at, piece.bytes, copy) }
    }

    /// O_DIRECT into memory that isn't aligned for it.
    fn through_slot(
        &mut self,
        source: &Source,
        piece: &Range,
        fd: RawFd,
        to: *mut u8,
        asked: u64,
    ) -> Result<(), Error> {
        let (slot, slot_bytes) = self.copies.free_slot(None)?;
        let base = self.copies.slot_at(slot);
        let done = split(std::slice::from_ref(piece), slot_bytes).iter().try_fold(0, |done, piece| {
            let (mut load, head) = direct(fd, piece, base, 0);
            self.run(source, std::slice::from_ref(piece), std::slice::from_mut(&mut load))?;
            by_fastest(piece.to, (piece.bytes, piece.bytes), asked, |stores| {
                // SAFETY: the slot holds head + bytes, as was just read; the destination is its owner's promise.
                unsafe { copy_memory(to.add(done), base.add(head), piece.bytes, stores) }
            });
            Ok(done + piece.bytes)
        });
        self.copies.give_slot_back(slot, true);
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

    fn feed_gpu(
        &mut self,
        request: &Arc<Request>,
        source: &Source,
        part: &[Range],
    ) -> Result<Arc<Mutex<CudaStream>>, Error> {
        let gpu = part[0].to.gpu().expect("parts have one kind of place");
        let (outlet, stream) = self.copies.outlet_after(request, gpu)?;
        if part[0].bytes > SLOT_BYTES && self.queue_window(request, source, &part[0], outlet)? {
            return Ok(stream);
        }
        self.feed_slots(request, source, part, outlet, None)?;
        self.copies.ends_with_the_last(request, 0);
        Ok(stream)
    }

    /// Through slots, and from there to the GPU: each range to its place, or to that of the pages whose bytes it has.
    fn feed_slots(
        &mut self,
        request: &Request,
        source: &Source,
        part: &[Range],
        outlet: usize,
        pages: Option<(&Pages, &PagePart)>,
    ) -> Result<(), Error> {
        let slot_bytes = data_bytes(self.copies.free_slot_bytes(outlet)?, pages.is_some());
        let mut rest: Cow<[Range]> = split(part, slot_bytes);
        let mut uncached = Vec::new();
        let mut past_cache = false;
        loop {
            let taken = self.fill_slot(request, source, (&rest, pages), &mut uncached, past_cache, outlet)?;
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
        let (Source::One { reader, .. }, Address::Device { gpu, at: to }) = (source, piece.to) else {
            return Ok(false);
        };
        let Some(windows) = reader.windows() else { return Ok(false) };
        let wakeup = self.wakeup.get_or_insert_with(wakes_this_thread).clone();
        let meanwhile = || {
            self.copies.reap(false);
            !request.is_dropped()
        };
        let Some(held) = windows.hold(piece.offset, &wakeup, meanwhile) else { return Ok(false) };
        let queued = held.queue(&wakeup, || {
            self.copies.queue(outlet, |stream| {
                // SAFETY: the window holds the piece, and stays registered until it is released, after the event; the
                // destination is its owner's promise.
                unsafe { stream.copy_to_device(to, held.at, piece.bytes) }
            })
        });
        match queued {
            Ok(event) => {
                let from = From::Window(windows.clone(), held.number, held.generation);
                self.copies.fly(outlet, from, piece.bytes, event);
                self.copies.ends_with_the_last(request, 0);
                add(&request.counts.mapped, piece.bytes);
                Ok(true)
            }
            Err(why) => {
                self.copies.wait_for(outlet);
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
        (pieces, pages): (&[Range], Option<(&Pages, &PagePart)>),
        uncached: &mut Vec<Range>,
        past_cache: bool,
        outlet: usize,
    ) -> Result<usize, Error> {
        let (slot, slot_bytes) = self.copies.free_slot(Some(outlet))?;
        let base = self.copies.slot_at(slot);
        let mut layout = Layout::new(base, data_bytes(slot_bytes, pages.is_some()));
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
                in_turn(source, || match pages {
                    None => self.copies.send(outlet, slot, base, &runs),
                    Some((pages, part)) => self.copies.send_pages(outlet, slot, (pages, part), &runs),
                })
            };
            sent.map(|()| taken).map_err(|why| self.copies.failed(outlet, &why))
        });
        if runs.is_empty() {
            self.copies.give_slot_back(slot, true);
        } else if sent.is_err() {
            self.copies.give_slot_up(outlet, slot);
        }
        sent
    }
}

/// Tells a request of a part: its copies are queued on a stream, or it is done.
fn end_part(
    copies: &mut Copies,
    request: &Arc<Request>,
    index: usize,
    done: Result<Option<Arc<Mutex<CudaStream>>>, Error>,
) {
    match done {
        // Its last flight ends the part.
        Ok(Some(stream)) => request.part_queued(Some(&stream)),
        Ok(None) => {
            request.part_queued(None);
            request.part_done(index);
        }
        Err(error) => {
            request.fail(error);
            copies.drain();
            request.part_queued(None);
            request.part_done(index);
        }
    }
}

/// Reads the pieces of a part through cuFile to their places, one after the other.
fn through_cufile(
    known: &KnownFile,
    request: &Request,
    source: &Source,
    part: &[Range],
) -> Result<(), Error> {
    known.enter(request.after.iter())?;
    for piece in part {
        let Address::Device { gpu, at } = piece.to else { unreachable!("parts have one kind of place") };
        known.note(piece.offset, piece.bytes);
        let mut done = 0;
        while done < piece.bytes {
            let (offset, to) = (piece.offset + done as u64, at + done as u64);
            // SAFETY: the destination's owner keeps it until the request has ended.
            match unsafe { known.read(offset, piece.bytes - done, gpu, to) } {
                Ok(0) => return Err(short(source, piece, offset)),
                Ok(got) => done += got,
                Err(why) => return Err(failed(source, piece, &std::io::Error::other(why))),
            }
        }
        if known.is_direct() {
            add(&request.counts.direct, piece.bytes);
            add(&request.counts.uncached, piece.bytes);
        } else {
            add(&request.counts.compat, piece.bytes);
        }
    }
    Ok(())
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
fn wakes_this_thread() -> Arc<MappedWakeup> {
    let thread = std::thread::current();
    MappedWakeup::new(move || thread.unpark())
}
