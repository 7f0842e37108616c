//! Abort of an I/O command: from the admin queue's thread to the one that has the command, and back.
//!
//! A command that waits for its turn or for its data ends at once. One that the source is at ends when the source lets
//! go of its memory, or as it would have. The Abort is answered when its command is.

use super::command::State;
use super::connection::{Connection, Role};
use super::inbox::Message;
use super::shared::{ConnectionId, ControllerEntry};
use super::worker::Worker;
use crate::namespace::lane::Owner;
use forebay_io::queue::Fault;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::Handle;
use std::sync::Arc;

impl Connection {
    /// An Abort asks for its end.
    pub(super) fn is_given_up(&self, at: Handle) -> bool {
        self.aborts.iter().any(|(given_up, _)| *given_up == at)
    }
}

impl Worker {
    /// On the admin queue's thread: whoever has the I/O queue is told.
    pub(super) fn ask_to_abort(&self, entry: &Arc<ControllerEntry>, tag: u16, sqid: u16, cid: u16) {
        let id = entry.queues().get(&sqid).copied();
        match id {
            Some(id) => {
                let message = Message::Abort { id, entry: entry.clone(), cid, tag };
                self.shared.inboxes()[id.thread].post(message);
            }
            None => entry.controller().aborted(tag, false),
        }
    }

    /// On the I/O queue's thread.
    pub(super) fn abort_at(&mut self, id: ConnectionId, entry: &ControllerEntry, cid: u16, tag: u16) {
        let mut found = false;
        self.with_id(id, |worker, c| found = worker.abort(c, cid, tag));
        if !found {
            self.aborted(entry, tag, false);
        }
    }

    fn aborted(&self, entry: &ControllerEntry, tag: u16, aborted: bool) {
        entry.controller().aborted(tag, aborted);
        self.shared.inboxes()[entry.admin.thread].post(Message::Effects(entry.admin));
    }

    /// False: no command with that identifier is under way, or its answer is.
    fn abort(&mut self, c: &mut Connection, cid: u16, tag: u16) -> bool {
        if let Some(stuck) = c.stuck.take_if(|stuck| stuck.sqe.cid.get() == cid) {
            c.aborts.push((stuck.command, tag));
            self.give_up(c, stuck.command);
            // What came behind it goes on.
            self.touch_this(c);
            return true;
        }
        let waits = |state| matches!(state, State::Collecting | State::Waiting | State::Running);
        let is_it = |(_, command): &(u16, &super::command::Command)| {
            command.sqe.cid.get() == cid && waits(command.state)
        };
        let Some((at, command)) = (0..).zip(&c.commands).find(is_it) else { return false };
        let (at, state) = (Handle(at), command.state);
        c.aborts.push((at, tag));
        match state {
            State::Running => self.cancel(c, at),
            // The kernel may be about to write there: what it brings ends it.
            State::Collecting if c.link.receives_into(at) => {}
            _ => self.give_up(c, at),
        }
        true
    }

    /// Asks the source to let go of it.
    fn cancel(&mut self, c: &mut Connection, at: Handle) {
        let whose = Owner { connection: c.id.index, command: at };
        let Some(lane) = self.lanes[c.command(at).io.lane as usize].as_mut() else { return };
        for owner in lane.abandon(|owner| *owner == whose, &mut self.reactor) {
            self.moved(c, owner.command, Err(Fault::errno(libc::ECANCELED)));
        }
    }

    /// Some of its data came: the rest is not waited for.
    pub(super) fn leave_rest(&mut self, c: &mut Connection, at: Handle) {
        if !c.aborts.is_empty() && c.is_given_up(at) && c.command(at).state == State::Collecting {
            self.give_up(c, at);
        }
    }

    /// Completes a command that nobody moves bytes of any more.
    pub(super) fn give_up(&mut self, c: &mut Connection, at: Handle) {
        match c.command(at).state {
            State::Collecting => c.collecting -= 1,
            State::Waiting => c.waiting.retain(|waiting| *waiting != at),
            _ => {}
        }
        self.finish(c, at, Status::again(Code::ABORT_REQUESTED));
    }

    /// Says what became of the commands that Aborts asked for.
    pub(super) fn answer_aborts(&self, c: &mut Connection, whose: impl Fn(Handle) -> bool, aborted: bool) {
        let Role::Io { entry, .. } = c.role.clone() else { return };
        c.aborts.retain(|(at, tag)| {
            let over = whose(*at);
            if over {
                self.aborted(&entry, *tag, aborted);
            }
            !over
        });
    }
}
