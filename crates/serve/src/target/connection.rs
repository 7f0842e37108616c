//! One connection, from accept until nothing points to it: what comes by its link, whose it is, and how it ends.
//!
//! It belongs to one thread, whose resources it is given for each thing that it does. Its commands are carried out as
//! `io::IoCommand`, or by `admin::AdminQueue`.

mod admin;
mod io;

use self::admin::{AdminQueue, SHUTDOWN};
use self::io::{Begun, IoCommand};
use super::aborts::Aborts;
use super::auth::Authentication;
use super::command::{place, Command, CommandState};
use super::controller::Role;
use super::ids::ConnectionId;
use super::link::Link;
use super::log::Level;
use super::memory::{MemoryShare, SendsFrom};
use super::message::Report;
use super::ready::Marks;
use super::resources::ThreadResources;
use super::shared::TargetShared;
use super::stats::{ControllerStats, Counts, HostStats, QueueStats};
use super::timers::Timer;
use crate::namespace::stats::Histogram;
use forebay_io::{fill_memory, stream_digest, Fault, StreamReceived, TlsClient};
use forebay_nvme::command::{Sqe, FABRICS};
use forebay_nvme::controller::connect::host_name;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::target::Event;
use forebay_nvme::transport::tcp::{Fatal, Handle};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Receives of one connection in a row, before others have their turn.
const RECEIVES_MAX: u32 = 32;
/// Time for a peer to read why its connection ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A command as it came.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub command: Handle,
    pub sqe: Sqe,
    /// Bytes of its data that come with it.
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
    /// A command that came with data, and found no memory for them: nothing behind it is read.
    stuck: Option<Arrival>,
    pub memory: MemoryShare,
    /// Its host is over its limits: a timer gives it its turn.
    parked: bool,
    pub marks: Marks,
    /// Flushes that a shutdown waits for.
    pub flushes: u32,
    pub aborts: Aborts,
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
    pub client: Option<TlsClient>,
    pub auth: Authentication,
    /// Entries of its submission queue.
    pub depth: u16,
    pub header_digest: bool,
    pub data_digest: bool,
    pub counts: Counts,
    /// Latencies of its reads and writes that went well.
    pub read_latency: Histogram,
    pub write_latency: Histogram,
    /// When it was accepted; what it waits for must come in time.
    began: Instant,
    /// Receives nothing from here on, and ends at that time.
    lingers_until: Option<Instant>,
    /// When data of a command last came, or were first waited for.
    data_at: Instant,
    sent_at: Instant,
    pub timer: Timer,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        link: Link,
        (peer, local): (SocketAddr, SocketAddr),
        client: Option<TlsClient>,
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
            memory: MemoryShare::default(),
            parked: false,
            marks: Marks::default(),
            flushes: 0,
            aborts: Aborts::default(),
            running: 0,
            collecting: 0,
            last_words: false,
            closing: false,
            limited: false,
            client,
            auth: Authentication::default(),
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
            timer: Timer::default(),
        }
    }

    #[inline]
    pub(super) fn command(&mut self, at: Handle) -> &mut Command {
        let at = at.0 as usize;
        if at >= self.commands.len() {
            self.commands.resize_with(at + 1, Command::default);
        }
        &mut self.commands[at]
    }

    /// No command of it is under way, but for Asynchronous Event Requests.
    fn is_idle(&self) -> bool {
        let idle =
            |c: &Command| matches!(c.state, CommandState::Free | CommandState::Parked | CommandState::Left);
        self.commands.iter().all(idle) && self.stuck.is_none()
    }

    /// It ended, and nothing points to it any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.running == 0 && self.link.is_quiet()
    }

    pub(super) fn qid(&self) -> u16 {
        match self.role {
            Role::Io { qid, .. } => qid,
            _ => 0,
        }
    }

    /// It may receive.
    fn listens(&self) -> bool {
        !self.closing && !self.last_words && self.lingers_until.is_none()
    }

    pub(super) fn sends_from(&self) -> SendsFrom {
        match self.link.sends_from_anywhere() {
            false => SendsFrom::Slots,
            true if self.data_digest => SendsFrom::Zeros,
            true => SendsFrom::Anywhere,
        }
    }

    /// Has it looked at then, or before.
    pub(super) fn arm(&mut self, thread: &mut ThreadResources, at: Instant) {
        thread.timers.arm(self.id, &mut self.timer, at);
    }

    // What comes.

    /// Takes what has come.
    pub(super) fn read(&mut self, thread: &mut ThreadResources) {
        if self.stuck.is_some() {
            match self.take_events(thread) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fatal) => return self.violated(thread, fatal),
            }
        }
        for _ in 0..RECEIVES_MAX {
            if !self.listens() {
                return;
            }
            let (commands, pool) = (&self.commands, &thread.memory.pool);
            let received = self.link.receive(&mut thread.reactor, &|at| place(commands, pool, at));
            if self.link.is_owed() {
                thread.ready.mark_dirty(self.id.index, &mut self.marks);
            }
            match received {
                Ok(StreamReceived::Some) => {}
                Ok(StreamReceived::Later) => return,
                Ok(StreamReceived::Ended) => return self.end(thread, "the host closed the connection"),
                Err(e) => return self.lost(thread, &e),
            }
            match self.take_events(thread) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fatal) => return self.violated(thread, fatal),
            }
        }
        thread.ready.mark_readable(self.id.index, &mut self.marks);
    }

    /// Acts on what was received. False: a command that came with data found no memory for them.
    fn take_events(&mut self, thread: &mut ThreadResources) -> Result<bool, Fatal> {
        if let Some(stuck) = self.stuck.take() {
            if !self.arrived(thread, stuck) {
                return Ok(false);
            }
        }
        loop {
            match self.link.next()? {
                None => return Ok(true),
                Some(Event::Ready { header_digest, data_digest }) => {
                    (self.header_digest, self.data_digest) = (header_digest, data_digest);
                    thread.ready.mark_dirty(self.id.index, &mut self.marks);
                }
                Some(Event::Command { command, sqe, in_capsule }) => {
                    if !self.arrived(thread, Arrival { command, sqe, in_capsule }) {
                        return Ok(false);
                    }
                }
                Some(Event::Placed(at)) => {
                    self.data_at = thread.now;
                    self.leave_rest(thread, at.command);
                }
                Some(Event::Copy { place: at, bytes }) => {
                    fill_memory(place(&self.commands, &thread.memory.pool, at), bytes);
                    self.data_at = thread.now;
                    self.leave_rest(thread, at.command);
                }
                Some(Event::DataEnd { place: at, digest }) => {
                    let found = stream_digest(0, place(&self.commands, &thread.memory.pool, at), at.len);
                    if found != digest {
                        self.digest_mismatch(thread, at.command);
                    }
                }
                Some(Event::DataComplete { command }) => self.collected(thread, command),
            }
        }
    }

    /// A command came. False: it waits in `stuck`.
    fn arrived(&mut self, thread: &mut ThreadResources, came: Arrival) -> bool {
        let began_ns = thread.now_ns();
        let command = self.command(came.command);
        *command = Command { sqe: came.sqe, ..Command::default() };
        command.io.restart(began_ns);
        let Role::Io { entry, .. } = &self.role else {
            AdminQueue { c: self, thread }.command_came(came);
            return true;
        };
        entry.note_traffic();
        if came.sqe.opcode == FABRICS {
            AdminQueue { c: self, thread }.fabrics_command_came(came);
            return true;
        }
        if self.auth.is_pending() {
            AdminQueue { c: self, thread }.command_came(came);
            return true;
        }
        let subsystem = entry.subsystem;
        let taken = IoCommand { at: came.command, c: self, thread }.came(came, subsystem);
        if !taken {
            self.stuck = Some(came);
            thread.memory.stand_in_line(self.id.index, &mut self.memory);
        }
        taken
    }

    /// The data of one command more are waited for. Whatever else its host says, some of them must come in time.
    pub(super) fn collects(&mut self, thread: &mut ThreadResources) {
        if self.collecting == 0 {
            self.data_at = thread.now;
        }
        self.collecting += 1;
        thread.timers.want_sweep(thread.now);
    }

    /// A command's data are all here.
    fn collected(&mut self, thread: &mut ThreadResources, at: Handle) {
        let command = self.command(at);
        if command.state != CommandState::Collecting {
            return; // Left unanswered.
        }
        command.has_data = true;
        let is_io = command.io.request.is_some();
        self.collecting -= 1;
        match is_io {
            true => IoCommand { c: self, thread, at }.collected(),
            false => AdminQueue { c: self, thread }.execute(at),
        }
    }

    /// What came isn't what was sent, and a retry may go well (tcp, section 3.3.1.1).
    fn digest_mismatch(&mut self, thread: &mut ThreadResources, at: Handle) {
        if self.command(at).state == CommandState::Collecting {
            self.collecting -= 1;
            let fields = [("peer", self.peer.to_string().into())];
            thread.shared.log.say(Level::Warning, "data digest wrong", &fields);
            IoCommand { c: self, thread, at }.finish(Status::again(Code::TRANSIENT_TRANSPORT_ERROR));
        }
    }

    // What goes.

    /// Sends what there is, and takes back the memory of what was sent.
    pub(super) fn write(&mut self, thread: &mut ThreadResources) {
        if self.closing {
            return;
        }
        if self.link.is_sent() {
            // What goes now has all its time.
            self.sent_at = thread.now;
        }
        let (commands, pool) = (&self.commands, &thread.memory.pool);
        self.link.send(&mut thread.reactor, &|at| place(commands, pool, at));
        let mut released = std::mem::take(&mut thread.released);
        self.link.take_released(&mut released);
        let progress = !released.is_empty() || self.link.is_sent();
        for at in released.drain(..) {
            self.free(thread, at);
        }
        thread.released = released;
        if progress {
            self.sent_at = thread.now;
        }
        if self.link.is_sent() && self.last_words {
            self.end(thread, "");
        } else if thread.draining {
            self.leave_if_idle(thread);
        }
    }

    /// Nothing of a command is left; its handle may come again.
    pub(super) fn free(&mut self, thread: &mut ThreadResources, at: Handle) {
        let command = std::mem::take(self.command(at));
        if let (true, Some(request), Some(entry)) =
            (command.is_charged, command.io.request, self.role.entry())
        {
            entry.host.leave(u64::from(request.transfer.bytes()));
        }
        thread.memory.release(&mut self.memory, command);
    }

    // Turns.

    /// The command waits behind those that wait already.
    pub(super) fn wait_for_turn(&mut self, thread: &mut ThreadResources, at: Handle) {
        self.command(at).state = CommandState::Waiting;
        self.waiting.push_back(at);
        if !self.parked {
            thread.memory.stand_in_line(self.id.index, &mut self.memory);
        }
    }

    /// Its host's limits let nothing through for so long.
    pub(super) fn park(&mut self, thread: &mut ThreadResources, ns: u64) {
        self.parked = true;
        self.arm(thread, thread.now + Duration::from_nanos(ns));
    }

    /// It is its turn to have memory. False: what it needs was refused. If it wants another turn it stands in line.
    pub(super) fn has_its_turn(&mut self, thread: &mut ThreadResources) -> bool {
        self.memory.has_its_turn();
        if self.closing {
            return true;
        }
        let went = self.take_turn(thread);
        if !self.parked && (!self.waiting.is_empty() || self.stuck.is_some()) {
            thread.memory.line_up(self.id.index, &mut self.memory);
        }
        went
    }

    fn take_turn(&mut self, thread: &mut ThreadResources) -> bool {
        if self.stuck.is_some() {
            self.read(thread);
            return self.stuck.is_none();
        }
        let Some(at) = self.waiting.front().copied() else { return true };
        let begun = IoCommand { c: self, thread, at }.begin();
        match begun {
            Begun::Yes => drop(self.waiting.pop_front()),
            Begun::NoMemory => return false,
            Begun::Later(ns) => self.park(thread, ns),
        }
        true
    }

    /// Its controller has effects to apply, if it is an admin queue.
    pub(super) fn apply_effects(&mut self, thread: &mut ThreadResources) {
        AdminQueue { c: self, thread }.apply_effects();
    }

    /// The source is done with a step of a command.
    pub(super) fn moved(&mut self, thread: &mut ThreadResources, at: Handle, result: Result<u32, Fault>) {
        if at == SHUTDOWN {
            return AdminQueue { c: self, thread }.flushed();
        }
        if self.closing {
            self.running -= 1;
            self.command(at).state = CommandState::Left;
            return;
        }
        IoCommand { c: self, thread, at }.moved(result);
    }

    // Aborts.

    /// False: no command with that identifier is under way, or its answer is.
    pub(super) fn abort(&mut self, thread: &mut ThreadResources, cid: u16, tag: u16) -> bool {
        if let Some(Arrival { command: at, .. }) = self.stuck.take_if(|stuck| stuck.sqe.cid.get() == cid) {
            self.aborts.ask(at, tag);
            IoCommand { c: self, thread, at }.give_up();
            // What came behind it goes on.
            thread.ready.mark_readable(self.id.index, &mut self.marks);
            return true;
        }
        let waits =
            |state| matches!(state, CommandState::Collecting | CommandState::Waiting | CommandState::Running);
        let is_it = |(_, command): &(u16, &Command)| command.sqe.cid.get() == cid && waits(command.state);
        let Some((at, command)) = (0..).zip(&self.commands).find(is_it) else { return false };
        let (at, state) = (Handle(at), command.state);
        self.aborts.ask(at, tag);
        match state {
            CommandState::Running => IoCommand { c: self, thread, at }.cancel(),
            // The kernel may be about to write there: what it brings ends it.
            CommandState::Collecting if self.link.receives_into(at) => {}
            _ => IoCommand { c: self, thread, at }.give_up(),
        }
        true
    }

    /// Some of a command's data came: if it is given up, the rest is not waited for.
    fn leave_rest(&mut self, thread: &mut ThreadResources, at: Handle) {
        if !self.aborts.is_empty()
            && self.aborts.contain(at)
            && self.command(at).state == CommandState::Collecting
        {
            IoCommand { c: self, thread, at }.give_up();
        }
    }

    /// Says what became of the commands that Aborts asked for.
    pub(super) fn answer_aborts(
        &mut self,
        shared: &TargetShared,
        whose: impl Fn(Handle) -> bool,
        aborted: bool,
    ) {
        let Role::Io { entry, .. } = &self.role else { return };
        self.aborts.answer(whose, |tag| shared.aborted(entry, tag, aborted));
    }

    // Time.

    /// Its timer rings: for its handshake, its last words, its keep-alive, or its host's limits.
    pub(super) fn timer_rings(&mut self, thread: &mut ThreadResources) {
        if self.closing {
            return;
        }
        if let Some(until) = self.lingers_until {
            if until <= thread.now {
                return self.end(thread, "");
            }
            return self.arm(thread, until);
        }
        let by = self.began + Duration::from_secs_f64(thread.shared.config.handshake_s);
        if let Role::New = self.role {
            if by <= thread.now {
                return self.break_off(thread, "no Connect came in time");
            }
            return self.arm(thread, by);
        }
        if self.auth.is_pending() {
            if by <= thread.now {
                return self.break_off(thread, "the host did not authenticate in time");
            }
            self.arm(thread, by);
        }
        AdminQueue { c: self, thread }.check_keep_alive();
        self.parked = false;
        if !self.closing && !self.waiting.is_empty() {
            thread.memory.stand_in_line(self.id.index, &mut self.memory);
        }
    }

    /// Ends it if its peer takes or sends nothing though it is its turn.
    pub(super) fn sweep(&mut self, thread: &mut ThreadResources) {
        let sends = !self.link.is_sent();
        let late = |since| thread.timers.is_late(since, thread.now);
        if self.closing {
        } else if sends && late(self.sent_at) {
            self.break_off(thread, "the host doesn't receive what is sent");
        } else if self.collecting > 0 && late(self.data_at) {
            self.break_off(thread, "the host doesn't send the data that it announced");
        } else if sends || self.collecting > 0 {
            thread.timers.want_sweep(thread.now);
        }
    }

    // The end.

    /// The peer broke the protocol: it is told so, and the connection ends.
    fn violated(&mut self, thread: &mut ThreadResources, fatal: Fatal) {
        let who = if fatal.by_peer { "terminated by host" } else { "protocol violated" };
        self.note_break(thread, Level::Warning, who, fatal.to_string());
        if fatal.by_peer {
            return self.end(thread, "");
        }
        let until = thread.now + LAST_WORDS;
        self.lingers_until = Some(until);
        self.arm(thread, until);
        thread.ready.mark_dirty(self.id.index, &mut self.marks);
    }

    fn lost(&mut self, thread: &mut ThreadResources, error: &std::io::Error) {
        let why = match error.raw_os_error() {
            Some(libc::EFAULT) => "a served file was truncated while the kernel sent from it".to_owned(),
            _ => error.to_string(),
        };
        self.note_break(thread, Level::Info, "connection lost", why);
        self.end(thread, "");
    }

    pub(super) fn break_off(&mut self, thread: &mut ThreadResources, why: &'static str) {
        self.note_break(thread, Level::Warning, "broken off", why.into());
        self.end(thread, "");
    }

    fn note_break(&self, thread: &ThreadResources, level: Level, what: &'static str, why: String) {
        thread.shared.totals.broken.fetch_add(1, Ordering::Relaxed);
        let fields = [("peer", self.peer.to_string().into()), ("why", why.into())];
        thread.shared.log.say(level, what, &fields);
    }

    /// Ends it, and with an admin queue its controller. It stays until nothing points to it.
    pub(super) fn end(&mut self, thread: &mut ThreadResources, why: &'static str) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        self.link.close(&mut thread.reactor);
        self.waiting.clear();
        self.stuck = None;
        self.answer_aborts(&thread.shared, |_| true, false);
        let index = self.id.index;
        for owner in thread.queues.abandon(|owner| owner.connection == index, &mut thread.reactor) {
            self.running -= 1;
            self.flushes -= u32::from(owner.command == SHUTDOWN);
        }
        let entry = match &self.role {
            Role::New => return,
            Role::Admin(entry) => {
                thread.shared.end_controller(entry);
                entry
            }
            Role::Io { entry, qid } => {
                entry.leave(*qid);
                if thread.draining {
                    thread.shared.have_effects_applied(entry);
                }
                entry
            }
        };
        let mut fields = vec![
            ("peer", self.peer.to_string().into()),
            ("host", host_name(&entry.host.nqn).into()),
            ("cntlid", entry.id.into()),
            ("qid", self.qid().into()),
        ];
        if !why.is_empty() {
            fields.push(("why", why.into()));
        }
        thread.shared.log.say(Level::Info, "disconnected", &fields);
    }

    /// While draining: it goes once nothing is under way on it; an admin queue after its I/O queues.
    pub(super) fn leave_if_idle(&mut self, thread: &mut ThreadResources) {
        let last = match &self.role {
            Role::Admin(entry) => entry.io_queues().is_empty(),
            _ => true,
        };
        if !self.closing && last && self.is_idle() && self.link.is_sent() {
            self.end(thread, "the server drains");
        }
    }

    /// Nothing points to it any more: gives back what its commands have, and adds what it counted to its host's.
    pub(super) fn close(mut self: Box<Self>, thread: &mut ThreadResources) {
        for at in 0..self.commands.len() {
            self.free(thread, Handle(at as u16));
        }
        if let Some(entry) = self.role.entry() {
            entry.host.past().add(&self.counts);
        }
    }

    pub(super) fn add_to(&self, report: &mut Report) {
        let Some(entry) = self.role.entry() else { return };
        let subsystem = entry.subsystem;
        let host = HostStats { nqn: entry.host.nqn.clone(), connections: 1, counts: self.counts };
        report.hosts.push((subsystem, host));
        report.queues.push((subsystem, entry.id, self.queue_stats()));
        if let Role::Admin(_) = self.role {
            let (keep_alive_ms, nqn) = {
                let controller = entry.controller();
                (controller.keep_alive_ms(), controller.subsystem().nqn.clone())
            };
            report.controllers.push(ControllerStats {
                cntlid: entry.id,
                subsystem: nqn,
                host: entry.host.nqn.clone(),
                address: self.peer.to_string(),
                keep_alive_s: keep_alive_ms.map(|ms| f64::from(ms) / 1e3),
                ana: entry.states(),
                queues: Vec::new(),
            });
        }
    }

    fn queue_stats(&self) -> QueueStats {
        let waits = |state: CommandState| !matches!(state, CommandState::Free | CommandState::Left);
        let mut stats = QueueStats {
            qid: self.qid(),
            thread: self.id.thread as u32,
            depth: self.depth,
            in_flight: self.commands.iter().filter(|command| waits(command.state)).count() as u16,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            counts: self.counts,
            ..QueueStats::default()
        };
        self.read_latency.add_to(&mut stats.read_latency);
        self.write_latency.add_to(&mut stats.write_latency);
        stats
    }
}
