//! Carries NVMe/TCP through TLS: a thread that shakes hands and then moves bytes between a TCP socket, where they are
//! encrypted, and a local one, which its owner drives like any other.
//!
//! It costs two copies and a switch of threads more than plain TCP. A kernel with kTLS could take the keys instead.

mod tunnel;

use super::openssl::Context;
use forebay_model::Error;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{eventfd, EventfdFlags, Timespec};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tunnel::{Step, Tunnel};

/// Bytes that are read, encrypted or decrypted at once.
const CHUNK: usize = 64 << 10;
/// Rounds of one tunnel before the others get theirs.
const ROUNDS_MAX: u32 = 16;
/// A TLS record that holds a handshake; an ICReq begins with 0.
const HANDSHAKE_RECORD: u8 = 0x16;
const MAIL: u64 = u64::MAX;

/// The result for an accepted socket.
pub enum Arrival {
    /// It speaks no TLS: here it is again, with all that was sent to it.
    Plain(OwnedFd),
    /// The client's data, read and written here in the clear.
    Secure {
        socket: OwnedFd,
        client: Client,
    },
    Failed(String),
}

/// Identity that a client proved by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub host_nqn: String,
    pub subsystem_nqn: String,
}

impl Client {
    /// Parses `NVMe1R01 HOSTNQN SUBSYSNQN …`.
    fn from_identity(identity: &str) -> Option<Client> {
        let mut words = identity.split(' ').skip(1).map(str::to_owned);
        Some(Client { host_nqn: words.next()?, subsystem_nqn: words.next()? })
    }
}

type Tell = Box<dyn FnOnce(Arrival) + Send>;

enum Message {
    Accept { socket: TcpStream, context: Arc<Context>, by: Instant, tell: Tell },
    Connect { socket: TcpStream, context: Arc<Context>, by: Instant, inner: UnixStream },
}

/// The thread's handle; it ends, and its tunnels with it, when this is dropped.
pub struct Bridge {
    messages: Option<Sender<Message>>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    /// # Errors
    /// Kind `Machine`: no descriptors or no threads are left.
    pub fn start() -> Result<Bridge, Error> {
        let refused =
            |e: io::Error| Error::machine("a thread for TLS", e.to_string(), "ulimit -n, ulimit -u");
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| refused(e.into()))?;
        let poll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| refused(e.into()))?;
        epoll::add(&poll, &bell, EventData::new_u64(MAIL), EventFlags::IN).map_err(|e| refused(e.into()))?;
        let bell = Arc::new(bell);
        let (messages, inbox) = channel();
        let bridge = BridgeThread {
            poll,
            bell: bell.clone(),
            inbox,
            tunnels: BTreeMap::new(),
            next: 0,
            buffer: vec![0; CHUNK],
        };
        let thread = std::thread::Builder::new()
            .name("forebay-tls".into())
            .spawn(move || bridge.run())
            .map_err(refused)?;
        Ok(Bridge { messages: Some(messages), bell, thread: Some(thread) })
    }

    /// Takes over a socket that was just accepted, and tells within `limit`, on its own thread, what became of it.
    pub fn accept(&self, socket: OwnedFd, context: &Arc<Context>, limit: Duration, tell: Tell) {
        let socket = TcpStream::from(socket);
        let by = Instant::now() + limit;
        self.post(Message::Accept { socket, context: context.clone(), by, tell });
    }

    /// A connection to a server that speaks TLS. It may be used at once; what is written waits until hands are
    /// shaken, and a connection that fails is closed.
    ///
    /// # Errors
    /// The kernel's, where there is no socket to be had.
    pub fn connect(&self, to: SocketAddr, context: &Arc<Context>, limit: Duration) -> io::Result<OwnedFd> {
        use rustix::net::{connect, ipproto, socket_with, AddressFamily, SocketFlags, SocketType};
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let outer = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&outer, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        let (ours, theirs) = UnixStream::pair()?;
        let by = Instant::now() + limit;
        self.post(Message::Connect { socket: outer.into(), context: context.clone(), by, inner: ours });
        Ok(theirs.into())
    }

    fn post(&self, message: Message) {
        if let Some(messages) = &self.messages {
            let _ = messages.send(message);
        }
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.messages = None;
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct BridgeThread {
    poll: OwnedFd,
    bell: Arc<OwnedFd>,
    inbox: Receiver<Message>,
    tunnels: BTreeMap<u64, Tunnel>,
    next: u64,
    buffer: Vec<u8>,
}

impl BridgeThread {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        let mut busy: Vec<u64> = Vec::new();
        loop {
            let wait = if busy.is_empty() { self.until_deadline() } else { Some(Duration::ZERO) };
            let wait =
                wait.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
            events.clear();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let mut due = std::mem::take(&mut busy);
            for event in &events {
                match event.data.u64() {
                    MAIL => {
                        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
                        if !self.read_mail(&mut due) {
                            return;
                        }
                    }
                    // Two sockets, one tunnel.
                    number => due.push(number >> 1),
                }
            }
            due.sort_unstable();
            due.dedup();
            for number in due {
                if self.turn(number) {
                    busy.push(number);
                }
            }
            self.end_the_late();
        }
    }

    /// False: the bridge is gone.
    fn read_mail(&mut self, due: &mut Vec<u64>) -> bool {
        loop {
            let message = match self.inbox.try_recv() {
                Ok(message) => message,
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            };
            let number = self.next;
            self.next += 1;
            let tunnel = match message {
                Message::Accept { socket, context, by, tell } => {
                    match Tunnel::accepted(socket, &context, by) {
                        Ok(tunnel) => Tunnel { tell: Some(tell), ..tunnel },
                        Err(why) => {
                            tell(Arrival::Failed(why));
                            continue;
                        }
                    }
                }
                Message::Connect { socket, context, by, inner } => {
                    let Ok(tunnel) = Tunnel::connecting(socket, inner, &context, by) else { continue };
                    tunnel
                }
            };
            let added = self.watch(tunnel.outer.as_ref().map(AsFd::as_fd), number << 1)
                && self.watch(tunnel.inner.as_ref().map(AsFd::as_fd), number << 1 | 1);
            if added {
                self.tunnels.insert(number, tunnel);
                due.push(number);
            } else if let Some(tell) = tunnel.tell {
                tell(Arrival::Failed("the kernel watches no more sockets".into()));
            }
        }
    }

    fn watch(&self, socket: Option<std::os::fd::BorrowedFd<'_>>, number: u64) -> bool {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        socket.is_none_or(|socket| epoll::add(&self.poll, socket, EventData::new_u64(number), flags).is_ok())
    }

    /// True: it could go on at once.
    fn turn(&mut self, number: u64) -> bool {
        let Some(tunnel) = self.tunnels.get_mut(&number) else { return false };
        for _ in 0..ROUNDS_MAX {
            match tunnel.round(&mut self.buffer) {
                Ok(Step::More) => {}
                Ok(Step::Wait) => return false,
                Ok(Step::Shaken(inner)) => {
                    if !self.watch(Some(inner.as_fd()), number << 1 | 1) {
                        self.tunnels.remove(&number);
                        return false;
                    }
                    let tunnel = self.tunnels.get_mut(&number).expect("it was just looked at");
                    tunnel.inner = Some(inner);
                    return true;
                }
                Ok(Step::Ended) => {
                    self.tunnels.remove(&number);
                    return false;
                }
                Err(why) => {
                    let mut tunnel = self.tunnels.remove(&number).expect("it was just looked at");
                    // An alert, where there is one to send.
                    let _ = tunnel.send();
                    if let Some(tell) = tunnel.tell.take() {
                        tell(Arrival::Failed(why));
                    }
                    return false;
                }
            }
        }
        true
    }

    fn until_deadline(&self) -> Option<Duration> {
        let by = self.tunnels.values().filter(|t| !t.open).map(|t| t.by).min()?;
        Some(by.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn end_the_late(&mut self) {
        if self.tunnels.values().all(|t| t.open) {
            return;
        }
        let now = Instant::now();
        let late: Vec<u64> =
            self.tunnels.iter().filter(|(_, t)| !t.open && t.by <= now).map(|(n, _)| *n).collect();
        for number in late {
            if let Some(tell) = self.tunnels.remove(&number).and_then(|t| t.tell) {
                tell(Arrival::Failed("no TLS handshake, or an ICReq, came in time".into()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
