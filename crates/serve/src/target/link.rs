//! Transport of a connection's commands: TCP, or RDMA. All else that serves them doesn't know which.

use super::rdma::Rdma;
use forebay_io::{Mem, Reactor, RingCompletion, Stream, StreamReceived};
use forebay_nvme::command::Cqe;
use forebay_nvme::transport::tcp::target::{Event, TargetEnd};
use forebay_nvme::transport::tcp::{Fatal, Handle, PayloadPlace};
use std::io;

pub(super) enum Link {
    Tcp(Stream<TargetEnd>),
    Rdma(Box<Rdma>),
}

macro_rules! either {
    ($self:ident, $tcp:ident => $by_tcp:expr, $rdma:ident => $by_rdma:expr) => {
        match $self {
            Link::Tcp($tcp) => $by_tcp,
            Link::Rdma($rdma) => $by_rdma,
        }
    };
}

impl Link {
    /// Hosts name their memory by keys.
    pub(super) fn is_keyed(&self) -> bool {
        matches!(self, Link::Rdma(_))
    }

    /// It sends from wherever bytes lie. A card wants memory that is registered with it, and pins that for writing,
    /// which pages of files are not.
    pub(super) fn sends_from_anywhere(&self) -> bool {
        matches!(self, Link::Tcp(_))
    }

    #[inline]
    pub(super) fn completed(&mut self, completion: RingCompletion) {
        either!(self, tcp => tcp.completed(completion), rdma => rdma.completed(completion));
    }

    /// Takes what has come; then `next` until it has no more.
    #[inline]
    pub(super) fn receive(
        &mut self,
        reactor: &mut Reactor,
        at: &impl Fn(PayloadPlace) -> Mem,
    ) -> io::Result<StreamReceived> {
        either!(self, tcp => tcp.receive(reactor, at), rdma => rdma.receive(reactor))
    }

    /// `send` has something to do that nobody asked for by `complete` and the like.
    #[inline]
    pub(super) fn is_owed(&self) -> bool {
        either!(self, _tcp => false, rdma => rdma.is_owed())
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Event<'_>>, Fatal> {
        either!(self, tcp => tcp.end().next(), rdma => rdma.next())
    }

    /// On Connect, before it is completed.
    pub(super) fn set_depth(&mut self, entries: u16, flow_control: bool) {
        either!(self, tcp => tcp.end().set_depth(entries, flow_control), rdma => rdma.end.set_depth(entries, flow_control));
    }

    /// Asks for a command's data.
    #[inline]
    pub(super) fn request(&mut self, command: Handle, bytes: u32) {
        either!(self, tcp => tcp.end().request(command, bytes), rdma => rdma.end.request(command, bytes));
    }

    /// Sends a command's data and completes it; its memory is free when `take_released` names it.
    #[inline]
    pub(super) fn answer(&mut self, command: Handle, bytes: u32, cqe: Cqe) {
        either!(self, tcp => tcp.end().send(command, bytes, cqe), rdma => rdma.end.send(command, bytes, cqe));
    }

    #[inline]
    pub(super) fn complete(&mut self, command: Handle, cqe: Cqe) {
        either!(self, tcp => tcp.end().complete(command, cqe), rdma => rdma.end.complete(command, cqe));
    }

    /// An Asynchronous Event Request is kept until there is an event.
    pub(super) fn keep_event_request(&mut self, command: Handle) {
        either!(self, tcp => tcp.end().keep_event_request(command), rdma => rdma.end.keep_event_request(command));
    }

    #[inline]
    pub(super) fn send(&mut self, reactor: &mut Reactor, at: &impl Fn(PayloadPlace) -> Mem) {
        either!(self, tcp => tcp.send(reactor, at), rdma => rdma.send(at));
    }

    #[inline]
    pub(super) fn take_released(&mut self, into: &mut Vec<Handle>) {
        either!(self, tcp => tcp.take_released(into), rdma => rdma.end.take_released(into));
    }

    /// Something may be writing to that command's memory.
    pub(super) fn receives_into(&self, command: Handle) -> bool {
        either!(self, tcp => tcp.receives_into(command), rdma => rdma.end.receives_into(command))
    }

    #[inline]
    pub(super) fn is_sent(&self) -> bool {
        either!(self, tcp => tcp.is_sent(), rdma => rdma.end.is_sent())
    }

    pub(super) fn close(&mut self, reactor: &mut Reactor) {
        either!(self, tcp => tcp.close(reactor), rdma => rdma.close(reactor));
    }

    /// Once closed: the memory of its commands is free.
    pub(super) fn is_quiet(&self) -> bool {
        either!(self, tcp => tcp.is_quiet(), rdma => rdma.is_quiet())
    }
}
