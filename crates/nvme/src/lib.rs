//! NVMe as bytes and state machines. Nothing here opens a socket, reads a clock or starts a thread: the driver of
//! these state machines owns the link, the memory and the clock.
//!
//! Figures and sections are those of the NVM Express specifications: Base 2.0
//! ("base"), NVM Command Set 1.0 ("nvm"), TCP Transport 1.0 ("tcp").
#![forbid(unsafe_code)]

pub mod auth;
pub mod command;
pub mod controller;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod host;
pub mod identify;
pub mod layout;
pub mod log;
pub mod mdns;
pub mod nqn;
pub mod nvm;
pub mod status;
pub mod text;
pub mod transport;
