//! A controller's client: by which way it comes, what it has sent, and what it is still owed.

use crate::gateway::dma::Retired;
use crate::gateway::handed::{Given, Received};
use crate::gateway::supervisor::Link;
use crate::gateway::vfio_user::message::Header;
use crate::gateway::vfio_user::socket::{Ended, Listener, Message, Session};
use crate::gateway::vfio_user::state::PeerState;
use forebay_io::Waker;
use forebay_model::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which an unmapping checks whether the last I/O has released the memory.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// After this long the sources are asked to give up on what is in flight.
const GIVE_UP: Duration = Duration::from_secs(1);
/// And after this long the client is told that it is still in use. (QEMU waits for 5 s.)
const BUSY: Duration = Duration::from_secs(4);

/// Answer to a request.
pub(super) enum Answer {
    Payload(Vec<u8>),
    With(Vec<u8>, Vec<Arc<OwnedFd>>),
    Refused(i32),
    /// It comes once what was asked for is done: `Client` waits for that.
    Later,
}

impl From<Result<(), i32>> for Answer {
    fn from(result: Result<(), i32>) -> Answer {
        match result {
            Ok(()) => Answer::Payload(Vec::new()),
            Err(errno) => Answer::Refused(errno),
        }
    }
}

/// Request that the client waits for; nothing more is read from it meanwhile.
enum Waiting {
    /// The last I/O into memory that it takes away.
    Unmap { header: Header, answer: Vec<u8>, retired: Retired, since: Instant, gave_up: bool },
    /// The end of a reset; then this answer goes.
    Reset { header: Header, answer: Vec<u8> },
    /// State left by the client before it.
    Predecessor,
}

/// What became of memory that is to go.
pub(super) enum Unmapping {
    /// The sources are to give up on I/O into it.
    GiveUp,
    /// This answer is due. `is_busy`: memory is still in use.
    Answered { header: Header, answer: Answer, is_busy: bool },
}

struct Peer {
    /// None: its supervisor has it.
    session: Option<Session>,
    /// VERSION was exchanged.
    greeted: bool,
}

/// One at a time. It comes by the listener, or by the link to a supervisor, which outlives this process.
pub(super) struct Client {
    listener: Listener,
    pub link: Option<Link>,
    peer: Option<Peer>,
    waiting: Option<Waiting>,
}

impl Client {
    pub(super) fn new(listener: Listener, link: Option<Link>) -> Client {
        Client { listener, link, peer: None, waiting: None }
    }

    // It comes and goes.

    pub(super) fn is_there(&self) -> bool {
        self.peer.is_some()
    }

    /// Another has come.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        if self.link.is_some() {
            return None;
        }
        self.listener.accept()
    }

    /// It is there from now on. `session`: none where its supervisor has that; `waits`: its predecessor's queues aren't gone.
    pub(super) fn meet(&mut self, session: Option<Session>, waits: bool) {
        self.peer = Some(Peer { session, greeted: false });
        self.waiting = waits.then_some(Waiting::Predecessor);
    }

    pub(super) fn part(&mut self) {
        (self.peer, self.waiting) = (None, None);
    }

    fn session(&self) -> Option<&Session> {
        self.peer.as_ref()?.session.as_ref()
    }

    fn session_mut(&mut self) -> Option<&mut Session> {
        self.peer.as_mut()?.session.as_mut()
    }

    /// Who closed its end since it was last read is no client any more.
    pub(super) fn is_gone(&self) -> bool {
        self.session().is_some_and(Session::is_gone)
    }

    /// Some for a client; true once VERSION was exchanged.
    pub(super) fn greeted(&self) -> Option<bool> {
        self.peer.as_ref().map(|peer| peer.greeted)
    }

    pub(super) fn greet(&mut self) {
        self.peer.iter_mut().for_each(|peer| peer.greeted = true);
    }

    // What it sends, and gets.

    /// Waits until the thread is woken, the client or a next one has something, or the time is over. `hears`: clients are
    /// heard.
    pub(super) fn poll(&self, waker: &Waker, hears: bool, timeout: Option<Duration>) {
        let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
        match &self.link {
            _ if !hears => {}
            Some(link) => fds.push(PollFd::new(link, PollFlags::IN)),
            None => fds.push(PollFd::new(&self.listener, PollFlags::IN)),
        }
        if let Some(session) = self.session().filter(|_| hears) {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, self.waiting.is_none());
            wanted.set(PollFlags::OUT, session.is_stuck());
            fds.push(PollFd::new(session, wanted));
        }
        let timeout = timeout.map(|time| Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
        // Interrupted or out of memory: the next round looks again.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// The next message, where it has a connection here and nothing is waited for.
    pub(super) fn receive(&mut self) -> Result<Option<Message>, Ended> {
        let waits = self.waiting.is_some();
        let Some(session) = self.session_mut() else { return Ok(None) };
        match waits {
            // Only whether it is still there.
            true if session.is_gone() => Err(Ended::Closed),
            true => Ok(None),
            false => session.flush().and_then(|()| session.receive()),
        }
    }

    /// Memory of a message that was dealt with.
    pub(super) fn recycle(&mut self, body: Vec<u8>) {
        if let Some(session) = self.session_mut() {
            session.recycle(body);
        }
    }

    pub(super) fn answer(&mut self, header: &Header, answer: Answer) -> Result<(), Ended> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        if !header.wants_reply() {
            return Ok(());
        }
        let (bytes, fds) = match answer {
            Answer::Later => return Ok(()),
            Answer::Payload(payload) => (header.reply(&payload), Vec::new()),
            Answer::With(payload, fds) => (header.reply(&payload), fds),
            Answer::Refused(errno) => (header.refuse(errno), Vec::new()),
        };
        match (&mut peer.session, &mut self.link) {
            (Some(session), _) => session.send(bytes, fds),
            (None, Some(link)) => {
                link.answer = Some((bytes, fds));
                Ok(())
            }
            (None, None) => Err(Ended::Closed),
        }
    }

    // What it waits for.

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// `answer` goes once nothing is under way into memory that it took away.
    pub(super) fn wait_for_unmapping(
        &mut self,
        header: Header,
        answer: Vec<u8>,
        retired: Retired,
        since: Instant,
    ) {
        self.waiting = Some(Waiting::Unmap { header, answer, retired, since, gave_up: false });
    }

    /// `answer` goes at the end of a reset.
    pub(super) fn wait_for_reset(&mut self, header: Header, answer: Vec<u8>) {
        self.waiting = Some(Waiting::Reset { header, answer });
    }

    /// How long the thread may sleep while memory is to go.
    pub(super) fn pause(&self) -> Option<Duration> {
        matches!(self.waiting, Some(Waiting::Unmap { .. })).then_some(POLL_INTERVAL)
    }

    /// Checks whether the last I/O has released memory that is to go.
    pub(super) fn look_at_unmapping(&mut self, now: Instant) -> Option<Unmapping> {
        let Some(Waiting::Unmap { header, answer, retired, since, gave_up }) = &mut self.waiting else {
            return None;
        };
        let waited = now.saturating_duration_since(*since);
        let (header, is_busy) = (*header, !retired.is_free());
        let answer = match is_busy {
            false => Answer::Payload(std::mem::take(answer)),
            true if waited > BUSY => Answer::Refused(libc::EBUSY),
            true => {
                let gives_up = waited > GIVE_UP && !std::mem::replace(gave_up, true);
                return gives_up.then_some(Unmapping::GiveUp);
            }
        };
        self.waiting = None;
        Some(Unmapping::Answered { header, answer, is_busy })
    }

    /// The queues are gone. Returns the answer to a reset that waited for that.
    pub(super) fn queues_closed(&mut self) -> Option<(Header, Answer)> {
        match self.waiting.take() {
            Some(Waiting::Reset { header, answer }) => Some((header, Answer::Payload(answer))),
            Some(Waiting::Predecessor) | None => None,
            other => {
                self.waiting = other;
                None
            }
        }
    }

    // In another process.

    /// Its connection, where that is here.
    pub(super) fn keep(&self, given: &mut Given) -> Result<Option<PeerState>, Error> {
        let Some(Peer { session: Some(session), greeted }) = &self.peer else { return Ok(None) };
        session.keep(*greeted, given).map(Some)
    }

    /// As it was in another process. `kept`: at its supervisor's, and whether VERSION was exchanged.
    pub(super) fn restore(
        &mut self,
        peer: Option<PeerState>,
        kept: Option<bool>,
        came: &mut Received,
    ) -> Result<(), Error> {
        if let Some(peer) = peer {
            self.peer = Some(Peer { greeted: peer.greeted, session: Some(Session::restored(peer, came)?) });
        }
        if let Some(greeted) = kept {
            self.peer = Some(Peer { greeted, session: None });
        }
        Ok(())
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// The listener's socket is at this path, and this process's.
    pub(super) fn own_listener(&mut self, socket: PathBuf) {
        self.listener.own(socket);
    }

    /// The listener is another process's.
    pub(super) fn leave_listener(&mut self) {
        self.listener.leave();
    }
}
