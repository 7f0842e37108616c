//! A controller's socket: who may connect, and the messages of the one that did. Nothing here waits: a client that
//! stops in the middle of a message, or reads no answers, holds up nobody.

use super::message::{Header, DESCRIPTORS_MAX, HEADER_BYTES};
use super::state::PeerState;
use crate::gateway::handed::{broken, Bytes, Given, Received};
use crate::gateway::socket::listen_at;
use forebay_model::Error;
use rustix::io::Errno;
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Answers that a client hasn't read yet, bytes: it gets no more than that, and then no session.
const UNREAD_MAX: usize = 4 << 20;
/// Bytes read of a message before more of it has come.
const CHUNK: usize = 64 << 10;

/// A socket's path that is ours, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: UnixListener,
    /// None: the file is another process's to remove.
    path: Option<PathBuf>,
}

impl Listener {
    /// As `listen_at`.
    pub(crate) fn bind(path: &Path) -> Result<Listener, Error> {
        let fd = listen_at(path)?;
        let blocks =
            |e: std::io::Error| Error::machine(path.display().to_string(), e.to_string(), "ulimit -n");
        fd.set_nonblocking(true).map_err(blocks)?;
        Ok(Listener { fd, path: Some(path.into()) })
    }

    /// A socket that listens at `path` already, made by another process; that one's until `own`.
    pub(crate) fn adopt(fd: OwnedFd) -> Listener {
        Listener { fd: fd.into(), path: None }
    }

    pub(crate) fn own(&mut self, path: PathBuf) {
        self.path = Some(path);
    }

    /// Another process listens there from now on.
    pub(crate) fn leave(&mut self) {
        self.path = None;
    }

    /// A client that waits to be let in.
    pub(crate) fn accept(&self) -> Option<OwnedFd> {
        self.fd.accept().ok().map(|(client, _)| client.into())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.path.as_ref().map(std::fs::remove_file);
    }
}

/// One message, whole.
#[derive(Debug)]
pub(crate) struct Message {
    pub header: Header,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// More descriptors came than may.
    pub too_many: bool,
}

/// Why a session is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The client closed it, or died.
    Closed,
    /// It sent what can't be a message, or reads no answers.
    Violated(&'static str),
    /// As its supervisor found.
    Broken(String),
}

/// An answer on its way, and what is sent with its first byte.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<Arc<OwnedFd>>,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Session {
    fd: OwnedFd,
    /// Header, then body, of the message that is on its way.
    head: [u8; HEADER_BYTES],
    header: Option<Header>,
    filled: usize,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
    too_many: bool,
    outgoing: VecDeque<Outgoing>,
    unread: usize,
}

impl Session {
    pub(crate) fn new(fd: OwnedFd) -> Session {
        Session {
            fd,
            head: [0; HEADER_BYTES],
            header: None,
            filled: 0,
            body: Vec::new(),
            fds: Vec::new(),
            too_many: false,
            outgoing: VecDeque::new(),
            unread: 0,
        }
    }

    /// Returns the part of it that another process needs to go on.
    ///
    /// # Errors
    /// `Machine`: no descriptor is left.
    pub(crate) fn keep(&self, greeted: bool, given: &mut Given) -> Result<PeerState, Error> {
        let received = match self.header {
            None => self.head[..self.filled].to_vec(),
            Some(_) => [&self.head[..], &self.body[..self.filled]].concat(),
        };
        let mut unsent = Vec::new();
        for out in &self.outgoing {
            let fds = out.fds.iter().map(|fd| given.add(&**fd)).collect::<Result<_, _>>()?;
            unsent.push((Bytes(out.bytes[out.sent..].to_vec()), fds));
        }
        Ok(PeerState {
            client: given.add(&self.fd)?,
            greeted,
            received: Bytes(received),
            received_fds: self.fds.iter().map(|fd| given.add(fd)).collect::<Result<_, _>>()?,
            too_many: self.too_many,
            unsent,
        })
    }

    /// A connection that another process had.
    ///
    /// # Errors
    /// `Run`: what came of it can't be.
    pub(crate) fn restored(state: PeerState, came: &mut Received) -> Result<Session, Error> {
        let mut session = Session::new(came.take(state.client)?);
        let received = state.received.0;
        let wrong = || broken("a message of an impossible size");
        match received.split_first_chunk::<HEADER_BYTES>() {
            None => {
                session.head[..received.len()].copy_from_slice(&received);
                session.filled = received.len();
            }
            Some((head, body)) => {
                let header = Header::parse(head);
                header.body_bytes().filter(|bytes| body.len() <= *bytes).ok_or_else(wrong)?;
                (session.head, session.header) = (*head, Some(header));
                (session.body, session.filled) = (body.to_vec(), body.len());
            }
        }
        for fd in state.received_fds {
            session.fds.push(came.take(fd)?);
        }
        session.too_many = state.too_many;
        for (Bytes(bytes), fds) in state.unsent {
            session.unread += bytes.len();
            let fds = fds.into_iter().map(|fd| came.take(fd).map(Arc::new)).collect::<Result<_, _>>()?;
            session.outgoing.push_back(Outgoing { bytes, sent: 0, fds });
        }
        Ok(session)
    }

    /// The next message, once all of it has come.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, Ended> {
        loop {
            let Some(header) = self.header else {
                if !self.fill_head()? {
                    return Ok(None);
                }
                continue;
            };
            let bytes = header.body_bytes().ok_or(Ended::Violated("a message of an impossible size"))?;
            if self.filled == bytes {
                self.body.truncate(bytes);
                let message = Message {
                    header,
                    body: std::mem::take(&mut self.body),
                    fds: std::mem::take(&mut self.fds),
                    too_many: std::mem::take(&mut self.too_many),
                };
                (self.header, self.filled) = (None, 0);
                return Ok(Some(message));
            }
            if !self.fill_body(bytes)? {
                return Ok(None);
            }
        }
    }

    /// The memory of a message that was dealt with: the next one is read into it.
    pub(crate) fn recycle(&mut self, mut body: Vec<u8>) {
        if self.body.capacity() < body.capacity() && body.capacity() <= CHUNK {
            body.clear();
            self.body = body;
        }
    }

    /// False: no more has come.
    fn fill_head(&mut self) -> Result<bool, Ended> {
        let mut head = self.head;
        let Some(bytes) = self.take(&mut head[self.filled..])? else { return Ok(false) };
        self.head = head;
        self.filled += bytes;
        if self.filled == HEADER_BYTES {
            (self.header, self.filled) = (Some(Header::parse(&head)), 0);
        }
        Ok(true)
    }

    fn fill_body(&mut self, bytes: usize) -> Result<bool, Ended> {
        let end = bytes.min(self.filled + CHUNK);
        let mut body = std::mem::take(&mut self.body);
        body.resize(end.max(self.filled), 0);
        let taken = self.take(&mut body[self.filled..end]);
        self.body = body;
        let Some(taken) = taken? else { return Ok(false) };
        self.filled += taken;
        Ok(true)
    }

    /// Receives at most as much as there is room for, never past this message: so that descriptors are its own.
    fn take(&mut self, into: &mut [u8]) -> Result<Option<usize>, Ended> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match net::recvmsg(&self.fd, &mut [IoSliceMut::new(into)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(_) => return Err(Ended::Closed),
                Ok(received) => break received,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.too_many |= received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > DESCRIPTORS_MAX;
        self.fds.truncate(DESCRIPTORS_MAX);
        match received.bytes {
            0 => Err(Ended::Closed),
            bytes => Ok(Some(bytes)),
        }
    }

    /// Sends an answer, as soon as the client takes it.
    pub(crate) fn send(&mut self, bytes: Vec<u8>, fds: Vec<Arc<OwnedFd>>) -> Result<(), Ended> {
        self.unread += bytes.len();
        self.outgoing.push_back(Outgoing { bytes, sent: 0, fds });
        self.flush()?;
        if self.unread > UNREAD_MAX {
            return Err(Ended::Violated("answers are not read"));
        }
        Ok(())
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) -> Result<(), Ended> {
        while let Some(out) = self.outgoing.front_mut() {
            let fds: Vec<BorrowedFd> = out.fds.iter().map(|fd| fd.as_fd()).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match net::sendmsg(&self.fd, &[IoSlice::new(&out.bytes[out.sent..])], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Ended::Closed),
                Ok(sent) => {
                    out.sent += sent;
                    self.unread -= sent;
                    out.fds.clear();
                    if out.sent == out.bytes.len() {
                        self.outgoing.pop_front();
                    }
                }
            }
        }
        Ok(())
    }

    /// The client closed its end, though what it sent before wasn't read.
    pub(crate) fn is_gone(&self) -> bool {
        use rustix::event::{poll, PollFd, PollFlags, Timespec};
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::HUP | PollFlags::ERR;
        poll(&mut fds, Some(&now)).is_ok_and(|_| fds[0].revents().intersects(gone))
    }

    /// Returns whether something is to be sent that the client has no room for.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn message(command: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1, 0, command as u8, 0];
        bytes.extend((16 + body.len() as u32).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    fn pair() -> (Session, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Session::new(ours.into()), theirs)
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (mut session, mut client) = pair();
        let long = vec![7; 200_000];
        let stream = [message(4, &[1; 16]), message(13, &[]), message(10, &long)].concat();
        let writer = std::thread::spawn(move || {
            for piece in stream.chunks(4099) {
                client.write_all(piece).unwrap();
            }
            client
        });
        let mut found = Vec::new();
        while found.len() < 3 {
            match session.receive().unwrap() {
                Some(message) => found.push((message.header.command, message.body)),
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        assert_eq!(found, [(4, vec![1; 16]), (13, vec![]), (10, long)]);
        drop(writer.join().unwrap());
        assert_eq!(session.receive().unwrap_err(), Ended::Closed);
    }

    #[test]
    fn descriptors_belong_to_their_message() {
        let (mut session, client) = pair();
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        for (command, count) in [(4u16, 0), (2, 1), (8, 3), (4, 0)] {
            let fds = vec![fd.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if count > 0 {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let bytes = message(command, &[0; 20]);
            net::sendmsg(&client, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
        }
        let counts: Vec<(u16, usize)> = std::iter::from_fn(|| session.receive().unwrap())
            .map(|message| (message.header.command, message.fds.len()))
            .collect();
        assert_eq!(counts, [(4, 0), (2, 1), (8, 3), (4, 0)]);
    }

    #[test]
    fn who_reads_no_answers_has_no_session() {
        let (mut session, _client) = pair();
        let sent = (0..10_000).find_map(|_| session.send(vec![0; 64 << 10], Vec::new()).err());
        assert_eq!(sent, Some(Ended::Violated("answers are not read")));
    }

    #[test]
    fn a_size_that_can_not_be_ends_the_session() {
        let (mut session, mut client) = pair();
        client.write_all(&[1, 0, 4, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert!(matches!(session.receive(), Err(Ended::Violated(_))));
    }
}
