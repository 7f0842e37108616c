//! Commands that wait for their namespace's limits: which do, and how they go on or end.

use super::controller_queues::ControllerQueues;
use super::worker::{Owner, Worker};
use forebay_nvme::command::Sqe;
use forebay_nvme::nvm::payload_blocks;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::pcie::queue::Fetched;

/// Returns whether a command may go now; else it waits in its queue.
pub(super) fn admits(f: &mut ControllerQueues, owner: Owner, sqe: &Sqe, now_ns: u64) -> bool {
    let nsid = sqe.nsid.get();
    // What names no namespace is refused, or flushes all of them.
    let Ok(at) = f.view.binary_search_by_key(&nsid, |(nsid, _)| *nsid) else { return true };
    let shown = &f.view[at].1;
    // A longer one is refused.
    let bytes =
        (payload_blocks(sqe) * u64::from(shown.volume.block_bytes)).min(f.shared.transfer_bytes_max.into());
    f.queues[owner.queue as usize].lines.ask((nsid, &shown.limiter), owner.slot, bytes, now_ns)
}

impl Worker {
    /// Commands whose time has come.
    pub(super) fn let_through(&mut self, f: &mut ControllerQueues, at: u32) {
        let now_ns = self.now_ns();
        for queue in 0..f.queues.len() {
            while let Some(slot) = f.queues[queue].lines.next(now_ns) {
                let Some(Fetched { sqe, .. }) = f.queues[queue].cq.command(slot) else { continue };
                self.carry_out(f, Owner { controller: at, queue: queue as u32, slot }, &sqe);
                f.awake = true;
            }
        }
    }

    /// Ends commands that wait.
    pub(super) fn turn_away(&mut self, f: &mut ControllerQueues, at: u32, whose: impl Fn(&Owner) -> bool) {
        for queue in 0..f.queues.len() {
            let owner = |slot| Owner { controller: at, queue: queue as u32, slot };
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
