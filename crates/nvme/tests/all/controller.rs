//! Tests of a controller's answers, command by command: the values that hosts look at, and the status that the
//! specification names for each thing that is wrong.

mod bring_up;
mod change;
mod describe;

use forebay_nvme::command::{admin, io, Cqe, Sgl, Sqe, FABRICS};
use forebay_nvme::controller::connect::{host_name, Connect};
use forebay_nvme::controller::subsystem::{
    AnaState, HostSettings, Hosts, Kind, Limits, Namespace, Offer, Optimal, Subsystem,
};
use forebay_nvme::controller::{data_out, fabrics_on_io_queue, Answer, Controller, Effect, Health, Mishap};
use forebay_nvme::discovery::Endpoint;
use forebay_nvme::fabrics::{
    self, cattr, Cap, Cc, ConnectData, Csts, Disconnect, InvalidParameter, Property, PropertyGet, PropertySet,
};
use forebay_nvme::feature::{fid, GetFeatures, Select, SetFeatures};
use forebay_nvme::identify::{self, cns, parse_descriptors, Descriptor, Identify};
use forebay_nvme::log::{lid, AnaLog, ChangedNamespaces, CommandEffects, ErrorEntry, GetLogPage, Smart};
use forebay_nvme::nqn::DISCOVERY;
use forebay_nvme::status::{Code, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2014-08.org.example:disks";
const HOST: &str = "nqn.2014-08.org.example:host1";
const ENTRIES: u16 = 128;

fn namespace(blocks: u64) -> Namespace {
    Namespace {
        block_bytes: 512,
        blocks,
        read_only: false,
        volatile_write_cache: false,
        deallocate: true,
        uuid: Some([3; 16]),
        nguid: Some([4; 16]),
        eui64: Some([5; 8]),
        ana_group: 2,
        optimal: Optimal { write_granularity: 8, deallocate_granularity: 0, write: 256, boundary: 1024 },
    }
}

fn subsystem() -> Subsystem {
    let read_only = Namespace { read_only: true, optimal: Optimal::default(), ..namespace(9) };
    Subsystem {
        nqn: NQN.into(),
        serial: "S1".into(),
        model: "Forebay".into(),
        firmware: "1.0".into(),
        kind: Kind::Nvm {
            namespaces: [(1, namespace(1000)), (7, read_only)].into(),
            ana: [(2, AnaState::NonOptimized)].into(),
        },
        hosts: Hosts::Any(HostSettings::default()),
        limits: Limits { queues: 16, queue_entries: ENTRIES, async_events: 3, ..Limits::default() },
    }
}

fn discovery_subsystem(generation: u64) -> Subsystem {
    let endpoint = Endpoint {
        transport: 3,
        family: 1,
        kind: 2,
        requirements: 0,
        port: 1,
        controller: 0xffff,
        admin_entries: 32,
        flags: 0,
        service: "4420".into(),
        nqn: NQN.into(),
        address: "192.0.2.1".into(),
        security: 0,
    };
    let entries = (0..generation).map(|_| Offer { endpoint: endpoint.clone(), hosts: None }).collect();
    Subsystem { nqn: DISCOVERY.into(), kind: Kind::Discovery { generation, entries }, ..subsystem() }
}

fn connect_parts(qid: u16, entries: u16, cntlid: u16, nqn: &str) -> (fabrics::Connect, ConnectData) {
    let field = |name: &str| {
        let mut field = [0; 256];
        field[..name.len()].copy_from_slice(name.as_bytes());
        field
    };
    let data = ConnectData {
        hostid: [1; 16],
        cntlid: cntlid.into(),
        subnqn: field(nqn),
        hostnqn: field(HOST),
        ..ConnectData::default()
    };
    (fabrics::Connect::new(qid, entries, 0), data)
}

fn connect(qid: u16, entries: u16, cntlid: u16) -> Connect {
    let (command, data) = connect_parts(qid, entries, cntlid, NQN);
    Connect::parse(&command.to_sqe(), data.as_bytes()).unwrap()
}

fn connected(subsystem: Subsystem) -> Controller {
    let (command, data) = connect_parts(0, 32, 0xffff, &subsystem.nqn);
    let connect = Connect::parse(&command.to_sqe(), data.as_bytes()).unwrap();
    Controller::connect(Arc::new(subsystem), &connect, 1, 0).unwrap().0
}

/// A controller that was enabled.
fn controller() -> Controller {
    enabled(subsystem())
}

fn enabled(subsystem: Subsystem) -> Controller {
    let mut controller = connected(subsystem);
    assert_eq!(set(&mut controller, Cc::enabled()).code, Code::SUCCESS);
    assert!(controller.ready());
    controller
}

fn run(controller: &mut Controller, mut sqe: Sqe, room: u32) -> Answer {
    sqe.sgl = Sgl::transport(room);
    controller.execute(sqe.cid.get(), &sqe, &[], 0)
}

/// The completion of a command without data.
fn complete(controller: &mut Controller, sqe: Sqe) -> Cqe {
    match run(controller, sqe, 0) {
        Answer::Complete(cqe) => cqe,
        other => panic!("{other:?}"),
    }
}

/// Status of a command that is refused, or its data.
fn data(controller: &mut Controller, sqe: Sqe, room: u32) -> Result<Vec<u8>, Code> {
    match run(controller, sqe, room) {
        Answer::Data { data, cqe } => {
            assert!(cqe.status().is_success());
            Ok(data)
        }
        Answer::Complete(cqe) => Err(cqe.status().code),
        other => panic!("{other:?}"),
    }
}

fn set(controller: &mut Controller, cc: Cc) -> Status {
    complete(controller, PropertySet::new(Property::Cc, cc.0.into()).to_sqe()).status()
}

fn get(controller: &mut Controller, property: Property) -> u64 {
    let cqe = complete(controller, PropertyGet::new(property).to_sqe());
    assert!(cqe.status().is_success());
    cqe.result.get()
}

fn status_of(controller: &mut Controller) -> Csts {
    Csts(get(controller, Property::Csts) as u32)
}

fn identify(controller: &mut Controller, cns: u8, nsid: u32) -> Result<Vec<u8>, Code> {
    data(controller, Identify { cns, nsid, ..Identify::default() }.to_sqe(), 4096)
}

fn log(controller: &mut Controller, page: GetLogPage) -> Result<Vec<u8>, Code> {
    data(controller, page.to_sqe(), page.bytes as u32)
}

fn feature(controller: &mut Controller, fid: u8) -> Result<u32, Code> {
    value_of(complete(controller, GetFeatures::new(fid, Select::Current).to_sqe()))
}

fn set_feature(controller: &mut Controller, fid: u8, value: u32) -> Result<u32, Code> {
    value_of(complete(controller, SetFeatures::new(fid, value).to_sqe()))
}

fn value_of(cqe: Cqe) -> Result<u32, Code> {
    let status = cqe.status();
    if status.is_success() {
        Ok(cqe.result.get() as u32)
    } else {
        Err(status.code)
    }
}

fn effects(controller: &mut Controller) -> Vec<Effect> {
    std::iter::from_fn(|| controller.next_effect()).collect()
}

fn request_event(controller: &mut Controller, cid: u16) -> Answer {
    run(controller, Sqe { opcode: admin::ASYNC_EVENT_REQUEST, cid: cid.into(), ..Sqe::default() }, 0)
}

fn changed(
    change: impl FnOnce(&mut BTreeMap<u32, Namespace>, &mut BTreeMap<u32, AnaState>),
) -> Arc<Subsystem> {
    let mut subsystem = subsystem();
    if let Kind::Nvm { namespaces, ana } = &mut subsystem.kind {
        change(namespaces, ana);
    }
    Arc::new(subsystem)
}
