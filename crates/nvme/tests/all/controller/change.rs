//! Features, events, Abort.

use super::*;

// promise: NCT-3
#[test]
fn features_have_values_bounds_and_capabilities() {
    let mut controller = controller();
    let c = &mut controller;
    assert_eq!(set_feature(c, fid::NUMBER_OF_QUEUES, 0x003f_003f), Ok(0x000f_000f));
    assert_eq!(set_feature(c, fid::NUMBER_OF_QUEUES, 0x0000_ffff), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(c, fid::NUMBER_OF_QUEUES, 0xffff_0000), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(c, fid::ASYNC_EVENT_CONFIG, 0x91f), Ok(0));
    assert_eq!(feature(c, fid::ASYNC_EVENT_CONFIG), Ok(0x91f));
    assert_eq!(set_feature(c, fid::ASYNC_EVENT_CONFIG, 1 << 31), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(c, fid::KEEP_ALIVE_TIMER, 15_000), Ok(0));
    assert_eq!(feature(c, fid::KEEP_ALIVE_TIMER), Ok(15_000));
    assert_eq!(c.deadline_ms(), Some(15_000));
    assert_eq!(set_feature(c, fid::KEEP_ALIVE_TIMER, 0), Ok(0));
    assert_eq!(c.deadline_ms(), None);
    assert_eq!(feature(c, fid::VOLATILE_WRITE_CACHE), Err(Code::INVALID_FIELD), "there is none");
    assert_eq!(set_feature(c, fid::POWER_MANAGEMENT, 1), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(c, fid::ERROR_RECOVERY, 1 << 16 | 5), Err(Code::INVALID_FIELD));
    assert_eq!(set_feature(c, fid::ERROR_RECOVERY, 5), Ok(0));
    assert_eq!(feature(c, fid::ERROR_RECOVERY), Ok(5));
    assert_eq!(set_feature(c, fid::TEMPERATURE_THRESHOLD, 350), Ok(0));
    assert_eq!(set_feature(c, fid::TEMPERATURE_THRESHOLD, 1 << 16), Err(Code::INVALID_FIELD));
    assert_eq!(feature(c, fid::TEMPERATURE_THRESHOLD), Ok(350));
    assert_eq!(set_feature(c, fid::HOST_IDENTIFIER, 1), Err(Code::COMMAND_SEQUENCE_ERROR));
    assert_eq!(set_feature(c, 0x77, 0), Err(Code::INVALID_FIELD));
    let saved = SetFeatures { save: true, ..SetFeatures::new(fid::WRITE_ATOMICITY, 1) };
    assert_eq!(value_of(complete(c, saved.to_sqe())), Err(Code::FEATURE_NOT_SAVEABLE));
    let selected =
        |c: &mut Controller, fid, select| value_of(complete(c, GetFeatures::new(fid, select).to_sqe()));
    assert_eq!(selected(c, fid::ERROR_RECOVERY, Select::Default), Ok(0));
    assert_eq!(selected(c, fid::ERROR_RECOVERY, Select::Saved), Ok(0));
    assert_eq!(selected(c, fid::ERROR_RECOVERY, Select::Capabilities), Ok(0b100));
    assert_eq!(selected(c, fid::HOST_IDENTIFIER, Select::Capabilities), Ok(0));
    assert_eq!(selected(c, fid::NAMESPACE_WRITE_PROTECTION, Select::Capabilities), Ok(0b010));
    controller.connect_io(&connect(1, 8, 1), 0).unwrap();
    assert_eq!(set_feature(&mut controller, fid::NUMBER_OF_QUEUES, 0), Err(Code::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn a_host_gets_its_identifier_and_each_namespaces_protection() {
    let mut controller = controller();
    let long = GetFeatures { cdw11: 1, ..GetFeatures::new(fid::HOST_IDENTIFIER, Select::Current) };
    assert_eq!(data(&mut controller, long.to_sqe(), 16), Ok(vec![1; 16]));
    assert_eq!(feature(&mut controller, fid::HOST_IDENTIFIER), Err(Code::INVALID_FIELD), "64 bits");
    let protection = |controller: &mut Controller, nsid| {
        let get = GetFeatures { nsid, ..GetFeatures::new(fid::NAMESPACE_WRITE_PROTECTION, Select::Current) };
        value_of(complete(controller, get.to_sqe()))
    };
    assert_eq!(protection(&mut controller, 1), Ok(0));
    assert_eq!(protection(&mut controller, 7), Ok(1));
    assert_eq!(protection(&mut controller, u32::MAX), Err(Code::INVALID_NAMESPACE));
    let protect =
        |nsid, value| SetFeatures { nsid, ..SetFeatures::new(fid::NAMESPACE_WRITE_PROTECTION, value) };
    assert_eq!(value_of(complete(&mut controller, protect(7, 1).to_sqe())), Ok(0));
    assert_eq!(
        value_of(complete(&mut controller, protect(7, 0).to_sqe())),
        Err(Code::FEATURE_NOT_CHANGEABLE)
    );
}

#[test]
fn a_timestamp_is_set_and_goes_on() {
    let mut controller = controller();
    let get = GetFeatures::new(fid::TIMESTAMP, Select::Current);
    let read = |controller: &mut Controller, now_ms| {
        let sqe = Sqe { sgl: Sgl::transport(8), ..get.to_sqe() };
        let Answer::Data { data, .. } = controller.execute(1, &sqe, &[], now_ms) else {
            panic!("it has data")
        };
        u64::from_le_bytes(data.try_into().unwrap())
    };
    assert_eq!(read(&mut controller, 30), 30, "since it was connected, and nobody set it");
    let set = Sqe { sgl: Sgl::transport(8), ..SetFeatures::new(fid::TIMESTAMP, 0).to_sqe() };
    assert_eq!(data_out(&set), Ok(8));
    let code = |answer| match answer {
        Answer::Complete(cqe) => cqe.status().code,
        other => panic!("{other:?}"),
    };
    let value = 1_700_000_000_000u64;
    assert_eq!(code(controller.execute(1, &set, &value.to_le_bytes(), 100)), Code::SUCCESS);
    assert_eq!(read(&mut controller, 350), (value + 250) | 1 << 49, "by a host");
    assert_eq!(code(controller.execute(1, &set, &[0; 7], 100)), Code::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn the_write_cache_is_switched_where_there_is_one() {
    let cached = changed(|all, _| all.get_mut(&1).unwrap().volatile_write_cache = true);
    let mut controller = enabled((*cached).clone());
    assert!(controller.write_cache());
    assert_eq!(feature(&mut controller, fid::VOLATILE_WRITE_CACHE), Ok(1));
    let bytes = identify(&mut controller, cns::CONTROLLER, 0).unwrap();
    assert_eq!(identify::Controller::read(&bytes).unwrap().vwc & 1, 1);
    assert_eq!(set_feature(&mut controller, fid::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert_eq!(effects(&mut controller), [Effect::WriteCache { enabled: false }]);
    assert!(!controller.write_cache());
    set_feature(&mut controller, fid::VOLATILE_WRITE_CACHE, 0).unwrap();
    assert_eq!(effects(&mut controller), []);
}

// promise: NCT-4
#[test]
fn events_wait_for_a_request_and_requests_for_an_event() {
    let mut controller = controller();
    let c = &mut controller;
    set_feature(c, fid::ASYNC_EVENT_CONFIG, 0x900).unwrap();
    for cid in 1..=3 {
        assert_eq!(request_event(c, cid), Answer::Parked);
    }
    let fourth = request_event(c, 4);
    assert!(matches!(fourth, Answer::Complete(cqe) if cqe.status().code == Code::ASYNC_EVENT_LIMIT));
    let reported = |tag: u16, result| Effect::Complete { tag, cqe: Cqe::new(tag, Status::SUCCESS, result) };
    c.update(changed(|all, _| _ = all.remove(&7)));
    assert_eq!(effects(c), [reported(1, 0x04_0002)]);
    c.update(changed(|all, _| _ = all.insert(9, namespace(5))));
    assert_eq!(effects(c), [], "masked until the log is read");
    let retained = GetLogPage { rae: true, ..GetLogPage::new(lid::CHANGED_NAMESPACES, 0, 4096) };
    let list = |c: &mut Controller, page| {
        let bytes = log(c, page).unwrap();
        ChangedNamespaces::read(&bytes).unwrap().changed().unwrap().collect::<Vec<_>>()
    };
    assert_eq!(list(c, retained), [7, 9]);
    assert_eq!(list(c, GetLogPage { rae: false, ..retained }), [7, 9]);
    assert!(list(c, retained).is_empty(), "reading has cleared it");
    c.update(changed(|_, ana| _ = ana.insert(2, AnaState::Inaccessible)));
    assert_eq!(
        effects(c),
        [reported(2, 0x04_0002), reported(3, 0x0c_0302)],
        "namespaces came and went, and a state changed"
    );
    log(c, GetLogPage::new(lid::ANA, 0, 1024)).unwrap();
    c.update(changed(|_, ana| _ = ana.insert(2, AnaState::Optimized)));
    assert_eq!(effects(c), [], "no request is left");
    assert_eq!(request_event(c, 5), Answer::Parked);
    assert_eq!(effects(c), [reported(5, 0x0c_0302)], "it was kept");
}

// promise: NCT-4
#[test]
fn events_that_nobody_asked_for_are_not_sent() {
    let mut controller = controller();
    request_event(&mut controller, 1);
    controller.update(changed(|all, _| all.clear()));
    controller.set_health(Health { critical_warning: 0x3f, ..Health::default() });
    assert_eq!(effects(&mut controller), []);
    set_feature(&mut controller, fid::ASYNC_EVENT_CONFIG, 0b10).unwrap();
    let reported = Effect::Complete { tag: 1, cqe: Cqe::new(1, Status::SUCCESS, 0x02_0101) };
    assert_eq!(effects(&mut controller), [reported], "a warning that is there is told to who asks");
}

#[test]
fn abort_reaches_requests_that_wait_and_nothing_else() {
    let mut controller = controller();
    request_event(&mut controller, 33);
    let abort = |controller: &mut Controller, sqid: u32, cid: u32| {
        let sqe = Sqe { opcode: admin::ABORT, cdw10: (sqid | cid << 16).into(), ..Sqe::default() };
        value_of(complete(controller, sqe))
    };
    assert_eq!(abort(&mut controller, 1, 33), Ok(1));
    assert_eq!(abort(&mut controller, 0, 34), Ok(1));
    assert_eq!(abort(&mut controller, 0, 33), Ok(0));
    let aborted = Cqe::new(33, Status::again(Code::ABORT_REQUESTED), 0);
    assert_eq!(effects(&mut controller), [Effect::Complete { tag: 33, cqe: aborted }]);
}

// promise: TGT-12
#[test]
fn an_abort_of_an_io_command_is_answered_when_the_driver_says_what_came_of_it() {
    let mut controller = controller();
    controller.connect_io(&connect(1, 8, 1), 0).unwrap();
    let abort = |controller: &mut Controller, cid: u16| {
        let names = 1 | u32::from(cid) << 16;
        let sqe = Sqe { opcode: admin::ABORT, cid: cid.into(), cdw10: names.into(), ..Sqe::default() };
        run(controller, sqe, 0)
    };
    for cid in 20..24 {
        assert_eq!(abort(&mut controller, cid), Answer::Parked);
        assert_eq!(effects(&mut controller), [Effect::Abort { tag: cid, sqid: 1, cid }]);
    }
    let Answer::Complete(cqe) = abort(&mut controller, 24) else { panic!("one more than ACL says") };
    assert_eq!(cqe.status().code, Code::ABORT_LIMIT);
    let answer =
        |cid: u16, result| Effect::Complete { tag: cid, cqe: Cqe::new(cid, Status::SUCCESS, result) };
    controller.aborted(21, true);
    controller.aborted(21, true);
    controller.aborted(20, false);
    assert_eq!(effects(&mut controller), [answer(21, 0), answer(20, 1)]);
    assert_eq!(abort(&mut controller, 25), Answer::Parked, "there is room again");
    set(&mut controller, Cc(0x0046_0000));
    let reported = effects(&mut controller);
    assert_eq!(reported[1..], [answer(22, 1), answer(23, 1), answer(25, 1), Effect::CloseIoQueues]);
    controller.aborted(22, true);
    assert_eq!(effects(&mut controller), [], "what the reset answered isn't answered again");
}
