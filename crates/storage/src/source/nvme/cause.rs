//! Cause of a controller's failure.

use forebay_nvme::host::{Failure, FailureKind};
use forebay_nvme::status::Code;

/// Cause of a controller's failure, as far as it decides what to type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The controller, or the way to it.
    Other,
    /// It was asked for something that this host may not have.
    Refused,
    /// It doesn't let this host in.
    Unlisted,
    /// It has no such namespace.
    Namespace,
    /// This host didn't prove who it is.
    Unproven,
    /// Taken by another host.
    Taken,
    /// It grants so many I/O queues and no more.
    Few(u16),
}

impl Cause {
    pub fn from_failure(failure: &Failure) -> Cause {
        match (failure.kind, failure.status.map(|status| status.code)) {
            (FailureKind::Refused, Some(Code::CONNECT_INVALID_HOST)) => Cause::Unlisted,
            (FailureKind::Refused, Some(_)) => Cause::Refused,
            (FailureKind::Refused, None) => Cause::Namespace,
            (FailureKind::Protocol | FailureKind::Again, _) => Cause::Other,
        }
    }

    /// Another request would do.
    pub(crate) fn is_request(self) -> bool {
        matches!(self, Cause::Refused | Cause::Unlisted | Cause::Namespace | Cause::Unproven)
    }
}
