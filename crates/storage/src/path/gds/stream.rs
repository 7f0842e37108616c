//! cuFile's stream calls: I/Os queued on CUDA streams, alone or in groups, with an
//! event behind each group. Events are looked up: a callback costs 25 µs of CPU.

use super::{ended, moves_payload, perform, Base, GdsFile, Session};
use forebay_io::{
    monotonic_now, CuFileStreamIo, CudaDevice, CudaEvent, CudaStream, Done, Fault, Full, Geometry, Io, Op,
    Queue, Reactor,
};
use forebay_model::Error;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most CUDA streams of a worker; more I/Os take turns on them.
pub(crate) const STREAMS_MAX: u32 = 32;
/// Time between two queries of a stream: shorter costs CPU time, longer adds to the latency of a 4 KiB read.
const AGAIN: Duration = Duration::from_micros(30);

/// A worker's streams, which its queues take in turns.
///
/// They aren't registered with cuFile, which would save it work for each call: after registered streams had been deregistered
/// without any I/O, libcufile 1.15.1 was seen to report later reads on other registered streams as complete whose bytes never
/// came. Told of sizes that aren't pages, it brings other bytes than those asked for.
pub(crate) struct Streams {
    device: Arc<CudaDevice>,
    streams: Vec<CudaStream>,
    next: usize,
    spare: Vec<CudaEvent>,
}

impl Streams {
    pub(crate) fn new(device: &Arc<CudaDevice>, count: u32) -> Result<Rc<RefCell<Streams>>, Error> {
        let stream = |_| {
            CudaStream::on(device).map_err(|why| {
                Error::machine(format!("a stream on GPU {}", device.index()), why.to_string(), "nvidia-smi")
            })
        };
        let streams = (0..count.clamp(1, STREAMS_MAX)).map(stream).collect::<Result<_, Error>>()?;
        let device = device.clone();
        Ok(Rc::new(RefCell::new(Streams { device, streams, next: 0, spare: Vec::new() })))
    }

    /// Waits for everything on all of them.
    fn synchronize(&self) -> Result<(), String> {
        self.streams.iter().try_for_each(CudaStream::synchronize).map_err(|e| e.to_string())
    }

    /// Queues the group, and an event behind it. Fails as a whole if the event can't be had.
    fn send(
        &mut self,
        file: &GdsFile,
        ios: &mut [(Io, Box<CuFileStreamIo>)],
    ) -> Result<(CudaEvent, Vec<Option<Fault>>), String> {
        let at = self.next % self.streams.len();
        self.next += 1;
        let stream = &self.streams[at];
        let event =
            self.spare.pop().map_or_else(|| CudaEvent::on(&self.device), Ok).map_err(|e| e.to_string())?;
        let started = ios.iter_mut().map(|(_, call)| {
            // SAFETY: the call is boxed, kept until the event, and left to cuFile if the queue goes first; the slot
            // belongs to the I/O until it is reaped.
            let queued = unsafe { file.handle.start(call, stream) };
            queued.err().map(|e| Fault::note(e.errno, e.to_string()))
        });
        let faults = started.collect();
        if let Err(why) = stream.record(&event) {
            let _ = stream.synchronize();
            return Err(why.to_string());
        }
        Ok((event, faults))
    }
}

/// I/Os that one event covers.
struct Group {
    event: CudaEvent,
    ios: Vec<(Io, Box<CuFileStreamIo>)>,
    faults: Vec<Option<Fault>>,
}

/// Sharing of streams among I/Os.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamWay {
    /// I/Os behind one event.
    pub together: u32,
    /// `submit` waits for the stream: where only one I/O is in flight, looking again and again would only add to it.
    pub waits: bool,
}

pub(crate) struct StreamGds {
    session: Arc<Session>,
    file: GdsFile,
    base: Base,
    geometry: Geometry,
    streams: Rc<RefCell<Streams>>,
    way: StreamWay,
    pushed: Vec<Io>,
    groups: Vec<Group>,
    ready: Vec<Done>,
    /// Boxed, since cuFile keeps their addresses while they are in use.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<CuFileStreamIo>>,
    in_flight: u32,
}

impl StreamGds {
    pub(crate) fn new(
        session: Arc<Session>,
        file: GdsFile,
        base: Base,
        geometry: Geometry,
        streams: Rc<RefCell<Streams>>,
        way: StreamWay,
    ) -> StreamGds {
        StreamGds {
            session,
            file,
            base,
            geometry,
            streams,
            way,
            pushed: Vec::new(),
            groups: Vec::new(),
            ready: Vec::new(),
            spare: Vec::new(),
            in_flight: 0,
        }
    }

    /// The call's own copy of the I/O: cuFile looks at it when the stream gets there.
    fn call(&mut self, io: &Io) -> Option<Box<CuFileStreamIo>> {
        let place = self.base.place(io.mem)?;
        let mut call = self.spare.pop().unwrap_or_default();
        *call = CuFileStreamIo::new(io.op != Op::Read, place, io.len as usize, io.offset);
        Some(call)
    }

    fn send(&mut self, ios: Vec<Io>) {
        let mut calls = Vec::with_capacity(ios.len());
        for io in ios {
            match self.call(&io) {
                Some(call) => calls.push((io, call)),
                None => {
                    let fault = Fault::note(libc::EINVAL, "cuFile was given memory that isn't a GPU's");
                    self.ready.push(ended(&io, Err(fault), self.file.via));
                }
            }
        }
        if calls.is_empty() {
            return;
        }
        let sent = self.streams.borrow_mut().send(&self.file, &mut calls);
        match sent {
            Ok((event, faults)) => self.groups.push(Group { event, ios: calls, faults }),
            Err(why) => {
                let fail =
                    |(io, _): &(Io, _)| ended(io, Err(Fault::note(libc::EIO, why.as_str())), self.file.via);
                self.ready.extend(calls.iter().map(fail));
            }
        }
    }

    /// Books a group that its stream has passed, or that `broken` says will never be.
    fn book_group(&mut self, group: Group, broken: Option<&str>) {
        let Group { event, ios, faults } = group;
        for ((io, call), fault) in ios.into_iter().zip(faults) {
            let result = match (fault, broken) {
                (Some(fault), _) => Err(fault),
                (None, Some(why)) => Err(Fault::note(libc::EIO, why)),
                (None, None) => match call.outcome() {
                    Ok(moved) => Ok(moved.min(io.len as usize) as u32),
                    Err(e) => Err(Fault::note(e.errno, e.to_string())),
                },
            };
            self.ready.push(ended(&io, result, self.file.via));
            self.spare.push(call);
        }
        if broken.is_none() {
            self.streams.borrow_mut().spare.push(event);
        }
    }
}

impl Queue for StreamGds {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth {
            return Err(Full(io));
        }
        self.in_flight += 1;
        self.session.count(&io);
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        let (mut calls, others): (Vec<Io>, Vec<Io>) =
            std::mem::take(&mut self.pushed).into_iter().partition(|io| moves_payload(io.op));
        while !calls.is_empty() {
            let rest = calls.split_off((self.way.together.max(1) as usize).min(calls.len()));
            self.send(std::mem::replace(&mut calls, rest));
        }
        if self.way.waits && !self.groups.is_empty() {
            // What fails here shows at the event.
            let _ = self.streams.borrow().synchronize();
        }
        // A flush, once per file, when all else has ended.
        for io in others {
            self.ready.push(perform(&self.file, &self.base, &io));
        }
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        let mut i = 0;
        while i < self.groups.len() {
            match self.groups[i].event.is_done() {
                Ok(false) => i += 1,
                Ok(true) => {
                    let group = self.groups.swap_remove(i);
                    self.book_group(group, None);
                }
                Err(why) => {
                    let group = self.groups.swap_remove(i);
                    // An event that can't be asked may still be waited for: then its slots are safe.
                    let _ = group.event.synchronize();
                    self.book_group(group, Some(&why.to_string()));
                }
            }
        }
        self.in_flight -= self.ready.len() as u32;
        done.append(&mut self.ready);
    }

    /// Does nothing: what is on a stream can't be taken back.
    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}

    fn next_due(&self) -> Option<Instant> {
        match (self.ready.is_empty(), self.groups.is_empty()) {
            (false, _) => Some(monotonic_now()),
            (true, false) => Some(monotonic_now() + AGAIN),
            (true, true) => None,
        }
    }
}

impl Drop for StreamGds {
    /// cuFile writes its results into calls that are still on a stream.
    fn drop(&mut self) {
        self.groups.drain(..).for_each(std::mem::forget);
    }
}
