//! A gateway's place taken by another process while hosts use its drives: sockets, mapped memory, doorbells, interrupts
//! and every queue as it stands go from the one to the other, and no host is told.
//!
//! The next gateway listens, asks the one that runs (`snap_hand_over`), and is connected to. It is told the configuration and
//! opens all sources while the old one still serves. Then the old one holds its controllers: takes nothing more, lets
//! commands finish, and withdraws what may be repeated (reads, flushes, compares) where that takes long. What it then has is
//! sent with its descriptors. The next one builds all of it, touches nothing, and says that it is ready; at the word to go
//! it serves, and carries out what was withdrawn. Until that word the old one goes on as if nothing had been, whatever fails.

pub(crate) mod state;
pub(crate) mod wire;

use serde::{Deserialize, Serialize};

/// Version of `state::GatewayState`. A gateway gives no other, and one that reads another is refused before anything
/// is given.
pub(crate) const FORMAT: u32 = 1;

/// What a supervisor is told of a gateway, and gives the next one.
#[derive(Serialize, Deserialize)]
pub(crate) struct Kept {
    pub format: u32,
    pub offer: state::Offer,
}

/// Messages to the other process, in their order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// From the old one, with the descriptors that hold locks on files.
    Offer(Box<state::Offer>),
    /// All sources are open.
    Opened,
    /// From the old one, with all other descriptors.
    State(Box<state::GatewayState>),
    /// It could serve at once.
    Ready,
    /// It is to.
    Go,
    /// Nothing came of it; the old one serves on.
    Over(forebay_model::Error),
}
