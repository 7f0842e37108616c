//! Meaning of a command's status for the I/O that it was part of.

use forebay_io::Fault;
use forebay_nvme::status::{Code, Status};

/// Next step for a command that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This path can't serve it now, another one may.
    OtherPath,
    /// The same again may succeed.
    Again,
    Fail(Fault),
}

/// Path Related Status (base, section 4.2.3): SCT 3h.
const PATH: u16 = 3;

pub(crate) fn verdict(status: Status) -> Verdict {
    if status.code.0 >> 8 == PATH {
        return Verdict::OtherPath;
    }
    if !status.do_not_retry && may_pass(status.code) {
        return Verdict::Again;
    }
    Verdict::Fail(fault(status))
}

/// Errors of the way or of the moment, not of the command.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::DATA_TRANSFER_ERROR
            | Code::INTERNAL_ERROR
            | Code::ABORT_REQUESTED
            | Code::ABORTED_SQ_DELETION
            | Code::TRANSIENT_TRANSPORT_ERROR
            | Code::NAMESPACE_NOT_READY
    )
}

pub(crate) fn fault(status: Status) -> Fault {
    let errno = match status.code {
        Code::CAPACITY_EXCEEDED => libc::ENOSPC,
        Code::NAMESPACE_WRITE_PROTECTED => libc::EROFS,
        Code::INVALID_NAMESPACE => libc::ENXIO,
        Code::INVALID_FIELD | Code::INVALID_OPCODE | Code::DATA_SGL_LENGTH_INVALID => libc::EINVAL,
        Code::ACCESS_DENIED | Code::OPERATION_DENIED => libc::EACCES,
        Code::ABORT_REQUESTED => libc::ECANCELED,
        _ => libc::EIO,
    };
    Fault::note(errno, format!("the controller says {}", words(status)))
}

/// `LBA Out of Range (0x080), do not retry`.
pub(crate) fn words(status: Status) -> String {
    let again = if status.do_not_retry { ", do not retry" } else { "" };
    format!("{} ({:#05x}){again}", name(status.code), status.code.0)
}

/// As the specification names it.
fn name(code: Code) -> &'static str {
    match code {
        Code::SUCCESS => "Successful Completion",
        Code::INVALID_OPCODE => "Invalid Command Opcode",
        Code::INVALID_FIELD => "Invalid Field in Command",
        Code::COMMAND_ID_CONFLICT => "Command ID Conflict",
        Code::DATA_TRANSFER_ERROR => "Data Transfer Error",
        Code::INTERNAL_ERROR => "Internal Error",
        Code::ABORT_REQUESTED => "Command Abort Requested",
        Code::ABORTED_SQ_DELETION => "Command Aborted due to SQ Deletion",
        Code::INVALID_NAMESPACE => "Invalid Namespace or Format",
        Code::COMMAND_SEQUENCE_ERROR => "Command Sequence Error",
        Code::INVALID_SGL_SEGMENT => "Invalid SGL Segment Descriptor",
        Code::DATA_SGL_LENGTH_INVALID => "Data SGL Length Invalid",
        Code::SGL_TYPE_INVALID => "SGL Descriptor Type Invalid",
        Code::OPERATION_DENIED => "Operation Denied",
        Code::SGL_OFFSET_INVALID => "SGL Offset Invalid",
        Code::NAMESPACE_WRITE_PROTECTED => "Namespace is Write Protected",
        Code::TRANSIENT_TRANSPORT_ERROR => "Transient Transport Error",
        Code::LBA_OUT_OF_RANGE => "LBA Out of Range",
        Code::CAPACITY_EXCEEDED => "Capacity Exceeded",
        Code::NAMESPACE_NOT_READY => "Namespace Not Ready",
        Code::CONTROLLER_BUSY => "Connect Controller Busy",
        Code::CONNECT_INVALID_PARAMETERS => "Connect Invalid Parameters",
        Code::CONNECT_INVALID_HOST => "Connect Invalid Host",
        Code::AUTHENTICATION_REQUIRED => "Authentication Required",
        Code::WRITE_FAULT => "Write Fault",
        Code::UNRECOVERED_READ => "Unrecovered Read Error",
        Code::COMPARE_FAILURE => "Compare Failure",
        Code::ACCESS_DENIED => "Access Denied",
        Code::INTERNAL_PATH_ERROR => "Internal Path Error",
        Code::ANA_PERSISTENT_LOSS => "Asymmetric Access Persistent Loss",
        Code::ANA_INACCESSIBLE => "Asymmetric Access Inaccessible",
        Code::ANA_TRANSITION => "Asymmetric Access Transition",
        Code::HOST_PATHING_ERROR => "Host Pathing Error",
        Code::HOST_ABORTED => "Command Aborted By Host",
        _ => "status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_their_words_and_their_errno() {
        let fault = fault(Status::fatal(Code::LBA_OUT_OF_RANGE));
        assert_eq!(fault.to_string(), "the controller says LBA Out of Range (0x080), do not retry");
        assert_eq!(super::fault(Status::fatal(Code::NAMESPACE_WRITE_PROTECTED)).errno, libc::EROFS);
    }

    #[test]
    fn what_may_pass_is_tried_again_and_what_another_path_may_do_goes_there() {
        assert_eq!(verdict(Status::again(Code::ANA_INACCESSIBLE)), Verdict::OtherPath);
        assert_eq!(verdict(Status::again(Code::TRANSIENT_TRANSPORT_ERROR)), Verdict::Again);
        for refused in [Status::fatal(Code::TRANSIENT_TRANSPORT_ERROR), Status::again(Code::UNRECOVERED_READ)]
        {
            assert!(matches!(verdict(refused), Verdict::Fail(_)), "{refused:?}");
        }
    }
}
