//! The host's end of NVMe/RDMA against a controller that answers what it likes, and a card that is done when it likes.

use crate::input::Input;
use forebay_nvme::command::Cqe;
use forebay_nvme::status::{Code, Status};
use forebay_nvme::transport::rdma::host::{Completed, HostEnd};
use forebay_nvme::transport::tcp::Handle;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// A command that is out, as a simpler truth has it.
struct Out {
    wanted: u32,
    sent: bool,
    answer: Option<Status>,
}

struct World {
    end: HostEnd,
    commands: usize,
    out: BTreeMap<u16, Out>,
}

/// Each command is over once, with its own answer, and not before its capsule is sent.
pub fn nvme_rdma_host_end(data: &[u8]) {
    let mut input = Input::new(data);
    let commands = u16::from(input.u8() % 9);
    let mut world = World { end: HostEnd::new(commands), commands: commands.into(), out: BTreeMap::new() };
    while !input.is_empty() {
        if !world.step(&mut input) {
            return;
        }
        assert_eq!(world.end.in_flight(), world.out.len());
    }
    world.answer_all();
}

impl World {
    /// False: the connection is over.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.u8() % 8 {
            0..=2 => self.take(input.u8().into()),
            3 | 4 => self.sent(Handle(u16::from(input.u8() % 12))),
            5 | 6 => {
                let cid = input.near(&[0, 1, 2, 3, 4, 5, 6, 7]) as u16;
                let code = input.pick(&[Code::SUCCESS, Code::INVALID_FIELD, Code::ABORT_REQUESTED]);
                return self.came(Cqe::new(cid, Status::fatal(code), input.u8().into()).as_bytes());
            }
            _ => match input.bool() {
                true => self.give_back(input.u8()),
                false => return self.came(input.bytes(18)),
            },
        }
        true
    }

    fn take(&mut self, wanted: u32) {
        match self.end.take(wanted) {
            None => assert_eq!(self.out.len(), self.commands, "there is one left"),
            Some(command) => {
                assert!(usize::from(command.0) < self.commands);
                let old = self.out.insert(command.0, Out { wanted, sent: false, answer: None });
                assert!(old.is_none(), "command {} is out twice", command.0);
            }
        }
    }

    fn give_back(&mut self, pick: u8) {
        let unsent = self.out.iter().filter(|(_, out)| !out.sent && out.answer.is_none());
        let cids: Vec<u16> = unsent.map(|(cid, _)| *cid).collect();
        if let Some(cid) = cids.get(usize::from(pick) % cids.len().max(1)) {
            self.end.give_back(Handle(*cid));
            self.out.remove(cid);
        }
    }

    fn sent(&mut self, command: Handle) {
        if let Some(out) = self.out.get_mut(&command.0) {
            out.sent = true;
        }
        let over = self.end.sent(command);
        self.over(command.0, over);
    }

    fn came(&mut self, response: &[u8]) -> bool {
        let cid = response.get(12..14).map_or(0, |cid| u16::from_le_bytes([cid[0], cid[1]]));
        let may = self.out.get(&cid).is_some_and(|out| out.answer.is_none());
        let Ok(over) = self.end.came(response) else {
            assert!(response.len() != size_of::<Cqe>() || !may, "a good response is refused");
            return false;
        };
        assert!(response.len() == size_of::<Cqe>() && may, "a response of nothing is taken");
        let cqe = <Cqe as zerocopy::FromBytes>::read_from_bytes(response).expect("it has the length");
        if let Some(out) = self.out.get_mut(&cid) {
            out.answer = Some(cqe.status());
        }
        self.over(cid, over);
        true
    }

    /// Checks that a command that is reported as over is over.
    fn over(&mut self, cid: u16, reported: Option<Completed>) {
        let Some((wanted, status)) =
            self.out.get(&cid).and_then(|out| Some((out.wanted, out.answer.filter(|_| out.sent)?)))
        else {
            return assert_eq!(reported, None);
        };
        let reported = reported.expect("sent and answered is over");
        assert_eq!((reported.command, reported.cqe.status()), (Handle(cid), status));
        assert_eq!(reported.received, if status.is_success() { wanted } else { 0 });
        self.out.remove(&cid);
    }

    /// All that is out is answered.
    fn answer_all(&mut self) {
        let out: Vec<(u16, bool)> = self.out.iter().map(|(cid, out)| (*cid, out.answer.is_some())).collect();
        for (cid, answered) in out {
            self.sent(Handle(cid));
            if !answered {
                assert!(self.came(Cqe::new(cid, Status::SUCCESS, 0).as_bytes()));
            }
        }
        assert_eq!((self.end.in_flight(), self.out.len()), (0, 0));
        (0..self.commands).for_each(|_| self.take(1));
        assert_eq!(self.end.take(1), None);
    }
}
