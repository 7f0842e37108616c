use super::super::{OpenNil, SharedDrive};
use super::*;
use crate::source::OpenModel;
use forebay_model::device::DriveModel;
use proptest::prelude::*;

/// All of them submit to the ring of the one worker.
// promise: ENG-3
#[test]
fn the_ring_has_room_for_the_members_of_members() {
    let stripe = |members: Vec<Target>, chunk| Target::new("s", 1 << 30, OpenStripe { chunk, members });
    let nil = || Target::new("n", 1 << 30, OpenNil);
    let needs = QueueNeeds::new(8, 1 << 20);
    let flat = stripe(vec![nil(), nil()], 64 << 10);
    let inner = QueueNeeds::new(StripeQueue::member_depth(8, 1 << 20, 512 << 10, 2), 512 << 10);
    let nested = stripe(vec![flat.clone(), flat.clone()], 512 << 10);
    assert_eq!(nested.ring_depth(needs), 2 * flat.ring_depth(inner));
    assert!(flat.ring_depth(inner) > inner.depth, "several pieces of each I/O are under way");
    let drive = SharedDrive::new(&DriveModel::parse("d7-ps1010").unwrap(), 1, false);
    let paced = Target::new("m", 1 << 30, OpenModel { drive, over: Some(flat.clone()) });
    assert_eq!(paced.ring_depth(needs), flat.ring_depth(needs));
    assert_eq!([&nil(), &flat, &nested, &paced].map(|target| target.members()), [0, 2, 4, 0]);
}

proptest! {
    /// The pieces cover the range once, in order, and each byte lies where RAID0 puts it.
    #[test]
    fn pieces_cover_the_range(members in 1u64..9, chunk in 1u64..5000, offset in 0u64..1_000_000, len in 1u64..100_000) {
        let mut at = 0;
        for p in pieces(members, chunk, offset, len) {
            prop_assert_eq!(p.at, at);
            prop_assert!(p.len > 0 && p.len <= chunk);
            for probe in [0, p.len - 1] {
                let byte = offset + at + probe;
                prop_assert_eq!(p.member as u64, byte / chunk % members);
                prop_assert_eq!(p.offset + probe, byte / chunk / members * chunk + byte % chunk);
            }
            at += p.len;
        }
        prop_assert_eq!(at, len);
    }

    /// Every piece of an I/O inside the stripe lies inside its member.
    #[test]
    fn pieces_stay_inside_members(sizes in prop::collection::vec(1u64..1_000_000, 1..8), chunk in 1u64..5000) {
        let bytes = OpenStripe::bytes_of(&sizes, chunk);
        for p in pieces(sizes.len() as u64, chunk, 0, bytes) {
            prop_assert!(p.offset + p.len <= sizes[p.member]);
        }
    }

    /// Whatever is asked, an I/O alone finds room.
    #[test]
    fn one_io_always_fits(depth in 1u32..5000, io in 1u64..1 << 30, chunk in 1u64..1 << 20, members in 1usize..65) {
        let needed = (io.div_ceil(chunk) + 1).div_ceil(members as u64);
        prop_assert!(u64::from(StripeQueue::member_depth(depth, io, chunk, members)) >= needed);
    }

    /// The depth that is asked of members holds any mix of I/Os up to the stripe's own depth.
    #[test]
    fn members_are_deep_enough(depth in 1u32..64, io in 1u64..10_000, chunk in 50u64..5000, members in 1usize..9, offset in 0u64..100_000) {
        let member_depth = StripeQueue::member_depth(depth, io, chunk, members);
        let mut most = vec![0u32; members];
        pieces(members as u64, chunk, offset, io).for_each(|p| most[p.member] += 1);
        prop_assert!(most.iter().all(|m| u64::from(*m) * u64::from(depth) <= u64::from(member_depth)));
    }
}
