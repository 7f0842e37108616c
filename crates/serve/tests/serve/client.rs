//! A plain host: one thread, blocking sockets, the protocol crate's host end.

use forebay_nvme::command::{Cqe, Sqe};
use forebay_nvme::fabrics::{Cc, Connect, ConnectData, Property, PropertySet, CNTLID_DYNAMIC};
use forebay_nvme::nqn::Nqn;
use forebay_nvme::status::Code;
use forebay_nvme::transport::tcp::host::{Data, Event, HostEnd, Options};
use forebay_nvme::transport::tcp::{Handle, Outgoing, Segment};
use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use zerocopy::IntoBytes;

pub(crate) const HOST: &str = "nqn.2026-11.io.example:host";
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.io.example:a";
const IN_CAPSULE: u32 = 16 << 10;

/// One connection: one queue.
pub(crate) struct Queue {
    pub socket: TcpStream,
    end: HostEnd,
    data: HashMap<Handle, Vec<u8>>,
    done: HashMap<Handle, (Cqe, Vec<u8>)>,
    ready: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Digests(pub bool, pub bool);

impl Queue {
    pub(crate) fn open(to: SocketAddr, depth: u16, digests: Digests) -> Queue {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let options =
            Options { header_digest: digests.0, data_digest: digests.1, depth, r2ts: 1, bulk: 4096 };
        let mut end = HostEnd::new(options);
        end.set_in_capsule_max(8192);
        let mut queue = Queue { socket, end, data: HashMap::new(), done: HashMap::new(), ready: false };
        while !queue.ready {
            queue.turn().unwrap();
        }
        queue
    }

    pub(crate) fn submit(&mut self, sqe: Sqe, data: Data, payload: Vec<u8>) -> Handle {
        let room = match data {
            Data::In { len } => vec![0xee; len as usize],
            _ => payload,
        };
        let handle = self.end.submit(sqe, data).unwrap();
        self.data.insert(handle, room);
        handle
    }

    pub(crate) fn wait(&mut self, handle: Handle) -> (Cqe, Vec<u8>) {
        loop {
            if let Some(done) = self.done.remove(&handle) {
                return done;
            }
            self.turn().unwrap();
        }
    }

    pub(crate) fn call(&mut self, sqe: Sqe, data: Data, payload: Vec<u8>) -> (Cqe, Vec<u8>) {
        let handle = self.submit(sqe, data, payload);
        self.wait(handle)
    }

    pub(crate) fn code(&mut self, sqe: Sqe, data: Data, payload: Vec<u8>) -> Code {
        self.call(sqe, data, payload).0.status().code
    }

    /// The identifier that a command in flight has on the wire.
    pub(crate) fn cid(&self, handle: Handle) -> u16 {
        self.end.cid(handle)
    }

    /// Sends all that is to be sent.
    pub(crate) fn push(&mut self) -> std::io::Result<()> {
        let wire = self.wire();
        self.push_raw(&wire)
    }

    pub(crate) fn push_raw(&mut self, wire: &[u8]) -> std::io::Result<()> {
        self.socket.write_vectored(&[IoSlice::new(wire)]).and_then(|n| self.socket.write_all(&wire[n..]))
    }

    /// Sends a write, and half of the data that R2T then asks for. Returns the other half.
    pub(crate) fn push_half(&mut self, write: Handle) -> Vec<u8> {
        self.push().unwrap();
        assert!(self.data.contains_key(&write));
        loop {
            let n = self.socket.read(self.end.expect().own).unwrap();
            self.end.received(n);
            assert_eq!(self.end.next().unwrap(), None, "it asks for the data, and says nothing else");
            let wire = self.wire();
            if !wire.is_empty() {
                let (begin, rest) = wire.split_at(wire.len() / 2);
                self.push_raw(begin).unwrap();
                return rest.to_vec();
            }
        }
    }

    fn wire(&mut self) -> Vec<u8> {
        let mut out = Outgoing::default();
        self.end.take_outgoing(&mut out);
        let (mut wire, mut crc) = (Vec::new(), 0);
        for segment in &out.segments {
            match *segment {
                Segment::Bytes { start, end } => {
                    crc = 0;
                    wire.extend_from_slice(&out.bytes[start..end]);
                }
                Segment::Payload { command, offset, len } => {
                    let bytes = &self.data[&command][offset as usize..(offset + len) as usize];
                    crc = crc32c::crc32c_append(crc, bytes);
                    wire.extend_from_slice(bytes);
                }
                Segment::Digest => wire.extend_from_slice(&crc.to_le_bytes()),
                Segment::Release { .. } => {}
            }
        }
        wire
    }

    /// Sends, receives once, and books what came.
    pub(crate) fn turn(&mut self) -> std::io::Result<()> {
        self.push()?;
        let expect = self.end.expect();
        let place = expect.payload;
        let n = match place {
            Some(at) => {
                let room = self.data.get_mut(&at.command).unwrap();
                let room = &mut room[at.offset as usize..(at.offset + at.len) as usize];
                self.socket.read_vectored(&mut [IoSliceMut::new(room), IoSliceMut::new(expect.own)])?
            }
            None => self.socket.read(expect.own)?,
        };
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.end.received(n);
        loop {
            let wrong = match self.end.next() {
                Err(fatal) => return Err(std::io::Error::other(fatal.to_string())),
                Ok(None) => return Ok(()),
                Ok(Some(Event::Ready { .. })) => {
                    self.ready = true;
                    None
                }
                Ok(Some(Event::Placed(_))) => None,
                Ok(Some(Event::Copy { place, bytes })) => {
                    let room = self.data.get_mut(&place.command).unwrap();
                    room[place.offset as usize..][..bytes.len()].copy_from_slice(bytes);
                    None
                }
                Ok(Some(Event::DataEnd { place, digest })) => {
                    let bytes = &self.data[&place.command][place.offset as usize..][..place.len as usize];
                    (crc32c::crc32c(bytes) != digest).then_some(place.command)
                }
                Ok(Some(Event::Completed { command, cqe, received, held })) => {
                    if held {
                        self.end.release(command);
                    }
                    let mut data = self.data.remove(&command).unwrap();
                    data.truncate(received as usize);
                    self.done.insert(command, (cqe, data));
                    None
                }
            };
            if let Some(command) = wrong {
                self.end.digest_failed(command);
            }
        }
    }
}

/// A controller that was brought up.
pub(crate) struct Host {
    pub admin: Queue,
    pub cntlid: u16,
    to: SocketAddr,
    nqn: String,
    digests: Digests,
}

pub(crate) struct Refused(pub Cqe);

impl Host {
    pub(crate) fn up(to: SocketAddr, digests: Digests) -> Host {
        Host::up_as(to, SUBSYSTEM, HOST, 0, digests).unwrap_or_else(|r| panic!("{:?}", r.0.status()))
    }

    pub(crate) fn up_as(
        to: SocketAddr,
        subsystem: &str,
        nqn: &str,
        kato_ms: u32,
        digests: Digests,
    ) -> Result<Host, Refused> {
        let mut admin = Queue::open(to, 31, digests);
        let cqe = connect(&mut admin, 0, 32, kato_ms, CNTLID_DYNAMIC, subsystem, nqn);
        if !cqe.status().is_success() {
            return Err(Refused(cqe));
        }
        let cntlid = cqe.result.get() as u16;
        let enable = PropertySet::new(Property::Cc, Cc::enabled().0.into()).to_sqe();
        assert_eq!(admin.code(enable, Data::None, vec![]), Code::SUCCESS);
        Ok(Host { admin, cntlid, to, nqn: nqn.into(), digests })
    }

    pub(crate) fn queue(&self, qid: u16, entries: u16) -> Queue {
        let mut queue = Queue::open(self.to, entries - 1, self.digests);
        let cqe = connect(&mut queue, qid, entries, 0, self.cntlid, SUBSYSTEM, &self.nqn);
        assert_eq!(cqe.status().code, Code::SUCCESS, "queue {qid}");
        queue.end.set_in_capsule_max(IN_CAPSULE);
        queue
    }

    pub(crate) fn log(&mut self, page: u8, len: u32) -> Vec<u8> {
        let dwords = len / 4 - 1;
        let cdw10 = dwords << 16 | u32::from(page);
        let sqe = Sqe { opcode: 0x02, nsid: u32::MAX.into(), cdw10: cdw10.into(), ..Sqe::default() };
        let (cqe, data) = self.admin.call(sqe, Data::In { len }, vec![]);
        assert_eq!(cqe.status().code, Code::SUCCESS, "log page {page:#x}");
        data
    }
}

pub(crate) fn connect(
    queue: &mut Queue,
    qid: u16,
    entries: u16,
    kato_ms: u32,
    cntlid: u16,
    subsystem: &str,
    nqn: &str,
) -> Cqe {
    let name = |text: &str| Nqn::new(text).unwrap();
    // Linux keeps one identifier for each host name.
    let mut host_id = [1; 16];
    host_id[..4].copy_from_slice(&crc32c::crc32c(nqn.as_bytes()).to_le_bytes());
    let mut data = ConnectData::new(host_id, cntlid, &name(subsystem), &name(HOST));
    data.hostnqn.fill(0);
    data.hostnqn[..nqn.len()].copy_from_slice(nqn.as_bytes());
    let sqe = Connect::new(qid, entries, kato_ms).to_sqe();
    queue.call(sqe, Data::Out { len: 1024 }, data.as_bytes().to_vec()).0
}
