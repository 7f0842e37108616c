//! Reads that go straight into a GPU, past the worker's slots: a queue for each stream,
//! over what the worker has for all of them.

use super::super::dataset::place_of;
use super::super::reading::Opened;
use super::super::straight::{Held, Means};
use super::super::Shared;
use super::{Active, Worker};
use crate::arena::{Arena, Mem};
use crate::gpu::cuda::{Device, Pinned, Stream};
use crate::gpu::CudaCopier;
use crate::path::gds::{Base, Duty, Station};
use crate::path::mapped::{MappedQueue, Registry, Staging};
use crate::path::{BounceQueue, Copier};
use crate::queue::Queue;
use crate::reactor::Reactor;
use crate::source::QueueNeeds;
use forebay_model::job::{Engine, Pages};
use forebay_model::Error;
use std::rc::Rc;
use std::sync::Arc;

/// Slots for what `mapped` can't map; longer reads go in parts.
const ASIDE_SLOTS: u32 = 4;
const ASIDE_BYTES_MAX: u64 = 4 << 20;

/// What a worker's queues share, by GPU.
pub(super) enum Lanes {
    Mapped(MappedLanes),
    Gds { stations: Vec<Station>, depth: u32 },
}

pub(super) struct MappedLanes {
    // Field order is drop order.
    streams: Vec<Rc<Stream>>,
    _pin: Pinned,
    aside: Arena,
    staging: Staging,
    registry: Arc<Registry>,
    depth: u32,
}

impl Lanes {
    /// None where everything goes through the slots.
    pub(super) fn open(shared: &Shared, depth: u32, reactor: &mut Reactor) -> Result<Option<Lanes>, Error> {
        let (Some(straight), Some(to)) = (&shared.straight, &shared.board.destination) else {
            return Ok(None);
        };
        let devices = || (0..to.turns()).filter_map(|turn| to.device(turn));
        Ok(Some(match &straight.means {
            Means::Mapped(registry) => {
                let each = shared.how.io_bytes.min(ASIDE_BYTES_MAX);
                let aside = Arena::new(ASIDE_SLOTS as usize, each as usize, Pages::Auto)?;
                let (first, _) = to.device(0).expect("there is a GPU");
                let pin = first.pin(&aside)?;
                let stream = |(device, _): (&Arc<Device>, &Base)| {
                    CudaCopier::new(device.clone()).map(|copier| copier.stream())
                };
                Lanes::Mapped(MappedLanes {
                    streams: devices().map(stream).collect::<Result<_, _>>()?,
                    _pin: pin,
                    staging: Staging::new(ASIDE_SLOTS, each as u32),
                    aside,
                    registry: registry.clone(),
                    depth,
                })
            }
            Means::Gds(session) => {
                let plain = to.turns() == 1;
                let duty = Duty { job: &straight.job, depth, plain, whole_pages: false };
                let station = |(device, base): (&Arc<Device>, &Base)| {
                    device
                        .enter()
                        .map_err(|why| Error::machine("--path gds", why.to_string(), "nvidia-smi"))?;
                    Station::open(session, device, base.clone(), &duty, reactor)
                };
                Lanes::Gds { stations: devices().map(station).collect::<Result<_, _>>()?, depth }
            }
        }))
    }

    fn queue(&self, held: &Held, turn: usize, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        match self {
            Lanes::Mapped(lanes) => lanes.queue(held, turn, reactor),
            Lanes::Gds { stations, depth } => stations[turn].queue(&held.target, *depth),
        }
    }
}

impl MappedLanes {
    fn queue(&self, held: &Held, turn: usize, reactor: &mut Reactor) -> Result<Box<dyn Queue>, Error> {
        let copier = || Box::new(CudaCopier::on(self.streams[turn].clone())) as Box<dyn Copier>;
        let needs = QueueNeeds {
            depth: ASIDE_SLOTS,
            io_bytes_max: self.aside.slot_bytes() as u64,
            then_copied: true,
        };
        // What isn't cached is the exception: the worker reads it itself.
        let inner = held.target.queue(Engine::Inline, needs, reactor)?;
        let bounce = Box::new(BounceQueue::new(inner, true, copier(), &self.aside));
        let (registry, staging) = (self.registry.clone(), self.staging.clone());
        let queue = MappedQueue::new(&held.target, self.depth, registry, copier(), bounce, staging, reactor)?;
        Ok(Box::new(queue))
    }
}

impl Worker {
    /// Opens a file whose turn has come, and has it known where it is to go straight. None: it can't be, which was
    /// dealt with.
    pub(super) fn open_file(&self, file: u32, rank: u32) -> std::io::Result<Option<Opened>> {
        let shared = &self.shared;
        let Some(straight) = &shared.straight else {
            return shared.data.open_file(file, shared.how.direct).map(Some);
        };
        if let Some(held) = straight.kept(file) {
            let (bytes, base) = (held.target.bytes, place_of(file));
            let open = Some(held.target.file.clone());
            return Ok(Some(Opened { file: open, held: Some(held), base, bytes, index: None }));
        }
        let mut opened = shared.data.open_file(file, shared.how.direct)?;
        let (Some(open), Some(to)) = (&opened.file, &shared.board.destination) else {
            return Ok(Some(opened));
        };
        if opened.bytes == 0 {
            return Ok(Some(opened));
        }
        let path = shared.data.name(file).into();
        match straight.hold(file, path, open, opened.bytes, to.turn_of(rank)) {
            Ok(held) => {
                opened.held = held;
                Ok(Some(opened))
            }
            Err(error) => {
                self.refused(file, error);
                Ok(None)
            }
        }
    }

    /// Gives the stream a queue of its own, where its file goes straight. False where it can't have one.
    pub(super) fn go_straight(&mut self, active: &mut Active) -> bool {
        let (Some(lanes), Some(held)) = (&self.lanes, &active.reading.held) else { return true };
        let turn = self.shared.board.destination.as_ref().map_or(0, |to| to.turn_of(active.rank));
        match lanes.queue(held, turn, &mut self.reactor) {
            Ok(queue) => active.straight = Some(self.client.add(queue)),
            Err(error) => {
                self.refused(active.file, error);
                return false;
            }
        }
        true
    }

    /// Where the next read of the stream ends, if it goes straight there. None: there is no room, which ends the run.
    pub(super) fn place_for(&mut self, index: usize) -> Option<Option<Mem>> {
        let active = self.actives[index].as_mut().expect("it was chosen");
        let Some(to) = self.shared.board.destination.as_ref().filter(|_| active.straight.is_some()) else {
            return Some(None);
        };
        match to.take(to.turn_of(active.rank)) {
            Ok(piece) => Some(Some(piece)),
            Err(error) => {
                active.goal = active.pushed;
                self.shared.board.fail(error);
                None
            }
        }
    }

    /// Why the read failed, in words.
    pub(super) fn note_of(&mut self, tag: u32) -> Option<Box<str>> {
        let at = self.notes.iter().position(|(of, _)| *of == tag)?;
        Some(self.notes.swap_remove(at).1)
    }
}
