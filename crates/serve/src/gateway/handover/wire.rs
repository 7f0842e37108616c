//! Messages with descriptors over a socket of the same machine. Whatever comes is bounded: its bytes, its descriptors,
//! the time that it may take.

use super::Message;
use crate::gateway::handed::broken;
use forebay_model::Error;
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MAGIC: [u8; 8] = *b"forebay\x01";
/// Before each message: the mark, bytes of the text, descriptors.
const HEAD_BYTES: usize = 24;
/// A state: 32 controllers, each with the memory of a guest in thousands of pieces.
pub(crate) const TEXT_BYTES_MAX: u64 = 256 << 20;
pub(crate) const DESCRIPTORS_MAX: u64 = 65_536;
/// Descriptors that go with one byte; the kernel takes 253.
const AT_ONCE: usize = 128;

/// One end of a hand-over.
pub struct Line(UnixStream);

impl Line {
    /// `patience`: how long the other end may take for anything.
    pub fn new(stream: UnixStream, patience: Duration) -> Result<Line, Error> {
        let line = Line(stream);
        line.set_patience(patience)?;
        Ok(line)
    }

    /// For anything from now on.
    pub(crate) fn set_patience(&self, patience: Duration) -> Result<(), Error> {
        let set = self.0.set_read_timeout(Some(patience)).and(self.0.set_write_timeout(Some(patience)));
        set.map_err(|e| broken(&e.to_string()))
    }

    /// Returns whether the other end belongs to this process's user, or to root.
    pub fn is_ours(&self) -> bool {
        let uid = rustix::process::geteuid();
        net::sockopt::socket_peercred(&self.0).is_ok_and(|peer| peer.uid == uid || peer.uid.is_root())
    }

    /// # Errors
    /// `Run`: the other end is gone, or takes nothing.
    pub fn send(&mut self, message: &Message, fds: &[OwnedFd]) -> Result<(), Error> {
        let text = serde_json::to_vec(message).map_err(|e| broken(&e.to_string()))?;
        self.send_text(&text, fds)
    }

    /// Any text.
    ///
    /// # Errors
    /// As `send`.
    pub(crate) fn send_text(&mut self, text: &[u8], fds: &[OwnedFd]) -> Result<(), Error> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend(MAGIC);
        head.extend((text.len() as u64).to_le_bytes());
        head.extend((fds.len() as u64).to_le_bytes());
        let sent = self.0.write_all(&head).and_then(|()| self.0.write_all(text));
        sent.map_err(|e| broken(&e.to_string()))?;
        fds.chunks(AT_ONCE).try_for_each(|some| self.send_some(some))
    }

    fn send_some(&self, fds: &[OwnedFd]) -> Result<(), Error> {
        let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        loop {
            match net::sendmsg(&self.0, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(broken(&e.to_string())),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// `Run`: the other end is gone, says nothing in time, or something else; what it says with `Message::Over`.
    pub fn receive(&mut self) -> Result<(Message, Vec<OwnedFd>), Error> {
        let (text, fds) = self.receive_text()?;
        match parse_handover(&text)? {
            Message::Over(error) => Err(error),
            message => Ok((message, fds)),
        }
    }

    /// Any text, whole, with its descriptors.
    ///
    /// # Errors
    /// `Run`: the other end is gone, or says nothing in time.
    pub(crate) fn receive_text(&mut self) -> Result<(Vec<u8>, Vec<OwnedFd>), Error> {
        let mut head = [0; HEAD_BYTES];
        self.0.read_exact(&mut head).map_err(|e| silent(&e))?;
        let (text_bytes, count) = read_head(&head).ok_or_else(|| broken("what came is no such message"))?;
        let mut text = Vec::new();
        let read = (&mut self.0).take(text_bytes).read_to_end(&mut text);
        if read.map_err(|e| silent(&e))? as u64 != text_bytes {
            return Err(broken("the other gateway ended it"));
        }
        let mut fds = Vec::new();
        while fds.len() < count as usize {
            self.receive_some(&mut fds)?;
        }
        Ok((text, fds))
    }

    fn receive_some(&self, fds: &mut Vec<OwnedFd>) -> Result<(), Error> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(silent(&e.into())),
                Ok(received) => break received,
            }
        };
        let before = fds.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        let lost = received.flags.contains(net::ReturnFlags::CTRUNC) || fds.len() == before;
        if lost {
            let next = "ulimit -n 65536";
            return Err(Error::machine("the descriptors of a gateway", "some did not arrive", next));
        }
        Ok(())
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Bytes of the text and descriptors. None: no such message, or one that is too long.
fn read_head(head: &[u8; HEAD_BYTES]) -> Option<(u64, u64)> {
    let number = |at: usize| head[at..].first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let (text, fds) = (number(8)?, number(16)?);
    (head[..8] == MAGIC && text <= TEXT_BYTES_MAX && fds <= DESCRIPTORS_MAX).then_some((text, fds))
}

/// A message's text.
///
/// # Errors
/// `Run`: it is none.
pub fn parse_handover(text: &[u8]) -> Result<Message, Error> {
    serde_json::from_slice(text).map_err(|e| broken(&format!("what came is no such message: {e}")))
}

fn silent(e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            broken("the other gateway says nothing")
        }
        std::io::ErrorKind::UnexpectedEof => broken("the other gateway ended it"),
        _ => broken(&e.to_string()),
    }
}
