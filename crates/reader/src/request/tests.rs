#![allow(unsafe_code, reason = "filling memory that Python lends, by address")]

use super::*;
use crate::{PAGE, PIECES_PER_PART, SLOT_BYTES, WINDOWED_BYTES_MIN};
use proptest::prelude::*;

proptest! {
    // promise: PYT-12
    #[test]
    fn parts_hold_every_byte_once_and_fit_a_slot_or_a_window(
        lengths in prop::collection::vec((0u64..20_000_000, 0usize..12_000_000), 0..40), workers in 1usize..17,
        long in prop::option::of((0u64..1 << 30, WINDOWED_BYTES_MIN..200 << 20)), gpu: bool, power in 24u32..28,
    ) {
        let window = 1u64 << power;
        let mut at = 0;
        let ranges: Vec<Range> = lengths.into_iter().chain(long).map(|(offset, bytes)| {
            at += bytes as u64 + 7;
            let to = if gpu { Address::Device { gpu: 1, at } } else { Address::Host(at) };
            Range { file: 0, offset, bytes, to }
        }).collect();
        let (pieces, parts) = cut(&ranges, workers, Some(window));
        for pair in parts.windows(2) {
            let part = &pieces[pair[0] as usize..pair[1] as usize];
            prop_assert!(!part.is_empty() && part.len() <= PIECES_PER_PART);
            if part[0].bytes > SLOT_BYTES {
                prop_assert!(gpu && part.len() == 1);
                let last = part[0].offset + part[0].bytes as u64 - 1;
                prop_assert_eq!(part[0].offset / window, last / window, "it lies in one window");
            } else {
                prop_assert!(part.iter().map(|p| p.bytes).sum::<usize>() <= SLOT_BYTES);
                prop_assert!(part.iter().all(|p| p.offset as usize % PAGE + p.bytes <= SLOT_BYTES));
            }
        }
        prop_assert_eq!(*parts.last().unwrap() as usize, pieces.len());
        let mut rest = pieces.iter();
        for range in ranges.iter().filter(|r| r.bytes > 0) {
            let mut done = 0;
            while done < range.bytes {
                let piece = rest.next().unwrap();
                prop_assert_eq!(piece.offset, range.offset + done as u64);
                prop_assert_eq!(piece.to, range.to.after(done));
                done += piece.bytes;
            }
            prop_assert_eq!(done, range.bytes);
        }
        prop_assert!(rest.next().is_none());
    }
}

proptest! {
    // promise: PYT-12
    #[test]
    fn reads_that_are_under_way_together_hold_every_byte_once(
        lengths in prop::collection::vec((0u64..20_000_000, 0usize..12_000_000), 0..40),
        short in prop::collection::vec((0u64..20_000_000, 0usize..100_000), 0..600), part_bytes in 1usize..40_000_000,
    ) {
        let mut at = 0;
        let ranges: Vec<Range> = lengths.into_iter().chain(short).map(|(offset, bytes)| {
            at += bytes as u64 + 7;
            Range { file: 0, offset, bytes, to: Address::Host(at) }
        }).collect();
        let (pieces, parts) = cut_for_queue(&ranges, part_bytes);
        for pair in parts.windows(2) {
            let part = &pieces[pair[0] as usize..pair[1] as usize];
            prop_assert!(!part.is_empty() && part.len() <= PIECES_PER_PART);
            prop_assert!(part.len() == 1 || part.iter().map(|p| p.bytes).sum::<usize>() <= part_bytes);
        }
        prop_assert_eq!(*parts.last().unwrap() as usize, pieces.len());
        let bytes = |ranges: &[Range]| ranges.iter().map(|range| range.bytes).sum::<usize>();
        prop_assert_eq!(bytes(&pieces), bytes(&ranges));
        let mut rest = &pieces[..];
        for range in &ranges {
            let mut done = 0;
            while done < range.bytes {
                let (piece, others) = rest.split_first().unwrap();
                rest = others;
                prop_assert_eq!((piece.offset, piece.to), (range.offset + done as u64, range.to.after(done)));
                done += piece.bytes;
            }
        }
    }
}

// promise: PYT-8
#[test]
fn in_a_forked_child_a_request_of_the_parent_is_over_whoever_had_its_lock() {
    let range = Range { file: 0, offset: 0, bytes: 1, to: Address::Host(0) };
    let request = Request::new(Source::Many(Vec::new()), &[range], Vec::new(), 1, None);
    let held = request.state();
    // SAFETY: the child asks the request and ends; a lock that it waits for ends it by SIGALRM.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no handler, no pointers.
        unsafe { libc::alarm(60) };
        let over = request.is_done() && request.wait(None) && !request.cancel();
        let reported = request.outcome().is_err_and(|error| error.to_string().contains("forked"));
        let wakeup = request.wakeup().unwrap();
        let rung = rustix::io::read(&wakeup, &mut [0; 8]).is_ok();
        // SAFETY: ends the child, whatever else it has.
        unsafe { libc::_exit(if over && reported && rung { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(held);
    assert!(!request.is_done());
}
