//! `stripe:` — RAID0 over any sources: chunk i of the stripe is chunk i / n of
//! member i mod n. Members are queues of the same worker, so they run in parallel
//! and nothing here waits.

use super::nvme::query::instead;
use super::plan::{Examiner, Open, Source, SourcePlan, Uri};
use super::uri::{query, Text};
use super::{MadeOf, OpenFile, OpenSource, QueueNeeds, Target};
use forebay_io::{Done, Fault, Full, Geometry, Io, Mem, Op, Queue, Reactor, Via};
use forebay_model::units::{format_bytes, parse_bytes};
use forebay_model::Error;
use serde_json::json;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub(crate) const MEMBERS_MAX: usize = 64;
const CHUNK_DEFAULT: u64 = 512 << 10;
/// Deeper members than this make I/Os wait at the stripe instead.
const MEMBER_DEPTH_MAX: u64 = 16384;

impl OpenStripe {
    /// Bytes that a stripe over members of these sizes can address: all use as much as the smallest, in whole chunks.
    pub fn bytes_of(members: &[u64], chunk: u64) -> u64 {
        members.iter().min().map_or(0, |least| (least / chunk * chunk).saturating_mul(members.len() as u64))
    }
}

fn uri_of<M: fmt::Display>(chunk: u64, members: impl Iterator<Item = M>) -> String {
    let members: String = members.map(|m| format!("&m={m}")).collect();
    format!("stripe:?chunk={}{members}", format_bytes(chunk))
}

#[derive(Clone, Debug)]
struct StripeUri {
    chunk: u64,
    members: Vec<Uri>,
}

pub(crate) fn parse(text: Text) -> Result<Uri, Error> {
    let wrong = |found: String| Err(text.wrong(&found, "stripe:?chunk=512k&m=/mnt/a/f&m=/mnt/b/f"));
    let (mut chunk, mut members) = (CHUNK_DEFAULT, Vec::new());
    for (key, value) in query(text.rest.trim_start_matches('?')) {
        match key.as_str() {
            "chunk" => chunk = parse_bytes(&value)?,
            "m" => members.push(text.part(&value)?),
            _ => {
                let next =
                    instead(text.whole, &key, &[("chunk", "512k"), ("m", "/mnt/a/f")], "stripe:?m=a&m=b");
                return Err(text.wrong(&format!("'{key}' is not a key of stripe:"), &next));
            }
        }
    }
    if members.is_empty() || members.len() > MEMBERS_MAX {
        return wrong(format!("has {} members; a stripe has 1 to {MEMBERS_MAX}", members.len()));
    }
    if !(512..=1 << 30).contains(&chunk) || chunk % 512 != 0 {
        return wrong(format!("a chunk of {chunk} bytes is not a multiple of 512 up to 1 GiB"));
    }
    Ok(StripeUri { chunk, members }.into())
}

impl fmt::Display for StripeUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&uri_of(self.chunk, self.members.iter()))
    }
}

impl Source for StripeUri {
    fn scheme(&self) -> &'static str {
        "stripe"
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::Parts
    }

    fn parts(&self) -> &[Uri] {
        &self.members
    }

    fn chunk(&self) -> Option<u64> {
        Some(self.chunk)
    }

    fn examine(&self, examiner: &mut dyn Examiner, wanted: Option<u64>) -> Result<SourcePlan, Error> {
        let share = wanted.map(|w| w.div_ceil(self.members.len() as u64).next_multiple_of(self.chunk));
        let members: Vec<SourcePlan> =
            self.members.iter().map(|m| m.examine(examiner, share)).collect::<Result<_, _>>()?;
        let names: Vec<_> = members.iter().map(|m| m.content_name.as_str()).collect();
        let bytes = OpenStripe::bytes_of(&members.iter().map(|m| m.bytes).collect::<Vec<_>>(), self.chunk);
        let label = uri_of(self.chunk, members.iter().map(|m| &m.label));
        Ok(SourcePlan {
            content_name: format!("stripe {} {}", self.chunk, names.join(" ")),
            parts: members,
            ..SourcePlan::new(self.clone(), label, bytes)
        })
    }

    fn open(&self, plan: &SourcePlan, open: &dyn Open) -> Result<Arc<dyn OpenSource>, Error> {
        let members = plan.parts.iter().map(|m| open.target(m)).collect::<Result<_, _>>()?;
        Ok(Arc::new(OpenStripe { chunk: self.chunk, members }))
    }

    fn document(&self, plan: &SourcePlan) -> serde_json::Value {
        json!({"kind": "stripe", "chunk": self.chunk, "members": plan.parts})
    }
}

#[derive(Clone, Debug)]
pub struct OpenStripe {
    pub chunk: u64,
    pub members: Vec<Target>,
}

impl OpenStripe {
    /// Requirements on each member's queue.
    fn inner(&self, needs: QueueNeeds) -> QueueNeeds {
        let depth =
            StripeQueue::member_depth(needs.depth, needs.io_bytes_max, self.chunk, self.members.len());
        QueueNeeds { depth, io_bytes_max: needs.io_bytes_max.min(self.chunk), ..needs }
    }
}

impl OpenSource for OpenStripe {
    fn scheme(&self) -> &'static str {
        "stripe"
    }

    fn engine(&self) -> Option<&'static str> {
        None
    }

    fn made_of(&self) -> MadeOf {
        MadeOf::Parts
    }

    fn queue(
        &self,
        _: u64,
        needs: QueueNeeds,
        reactor: &mut Reactor,
        open: OpenFile,
    ) -> Result<Box<dyn Queue>, Error> {
        let inner = self.inner(needs);
        let queues = self.members.iter().map(|m| m.queue_over(inner, reactor, open));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        let labels = self.members.iter().map(|m| m.label.clone()).collect();
        Ok(Box::new(StripeQueue::new(queues, self.chunk, needs.depth).labelled(labels)))
    }

    /// All members submit to the ring of the one worker, and a member may be a stripe itself.
    fn ring_depth(&self, needs: QueueNeeds) -> u32 {
        let inner = self.inner(needs);
        self.members.iter().map(|m| m.ring_depth(inner)).fold(0, u32::saturating_add)
    }

    fn parts(&self) -> &[Target] {
        &self.members
    }

    fn part_at(&self, offset: u64) -> Option<(usize, u64)> {
        let piece = pieces(self.members.len() as u64, self.chunk, offset, 1).next()?;
        Some((piece.member, piece.offset))
    }

    fn of_parts(&self, members: Vec<Target>) -> Option<Arc<dyn OpenSource>> {
        Some(Arc::new(OpenStripe { chunk: self.chunk, members }))
    }

    fn boundary(&self, _: u64) -> Option<(&'static str, u64)> {
        Some(("a chunk of", self.chunk))
    }
}

/// Part of a range that lies on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub member: usize,
    /// Offset on the member.
    pub offset: u64,
    /// Offset in the range.
    pub at: u64,
    pub len: u64,
}

/// The pieces of a range, in order.
pub(crate) fn pieces(members: u64, chunk: u64, offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let here = offset + at;
        let (index, within) = (here / chunk, here % chunk);
        let length = (chunk - within).min(len - at);
        let piece = Piece {
            member: (index % members) as usize,
            offset: index / members * chunk + within,
            at,
            len: length,
        };
        at += length;
        Some(piece)
    })
}

/// An I/O of the stripe while its pieces are out.
#[derive(Clone, Debug, Default)]
struct Whole {
    pieces_left: u32,
    /// (bytes asked for, bytes moved) of each piece, in order of offset.
    parts: Vec<(u32, u32)>,
    fault: Option<Fault>,
    via: Option<Via>,
    copy_ns: u32,
}

struct Member {
    queue: Box<dyn Queue>,
    free: Vec<u32>,
    /// I/O and part of each of a member's tags; None while it is free.
    owner: Vec<Option<(u32, u32)>>,
}

pub struct StripeQueue {
    members: Vec<Member>,
    chunk: u64,
    geometry: Geometry,
    whole: Vec<Whole>,
    in_flight: u32,
    /// Pieces that a member (itself a stripe) had no room for yet.
    held: Vec<(usize, Io)>,
    /// I/Os without pieces: of no length, or behind the end.
    empty: Vec<Done>,
    scratch: Vec<Done>,
    /// Labels of the members: their faults say whose they are.
    labels: Vec<String>,
}

impl StripeQueue {
    /// The depth that each member needs so that `depth` I/Os of at most `io_bytes` fit.
    pub fn member_depth(depth: u32, io_bytes: u64, chunk: u64, members: usize) -> u32 {
        let pieces = io_bytes.div_ceil(chunk) + 1;
        let most = pieces.div_ceil(members as u64);
        // One I/O always fits, however many pieces it has.
        u64::from(depth).saturating_mul(most).min(MEMBER_DEPTH_MAX).max(most) as u32
    }

    pub fn new(queues: Vec<Box<dyn Queue>>, chunk: u64, depth: u32) -> Self {
        let sizes: Vec<u64> = queues.iter().map(|q| q.geometry().bytes).collect();
        let most = |f: fn(&Geometry) -> u32| queues.iter().map(|q| f(&q.geometry())).max().unwrap_or(1);
        let geometry = Geometry {
            bytes: OpenStripe::bytes_of(&sizes, chunk),
            align: most(|g| g.align),
            mem_align: most(|g| g.mem_align),
            io_bytes_max: 1 << 30,
            depth,
        };
        let members = queues
            .into_iter()
            .map(|queue| {
                let depth = queue.geometry().depth;
                Member { queue, free: (0..depth).rev().collect(), owner: vec![None; depth as usize] }
            })
            .collect();
        StripeQueue {
            members,
            chunk,
            geometry,
            whole: vec![Whole::default(); depth as usize],
            in_flight: 0,
            held: Vec::new(),
            empty: Vec::new(),
            scratch: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// With a name for each member, in order.
    #[must_use]
    pub(crate) fn labelled(self, labels: Vec<String>) -> Self {
        StripeQueue { labels, ..self }
    }

    /// Returns the part of the I/O inside the stripe, in pieces: members may go on behind its end.
    fn split(&self, io: &Io) -> impl Iterator<Item = Piece> {
        let inside = self.geometry.bytes.saturating_sub(io.offset).min(u64::from(io.len));
        pieces(self.members.len() as u64, self.chunk, io.offset, inside)
    }

    fn fits(&self, io: &Io) -> bool {
        let mut wanted = [u32::from(io.op == Op::Flush); MEMBERS_MAX];
        if io.op != Op::Flush {
            self.split(io).for_each(|p| wanted[p.member] += 1);
        }
        self.members.iter().zip(wanted).all(|(m, w)| m.free.len() as u32 >= w)
    }

    /// `mem` is where the piece's own payload lies.
    fn push_piece(&mut self, io: &Io, piece: Piece, mem: Mem, reactor: &mut Reactor) {
        let whole = &mut self.whole[io.tag as usize];
        let part = whole.parts.len() as u32;
        whole.parts.push((piece.len as u32, 0));
        whole.pieces_left += 1;
        let member = &mut self.members[piece.member];
        let tag = member.free.pop().expect("room was counted before the first piece");
        member.owner[tag as usize] = Some((io.tag, part));
        let io = Io { tag, op: io.op, offset: piece.offset, len: piece.len as u32, mem };
        if let Err(Full(io)) = member.queue.push(io, reactor) {
            self.held.push((piece.member, io));
        }
    }

    fn push_held(&mut self, reactor: &mut Reactor) {
        for (member, io) in std::mem::take(&mut self.held) {
            if let Err(Full(io)) = self.members[member].queue.push(io, reactor) {
                self.held.push((member, io));
            }
        }
    }

    /// Books what a member finished; I/Os whose last piece came in are done.
    fn book_pieces(&mut self, m: usize, finished: &mut Vec<Done>, done: &mut Vec<Done>) {
        for piece in finished.drain(..) {
            let member = &mut self.members[m];
            let (tag, part) =
                member.owner[piece.tag as usize].take().expect("a queue only finishes what it was given");
            member.free.push(piece.tag);
            let whole = &mut self.whole[tag as usize];
            match piece.result {
                Ok(moved) => whole.parts[part as usize].1 = moved,
                Err(fault) => {
                    let of_member = || fault.in_part(self.labels.get(m));
                    whole.fault.get_or_insert_with(of_member);
                }
            }
            whole.via = Some(worse(whole.via, piece.via));
            whole.copy_ns = whole.copy_ns.saturating_add(piece.copy_ns);
            whole.pieces_left -= 1;
            if whole.pieces_left == 0 {
                self.in_flight -= 1;
                done.push(whole.finish(tag));
            }
        }
    }
}

impl Whole {
    /// A short piece ends the transfer there: what lies behind it doesn't count as moved.
    fn finish(&mut self, tag: u32) -> Done {
        let mut moved = 0;
        for (asked, got) in self.parts.drain(..) {
            moved += got;
            if got < asked {
                break;
            }
        }
        let result = match self.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(moved),
        };
        Done {
            tag,
            result,
            via: self.via.take().unwrap_or(Via::Nothing),
            copy_ns: std::mem::take(&mut self.copy_ns),
        }
    }
}

/// An I/O is as direct as its least direct piece.
fn worse(so_far: Option<Via>, piece: Via) -> Via {
    let rank = |v: Via| match v {
        Via::Nothing => 0,
        Via::Direct => 1,
        Via::Mapped => 2,
        Via::Fabric => 3,
        Via::Staged => 4,
        Via::Compat => 5,
    };
    so_far.map_or(piece, |v| if rank(v) >= rank(piece) { v } else { piece })
}

impl Queue for StripeQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Lends memory that is on a single member.
    fn lend(&mut self, offset: u64, len: u32) -> Option<Mem> {
        offset.checked_add(len.into()).filter(|end| *end <= self.geometry.bytes)?;
        let piece = pieces(self.members.len() as u64, self.chunk, offset, len.into()).next()?;
        if piece.len < len.into() {
            return None;
        }
        self.members[piece.member].queue.lend(piece.offset, len)
    }

    fn push(&mut self, io: Io, reactor: &mut Reactor) -> Result<(), Full> {
        if self.in_flight == self.geometry.depth || !self.fits(&io) {
            return Err(Full(io));
        }
        self.in_flight += 1;
        if io.op == Op::Flush {
            for member in 0..self.members.len() {
                self.push_piece(&io, Piece { member, offset: 0, at: 0, len: 0 }, io.mem, reactor);
            }
        } else {
            let mut mem = io.mem;
            for piece in self.split(&io) {
                self.push_piece(&io, piece, mem, reactor);
                mem = mem.after(piece.len as usize);
            }
            if self.whole[io.tag as usize].pieces_left == 0 {
                self.empty.push(Done { tag: io.tag, result: Ok(0), via: Via::Nothing, copy_ns: 0 });
            }
        }
        Ok(())
    }

    fn submit(&mut self, reactor: &mut Reactor) {
        self.members.iter_mut().for_each(|m| m.queue.submit(reactor));
    }

    fn reap(&mut self, reactor: &mut Reactor, done: &mut Vec<Done>) {
        self.in_flight -= self.empty.len() as u32;
        done.append(&mut self.empty);
        let mut finished = std::mem::take(&mut self.scratch);
        for m in 0..self.members.len() {
            self.members[m].queue.reap(reactor, &mut finished);
            self.book_pieces(m, &mut finished, done);
        }
        self.scratch = finished;
        if !self.held.is_empty() {
            self.push_held(reactor);
            self.submit(reactor);
        }
    }

    fn abandon(&mut self, tag: u32, reactor: &mut Reactor) {
        for member in &mut self.members {
            for (piece, owner) in member.owner.iter().enumerate() {
                if owner.is_some_and(|(whole, _)| whole == tag) {
                    member.queue.abandon(piece as u32, reactor);
                }
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.members.iter().filter_map(|m| m.queue.next_due()).min()
    }

    fn wakes_at_first(&self) -> bool {
        self.members.iter().any(|m| m.queue.wakes_at_first())
    }

    fn close(&mut self, reactor: &mut Reactor) {
        self.members.iter_mut().for_each(|m| m.queue.close(reactor));
    }
}

#[cfg(test)]
mod tests;
