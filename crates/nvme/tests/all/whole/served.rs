//! The target's side: its connections, the controllers and the disk of bytes behind them.

use crate::link::{flatten, Memory};
use forebay_nvme::command::{Cqe, Sqe, FABRICS};
use forebay_nvme::controller::connect::{Connect, Ids};
use forebay_nvme::controller::subsystem::Subsystem;
use forebay_nvme::controller::{data_out, fabrics_on_io_queue, Answer, Controller, Effect};
use forebay_nvme::log::AnaState;
use forebay_nvme::nvm::{Geometry, Op, Request, Transfer};
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::tcp::target::{self, TargetEnd};
use forebay_nvme::transport::tcp::{Handle, Outgoing};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// State that all connections of the target share.
pub struct TargetShared {
    pub subsystem: Arc<Subsystem>,
    pub ids: Ids,
    pub controllers: BTreeMap<u16, Controller>,
    pub disk: Vec<u8>,
    pub now_ms: u64,
}

#[derive(Clone, Copy)]
pub enum Role {
    New,
    Admin(u16),
    Io(u16, u16),
}

/// One connection, from its target's side.
pub struct Served {
    pub end: TargetEnd,
    pub memory: Memory,
    pub role: Role,
    /// Commands whose data come, and those that can be carried out.
    pub collecting: HashMap<u16, Sqe>,
    pub ready: Vec<(Handle, Sqe)>,
    pub out: Outgoing,
}

impl Served {
    pub fn new() -> Served {
        let options = target::Options {
            header_digest: true,
            data_digest: true,
            in_capsule_max: 8192,
            max_h2c: 8192,
            max_c2h: 12_288,
            bulk: 4096,
        };
        Served {
            end: TargetEnd::new(options),
            memory: Memory::default(),
            role: Role::New,
            collecting: HashMap::new(),
            ready: Vec::new(),
            out: Outgoing::default(),
        }
    }

    pub fn sends(&mut self) -> Vec<u8> {
        self.end.take_outgoing(&mut self.out);
        let bytes = flatten(&self.out, &mut self.memory, |_| {});
        self.out.bytes.clear();
        self.out.segments.clear();
        bytes
    }

    pub fn receives(&mut self, bytes: &[u8], shared: &TargetShared) -> usize {
        let taken = self.memory.receive(self.end.expect(), bytes);
        self.end.received(taken);
        loop {
            match self.end.next().expect("no fatal error") {
                None => return taken,
                Some(target::Event::Command { command, sqe, in_capsule }) => {
                    self.command(command, sqe, in_capsule, shared);
                }
                Some(target::Event::Copy { place, bytes }) => self.memory.copy(&place, bytes),
                Some(target::Event::DataEnd { place, digest }) => {
                    assert_eq!(self.memory.crc(&place), digest, "a good link");
                }
                Some(target::Event::DataComplete { command }) => {
                    let sqe = self.collecting.remove(&command.0).expect("its data were awaited");
                    self.ready.push((command, sqe));
                }
                Some(target::Event::Ready { .. } | target::Event::Placed(_)) => {}
            }
        }
    }

    /// A command came: its data are awaited, if it has any.
    pub fn command(&mut self, command: Handle, sqe: Sqe, in_capsule: u32, shared: &TargetShared) {
        let len = match self.role {
            Role::Io(..) if sqe.opcode != FABRICS => match io(&sqe, in_capsule, shared) {
                Ok(request) => match request.transfer {
                    Transfer::InCapsule(len) | Transfer::FromHost(len) => len,
                    _ => 0,
                },
                Err(status) => return self.end.complete(command, Cqe::new(0, status, 0)),
            },
            _ => data_out(&sqe).expect("a command that fits"),
        };
        if len == 0 {
            return self.ready.push((command, sqe));
        }
        self.memory.data.insert(command.0, vec![0; len as usize]);
        self.collecting.insert(command.0, sqe);
        if in_capsule == 0 {
            self.end.request(command, len);
        }
    }

    /// Carries one command out.
    pub fn work(&mut self, pick: usize, shared: &mut TargetShared) {
        let (command, sqe) = self.ready.swap_remove(pick % self.ready.len());
        let data = self.memory.data.remove(&command.0).unwrap_or_default();
        let answer = match self.role {
            Role::New => self.connect(&sqe, &data, shared),
            Role::Admin(id) => {
                let now_ms = shared.now_ms;
                let controller = shared.controllers.get_mut(&id).expect("its controller");
                controller.execute(command.0, &sqe, &data, now_ms)
            }
            Role::Io(..) if sqe.opcode == FABRICS => fabrics_on_io_queue(&sqe, false),
            Role::Io(..) => carry_out(&sqe, &data, shared),
        };
        match answer {
            Answer::Complete(cqe) => self.end.complete(command, cqe),
            Answer::Data { data, cqe } => {
                let len = data.len() as u32;
                self.memory.data.insert(command.0, data);
                self.end.send(command, len, cqe);
            }
            Answer::Parked => {}
            Answer::Authenticate | Answer::Close(_) => panic!("nobody asked for that"),
        }
        self.effects(shared);
    }

    pub fn connect(&mut self, sqe: &Sqe, data: &[u8], shared: &mut TargetShared) -> Answer {
        let connect = Connect::parse(sqe, data).expect("a Connect");
        let admitted = if connect.qid == 0 {
            let id = shared.ids.take().expect("an identifier");
            let (controller, admitted) =
                Controller::connect(shared.subsystem.clone(), &connect, id, shared.now_ms).expect("admitted");
            shared.controllers.insert(id, controller);
            self.role = Role::Admin(id);
            admitted
        } else {
            let controller = shared.controllers.get_mut(&connect.cntlid).expect("its controller");
            self.role = Role::Io(connect.cntlid, connect.qid);
            controller.connect_io(&connect, shared.now_ms).expect("admitted")
        };
        assert!(admitted.no_flow_control, "our host does without SQHD");
        self.end.set_depth(admitted.entries, !admitted.no_flow_control);
        Answer::Complete(admitted.completion(0))
    }

    pub fn effects(&mut self, shared: &mut TargetShared) {
        let Role::Admin(id) = self.role else { return };
        let controller = shared.controllers.get_mut(&id).expect("its controller");
        while let Some(effect) = controller.next_effect() {
            match effect {
                Effect::Complete { tag, cqe } => self.end.complete(Handle(tag), cqe),
                Effect::ShutDown => controller.shut_down_complete(),
                Effect::CloseIoQueues | Effect::WriteCache { .. } | Effect::Abort { .. } => {}
            }
        }
    }
}

pub fn io(sqe: &Sqe, in_capsule: u32, shared: &TargetShared) -> Result<Request, Status> {
    let namespace = shared.subsystem.namespaces().and_then(|all| all.get(&sqe.nsid.get()));
    let geometry = namespace.map(|n| Geometry::new(n, AnaState::Optimized, Some(1 << 20)));
    Request::parse(sqe, geometry.as_ref(), in_capsule)
}

/// An I/O command on the disk.
pub fn carry_out(sqe: &Sqe, data: &[u8], shared: &mut TargetShared) -> Answer {
    let in_capsule = if sqe.sgl.kind == forebay_nvme::command::Sgl::IN_CAPSULE { data.len() } else { 0 };
    let request = io(sqe, in_capsule as u32, shared).expect("it was good when it came");
    let range = request.offset as usize..(request.offset + request.bytes) as usize;
    let success = Cqe::new(0, Status::SUCCESS, 0);
    match request.op {
        Op::Read => return Answer::Data { data: shared.disk[range].to_vec(), cqe: success },
        Op::Write => shared.disk[range].copy_from_slice(data),
        Op::Compare if shared.disk[range.clone()] != *data => {
            return Answer::Complete(Cqe::new(0, Status::fatal(Code::COMPARE_FAILURE), 0));
        }
        Op::WriteZeroes { .. } => shared.disk[range].fill(0),
        Op::Compare | Op::Verify | Op::Flush | Op::DatasetManagement { .. } => {}
    }
    Answer::Complete(success)
}
