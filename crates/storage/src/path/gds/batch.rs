//! cuFile's batches: each thread of the thread pool owns one, fills it with what waits,
//! and hands out its entries as they end.
//!
//! In compatibility mode each entry under way holds a host buffer of a small pool,
//! and cuFileBatchIOSubmit waits for one for ever. So entries in flight are bounded
//! by that pool, and only a thread of ours waits in the call, never the run.

use super::thread_pool::{Body, Shared, Task};
use super::{ended, moves_payload, perform};
use forebay_io::{monotonic_now, CuFileBatch, CuFileBatchIo, CuFileEvent, Fault, Op};
use std::time::Duration;

/// Time for which a thread waits for a first entry before it looks up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which a batch waits to be full: about what the worker takes to hand on the last place that fell free.
const FILL: Duration = Duration::from_micros(50);
/// Between two looks at a batch whose status doesn't wait.
const AGAIN: Duration = Duration::from_micros(50);
/// Time in which abandoned entries may still end by themselves. libcufile 1.15 never tells of entries that were under
/// way when their batch was cancelled, so that is left for those that don't end anyhow.
const GRACE: Duration = Duration::from_secs(1);

/// Batch after batch, of up to `entries`.
pub(super) fn batch_by_batch(mut batch: CuFileBatch, entries: usize) -> Body {
    Box::new(move |shared| {
        let mut taken = Vec::with_capacity(entries);
        while shared.take(entries, FILL, &mut taken) {
            let (group, others): (Vec<Task>, Vec<Task>) =
                taken.drain(..).partition(|task| moves_payload(task.io.op));
            for task in others {
                shared.finish(&task, perform(&task.file, &shared.base, &task.io));
            }
            run(&mut batch, shared, group);
        }
    })
}

/// A batch never tells of a read behind the end of the file (libcufile 1.15): such a read ends here, and one
/// that begins before the end asks for no more than there is.
fn within_data(shared: &Shared, group: Vec<Task>) -> Vec<Task> {
    let (mut within, mut behind) = (Vec::with_capacity(group.len()), Vec::new());
    for mut task in group {
        let left = match task.io.op {
            Op::Read => task.file.bytes_now().saturating_sub(task.io.offset),
            _ => u64::MAX,
        };
        task.io.len = u64::from(task.io.len).min(left) as u32;
        if task.io.len == 0 {
            behind.push(task)
        } else {
            within.push(task)
        }
    }
    for task in behind {
        shared.finish(&task, ended(&task.io, Ok(0), task.file.via));
    }
    within
}

fn run(batch: &mut CuFileBatch, shared: &Shared, group: Vec<Task>) {
    let group = within_data(shared, group);
    let placed = |task: &Task| shared.base.place(task.io.mem);
    let (group, lost): (Vec<Task>, Vec<Task>) = group.into_iter().partition(|task| placed(task).is_some());
    for task in lost {
        let fault = Fault::note(libc::EINVAL, "cuFile was given memory that isn't a GPU's");
        shared.finish(&task, ended(&task.io, Err(fault), task.file.via));
    }
    if group.is_empty() {
        return;
    }
    let ios = group.iter().enumerate().map(|(n, task)| {
        let (base, base_offset) = placed(task).unwrap_or_default();
        CuFileBatchIo {
            file: &task.file.handle,
            writes: task.io.op != Op::Read,
            base,
            base_offset,
            bytes: task.io.len as usize,
            offset: task.io.offset,
            tag: n as u64,
        }
    });
    // SAFETY: each slot belongs to its I/O until that is finished, which is when its event has come.
    if let Err(e) = unsafe { batch.submit(ios) } {
        for task in group {
            let fault = Fault::note(e.errno, e.to_string());
            shared.finish(&task, ended(&task.io, Err(fault), task.file.via));
        }
        return;
    }
    gather(batch, shared, group);
}

/// Hands out what ends until all has. What cuFile won't tell of stays open: the worker's time-out deals with it.
fn gather(batch: &mut CuFileBatch, shared: &Shared, group: Vec<Task>) {
    let mut open: Vec<Option<Task>> = group.into_iter().map(Some).collect();
    let mut left = open.len();
    let mut abandoned = None;
    let mut cancelled = false;
    let mut events: Vec<CuFileEvent> = Vec::with_capacity(left);
    while left > 0 {
        if !cancelled && open.iter().flatten().any(|task| shared.is_abandoned(task)) {
            cancelled = abandoned.get_or_insert_with(monotonic_now).elapsed() >= GRACE;
            if cancelled {
                batch.cancel();
            }
        }
        let asked = monotonic_now();
        if let Err(e) = batch.collect(POLL_INTERVAL, &mut events) {
            shared.session.note("cufile_batch", e.to_string(), "‹cufile› sync; cuFile's log");
        }
        if events.is_empty() && asked.elapsed() < AGAIN {
            std::thread::sleep(AGAIN);
        }
        for event in events.drain(..) {
            let Some(task) = open.get_mut(event.tag as usize).and_then(Option::take) else { continue };
            left -= 1;
            let len = task.io.len as usize;
            let result = event.outcome.map(|n| n.min(len) as u32);
            let result = result.map_err(|e| match e.errno {
                // A batch is cancelled as a whole: the others may try again.
                libc::ECANCELED if !shared.is_abandoned(&task) => Fault::errno(libc::EAGAIN),
                errno => Fault::note(errno, e.to_string()),
            });
            shared.finish(&task, ended(&task.io, result, task.file.via));
        }
    }
}
