//! The connection manager: a channel of events, and connections with their queue pairs.

use super::layout::Sge;
use super::layout::{CmEvent, CmId, ConnParam, Context, EventChannel, QpInit, ALL_READS, PS_TCP, QPT_RC};
use super::library::Library;
use super::verbs::{CompletionQueue, Domain, Pair, Post};
use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;
use std::time::Duration;

/// Sends that aren't acknowledged, and such that find no receive posted, are tried again so often: the most there is,
/// and for ever.
const RETRIES: u8 = 7;
const PRIVATE_BYTES_MAX: usize = 256;

pub struct Channel {
    pub library: &'static Library,
    raw: NonNull<EventChannel>,
}

// SAFETY: librdmacm serialises what several threads do with a channel.
unsafe impl std::marker::Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// Event of a connection, from the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    AddressResolved,
    RouteResolved,
    /// Request for a connection: `Event::request`.
    Request,
    Established,
    /// By the peer, `Event::private` says why; or by its manager, as nobody listens there.
    Rejected,
    /// The way there, or the peer, can't be found: `Event::status` is a negative errno.
    Unreachable,
    Disconnected,
    DeviceRemoved,
    /// Nothing to act on.
    Other,
}

impl Happened {
    /// enum rdma_cm_event_type.
    fn from_number(number: u32) -> Happened {
        match number {
            0 => Happened::AddressResolved,
            2 => Happened::RouteResolved,
            4 => Happened::Request,
            1 | 3 | 6 | 7 => Happened::Unreachable,
            8 => Happened::Rejected,
            9 => Happened::Established,
            10 => Happened::Disconnected,
            11 => Happened::DeviceRemoved,
            _ => Happened::Other,
        }
    }
}

pub struct Event {
    pub what: Happened,
    /// Key of the connection that it belongs to: `Id::key`.
    pub key: usize,
    pub status: i32,
    /// Private data of the peer, padded with zeros.
    pub private: Vec<u8>,
    /// The connection that is asked for.
    pub request: Option<Id>,
}

fn failed(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Channel {
    pub fn open(library: &'static Library) -> io::Result<Arc<Channel>> {
        // SAFETY: makes a channel, or gives null and sets errno.
        let raw = unsafe { (library.manager.create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Channel { library, raw };
        rustix::io::ioctl_fionbio(channel.fd(), true)?;
        Ok(Arc::new(channel))
    }

    /// Readable while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, which is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The next event, if there is one.
    pub fn next(self: &Arc<Channel>) -> io::Result<Option<Event>> {
        let mut raw: *mut CmEvent = null_mut();
        // SAFETY: the channel is open; fills a local.
        if unsafe { (self.library.manager.get_cm_event)(self.raw.as_ptr(), &mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: a successful call gave an event, which stays until it is acknowledged.
        let event = unsafe { &*raw };
        let what = Happened::from_number(event.event);
        let request = (what == Happened::Request).then(|| Id::from_raw(self.clone(), event.id)).flatten();
        let reported =
            Event { what, key: event.id as usize, status: event.status, private: private(event), request };
        // SAFETY: the event is this channel's, and nothing refers to it any more.
        unsafe { (self.library.manager.ack_cm_event)(raw) };
        Ok(Some(reported))
    }
}

fn private(event: &CmEvent) -> Vec<u8> {
    let (at, len) = (event.conn.private_data.cast::<u8>(), usize::from(event.conn.private_data_len));
    if at.is_null() {
        return Vec::new();
    }
    // SAFETY: the event names so many bytes, and isn't acknowledged yet.
    unsafe { std::slice::from_raw_parts(at, len.min(PRIVATE_BYTES_MAX)) }.to_vec()
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every connection holds the channel, so that none is left; its events are acknowledged.
        unsafe { (self.library.manager.destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Room of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub sends: u32,
    pub receives: u32,
    /// Stretches of memory that one send has, and one receive.
    pub stretches: u32,
}

/// Terms of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    pub private: &'a [u8],
    /// RDMA READs of the peer's are served, as many as the device can; else ours are.
    pub serves_reads: bool,
}

/// One connection, with its queue pair once it has one. Dropping it ends both: from then on the peer reaches no memory
/// through it.
pub struct Id {
    raw: NonNull<CmId>,
    library: &'static Library,
    has_pair: bool,
    // What the queue pair stands on goes after it.
    pair: Option<(Arc<CompletionQueue>, Arc<Domain>)>,
    channel: Arc<Channel>,
}

// SAFETY: nobody else has it, and the library doesn't care which thread calls.
unsafe impl std::marker::Send for Id {}

impl Id {
    pub fn new(channel: &Arc<Channel>) -> io::Result<Id> {
        let mut raw = null_mut();
        // SAFETY: the channel is open and outlives the connection, which holds it.
        let made = unsafe {
            (channel.library.manager.create_id)(channel.raw.as_ptr(), &mut raw, null_mut(), PS_TCP)
        };
        failed(made)?;
        Id::from_raw(channel.clone(), raw)
            .ok_or_else(|| io::Error::other("the connection manager gave no connection"))
    }

    fn from_raw(channel: Arc<Channel>, raw: *mut CmId) -> Option<Id> {
        let raw = NonNull::new(raw)?;
        Some(Id { raw, library: channel.library, has_pair: false, pair: None, channel })
    }

    pub fn key(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// The channel that its events come on.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Has its events come on another channel from now on. None of them is under way: they are acknowledged as they come.
    pub fn migrate(&mut self, to: &Arc<Channel>) -> io::Result<()> {
        // SAFETY: both are open, and the connection holds the channel from here on.
        failed(unsafe { (self.library.manager.migrate_id)(self.raw.as_ptr(), to.raw.as_ptr()) })?;
        self.channel = to.clone();
        Ok(())
    }

    /// Our address, once it is bound.
    pub fn local(&self) -> Option<SocketAddr> {
        // SAFETY: ours, and nobody changes it but calls of ours.
        address(unsafe { &self.raw.as_ref().source })
    }

    /// The peer's, once it is known.
    pub fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as of `local`.
        address(unsafe { &self.raw.as_ref().destination })
    }

    /// Begins to look up which device leads there.
    pub fn resolve(&self, to: SocketAddr, within: Duration) -> io::Result<()> {
        let address = Address::from_socket(to);
        // SAFETY: the address is a local that the call only reads.
        failed(unsafe {
            (self.library.manager.resolve_addr)(self.raw.as_ptr(), null(), address.as_ptr(), millis(within))
        })
    }

    pub fn route(&self, within: Duration) -> io::Result<()> {
        // SAFETY: a connection of ours.
        failed(unsafe { (self.library.manager.resolve_route)(self.raw.as_ptr(), millis(within)) })
    }

    /// Listens there.
    pub fn listen(&self, at: SocketAddr, backlog: u32) -> io::Result<()> {
        let address = Address::from_socket(at);
        // SAFETY: the address is a local that the call only reads.
        failed(unsafe { (self.library.manager.bind_addr)(self.raw.as_ptr(), address.as_ptr()) })?;
        // SAFETY: a connection of ours, bound.
        failed(unsafe { (self.library.manager.listen)(self.raw.as_ptr(), backlog as c_int) })
    }

    /// The device that it is on, once that is known.
    pub(super) fn context(&self) -> Option<NonNull<Context>> {
        // SAFETY: ours, and nobody changes it but calls of ours.
        NonNull::new(unsafe { self.raw.as_ref() }.verbs)
    }

    pub fn create_pair(
        &mut self,
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        room: Room,
    ) -> io::Result<()> {
        let mut wanted = QpInit {
            qp_context: null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: null_mut(),
            max_send_wr: room.sends,
            max_recv_wr: room.receives,
            max_send_sge: room.stretches,
            max_recv_sge: 1,
            max_inline_data: 0,
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are held until after the pair is gone.
        failed(unsafe { (self.library.manager.create_qp)(self.raw.as_ptr(), domain.raw(), &mut wanted) })?;
        self.has_pair = true;
        self.pair = Some((queue.clone(), domain.clone()));
        Ok(())
    }

    pub fn connect(&self, terms: Terms) -> io::Result<()> {
        let mut wanted = parameters(terms);
        // SAFETY: the parameters are a local that the call only reads, as are the private data.
        failed(unsafe { (self.library.manager.connect)(self.raw.as_ptr(), &mut wanted) })
    }

    pub fn accept(&self, terms: Terms) -> io::Result<()> {
        let mut wanted = parameters(terms);
        // SAFETY: as of `connect`.
        failed(unsafe { (self.library.manager.accept)(self.raw.as_ptr(), &mut wanted) })
    }

    pub fn reject(&self, private: &[u8]) -> io::Result<()> {
        let len = private.len().min(usize::from(u8::MAX)) as u8;
        // SAFETY: reads so many bytes of the slice.
        failed(unsafe { (self.library.manager.reject)(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    /// Tells the peer, and flushes what is posted.
    pub fn disconnect(&self) {
        // SAFETY: a connection of ours; one that isn't connected says so, which changes nothing.
        let _ = unsafe { (self.library.manager.disconnect)(self.raw.as_ptr()) };
    }

    fn pair(&self) -> io::Result<Pair<'_>> {
        // SAFETY: ours, and nobody changes it but calls of ours.
        let raw = NonNull::new(unsafe { self.raw.as_ref() }.qp).filter(|_| self.has_pair);
        let raw = raw.ok_or(io::ErrorKind::NotConnected)?;
        // SAFETY: as above; it is destroyed with the connection.
        Ok(unsafe { Pair::new(raw) })
    }

    /// Posts in order, with one call.
    pub fn send(&self, posts: &mut [Post]) -> io::Result<()> {
        self.pair()?.send(posts)
    }

    /// Posts a buffer for the next message.
    pub fn receive(&self, id: u64, into: Sge) -> io::Result<()> {
        self.pair()?.receive(id, into)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the pair goes before the connection, and what it stands on after it; its events were acknowledged.
        unsafe {
            if self.has_pair {
                (self.library.manager.disconnect)(self.raw.as_ptr());
                (self.library.manager.destroy_qp)(self.raw.as_ptr());
            }
            (self.library.manager.destroy_id)(self.raw.as_ptr());
        }
    }
}

fn parameters(terms: Terms) -> ConnParam {
    let (serves, asks) = if terms.serves_reads { (ALL_READS, 0) } else { (0, ALL_READS) };
    ConnParam {
        private_data: terms.private.as_ptr().cast::<c_void>(),
        private_data_len: terms.private.len().min(usize::from(u8::MAX)) as u8,
        responder_resources: serves,
        initiator_depth: asks,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

fn millis(time: Duration) -> c_int {
    time.as_millis().min(c_int::MAX as u128) as c_int
}

fn address(of: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = std::ptr::from_ref(of);
    match i32::from(of.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so, and a storage is as long and as aligned.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = std::net::Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let ip = std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// A socket address as C has it.
enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    fn from_socket(address: SocketAddr) -> Address {
        match address {
            SocketAddr::V4(v4) => Address::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Address::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    fn as_ptr(&self) -> *const c_void {
        match self {
            Address::V4(v4) => std::ptr::from_ref(v4).cast(),
            Address::V6(v6) => std::ptr::from_ref(v6).cast(),
        }
    }
}
