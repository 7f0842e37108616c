use super::*;
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry {
    block_bytes: 4096,
    blocks: 1000,
    read_only: false,
    transfer_bytes_max: Some(128 << 10),
    ana: AnaState::Optimized,
};

/// As a transport hands it on.
fn carried(sqe: Sqe, sgl: Sgl) -> Sqe {
    Sqe { flags: 0x40, sgl, ..sqe }
}

fn code(sqe: &Sqe, geometry: &Geometry, in_capsule: u32) -> Option<Code> {
    Request::parse(sqe, Some(geometry), in_capsule).err().map(|status| status.code)
}

#[test]
fn commands_mean_what_they_were_built_for() {
    let parse =
        |sqe, sgl: Sgl, in_capsule| Request::parse(&carried(sqe, sgl), Some(&GEOMETRY), in_capsule).unwrap();
    let request = |op, fua, transfer| Request { op, offset: 28672, bytes: 8192, fua, transfer };
    let (transport, capsule) = (Sgl::transport(8192), Sgl::in_capsule(8192));
    assert_eq!(parse(read(1, 7, 2), transport, 0), request(Op::Read, false, Transfer::ToHost(8192)));
    assert_eq!(parse(write(1, 7, 2, true), transport, 0), request(Op::Write, true, Transfer::FromHost(8192)));
    assert_eq!(
        parse(write(1, 7, 2, false), capsule, 8192),
        request(Op::Write, false, Transfer::InCapsule(8192))
    );
    assert_eq!(
        parse(compare(1, 7, 2), capsule, 8192),
        request(Op::Compare, false, Transfer::InCapsule(8192))
    );
    assert_eq!(parse(verify(1, 7, 2), Sgl::default(), 0), request(Op::Verify, false, Transfer::None));
    for deallocate in [false, true] {
        let sqe = write_zeroes(1, 7, 2, deallocate, deallocate);
        assert_eq!(
            parse(sqe, Sgl::default(), 0),
            request(Op::WriteZeroes { deallocate }, deallocate, Transfer::None)
        );
    }
    assert_eq!(
        Request::parse(&flush(1), Some(&GEOMETRY), 0).unwrap(),
        Request { op: Op::Flush, offset: 0, bytes: 0, fua: false, transfer: Transfer::None }
    );
}

// promise: NTP-8
#[test]
fn each_wrong_command_gets_the_status_that_names_it() {
    let good = carried(read(1, 7, 2), Sgl::transport(8192));
    assert_eq!(code(&good, &GEOMETRY, 0), None);
    assert_eq!(Request::parse(&good, None, 0), Err(Status::fatal(Code::INVALID_NAMESPACE)));
    let with = |change: fn(&mut Sqe)| {
        let mut sqe = good;
        change(&mut sqe);
        code(&sqe, &GEOMETRY, 0)
    };
    assert_eq!(with(|sqe| sqe.opcode = 0x55), Some(Code::INVALID_OPCODE));
    assert_eq!(with(|sqe| sqe.flags |= 1), Some(Code::INVALID_FIELD), "fused");
    assert_eq!(with(|sqe| sqe.flags = 0), Some(Code::INVALID_FIELD), "PRPs");
    assert_eq!(with(|sqe| sqe.flags = 0xc0), Some(Code::INVALID_FIELD), "reserved");
    assert_eq!(with(|sqe| sqe.cdw10 = 999.into()), Some(Code::LBA_OUT_OF_RANGE));
    assert_eq!(with(|sqe| sqe.cdw10 = 998.into()), None);
    assert_eq!(
        with(|sqe| (sqe.cdw10, sqe.cdw11) = (U32::MAX_VALUE, U32::MAX_VALUE)),
        Some(Code::LBA_OUT_OF_RANGE)
    );
    assert_eq!(with(|sqe| sqe.cdw12 = 32.into()), Some(Code::INVALID_FIELD), "MDTS");
    assert_eq!(with(|sqe| sqe.sgl.length = 8191.into()), Some(Code::DATA_SGL_LENGTH_INVALID));
    assert_eq!(with(|sqe| sqe.sgl.length = 8193.into()), Some(Code::DATA_SGL_LENGTH_INVALID));
    assert_eq!(with(|sqe| sqe.sgl.kind = 0), Some(Code::SGL_TYPE_INVALID));
    assert_eq!(with(|sqe| sqe.sgl = Sgl::in_capsule(8192)), Some(Code::SGL_TYPE_INVALID), "a read");
}

// promise: NTP-8
#[test]
fn data_in_the_capsule_are_all_of_it() {
    let write = |sgl, in_capsule| code(&carried(write(1, 0, 1, false), sgl), &GEOMETRY, in_capsule);
    assert_eq!(write(Sgl::in_capsule(4096), 4096), None);
    assert_eq!(write(Sgl::in_capsule(4096), 4095), Some(Code::DATA_SGL_LENGTH_INVALID));
    assert_eq!(write(Sgl::in_capsule(4096), 0), Some(Code::DATA_SGL_LENGTH_INVALID));
    assert_eq!(write(Sgl::transport(4096), 4096), Some(Code::DATA_SGL_LENGTH_INVALID));
    let moved = Sgl { address: 4.into(), ..Sgl::in_capsule(4096) };
    assert_eq!(write(moved, 4096), Some(Code::SGL_OFFSET_INVALID));
}

// promise: NTP-8
#[test]
fn a_read_only_namespace_is_read_and_nothing_else() {
    let geometry = Geometry { read_only: true, ..GEOMETRY };
    let transport = |sqe| carried(sqe, Sgl::transport(4096));
    let hint = Sqe { cdw11: 1.into(), ..deallocate(1, &[Range::new(0, 1)]) };
    for sqe in [read(1, 0, 1), compare(1, 0, 1), verify(1, 0, 1), flush(1), hint] {
        assert_eq!(code(&transport(sqe), &geometry, 0), None, "{sqe:?}");
    }
    for sqe in
        [write(1, 0, 1, false), write_zeroes(1, 0, 1, false, false), deallocate(1, &[Range::new(0, 1)])]
    {
        assert_eq!(code(&transport(sqe), &geometry, 0), Some(Code::NAMESPACE_WRITE_PROTECTED), "{sqe:?}");
    }
}

#[test]
fn a_lost_path_says_so_and_lets_the_host_try_another() {
    for (ana, expected) in [
        (AnaState::NonOptimized, None),
        (AnaState::Inaccessible, Some(Code::ANA_INACCESSIBLE)),
        (AnaState::PersistentLoss, Some(Code::ANA_PERSISTENT_LOSS)),
        (AnaState::Change, Some(Code::ANA_TRANSITION)),
    ] {
        let found = Request::parse(&flush(1), Some(&Geometry { ana, ..GEOMETRY }), 0);
        assert_eq!(found.err(), expected.map(Status::again));
    }
}

#[test]
fn ranges_are_all_checked_before_the_first() {
    let asked = [Range::new(0, 1), Range::new(5, 0), Range::new(990, 10)];
    let sqe = carried(deallocate(1, &asked), Sgl::transport(4096));
    let request = Request::parse(&sqe, Some(&GEOMETRY), 0).unwrap();
    assert_eq!(request.op, Op::DatasetManagement { ranges: 3, deallocate: true });
    assert_eq!(request.transfer, Transfer::FromHost(4096), "Linux sends room for 256");
    let found: Vec<_> = ranges(range_bytes(&asked), 3, &GEOMETRY).unwrap().collect();
    assert_eq!(found, [(0, 4096), (990 * 4096, 40960)]);
    for wrong in [Range::new(991, 10), Range::new(u64::MAX, 1), Range::new(1, u32::MAX)] {
        let asked = [Range::new(0, 1), wrong];
        let refused = ranges(range_bytes(&asked), 2, &GEOMETRY).map(|_| ()).unwrap_err();
        assert_eq!(refused.code, Code::LBA_OUT_OF_RANGE);
    }
    let short = ranges(&range_bytes(&asked)[..47], 3, &GEOMETRY).map(|_| ()).unwrap_err();
    assert_eq!(short.code, Code::DATA_SGL_LENGTH_INVALID);
    for length in [47, 4097] {
        assert_eq!(
            code(&carried(deallocate(1, &asked), Sgl::transport(length)), &GEOMETRY, 0),
            Some(Code::DATA_SGL_LENGTH_INVALID)
        );
    }
}

#[test]
fn a_namespace_larger_than_bytes_can_count_is_no_overflow() {
    let geometry = Geometry { blocks: u64::MAX, ..GEOMETRY };
    assert!(geometry.range(u64::MAX / 4096 - 1, 1).is_ok());
    for (slba, blocks) in [(u64::MAX / 4096, 1), (u64::MAX - 1, 1), (u64::MAX, 1)] {
        assert_eq!(geometry.range(slba, blocks), Err(Status::fatal(Code::LBA_OUT_OF_RANGE)));
    }
}

/// Commands that are near the truth: small fields, opcodes that exist, lengths that fit or nearly do.
fn commands() -> impl Strategy<Value = (Sqe, u32)> {
    let opcode = prop_oneof![8 => Just(io::READ), 8 => Just(io::WRITE), 2 => Just(io::COMPARE), 2 => Just(io::VERIFY),
        2 => Just(io::WRITE_ZEROES), 1 => Just(io::FLUSH), 2 => Just(io::DATASET_MANAGEMENT), 1 => any::<u8>()];
    let slba = prop_oneof![4 => 0..1100u64, 1 => any::<u64>(), 1 => (0..70_000u64).prop_map(|below| u64::MAX - below)];
    let kind = prop_oneof![4 => Just(Sgl::TRANSPORT), 2 => Just(Sgl::IN_CAPSULE), 1 => any::<u8>()];
    let flags = prop_oneof![6 => Just(0x40u8), 1 => Just(0x80), 1 => any::<u8>()];
    let length =
        prop_oneof![3 => Just(None), 1 => any::<u32>().prop_map(Some), 1 => (0..5000u32).prop_map(Some)];
    let capsule = prop_oneof![3 => Just(None), 1 => any::<u32>().prop_map(Some)];
    (opcode, slba, prop_oneof![(0..40u32), any::<u32>()], kind, flags, length, capsule, 0..9u64).prop_map(
        |(opcode, slba, cdw12, kind, flags, length, capsule, address)| {
            let fitting = ((cdw12 & 0xffff) + 1).wrapping_mul(512);
            let sgl = Sgl {
                kind,
                length: length.unwrap_or(fitting).into(),
                address: (if address == 8 { 8 } else { 0 }).into(),
                ..Sgl::default()
            };
            let in_capsule = capsule.unwrap_or(if kind == Sgl::IN_CAPSULE { sgl.length.get() } else { 0 });
            let (low, high) = ((slba as u32).into(), ((slba >> 32) as u32).into());
            let sqe =
                Sqe { opcode, flags, sgl, cdw10: low, cdw11: high, cdw12: cdw12.into(), ..Sqe::default() };
            (sqe, in_capsule)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// Against arithmetic that can't overflow: what passes lies within the namespace and within MDTS, and carries
    /// as many bytes as it has blocks; a range that doesn't lie within it is never anything but refused.
    // promise: NTP-8
    #[test]
    fn what_passes_is_within_the_namespace(
        (sqe, in_capsule) in commands(),
        blocks in prop_oneof![Just(1000u64), Just(u64::MAX), any::<u64>()],
        block_power in 9..17u32,
        read_only: bool,
    ) {
        let geometry = Geometry { block_bytes: 1 << block_power, blocks, read_only, ..GEOMETRY };
        let block_bytes = u128::from(geometry.block_bytes);
        let on_blocks = !matches!(sqe.opcode, io::FLUSH | io::DATASET_MANAGEMENT);
        let start = u128::from(slba(&sqe)) * block_bytes;
        let bytes = (u128::from(sqe.cdw12.get() & 0xffff) + 1) * block_bytes;
        let end = start + bytes;
        let within = end <= u128::from(blocks) * block_bytes && end <= u128::from(u64::MAX);
        match Request::parse(&sqe, Some(&geometry), in_capsule) {
            Ok(request) => {
                prop_assert!(!(read_only && request.op.changes()));
                prop_assert_eq!(sqe.flags & FUSE, 0);
                if on_blocks {
                    prop_assert!(within);
                    prop_assert_eq!((u128::from(request.offset), u128::from(request.bytes)), (start, bytes));
                    let carries = matches!(request.op, Op::Read | Op::Write | Op::Compare);
                    let carried = u128::from(request.transfer.bytes());
                    prop_assert_eq!(carried, if carries { bytes } else { 0 });
                    prop_assert!(!carries || bytes <= 128 << 10);
                } else {
                    prop_assert!(request.transfer.bytes() <= 4096);
                }
                let capsule = matches!(request.transfer, Transfer::InCapsule(_));
                prop_assert_eq!(capsule, request.transfer != Transfer::None && sqe.sgl.kind == Sgl::IN_CAPSULE);
            }
            Err(status) => {
                prop_assert!(status.do_not_retry);
                if status.code == Code::LBA_OUT_OF_RANGE {
                    prop_assert!(on_blocks && !within);
                }
            }
        }
    }

    // promise: NTP-8
    #[test]
    fn ranges_that_pass_are_within_the_namespace(
        asked in prop::collection::vec((any::<u32>(), any::<u64>(), 0..1100u64, 0..300u32, any::<bool>()), 1..256),
    ) {
        let asked: Vec<Range> = asked
            .into_iter()
            .map(|(any_nlb, any_slba, slba, nlb, wild)| match wild && any_nlb % 64 == 0 {
                true => Range::new(any_slba, any_nlb),
                false => Range::new(slba % 700, nlb),
            })
            .collect();
        let end = |range: &Range| u128::from(range.slba.get()) + u128::from(range.nlb.get());
        let all_within = asked.iter().all(|range| end(range) <= 1000);
        let found = ranges(range_bytes(&asked), asked.len() as u16, &GEOMETRY);
        match found {
            Ok(found) => {
                prop_assert!(all_within);
                let total: u64 = found.map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(total, asked.iter().map(|range| u64::from(range.nlb.get()) * 4096).sum::<u64>());
            }
            Err(status) => {
                prop_assert_eq!(status.code, Code::LBA_OUT_OF_RANGE);
                prop_assert!(!all_within);
            }
        }
    }
}
