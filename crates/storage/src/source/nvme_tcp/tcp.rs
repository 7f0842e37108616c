//! One queue's TCP connection.

use super::report::{Broken, Report};
use super::tls::Tls;
use forebay_io::{
    fill_memory, stream_digest, Mem, Reactor, RingCompletion, Stream, StreamOptions, StreamReceived,
};
use forebay_nvme::command::Sqe;
use forebay_nvme::transport::tcp::host::{Busy, Data, Event, HostEnd, Options};
use forebay_nvme::transport::tcp::{Fatal, FatalStatus, Handle, PayloadPlace};
use std::io;
use std::net::SocketAddr;

/// Data that a capsule of a Fabrics or admin command carries on NVMe/TCP (tcp, section 3.3.2.2), bytes.
const ADMIN_IN_CAPSULE: u32 = 8192;

/// Memory lent to one command in flight, by its handle.
#[derive(Clone, Copy)]
struct Lent {
    mem: Mem,
    copied: bool,
}

const IDLE: Lent = Lent { mem: Mem::None, copied: false };

pub(super) struct Tcp {
    stream: Stream<HostEnd>,
    wanted: Options,
    lent: Vec<Lent>,
    data_digest: bool,
    /// A thread of ours between here and the controller copies all that passes.
    sealed: bool,
    /// CRC32C of what came of the data PDU that is coming.
    crc: u32,
    /// Completed, while the list that holds their data is being sent; and those whose list is sent by now.
    late: Vec<(Handle, Report)>,
    due: Vec<(Handle, Report)>,
    ready: bool,
}

impl Tcp {
    pub(crate) fn open(
        to: SocketAddr,
        options: Options,
        token: u32,
        index: u32,
        tls: Option<&Tls>,
        reactor: &mut Reactor,
    ) -> io::Result<Tcp> {
        let mut end = HostEnd::new(options);
        end.set_in_capsule_max(ADMIN_IN_CAPSULE);
        let stream = match tls {
            Some(tls) => Stream::new(tls.connect(to)?, end, token, index, StreamOptions::default())?,
            None => Stream::connect(to, end, token, index, StreamOptions::default(), reactor)?,
        };
        let mut connection = Tcp {
            stream,
            wanted: options,
            lent: vec![IDLE; 2 * usize::from(options.depth)],
            data_digest: false,
            sealed: tls.is_some(),
            crc: 0,
            late: Vec::new(),
            due: Vec::new(),
            ready: false,
        };
        if tls.is_some() {
            // Nothing completes to begin with on a socket that stands already. An error comes again with the next call.
            let _ = connection.drive(reactor, &mut Vec::new());
        }
        Ok(connection)
    }

    /// For commands after Connect on an I/O queue.
    pub(crate) fn set_in_capsule_max(&mut self, bytes: u32) {
        self.stream.end().set_in_capsule_max(bytes);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Queues a command; `send` or `drive` starts it. `mem` is the connection's until it is reported as completed,
    /// or until the connection was closed and is quiet.
    pub(crate) fn submit(&mut self, sqe: Sqe, data: Data, mem: Mem) -> Result<Handle, Busy> {
        let handle = self.stream.end().submit(sqe, data)?;
        self.lent[usize::from(handle.0)] = Lent { mem, copied: self.sealed };
        Ok(handle)
    }

    /// The identifier that a command in flight has on the wire.
    pub(crate) fn cid(&mut self, command: Handle) -> u16 {
        self.stream.end().cid(command)
    }

    pub(crate) fn send(&mut self, reactor: &mut Reactor) {
        // Before the next list is begun.
        if self.stream.is_sent() {
            self.due.append(&mut self.late);
        }
        let lent = &self.lent;
        self.stream.send(reactor, &|place| at(lent, place));
    }

    pub(crate) fn completed(&mut self, completion: RingCompletion) {
        self.stream.completed(completion);
    }

    /// Takes all that has come, and sends what there is to send.
    pub(crate) fn drive(&mut self, reactor: &mut Reactor, reports: &mut Vec<Report>) -> Result<(), Broken> {
        loop {
            let lent = &self.lent;
            match self.stream.receive(reactor, &|place| at(lent, place))? {
                StreamReceived::Some => self.events(reactor, reports)?,
                StreamReceived::Later => break,
                // What was answered before is reported before: the send in flight ends soon, and this comes again.
                StreamReceived::Ended if !self.late.is_empty() && !self.stream.is_sent() => break,
                StreamReceived::Ended => {
                    self.due.append(&mut self.late);
                    self.report_due(reports);
                    return Err(Broken("the controller closed the connection".into()));
                }
            }
        }
        self.send(reactor);
        self.report_due(reports);
        Ok(())
    }

    fn report_due(&mut self, reports: &mut Vec<Report>) {
        for (command, report) in self.due.drain(..) {
            self.stream.end().release(command);
            reports.push(report);
        }
    }

    fn events(&mut self, reactor: &mut Reactor, reports: &mut Vec<Report>) -> Result<(), Broken> {
        loop {
            match self.event(reports) {
                Ok(Some(command)) => self.stream.end().digest_failed(command),
                Ok(None) => {}
                Err(None) => return Ok(()),
                Err(Some(fatal)) => {
                    // It says so to the controller before it ends.
                    self.send(reactor);
                    reactor.flush();
                    return Err(Broken(fatal.to_string()));
                }
            }
        }
    }

    /// One event; the command whose data came with another digest than they have. Err: there is no event, or the
    /// connection can't go on.
    fn event(&mut self, reports: &mut Vec<Report>) -> Result<Option<Handle>, Option<Fatal>> {
        let Tcp { stream, lent, wanted, data_digest, crc, late, ready, .. } = self;
        match stream.end().next().map_err(Some)?.ok_or(None)? {
            Event::Ready { header_digest, data_digest: found, .. } => {
                if wanted.header_digest && !header_digest || wanted.data_digest && !found {
                    return Err(Some(no_digests()));
                }
                (*ready, *data_digest) = (true, found);
                if found {
                    stream.set_digested();
                }
                reports.push(Report::Ready);
            }
            Event::Placed(place) => {
                if *data_digest {
                    *crc = stream_digest(*crc, at(lent, place), place.len);
                }
            }
            Event::Copy { place, bytes } => {
                let mem = at(lent, place);
                fill_memory(mem, bytes);
                lent[usize::from(place.command.0)].copied = true;
                if *data_digest {
                    *crc = stream_digest(*crc, mem, place.len);
                }
            }
            Event::DataEnd { place, digest } => {
                let found = std::mem::take(crc);
                return Ok((found != digest).then_some(place.command));
            }
            Event::Completed { command, cqe, received, held } => {
                let copied = lent[usize::from(command.0)].copied;
                let report = Report::Completed { command, cqe, received, copied };
                match held {
                    true => late.push((command, report)),
                    false => reports.push(report),
                }
            }
        }
        Ok(None)
    }

    /// Ends the connection: commands in flight are never reported.
    pub(crate) fn close(&mut self, reactor: &mut Reactor) {
        self.stream.close(reactor);
    }

    /// Once closed: the memory of its commands is free.
    pub(crate) fn is_quiet(&self) -> bool {
        self.stream.is_quiet()
    }
}

fn at(lent: &[Lent], place: PayloadPlace) -> Mem {
    lent[usize::from(place.command.0)].mem.after(place.offset as usize)
}

fn no_digests() -> Fatal {
    Fatal {
        status: FatalStatus::UnsupportedParameter,
        field: 11,
        what: "the controller doesn't support the digests that were requested",
        by_peer: true,
    }
}
