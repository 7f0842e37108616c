//! Commands that wait for their namespace's limits: in one line for each namespace of a queue, so that they hold up
//! neither other queues nor commands for other namespaces. They hold on to nothing of the host's memory meanwhile.

use super::function::Function;
use super::qos::{enter, Limiter, Share};
use super::worker::{Owner, Worker};
use forebay_nvme::command::{io, Sqe};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::queue::Fetched;
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue's commands for one namespace.
#[derive(Debug)]
struct Line {
    nsid: u32,
    share: Share,
    /// Slots, with the bytes that each moves.
    waiting: VecDeque<(u16, u64)>,
}

/// All that wait of one queue.
#[derive(Debug, Default)]
pub struct Lines {
    lines: Vec<Line>,
    /// When to look again, ns.
    until: Option<u64>,
}

impl Lines {
    /// True: the command may go now. Else it waits.
    pub fn ask(&mut self, (nsid, limiter): (u32, &Arc<Limiter>), slot: u16, bytes: u64, now_ns: u64) -> bool {
        if self.lines.is_empty() && limiter.is_open() {
            return true;
        }
        let line = self.line(nsid, limiter);
        let mut until = now_ns;
        if line.waiting.is_empty() {
            match enter(&mut [&mut line.share], bytes, now_ns) {
                Ok(()) => return true,
                Err(later) => until = later,
            }
        }
        line.waiting.push_back((slot, bytes));
        limiter.held_back();
        self.until = Some(self.until.map_or(until, |other| other.min(until)));
        false
    }

    fn line(&mut self, nsid: u32, limiter: &Arc<Limiter>) -> &mut Line {
        let at = self.lines.iter().position(|line| line.nsid == nsid).unwrap_or_else(|| {
            self.lines.push(Line { nsid, share: limiter.share(), waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        // Another namespace of that number.
        if !line.share.is_of(limiter) {
            line.share = limiter.share();
        }
        line
    }

    /// A slot whose time has come.
    pub fn next(&mut self, now_ns: u64) -> Option<u16> {
        self.until.filter(|until| *until <= now_ns)?;
        let mut next: Option<u64> = None;
        for line in &mut self.lines {
            let Some((slot, bytes)) = line.waiting.front().copied() else { continue };
            match enter(&mut [&mut line.share], bytes, now_ns) {
                Ok(()) => {
                    line.waiting.pop_front();
                    return Some(slot);
                }
                Err(until) => next = Some(next.map_or(until, |other| other.min(until))),
            }
        }
        self.until = next;
        None
    }

    /// Returns the number of waiting commands.
    pub fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// When to look again, ns.
    pub fn due(&self) -> Option<u64> {
        self.until
    }

    /// Limits may have changed.
    pub fn look_again(&mut self) {
        self.until = self.until.map(|_| 0);
    }

    /// Takes those away that it chooses.
    pub fn remove(&mut self, chosen: impl Fn(u16) -> bool) -> Vec<u16> {
        let mut gone = Vec::new();
        for line in &mut self.lines {
            gone.extend(line.waiting.iter().map(|(slot, _)| *slot).filter(|slot| chosen(*slot)));
            line.waiting.retain(|(slot, _)| !chosen(*slot));
        }
        gone
    }
}

/// Returns whether a command may go now; else it waits in its queue.
pub fn admits(f: &mut Function, owner: Owner, sqe: &Sqe, now_ns: u64) -> bool {
    let nsid = sqe.nsid.get();
    // What names no namespace is refused, or flushes all of them.
    let Ok(at) = f.view.binary_search_by_key(&nsid, |(nsid, _)| *nsid) else { return true };
    let shown = &f.view[at].1;
    let blocks = match sqe.opcode {
        io::READ | io::WRITE | io::COMPARE => u64::from(sqe.cdw12.get() & 0xffff) + 1,
        _ => 0,
    };
    // A longer one is refused.
    let bytes = (blocks * u64::from(shown.volume.block_bytes)).min(f.port.transfer_bytes_max.into());
    f.queues[owner.queue as usize].lines.ask((nsid, &shown.limiter), owner.slot, bytes, now_ns)
}

impl Worker {
    /// Commands whose time has come.
    pub fn let_through(&mut self, f: &mut Function, at: u32) {
        let now_ns = self.now_ns();
        for queue in 0..f.queues.len() {
            while let Some(slot) = f.queues[queue].lines.next(now_ns) {
                let Some(Fetched { sqe, .. }) = f.queues[queue].cq.command(slot) else { continue };
                self.carry_out(f, Owner { function: at, queue: queue as u32, slot }, &sqe);
                f.awake = true;
            }
        }
    }

    /// Ends commands that wait.
    pub fn turn_away(&mut self, f: &mut Function, at: u32, whose: impl Fn(&Owner) -> bool) {
        for queue in 0..f.queues.len() {
            let owner = |slot| Owner { function: at, queue: queue as u32, slot };
            for slot in f.queues[queue].take_waiting(|slot| whose(&owner(slot))) {
                let q = &mut f.queues[queue];
                let Some(Fetched { sqid, .. }) = q.cq.command(slot) else { continue };
                if f.closing {
                    q.cq.forget(slot);
                    continue;
                }
                let deleted = q.closing.contains(&sqid);
                let code = if deleted { Code::ABORTED_SQ_DELETION } else { Code::ABORT_REQUESTED };
                self.finish(f, owner(slot), Status::again(code));
            }
        }
    }
}
