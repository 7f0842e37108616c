//! What a queue's connection reports, whatever carries it: commands completed, commands not taken, and its own end.

use forebay_io::Fault;
use forebay_nvme::command::Cqe;
use forebay_nvme::transport::tcp::Handle;
use std::fmt;
use std::io;

#[derive(Debug)]
pub(super) enum Report {
    /// The connection is initialised; commands are sent from now on.
    Ready,
    Completed {
        command: Handle,
        cqe: Cqe,
        received: u32,
        /// Some of its data was copied once more within this process.
        copied: bool,
    },
}

/// The connection is over, for this reason.
#[derive(Debug)]
pub(super) struct Broken(pub String);

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Broken {
        Broken(e.to_string())
    }
}

/// A command that wasn't taken.
#[derive(Debug)]
pub(super) enum Unsent {
    /// Until another one completed.
    Busy,
    /// Its memory can't go this way.
    Unfit(Fault),
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsent::Busy => f.write_str("too many commands at once on its queue"),
            Unsent::Unfit(fault) => fault.fmt(f),
        }
    }
}
