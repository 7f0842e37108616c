//! A drive as its supervisor holds it: its client's connection, and what its gateways are to know of it.

use super::link::{self, is_readable, Heard};
use super::{Came, Ends, Event};
use crate::gateway::handed::{broken, Bytes};
use crate::gateway::handover::wire::Line;
use crate::gateway::vfio_user::socket::{Ended, Listener, Session};
use forebay_model::Error;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Events that no note covers yet; then the client waits.
const LOG_MAX: usize = 1024;
/// A gateway's thread takes what it is sent within that, or is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// A state as text, and its descriptors.
pub(super) type Noted = (Vec<u8>, Vec<OwnedFd>);

/// Something that the client did, until a note covers it.
struct Logged {
    event: Event,
    fds: Vec<OwnedFd>,
    /// Number of the client among those that came one after the other.
    client: u64,
    delivered: bool,
    answered: bool,
}

pub(super) struct HeldDrive {
    pub name: String,
    listener: Listener,
    session: Option<Session>,
    client: u64,
    link: Option<Line>,
    state: Option<Noted>,
    log: VecDeque<Logged>,
    next: u64,
    /// The event that the gateway is dealing with.
    awaited: Option<u64>,
}

impl HeldDrive {
    pub(super) fn new(name: String, listener: OwnedFd, link: OwnedFd) -> Result<HeldDrive, Error> {
        Ok(HeldDrive {
            name,
            listener: Listener::adopt(listener),
            session: None,
            client: 0,
            link: Some(Line::new(UnixStream::from(link), PATIENCE)?),
            state: None,
            log: VecDeque::new(),
            next: 0,
            awaited: None,
        })
    }

    /// No gateway has it.
    pub(super) fn is_alone(&self) -> bool {
        self.link.is_none()
    }

    /// The next gateway can go on with it.
    pub(super) fn is_noted(&self) -> bool {
        self.state.is_some()
    }

    /// Returns the state for the next gateway: the last note, a line's end, and the note's descriptors. None: there
    /// was no note.
    pub(super) fn give(&mut self) -> Result<Option<Noted>, Error> {
        let Some((text, with)) = &self.state else { return Ok(None) };
        let scarce = |e: std::io::Error| Error::machine(&self.name, e.to_string(), "ulimit -n 65536");
        let (ours, theirs) = UnixStream::pair().map_err(scarce)?;
        let mut fds = vec![theirs.into()];
        for fd in with {
            fds.push(fd.try_clone().map_err(scarce)?);
        }
        let text = text.clone();
        self.link = Some(Line::new(ours, PATIENCE)?);
        self.awaited = None;
        self.log.iter_mut().for_each(|one| one.delivered = false);
        Ok(Some((text, fds)))
    }

    /// Descriptors to wait for.
    pub(super) fn add_to<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if let Some(link) = &self.link {
            fds.push(PollFd::new(link, PollFlags::IN));
        }
        if let Some(session) = &self.session {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, self.may_read());
            wanted.set(PollFlags::OUT, session.is_stuck());
            fds.push(PollFd::new(session, wanted));
        }
        if self.may_accept() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
    }

    fn may_read(&self) -> bool {
        self.link.is_some() && self.awaited.is_none() && self.log.len() < LOG_MAX
    }

    fn may_accept(&self) -> bool {
        self.link.is_some() && self.state.is_some() && self.log.len() < LOG_MAX
    }

    /// Does what can be done. False: the drive has ended.
    pub(super) fn turn(&mut self) -> bool {
        if !self.hear() {
            return false;
        }
        self.read_client();
        self.welcome();
        self.deliver();
        true
    }

    /// Takes all that its gateway said. What one that is dead said before counts. False: the drive has ended.
    pub(super) fn hear(&mut self) -> bool {
        while let Some(link) = self.link.as_mut().filter(|link| is_readable(*link)) {
            let heard = link.receive_text().and_then(|(text, fds)| link::parse(&text, fds));
            match heard {
                Ok(heard) if heard.said.ends == Ends::Drive => return false,
                Ok(heard) => self.take(heard),
                Err(_) => self.link = None,
            }
        }
        true
    }

    fn take(&mut self, heard: Heard) {
        let Heard { said, answer_fds, state } = heard;
        if let Some(number) = said.heard {
            let answer = said.answer.map(|Bytes(bytes)| (bytes, answer_fds));
            self.answered(number, answer);
            if said.unchanged {
                self.log.retain(|one| one.event.number != number);
            }
        }
        if let Some(state) = state {
            self.state = Some(state);
            self.log.retain(|one| !one.answered);
        }
        if said.ends == Ends::Client {
            self.session = None;
        }
    }

    fn answered(&mut self, number: u64, answer: Option<(Vec<u8>, Vec<OwnedFd>)>) {
        if self.awaited == Some(number) {
            self.awaited = None;
        }
        let mut wanted = false;
        for one in self.log.iter_mut().filter(|one| one.event.number <= number && one.delivered) {
            // Of those before it the client has gone, with what it asked.
            wanted |= one.event.number == number && !one.answered && one.client == self.client;
            one.answered = true;
        }
        let (Some((bytes, fds)), Some(session)) = (answer, &mut self.session) else { return };
        if wanted {
            let fds = fds.into_iter().map(Arc::new).collect();
            if let Err(ended) = session.send(bytes, fds) {
                self.gone(ended);
            }
        }
    }

    fn push(&mut self, came: Came, fds: Vec<OwnedFd>) {
        let event = Event { number: self.next, came };
        self.next += 1;
        self.log.push_back(Logged { event, fds, client: self.client, delivered: false, answered: false });
    }

    fn gone(&mut self, ended: Ended) {
        if self.session.take().is_some() {
            let why = match ended {
                Ended::Closed => None,
                Ended::Violated(why) => Some(why.to_string()),
                Ended::Broken(why) => Some(why),
            };
            self.push(Came::Gone(why), Vec::new());
        }
    }

    fn read_client(&mut self) {
        let may_read = self.may_read();
        let Some(session) = &mut self.session else { return };
        let received = match session.flush() {
            Ok(()) if may_read => session.receive(),
            // Only whether it is still there.
            Ok(()) if session.is_gone() => Err(Ended::Closed),
            Ok(()) => Ok(None),
            Err(ended) => Err(ended),
        };
        match received {
            Ok(None) => {}
            Ok(Some(message)) => {
                let bytes = Bytes([&message.header.to_bytes()[..], &message.body].concat());
                let came = Came::Message { bytes, too_many: message.too_many };
                session.recycle(message.body);
                self.push(came, message.fds);
            }
            Err(ended) => self.gone(ended),
        }
    }

    fn welcome(&mut self) {
        while self.may_accept() {
            let Some(fd) = self.listener.accept() else { return };
            if self.session.as_ref().is_some_and(Session::is_gone) {
                self.gone(Ended::Closed);
            }
            if self.session.is_some() {
                self.push(Came::Refused, Vec::new());
                continue;
            }
            self.client += 1;
            self.session = Some(Session::new(fd));
            self.push(Came::Client, Vec::new());
        }
    }

    /// One at a time; but that its client has gone is told to a gateway that is waiting for something.
    fn deliver(&mut self) {
        let Some(link) = &mut self.link else { return };
        let goes = |came: &Came| matches!(came, Came::Gone(_));
        let Some(next) = self.log.iter().position(|one| !one.delivered) else { return };
        if self.awaited.is_some() && !goes(&self.log[next].event.came) {
            return;
        }
        let one = &mut self.log[next];
        let sent = serde_json::to_vec(&one.event)
            .map_err(|e| broken(&e.to_string()))
            .and_then(|text| link.send_text(&text, &one.fds));
        match sent {
            Ok(()) => (one.delivered, self.awaited) = (true, Some(one.event.number)),
            // What it said before is still to be heard.
            Err(_) => drop(self.hear()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::supervisor::{Said, Stated};
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::path::Path;
    use std::time::Instant;

    /// A gateway's end of a drive's line.
    struct Served(Line);

    impl Served {
        fn hear(&mut self) -> Option<Event> {
            let (text, _) = is_readable(&self.0).then(|| self.0.receive_text().unwrap())?;
            Some(serde_json::from_slice(&text).unwrap())
        }

        fn say(&mut self, said: &Said, state: &str) {
            let text = format!("{}\n{state}", serde_json::to_string(said).unwrap());
            self.0.send_text(text.as_bytes(), &[]).unwrap();
        }

        fn deals_with(&mut self, number: u64, answer: &str, state: Option<&str>) {
            let answer = (!answer.is_empty()).then(|| Bytes(answer.into()));
            let stated = if state.is_some() { Stated::Beside } else { Stated::No };
            let said = Said { heard: Some(number), answer, state: stated, ..Said::default() };
            self.say(&said, state.unwrap_or_default());
        }
    }

    fn drive(path: &Path) -> (HeldDrive, Served) {
        let listener = Listener::bind(path).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fd = std::os::fd::AsFd::as_fd(&listener).try_clone_to_owned().unwrap();
        let mut held = HeldDrive::new("one".into(), fd, ours.into()).unwrap();
        // Its path stays.
        std::mem::forget(listener);
        let mut served = Served(Line::new(theirs, PATIENCE).unwrap());
        served.say(&Said { state: Stated::Beside, ..Said::default() }, "first");
        assert!(held.turn() && held.is_noted());
        (held, served)
    }

    /// Turns until what was closed is seen to be: a process that another test starts holds copies of our descriptors until
    /// it executes its program.
    fn turn_until(held: &mut HeldDrive, seen: impl Fn(&HeldDrive) -> bool) {
        let started = Instant::now();
        while !seen(held) {
            assert!(held.turn() && started.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next gateway, and what it is told of the last note.
    fn next(held: &mut HeldDrive) -> (Served, String) {
        turn_until(held, HeldDrive::is_alone);
        let (text, mut fds) = held.give().unwrap().unwrap();
        let line = Line::new(UnixStream::from(fds.remove(0)), PATIENCE).unwrap();
        (Served(line), String::from_utf8(text).unwrap())
    }

    fn message(body: &str) -> Vec<u8> {
        let mut bytes = vec![1, 0, 4, 0];
        bytes.extend((16 + body.len() as u32).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body.as_bytes());
        bytes
    }

    fn body(event: &Event) -> &[u8] {
        let Came::Message { bytes, .. } = &event.came else { panic!("{event:?}") };
        &bytes.0[16..]
    }

    fn read(client: &mut UnixStream) -> String {
        let mut bytes = [0; 64];
        client.set_nonblocking(true).unwrap();
        client.read(&mut bytes).map_or(String::new(), |n| String::from_utf8(bytes[..n].to_vec()).unwrap())
    }

    #[test]
    fn what_no_note_covers_comes_to_the_next_gateway_and_is_answered_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut held, mut served) = drive(&dir.path().join("s"));
        let mut client = UnixStream::connect(dir.path().join("s")).unwrap();
        assert!(held.turn());
        let met = served.hear().unwrap();
        assert!(matches!(met.came, Came::Client));
        served.deals_with(met.number, "", Some("met"));
        let whole = [message("one"), message("two"), message("three")].concat();
        // The last one comes half.
        client.write_all(&whole[..whole.len() - 3]).unwrap();
        assert!(held.turn() && held.turn());
        let one = served.hear().unwrap();
        assert_eq!((body(&one), served.hear().is_none()), (&b"one"[..], true), "one at a time");
        served.deals_with(one.number, "1", None);
        assert!(held.turn() && held.turn());
        assert_eq!((body(&served.hear().unwrap()), read(&mut client)), (&b"two"[..], "1".into()));
        // It is killed with the second in hand, and the first answered but not noted.
        drop(served);
        let (mut served, state) = next(&mut held);
        assert_eq!(state, "met");
        assert!(held.turn());
        let one = served.hear().unwrap();
        assert_eq!(body(&one), b"one");
        served.deals_with(one.number, "1", None);
        assert!(held.turn() && read(&mut client).is_empty(), "it was answered before");
        let two = served.hear().unwrap();
        served.deals_with(two.number, "2", Some("both"));
        client.write_all(&whole[whole.len() - 3..]).unwrap();
        assert!(held.turn() && held.turn());
        assert_eq!((body(&served.hear().unwrap()), read(&mut client)), (&b"three"[..], "2".into()));
        drop(served);
        let (mut served, state) = next(&mut held);
        assert!(held.turn());
        assert_eq!((state.as_str(), body(&served.hear().unwrap())), ("both", &b"three"[..]));
    }

    #[test]
    fn a_client_that_goes_is_told_of_at_once_and_its_answers_are_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let (mut held, mut served) = drive(&dir.path().join("s"));
        let mut client = UnixStream::connect(dir.path().join("s")).unwrap();
        assert!(held.turn());
        let met = served.hear().unwrap();
        served.deals_with(met.number, "", None);
        client.write_all(&message("slow")).unwrap();
        assert!(held.turn() && held.turn());
        let slow = served.hear().unwrap();
        // The connection ends, also where a process that another test starts holds a copy of its descriptor.
        client.shutdown(Shutdown::Both).unwrap();
        let mut other = UnixStream::connect(dir.path().join("s")).unwrap();
        assert!(held.turn() && held.turn());
        let gone = served.hear().unwrap();
        assert!(matches!(gone.came, Came::Gone(None)) && served.hear().is_none());
        served.deals_with(slow.number, "late", None);
        served.deals_with(gone.number, "", Some("gone"));
        assert!(held.turn() && held.turn());
        let met = served.hear().unwrap();
        assert!(matches!(met.came, Came::Client));
        assert_eq!(read(&mut other), "");
        served.deals_with(met.number, "", None);
        // Nonsense ends the connection, and the gateway hears why.
        other.write_all(&[0xff; 16]).unwrap();
        assert!(held.turn() && held.turn());
        let ended = served.hear();
        assert!(matches!(ended, Some(Event { came: Came::Gone(Some(_)), .. })), "{ended:?}");
    }
}
