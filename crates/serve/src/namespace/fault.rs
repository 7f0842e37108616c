//! Translation of a source's faults for a host.

use forebay_nvme::nvm::Op;
use forebay_nvme::status::{Code, Status};

/// The status that names what happened (base, figures 95 and 98). Retries are left open where the next try, or
/// another path, may do better.
pub(crate) fn status_of(errno: i32, op: Op) -> Status {
    let medium = if op.changes() || op == Op::Flush { Code::WRITE_FAULT } else { Code::UNRECOVERED_READ };
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Status::fatal(Code::CAPACITY_EXCEEDED),
        libc::EROFS | libc::EPERM | libc::EACCES => Status::fatal(Code::NAMESPACE_WRITE_PROTECTED),
        libc::ECANCELED => Status::again(Code::ABORT_REQUESTED),
        libc::ETIMEDOUT | libc::ENODEV | libc::ENOTCONN | libc::ECONNRESET | libc::EHOSTUNREACH => {
            Status::again(Code::INTERNAL_PATH_ERROR)
        }
        libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EINTR => {
            Status::again(Code::NAMESPACE_NOT_READY)
        }
        _ => Status::fatal(medium),
    }
}

/// The source can't do this at all, so that it must be done another way or left.
pub(crate) fn is_unsupported(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENOTTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: TGT-4
    #[test]
    fn faults_become_the_status_that_names_them() {
        for (errno, op, code) in [
            (libc::EIO, Op::Read, Code::UNRECOVERED_READ),
            (libc::ENODATA, Op::Compare, Code::UNRECOVERED_READ),
            (libc::EIO, Op::Write, Code::WRITE_FAULT),
            (libc::EIO, Op::Flush, Code::WRITE_FAULT),
            (libc::ENOSPC, Op::Write, Code::CAPACITY_EXCEEDED),
            (libc::EROFS, Op::WriteZeroes { deallocate: false }, Code::NAMESPACE_WRITE_PROTECTED),
            (libc::ETIMEDOUT, Op::Read, Code::INTERNAL_PATH_ERROR),
        ] {
            assert_eq!(status_of(errno, op).code, code, "{errno} {op:?}");
        }
    }

    /// A write that was under way when the source's connection went is the host's to send again: a final fault would
    /// have a guest's file system give up over a target that was restarted.
    // promise: GWY-10
    #[test]
    fn what_was_lost_on_the_way_may_be_tried_again() {
        for errno in [libc::ECONNRESET, libc::EHOSTUNREACH, libc::ENODEV] {
            assert_eq!(status_of(errno, Op::Write), Status::again(Code::INTERNAL_PATH_ERROR), "{errno}");
        }
    }
}
