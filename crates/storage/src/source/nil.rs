//! `nil:` — completes at once and moves nothing: the cost of our own loop.

use super::plan::{Examiner, Open, Source, SourcePlan, Uri};
use super::uri::{query, Text};
use super::{MadeOf, OpenFile, OpenSource, QueueNeeds};
use forebay_io::{Check, CheckState, Done, Full, Geometry, Io, Queue, Reactor, Roots, Via};
use forebay_model::units::{format_bytes, parse_bytes};
use forebay_model::Error;
use serde_json::json;
use std::fmt;
use std::sync::Arc;

const BYTES_DEFAULT: u64 = 1 << 40;

#[derive(Clone, Copy, Debug)]
struct NilUri {
    bytes: u64,
}

pub(crate) fn parse(text: Text) -> Result<Uri, Error> {
    let mut bytes = BYTES_DEFAULT;
    for (key, value) in query(text.rest.trim_start_matches('?')) {
        match key.as_str() {
            "size" => bytes = parse_bytes(&value)?,
            size if text.rest == size => bytes = parse_bytes(size)?,
            _ => return Err(text.wrong(&format!("'{key}' is not a key of nil:"), "nil:?size=64g")),
        }
    }
    if bytes == 0 {
        return Err(text.wrong("its size is 0", "nil:?size=64g"));
    }
    Ok(NilUri { bytes }.into())
}

impl fmt::Display for NilUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            BYTES_DEFAULT => f.write_str("nil:"),
            bytes => write!(f, "nil:?size={}", format_bytes(bytes)),
        }
    }
}

impl Source for NilUri {
    fn scheme(&self) -> &'static str {
        "nil"
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::Nothing
    }

    fn bytes(&self) -> Option<u64> {
        (self.bytes != BYTES_DEFAULT).then_some(self.bytes)
    }

    fn reported(&self) -> Option<serde_json::Value> {
        Some(json!({"kind": "nil"}))
    }

    fn checks(&self, _: &Roots) -> Vec<Check> {
        let found = "completes at once: the cost of our own loop; no hardware applies";
        vec![Check::of_source("nil", self, &self.to_string(), CheckState::Works, found)]
    }

    fn examine(&self, _: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error> {
        Ok(SourcePlan::new(*self, "nil:", wanted.map_or(self.bytes, |w| w.min(self.bytes))))
    }

    fn open(&self, _: &SourcePlan, _: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        Ok(Arc::new(OpenNil))
    }

    fn document(&self, plan: &SourcePlan) -> serde_json::Value {
        json!({"kind": "nil", "bytes": plan.bytes})
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OpenNil;

impl OpenSource for OpenNil {
    fn scheme(&self) -> &'static str {
        "nil"
    }

    fn engine(&self) -> Option<&'static str> {
        Some("nil")
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::Nothing
    }

    fn queue(
        &self,
        bytes: u64,
        needs: QueueNeeds,
        _: &mut Reactor,
        _: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(NilQueue::new(bytes, needs.depth)))
    }
}

pub(super) struct NilQueue {
    geometry: Geometry,
    pushed: Vec<Done>,
    started: usize,
}

impl NilQueue {
    pub(super) fn new(bytes: u64, depth: u32) -> Self {
        let geometry = Geometry { bytes, align: 1, mem_align: 1, io_bytes_max: 1 << 30, depth };
        NilQueue { geometry, pushed: Vec::with_capacity(depth as usize), started: 0 }
    }
}

/// Bytes of an I/O that lie inside an address space of `bytes`.
pub(super) fn inside(io: &Io, bytes: u64) -> u32 {
    u64::from(io.len).min(bytes.saturating_sub(io.offset)) as u32
}

impl Queue for NilQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.pushed.len() as u32
    }

    fn push(&mut self, io: Io, _reactor: &mut Reactor) -> Result<(), Full> {
        if self.pushed.len() == self.geometry.depth as usize {
            return Err(Full(io));
        }
        self.pushed.push(Done {
            tag: io.tag,
            result: Ok(inside(&io, self.geometry.bytes)),
            via: Via::Nothing,
            copy_ns: 0,
        });
        Ok(())
    }

    fn submit(&mut self, _reactor: &mut Reactor) {
        self.started = self.pushed.len();
    }

    fn reap(&mut self, _reactor: &mut Reactor, done: &mut Vec<Done>) {
        if self.started == self.pushed.len() {
            done.append(&mut self.pushed);
        } else {
            done.extend(self.pushed.drain(..self.started));
        }
        self.started = 0;
    }

    fn abandon(&mut self, _tag: u32, _reactor: &mut Reactor) {}
}
