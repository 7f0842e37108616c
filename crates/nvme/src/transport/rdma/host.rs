//! The host's end of a connection: its outstanding commands and their responses.
//!
//! Its driver takes an identifier for each command (`take`) and posts the capsule's SEND; it tells when that is done
//! (`sent`) and what came as a response (`came`). A command is over with both, in whichever order they come: only then
//! are its capsule and its memory the host's again.

use crate::command::Cqe;
use crate::transport::tcp::{Fatal, FatalStatus, Handle};
use zerocopy::FromBytes;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    out: bool,
    /// Its capsule's SEND completed.
    sent: bool,
    answer: Option<Cqe>,
    /// Bytes that it brings.
    wanted: u32,
}

/// A command that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    pub command: Handle,
    pub cqe: Cqe,
    /// Bytes that the controller wrote into its memory.
    pub received: u32,
}

#[derive(Debug)]
pub struct HostEnd {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl HostEnd {
    /// `commands`: as both ends agreed, how many may be out.
    pub fn new(commands: u16) -> HostEnd {
        HostEnd { slots: vec![Slot::default(); commands.into()], free: (0..commands).rev().collect() }
    }

    /// An identifier for a command that brings `wanted` bytes. None: as many are out as may be.
    pub fn take(&mut self, wanted: u32) -> Option<Handle> {
        let cid = self.free.pop()?;
        self.slots[usize::from(cid)] = Slot { out: true, wanted, ..Slot::default() };
        Some(Handle(cid))
    }

    /// The command isn't posted after all.
    pub fn give_back(&mut self, command: Handle) {
        let slot = &mut self.slots[usize::from(command.0)];
        if std::mem::take(slot).out {
            self.free.push(command.0);
        }
    }

    /// The SEND of its capsule completed.
    pub fn sent(&mut self, command: Handle) -> Option<Completed> {
        self.slots.get_mut(usize::from(command.0)).filter(|slot| slot.out)?.sent = true;
        self.ended(command.0)
    }

    /// Takes a response.
    ///
    /// # Errors
    /// It is none, or of a command that isn't out.
    pub fn came(&mut self, response: &[u8]) -> Result<Option<Completed>, Fatal> {
        let cqe = Cqe::read_from_bytes(response).map_err(|_| broken("a response has another length"))?;
        let cid = cqe.cid.get();
        let slot = self.slots.get_mut(usize::from(cid)).filter(|slot| slot.out && slot.answer.is_none());
        slot.ok_or(broken("a response is of a command that isn't out"))?.answer = Some(cqe);
        Ok(self.ended(cid))
    }

    fn ended(&mut self, cid: u16) -> Option<Completed> {
        let slot = &mut self.slots[usize::from(cid)];
        let cqe = slot.answer.filter(|_| slot.sent)?;
        let wanted = std::mem::take(slot).wanted;
        self.free.push(cid);
        let received = if cqe.status().is_success() { wanted } else { 0 };
        Some(Completed { command: Handle(cid), cqe, received })
    }

    /// Commands that are out.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

fn broken(what: &'static str) -> Fatal {
    Fatal { status: FatalStatus::SequenceError, field: 0, what, by_peer: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Code, Status};
    use zerocopy::IntoBytes;

    fn response(cid: u16, status: Status) -> Cqe {
        Cqe::new(cid, status, 0)
    }

    // promise: RHO-9
    #[test]
    fn a_command_is_over_with_its_send_and_its_response_in_either_order() {
        let mut end = HostEnd::new(2);
        let (first, second) = (end.take(512).unwrap(), end.take(4096).unwrap());
        assert_eq!((end.take(1), end.in_flight()), (None, 2));
        assert_eq!(end.sent(first), None);
        let good = response(first.0, Status::SUCCESS);
        let over = end.came(good.as_bytes()).unwrap();
        assert_eq!(over, Some(Completed { command: first, cqe: good, received: 512 }));
        let bad = response(second.0, Status::fatal(Code::INVALID_FIELD));
        assert_eq!(end.came(bad.as_bytes()), Ok(None), "its capsule is the card's until it is sent");
        assert_eq!(end.sent(second), Some(Completed { command: second, cqe: bad, received: 0 }));
        assert_eq!(end.in_flight(), 0);
    }

    // promise: RHO-9
    #[test]
    fn responses_of_no_command_are_refused() {
        let mut end = HostEnd::new(2);
        let command = end.take(0).unwrap();
        let answer = response(command.0, Status::SUCCESS);
        assert!(end.came(&answer.as_bytes()[..15]).is_err(), "short");
        assert!(end.came(&[answer.as_bytes(), &[0]].concat()).is_err(), "long");
        assert!(end.came(response(1, Status::SUCCESS).as_bytes()).is_err(), "not out");
        assert!(end.came(response(u16::MAX, Status::SUCCESS).as_bytes()).is_err(), "no such command");
        assert_eq!(end.came(answer.as_bytes()), Ok(None));
        assert!(end.came(answer.as_bytes()).is_err(), "answered twice");
        end.give_back(command);
        assert!(end.came(answer.as_bytes()).is_err(), "given back");
        assert_eq!((end.sent(command), end.in_flight()), (None, 0));
    }
}
