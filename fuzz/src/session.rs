//! A host's session with a controller: an honest one, whose answers the input changes, withholds or makes up.

use crate::controller::{connect_to, subsystem, HOST, SUBSYSTEM};
use crate::input::Input;
use forebay_nvme::command::{Cqe, FABRICS};
use forebay_nvme::controller::connect::Connect;
use forebay_nvme::controller::{Answer, Controller, Effect};
use forebay_nvme::fabrics::{command_type, fctype};
use forebay_nvme::host::{Action, Data, Failure, Options, Request, RequestId, Session};
use forebay_nvme::status::Status;
use std::collections::BTreeMap;

/// More steps than any session takes without waiting.
const STEPS_MAX: u32 = 4000;
/// The longest answer that a session may ask for, bytes.
const ANSWER_MAX: u32 = 1 << 20;

struct Peer {
    session: Session,
    /// None before its Connect.
    controller: Option<Controller>,
    now_ms: u64,
    /// Asynchronous Event Requests that the controller keeps.
    parked: BTreeMap<u16, RequestId>,
    asked: u32,
}

/// Whatever comes back, a session goes on or ends with a reason, and never runs without waiting.
pub fn nvme_session(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let options = Options {
        host_nqn: HOST.into(),
        host_id: [1; 16],
        subsystem_nqn: SUBSYSTEM.into(),
        queues: u16::from(input.u8()),
        queue_entries: 2 + u16::from(input.u8()),
        keep_alive_ms: u32::from(choice & 1) * 5000,
        timeout_ms: 2000,
        namespace: (choice & 2 != 0).then_some(1),
    };
    let (session, parked) = (Session::new(options, 0), BTreeMap::new());
    let mut peer = Peer { session, controller: None, now_ms: 0, parked, asked: 0 };
    for _ in 0..200 {
        if let Err(failure) = peer.work(&mut input) {
            assert!(!failure.asked.is_empty() && !failure.found.is_empty());
            assert_eq!(peer.session.next(peer.now_ms), Err(failure), "it stays ended");
            return;
        }
        if input.is_empty() {
            break;
        }
        peer.turn(&mut input);
    }
    for namespace in peer.session.namespaces().values() {
        assert!(namespace.nsid != 0 && namespace.raw.len() <= 4096);
        assert!(namespace.unusable.is_some() || namespace.block_bytes >= 512);
    }
}

impl Peer {
    /// Until the session waits.
    fn work(&mut self, input: &mut Input<'_>) -> Result<(), Failure> {
        for _ in 0..STEPS_MAX {
            match self.session.next(self.now_ms)? {
                Action::Submit(request) => self.submitted(&request, input),
                Action::Authenticate { .. } => self.session.authenticated(self.now_ms),
                Action::Event(_) => {}
                Action::Wait { until_ms } => {
                    assert!(until_ms > self.now_ms || input.is_empty(), "a wait that is over at once");
                    return Ok(());
                }
            }
        }
        panic!("{STEPS_MAX} steps without waiting");
    }

    /// Makes other things happen: time, namespaces, made-up completions.
    fn turn(&mut self, input: &mut Input<'_>) {
        match input.u8() % 4 {
            0 => self.now_ms += u64::from(input.u16()),
            1 => {
                let made = subsystem(input, false, false);
                if let Some(controller) = &mut self.controller {
                    controller.update(made);
                }
            }
            2 => {
                let cqe = Cqe::new(0, Status::from_bits(input.u16()), input.u32().into());
                let n = usize::from(input.u8());
                self.session.completed(RequestId(input.u8().into()), &cqe, input.bytes(n), self.now_ms);
            }
            _ if input.u8() == 1 => self.session.shut_down(self.now_ms),
            _ => self.session.abort(input.u16() % 8, input.u16()),
        }
        self.effects();
    }

    fn submitted(&mut self, request: &Request, input: &mut Input<'_>) {
        self.asked += 1;
        let room = match request.data {
            Data::In(bytes) => bytes,
            Data::None | Data::Out(_) => 0,
        };
        assert!(room <= ANSWER_MAX);
        let Some((mut cqe, mut data)) = self.answer(request, room, input) else { return };
        data.truncate(room as usize);
        match input.u8() {
            0..230 => {}
            230 => return,
            231..240 => cqe = Cqe::new(0, Status::from_bits(input.u16()), 0),
            240..246 => cqe.result = input.u64().into(),
            246 => data.truncate(usize::from(input.u16())),
            _ => {
                let (at, n) = (usize::from(input.u16()), usize::from(input.u8() % 16));
                let lie = input.bytes(n);
                if let Some(place) = data.get_mut(at..at + lie.len()) {
                    place.copy_from_slice(lie);
                }
            }
        }
        self.session.completed(request.request_id, &cqe, &data, self.now_ms);
    }

    /// Returns an honest controller's answer; None: nothing yet.
    fn answer(&mut self, request: &Request, room: u32, input: &mut Input<'_>) -> Option<(Cqe, Vec<u8>)> {
        let mut sqe = request.sqe;
        sqe.sgl.length = room.into();
        let out: &[u8] = if let Data::Out(out) = &request.data { out } else { &[] };
        if sqe.opcode == FABRICS && command_type(&sqe) == fctype::CONNECT {
            let connect = Connect::parse(&sqe, out).expect("a session's Connect is well-formed");
            let (controller, admitted) = connect_to(subsystem(input, false, false), &connect)?;
            self.controller = Some(controller);
            return Some((admitted.completion(0), Vec::new()));
        }
        let tag = request.request_id.0;
        match self.controller.as_mut()?.execute(tag, &sqe, out, self.now_ms) {
            Answer::Complete(cqe) | Answer::Close(cqe) => Some((cqe, Vec::new())),
            Answer::Data { data, cqe } => Some((cqe, data)),
            Answer::Parked => {
                self.parked.insert(tag, request.request_id);
                None
            }
            Answer::Authenticate => None,
        }
    }

    /// Events that the controller tells of now.
    fn effects(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        while let Some(effect) = controller.next_effect() {
            if let Effect::Complete { tag, cqe } = effect {
                if let Some(request_id) = self.parked.remove(&tag) {
                    self.session.completed(request_id, &cqe, &[], self.now_ms);
                }
            }
        }
    }
}
