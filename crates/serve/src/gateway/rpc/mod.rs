//! The gateway's remote procedure calls: JSON-RPC 2.0 over a Unix socket, in the verbs of NVIDIA's SNAP, so that scripts
//! made for it need no new words. One table of verbs is what the server executes, what the command line is parsed by and
//! what its help is made of.
//!
//! The socket belongs to its owner alone (permissions 0600), and there is none on TCP. Whatever a peer sends is bounded:
//! bytes and depth of a request, requests of a batch, connections, and the time that an answer may wait to be taken.

mod arguments;
mod call;
pub(crate) mod client;
mod clients;
mod frame;
mod message;
mod server;
mod show;
mod verbs;

pub use frame::{Broken, Frames};
pub use message::answer_rpc;
pub(crate) use server::Door;
pub use server::Server;
pub use verbs::VERBS;

use super::config::{Config, Controller, Namespace, Qos, Subsystem};
use super::stats::Stats;
use crate::target::log::Log;
use forebay_model::Error;
use std::path::Path;
use std::time::Duration;

/// Operations of RPCs on a gateway. Calls come from several threads, and one may wait while it is carried out; what is
/// refused leaves the gateway as it was.
pub trait Control: Send + Sync {
    /// As it is now, whoever made it so.
    fn config(&self) -> Config;

    fn stats(&self) -> Stats;

    /// `Request`: there is one of this NQN.
    fn subsystem_create(&self, subsystem: &Subsystem) -> Result<(), Error>;

    /// With its namespaces. `Request`: it has controllers.
    fn subsystem_destroy(&self, nqn: &str) -> Result<(), Error>;

    /// Opens its source; returns its nsid.
    fn namespace_create(&self, nqn: &str, namespace: &Namespace) -> Result<u32, Error>;

    /// Controllers that show it show it no more; what is in flight ends on it.
    fn namespace_destroy(&self, nqn: &str, nsid: u32) -> Result<(), Error>;

    /// Puts another source below a namespace, of the same size and blocks: what is in flight ends on the old one.
    fn namespace_set_source(&self, nqn: &str, nsid: u32, namespace: &Namespace) -> Result<(), Error>;

    fn namespace_set_qos(&self, nqn: &str, nsid: u32, qos: Qos) -> Result<(), Error>;

    /// Makes the drive, and shows it unless it is to be suspended.
    fn controller_create(&self, nqn: &str, controller: &Controller) -> Result<(), Error>;

    /// `force`: also while a host uses it.
    fn controller_destroy(&self, name: &str, force: bool) -> Result<(), Error>;

    fn attach(&self, name: &str, nsid: u32) -> Result<(), Error>;

    fn detach(&self, name: &str, nsid: u32) -> Result<(), Error>;

    /// Takes nothing more from the host's queues, and returns once nothing is in flight. Where that takes longer than
    /// `timeout`, the controller goes on as before.
    fn suspend(&self, name: &str, timeout: Duration) -> Result<(), Error>;

    fn resume(&self, name: &str) -> Result<(), Error>;

    /// Gives all that it has to the process that listens at `socket` and reads states of this format.
    fn hand_over(&self, socket: &Path, format: u64) -> Result<(), Error> {
        let asked = format!("a hand-over to {} in format {format}", socket.display());
        Err(Error::request(asked, "nothing here can be handed over", "forebay snap CONFIG.toml"))
    }

    /// Returns the log of changes by RPCs.
    fn log(&self) -> Option<Log> {
        None
    }
}
