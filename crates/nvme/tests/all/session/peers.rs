//! Controllers that aren't ours: real ones' answers, answers that are errors, and answers that are cut short.

use super::*;
use forebay_nvme::feature::fid;
use forebay_nvme::identify;
use zerocopy::IntoBytes;

/// An answer to Identify Controller in place of ours.
fn posing_as(peer: identify::Controller, cap: u64) -> Box<Fault> {
    Box::new(move |sqe| {
        let good = |result| Cqe::new(sqe.cid.get(), Status::SUCCESS, result);
        let bad = || Cqe::new(sqe.cid.get(), Status::fatal(Code::INVALID_FIELD), 0);
        let cns = sqe.cdw10.get() as u8;
        match sqe.opcode {
            admin::IDENTIFY if cns == identify::cns::CONTROLLER => Some((good(0), peer.as_bytes().to_vec())),
            // As from a target that has no descriptors, and no critical warnings to configure.
            admin::IDENTIFY if cns == identify::cns::NAMESPACE_DESCRIPTORS => Some((bad(), vec![])),
            admin::SET_FEATURES if cns == fid::ASYNC_EVENT_CONFIG && sqe.cdw11.get() & 0xff != 0 => {
                Some((bad(), vec![]))
            }
            FABRICS if sqe.nsid.get() as u8 == fctype::PROPERTY_GET && sqe.cdw11.get() == 0 => {
                Some((good(cap), vec![]))
            }
            _ => None,
        }
    })
}

// promise: NCT-8
#[test]
fn both_shapes_of_real_peers_are_understood() {
    // MDTS, IOCCSZ, KAS, MAXCMD and SGLS as the targets of Linux 6.12 and SPDK 26.09 say them.
    let linux = identify::Controller {
        ioccsz: 1028.into(),
        kas: 10.into(),
        maxcmd: 1024.into(),
        sgls: 0x100001.into(),
        oaes: 0x900.into(),
        cmic: 0xb,
        nanagrpid: 128.into(),
        anagrpmax: 128.into(),
        nn: 1024.into(),
        mnan: 1024.into(),
        ..identify::Controller::default()
    };
    let spdk = identify::Controller {
        mdts: 5,
        ioccsz: 260.into(),
        kas: 100.into(),
        maxcmd: 128.into(),
        sgls: 0x100005.into(),
        oaes: 0x100.into(),
        nn: 32.into(),
        ..identify::Controller::default()
    };
    for (peer, cap, transfer, in_capsule, entries, kas) in [
        (linux, 0x20_0f00_03ff_u64, None, 16 << 10, 1024, 1000),
        (spdk, 0x20_0f01_007f, Some(128 << 10), 4 << 10, 128, 10_000),
    ] {
        let mut target = Target::new(subsystem([(1, namespace(8))]));
        target.fault = Some(posing_as(peer, cap));
        let mut session = Session::new(Options { queue_entries: 2000, ..options() }, target.now_ms);
        assert_eq!(target.run_until_quiet(&mut session), Ok(vec![Event::Ready]));
        let info = session.controller();
        assert_eq!((info.transfer_bytes, info.in_capsule_bytes), (transfer, in_capsule));
        assert_eq!((info.queue_entries, info.keep_alive_granularity_ms), (entries, kas));
        assert_eq!((session.namespaces().len(), session.namespaces()[&1].uuid), (1, None));
    }
}

// promise: NCT-7
#[test]
fn every_command_may_fail_and_the_session_says_which() {
    let (target, _) = up(subsystem([(1, namespace(8))]), options());
    for at in 1..=target.commands {
        let mut target = Target::new(subsystem([(1, namespace(8))]));
        let mut session = Session::new(options(), target.now_ms);
        let mut count = 0;
        target.fault = Some(Box::new(move |sqe| {
            count += 1;
            (count == at).then(|| (Cqe::new(sqe.cid.get(), Status::again(Code::INTERNAL_ERROR), 0), vec![]))
        }));
        match target.run_until_quiet(&mut session) {
            Ok(events) => assert_eq!(events, [Event::Ready], "command {at} can be done without"),
            Err(failure) => {
                assert!(failure.retry() && failure.to_string().contains("Internal Error"), "{at}: {failure}");
            }
        }
    }
}

// promise: NCT-7
#[test]
fn answers_that_are_cut_short_are_no_answers() {
    let (target, _) = up(subsystem([(1, namespace(8))]), options());
    for at in 1..=target.commands {
        let mut target = Target::new(subsystem([(1, namespace(8))]));
        let mut session = Session::new(options(), target.now_ms);
        let mut count = 0;
        target.fault = Some(Box::new(move |sqe| {
            count += 1;
            let wants_data = matches!(sqe.opcode, admin::IDENTIFY | admin::GET_LOG_PAGE);
            (count == at && wants_data).then(|| (Cqe::new(sqe.cid.get(), Status::SUCCESS, 0), vec![1; 9]))
        }));
        match target.run_until_quiet(&mut session) {
            Ok(events) => assert_eq!(events, [Event::Ready], "command {at}"),
            Err(failure) => assert_eq!(failure.kind, FailureKind::Protocol, "{at}: {failure}"),
        }
    }
}
