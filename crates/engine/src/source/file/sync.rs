//! One I/O as a blocking system call: what the pool's threads and the inline engine do.

use super::FileTarget;
use crate::queue::{Done, Fault, Io, Op, Via};
use std::os::fd::AsRawFd;

/// Runs the I/O to its end on this thread.
pub fn perform(target: &FileTarget, io: &Io) -> Done {
    let result = loop {
        let got = call(target, io);
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

fn moves_payload(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write { .. })
}

fn call(target: &FileTarget, io: &Io) -> i64 {
    let fd = target.file.as_raw_fd();
    let (offset, len) = (io.offset as i64, i64::from(io.len));
    let at = io.mem.host_ptr();
    // SAFETY: the slot holds at least len bytes (rounded up to the alignment for a read at the end) and
    // belongs to the queue until the I/O is reaped; fd is held open by the target.
    unsafe {
        match io.op {
            Op::Read => {
                let len = target.padded(io.offset, io.len);
                libc::pread(fd, at.cast(), len as usize, offset) as i64
            }
            Op::Write { durable } => {
                let vec = libc::iovec { iov_base: at.cast(), iov_len: io.len as usize };
                libc::pwritev2(fd, &vec, 1, offset, if durable { libc::RWF_DSYNC } else { 0 }) as i64
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
