//! Whatever a host sends, each command is answered once; whatever a controller answers, a session ends or goes on.

use forebay_nvme::command::{admin, Cqe, Sgl, Sqe, FABRICS};
use forebay_nvme::controller::connect::Connect;
use forebay_nvme::controller::subsystem::{HostSettings, Hosts, Kind, Limits, Namespace, Optimal, Subsystem};
use forebay_nvme::controller::{data_out, Answer, Controller, Effect, ADMIN_DATA_MAX};
use forebay_nvme::fabrics::{Cc, Property, PropertySet};
use forebay_nvme::host::{Action, Data, Options, Session};
use forebay_nvme::status::{Code, Status};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

fn subsystem(nsids: &[u32], discovery: bool) -> Arc<Subsystem> {
    let namespace = |nsid: u32| Namespace {
        block_bytes: 512,
        blocks: u64::from(nsid) * 8,
        read_only: nsid % 2 == 0,
        volatile_write_cache: nsid % 3 == 0,
        deallocate: false,
        uuid: None,
        nguid: Some([1; 16]),
        eui64: None,
        ana_group: nsid % 4 + 1,
        optimal: Optimal::default(),
    };
    let namespaces = nsids.iter().map(|nsid| (*nsid, namespace(*nsid))).collect();
    Arc::new(Subsystem {
        nqn: "nqn.2014-08.org.example:disks".into(),
        serial: "S".into(),
        model: "M".into(),
        firmware: "F".into(),
        kind: match discovery {
            true => Kind::Discovery { generation: 1, entries: Vec::new() },
            false => Kind::Nvm { namespaces, ana: Default::default() },
        },
        hosts: Hosts::Any(HostSettings::default()),
        limits: Limits::default(),
    })
}

fn controller(discovery: bool) -> Controller {
    let connect = Connect {
        qid: 0,
        entries: 32,
        attributes: 0,
        keep_alive_ms: 0,
        host_id: [1; 16],
        cntlid: 0xffff,
        subsystem_nqn: "nqn.2014-08.org.example:disks".into(),
        host_nqn: "nqn.2014-08.org.example:host".into(),
        keyed: false,
    };
    Controller::connect(subsystem(&[1, 2, 3, 1024], discovery), &connect, 1, 0).unwrap().0
}

/// A command that is likely to get past the first check.
fn commands() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![
        Just(admin::GET_LOG_PAGE),
        Just(admin::IDENTIFY),
        Just(admin::ABORT),
        Just(admin::SET_FEATURES),
        Just(admin::GET_FEATURES),
        Just(admin::ASYNC_EVENT_REQUEST),
        Just(admin::KEEP_ALIVE),
        Just(FABRICS),
        any::<u8>(),
    ];
    let dword =
        || prop_oneof![0..0x20u32, any::<u32>(), (0..8u32, 0..0x900u32).prop_map(|(a, b)| a << 16 | b)];
    let flags = prop_oneof![8 => Just(0x40u8), 1 => any::<u8>()];
    let nsid = prop_oneof![0..12u32, any::<u32>()];
    (opcode, flags, nsid, [dword(), dword(), dword(), dword(), dword(), dword()], 0..0x3000u32).prop_map(
        |(opcode, flags, nsid, [a, b, c, d, e, f], room)| Sqe {
            opcode,
            flags,
            nsid: nsid.into(),
            sgl: Sgl::transport(room),
            cdw10: a.into(),
            cdw11: b.into(),
            cdw12: c.into(),
            cdw13: d.into(),
            cdw14: e.into(),
            cdw15: f.into(),
            ..Sqe::default()
        },
    )
}

#[derive(Clone, Debug)]
enum Turn {
    Command(Sqe),
    Enable(bool),
    Update(Vec<u32>),
    Warn(u8),
}

fn turns() -> impl Strategy<Value = Turn> {
    prop_oneof![
        12 => commands().prop_map(Turn::Command),
        1 => any::<bool>().prop_map(Turn::Enable),
        1 => prop::collection::btree_set(1..=1024u32, 0..6).prop_map(|s| Turn::Update(s.into_iter().collect())),
        1 => any::<u8>().prop_map(Turn::Warn),
    ]
}

/// The tag's one answer has come.
fn answered(open: &mut BTreeSet<u16>, tag: u16, cqe: &Cqe) {
    assert!(open.remove(&tag), "{tag} was answered twice");
    assert_eq!(cqe.cid.get(), tag);
}

fn run_effects(controller: &mut Controller, open: &mut BTreeSet<u16>) {
    while let Some(effect) = controller.next_effect() {
        match effect {
            Effect::Complete { tag, cqe } => answered(open, tag, &cqe),
            Effect::Abort { tag, .. } => {
                assert!(open.contains(&tag), "{tag} was answered before its command was looked for");
                controller.aborted(tag, tag % 2 == 0);
            }
            _ => {}
        }
    }
}

fn execute(controller: &mut Controller, open: &mut BTreeSet<u16>, tag: u16, mut sqe: Sqe, now_ms: u64) {
    sqe.cid = tag.into();
    open.insert(tag);
    let bytes = data_out(&sqe).unwrap_or(0);
    assert!(bytes <= ADMIN_DATA_MAX);
    match controller.execute(tag, &sqe, &vec![0xa5; bytes as usize], now_ms) {
        Answer::Complete(cqe) | Answer::Close(cqe) => answered(open, tag, &cqe),
        Answer::Data { data, cqe } => {
            assert!(!data.is_empty() && data.len() <= sqe.sgl.length.get() as usize);
            answered(open, tag, &cqe);
        }
        Answer::Parked => assert!(matches!(sqe.opcode, admin::ASYNC_EVENT_REQUEST | admin::ABORT)),
        Answer::Authenticate => panic!("nobody has to authenticate"),
    }
    run_effects(controller, open);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    // promise: NCT-5
    #[test]
    fn every_command_is_answered_once(turns in prop::collection::vec(turns(), 1..120), discovery in any::<bool>()) {
        let mut controller = controller(discovery);
        let mut open = BTreeSet::new();
        let enable = |on: bool| {
            let cc = if on { Cc::enabled() } else { Cc(0) };
            PropertySet::new(Property::Cc, cc.0.into()).to_sqe()
        };
        execute(&mut controller, &mut open, 9999, enable(true), 0);
        for (tag, turn) in turns.into_iter().enumerate() {
            let (tag, now_ms) = (tag as u16, tag as u64);
            match turn {
                Turn::Command(sqe) => execute(&mut controller, &mut open, tag, sqe, now_ms),
                Turn::Enable(on) => execute(&mut controller, &mut open, tag, enable(on), now_ms),
                Turn::Update(nsids) => controller.update(subsystem(&nsids, discovery)),
                Turn::Warn(critical_warning) => {
                    controller.set_health(forebay_nvme::controller::Health { critical_warning, ..Default::default() });
                }
            }
            run_effects(&mut controller, &mut open);
            prop_assert!(open.len() <= 4, "only as many requests wait as may");
        }
        // What still waits is answered by a reset.
        execute(&mut controller, &mut open, 9998, enable(true), 0);
        execute(&mut controller, &mut open, 9997, enable(false), 0);
        prop_assert!(open.is_empty());
    }

    // promise: NCT-5
    #[test]
    fn any_bytes_are_a_command(bytes in prop::collection::vec(any::<u8>(), 64), data in prop::collection::vec(any::<u8>(), 0..1200)) {
        let sqe = *Sqe::ref_from_bytes(&bytes).unwrap();
        let _ = Connect::parse(&sqe, &data);
        let _ = Connect::parse(&Sqe { opcode: FABRICS, nsid: 1.into(), ..sqe }, &data);
        let mut controller = controller(false);
        let mut open = BTreeSet::new();
        let room = u32::from(bytes[0]) * 64;
        execute(&mut controller, &mut open, 1, Sqe { sgl: Sgl::transport(room), ..sqe }, 0);
    }

    // promise: NCT-7
    #[test]
    fn a_session_outlives_any_controller(
        answers in prop::collection::vec((any::<bool>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..64), any::<u16>()), 1..80),
        lengths in prop::collection::vec(prop_oneof![Just(4096usize), 0..5000usize], 1..80),
    ) {
        let options = Options {
            host_nqn: "nqn.2014-08.org.example:host".into(),
            host_id: [1; 16],
            subsystem_nqn: "nqn.2014-08.org.example:disks".into(),
            queues: 4,
            queue_entries: 32,
            keep_alive_ms: 1000,
            timeout_ms: 500,
            namespace: None,
        };
        let (mut session, mut now_ms) = (Session::new(options, 0), 0);
        let mut turn = 0;
        // As many turns as a hostile controller likes: none of them may take longer than the one before.
        for _ in 0..2000 {
            match session.next(now_ms) {
                Err(_) => break,
                Ok(Action::Wait { until_ms }) => now_ms = until_ms.min(now_ms + 10_000).max(now_ms + 1),
                Ok(Action::Authenticate { .. }) => session.authenticated(now_ms),
                Ok(Action::Event(_)) => {}
                Ok(Action::Submit(request)) => {
                    let (good, result, pattern, status) = &answers[turn % answers.len()];
                    let length = lengths[turn % lengths.len()];
                    turn += 1;
                    // The first steps mostly go well, so that later ones are reached.
                    let well = *good || turn < 8 || status % 4 != 0;
                    let status = if well { Status::SUCCESS } else { Status::from_bits(*status & !1) };
                    let result = if turn == 5 { 1 } else { *result };
                    let data = match request.data {
                        Data::In(bytes) => pattern.iter().copied().cycle().take(length.min(bytes as usize)).collect(),
                        _ => Vec::new(),
                    };
                    session.completed(request.request_id, &Cqe::new(7, status, result), &data, now_ms);
                }
            }
        }
        prop_assert!(session.namespaces().len() <= 4096);
        session.shut_down(now_ms);
        for _ in 0..1000 {
            match session.next(now_ms) {
                Ok(Action::Submit(request)) => session.completed(request.request_id, &Cqe::new(0, Status::SUCCESS, 0), &[], now_ms),
                Ok(Action::Wait { .. }) if !session.is_shut_down() => now_ms += 20,
                Err(_) | Ok(Action::Wait { .. }) => break,
                Ok(_) => {}
            }
        }
    }
}

/// Flaw of an answer.
#[derive(Clone, Debug)]
enum Lie {
    Status(u16),
    Result(u64),
    Byte { at: usize, value: u8 },
    Cut(usize),
}

fn lies() -> impl Strategy<Value = Option<Lie>> {
    prop_oneof![
        30 => Just(None),
        1 => any::<u16>().prop_map(|bits| Some(Lie::Status(bits & !1))),
        1 => any::<u64>().prop_map(|result| Some(Lie::Result(result))),
        4 => (0..600usize, any::<u8>()).prop_map(|(at, value)| Some(Lie::Byte { at, value })),
        1 => (0..4096usize).prop_map(|len| Some(Lie::Cut(len))),
    ]
}

fn tell(lie: Option<&Lie>, cqe: &mut Cqe, data: &mut Vec<u8>) {
    match lie {
        Some(Lie::Status(bits)) => cqe.status = (*bits).into(),
        Some(Lie::Result(result)) => cqe.result = (*result).into(),
        Some(Lie::Byte { at, value }) => _ = data.get_mut(*at).map(|byte| *byte = *value),
        Some(Lie::Cut(len)) => data.truncate(*len),
        None => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// A controller that mostly tells the truth leads a session through all of its steps.
    // promise: NCT-7
    #[test]
    fn a_session_outlives_a_controller_that_lies(
        lies in prop::collection::vec(lies(), 1..200),
        updates in prop::collection::vec(prop::collection::btree_set(1..=1024u32, 0..6), 1..8),
    ) {
        let options = Options {
            host_nqn: "nqn.2014-08.org.example:host".into(),
            host_id: [1; 16],
            subsystem_nqn: "nqn.2014-08.org.example:disks".into(),
            queues: 4,
            queue_entries: 32,
            keep_alive_ms: 2000,
            timeout_ms: 1000,
            namespace: None,
        };
        let (mut session, mut controller, mut now_ms) = (Session::new(options, 0), controller(false), 0);
        let (mut turn, mut connected) = (0, false);
        let mut updates = updates.into_iter();
        for _ in 0..4000 {
            while let Some(effect) = controller.next_effect() {
                if let Effect::Complete { tag, cqe } = effect {
                    session.completed(forebay_nvme::host::RequestId(tag), &cqe, &[], now_ms);
                }
            }
            let request = match session.next(now_ms) {
                Err(_) => break,
                Ok(Action::Wait { until_ms }) => {
                    now_ms = until_ms.clamp(now_ms + 1, now_ms + 500);
                    match updates.next() {
                        Some(nsids) => controller.update(subsystem(&nsids.into_iter().collect::<Vec<_>>(), false)),
                        None => break,
                    }
                    continue;
                }
                Ok(Action::Authenticate { .. }) => {
                    session.authenticated(now_ms);
                    continue;
                }
                Ok(Action::Event(_)) => continue,
                Ok(Action::Submit(request)) => request,
            };
            let room = if let Data::In(bytes) = request.data { bytes } else { 0 };
            let sqe = Sqe { sgl: Sgl::transport(room), cid: request.request_id.0.into(), ..request.sqe };
            let answer = match connected {
                true => controller.execute(request.request_id.0, &sqe, &[], now_ms),
                false => Answer::Complete(Cqe::new(0, Status::SUCCESS, 1)),
            };
            connected = true;
            let (mut cqe, mut data) = match answer {
                Answer::Complete(cqe) => (cqe, Vec::new()),
                Answer::Data { data, cqe } => (cqe, data),
                _ => continue,
            };
            tell(lies[turn % lies.len()].as_ref(), &mut cqe, &mut data);
            turn += 1;
            session.completed(request.request_id, &cqe, &data, now_ms);
        }
        prop_assert!(turn < 3000, "it comes to rest");
    }
}

#[test]
fn an_answer_to_nothing_is_nothing() {
    let options = Options {
        host_nqn: "nqn.2014-08.org.example:host".into(),
        host_id: [1; 16],
        subsystem_nqn: "x".repeat(224),
        queues: 1,
        queue_entries: 2,
        keep_alive_ms: 0,
        timeout_ms: 1,
        namespace: None,
    };
    let mut session = Session::new(options, 0);
    let stray = Cqe::new(1, Status::fatal(Code::INTERNAL_ERROR), 0);
    session.completed(forebay_nvme::host::RequestId(77), &stray, stray.as_bytes(), 0);
    let failure = session.next(0).unwrap_err();
    assert!(failure.to_string().contains("223 bytes"), "{failure}");
}
