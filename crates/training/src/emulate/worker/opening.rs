//! Construction of a worker: its ring, its slots, the queue that fills them, and the ways from there.

use super::super::board::Equipment;
use super::super::reading::BLOCK;
use super::super::supply::Delays;
use super::super::uring::{Files, Reading as OpenFiles, Slots};
use super::super::Shared;
use super::{straight, Flight, Latencies, Reads, Worker, STREAMS_MAX};
use forebay_io::client::Client;
use forebay_io::queue::Via;
use forebay_io::reactor::{memlock, Reactor, RingOptions};
use forebay_io::threads;
use forebay_model::Error;
use forebay_storage::path;
use forebay_storage::source::{Loan, QueueNeeds};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

impl Worker {
    pub(crate) fn open(index: usize, shared: Arc<Shared>) -> Result<Worker, Error> {
        threads::settle_in(shared.cpus.get(index % shared.cpus.len().max(1)).copied(), None)?;
        let how = &shared.how;
        let delays = Delays::new(&shared);
        let destination = shared.board.destination.as_ref();
        let feeds_gpu = destination.is_some_and(|to| to.feeds_gpu());
        // What is read inline is parsed before anything else is: one slot, which stays in the cache.
        let depth = if how.is_inline && !delays.any() && !feeds_gpu { 1 } else { how.depth };
        let mut reactor = ring(&shared, depth)?;
        let (slots, lent) = slots(&shared, depth, &mut reactor)?;
        let files: OpenFiles = Rc::new(RefCell::new(vec![None; depth as usize]));
        // O_DIRECT goes on from a block.
        let mut client = Client::new(depth, false, (), |slot| slots.mem(slot)).with_unit(how.align.max(1));
        let reads = add_reads(&shared, &files, depth, &mut client, &mut reactor)?;
        let pin = destination.map_or(Ok(None), |to| to.pin(slots.arena()))?;
        let copiers = destination.map_or(Ok(Vec::new()), |to| to.copiers())?;
        let lanes = straight::lanes(&shared, slots.count(), &mut reactor)?;
        let via = if how.direct && !feeds_gpu { Via::Direct } else { Via::Staged };
        shared.board.set_waker(index, reactor.waker()?);
        shared.board.equipment.get_or_init(|| Equipment {
            pages: slots.pages(),
            slot_bytes: how.io_bytes * u64::from(depth),
            features: reactor.features().to_vec(),
        });
        Ok(Worker {
            index,
            client,
            reads,
            files,
            reactor,
            copiers,
            _pin: pin,
            copies: Vec::new(),
            _lent: lent,
            delays,
            flights: vec![Flight::default(); slots.count() as usize],
            actives: (0..STREAMS_MAX.min(slots.count() as usize)).map(|_| None).collect(),
            lanes,
            via,
            notes: Vec::new(),
            slots,
            in_flight: 0,
            latencies: Latencies::default(),
            accounted: 0,
            shared,
        })
    }
}

/// Without io_uring where nothing is read through it.
fn ring(shared: &Shared, depth: u32) -> Result<Reactor, Error> {
    if shared.how.is_inline || !shared.how.has_ring {
        return Ok(Reactor::without_ring());
    }
    let options = RingOptions { depth: depth.saturating_mul(2), one_by_one: true, ..RingOptions::default() };
    Reactor::with_ring(options).map_err(|e| memlock::refusal("a worker of this run", &e, "‹engine› inline"))
}

/// Slots, and what emulated drives were lent of them.
fn slots(shared: &Shared, depth: u32, reactor: &mut Reactor) -> Result<(Slots, Vec<Loan>), Error> {
    let target = shared.data.target();
    let bytes = match path::of(shared.route.path).pins() {
        true => shared.how.io_bytes as usize + 2 * BLOCK as usize,
        // Nothing goes through them.
        false => BLOCK as usize,
    };
    let has_drives = target.into_iter().flat_map(|target| target.drives()).next().is_some();
    let mut slots = Slots::new(depth, bytes, has_drives)?;
    let lent = target.map_or(Ok(Vec::new()), |target| target.lend(slots.arena()))?;
    if reactor.has_ring() && target.is_none() {
        // Where it is refused, each read pins its own pages.
        let _ = reactor.register_arena(slots.arena_mut());
    }
    Ok((slots, lent))
}

/// Gives the client the queue that fills slots.
fn add_reads(
    shared: &Shared,
    files: &OpenFiles,
    depth: u32,
    client: &mut Client<()>,
    reactor: &mut Reactor,
) -> Result<Reads, Error> {
    let how = &shared.how;
    if let Some(target) = shared.data.target() {
        let needs = QueueNeeds { depth, io_bytes_max: how.io_bytes, then_copied: true, seat: 0 };
        let queue = target.queue(needs, reactor)?;
        let align = queue.geometry().align.max(1);
        client.add(queue);
        return Ok(Reads::Whole { align });
    }
    let by_ring = !how.is_inline && how.has_ring;
    client.add(Box::new(Files::new(files.clone(), by_ring.then_some(reactor))));
    Ok(if by_ring { Reads::Ring } else { Reads::Inline })
}
