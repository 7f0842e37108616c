//! A recorded trace as a rank plays it: which blocks are read, written and removed by which request, and when that comes.
//!
//! What is found where was decided from the trace alone. Here it is done in that order: a block's reads wait for its
//! write and go together, its write and its removal wait for what came before. A request writes once it has read what it
//! reads and calculated the rest. So many blocks move at once as have a place; the others wait in the order in which they
//! were asked for.

use super::act::{Act, Ended};
use super::cache::Key;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

/// Deed of a request to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Read,
    Write,
    Remove,
}

/// A trace. Each of `deeds` is 4 × a block's number, plus 0 (read), 1 (write) or 2 (remove).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// When each request comes, in order.
    pub at_ns: Vec<u64>,
    /// How long it calculates, from its last read until it writes.
    pub then_ns: Vec<u64>,
    /// Where its deeds end among all.
    pub ends: Vec<u64>,
    pub deeds: Vec<u64>,
    /// Bytes of each block.
    pub bytes: Vec<u64>,
}

impl Script {
    /// # Errors
    /// `Request`: the text is no script, or one that can't be played.
    pub fn from_json(text: &str) -> Result<Script, Error> {
        let wrong =
            |found: String| Error::request("the replay", found, "forebay emulate kvcache replay --help");
        let script: Script = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let is_sorted = |all: &[u64]| all.windows(2).all(|two| two[0] <= two[1]);
        let all = script.deeds.len() as u64;
        let counts = [script.ends.len(), script.then_ns.len()];
        if counts != [script.at_ns.len(); 2] || script.ends.last().copied().unwrap_or(0) != all {
            return Err(wrong("its requests and their deeds don't agree".into()));
        }
        if !is_sorted(&script.at_ns) || !is_sorted(&script.ends) {
            return Err(wrong("its requests go back in time".into()));
        }
        let known = |deed: &u64| *deed % 4 < 3 && deed / 4 < script.bytes.len().min(u32::MAX as usize) as u64;
        if !script.deeds.iter().all(known) || script.bytes.contains(&0) {
            return Err(wrong("a block isn't there, or is empty".into()));
        }
        Ok(script)
    }
}

/// Outcome of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// From each request's arrival to its last block, in ns: 0 where it read none, null where the run ended before.
    pub load_ns: Vec<Option<u64>>,
    /// The same for what it wrote.
    pub store_ns: Vec<Option<u64>>,
    /// Blocks that weren't there when they were to be read, and those that found no room.
    pub lost: u64,
    pub given_up: u64,
}

#[derive(Clone, Debug, Default)]
struct Block {
    waits: VecDeque<(Deed, u32)>,
    reads: u32,
    is_written: bool,
    is_there: bool,
}

/// A read or a write that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedIo {
    pub is_write: bool,
    pub bytes: u64,
    pub took_ns: u64,
}

pub(super) struct Player {
    script: Arc<Script>,
    next: usize,
    blocks: Vec<Block>,
    /// Those that may begin, as soon as there is a place.
    ready: VecDeque<(u32, Deed, u32)>,
    doing: Vec<Option<(u32, Deed, u32, u64)>>,
    free: Vec<u32>,
    /// Reads and writes of each request that haven't ended.
    left: Vec<[u32; 2]>,
    /// Requests that calculate, until when; and the writes of those that read or calculate.
    calculate: BinaryHeap<Reverse<(u64, u32)>>,
    writes: HashMap<u32, Vec<u32>>,
    pub done: Replayed,
}

impl Player {
    pub(super) fn new(script: Arc<Script>, places: u32) -> Player {
        let count = script.at_ns.len();
        let none = vec![None; count];
        Player {
            next: 0,
            blocks: vec![Block::default(); script.bytes.len()],
            ready: VecDeque::new(),
            doing: vec![None; places as usize],
            free: (0..places).rev().collect(),
            left: vec![[0; 2]; count],
            calculate: BinaryHeap::new(),
            writes: HashMap::new(),
            done: Replayed { load_ns: none.clone(), store_ns: none, lost: 0, given_up: 0 },
            script,
        }
    }

    /// When it goes on by itself: a request comes, or has calculated.
    pub(super) fn next_arrival_ns(&self) -> Option<u64> {
        let written = self.calculate.peek().map(|Reverse((at, _))| *at);
        self.next_request_ns().into_iter().chain(written).min()
    }

    fn next_request_ns(&self) -> Option<u64> {
        self.script.at_ns.get(self.next).copied()
    }

    pub(super) fn is_over(&self) -> bool {
        let comes = self.next_arrival_ns().is_some();
        !comes && self.ready.is_empty() && self.free.len() == self.doing.len()
    }

    pub(super) fn queued(&self) -> u64 {
        self.ready.len() as u64
    }

    pub(super) fn advance(&mut self, now_ns: u64, acts: &mut Vec<Act>) {
        let script = self.script.clone();
        while self.next_request_ns().is_some_and(|at| at <= now_ns) {
            let request = self.next;
            self.next += 1;
            let first = request.checked_sub(1).map_or(0, |before| script.ends[before]);
            let deeds = &script.deeds[first as usize..script.ends[request] as usize];
            for way in 0..2 {
                let count = deeds.iter().filter(|deed| *deed % 4 == way).count() as u32;
                self.left[request][way as usize] = count;
                if count == 0 {
                    self.times(way as usize)[request] = Some(0);
                }
            }
            if self.left[request][1] > 0 {
                self.writes.insert(request as u32, Vec::new());
            }
            if self.left[request][0] == 0 {
                self.calculates(request, script.at_ns[request]);
            }
            for deed in deeds {
                let what = [Deed::Read, Deed::Write, Deed::Remove][(deed % 4) as usize];
                let block = (deed / 4) as u32;
                self.blocks[block as usize].waits.push_back((what, request as u32));
                self.let_in(block, acts);
            }
        }
        while let Some(Reverse((at, request))) = self.calculate.peek().copied() {
            if at > now_ns {
                break;
            }
            self.calculate.pop();
            let writes = self.writes.remove(&request).unwrap_or_default();
            self.ready.extend(writes.into_iter().map(|block| (block, Deed::Write, request)));
        }
        self.go_on(now_ns, acts);
    }

    /// It has read what it reads, and writes after a while.
    fn calculates(&mut self, request: usize, now_ns: u64) {
        if self.left[request][1] > 0 {
            self.calculate.push(Reverse((now_ns + self.script.then_ns[request], request as u32)));
        }
    }

    /// A block's next deeds, as far as those before have ended.
    fn let_in(&mut self, number: u32, acts: &mut Vec<Act>) {
        let block = &mut self.blocks[number as usize];
        while let Some((deed, request)) = block.waits.front().copied().filter(|_| !block.is_written) {
            match deed {
                Deed::Read => block.reads += 1,
                _ if block.reads > 0 => return,
                Deed::Write => block.is_written = true,
                Deed::Remove => {
                    if std::mem::take(&mut block.is_there) {
                        acts.push(Act::Remove { key: key_of(number) });
                    }
                }
            }
            block.waits.pop_front();
            match (deed, self.writes.get_mut(&request)) {
                (Deed::Remove, _) => {}
                (Deed::Write, Some(waiting)) => waiting.push(number),
                _ => self.ready.push_back((number, deed, request)),
            }
        }
    }

    fn go_on(&mut self, now_ns: u64, acts: &mut Vec<Act>) {
        while !self.ready.is_empty() {
            let Some(slot) = self.free.pop() else { return };
            let Some((number, deed, request)) = self.ready.pop_front() else { return };
            let (key, bytes) = (key_of(number), self.script.bytes[number as usize]);
            if deed == Deed::Read && !self.blocks[number as usize].is_there {
                self.done.lost += 1;
                self.free.push(slot);
                self.is_done(number, deed, request, now_ns, acts);
                continue;
            }
            self.doing[slot as usize] = Some((number, deed, request, now_ns));
            acts.push(match deed {
                Deed::Write => Act::Write { slot, key, bytes },
                _ => Act::Read { slot, key, bytes },
            });
        }
    }

    fn is_done(&mut self, number: u32, deed: Deed, request: u32, now_ns: u64, acts: &mut Vec<Act>) {
        let block = &mut self.blocks[number as usize];
        match deed {
            Deed::Write => block.is_written = false,
            _ => block.reads -= 1,
        }
        let (way, request) = (usize::from(deed == Deed::Write), request as usize);
        self.left[request][way] -= 1;
        if self.left[request][way] == 0 {
            let took = now_ns.saturating_sub(self.script.at_ns[request]);
            self.times(way)[request] = Some(took);
            if way == 0 {
                self.calculates(request, now_ns);
            }
        }
        self.let_in(number, acts);
    }

    fn times(&mut self, way: usize) -> &mut Vec<Option<u64>> {
        if way == 0 {
            &mut self.done.load_ns
        } else {
            &mut self.done.store_ns
        }
    }

    /// None where nothing was moved.
    pub(super) fn ended(
        &mut self,
        slot: u32,
        ended: Ended,
        now_ns: u64,
        acts: &mut Vec<Act>,
    ) -> Option<EndedIo> {
        let (number, deed, request, since_ns) = self.doing[slot as usize].take()?;
        self.free.push(slot);
        let is_write = deed == Deed::Write;
        let block = &mut self.blocks[number as usize];
        block.is_there = ended == Ended::Whole && (is_write || block.is_there);
        self.done.lost += u64::from(ended == Ended::Lost);
        self.done.given_up += u64::from(ended == Ended::Full);
        self.is_done(number, deed, request, now_ns, acts);
        self.go_on(now_ns, acts);
        let bytes = self.script.bytes[number as usize];
        (ended == Ended::Whole).then(|| EndedIo { is_write, bytes, took_ns: now_ns.saturating_sub(since_ns) })
    }
}

fn key_of(block: u32) -> Key {
    Key { user: block, conversation: 0, turn: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(requests: &[(u64, &[u64])], blocks: usize) -> Arc<Script> {
        let mut made = Script { bytes: vec![100; blocks], ..Script::default() };
        for (at, deeds) in requests {
            made.at_ns.push(*at);
            made.then_ns.push(3);
            made.deeds.extend_from_slice(deeds);
            made.ends.push(made.deeds.len() as u64);
        }
        Arc::new(made)
    }

    #[test]
    fn a_block_is_read_once_it_is_written_and_removed_once_it_was_read() {
        let mut player = Player::new(script(&[(5, &[1, 5]), (6, &[0, 4]), (7, &[2, 0])], 2), 3);
        let mut acts = Vec::new();
        player.advance(4, &mut acts);
        assert!(acts.is_empty() && player.next_arrival_ns() == Some(5));
        player.advance(7, &mut acts);
        assert!(acts.is_empty() && player.next_arrival_ns() == Some(8));
        player.advance(8, &mut acts);
        let write = |slot, block| Act::Write { slot, key: key_of(block), bytes: 100 };
        let read = |slot, block| Act::Read { slot, key: key_of(block), bytes: 100 };
        assert_eq!(std::mem::take(&mut acts), [write(0, 0), write(1, 1)]);
        player.ended(0, Ended::Whole, 10, &mut acts);
        assert_eq!(std::mem::take(&mut acts), [read(0, 0)]);
        player.ended(1, Ended::Full, 11, &mut acts);
        // The other's room wasn't to be had: what was to read it goes without. The removal waits for the read.
        assert!(acts.is_empty(), "{acts:?}");
        player.ended(0, Ended::Whole, 15, &mut acts);
        assert_eq!(acts, [Act::Remove { key: key_of(0) }]);
        assert!(player.is_over());
        let Replayed { load_ns, store_ns, lost, given_up } = player.done;
        assert_eq!((load_ns, store_ns), (vec![Some(0), Some(9), Some(8)], vec![Some(6), Some(0), Some(0)]));
        assert_eq!((lost, given_up), (2, 1));
    }

    #[test]
    fn no_more_move_at_once_than_have_a_place() {
        let all: Vec<u64> = (0..10).map(|block| block * 4 + 1).collect();
        let mut player = Player::new(script(&[(0, &all)], 10), 3);
        let mut acts = Vec::new();
        player.advance(3, &mut acts);
        let mut moved = 0;
        while let Some(Act::Write { slot, .. }) = acts.pop() {
            moved += 1;
            assert!(acts.len() < 3);
            player.ended(slot, Ended::Whole, moved, &mut acts);
        }
        assert!(moved == 10 && player.is_over());
    }

    #[test]
    fn what_is_no_script_is_refused() {
        for wrong in [
            "",
            "{}",
            r#"{"at_ns":[1],"then_ns":[0],"ends":[],"deeds":[],"bytes":[]}"#,
            r#"{"at_ns":[2,1],"then_ns":[0,0],"ends":[0,0],"deeds":[],"bytes":[]}"#,
            r#"{"at_ns":[1],"then_ns":[0],"ends":[1],"deeds":[4],"bytes":[9]}"#,
            r#"{"at_ns":[1],"then_ns":[0],"ends":[1],"deeds":[3],"bytes":[9]}"#,
            r#"{"at_ns":[1],"then_ns":[0],"ends":[1],"deeds":[0],"bytes":[0]}"#,
        ] {
            assert!(Script::from_json(wrong).is_err(), "{wrong}");
        }
        assert!(
            Script::from_json(r#"{"at_ns":[1],"then_ns":[0],"ends":[1],"deeds":[1],"bytes":[9]}"#).is_ok()
        );
    }
}
