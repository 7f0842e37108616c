//! The device alone, register by register and command by command: what hosts look at, and what hostile ones get.

use crate::raw::*;
use forebay_nvme::command::{admin, Cqe, Sqe};
use forebay_nvme::controller::Health;
use forebay_nvme::feature::{fid, AsyncEvent, GetFeatures, Queues, Select, SetFeatures};
use forebay_nvme::identify::{self, cns, cntrltype, Identify};
use forebay_nvme::log::{lid, CommandEffects, GetLogPage};
use forebay_nvme::status::Code;
use forebay_nvme::transport::pcie::data;
use forebay_nvme::transport::pcie::device::Settings;
use forebay_nvme::transport::pcie::host::Bar;
use forebay_nvme::transport::pcie::memory::HostMemory;
use forebay_nvme::transport::pcie::registers::{offset, Aqa, Doorbell, SUBSYSTEM_RESET};
use zerocopy::{FromBytes, IntoBytes};

// promise: PCI-6
#[test]
fn registers_say_what_the_controller_is() {
    let mut raw = Raw::off();
    let cap = raw.world.read(offset::CAP, 8).unwrap();
    // MQES 63, CQR, TO 500 ms, DSTRD 0, NSSRS, CSS NVM and sets, MPSMIN 4 KiB, MPSMAX 64 KiB, CRMS.
    assert_eq!(cap, 0x0840_0830_0101_003f);
    assert_eq!((raw.read(offset::CAP), raw.read(offset::CAP + 4)), (cap as u32, (cap >> 32) as u32));
    assert_eq!((raw.read(offset::VS), raw.csts(), raw.read(offset::CC)), (0x2_0000, 0, 0));
    let mut byte = [0];
    raw.world.device.read(offset::VS + 2, &mut byte);
    assert_eq!(byte, [2]);
    // Addresses of queues keep their page; a register may be written in two halves.
    raw.write(offset::ASQ, 0x1234_5678);
    raw.write(offset::ASQ + 4, 0x9);
    assert_eq!(raw.world.read(offset::ASQ, 8).unwrap(), 0x9_1234_5000);
    raw.write(offset::INTMS, 0b101);
    raw.write(offset::INTMC, 0b100);
    assert_eq!((raw.read(offset::INTMS), raw.read(offset::INTMC)), (1, 1));
    // Nothing is behind the registers, nor behind the BAR.
    let mut beyond = [7; 16];
    raw.world.device.read(u64::MAX - 7, &mut beyond);
    assert_eq!(beyond[..8], [0; 8]);
    assert_eq!(raw.world.device.bar_bytes(), 0x4000);
}

// promise: PCI-6
#[test]
fn identify_speaks_of_a_drive_and_not_of_a_fabric() {
    let mut raw = Raw::on();
    let controller = raw.identify();
    assert_eq!((controller.cntrltype, controller.cntlid.get(), controller.mdts), (cntrltype::IO, 1, 5));
    assert_eq!((controller.sgls.get(), controller.oacs.get()), (1, 1 << 8));
    assert_eq!((controller.ioccsz.get(), controller.iorcsz.get(), controller.kas.get()), (0, 0, 0));
    assert_eq!((controller.cmic, controller.anacap, controller.oaes.get()), (0, 0, 1 << 8));
    let (_, data) =
        raw.ask_data(Identify { cns: cns::NAMESPACE, nsid: 1, ..Identify::default() }.to_sqe(), 4096);
    let namespace = identify::Namespace::read(&data).unwrap();
    assert_eq!((namespace.nmic, namespace.anagrpid.get()), (0, 0));
    let page = GetLogPage::new(lid::COMMAND_EFFECTS, 0, 4096).to_sqe();
    let (_, data) = raw.ask_data(page, 4096);
    let effects = CommandEffects::read_from_bytes(&data[..]).unwrap();
    let supported = |opcode: u8| effects.as_bytes()[usize::from(opcode) * 4] & 1 != 0;
    let own = [0x00, 0x01, 0x04, 0x05, 0x7c];
    assert!(own.into_iter().all(supported) && !supported(admin::KEEP_ALIVE));
    let (cqe, _) = raw.ask_data(GetLogPage::new(lid::ANA, 0, 512).to_sqe(), 0);
    assert_eq!(cqe.status().code, Code::INVALID_LOG_PAGE);
    assert_eq!(raw.code(Sqe { opcode: admin::KEEP_ALIVE, ..Sqe::default() }), Code::INVALID_OPCODE);
    assert_eq!(raw.code(Sqe { opcode: 0x7f, ..Sqe::default() }), Code::INVALID_OPCODE, "no Fabrics");
}

// promise: PCI-5
#[test]
fn enabling_with_what_cannot_be_is_fatal() {
    for cc in [0x46_0001 | 5 << 7, 0x46_0001 | 1 << 11, 0x46_0001 | 1 << 4] {
        let mut raw = Raw::off();
        raw.write(offset::AQA, Aqa::new(2, 2).0);
        raw.world.write(offset::ASQ, 8, BASE).unwrap();
        raw.world.write(offset::ACQ, 8, BASE).unwrap();
        raw.write(offset::CC, cc);
        assert_eq!((raw.csts(), raw.world.fatal.len()), (2, 1), "{cc:#x}");
        raw.write(offset::CC, 0);
        assert_eq!(raw.csts(), 0, "a reset mends it");
    }
    let mut raw = Raw::off();
    raw.write(offset::CC, ENABLED);
    assert_eq!(raw.csts(), 2, "an admin queue of one entry");
    let mut raw = Raw::off();
    raw.write(offset::AQA, Aqa::new(2, 2).0);
    raw.world.write(offset::ASQ, 8, BASE + 0x1000).unwrap();
    raw.write(offset::CC, ENABLED | 4 << 7);
    assert_eq!(raw.csts(), 2, "64 KiB pages: the queue has an offset");
}

// promise: PCI-5
#[test]
fn queue_memory_outside_of_the_hosts_is_fatal_and_nothing_worse() {
    let mut raw = Raw::off();
    raw.write(offset::AQA, Aqa::new(16, 16).0);
    raw.world.write(offset::ASQ, 8, 0xffff_ffff_ffff_f000).unwrap();
    raw.world.write(offset::ACQ, 8, COMPLETIONS).unwrap();
    raw.write(offset::CC, ENABLED);
    assert_eq!(raw.csts(), 1);
    raw.write(Doorbell::Submission(0).offset(0), 3);
    assert_eq!(raw.csts(), 3, "CSTS.CFS");
    raw.write(offset::CC, 0);
    assert_eq!(raw.csts(), 0);
    raw.enable();
    raw.identify();
    // A completion queue that is not there.
    let mut raw = Raw::on();
    raw.write(offset::CC, 0);
    raw.world.write(offset::ACQ, 8, 0x7000_0000).unwrap();
    raw.write(offset::CC, ENABLED);
    raw.tail = 0;
    raw.push(Identify::default().to_sqe());
    assert_eq!(raw.csts(), 3);
}

// promise: PCI-5
#[test]
fn wrong_doorbells_are_told_by_asynchronous_events() {
    let mut raw = Raw::on();
    let event = raw.event();
    raw.write(Doorbell::Submission(5).offset(0), 1);
    let cqe = raw.answer(event).expect("an event");
    let reported = AsyncEvent::from_result(cqe.result.get());
    assert_eq!((reported.kind, reported.information, reported.lid), (0, 0, lid::ERROR_INFORMATION));
    // Masked until the log is read; then told anew.
    let event = raw.event();
    raw.write(Doorbell::Completion(5).offset(0), 1);
    assert!(raw.answer(event).is_none());
    raw.ask_data(GetLogPage::new(lid::ERROR_INFORMATION, 0, 64).to_sqe(), 64);
    raw.write(Doorbell::Completion(0).offset(0), 1000);
    let reported = AsyncEvent::from_result(raw.answer(event).expect("an event").result.get());
    assert_eq!((reported.kind, reported.information), (0, 1));
    // Garbage all over the doorbells changes nothing.
    for qid in 0..=u16::MAX {
        raw.write(Doorbell::Submission(qid).offset(0), u32::from(qid) | 0x10_0000);
        raw.write(Doorbell::Completion(qid).offset(0), u32::MAX);
    }
    assert_eq!(raw.csts(), 1);
    raw.identify();
}

// promise: PCI-5
#[test]
fn queues_are_created_as_the_specification_has_it_or_refused() {
    let mut raw = Raw::on();
    let granted = raw.ask(SetFeatures::new(fid::NUMBER_OF_QUEUES, Queues::both(65_535).to_dword()).to_sqe());
    assert_eq!(Queues::from_dword(granted.result.get() as u32), Queues::both(8));
    let cases = [
        (completion_queue(0, 15, 0), Code::INVALID_QUEUE_ID),
        (completion_queue(9, 15, 0), Code::INVALID_QUEUE_ID),
        (completion_queue(1, 0, 0), Code::INVALID_QUEUE_SIZE),
        (completion_queue(1, 64, 0), Code::INVALID_QUEUE_SIZE),
        (completion_queue(1, 15, 32), Code::INVALID_INTERRUPT_VECTOR),
        (command(admin::CREATE_COMPLETION_QUEUE, 15 << 16 | 1, 2, IO), Code::INVALID_FIELD),
        (command(admin::CREATE_COMPLETION_QUEUE, 15 << 16 | 1, 3, IO + 8), Code::PRP_OFFSET_INVALID),
        (command(admin::CREATE_COMPLETION_QUEUE, 15 << 16 | 1, 3, BASE + BYTES), Code::DATA_TRANSFER_ERROR),
        (submission_queue(1, 15, 1), Code::COMPLETION_QUEUE_INVALID),
        (submission_queue(1, 15, 0), Code::INVALID_QUEUE_ID),
        (completion_queue(1, 15, 31), Code::SUCCESS),
        (completion_queue(1, 15, 31), Code::INVALID_QUEUE_ID),
        (submission_queue(0, 15, 1), Code::INVALID_QUEUE_ID),
        (submission_queue(3, 0, 1), Code::INVALID_QUEUE_SIZE),
        (submission_queue(3, 15, 1), Code::SUCCESS),
        (submission_queue(3, 15, 1), Code::INVALID_QUEUE_ID),
        (submission_queue(4, 15, 2), Code::COMPLETION_QUEUE_INVALID),
        (SetFeatures::new(fid::NUMBER_OF_QUEUES, 0).to_sqe(), Code::COMMAND_SEQUENCE_ERROR),
        (command(admin::DELETE_COMPLETION_QUEUE, 1, 0, 0), Code::INVALID_QUEUE_DELETION),
        (command(admin::DELETE_SUBMISSION_QUEUE, 1, 0, 0), Code::INVALID_QUEUE_ID),
        (command(admin::DELETE_SUBMISSION_QUEUE, 0, 0, 0), Code::INVALID_QUEUE_ID),
        (command(admin::DELETE_SUBMISSION_QUEUE, 3, 0, 0), Code::SUCCESS),
        (command(admin::DELETE_COMPLETION_QUEUE, 1, 0, 0), Code::SUCCESS),
        (command(admin::DELETE_COMPLETION_QUEUE, 1, 0, 0), Code::INVALID_QUEUE_ID),
        (completion_queue(1, 15, 31), Code::SUCCESS),
    ];
    for (at, (sqe, code)) in cases.into_iter().enumerate() {
        assert_eq!(raw.code(sqe), code, "case {at}: {sqe:?}");
    }
    assert_eq!(raw.csts(), 1);
}

/// All 65,536 of them, whatever the controller granted.
// promise: PCI-5
#[test]
fn a_host_that_asks_for_every_queue_gets_as_many_as_there_are() {
    let mut raw = Raw::on();
    let mut created = 0;
    for qid in 0..=u16::MAX {
        let sqe = command(admin::CREATE_COMPLETION_QUEUE, 1 << 16 | u32::from(qid), 1, IO);
        match raw.code(sqe) {
            Code::SUCCESS => created += 1,
            code => assert_eq!(code, Code::INVALID_QUEUE_ID),
        }
    }
    assert_eq!((created, raw.world.queues()), (8, 8));
}

// promise: PCI-5
#[test]
fn admin_commands_have_prps_only_and_must_reach_their_data() {
    let mut raw = Raw::on();
    let identify = Identify { cns: cns::CONTROLLER, ..Identify::default() }.to_sqe();
    assert_eq!(raw.code(Sqe { flags: 0x40, ..data::with_prps(identify, [DATA, 0]) }), Code::INVALID_FIELD);
    let fused = Sqe { flags: 1, ..data::with_prps(identify, [DATA, 0]) };
    assert_eq!(raw.code(fused), Code::INVALID_FIELD);
    assert_eq!(raw.code(data::with_prps(identify, [DATA + 1, 0])), Code::PRP_OFFSET_INVALID);
    assert_eq!(raw.code(data::with_prps(identify, [DATA + 4, DATA + 8])), Code::PRP_OFFSET_INVALID);
    assert_eq!(raw.code(data::with_prps(identify, [8, 0])), Code::DATA_TRANSFER_ERROR);
    let log = GetLogPage { rae: false, ..GetLogPage::new(lid::ERROR_INFORMATION, 0, 0x1000_0000) };
    assert_eq!(raw.code(data::with_prps(log.to_sqe(), [DATA, DATA])), Code::INVALID_FIELD, "more than MDTS");
    raw.identify();
}

// promise: PCI-6
#[test]
fn features_of_interrupts_are_the_queues() {
    let mut raw = Raw::on();
    assert_eq!(raw.code(SetFeatures::new(fid::INTERRUPT_COALESCING, 0x0a07).to_sqe()), Code::SUCCESS);
    let got = raw.ask(GetFeatures::new(fid::INTERRUPT_COALESCING, Select::Current).to_sqe());
    assert_eq!(got.result.get(), 0x0a07);
    assert_eq!(raw.code(SetFeatures::new(fid::INTERRUPT_VECTOR_CONFIG, 32).to_sqe()), Code::INVALID_FIELD);
    let set = SetFeatures::new(fid::INTERRUPT_VECTOR_CONFIG, 1 << 16 | 3);
    assert_eq!(raw.code(set.to_sqe()), Code::SUCCESS);
    let get = GetFeatures { cdw11: 3, ..GetFeatures::new(fid::INTERRUPT_VECTOR_CONFIG, Select::Current) };
    assert_eq!(raw.ask(get.to_sqe()).result.get(), 1 << 16 | 3);
    for fid in [fid::KEEP_ALIVE_TIMER, fid::HOST_IDENTIFIER] {
        assert_eq!(raw.code(GetFeatures::new(fid, Select::Current).to_sqe()), Code::INVALID_FIELD);
    }
    // The host's clock is data that a command brings.
    raw.world.memory.write(DATA, &0x1_2345_6789u64.to_le_bytes()).unwrap();
    let set = data::with_prps(SetFeatures::new(fid::TIMESTAMP, 0).to_sqe(), [DATA, 0]);
    assert_eq!(raw.code(set), Code::SUCCESS);
    let (_, data) = raw.ask_data(GetFeatures::new(fid::TIMESTAMP, Select::Current).to_sqe(), 8);
    let since = u64::from_le_bytes(data.try_into().unwrap()) & 0xffff_ffff_ffff;
    assert!((0x1_2345_6789..0x1_2345_6789 + 1000).contains(&since), "{since:#x}");
}

// promise: PCI-5
#[test]
fn aborts_have_a_limit_and_reach_event_requests() {
    let mut raw = Raw::on();
    let event = raw.event();
    let abort = command(admin::ABORT, u32::from(event) << 16, 0, 0);
    assert_eq!(raw.ask(abort).result.get(), 0);
    assert_eq!(raw.answer(event).expect("it ended").status().code, Code::ABORT_REQUESTED);
    assert_eq!(raw.ask(abort).result.get(), 1, "it is gone");
    assert_eq!(raw.ask(command(admin::ABORT, 7, 0, 0)).result.get(), 1, "there is no such queue");
    raw.ask(completion_queue(1, 15, 1));
    raw.ask(submission_queue(1, 15, 1));
    let asked: Vec<u16> = (0..6).map(|cid| raw.push(command(admin::ABORT, cid << 16 | 1, 0, 0))).collect();
    for _ in 0..50 {
        raw.world.turn();
    }
    let codes: Vec<Code> =
        asked.iter().map(|cid| raw.answer(*cid).expect("an answer").status().code).collect();
    assert_eq!(codes.iter().filter(|code| **code == Code::SUCCESS).count(), 4);
    assert_eq!(codes.iter().filter(|code| **code == Code::ABORT_LIMIT).count(), 2);
}

// promise: PCI-5
#[test]
fn shadow_doorbells_must_be_pages_in_the_hosts_memory() {
    let mut raw = Raw::on();
    let config = |prps| data::with_prps(command(admin::DOORBELL_BUFFER_CONFIG, 0, 0, 0), prps);
    assert_eq!(raw.code(config([SHADOW + 4, SHADOW + 0x1000])), Code::INVALID_FIELD);
    assert_eq!(raw.code(config([SHADOW, BASE + BYTES])), Code::DATA_TRANSFER_ERROR);
    assert_eq!(raw.code(config([SHADOW, SHADOW + 0x1000])), Code::SUCCESS);
    // A queue whose shadow doorbell holds nonsense is told of once, and goes on with the next good value.
    raw.ask(completion_queue(1, 15, 1));
    raw.ask(submission_queue(1, 15, 1));
    (0..20).for_each(|_| raw.world.turn());
    let event = raw.event();
    let (doorbell, _) = (SHADOW + 8, ());
    raw.world.memory.store(doorbell, 77).unwrap();
    raw.write(Doorbell::Submission(1).offset(0), 77);
    (0..50).for_each(|_| raw.world.turn());
    let reported = AsyncEvent::from_result(raw.answer(event).expect("an event").result.get());
    assert_eq!((reported.kind, reported.information), (0, 1));
    let flush = Sqe { nsid: 1.into(), cid: 5.into(), ..Sqe::default() };
    raw.world.memory.write(IO + 0x2000 + 0x1000, flush.as_bytes()).unwrap();
    raw.world.memory.store(doorbell, 1).unwrap();
    raw.write(Doorbell::Submission(1).offset(0), 1);
    (0..50).for_each(|_| raw.world.turn());
    let mut cqe = Cqe::default();
    raw.world.memory.read(IO + 0x2000, cqe.as_mut_bytes()).unwrap();
    assert_eq!((cqe.cid.get(), cqe.sqid.get(), cqe.sqhd.get(), cqe.status.get()), (5, 1, 1, 1));
    let off = Settings { shadow_doorbells: false, ..Settings::default() };
    let mut raw = Raw::with(off);
    raw.enable();
    assert_eq!(raw.code(config([SHADOW, SHADOW + 0x1000])), Code::INVALID_OPCODE);
    assert_eq!(raw.identify().oacs.get(), 0);
}

// promise: PCI-5
#[test]
fn one_identifier_twice_in_flight_is_a_conflict() {
    let mut raw = Raw::on();
    raw.ask(completion_queue(1, 15, 1));
    raw.ask(submission_queue(1, 15, 1));
    raw.world.stalled = true;
    let flush = Sqe { nsid: 1.into(), cid: 5.into(), ..Sqe::default() };
    for at in 0..3 {
        raw.world.memory.write(IO + 0x3000 + at * 64, flush.as_bytes()).unwrap();
    }
    raw.write(Doorbell::Submission(1).offset(0), 3);
    (0..50).for_each(|_| raw.world.turn());
    raw.world.stalled = false;
    (0..50).for_each(|_| raw.world.turn());
    let statuses: Vec<Code> = (0..3)
        .map(|at| {
            let mut cqe = Cqe::default();
            raw.world.memory.read(IO + 0x2000 + at * 16, cqe.as_mut_bytes()).unwrap();
            cqe.status().code
        })
        .collect();
    assert_eq!(statuses, [Code::COMMAND_ID_CONFLICT, Code::COMMAND_ID_CONFLICT, Code::SUCCESS]);
}

// promise: PCI-3
#[test]
fn a_subsystem_reset_and_one_of_the_function_go_back_to_the_start() {
    for function in [false, true] {
        let mut raw = Raw::on();
        raw.ask(completion_queue(1, 15, 1));
        let event = raw.event();
        match function {
            true => raw.world.device.function_reset(),
            false => raw.write(offset::NSSR, SUBSYSTEM_RESET),
        }
        raw.world.admin();
        assert_eq!(raw.csts() & 1, 1, "until its queues are closed");
        (0..50).for_each(|_| raw.world.turn());
        assert_eq!(raw.csts(), if function { 0 } else { 0x10 });
        assert_eq!((raw.read(offset::CC), raw.read(offset::AQA), raw.world.queues()), (0, 0, 0));
        raw.write(offset::CSTS, 0x10);
        assert_eq!(raw.csts(), 0);
        assert!(raw.answer(event).is_none(), "it is forgotten");
        raw.enable();
        raw.identify();
    }
    let mut raw = Raw::on();
    raw.write(offset::NSSR, 0x1234_5678);
    assert_eq!(raw.csts(), 1, "nothing else resets");
}

// promise: PCI-3
#[test]
fn enabling_again_waits_for_a_reset_to_end() {
    let mut raw = Raw::on();
    raw.ask(completion_queue(1, 15, 1));
    raw.write(offset::CC, 0);
    raw.write(offset::CC, ENABLED);
    assert_eq!(raw.csts(), 1, "the old one is still ready");
    (0..50).for_each(|_| raw.world.turn());
    assert_eq!((raw.csts(), raw.world.queues()), (1, 0));
    raw.world.memory.write(SUBMISSIONS, &[0; 0x2000]).unwrap();
    (raw.tail, raw.head, raw.phase) = (0, 0, 1);
    raw.identify();
}

// promise: PCI-6
#[test]
fn warnings_and_changes_reach_the_host() {
    let mut raw = Raw::on();
    assert_eq!(raw.code(SetFeatures::new(fid::ASYNC_EVENT_CONFIG, 0x13f).to_sqe()), Code::SUCCESS);
    assert_eq!(raw.code(SetFeatures::new(fid::ASYNC_EVENT_CONFIG, 1 << 11).to_sqe()), Code::INVALID_FIELD);
    let event = raw.event();
    raw.world.device.set_health(Health { critical_warning: 1, ..Health::default() });
    raw.world.admin();
    let reported = AsyncEvent::from_result(raw.answer(event).expect("an event").result.get());
    assert_eq!((reported.kind, reported.lid), (1, lid::SMART));
    let event = raw.event();
    let mut subsystem = crate::world::subsystem();
    subsystem.kind = forebay_nvme::controller::subsystem::Kind::Nvm { namespaces: [].into(), ana: [].into() };
    raw.world.device.update(std::sync::Arc::new(subsystem));
    raw.world.admin();
    let reported = AsyncEvent::from_result(raw.answer(event).expect("an event").result.get());
    assert_eq!(reported, AsyncEvent::NAMESPACE_CHANGED);
}
