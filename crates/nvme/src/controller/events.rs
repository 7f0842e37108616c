//! Asynchronous events (base, section 5.2): outstanding requests, and their completions.
//!
//! Once reported, an event is masked until the host has read its log page with
//! RAE cleared: what happens in between shows in that log.

use super::association::Association;
use super::Effect;
use crate::command::Cqe;
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

/// Bits of the Asynchronous Event Configuration that an NVM subsystem's controller takes.
const NVM_EVENTS: u32 = event_mask::NAMESPACE_ATTRIBUTES | event_mask::ANA_CHANGE | HEALTH_WARNINGS;
const DISCOVERY_EVENTS: u32 = event_mask::DISCOVERY_CHANGE;

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

/// Events that a host may ask to hear of: bits of the Asynchronous Event Configuration.
pub(super) fn events_of(of: &Association) -> u32 {
    if of.subsystem.is_discovery() {
        DISCOVERY_EVENTS
    } else {
        nvm_events(of)
    }
}

/// A function is the only way to its namespaces: there is no ANA.
fn nvm_events(of: &Association) -> u32 {
    NVM_EVENTS & if of.is_pcie() { !event_mask::ANA_CHANGE } else { u32::MAX }
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

    /// A request, of which there may be `most` at once.
    pub(super) fn park(&mut self, request: Parked, most: u8) -> Result<(), Code> {
        if self.parked.len() >= usize::from(most.max(1)) {
            return Err(Code::ASYNC_EVENT_LIMIT);
        }
        self.parked.push_back(request);
        Ok(())
    }

    /// Abort of a request; None: none has that command identifier.
    pub(super) fn abort(&mut self, cid: u16) -> Option<Effect> {
        let at = self.parked.iter().position(|request| request.cid == cid)?;
        let request = self.parked.remove(at)?;
        Some(request.answer(Status::again(Code::ABORT_REQUESTED), 0))
    }

    /// An event has happened, to a host that asked to hear of `enabled`. What it hasn't asked to hear of is forgotten.
    pub(super) fn raise(&mut self, event: AsyncEvent, enabled: u32) {
        // Errors are always told of.
        let wanted = enabled & enabled_by(event) != 0 || event.kind == event_type::ERROR;
        if wanted && !self.masked.contains(&event) && !self.waiting.contains(&event) {
            self.waiting.push_back(event);
        }
    }

    /// Critical warnings are `new` where they were `old`: those that are new and asked for are events.
    pub(super) fn raise_warnings(&mut self, old: u8, new: u8, enabled: u32) {
        let fresh = u32::from(new & !old) & enabled;
        for (warnings, event) in HEALTH_EVENTS {
            if fresh & u32::from(warnings) != 0 {
                self.raise(event, enabled);
            }
        }
    }

    /// The next event that has a request to answer: to be told.
    pub(super) fn pair(&mut self) -> Option<Effect> {
        let request = *self.parked.front()?;
        let event = self.waiting.pop_front()?;
        self.parked.pop_front();
        self.masked.push(event);
        Some(request.answer(Status::SUCCESS, event.to_result()))
    }
}
