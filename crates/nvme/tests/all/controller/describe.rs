//! Identify and log pages.

use super::*;

// promise: NCT-3
#[test]
fn identify_controller_holds_what_hosts_check() {
    let mut controller = controller();
    let bytes = identify(&mut controller, cns::CONTROLLER, 0).unwrap();
    let id = identify::Controller::read(&bytes).unwrap();
    assert_eq!((id.sqes, id.cqes, id.cntrltype, id.maxcmd.get()), (0x66, 0x44, 1, ENTRIES));
    assert_eq!((id.mdts, id.ioccsz.get(), id.iorcsz.get(), id.icdoff.get()), (8, 1028, 1, 0));
    assert!(id.kas.get() > 0 && id.sgls.get() & 1 != 0 && id.sgls.get() & 1 << 20 != 0);
    assert_eq!((id.cntlid.get(), id.ver.get(), id.aerl), (1, 0x20000, 2));
    assert!(id.mnan.get() > 0 && id.mnan <= id.nn, "Linux refuses ANA without");
    assert_eq!((id.nanagrpid, id.anacap & 0x1f), (id.anagrpmax, 0x1f));
    assert_eq!(id.oaes.get(), 1 << 8 | 1 << 11);
    assert_eq!(&id.subnqn[..NQN.len()], NQN.as_bytes());
    assert_eq!(id.vwc & 1, 0, "no namespace has a volatile write cache");
    assert_eq!(id.vwc & 0b110, 0b110, "a Flush of all namespaces is carried out");
    assert_eq!(id.oncs.get() & 0b1001_1101, 0b1001_1101, "Compare, DSM, Write Zeroes, Save, Verify");
}

// promise: GWY-13
#[test]
fn over_fabrics_there_is_nothing_to_arbitrate() {
    let mut controller = controller();
    assert_eq!(feature(&mut controller, fid::ARBITRATION), Ok(7), "no limit");
    assert_eq!(set_feature(&mut controller, fid::ARBITRATION, 3), Err(Code::FEATURE_NOT_CHANGEABLE));
    assert_eq!(controller.arbitration_burst(), None);
}

// promise: NCT-3
#[test]
fn identify_namespace_tells_size_form_and_protection() {
    let mut controller = controller();
    let bytes = identify(&mut controller, cns::NAMESPACE, 1).unwrap();
    let ns = identify::Namespace::read(&bytes).unwrap();
    assert_eq!((ns.nsze.get(), ns.ncap.get(), ns.block_bytes(), ns.nsattr), (1000, 1000, Some(512), 0));
    assert_eq!((ns.nguid, ns.eui64, ns.anagrpid.get(), ns.nmic), ([4; 16], [5; 8], 2, 1));
    assert_eq!(
        (ns.npwg.get(), ns.npwa.get(), ns.npdg.get(), ns.nows.get(), ns.noiob.get()),
        (7, 7, 0, 255, 1024)
    );
    assert_eq!(ns.nsfeat & 1 << 4, 1 << 4);
    let bytes = identify(&mut controller, cns::NAMESPACE, 7).unwrap();
    let ns = identify::Namespace::read(&bytes).unwrap();
    assert_eq!((ns.nsattr & 1, ns.nsfeat & 1 << 4), (1, 0));
    assert_eq!(identify(&mut controller, cns::NAMESPACE, 2), Ok(vec![0; 4096]), "inactive");
    for nsid in [0, 1025, u32::MAX] {
        assert_eq!(identify(&mut controller, cns::NAMESPACE, nsid), Err(Code::INVALID_NAMESPACE));
        assert_eq!(identify(&mut controller, cns::NAMESPACE_DESCRIPTORS, nsid), Err(Code::INVALID_NAMESPACE));
    }
    assert_eq!(identify(&mut controller, cns::NAMESPACE_DESCRIPTORS, 2), Err(Code::INVALID_NAMESPACE));
    let bytes = identify(&mut controller, cns::NAMESPACE_DESCRIPTORS, 1).unwrap();
    let all = [
        Descriptor::Eui64([5; 8]),
        Descriptor::Nguid([4; 16]),
        Descriptor::Uuid([3; 16]),
        Descriptor::Csi(0),
    ];
    assert_eq!(parse_descriptors(&bytes).collect::<Vec<_>>(), all);
    let bytes = identify(&mut controller, cns::INDEPENDENT_NAMESPACE, 7).unwrap();
    let ns = identify::IndependentNamespace::read(&bytes).unwrap();
    assert_eq!((ns.nsattr & 1, ns.nstat & 1, ns.anagrpid.get()), (1, 1, 2));
}

// promise: NCT-3
#[test]
fn lists_and_command_sets_are_identified() {
    let mut controller = controller();
    let list = |controller: &mut Controller, after| {
        let bytes = identify(controller, cns::ACTIVE_NAMESPACES, after)?;
        Ok(identify::NamespaceList::read(&bytes).unwrap().iter().collect::<Vec<_>>())
    };
    assert_eq!(list(&mut controller, 0), Ok(vec![1, 7]));
    assert_eq!(list(&mut controller, 1), Ok(vec![7]));
    assert_eq!(list(&mut controller, 7), Ok(vec![]));
    assert_eq!(list(&mut controller, u32::MAX), Err(Code::INVALID_NAMESPACE));
    let sets = identify(&mut controller, cns::COMMAND_SETS, 0).unwrap();
    assert_eq!((sets[0], sets[8]), (1, 0));
    for (cns, nsid) in [(cns::COMMAND_SET_NAMESPACE, 1), (cns::COMMAND_SET_CONTROLLER, 0)] {
        assert_eq!(identify(&mut controller, cns, nsid), Ok(vec![0; 4096]));
        let other = Identify { cns, nsid, csi: 2, ..Identify::default() };
        assert_eq!(data(&mut controller, other.to_sqe(), 4096), Err(Code::INVALID_FIELD));
    }
    for cns in [4, cns::ALLOCATED_NAMESPACES, cns::CONTROLLERS, 0xff] {
        assert_eq!(identify(&mut controller, cns, 0), Err(Code::INVALID_FIELD), "CNS {cns:#x}");
    }
    let short = Identify { cns: cns::CONTROLLER, ..Identify::default() }.to_sqe();
    assert_eq!(data(&mut controller, short, 100).unwrap().len(), 100, "as much as there is room for");
}

// promise: NCT-3
#[test]
fn log_pages_can_be_read_in_parts_and_no_further() {
    let mut controller = controller();
    let whole = log(&mut controller, GetLogPage::new(lid::COMMAND_EFFECTS, 0, 4096)).unwrap();
    let effects = CommandEffects::read(&whole).unwrap();
    assert!(effects.acs[usize::from(admin::IDENTIFY)].get() & 1 != 0);
    assert_eq!(effects.iocs[usize::from(io::WRITE)].get() & 3, 3, "it changes content");
    assert_eq!(effects.iocs[usize::from(io::READ)].get() & 3, 1);
    let zoned = GetLogPage { csi: 2, ..GetLogPage::new(lid::COMMAND_EFFECTS, 0, 4096) };
    let zoned = log(&mut controller, zoned).unwrap();
    assert_eq!(
        (&zoned[..1024], &zoned[1024..]),
        (&whole[..1024], &[0; 3072][..]),
        "no I/O command of that set"
    );
    let parts: Vec<u8> = (0..4096)
        .step_by(64)
        .flat_map(|at| log(&mut controller, GetLogPage::new(lid::COMMAND_EFFECTS, at, 64)).unwrap())
        .collect();
    assert_eq!(parts, whole);
    assert_eq!(log(&mut controller, GetLogPage::new(lid::COMMAND_EFFECTS, 4096, 8)), Ok(vec![0; 8]));
    let refused = [
        GetLogPage::new(lid::COMMAND_EFFECTS, 4100, 4),
        GetLogPage::new(lid::COMMAND_EFFECTS, u64::MAX - 3, 4),
        GetLogPage::new(lid::COMMAND_EFFECTS, 2, 4),
        GetLogPage { offset_is_index: true, ..GetLogPage::new(lid::COMMAND_EFFECTS, 0, 4) },
        GetLogPage { bytes: 1 << 34, ..GetLogPage::new(lid::COMMAND_EFFECTS, 0, 4) },
        GetLogPage { nsid: 1, ..GetLogPage::new(lid::SMART, 0, 512) },
    ];
    for page in refused {
        assert_eq!(data(&mut controller, page.to_sqe(), 64), Err(Code::INVALID_FIELD), "{page:?}");
    }
    for lid in [lid::DISCOVERY, 0x06, 0x80, 0xff] {
        assert_eq!(log(&mut controller, GetLogPage::new(lid, 0, 4)), Err(Code::INVALID_LOG_PAGE), "{lid:#x}");
    }
    let supported = log(&mut controller, GetLogPage::new(lid::SUPPORTED_LOG_PAGES, 0, 1024)).unwrap();
    for lid in 0..=255u8 {
        let there = log(&mut controller, GetLogPage::new(lid, 0, 4)).is_ok();
        assert_eq!(there, supported[4 * usize::from(lid)] & 1 != 0, "{lid:#x}");
    }
}

#[test]
fn health_is_what_the_driver_counted() {
    let mut controller = controller();
    controller.set_health(Health {
        bytes_read: 512_001,
        bytes_written: 1 << 70,
        reads: 3,
        media_errors: 2,
        temperature: 300,
        ..Health::default()
    });
    let page =
        log(&mut controller, GetLogPage { nsid: u32::MAX, ..GetLogPage::new(lid::SMART, 0, 512) }).unwrap();
    let smart = Smart::read(&page).unwrap();
    assert_eq!((smart.dur.get(), smart.hrc.get(), smart.mdie.get(), smart.ctemp.get()), (2, 3, 2, 300));
    assert_eq!(smart.duw.get(), (1u128 << 70).div_ceil(512_000));
}

#[test]
fn failures_are_kept_the_newest_first_and_not_without_end() {
    let mut controller = controller();
    let lost = Mishap { sqid: 3, cid: 9, status: Status::fatal(Code::UNRECOVERED_READ), nsid: 1, lba: 77 };
    assert_eq!(controller.record(lost), 1);
    for _ in 0..99 {
        complete(&mut controller, Sqe { opcode: 0xc0, ..Sqe::default() });
    }
    assert_eq!(controller.record(lost), 101);
    let page = log(&mut controller, GetLogPage::new(lid::ERROR_INFORMATION, 0, 64 * 64)).unwrap();
    let entries = <[ErrorEntry]>::ref_from_bytes(&page).unwrap();
    assert_eq!((entries[0].ecnt.get(), entries[0].sqid.get(), entries[0].lba.get()), (101, 3, 77));
    assert_eq!(Status::from_bits(entries[0].status.get()), Status::fatal(Code::UNRECOVERED_READ));
    assert_eq!((entries[1].ecnt.get(), entries[63].ecnt.get()), (100, 38));
    let smart = log(&mut controller, GetLogPage::new(lid::SMART, 0, 512)).unwrap();
    assert_eq!(Smart::read(&smart).unwrap().neile.get(), 101);
}

#[test]
fn a_failure_names_the_transport_by_which_its_command_came() {
    for (keyed, trtype) in [(false, 3), (true, 1)] {
        let by = Connect { keyed, ..connect(0, 32, 0xffff) };
        let mut controller = Controller::connect(Arc::new(subsystem()), &by, 1, 0).unwrap().0;
        assert_eq!(set(&mut controller, Cc::enabled()).code, Code::SUCCESS);
        let status = Status::fatal(Code::UNRECOVERED_READ);
        controller.record(Mishap { sqid: 1, cid: 2, status, nsid: 1, lba: 0 });
        let page = log(&mut controller, GetLogPage::new(lid::ERROR_INFORMATION, 0, 64)).unwrap();
        assert_eq!(<[ErrorEntry]>::ref_from_bytes(&page).unwrap()[0].trtype, trtype);
    }
}

#[test]
fn the_ana_log_counts_changes_by_group() {
    let mut controller = controller();
    let read = |controller: &mut Controller| {
        AnaLog::parse(&log(controller, GetLogPage::new(lid::ANA, 0, 1024)).unwrap())
    };
    let first = read(&mut controller).unwrap();
    assert_eq!((first.groups.len(), &first.groups[0].nsids[..]), (1, &[1, 7][..]));
    assert_eq!((first.groups[0].id, first.groups[0].state), (2, AnaState::NonOptimized));
    controller.update(changed(|all, ana| {
        all.get_mut(&7).unwrap().ana_group = 5;
        ana.insert(9, AnaState::PersistentLoss);
    }));
    let second = read(&mut controller).unwrap();
    assert_eq!(second.change_count, first.change_count + 1);
    let groups: Vec<_> = second.groups.iter().map(|g| (g.id, g.state, &g.nsids[..])).collect();
    let expected: [(u32, AnaState, &[u32]); 3] = [
        (2, AnaState::NonOptimized, &[1]),
        (5, AnaState::Optimized, &[7]),
        (9, AnaState::PersistentLoss, &[]),
    ];
    assert_eq!(groups, expected);
    let groups_only = GetLogPage { lsp: 1, ..GetLogPage::new(lid::ANA, 0, 1024) };
    let bytes = log(&mut controller, groups_only).unwrap();
    assert!(AnaLog::parse(&bytes).unwrap().groups.iter().all(|group| group.nsids.is_empty()));
}
