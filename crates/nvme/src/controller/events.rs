//! Asynchronous events (base, section 5.2): outstanding requests, and their completions.
//!
//! Once reported, an event is masked until the host has read its log page with
//! RAE cleared: what happens in between shows in that log.

use super::{Answer, Controller, Effect};
use crate::command::{Cqe, Sqe};
use crate::feature::{event_mask, event_type, AsyncEvent};
use crate::log::lid;
use crate::status::{Code, Status};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// SMART/Health events (base, figure 147): the critical warnings that each stands for, and its information.
const HEALTH_EVENTS: [(u8, AsyncEvent); 3] =
    [(0b0011_1100, health(0x00)), (0b0000_0010, health(0x01)), (0b0000_0001, health(0x02))];
/// Critical warnings that may be reported: bits of the Asynchronous Event Configuration.
pub(super) const HEALTH_WARNINGS: u32 = 0b0011_1111;

const fn health(information: u8) -> AsyncEvent {
    AsyncEvent { kind: event_type::SMART, information, lid: lid::SMART }
}

/// Bits of the Asynchronous Event Configuration of which one must be set for the event to be reported.
fn enabled_by(event: AsyncEvent) -> u32 {
    match event {
        AsyncEvent::NAMESPACE_CHANGED => event_mask::NAMESPACE_ATTRIBUTES,
        AsyncEvent::ANA_CHANGED => event_mask::ANA_CHANGE,
        AsyncEvent::DISCOVERY_CHANGED => event_mask::DISCOVERY_CHANGE,
        _ => HEALTH_EVENTS.iter().find(|(_, e)| *e == event).map_or(0, |(warnings, _)| (*warnings).into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parked {
    pub tag: u16,
    pub cid: u16,
}

impl Parked {
    pub(super) fn answer(self, status: Status, result: u64) -> Effect {
        Effect::Complete { tag: self.tag, cqe: Cqe::new(self.cid, status, result) }
    }
}

/// Requests and events of one controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Events {
    parked: VecDeque<Parked>,
    /// Happened, and no request was there to tell of it. Each at most once.
    waiting: VecDeque<AsyncEvent>,
    /// Told of, and the log page not read since.
    masked: Vec<AsyncEvent>,
}

impl Events {
    /// Tag and identifier of each parked request.
    pub(super) fn parked(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.parked.iter().map(|request| (request.tag, request.cid))
    }

    /// Takes all parked requests, and forgets all events.
    pub(super) fn drain(&mut self) -> std::collections::vec_deque::Drain<'_, Parked> {
        self.waiting.clear();
        self.masked.clear();
        self.parked.drain(..)
    }

    /// The log page was read, RAE cleared.
    pub(super) fn log_was_read(&mut self, lid: u8) {
        self.masked.retain(|event| event.lid != lid);
        self.waiting.retain(|event| event.lid != lid);
    }

    /// The next event that has a request to answer.
    fn pair(&mut self) -> Option<Effect> {
        let request = *self.parked.front()?;
        let event = self.waiting.pop_front()?;
        self.parked.pop_front();
        self.masked.push(event);
        Some(request.answer(Status::SUCCESS, event.to_result()))
    }
}

impl Controller {
    pub(super) fn async_event_request(&mut self, tag: u16, sqe: &Sqe) -> Answer {
        if self.events.parked.len() >= usize::from(self.subsystem.limits.async_events.max(1)) {
            return Answer::Complete(Cqe::new(sqe.cid.get(), Status::fatal(Code::ASYNC_EVENT_LIMIT), 0));
        }
        self.events.parked.push_back(Parked { tag, cid: sqe.cid.get() });
        self.pair_events();
        Answer::Parked
    }

    /// Abort of an Asynchronous Event Request; false: none has that command identifier.
    pub(super) fn abort_event_request(&mut self, cid: u16) -> bool {
        let Some(at) = self.events.parked.iter().position(|request| request.cid == cid) else {
            return false;
        };
        let request = self.events.parked.remove(at);
        self.effects.extend(request.map(|r| r.answer(Status::again(Code::ABORT_REQUESTED), 0)));
        true
    }

    /// Tells the host, or keeps it for its next request. What it hasn't asked to hear of is forgotten.
    pub(super) fn raise(&mut self, event: AsyncEvent) {
        // Errors are always told of.
        let asked = self.features.async_events & enabled_by(event) != 0;
        let wanted = asked || event.kind == event_type::ERROR;
        if wanted && !self.events.masked.contains(&event) && !self.events.waiting.contains(&event) {
            self.events.waiting.push_back(event);
            self.pair_events();
        }
    }

    /// Events of critical warnings that are new and asked for.
    pub(super) fn raise_warnings(&mut self, old: u8, new: u8) {
        let fresh = u32::from(new & !old) & self.features.async_events;
        for (warnings, event) in HEALTH_EVENTS {
            if fresh & u32::from(warnings) != 0 {
                self.raise(event);
            }
        }
    }

    /// Nothing happens any more for a host that has shut its controller down.
    fn pair_events(&mut self) {
        if self.status.shutdown() != 0 {
            return;
        }
        while let Some(effect) = self.events.pair() {
            self.effects.push_back(effect);
        }
    }
}
