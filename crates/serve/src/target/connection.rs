//! One connection: its link, its commands, and whose it is.

use super::arena::Held;
use super::command::{Command, State};
use super::link::Link;
use super::shared::{ConnectionId, ControllerEntry};
use super::stats::Counts;
use crate::namespace::stats::Histogram;
use forebay_io::tls::bridge::Client;
use forebay_nvme::auth::{Outcome, TargetAuth};
use forebay_nvme::command::Sqe;
use forebay_nvme::transport::tcp::Handle;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Role of a connection, known once its Connect was admitted.
#[derive(Clone)]
pub(super) enum Role {
    New,
    Admin(Arc<ControllerEntry>),
    Io { entry: Arc<ControllerEntry>, qid: u16 },
}

impl Role {
    pub(super) fn entry(&self) -> Option<&Arc<ControllerEntry>> {
        match self {
            Role::New => None,
            Role::Admin(entry) | Role::Io { entry, .. } => Some(entry),
        }
    }
}

/// A command that came with data, and found no memory for them.
#[derive(Clone, Copy)]
pub(super) struct Stuck {
    pub command: Handle,
    pub sqe: Sqe,
    pub in_capsule: u32,
}

pub(super) struct Connection {
    pub id: ConnectionId,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub link: Link,
    pub role: Role,
    /// By handle.
    pub commands: Vec<Command>,
    /// Commands that wait for their turn, in order.
    pub waiting: VecDeque<Handle>,
    pub stuck: Option<Stuck>,
    /// Among those that get their turn when memory is free.
    pub in_turn: bool,
    /// Something came, or may be received.
    pub touched: bool,
    /// Something is to be sent.
    pub dirty: bool,
    /// Its host is over its limits: a timer gives it its turn.
    pub parked: bool,
    /// Flushes that a shutdown waits for.
    pub flushes: u32,
    /// Commands that are to be given up, each with the tag of the Abort that asks for it.
    pub aborts: Vec<(Handle, u16)>,
    /// Slots that its commands hold.
    pub held: Held,
    /// A command has its `Memory::Spare`.
    pub has_spare: bool,
    /// Commands that the source is at.
    pub running: u32,
    /// Number of commands whose data are on their way here.
    pub collecting: u32,
    /// Ends once all that is outgoing was sent.
    pub last_words: bool,
    /// The connection is over; it goes once nothing points to it.
    pub closing: bool,
    /// Its host has limits that commands must pass.
    pub limited: bool,
    /// Proven identity of a client that came over TLS.
    pub client: Option<Client>,
    /// It must authenticate before it may do anything else.
    pub must_authenticate: bool,
    pub auth: Option<Box<TargetAuth>>,
    /// Entries of its submission queue.
    pub depth: u16,
    pub header_digest: bool,
    pub data_digest: bool,
    pub counts: Counts,
    /// Latencies of its reads and writes that went well.
    pub read_latency: Histogram,
    pub write_latency: Histogram,
    /// When it was accepted; what it waits for must come in time.
    pub began: Instant,
    /// Receives nothing from here on, and ends at that time.
    pub lingers_until: Option<Instant>,
    /// When data of a command last came, or were first waited for.
    pub data_at: Instant,
    pub sent_at: Instant,
    pub timer_at: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        link: Link,
        peer: SocketAddr,
        local: SocketAddr,
        now: Instant,
    ) -> Connection {
        Connection {
            id,
            peer,
            local,
            link,
            role: Role::New,
            commands: Vec::new(),
            waiting: VecDeque::new(),
            stuck: None,
            in_turn: false,
            touched: false,
            dirty: false,
            parked: false,
            flushes: 0,
            aborts: Vec::new(),
            held: Held::default(),
            has_spare: false,
            running: 0,
            collecting: 0,
            last_words: false,
            closing: false,
            limited: false,
            client: None,
            must_authenticate: false,
            auth: None,
            depth: 0,
            header_digest: false,
            data_digest: false,
            counts: Counts::default(),
            read_latency: Histogram::default(),
            write_latency: Histogram::default(),
            began: now,
            lingers_until: None,
            data_at: now,
            sent_at: now,
            timer_at: None,
        }
    }

    /// Nothing but authentication is executed.
    pub(super) fn is_locked(&self) -> bool {
        let is_authenticated = |auth: &TargetAuth| matches!(auth.outcome(), Outcome::Authenticated(_));
        self.must_authenticate && !self.auth.as_deref().is_some_and(is_authenticated)
    }

    pub(super) fn command(&mut self, at: Handle) -> &mut Command {
        let at = at.0 as usize;
        if at >= self.commands.len() {
            self.commands.resize_with(at + 1, Command::default);
        }
        &mut self.commands[at]
    }

    /// Commands that the host waits for, but for asynchronous events.
    pub(super) fn is_idle(&self) -> bool {
        let idle = |c: &Command| matches!(c.state, State::Free | State::Parked | State::Left);
        self.commands.iter().all(idle) && self.stuck.is_none()
    }

    /// The data of one command more are waited for. Whatever else its host says, some of them must come in time.
    pub(super) fn collects(&mut self, now: Instant) {
        if self.collecting == 0 {
            self.data_at = now;
        }
        self.collecting += 1;
    }

    pub(super) fn qid(&self) -> u16 {
        match self.role {
            Role::Io { qid, .. } => qid,
            _ => 0,
        }
    }

    /// It may receive.
    pub(super) fn listens(&self) -> bool {
        !self.closing && !self.last_words && self.lingers_until.is_none()
    }
}
