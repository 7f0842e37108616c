//! Carries NVMe/TCP through TLS: a thread that shakes hands and then moves bytes between a TCP socket, where they are
//! encrypted, and a local one, which its owner drives like any other.
//!
//! It costs two copies and a switch of threads more than plain TCP. A kernel with kTLS could take the keys instead.

use super::openssl::{Context, Progress, Session};
use forebay_model::Error;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{eventfd, EventfdFlags, Timespec};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are read, encrypted or decrypted at once.
const CHUNK: usize = 64 << 10;
/// Rounds of one tunnel before the others get theirs.
const ROUNDS_MAX: u32 = 16;
/// A TLS record that holds a handshake; an ICReq begins with 0.
const HANDSHAKE_RECORD: u8 = 0x16;
const MAIL: u64 = u64::MAX;

/// What became of a socket that was accepted.
pub enum Arrival {
    /// It speaks no TLS: here it is again, with all that was sent to it.
    Plain(OwnedFd),
    /// What is read and written here is the client's, in the clear.
    Secure {
        socket: OwnedFd,
        client: Client,
    },
    Failed(String),
}

/// Who a client proved to be, by the identity of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub host_nqn: String,
    pub subsystem_nqn: String,
}

impl Client {
    /// Of `NVMe1R01 HOSTNQN SUBSYSNQN …`.
    fn of(identity: &str) -> Option<Client> {
        let mut words = identity.split(' ').skip(1).map(str::to_owned);
        Some(Client { host_nqn: words.next()?, subsystem_nqn: words.next()? })
    }
}

type Tell = Box<dyn FnOnce(Arrival) + Send>;

enum Letter {
    Accept { socket: TcpStream, context: Arc<Context>, by: Instant, tell: Tell },
    Connect { socket: TcpStream, context: Arc<Context>, by: Instant, inner: UnixStream },
}

/// The thread's handle; it ends, and its tunnels with it, when this is dropped.
pub struct Bridge {
    letters: Option<Sender<Letter>>,
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
        let (letters, mail) = channel();
        let keeper = Keeper {
            poll,
            bell: bell.clone(),
            mail,
            tunnels: BTreeMap::new(),
            next: 0,
            buffer: vec![0; CHUNK],
        };
        let thread = std::thread::Builder::new()
            .name("forebay-tls".into())
            .spawn(move || keeper.run())
            .map_err(refused)?;
        Ok(Bridge { letters: Some(letters), bell, thread: Some(thread) })
    }

    /// Takes over a socket that was just accepted, and tells within `limit`, on its own thread, what became of it.
    pub fn accept(&self, socket: OwnedFd, context: &Arc<Context>, limit: Duration, tell: Tell) {
        let socket = TcpStream::from(socket);
        let by = Instant::now() + limit;
        self.post(Letter::Accept { socket, context: context.clone(), by, tell });
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
        self.post(Letter::Connect { socket: outer.into(), context: context.clone(), by, inner: ours });
        Ok(theirs.into())
    }

    fn post(&self, letter: Letter) {
        if let Some(letters) = &self.letters {
            let _ = letters.send(letter);
        }
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.letters = None;
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Keeper {
    poll: OwnedFd,
    bell: Arc<OwnedFd>,
    mail: Receiver<Letter>,
    tunnels: BTreeMap<u64, Tunnel>,
    next: u64,
    buffer: Vec<u8>,
}

impl Keeper {
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
            let letter = match self.mail.try_recv() {
                Ok(letter) => letter,
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            };
            let number = self.next;
            self.next += 1;
            let tunnel = match letter {
                Letter::Accept { socket, context, by, tell } => {
                    match Tunnel::accepted(socket, &context, by) {
                        Ok(tunnel) => Tunnel { tell: Some(tell), ..tunnel },
                        Err(why) => {
                            tell(Arrival::Failed(why));
                            continue;
                        }
                    }
                }
                Letter::Connect { socket, context, by, inner } => {
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
                Ok(Step::Over) => {
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

enum Step {
    /// Something moved.
    More,
    /// Nothing can, before a socket says so.
    Wait,
    /// Hands are shaken: this is the near end of the local pair; the other is the owner's.
    Shaken(UnixStream),
    Over,
}

struct Tunnel {
    /// None once it was given back.
    outer: Option<TcpStream>,
    inner: Option<UnixStream>,
    session: Session,
    /// Of a socket that was accepted, until it is known what became of it.
    tell: Option<Tell>,
    /// The first byte isn't looked at yet.
    peeking: bool,
    open: bool,
    by: Instant,
    to_peer: Pending,
    to_owner: Pending,
    peer_ended: bool,
    owner_ended: bool,
}

/// Bytes on their way, from `start` on.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    start: usize,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// True: some went. What doesn't fit stays.
    fn write(&mut self, to: &mut impl Write) -> io::Result<bool> {
        let mut moved = false;
        while !self.is_empty() {
            match to.write(&self.bytes[self.start..]) {
                Ok(n) => {
                    self.start += n;
                    moved = true;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.bytes.clear();
        self.start = 0;
        Ok(moved)
    }
}

/// None: nothing now. 0: the end.
fn receive(from: &mut impl Read, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match from.read(into) {
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

impl Tunnel {
    fn new(outer: TcpStream, context: &Arc<Context>, by: Instant) -> Result<Tunnel, String> {
        outer.set_nonblocking(true).and_then(|()| outer.set_nodelay(true)).map_err(|e| e.to_string())?;
        Ok(Tunnel {
            outer: Some(outer),
            inner: None,
            session: Session::new(context).map_err(|e| e.to_string())?,
            tell: None,
            peeking: false,
            open: false,
            by,
            to_peer: Pending::default(),
            to_owner: Pending::default(),
            peer_ended: false,
            owner_ended: false,
        })
    }

    fn accepted(socket: TcpStream, context: &Arc<Context>, by: Instant) -> Result<Tunnel, String> {
        Ok(Tunnel { peeking: true, ..Tunnel::new(socket, context, by)? })
    }

    fn connecting(
        socket: TcpStream,
        inner: UnixStream,
        context: &Arc<Context>,
        by: Instant,
    ) -> Result<Tunnel, String> {
        inner.set_nonblocking(true).map_err(|e| e.to_string())?;
        Ok(Tunnel { inner: Some(inner), ..Tunnel::new(socket, context, by)? })
    }

    fn send(&mut self) -> Result<bool, String> {
        self.session.take(&mut self.to_peer.bytes);
        match &mut self.outer {
            Some(outer) => match self.to_peer.write(outer) {
                // A connection that isn't made yet.
                Err(e) if e.kind() == ErrorKind::NotConnected => Ok(false),
                result => result.map_err(|e| e.to_string()),
            },
            None => Ok(false),
        }
    }

    fn round(&mut self, buffer: &mut [u8]) -> Result<Step, String> {
        if self.peeking {
            return self.peek();
        }
        if !self.open {
            return self.shake(buffer);
        }
        let mut moved = self.send()?;
        moved |= self.inward(buffer)?;
        moved |= self.outward(buffer)?;
        let over =
            (self.peer_ended && self.to_owner.is_empty()) || (self.owner_ended && self.to_peer.is_empty());
        Ok(if over {
            Step::Over
        } else if moved {
            Step::More
        } else {
            Step::Wait
        })
    }

    fn peek(&mut self) -> Result<Step, String> {
        let Some(outer) = &self.outer else { return Ok(Step::Over) };
        let mut first = [0];
        match outer.peek(&mut first) {
            Ok(0) => Err("the host closed the connection".into()),
            Ok(_) if first[0] == HANDSHAKE_RECORD => {
                self.peeking = false;
                Ok(Step::More)
            }
            Ok(_) => {
                if let (Some(tell), Some(outer)) = (self.tell.take(), self.outer.take()) {
                    outer.set_nonblocking(false).map_err(|e| e.to_string())?;
                    tell(Arrival::Plain(outer.into()));
                }
                Ok(Step::Over)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Step::Wait),
            Err(e) => Err(e.to_string()),
        }
    }

    fn shake(&mut self, buffer: &mut [u8]) -> Result<Step, String> {
        let progress = self.session.handshake();
        let mut moved = self.send()?;
        if let Progress::Done(_) = progress? {
            self.open = true;
            let Some(tell) = self.tell.take() else { return Ok(Step::More) };
            let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
            ours.set_nonblocking(true).map_err(|e| e.to_string())?;
            let client =
                self.session.identity().and_then(Client::of).ok_or("a client without an identity")?;
            tell(Arrival::Secure { socket: theirs.into(), client });
            return Ok(Step::Shaken(ours));
        }
        let Some(outer) = &mut self.outer else { return Ok(Step::Over) };
        match receive(outer, buffer) {
            Ok(Some(0)) => return Err("the peer closed the connection before hands were shaken".into()),
            Ok(Some(bytes)) => {
                self.session.feed(&buffer[..bytes]);
                moved = true;
            }
            Err(e) if e.kind() != ErrorKind::NotConnected => return Err(e.to_string()),
            Ok(None) | Err(_) => {}
        }
        Ok(if moved { Step::More } else { Step::Wait })
    }

    /// Decrypts and hands on, as long as the owner takes it.
    fn inward(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        let (Some(outer), Some(inner)) = (&mut self.outer, &mut self.inner) else { return Ok(false) };
        let mut moved = self.to_owner.write(inner).map_err(|e| e.to_string())?;
        if !self.to_owner.is_empty() || self.peer_ended {
            return Ok(moved);
        }
        match self.session.read(buffer)? {
            Progress::Done(bytes) => {
                self.to_owner.bytes.extend_from_slice(&buffer[..bytes]);
                self.to_owner.write(inner).map_err(|e| e.to_string())?;
                moved = true;
            }
            Progress::Ended => self.peer_ended = true,
            Progress::Starved => match receive(outer, buffer).map_err(|e| e.to_string())? {
                // Without a closing alert somebody else may have cut it: what came is whole records all the same.
                Some(0) => self.peer_ended = true,
                Some(bytes) => {
                    self.session.feed(&buffer[..bytes]);
                    moved = true;
                }
                None => {}
            },
        }
        Ok(moved)
    }

    /// Encrypts and sends, as long as the peer takes it.
    fn outward(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        let Some(inner) = &mut self.inner else { return Ok(false) };
        if !self.to_peer.is_empty() || self.owner_ended {
            return Ok(false);
        }
        match receive(inner, buffer).map_err(|e| e.to_string())? {
            None => return Ok(false),
            Some(0) => {
                self.owner_ended = true;
                self.session.close();
            }
            Some(bytes) => self.session.write(&buffer[..bytes])?,
        }
        self.send()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_nvme::auth::psk::{ConfiguredPsk, TlsPsk, Version};
    use forebay_nvme::auth::Hash;
    use std::net::TcpListener;
    use std::sync::mpsc;

    const LIMIT: Duration = Duration::from_secs(60);

    fn psk(fill: u8) -> TlsPsk {
        let configured = ConfiguredPsk::generate(Hash::Sha256, &[fill; 64]).expect("a hash with a suite");
        configured
            .session(Version::V1, "nqn.2014-08.org.example:h", "nqn.2014-08.org.example:s")
            .expect("short names")
    }

    fn server() -> Arc<Context> {
        let find = |identity: &str| Some(psk(1)).filter(|psk| psk.identity == identity);
        Context::server(Arc::new(find)).expect("OpenSSL 3")
    }

    /// A connection through both sides of the bridge: the client's end, and what the server was told.
    fn meet(bridge: &Bridge, client: TlsPsk) -> (UnixStream, mpsc::Receiver<Arrival>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address");
        let client = Context::client(client).expect("OpenSSL 3");
        let near = bridge.connect(to, &client, LIMIT).expect("a socket");
        let (tell, told) = mpsc::channel();
        let (socket, _) = listener.accept().expect("a connection");
        bridge.accept(
            socket.into(),
            &server(),
            LIMIT,
            Box::new(move |arrival| tell.send(arrival).expect("heard")),
        );
        (near.into(), told)
    }

    #[test]
    fn bytes_go_both_ways_and_the_end_goes_with_them() {
        let bridge = Bridge::start().expect("a thread");
        let (mut near, told) = meet(&bridge, psk(1));
        // Written before hands are shaken.
        near.write_all(b"first").expect("taken");
        let Arrival::Secure { socket, client } = told.recv_timeout(LIMIT).expect("an arrival") else {
            panic!("no TLS")
        };
        assert_eq!(client.host_nqn, "nqn.2014-08.org.example:h");
        assert_eq!(client.subsystem_nqn, "nqn.2014-08.org.example:s");
        let mut far = UnixStream::from(socket);
        let mut got = [0; 5];
        far.read_exact(&mut got).expect("what was written first");
        assert_eq!(&got, b"first");
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for (from, to) in
            [(&mut near.try_clone().expect("dup"), &mut far.try_clone().expect("dup")), (&mut far, &mut near)]
        {
            let (mut from, data) = (from.try_clone().expect("dup"), sent.clone());
            let writer = std::thread::spawn(move || from.write_all(&data).expect("taken"));
            let mut back = vec![0; sent.len()];
            to.read_exact(&mut back).expect("all of it");
            writer.join().expect("it wrote");
            assert!(back == sent);
        }
        drop(near);
        assert_eq!(far.read(&mut [0; 8]).expect("the end"), 0);
    }

    #[test]
    fn a_host_with_another_key_is_told_and_gone() {
        let bridge = Bridge::start().expect("a thread");
        let other = TlsPsk { identity: psk(1).identity, key: psk(2).key, suite: Hash::Sha256 };
        let (mut near, told) = meet(&bridge, other);
        let Arrival::Failed(why) = told.recv_timeout(LIMIT).expect("an arrival") else {
            panic!("it was let in")
        };
        assert!(why.contains("binder"), "{why}");
        assert!(matches!(near.read(&mut [0; 8]), Ok(0) | Err(_)));
    }

    #[test]
    fn a_host_without_tls_is_handed_on_as_it_came_and_one_that_keeps_silent_is_not() {
        let bridge = Bridge::start().expect("a thread");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let arrival = |limit| {
            let (tell, told) = mpsc::channel();
            let (socket, _) = listener.accept().expect("a connection");
            bridge.accept(socket.into(), &server(), limit, Box::new(move |a| tell.send(a).expect("heard")));
            told.recv_timeout(LIMIT).expect("an arrival")
        };
        let mut plain = TcpStream::connect(address).expect("a connection");
        plain.write_all(&[0, 0, 128, 0]).expect("taken");
        let Arrival::Plain(socket) = arrival(LIMIT) else { panic!("not handed on") };
        let mut got = [9; 4];
        TcpStream::from(socket).read_exact(&mut got).expect("all that was sent");
        assert_eq!(got, [0, 0, 128, 0]);
        let silent = TcpStream::connect(address).expect("a connection");
        let Arrival::Failed(why) = arrival(Duration::from_millis(50)) else { panic!("not ended") };
        assert!(why.contains("in time"), "{why}");
        drop(silent);
    }
}
