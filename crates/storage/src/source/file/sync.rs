//! One I/O as a blocking system call: what the pool's threads and the inline engine do.

#![allow(unsafe_code, reason = "system calls that name buffers by address")]

use super::{scatter, FileTarget};
use forebay_io::{Done, Fault, Io, Op, Via};
use std::os::fd::AsRawFd;

/// Runs the I/O to its end on this thread. `list` is scratch.
pub(crate) fn perform(target: &FileTarget, io: &Io, list: &mut Vec<libc::iovec>) -> Done {
    let (io, scattered) = &match io.mem.is_scattered() && moves_payload(io.op) {
        true => gather(target, *io, list),
        false => (*io, Ok(false)),
    };
    let result = loop {
        let got = match scattered {
            Ok(false) => call(target, io, &[]),
            Ok(true) => call(target, io, list),
            Err(fault) => break Err(fault.clone()),
        };
        if got >= 0 {
            break Ok(if moves_payload(io.op) { (got as u32).min(io.len) } else { io.len });
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            break Err(Fault::errno(errno));
        }
    };
    let via = match (moves_payload(io.op), target.direct) {
        (false, _) => Via::Nothing,
        (true, true) => Via::Direct,
        (true, false) => Via::Staged,
    };
    Done { tag: io.tag, result, via, copy_ns: 0 }
}

/// Lists where the payload lies, unless that is one place after all.
fn gather(target: &FileTarget, io: Io, list: &mut Vec<libc::iovec>) -> (Io, Result<bool, Fault>) {
    let len = if io.op == Op::Read { target.padded(io.offset, io.len) } else { io.len };
    let io = Io { mem: io.mem.narrow(len as usize), ..io };
    let scattered = io.mem.is_scattered();
    let listed = if scattered { scatter::list(target, io.mem, len, list) } else { Ok(()) };
    (io, listed.map(|()| scattered))
}

fn moves_payload(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write { .. })
}

/// `list`: where the payload lies, if that isn't one place.
fn call(target: &FileTarget, io: &Io, list: &[libc::iovec]) -> i64 {
    let fd = target.file.as_raw_fd();
    let (offset, len) = (io.offset as i64, i64::from(io.len));
    let at = io.mem.host_ptr();
    let one = [libc::iovec { iov_base: at.cast(), iov_len: io.len as usize }];
    let places = if list.is_empty() { &one } else { list };
    let (places, count) = (places.as_ptr(), places.len() as i32);
    // SAFETY: the slot, or what the list names, holds at least len bytes (rounded up to the alignment for a read at the
    // end) and belongs to the queue until the I/O is reaped; fd is held open by the target.
    unsafe {
        match io.op {
            Op::Read if !list.is_empty() => libc::preadv(fd, places, count, offset) as i64,
            Op::Read => {
                let len = target.padded(io.offset, io.len);
                libc::pread(fd, at.cast(), len as usize, offset) as i64
            }
            Op::Write { durable } => {
                let flags = target.write_flags | if durable { libc::RWF_DSYNC } else { 0 };
                libc::pwritev2(fd, places, count, offset, flags) as i64
            }
            Op::Flush => i64::from(libc::fdatasync(fd)),
            Op::WriteZeroes => i64::from(libc::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE, offset, len)),
            Op::Deallocate => i64::from(libc::fallocate(
                fd,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset,
                len,
            )),
        }
    }
}
