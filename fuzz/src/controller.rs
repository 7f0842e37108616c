//! A controller's admin commands, in any order and with anything in them, while its subsystem changes.

use crate::input::Input;
use forebay_nvme::command::{admin, Sgl, Sqe, FABRICS};
use forebay_nvme::controller::connect::{Admitted, Connect};
use forebay_nvme::controller::subsystem::{
    HostSettings, Hosts, Kind, Limits, Namespace, Offer, Optimal, Subsystem,
};
use forebay_nvme::controller::{self, Answer, Controller, Effect, Health};
use forebay_nvme::discovery::Endpoint;
use forebay_nvme::fabrics::{self, fctype, ConnectData};
use forebay_nvme::log::AnaState;
use forebay_nvme::nqn::Nqn;
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::IntoBytes;

pub const SUBSYSTEM: &str = "nqn.2014-08.org.example:disk";
pub const HOST: &str = "nqn.2014-08.org.example:host";

fn limits() -> Limits {
    Limits { queues: 4, queue_entries: 32, ..Limits::default() }
}

/// One of many that a configuration could ask for.
pub fn subsystem(input: &mut Input<'_>, discovery: bool, authentication: bool) -> Arc<Subsystem> {
    let kind = if discovery { offers(input) } else { namespaces(input) };
    Arc::new(Subsystem {
        nqn: SUBSYSTEM.into(),
        serial: "0123456789abcdef".into(),
        model: "a model".into(),
        firmware: "1.0".into(),
        kind,
        hosts: Hosts::Any(HostSettings { authentication, ..HostSettings::default() }),
        limits: limits(),
    })
}

fn namespaces(input: &mut Input<'_>) -> Kind {
    let count = input.u8() % 5;
    let namespaces = (0..count).map(|_| {
        let nsid = [1, 2, 3, 7, 1024][usize::from(input.u8() % 5)];
        let namespace = Namespace {
            block_bytes: 512 << (input.u8() % 4),
            blocks: input.u32().into(),
            read_only: input.bool(),
            volatile_write_cache: input.bool(),
            deallocate: input.bool(),
            uuid: input.bool().then_some([7; 16]),
            nguid: input.bool().then_some([8; 16]),
            eui64: input.bool().then_some([9; 8]),
            ana_group: 1 + u32::from(input.u8() % 4),
            optimal: Optimal { write: input.u16(), ..Optimal::default() },
        };
        (nsid, namespace)
    });
    let namespaces = namespaces.collect();
    let states = input.u8() % 4;
    let ana = (0..states).map(|_| {
        let state = [AnaState::Optimized, AnaState::NonOptimized, AnaState::Inaccessible, AnaState::Change];
        (1 + u32::from(input.u8() % 4), input.pick(&state))
    });
    Kind::Nvm { namespaces, ana: ana.collect() }
}

fn offers(input: &mut Input<'_>) -> Kind {
    let count = input.u8() % 6;
    let entries = (0..count).map(|_| Offer {
        endpoint: Endpoint {
            transport: 3,
            family: 1,
            kind: input.u8() % 4,
            requirements: 0,
            port: input.u16(),
            controller: 0xffff,
            admin_entries: 32,
            flags: 0,
            service: "4420".into(),
            nqn: SUBSYSTEM.into(),
            address: "192.0.2.7".into(),
            security: 0,
        },
        hosts: input.bool().then(|| BTreeSet::from([HOST.to_owned()])),
    });
    let entries = entries.collect();
    Kind::Discovery { generation: input.u8().into(), entries }
}

/// A Connect: 64 bytes of command, 1024 of data, right but for what the input changes.
pub fn nvme_connect(data: &[u8]) {
    let mut input = Input::new(data);
    let discovery = input.u8() % 4 == 0;
    let subsystem = subsystem(&mut input, discovery, false);
    let (mut command, mut connect_data) = connect_bytes();
    for _ in 0..input.u8() % 16 {
        let (at, with) = (usize::from(input.u16()), input.u8());
        match at % 4 {
            0 => command[at / 4 % 64] = with,
            _ => connect_data[at / 4 % 1024] = with,
        }
    }
    let cut = if input.u8() == 1 { usize::from(input.u16()) % 1025 } else { 1024 };
    let sqe = zerocopy::transmute!(command);
    let Ok(connect) = Connect::parse(&sqe, &connect_data[..cut]) else { return };
    assert!(cut == 1024 && connect.entries >= 2);
    assert!(connect.host_nqn.len() <= 223 && connect.subsystem_nqn.len() <= 223);
    let Ok((mut controller, admitted)) = Controller::connect(subsystem, &connect, 9, 0) else { return };
    assert_eq!((admitted.qid, admitted.result as u16, controller.id()), (0, 9, 9));
    let _ = controller.connect_io(&Connect { qid: input.u16(), cntlid: input.u16(), ..connect }, 0);
}

/// The controller that a good Connect makes.
pub fn connect_to(subsystem: Arc<Subsystem>, connect: &Connect) -> Option<(Controller, Admitted)> {
    Controller::connect(subsystem, connect, 1, 0).ok()
}

fn connect_bytes() -> ([u8; 64], [u8; 1024]) {
    let name = |name| Nqn::new(name).expect("a name");
    let data = ConnectData::new([1; 16], fabrics::CNTLID_DYNAMIC, &name(SUBSYSTEM), &name(HOST));
    let sqe = fabrics::Connect::new(0, 32, 15_000).to_sqe();
    (zerocopy::transmute!(sqe), zerocopy::transmute!(data))
}

/// Aborts that may wait (ACL + 1).
const ABORTS_MAX: usize = 4;

/// State of a controller's driver.
struct Admin {
    controller: Controller,
    now_ms: u64,
    /// Tags of commands that are parked.
    parked: BTreeSet<u16>,
    tag: u16,
}

/// Admin commands one after the other. Each gets one answer, no longer than the host has room; no more are parked
/// than may be; effects end.
pub fn nvme_controller(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let (discovery, authentication) = (choice & 3 == 3, choice & 12 == 12);
    let made = subsystem(&mut input, discovery, authentication);
    let (command, connect_data) = connect_bytes();
    let connect = Connect::parse(&zerocopy::transmute!(command), &connect_data).expect("a good Connect");
    let (controller, _) = Controller::connect(made, &connect, 1, 0).expect("anyone may");
    let mut admin = Admin { controller, now_ms: 0, parked: BTreeSet::new(), tag: 0 };
    if choice & 16 == 0 {
        admin.execute(
            &fabrics::PropertySet::new(fabrics::Property::Cc, fabrics::Cc::enabled().0.into()).to_sqe(),
            &[],
        );
    }
    while !input.is_empty() {
        match input.u8() % 16 {
            0 => admin.controller.update(subsystem(&mut input, discovery, authentication)),
            1 => admin.controller.authenticated(),
            2 => {
                let qid = input.u16() % 8;
                let io = Connect { qid, cntlid: 1, entries: 2 + input.u16() % 64, ..connect.clone() };
                let _ = admin.controller.connect_io(&io, admin.now_ms);
            }
            3 => admin.controller.disconnect_io(input.u16() % 8),
            4 => {
                let health =
                    Health { critical_warning: input.u8(), temperature: input.u16(), ..Health::default() };
                admin.controller.set_health(health);
            }
            5 => {
                admin.now_ms += u64::from(input.u16());
                if admin.controller.tick(input.bool(), admin.now_ms) {
                    return;
                }
            }
            _ => {
                let sqe = admin_command(&mut input);
                let n = controller::data_out(&sqe).unwrap_or(0) as usize;
                assert!(n <= controller::ADMIN_DATA_MAX as usize);
                let mut data = input.bytes(n.min(64)).to_vec();
                data.resize(n, 0);
                if !admin.execute(&sqe, &data) {
                    return;
                }
            }
        }
        admin.effects();
    }
}

impl Admin {
    /// False: the connection is closed.
    fn execute(&mut self, sqe: &Sqe, data: &[u8]) -> bool {
        self.tag = self.tag.wrapping_add(1);
        match self.controller.execute(self.tag, sqe, data, self.now_ms) {
            Answer::Complete(cqe) => assert_eq!(cqe.cid, sqe.cid),
            Answer::Data { data, cqe } => {
                assert!(data.len() <= sqe.sgl.length.get() as usize, "never more than the host has room for");
                assert!(cqe.status().is_success());
            }
            Answer::Parked => {
                assert!(self.parked.insert(self.tag));
                assert!(self.parked.len() <= usize::from(limits().async_events) + ABORTS_MAX);
            }
            Answer::Authenticate => {}
            Answer::Close(_) => return false,
        }
        true
    }

    fn effects(&mut self) {
        let mut effects = 0;
        while let Some(effect) = self.controller.next_effect() {
            effects += 1;
            assert!(effects <= 64, "effects without end");
            match effect {
                Effect::Complete { tag, .. } => {
                    assert!(self.parked.remove(&tag), "what was parked is answered once");
                }
                Effect::Abort { tag, sqid, .. } => {
                    assert!(self.parked.contains(&tag) && sqid > 0);
                    // Some take for ever.
                    if tag % 4 > 0 {
                        self.controller.aborted(tag, tag % 2 == 0);
                    }
                }
                _ => {}
            }
        }
    }
}

const OPCODES: [u32; 16] = {
    let (identify, log) = (admin::IDENTIFY as u32, admin::GET_LOG_PAGE as u32);
    let (set, get) = (admin::SET_FEATURES as u32, admin::GET_FEATURES as u32);
    let (event, fabrics) = (admin::ASYNC_EVENT_REQUEST as u32, FABRICS as u32);
    [
        identify,
        identify,
        identify,
        log,
        log,
        log,
        set,
        set,
        get,
        get,
        event,
        event,
        fabrics,
        fabrics,
        admin::ABORT as u32,
        admin::KEEP_ALIVE as u32,
    ]
};

/// An admin or Fabrics command with fields near those that mean something.
fn admin_command(input: &mut Input<'_>) -> Sqe {
    let opcode = input.near(&OPCODES) as u8;
    let sgl = Sgl::transport(input.near(&[4096, 4096, 1024, 512, 64, 4, 0, 8192, 1 << 20]));
    let mut sqe = Sqe {
        opcode,
        flags: 0x40,
        cid: u16::from(input.u8() % 8).into(),
        nsid: input.near(&[0, 1, 2, 3, 7, 1024, 1025, u32::MAX, 1]).into(),
        sgl,
        ..Sqe::default()
    };
    match opcode {
        FABRICS => fabrics_fields(input, &mut sqe),
        admin::IDENTIFY => {
            let cns = input.near(&[0, 1, 2, 3, 5, 6, 7, 8, 0x10, 0x11, 0x12, 0x13, 0x1c]);
            sqe.cdw10 = cns.into();
            sqe.cdw11 = (input.near(&[0, 0, 1]) << 24).into();
        }
        admin::GET_LOG_PAGE => {
            let lid = input.near(&[0, 1, 2, 3, 4, 5, 0xc, 0x12, 0x70, 6]);
            let numd = input.near(&[1023, 255, 127, 0, 15, 0xffff]);
            sqe.cdw10 = (lid & 0xff | u32::from(input.u8() % 2) << 15 | numd << 16).into();
            sqe.cdw11 = input.near(&[0, 0, 0xffff]).into();
            sqe.cdw12 = input.near(&[0, 0, 4, 64, 1024, 4096, 3]).into();
            sqe.cdw13 = input.near(&[0, 0, 0, u32::MAX]).into();
            sqe.cdw14 = input.near(&[0, 0, 1 << 23]).into();
        }
        admin::SET_FEATURES | admin::GET_FEATURES => {
            let fid = input.near(&[1, 2, 4, 5, 6, 7, 0xa, 0xb, 0xe, 0xf, 0x16, 0x19, 0x81, 0x84]);
            sqe.cdw10 =
                (fid & 0xff | input.near(&[0, 1, 2, 3, 0]) << 8 | u32::from(input.u8() == 1) << 31).into();
            sqe.cdw11 = input.near(&[0, 1, 0x3_0003, 0x100, 0x900, 15_000, u32::MAX, 2]).into();
        }
        _ => {
            sqe.cdw10 = input.near(&[0, 1 << 16, 2 << 16, 1]).into();
            sqe.cdw11 = u32::from(input.u8()).into();
        }
    }
    sqe
}

fn fabrics_fields(input: &mut Input<'_>, sqe: &mut Sqe) {
    let types = [
        fctype::PROPERTY_GET,
        fctype::PROPERTY_SET,
        fctype::PROPERTY_SET,
        fctype::CONNECT,
        fctype::DISCONNECT,
        fctype::AUTHENTICATION_SEND,
    ];
    sqe.nsid = if input.u8() < 240 { u32::from(input.pick(&types)).into() } else { input.u32().into() };
    sqe.cdw10 = input.near(&[0, 1, 0, 7]).into();
    sqe.cdw11 = input.near(&[0, 8, 0x14, 0x14, 0x1c, 0x20, 0x68, 4]).into();
    sqe.cdw12 = input.near(&[0x46_0001, 0x46_0000, 0x46_4001, 0x46_8001, 0, 1]).into();
    sqe.cdw13 = input.near(&[0, 0, 1]).into();
    assert_eq!(sqe.as_bytes().len(), 64);
}
