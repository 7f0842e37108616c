//! Supervision of gateways: a small process, the one that a user starts, which runs the gateway as its child, and
//! starts the next one when that dies.
//!
//! It holds all that a host would notice the end of: sockets that listen and connections of clients, whose messages it takes
//! and answers; descriptors of memory, interrupts and doorbells; and what the gateway last noted of each drive
//! (`ControllerState`, as a hand-over gives it). It understands none of that: it is text and descriptors, for the next
//! gateway. A message stays with it until a note covers it, and comes again to a gateway that takes the place of one which
//! was killed before that. What changes with each command stands in memory that all of them map (`shm`), for which
//! nobody is asked.
//!
//! A note is made before anybody hears of what it says: completions of the admin queue wait for it, and so do answers where
//! it can be made at once. It counts once it was sent: what lies in a socket outlives its sender.

pub(crate) mod child;
mod held_drive;
pub(super) mod link;
mod process;
mod run;
pub(crate) mod shm;

pub use child::Supervisor;
pub(crate) use link::Link;
pub use run::supervise;

use super::handed::Bytes;
use serde::{Deserialize, Serialize};

/// Environment variable by which a gateway finds its supervisor: `LINE:LIFE:first` or `LINE:LIFE:again`, numbers of
/// descriptors.
pub(crate) const VARIABLE: &str = "FOREBAY_KEEPER";

/// From a gateway to its supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SupervisorNotice {
    /// The state that the next gateway opens: an `Offer`, with the socket that takes RPCs. And how old the gateway is.
    Gateway {
        text: String,
        age_ns: u64,
    },
    /// New drive. With the socket that it listens at, and the supervisor's end of a line for it.
    Drive {
        name: String,
    },
    /// The sources are open: drives may come.
    Opened,
    Serving,
    /// It ends as it was asked to.
    Ending,
}

/// To a gateway that goes on for one that was killed. As many drives follow once it has opened the sources: each is the
/// text of its last note, with the gateway's end of a line, and the note's descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Past {
    pub text: String,
    pub age_ns: u64,
    pub drives: usize,
}

/// Events of a drive's client, in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Event {
    pub number: u64,
    pub came: Came,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Came {
    Client,
    /// Another one, which was turned away.
    Refused,
    /// Header and body; with its descriptors.
    Message {
        bytes: Bytes,
        too_many: bool,
    },
    /// The client, and how it broke the protocol if it did.
    Gone(Option<String>),
}

/// From a drive's controller to its supervisor. A state follows as text, or as a file where it is long.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Said {
    /// This event, and all before it, are dealt with.
    pub heard: Option<u64>,
    /// It changed nothing: nobody has to hear it again.
    pub unchanged: bool,
    pub answer: Option<Bytes>,
    /// The first descriptors go with the answer, the others with the state.
    pub answer_fds: usize,
    pub state: Stated,
    pub ends: Ends,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stated {
    #[default]
    No,
    /// Behind the first line.
    Beside,
    /// In the last descriptor.
    Filed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ends {
    #[default]
    Nothing,
    /// The client broke the protocol.
    Client,
    Drive,
}
