//! The first reading of a file: while the driver registers windows from the front, processors copy others from the end.
//!
//! The driver registers pages at 0.6 to 0.85 of the link's rate. What it leaves of the link is used by relays
//! (`gpu::relay`), a part of a request each. One worker queues their copies.

#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::copies::{copy_failed, Copies};
use super::Worker;
use crate::layout::{add, failed, short};
use crate::load;
use crate::place::{Address, Range};
use crate::request::{Request, Source};
use crate::windows::Windows;
use crate::{relays, SLOT_BYTES};
use forebay_io::{monotonic_now, Cuda, CudaError, Relay, RelayFill};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which it checks for copies that have ended.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// If a copy takes so long, the driver is asked whether it still goes on.
const LATE: Duration = Duration::from_secs(1);

/// The part that a relay is at.
#[derive(Clone, Copy)]
struct Current {
    piece: Range,
    queued: usize,
}

/// A part whose copies are all queued.
struct Queued {
    relay: usize,
    block: u32,
    /// Its bytes are read, and those who wait for that were told.
    is_reported: bool,
    since: Instant,
}

struct Mix<'a> {
    request: &'a Arc<Request>,
    relays: Vec<Relay>,
    current: Vec<Option<Current>>,
    queued: Vec<Queued>,
}

/// Reads the part `first`, and others as `more` names them, by relays.
pub(crate) fn mix(
    worker: &mut Worker,
    request: &Arc<Request>,
    first: usize,
    more: &dyn Fn() -> Option<usize>,
) {
    let source = request.source();
    let gpu = request.part(first)[0].to.gpu();
    let windows = match &*source {
        Source::One { reader, .. } => reader.windows().cloned(),
        Source::Many(_) | Source::Apart { .. } => None,
    };
    let relays = gpu
        .zip(windows.as_ref())
        .and_then(|(gpu, windows)| relays_to(&mut worker.copies, request, gpu, windows));
    let (Some(gpu), Some(windows), Some(relays)) = (gpu, windows, relays) else {
        drop(source);
        return worker.serve(request, first);
    };
    let current = relays.iter().map(|_| None).collect();
    let mut mix = Mix { request, relays, current, queued: Vec::new() };
    let mut first = Some(first);
    let over = loop {
        let over = mix.hand_over(gpu);
        for relay in 0..mix.relays.len() {
            while mix.current[relay].is_none() && !request.is_dropped() {
                let Some(index) = first.take().or_else(more) else { break };
                match request.part(index) {
                    [piece] if piece.bytes > SLOT_BYTES => {
                        mix.current[relay] = Some(Current { piece: *piece, queued: 0 });
                    }
                    _ => worker.serve(request, index),
                }
            }
        }
        if request.is_dropped() || mix.is_done() {
            break over;
        }
        (0..over).for_each(|_| request.part_done(0));
        if mix.has_room() {
            // Out of turn every call of the driver may wait for several windows.
            let queued = windows.turn(|| {
                worker.reap(false);
                mix.queue(&source)
            });
            if let Err(why) = queued {
                request.fail(copy_failed(gpu, &why));
            }
        } else {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    };
    // The request lets go of its file at its end, and so must we.
    drop((source, windows));
    (0..over).for_each(|_| request.part_done(0));
    if let Some(index) = first {
        worker.serve(request, index);
    }
    mix.end(request);
    relays::keep(gpu, mix.relays);
}

/// Relays to this GPU, whose streams wait for what must end before bytes are written; None where there can be none.
fn relays_to(copies: &mut Copies, request: &Request, gpu: u32, windows: &Windows) -> Option<Vec<Relay>> {
    let outlet = copies.outlet(gpu).ok()?;
    let device = copies.device(outlet).clone();
    let relays = relays::take(&device, windows).ok()?;
    let wait = |relay: &Relay| {
        let stream = relay.stream().lock().expect("no holder panics");
        request.after.iter().try_for_each(|after| stream.wait_for(&after.lock().expect("no holder panics")))
    };
    windows.turn(|| relays.iter().try_for_each(wait)).ok()?;
    Some(relays)
}

impl Mix<'_> {
    fn is_done(&self) -> bool {
        self.queued.is_empty() && self.current.iter().all(Option::is_none)
    }

    fn has_room(&self) -> bool {
        let mut relays = self.relays.iter().zip(&self.current);
        relays.any(|(relay, current)| current.is_some() && relay.room() >= Relay::TOGETHER)
    }

    /// Queues what the relays have room for.
    fn queue(&mut self, source: &Arc<Source>) -> Cuda<()> {
        for (number, relay) in self.relays.iter_mut().enumerate() {
            let current = &mut self.current[number];
            while let Some(Current { piece, queued }) = current.filter(|_| relay.room() > 0) {
                let block = Range {
                    offset: piece.offset + queued as u64,
                    bytes: (piece.bytes - queued).min(SLOT_BYTES),
                    to: piece.to.after(queued),
                    ..piece
                };
                let Address::Device { at: to, .. } = block.to else { unreachable!("parts for a GPU") };
                // The destination is its owner's promise, until the part has ended.
                relay.queue(filling(self.request, source, block), to, block.bytes)?;
                let queued = queued + block.bytes;
                *current = (queued < piece.bytes).then_some(Current { piece, queued });
                if current.is_none() {
                    let (block, since) = (relay.last(), monotonic_now());
                    self.queued.push(Queued { relay: number, block, is_reported: false, since });
                }
            }
        }
        Ok(())
    }

    /// Tells who waits for it what is read; how many parts have come to their end.
    fn hand_over(&mut self, gpu: u32) -> usize {
        let (request, relays) = (self.request, &mut self.relays);
        let before = self.queued.len();
        self.queued.retain_mut(|part| {
            let relay = &mut relays[part.relay];
            if part.since.elapsed() > LATE {
                relay.drain();
                part.since = monotonic_now();
            }
            if relay.is_broken() {
                request.fail(copy_failed(gpu, &CudaError::new("its stream failed")));
                return true;
            }
            if !part.is_reported && relay.has_filled(part.block) {
                part.is_reported = true;
                request.part_queued(Some(relay.stream()));
            }
            !(part.is_reported && relay.is_over(part.block))
        });
        before - self.queued.len()
    }

    /// Ends the parts that aren't over: nothing is written for them any more.
    fn end(&mut self, request: &Request) {
        let begun = self.current.iter().flatten().count();
        if self.queued.len() + begun > 0 {
            self.relays.iter_mut().for_each(Relay::drain);
        }
        let unreported = self.queued.iter().filter(|part| !part.is_reported).count() + begun;
        (0..unreported).for_each(|_| request.part_queued(None));
        (0..self.queued.len() + begun).for_each(|_| request.part_done(0));
        self.queued.clear();
    }
}

/// Reads a block into a relay's buffer, out of the page cache or, where that lacks something, with its help.
fn filling(request: &Arc<Request>, source: &Arc<Source>, block: Range) -> RelayFill {
    let (request, source) = (request.clone(), source.clone());
    Box::new(move |to| {
        let Source::One { reader, .. } = &*source else { unreachable!("windows are of one file") };
        if request.is_dropped() {
            return;
        }
        // SAFETY: the buffer has room for a block.
        match unsafe { load::whole(reader.fd(), block.offset, to.as_mut_ptr(), to.len()) } {
            Ok(got) if got == block.bytes => add(&request.counts.staged, got),
            Ok(got) => request.fail(short(&source, &block, block.offset + got as u64)),
            Err(why) => request.fail(failed(&source, &block, &why)),
        }
    })
}
