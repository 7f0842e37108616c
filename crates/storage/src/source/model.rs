//! `model:` in real time: I/Os complete when the modelled drive would complete
//! them, over content from another source or none.

use super::nil::inside;
use super::plan::{Examiner, Open, Source, SourcePlan, Timing, Uri};
use super::shared_drive::SharedDrive;
use super::uri::{query, Text};
use super::{MadeOf, OpenFile, OpenSource, QueueNeeds, Target};
use forebay_io::{Check, CheckState, Done, Fault, Full, Geometry, Io, Mem, Queue, Reactor, Roots, Via};
use forebay_model::device::DriveModel;
use forebay_model::Error;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Address space of a drive without content.
const BYTES: u64 = 1 << 40;

#[derive(Clone, Debug)]
struct ModelUri {
    /// The text after `model:`, without `over` and `time`.
    spec: String,
    over: Option<Uri>,
    real_time: bool,
}

pub(crate) fn parse(text: Text) -> Result<Uri, Error> {
    let (name, tail) = text.rest.split_once('?').unwrap_or((text.rest, ""));
    let (mut over, mut real_time, mut kept) = (None, None, Vec::new());
    for (key, value) in query(tail) {
        match (key.as_str(), value.as_str()) {
            ("over", path) => over = Some(text.part(path)?),
            ("time", "real") => real_time = Some(true),
            ("time", "virtual") => real_time = Some(false),
            ("time", _) => {
                let found = format!("time={value} is neither real nor virtual");
                return Err(text.wrong(&found, "model:d7-ps1010?time=real"));
            }
            _ => kept.push(format!("{key}={value}")),
        }
    }
    if over.is_some() && real_time == Some(false) {
        return Err(text.wrong("content can't be read in virtual time", "time=real, or no over="));
    }
    let spec = if kept.is_empty() { name.to_string() } else { format!("{name}?{}", kept.join("&")) };
    Ok(ModelUri { spec, real_time: real_time.unwrap_or(over.is_some()), over }.into())
}

impl ModelUri {
    /// The drive, without what is changed of it.
    fn name(&self) -> &str {
        self.spec.split('?').next().unwrap_or_default()
    }
}

impl fmt::Display for ModelUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joint = if self.spec.contains('?') { '&' } else { '?' };
        write!(f, "model:{}", self.spec)?;
        self.over.iter().try_for_each(|over| write!(f, "{joint}over={over}"))
    }
}

impl Source for ModelUri {
    fn scheme(&self) -> &'static str {
        "model"
    }

    fn made_of(&self) -> MadeOf {
        if self.over.is_some() {
            MadeOf::Timed
        } else {
            MadeOf::Nothing
        }
    }

    fn parts(&self) -> &[Uri] {
        self.over.as_slice()
    }

    fn timed(&self) -> Option<&str> {
        Some(&self.spec)
    }

    fn is_in_real_time(&self) -> bool {
        self.real_time
    }

    fn reported(&self) -> Option<serde_json::Value> {
        Some(json!({"kind": "model", "name": self.name()}))
    }

    fn checks(&self, _: &Roots) -> Vec<Check> {
        let found =
            format!("a timed model of {}: results are simulated, whatever hardware is here", self.name());
        vec![Check::of_source("model", self, &self.to_string(), CheckState::Works, found)]
    }

    fn examine(&self, examiner: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error> {
        let drive = DriveModel::parse(&self.spec)?;
        examiner.model(&drive)?;
        let over = self.over.as_ref().map(|uri| uri.examine(examiner, wanted)).transpose()?;
        if over.as_ref().is_some_and(SourcePlan::is_virtual) {
            let asked = format!("model:{}", self.spec);
            return Err(Error::request(asked, "its content is itself a model", "over=FILE"));
        }
        let bytes = over.as_ref().map_or(wanted.unwrap_or(BYTES), |over| over.bytes);
        Ok(SourcePlan {
            content_name: over.as_ref().map_or_else(String::new, |over| over.content_name.clone()),
            timing: Some(Timing { spec: self.spec.clone(), drive, real_time: self.real_time }),
            parts: over.into_iter().collect(),
            ..SourcePlan::new(self.clone(), format!("model:{}", self.spec), bytes)
        })
    }

    fn open(&self, plan: &SourcePlan, open: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        let over = plan.parts.first().map(|over| open.target(over)).transpose()?;
        let timing = plan.timing.as_ref().expect("each plan of a model has its drive");
        Ok(Arc::new(OpenModel { drive: open.timed(&timing.drive), over }))
    }

    fn document(&self, plan: &SourcePlan) -> serde_json::Value {
        json!({
            "kind": "model", "spec": self.spec, "over": plan.parts.first(), "bytes": plan.bytes,
            "real_time": self.real_time,
        })
    }
}

/// A drive, and the target that it has content from.
#[derive(Clone, Debug)]
pub struct OpenModel {
    pub drive: SharedDrive,
    pub over: Option<Target>,
}

impl SharedDrive {
    /// Returns a target of `bytes` that keeps the drive's times and has no content.
    pub fn without_content(self, bytes: u64) -> Target {
        Target::new("model", bytes, OpenModel { drive: self, over: None })
    }
}

impl OpenSource for OpenModel {
    fn scheme(&self) -> &'static str {
        "model"
    }

    fn engine(&self) -> Option<&'static str> {
        Some("model")
    }

    fn made_of(&self) -> MadeOf {
        if self.over.is_some() {
            MadeOf::Timed
        } else {
            MadeOf::Nothing
        }
    }

    fn queue(
        &self,
        bytes: u64,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        open: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        let inner = self.over.as_ref().map(|over| over.queue_over(needs, reactor, open)).transpose()?;
        Ok(Box::new(ModelQueue::new(self.drive.clone(), inner, bytes, needs.depth)))
    }

    fn ring_depth(&self, needs: QueueNeeds) -> u32 {
        self.over.as_ref().map_or(needs.depth, |over| over.ring_depth(needs))
    }

    fn parts(&self) -> &[Target] {
        self.over.as_slice()
    }

    fn of_parts(&self, parts: Vec<Target>) -> Option<Arc<dyn OpenSource>> {
        let over = Some(parts.into_iter().next()?);
        Some(Arc::new(OpenModel { over, ..self.clone() }))
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

pub(super) struct ModelQueue {
    inner: Option<Box<dyn Queue>>,
    geometry: Geometry,
    drive: SharedDrive,
    /// (due in ns since the drive began, tag).
    due: BinaryHeap<Reverse<(u64, u32)>>,
    due_of: Vec<u64>,
    /// Finished below; due later.
    waiting: Vec<Option<Done>>,
    in_flight: u32,
    scratch: Vec<Done>,
}

impl ModelQueue {
    pub(super) fn new(drive: SharedDrive, inner: Option<Box<dyn Queue>>, bytes: u64, depth: u32) -> Self {
        let alone = Geometry { bytes, align: 1, mem_align: 1, io_bytes_max: 1 << 30, depth };
        ModelQueue {
            geometry: inner.as_ref().map_or(alone, |q| q.geometry()),
            inner,
            drive,
            due: BinaryHeap::new(),
            due_of: vec![0; depth as usize],
            waiting: vec![None; depth as usize],
            in_flight: 0,
            scratch: Vec::new(),
        }
    }
}

impl Queue for ModelQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        self.inner.as_mut()?.lend(offset, len)
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth {
            return Err(Full(io));
        }
        let tag = io.tag as usize;
        match &mut self.inner {
            Some(inner) => {
                inner.push(io, reactor)?;
                self.due_of[tag] = self.drive.complete_at(&io);
            }
            None => {
                let moved = inside(&io, self.geometry.bytes);
                self.waiting[tag] =
                    Some(Done { tag: io.tag, result: Ok(moved), via: Via::Nothing, copy_ns: 0 });
                self.due.push(Reverse((self.drive.complete_at(&io), io.tag)));
            }
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        if let Some(inner) = &mut self.inner {
            inner.submit(reactor);
        }
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        if let Some(inner) = &mut self.inner {
            inner.reap(reactor, &mut self.scratch);
            for d in self.scratch.drain(..) {
                let tag = d.tag as usize;
                self.due.push(Reverse((self.due_of[tag], d.tag)));
                self.waiting[tag] = Some(d);
            }
        }
        let now = self.drive.since();
        while let Some(Reverse((_, tag))) = self.due.peek().filter(|d| d.0 .0 <= now).copied() {
            self.due.pop();
            self.in_flight -= 1;
            done.push(self.waiting[tag as usize].take().expect("what is due finished below"));
        }
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        let at = tag as usize;
        if let Some(done) = &mut self.waiting[at] {
            // Only the clock still holds it.
            done.result = Err(Fault::errno(libc::ECANCELED));
            self.due.retain(|Reverse((_, other))| *other != tag);
            self.due.push(Reverse((0, tag)));
        } else if let Some(inner) = &mut self.inner {
            self.due_of[at] = 0;
            inner.abandon(tag, reactor);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let own = self.due.peek().map(|d| self.drive.time_of(d.0 .0));
        [own, self.inner.as_ref().and_then(|q| q.next_due())].into_iter().flatten().min()
    }

    fn wakes_at_first(&self) -> bool {
        self.inner.as_ref().is_some_and(|q| q.wakes_at_first())
    }

    fn close(&mut self, reactor: &mut Reactor) {
        if let Some(inner) = &mut self.inner {
            inner.close(reactor);
        }
    }
}
