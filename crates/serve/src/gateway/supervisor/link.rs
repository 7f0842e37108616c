//! A controller's end of the line to its supervisor.

use super::shm::Paper;
use super::{Came, Ends, Event, Said, Stated};
use crate::gateway::handed::{broken, Bytes};
use crate::gateway::handover::state::QueueKept;
use crate::gateway::handover::wire::Line;
use crate::gateway::stats::SubmissionTally;
use crate::gateway::vfio_user::message::{Header, HEADER_BYTES};
use crate::gateway::vfio_user::socket::Message;
use forebay_model::Error;
use forebay_nvme::transport::pcie::device::Effect;
use forebay_nvme::transport::pcie::queue::QueueState;
use forebay_nvme::transport::pcie::registers::Doorbell;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The other end is at work on nothing else.
const PATIENCE: Duration = Duration::from_secs(10);
/// A longer state goes as a file, so that sending never waits for whoever is sending, too.
const BESIDE_MAX: usize = 32 << 10;
/// Longest state that is read.
const STATE_BYTES_MAX: u64 = 64 << 20;

pub(crate) struct Link {
    line: Line,
    pub nqn: String,
    pub paper: Arc<Paper>,
    /// I/O completion queues as they were made, with the submission queues that they have.
    made: BTreeMap<u16, QueueState>,
    /// Something has changed since the last note.
    pub(in crate::gateway) dirty: bool,
    /// The event that is being dealt with, and whether it only asks.
    pub heard: Option<(u64, bool)>,
    pub answer: Option<(Vec<u8>, Vec<Arc<OwnedFd>>)>,
    /// The supervisor is to close the client's connection.
    pub ends_client: bool,
    /// To be 0 once it is noted that their queues are gone. None among them: all.
    pub cleared: Vec<Option<Doorbell>>,
}

/// Event of a client, as the controller's thread receives it.
pub(crate) enum Arrived {
    Client,
    Refused,
    Message(Message),
    Gone(Option<String>),
}

impl Link {
    pub(crate) fn new(stream: UnixStream, nqn: &str, paper: Arc<Paper>) -> Result<Link, Error> {
        Ok(Link {
            line: Line::new(stream, PATIENCE)?,
            nqn: nqn.into(),
            paper,
            made: BTreeMap::new(),
            dirty: true,
            heard: None,
            answer: None,
            ends_client: false,
            cleared: Vec::new(),
        })
    }

    /// Returns the next event, if there is one.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(crate) fn receive(&mut self) -> Result<Option<Arrived>, Error> {
        if !is_readable(&self.line) {
            return Ok(None);
        }
        let (text, fds) = self.line.receive_text()?;
        let event: Event = serde_json::from_slice(&text).map_err(|e| broken(&e.to_string()))?;
        (self.heard, self.answer) = (Some((event.number, false)), None);
        Ok(Some(match event.came {
            Came::Client => Arrived::Client,
            Came::Refused => Arrived::Refused,
            Came::Gone(why) => Arrived::Gone(why),
            Came::Message { bytes: Bytes(bytes), too_many } => {
                let (head, body) = bytes
                    .split_first_chunk::<HEADER_BYTES>()
                    .ok_or_else(|| broken("a message without a header"))?;
                Arrived::Message(Message { header: Header::parse(head), body: body.to_vec(), fds, too_many })
            }
        }))
    }

    /// Tells the supervisor what is dealt with (`heard`), and how things are.
    ///
    /// # Errors
    /// The supervisor is gone, no descriptor is left.
    pub(in crate::gateway) fn say(
        &mut self,
        heard: Option<(u64, bool)>,
        state: Option<(String, Vec<OwnedFd>)>,
        ends: Ends,
    ) -> Result<(), Error> {
        let (mut fds, mut said) = (Vec::new(), Said { ends, ..Said::default() });
        if let Some((number, unchanged)) = heard {
            (said.heard, said.unchanged) = (Some(number), unchanged);
            if let Some((bytes, with)) = self.answer.take() {
                said.answer = Some(Bytes(bytes));
                for fd in with {
                    fds.push(fd.try_clone().map_err(|e| broken(&e.to_string()))?);
                }
            }
        }
        said.answer_fds = fds.len();
        let mut beside = String::new();
        if let Some((text, with)) = state {
            fds.extend(with);
            if text.len() > BESIDE_MAX {
                said.state = Stated::Filed;
                fds.push(filed(&text).map_err(|e| broken(&e.to_string()))?);
            } else {
                (said.state, beside) = (Stated::Beside, text);
            }
        }
        let mut text = serde_json::to_vec(&said).map_err(|e| broken(&e.to_string()))?;
        text.push(b'\n');
        text.extend(beside.as_bytes());
        self.line.send_text(&text, &fds)
    }

    // What changed, and isn't noted yet.

    /// By a thread that wasn't asked for it by the client: the next note has it.
    pub(in crate::gateway) fn mark_dirty(&mut self) {
        self.dirty = true;
    }

    /// Queues write into the supervisor's paper from their first command on, and how they were made is noted.
    pub(in crate::gateway) fn note_effect(&mut self, effect: &mut Effect) {
        match effect {
            Effect::OpenCompletion(cq) => {
                cq.note_in(self.paper.book(cq.id()));
                self.made.insert(cq.id(), cq.state());
            }
            Effect::OpenSubmission { cqid, queue } => {
                self.paper.book(*cqid).begin_submission(queue.id(), queue.has_shadow());
                self.made.entry(*cqid).and_modify(|made| made.opened(queue));
            }
            Effect::Shadow(shadow) => self.made.values_mut().for_each(|made| made.set_shadow(*shadow)),
            Effect::Coalescing(coalescing) => {
                self.made.values_mut().for_each(|made| made.set_coalescing(coalescing.clone()));
            }
            _ => {}
        }
        if !matches!(effect, Effect::Interrupt(_)) {
            self.dirty = true;
        }
    }

    /// A queue is gone, or all are.
    pub(in crate::gateway) fn note_closed(&mut self, doorbell: Option<Doorbell>) {
        match doorbell {
            Some(Doorbell::Submission(sqid)) => self.made.values_mut().for_each(|made| made.closed(sqid)),
            Some(Doorbell::Completion(cqid)) => drop(self.made.remove(&cqid)),
            None => self.made.clear(),
        }
        self.cleared.push(doorbell);
    }

    /// Queues as they were made: all that moved since stands in their books. All their doorbells are to be heard.
    pub(in crate::gateway) fn queues(&self) -> Vec<QueueKept> {
        self.made.values().map(as_made).collect()
    }

    /// A queue that another process had noted.
    pub(in crate::gateway) fn adopt(&mut self, queue: &QueueState) {
        self.made.insert(queue.id(), queue.clone());
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

fn as_made(queue: &QueueState) -> QueueKept {
    let tallies =
        queue.submissions().map(|sqid| SubmissionTally { sqid, ..SubmissionTally::default() }).collect();
    QueueKept {
        queue: queue.clone(),
        interrupts: 0,
        head_seen: u32::MAX,
        tails_seen: queue.submissions().map(|sqid| (sqid, u32::MAX)).collect(),
        tallies,
    }
}

/// Something has come, if only its end.
pub(super) fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn filed(text: &str) -> std::io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("forebay-state", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

/// Message of a controller, with its state.
pub(super) struct Heard {
    pub said: Said,
    pub answer_fds: Vec<OwnedFd>,
    pub state: Option<(Vec<u8>, Vec<OwnedFd>)>,
}

/// Parts of a controller's message.
///
/// # Errors
/// `Run`: it is nothing that a controller says.
pub(super) fn parse(text: &[u8], mut fds: Vec<OwnedFd>) -> Result<Heard, Error> {
    let end = text.iter().position(|byte| *byte == b'\n').ok_or_else(|| broken("it has no first line"))?;
    let said: Said = serde_json::from_slice(&text[..end]).map_err(|e| broken(&e.to_string()))?;
    if said.answer_fds > fds.len() {
        return Err(broken("fewer descriptors came than it says"));
    }
    let mut with_state = fds.split_off(said.answer_fds);
    let state = match said.state {
        Stated::No => None,
        Stated::Beside => Some(text[end + 1..].to_vec()),
        Stated::Filed => {
            let file = with_state.pop().ok_or_else(|| broken("the state's file is missing"))?;
            Some(read(file).map_err(|e| broken(&e.to_string()))?)
        }
    };
    Ok(Heard { said, answer_fds: fds, state: state.map(|text| (text, with_state)) })
}

fn read(file: OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut file = File::from(file);
    file.rewind()?;
    let mut text = Vec::new();
    file.take(STATE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}
