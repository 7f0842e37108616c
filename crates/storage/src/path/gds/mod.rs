//! `gds`: storage to GPU memory through cuFile. What a job shares is a `Session`
//! (the driver, the files known to it, its counters); what a worker has is a
//! `CuFileWorker` (its registered memory, and threads or streams for its calls); each
//! file is a queue. Whether bytes went direct is judged from cuFile's own counters.

#![allow(unsafe_code, reason = "handing cuFile memory that it may use until an I/O is over")]

mod batch;
mod direct;
mod inline;
mod row;
mod session;
mod stream;
mod thread_pool;
mod verdict;
mod worker;

pub(crate) use row::Gds;
pub use row::{judge_cufile, judge_gds_run};
pub(crate) use session::PAGE;
pub use session::{GdsFile, Session};
pub(crate) use worker::{CuFileWorker, Duty};

use crate::path::direct::Base;
use forebay_io::{Done, Fault, Io, Op, Via};
use std::os::fd::AsRawFd;

fn ended(io: &Io, result: Result<u32, Fault>, via: Via) -> Done {
    let via = if matches!(result, Ok(1..)) { via } else { Via::Nothing };
    Done { tag: io.tag, result, via, copy_ns: 0 }
}

/// Runs the I/O to its end on this thread, on which the device's context is current.
fn perform(file: &GdsFile, base: &Base, io: &Io) -> Done {
    let moved = match io.op {
        Op::Read | Op::Write { .. } => transfer(file, base, io),
        Op::Flush => sync_data(file).map(|()| 0),
        Op::WriteZeroes => punch(file, io, libc::FALLOC_FL_ZERO_RANGE),
        Op::Deallocate => punch(file, io, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
    };
    ended(io, moved, if moves_payload(io.op) { file.via } else { Via::Nothing })
}

/// Passes operations without payload to the file system.
fn punch(file: &GdsFile, io: &Io, mode: i32) -> Result<u32, Fault> {
    // SAFETY: the descriptor is held open by `file`.
    match unsafe { libc::fallocate(file.file.as_raw_fd(), mode, io.offset as i64, i64::from(io.len)) } {
        0 => Ok(io.len),
        _ => Err(last_error()),
    }
}

fn last_error() -> Fault {
    Fault::errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn moves_payload(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write { .. })
}

fn transfer(file: &GdsFile, base: &Base, io: &Io) -> Result<u32, Fault> {
    let Some((at, behind)) = base.place(io.mem) else {
        return Err(Fault::note(libc::EINVAL, "cuFile was given memory that isn't a GPU's"));
    };
    let len = io.len as usize;
    // SAFETY: the slot holds at least `len` bytes and belongs to the I/O until it is reaped.
    let moved = unsafe {
        match io.op {
            Op::Read => file.handle.read(at, behind, len, io.offset),
            _ => file.handle.write(at, behind, len, io.offset),
        }
    };
    let moved = moved.map_err(|e| Fault::note(e.errno, e.to_string()))?;
    if matches!(io.op, Op::Write { durable: true }) {
        sync_data(file)?;
    }
    Ok(moved.min(len) as u32)
}

fn sync_data(file: &GdsFile) -> Result<(), Fault> {
    // SAFETY: the descriptor is held open by `file`.
    match unsafe { libc::fdatasync(file.file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}
