//! The command executor: it takes an I/O command from one step on the source of its namespace to the next, until it is
//! over. What a command came by is its frontend: a connection of a target, a function of a gateway, a hardware queue of a
//! block device. The frontend checks the command, lends the memory of its data and takes its completion; the thread that
//! has both tells the executor when the source is done with a step.

use super::namespace_queue::NamespaceQueue;
use super::stats::Counters;
use super::steps::{next, After, Flush, Next, Places, Progress, FLUSH};
use forebay_io::{Fault, Reactor};
use forebay_nvme::nvm::{Op, Request, Transfer};
use forebay_nvme::status::Status;

/// A command in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Command {
    /// None: it isn't checked yet, or is no I/O command.
    pub request: Option<Request>,
    pub progress: Progress,
    /// Number of its namespace's queue.
    pub queue: u32,
    /// Flush of all namespaces: the last one that was flushed, 0 before the first.
    flushed_nsid: Option<u32>,
    /// ns since the server began.
    pub began_ns: u64,
}

impl Command {
    /// One that was checked as it came.
    pub(crate) fn checked(request: Request) -> Command {
        Command { request: Some(request), ..Command::default() }
    }

    /// One that came now, in the place of another.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        *self = Command { queue: self.queue, began_ns: now_ns, ..Command::default() };
    }

    /// Makes it a Flush of all namespaces.
    pub(crate) fn flush_everything(&mut self) {
        let everything = Request { op: Op::Flush, offset: 0, bytes: 0, fua: true, transfer: Transfer::None };
        (self.request, self.flushed_nsid) = (Some(everything), Some(0));
    }

    /// Counts its end with its namespace, and with its queue where that is still there.
    pub(crate) fn count<O: Copy>(
        &self,
        queues: &mut [Option<NamespaceQueue<O>>],
        queue: Option<Counters<'_>>,
        status: Status,
        now_ns: u64,
    ) {
        let namespace_queue = self.request.and(queues.get_mut(self.queue as usize)).and_then(Option::as_mut);
        if !status.is_success() {
            if let Some(namespace_queue) = namespace_queue {
                namespace_queue.counts.count_failed(status);
            }
            if let Some(queue) = queue {
                queue.counts.count_failed(status);
            }
            return;
        }
        let Some((request, namespace_queue)) = self.request.zip(namespace_queue) else { return };
        let ns = now_ns.saturating_sub(self.began_ns);
        namespace_queue.counters().done(&request, ns);
        if let Some(queue) = queue {
            queue.done(&request, ns);
        }
    }
}

/// All that a step of a command needs.
pub(crate) struct Work<'a, O, M> {
    pub owner: O,
    pub command: &'a mut Command,
    pub memory: M,
    pub queue: &'a mut NamespaceQueue<O>,
    pub reactor: &'a mut Reactor,
    /// Writes may be completed before they are durable.
    pub write_cache: bool,
}

impl<O: Copy, M: Places> Work<'_, O, M> {
    /// Hands the next step to the source. Some: there is none, and the command ended so.
    fn go_on(self) -> Option<Status> {
        let Work { owner, command, memory, queue, reactor, write_cache } = self;
        let request = command.request.expect("only checked commands run");
        match next(&request, &command.progress, &memory, &queue.bounds(), write_cache) {
            Next::Step(step) => {
                if step.op == forebay_io::Op::Flush {
                    command.progress.flush = Flush::Begun;
                }
                queue.start(owner, step, reactor);
                None
            }
            Next::Done(status) => Some(status),
        }
    }
}

/// A command with the frontend that it came by, and the thread that carries it out.
///
/// The contract: between `proceed` and the completion, `work` finds the command's request, its queue and its memory
/// unchanged, but for what `moved` is told; after `complete` the executor touches the command no more.
pub(crate) trait Frontend {
    /// The command's name at its queue.
    type Owner: Copy;
    type Memory<'a>: Places
    where
        Self: 'a;
    /// How a command ends, as the frontend says it.
    type End: From<Status>;

    fn command(&mut self) -> &mut Command;

    /// Lends what the next step needs.
    fn work(&mut self) -> Work<'_, Self::Owner, Self::Memory<'_>>;

    /// The first namespace after `nsid` that holds what isn't durable.
    fn next_cached(&self, nsid: u32) -> Option<u32>;

    /// The thread's queue of a namespace, opened if it isn't. None: there is no such namespace.
    fn queue(&mut self, nsid: u32) -> Result<Option<u32>, Status>;

    /// Asked when a step was cancelled, or another would follow: how a command ends that somebody gave up. None: nobody
    /// did.
    fn given_up(&mut self) -> Option<Self::End>;

    /// The source failed: it is noted, and named.
    fn failed(&mut self, request: &Request, fault: &Fault) -> Self::End;

    /// The command is over.
    fn complete(&mut self, end: Self::End);
}

/// The next step, or the end.
pub(crate) fn proceed<F: Frontend>(frontend: &mut F) {
    if flushes_everything(frontend) {
        return;
    }
    if let Some(status) = frontend.work().go_on() {
        frontend.complete(status.into());
    }
}

/// Flush of all namespaces: one after the other.
fn flushes_everything<F: Frontend>(frontend: &mut F) -> bool {
    let Some(last) = frontend.command().flushed_nsid else { return false };
    let Some(nsid) = frontend.next_cached(last) else {
        frontend.complete(Status::SUCCESS.into());
        return true;
    };
    match frontend.queue(nsid) {
        Ok(Some(number)) => {
            let command = frontend.command();
            (command.flushed_nsid, command.queue, command.progress.flush) =
                (Some(nsid), number, Flush::Begun);
            let Work { owner, queue, reactor, .. } = frontend.work();
            queue.start(owner, FLUSH, reactor);
        }
        Ok(None) => frontend.complete(Status::SUCCESS.into()),
        Err(status) => frontend.complete(status.into()),
    }
    true
}

/// The source is done with a step.
pub(crate) fn moved<F: Frontend>(frontend: &mut F, result: Result<u32, Fault>) {
    let cancelled = matches!(&result, Err(fault) if fault.errno == libc::ECANCELED);
    let command = frontend.command();
    let request = command.request.expect("only checked commands run");
    let after = command.progress.moved(&request, result);
    let goes_on = matches!(after, After::Next) && command.progress.moved < request.bytes;
    if cancelled || goes_on {
        if let Some(end) = frontend.given_up() {
            return frontend.complete(end);
        }
    }
    match after {
        After::Next => proceed(frontend),
        After::Done => frontend.complete(Status::SUCCESS.into()),
        After::Failed(fault) => {
            let end = frontend.failed(&request, &fault);
            frontend.complete(end);
        }
    }
}
