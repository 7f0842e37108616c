//! Connecting, enabling, resetting, ending.

use super::*;

// promise: NCT-1
#[test]
fn a_connect_that_is_wrong_says_where() {
    type Change = fn(&mut fabrics::Connect, &mut ConnectData);
    let wrong: &[(Change, Code, Option<InvalidParameter>)] = &[
        (|c, _| c.recfmt = 1.into(), Code::INCOMPATIBLE_FORMAT, None),
        (|c, _| c.fctype = 8, Code::COMMAND_SEQUENCE_ERROR, None),
        (|c, _| c.opcode = 6, Code::COMMAND_SEQUENCE_ERROR, None),
        (|c, _| c.sqsize = 0.into(), Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Command(44))),
        (
            |c, _| c.sqsize = 0xffff.into(),
            Code::CONNECT_INVALID_PARAMETERS,
            Some(InvalidParameter::Command(44)),
        ),
        (
            |c, _| c.sqsize = ENTRIES.into(),
            Code::CONNECT_INVALID_PARAMETERS,
            Some(InvalidParameter::Command(44)),
        ),
        (|c, _| c.qid = 1.into(), Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Command(42))),
        (|_, d| d.cntlid = 1.into(), Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Data(16))),
        (|_, d| d.subnqn[5] ^= 1, Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Data(256))),
        (|_, d| d.subnqn = [b'n'; 256], Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Data(256))),
        (|_, d| d.subnqn[0] = 0, Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Data(256))),
        (|_, d| d.hostnqn[0] = 0, Code::CONNECT_INVALID_HOST, Some(InvalidParameter::Data(512))),
        (|_, d| d.hostnqn[9] = b'\n', Code::CONNECT_INVALID_PARAMETERS, Some(InvalidParameter::Data(512))),
        (|_, d| d.hostnqn[9] = b'x', Code::CONNECT_INVALID_HOST, Some(InvalidParameter::Data(512))),
    ];
    let hosts = Hosts::Listed([(HOST.to_string(), HostSettings::default())].into());
    let subsystem = Arc::new(Subsystem { hosts, ..subsystem() });
    for (index, (change, code, parameter)) in wrong.iter().enumerate() {
        let (mut command, mut data) = connect_parts(0, 32, 0xffff, NQN);
        change(&mut command, &mut data);
        let refusal = Connect::parse(&command.to_sqe(), data.as_bytes())
            .and_then(|connect| Controller::connect(subsystem.clone(), &connect, 1, 0))
            .unwrap_err();
        assert_eq!(refusal.status, Status::fatal(*code), "{index}: {refusal}");
        assert_eq!(refusal.result, parameter.map_or(0, InvalidParameter::to_result), "{index}: {refusal}");
        assert!(!refusal.what.is_empty() && !refusal.what.chars().any(char::is_control));
    }
    let (command, mut data) = connect_parts(0, 32, 0xffff, NQN);
    let short = Connect::parse(&command.to_sqe(), &data.as_bytes()[..1023]).unwrap_err();
    assert_eq!(short.status.code, Code::DATA_SGL_LENGTH_INVALID);
    data.hostnqn = [0; 256];
    let unnamed = Connect::parse(&command.to_sqe(), data.as_bytes()).unwrap();
    let anyone = Arc::new(Subsystem { hosts: Hosts::Any(HostSettings::default()), ..(*subsystem).clone() });
    assert!(
        Controller::connect(anyone, &unnamed, 1, 0).is_ok(),
        "a name is needed only where names are listed"
    );
    assert_eq!(host_name(&unnamed.host_nqn), "(without a name)");
}

// promise: NCT-1
#[test]
fn an_io_queue_must_belong_to_its_controller() {
    let mut controller = connected(subsystem());
    let early = controller.connect_io(&connect(1, 8, 1), 0).unwrap_err();
    assert_eq!(early.status.code, Code::COMMAND_SEQUENCE_ERROR, "not enabled");
    set(&mut controller, Cc::enabled());
    let wrong = |connect: Connect, at: InvalidParameter, controller: &mut Controller| {
        let refusal = controller.connect_io(&connect, 0).unwrap_err();
        assert_eq!(refusal.status.code, Code::CONNECT_INVALID_PARAMETERS, "{refusal}");
        assert_eq!(refusal.result, at.to_result(), "{refusal}");
    };
    let good = connect(1, ENTRIES, 1);
    let c = &mut controller;
    wrong(Connect { cntlid: 2, ..good.clone() }, InvalidParameter::Data(16), c);
    wrong(
        Connect { subsystem_nqn: "nqn.2014-08.org.example:x".into(), ..good.clone() },
        InvalidParameter::Data(256),
        c,
    );
    wrong(
        Connect { host_nqn: "nqn.2014-08.org.example:x".into(), ..good.clone() },
        InvalidParameter::Data(512),
        c,
    );
    wrong(Connect { host_id: [2; 16], ..good.clone() }, InvalidParameter::Data(0), c);
    wrong(Connect { qid: 17, ..good.clone() }, InvalidParameter::Command(42), c);
    wrong(Connect { qid: 0, ..good.clone() }, InvalidParameter::Command(42), c);
    wrong(Connect { entries: ENTRIES + 1, ..good.clone() }, InvalidParameter::Command(44), c);
    let admitted =
        c.connect_io(&Connect { attributes: cattr::DISABLE_SQ_FLOW_CONTROL, ..good.clone() }, 0).unwrap();
    assert_eq!(
        (admitted.qid, admitted.entries, admitted.no_flow_control, admitted.result),
        (1, ENTRIES, true, 1)
    );
    let twice = c.connect_io(&good, 0).unwrap_err();
    assert_eq!(twice.status, Status::fatal(Code::COMMAND_SEQUENCE_ERROR));
}

// promise: NCT-1
#[test]
fn a_hosts_own_limits_are_its_controllers() {
    let settings = HostSettings { queues: Some(2), queue_entries: Some(16), authentication: false };
    let mut controller =
        enabled(Subsystem { hosts: Hosts::Listed([(HOST.to_string(), settings)].into()), ..subsystem() });
    assert_eq!(Cap(get(&mut controller, Property::Cap)).queue_entries_max(), 16);
    assert_eq!(feature(&mut controller, fid::NUMBER_OF_QUEUES), Ok(0x0001_0001));
    assert!(controller.connect_io(&connect(3, 16, 1), 0).is_err());
    assert!(controller.connect_io(&connect(2, 17, 1), 0).is_err());
    assert!(controller.connect_io(&connect(2, 16, 1), 0).is_ok());
}

// promise: TGT-7
#[test]
fn a_controller_is_granted_what_its_driver_can_still_take_but_never_none() {
    let mut controller = enabled(subsystem());
    let all = feature(&mut controller, fid::NUMBER_OF_QUEUES);
    for (most, granted) in [(3, Ok(0x0002_0002)), (0, Ok(0)), (1000, all), (2, Ok(0x0001_0001))] {
        controller.limit_queues(most);
        assert_eq!(set_feature(&mut controller, fid::NUMBER_OF_QUEUES, 0x0007_0007), granted, "{most}");
    }
    assert!(controller.connect_io(&connect(3, 16, 1), 0).is_err());
    assert!(controller.connect_io(&connect(2, 16, 1), 0).is_ok());
    controller.limit_queues(1);
    assert_eq!(feature(&mut controller, fid::NUMBER_OF_QUEUES), Ok(0x0001_0001), "not while it has queues");
}

// promise: NCT-2
#[test]
fn properties_say_what_hosts_look_at() {
    let mut controller = connected(subsystem());
    let cap = Cap(get(&mut controller, Property::Cap));
    assert_eq!((cap.queue_entries_max(), cap.page_bytes_min(), cap.cqr()), (128, 4096, true));
    assert_eq!(cap.css() & 0b0100_0001, 0b0100_0001, "NVM, and I/O command sets");
    assert!(cap.timeout_ms() > 0);
    assert_eq!(get(&mut controller, Property::Vs), 0x20000);
    assert_eq!(get(&mut controller, Property::Cc), 0);
    assert_eq!(status_of(&mut controller), Csts(0));
    assert_eq!(get(&mut controller, Property::Crto), 1);
    for (offset, attrib) in [(0x14, 1), (0, 0), (0x18, 0), (0x1000, 0), (0xffff_fffc, 1)] {
        let get = fabrics::PropertyGet { attrib, ofst: offset.into(), ..PropertyGet::new(Property::Cc) };
        assert_eq!(complete(&mut controller, get.to_sqe()).status().code, Code::INVALID_FIELD, "{offset:#x}");
    }
    for property in [Property::Cap, Property::Vs, Property::Csts, Property::Nssr, Property::Crto] {
        let sqe = PropertySet::new(property, 1).to_sqe();
        assert_eq!(
            complete(&mut controller, sqe).status(),
            Status { more: true, ..Status::fatal(Code::INVALID_FIELD) }
        );
    }
}

// promise: NCT-2
#[test]
fn what_cc_asks_for_must_be_on_offer() {
    for (cc, ready) in [
        (0x0046_0001, true),
        (0x0046_0061, true),
        (0x0046_0011, false),
        (0x0046_0081, false),
        (0x0046_0801, false),
        (0x0045_0001, false),
        (0x0036_0001, false),
    ] {
        let mut controller = connected(subsystem());
        set(&mut controller, Cc(cc));
        let status = status_of(&mut controller);
        assert_eq!((status.ready(), status.fatal()), (ready, !ready), "{cc:#x}");
        set(&mut controller, Cc(cc & !1));
        assert_eq!(status_of(&mut controller), Csts(0), "a reset mends it");
        set(&mut controller, Cc::enabled());
        assert!(status_of(&mut controller).ready());
    }
    let mut discovery = connected(discovery_subsystem(1));
    set(&mut discovery, Cc(1));
    assert!(status_of(&mut discovery).ready(), "it has no I/O queues to speak of");
}

// promise: NCT-2
#[test]
fn a_reset_takes_queues_events_and_features_back() {
    let mut controller = controller();
    set_feature(&mut controller, fid::ASYNC_EVENT_CONFIG, 0x100).unwrap();
    controller.connect_io(&connect(1, 8, 1), 0).unwrap();
    assert_eq!(request_event(&mut controller, 70), Answer::Parked);
    set(&mut controller, Cc(0x0046_0000));
    let aborted = Cqe::new(70, Status::again(Code::ABORTED_SQ_DELETION), 0);
    assert_eq!(effects(&mut controller), [Effect::Complete { tag: 70, cqe: aborted }, Effect::CloseIoQueues]);
    assert!(!controller.ready());
    assert_eq!(identify(&mut controller, cns::CONTROLLER, 0), Err(Code::COMMAND_SEQUENCE_ERROR));
    set(&mut controller, Cc::enabled());
    assert_eq!(feature(&mut controller, fid::ASYNC_EVENT_CONFIG), Ok(0));
    controller.connect_io(&connect(1, 8, 1), 0).unwrap();
}

// promise: NCT-2
#[test]
fn a_shutdown_is_complete_when_the_driver_says_so() {
    let mut controller = controller();
    set_feature(&mut controller, fid::ASYNC_EVENT_CONFIG, 0x100).unwrap();
    assert_eq!(request_event(&mut controller, 70), Answer::Parked);
    set(&mut controller, Cc::enabled().with_shn(1));
    assert_eq!(status_of(&mut controller).shutdown(), 1);
    let mut fewer = subsystem();
    if let Kind::Nvm { namespaces, .. } = &mut fewer.kind {
        namespaces.remove(&7);
    }
    controller.update(Arc::new(fewer));
    assert_eq!(effects(&mut controller), [Effect::ShutDown], "event requests stay unanswered");
    assert!(!controller.ready());
    controller.shut_down_complete();
    assert_eq!(status_of(&mut controller).shutdown(), 2);
    set(&mut controller, Cc(0));
    assert_eq!(status_of(&mut controller), Csts(0));
}

// promise: NCT-6
#[test]
fn keep_alive_is_kept_within_bounds() {
    let limits = |required| Limits {
        keep_alive_granularity_ms: 1000,
        keep_alive_ms: 2000..=60_000,
        keep_alive_required: required,
        ..Limits::default()
    };
    for (asked, required, granted) in [
        (0, false, None),
        (0, true, Some(60_000)),
        (1, false, Some(2000)),
        (2500, false, Some(3000)),
        (u32::MAX, false, Some(60_000)),
    ] {
        let subsystem = Arc::new(Subsystem { limits: limits(required), ..subsystem() });
        let connect = Connect { keep_alive_ms: asked, ..connect(0, 32, 0xffff) };
        let (controller, _) = Controller::connect(subsystem, &connect, 1, 500).unwrap();
        assert_eq!(controller.deadline_ms(), granted.map(|ms: u64| 500 + ms), "{asked}");
    }
}
#[test]
fn commands_out_of_place_are_refused() {
    let mut early = connected(subsystem());
    for opcode in [admin::IDENTIFY, admin::KEEP_ALIVE, admin::ASYNC_EVENT_REQUEST, 0xff] {
        let cqe = complete(&mut early, Sqe { opcode, ..Sqe::default() });
        assert_eq!(cqe.status().code, Code::COMMAND_SEQUENCE_ERROR);
    }
    let mut controller = controller();
    let mut code = |sqe: Sqe| complete(&mut controller, sqe).status().code;
    assert_eq!(code(Sqe { opcode: 0x7e, ..Sqe::default() }), Code::INVALID_OPCODE);
    assert_eq!(code(Sqe { opcode: admin::KEEP_ALIVE, flags: 1, ..Sqe::default() }), Code::INVALID_FIELD);
    assert_eq!(code(Disconnect::new().to_sqe()), Code::INVALID_QUEUE_TYPE);
    assert_eq!(code(fabrics::Connect::new(0, 32, 0).to_sqe()), Code::COMMAND_SEQUENCE_ERROR);
    assert_eq!(code(Sqe { opcode: FABRICS, nsid: 0x55.into(), ..Sqe::default() }), Code::INVALID_OPCODE);
    assert!(matches!(fabrics_on_io_queue(&Disconnect::new().to_sqe(), false), Answer::Close(_)));
    let refusal = |sqe: &Sqe| match fabrics_on_io_queue(sqe, false) {
        Answer::Complete(cqe) => cqe.status().code,
        _ => Code::SUCCESS,
    };
    let again = Sqe { sgl: Sgl::in_capsule(1024), ..fabrics::Connect::new(1, 32, 0).to_sqe() };
    assert_eq!(refusal(&again), Code::COMMAND_SEQUENCE_ERROR);
    let unknown = Sqe { opcode: FABRICS, nsid: 1.into(), ..Sqe::default() };
    assert_eq!(refusal(&unknown), Code::INVALID_OPCODE, "looks like a Connect, and brings none of its data");
    let property = PropertyGet::new(Property::Cap).to_sqe();
    assert!(
        matches!(fabrics_on_io_queue(&property, false), Answer::Complete(cqe) if !cqe.status().is_success())
    );
    let long = Sqe { sgl: Sgl::transport(8193), ..fabrics::Connect::new(0, 32, 0).to_sqe() };
    assert_eq!(data_out(&long), Err(Status::fatal(Code::DATA_SGL_LENGTH_INVALID)));
}

#[test]
fn a_discovery_controller_has_its_log_and_little_else() {
    let mut controller = enabled(discovery_subsystem(2));
    let bytes = identify(&mut controller, cns::CONTROLLER, 0).unwrap();
    let id = identify::Controller::read(&bytes).unwrap();
    assert_eq!((id.cntrltype, id.oaes.get(), id.nn.get(), id.sqes), (2, 1 << 31, 0, 0));
    assert_eq!(identify(&mut controller, cns::ACTIVE_NAMESPACES, 0), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(&mut controller, fid::NUMBER_OF_QUEUES, 0), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(&mut controller, fid::ASYNC_EVENT_CONFIG, 1 << 31), Ok(0));
    let io = Connect { subsystem_nqn: DISCOVERY.into(), ..connect(1, 8, 1) };
    request_event(&mut controller, 8);
    let page = log(&mut controller, GetLogPage::new(lid::DISCOVERY, 0, 4096)).unwrap();
    assert_eq!((page[0], page[8], page[1024]), (2, 2, 3), "generation, entries, TCP");
    controller.update(Arc::new(discovery_subsystem(2)));
    assert_eq!(effects(&mut controller), [], "nothing changed");
    controller.update(Arc::new(discovery_subsystem(3)));
    let reported = Effect::Complete { tag: 8, cqe: Cqe::new(8, Status::SUCCESS, 0x70_f002) };
    assert_eq!(effects(&mut controller), [reported]);
    let refusal = controller.connect_io(&io, 0).unwrap_err();
    assert_eq!(refusal.result, InvalidParameter::Command(42).to_result(), "it has no I/O queues: {refusal}");
}
