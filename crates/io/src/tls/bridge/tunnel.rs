//! One connection's two ends, and what is carried between them.

use super::super::openssl::Context;
use super::super::openssl::Progress;
use super::super::openssl::Session;
use super::Arrival;
use super::Client;
use super::Tell;
use super::HANDSHAKE_RECORD;
use std::io;
use std::io::ErrorKind;
use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

pub(super) enum Step {
    /// Something moved.
    More,
    /// Nothing can, before a socket says so.
    Wait,
    /// Hands are shaken: this is the near end of the local pair; the other is the owner's.
    Shaken(UnixStream),
    Ended,
}

pub(super) struct Tunnel {
    /// None once it was given back.
    pub(super) outer: Option<TcpStream>,
    pub(super) inner: Option<UnixStream>,
    pub(super) session: Session,
    /// Notice of a socket that was accepted, until it is known what became of it.
    pub(super) tell: Option<Tell>,
    /// The first byte isn't looked at yet.
    pub(super) peeking: bool,
    pub(super) open: bool,
    pub(super) by: Instant,
    pub(super) to_peer: Pending,
    pub(super) to_owner: Pending,
    pub(super) peer_ended: bool,
    pub(super) owner_ended: bool,
}

/// Bytes on their way, from `start` on.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// True: some went. What doesn't fit stays.
    pub(super) fn write(&mut self, to: &mut impl Write) -> io::Result<bool> {
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
pub(super) fn receive(from: &mut impl Read, into: &mut [u8]) -> io::Result<Option<usize>> {
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
    pub(super) fn new(outer: TcpStream, context: &Arc<Context>, by: Instant) -> Result<Tunnel, String> {
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

    pub(super) fn accepted(socket: TcpStream, context: &Arc<Context>, by: Instant) -> Result<Tunnel, String> {
        Ok(Tunnel { peeking: true, ..Tunnel::new(socket, context, by)? })
    }

    pub(super) fn connecting(
        socket: TcpStream,
        inner: UnixStream,
        context: &Arc<Context>,
        by: Instant,
    ) -> Result<Tunnel, String> {
        inner.set_nonblocking(true).map_err(|e| e.to_string())?;
        Ok(Tunnel { inner: Some(inner), ..Tunnel::new(socket, context, by)? })
    }

    pub(super) fn send(&mut self) -> Result<bool, String> {
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

    pub(super) fn round(&mut self, buffer: &mut [u8]) -> Result<Step, String> {
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
            Step::Ended
        } else if moved {
            Step::More
        } else {
            Step::Wait
        })
    }

    pub(super) fn peek(&mut self) -> Result<Step, String> {
        let Some(outer) = &self.outer else { return Ok(Step::Ended) };
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
                Ok(Step::Ended)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Step::Wait),
            Err(e) => Err(e.to_string()),
        }
    }

    pub(super) fn shake(&mut self, buffer: &mut [u8]) -> Result<Step, String> {
        let progress = self.session.handshake();
        let mut moved = self.send()?;
        if let Progress::Done(_) = progress? {
            self.open = true;
            let Some(tell) = self.tell.take() else { return Ok(Step::More) };
            let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
            ours.set_nonblocking(true).map_err(|e| e.to_string())?;
            let client = self
                .session
                .identity()
                .and_then(Client::from_identity)
                .ok_or("a client without an identity")?;
            tell(Arrival::Secure { socket: theirs.into(), client });
            return Ok(Step::Shaken(ours));
        }
        let Some(outer) = &mut self.outer else { return Ok(Step::Ended) };
        match receive(outer, buffer) {
            Ok(Some(0)) => {
                return Err("the peer closed the connection before the handshake was complete".into())
            }
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
    pub(super) fn inward(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
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
    pub(super) fn outward(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
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
