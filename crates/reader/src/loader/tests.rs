#![allow(unsafe_code, reason = "looking at the memory of batches, by address")]

use super::*;
use rustix::fs::{fadvise, Advice};
use std::collections::BTreeSet;
use std::io::Write;
use tempfile::NamedTempFile;

const ROW: usize = 64;

/// A file whose row n holds n in each of its words.
fn numbered(rows: u64) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    let words = (0..rows).flat_map(|n| [n; ROW / 8]).flat_map(u64::to_ne_bytes);
    file.write_all(&words.collect::<Vec<u8>>()).unwrap();
    file
}

fn spec(file: &NamedTempFile, rows: u64, batch: u64) -> Spec {
    Spec {
        parts: vec![Part { path: Some(file.path().into()), rows, begins: vec![0] }],
        columns: vec![Column { bytes: ROW, step: ROW as u64 }],
        memory: Memory::Host,
        way: ReadPath::Host,
        share: Share { batch, rank: 0, world: 1, drop_last: false },
        shuffle: Shuffle::Rows,
        seed: 5,
        identity: 7,
        prefetch: Some(2),
        limit_bytes: None,
        cache: CacheUse::Auto,
    }
}

fn next(loader: &Loader) -> Result<Option<Batch>, Error> {
    loop {
        match loader.next(Duration::from_secs(1))? {
            Next::Batch(batch) => return Ok(Some(batch)),
            Next::End => return Ok(None),
            Next::Wait => {}
        }
    }
}

fn at(batch: &Batch) -> u64 {
    let (Address::Host(at) | Address::Device { at, .. }) = batch.lease.place();
    at
}

// promise: FEED-5
#[test]
fn memory_is_lent_again_when_the_last_reference_goes_and_not_before() {
    let file = numbered(1000);
    let loader = Loader::open(Spec { limit_bytes: Some(4 * 4096), ..spec(&file, 1000, 10) }).unwrap();
    let kept: Vec<Batch> = (0..3).map(|_| next(&loader).unwrap().unwrap()).collect();
    let mut places: Vec<u64> = kept.iter().map(at).collect();
    let lease = kept[0].lease.clone();
    drop(kept);
    for _ in 0..20 {
        let batch = next(&loader).unwrap().unwrap();
        assert_ne!(at(&batch), places[0], "the lease is held");
        places.push(at(&batch));
    }
    drop(lease);
    let again = (0..20).any(|_| at(&next(&loader).unwrap().unwrap()) == places[0]);
    assert!(again, "it was let go of");
    places.sort_unstable();
    places.dedup();
    assert!(places.len() <= 4);
}

// promise: FEED-5
#[test]
fn whoever_keeps_all_memory_is_told_and_may_go_on() {
    let file = numbered(100);
    let loader = Loader::open(Spec { limit_bytes: Some(3 * 4096), ..spec(&file, 100, 10) }).unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match next(&loader) {
            Ok(batch) => kept.extend(batch),
            Err(error) => break error,
        }
    };
    assert_eq!(kept.len(), 3);
    assert!(error.found.contains("keeps 3 batches"), "{error}");
    let position = loader.position();
    kept.clear();
    assert_eq!(next(&loader).unwrap().map(|batch| batch.first), Some(position.1));
}

// promise: FEED-9
#[test]
fn a_file_that_was_cut_off_is_an_error_and_no_batch() {
    let file = numbered(1000);
    let loader = Loader::open(spec(&file, 1000, 10)).unwrap();
    next(&loader).unwrap();
    file.as_file().set_len(10).unwrap();
    let error = loop {
        match next(&loader) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the epoch ended"),
            Err(error) => break error,
        }
    };
    assert!(error.asked.contains(&file.path().display().to_string()), "{error}");
}

// promise: FEED-3
#[test]
fn an_epoch_goes_on_from_a_position_and_the_next_one_follows() {
    let file = numbered(95);
    let loader = Loader::open(spec(&file, 95, 10)).unwrap();
    loader.seek(3, 90).unwrap();
    let last = next(&loader).unwrap().unwrap();
    assert_eq!((last.rows, last.first, last.epoch), (5, 90, 3));
    assert!(next(&loader).unwrap().is_none());
    assert_eq!((loader.position(), loader.batches()), ((4, 0), 10));
    assert!(loader.seek(0, 96).is_err());
}

#[test]
fn batches_ahead_have_parts_for_all_workers_together_and_few_each() {
    for (workers, prefetch) in (1..=8).flat_map(|workers| (1..=16).map(move |prefetch| (workers, prefetch))) {
        let each = workers_each(workers, prefetch);
        // A batch is cut into two parts for each of them.
        assert!(
            (1..=workers).contains(&each) && 2 * each * (prefetch + 1) >= workers,
            "{workers} {prefetch}"
        );
    }
    assert_eq!([workers_each(8, 10), workers_each(8, 3), workers_each(2, 2)], [1, 2, 1]);
}

// promise: FEED-5
#[test]
fn memory_of_a_loader_that_has_ended_is_the_next_ones() {
    let file = numbered(1 << 16);
    // Longer than any other test asks for, and takes meanwhile: by far most of it isn't used.
    let open = || Loader::open(spec(&file, 1 << 16, 600_000)).unwrap();
    let place = |loader: &Loader| at(&next(loader).unwrap().unwrap());
    let places: BTreeSet<u64> = (0..4).map(|_| place(&open())).collect();
    assert!(places.len() < 4, "{places:x?}");
}

/// Long rows whose file the page cache has let go of.
// promise: FEED-1, FEED-9
#[test]
fn batches_whose_rows_are_read_together_are_each_as_they_are_alone() {
    const LONG: usize = COPIED_ROW_BYTES_MAX + 512;
    let rows = 260;
    let mut file = NamedTempFile::new().unwrap();
    for row in 0..rows {
        file.write_all(&[row as u8 ^ 0x5a; LONG]).unwrap();
    }
    file.as_file().sync_all().unwrap();
    for (shuffle, batch) in [(Shuffle::Blocks, 16), (Shuffle::None, 16), (Shuffle::None, 15)] {
        fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
        let spec = Spec {
            columns: vec![Column { bytes: LONG, step: LONG as u64 }],
            shuffle,
            prefetch: Some(4),
            ..spec(&file, rows, batch)
        };
        let loader = Loader::open(spec).unwrap();
        assert_eq!((loader.together, loader.of_disk), (2, 4));
        let mut found = Vec::new();
        for epoch in 0..2 {
            for number in 0.. {
                let fails = number == 5 && {
                    let inner = loader.inner();
                    let several = inner.ahead.front().filter(|flight| flight.of_several);
                    several.is_some_and(|flight| {
                        let requests = flight.requests.iter().chain(&flight.together);
                        requests.for_each(|request| request.fail(Error::run("a read", "a fault", "nothing")));
                        true
                    })
                };
                if epoch == 0 && number == 5 && !fails {
                    eprintln!(
                        "the file system kept the file in the page cache: batches were read one by one"
                    );
                }
                let Some(batch) = next(&loader).unwrap() else { break };
                let of = loader.samples_at(epoch, batch.first, batch.rows).unwrap();
                for (i, sample) in of.iter().enumerate() {
                    let from = at(&batch) as usize + i * LONG;
                    // SAFETY: the row lies in the batch, which is held.
                    let row = unsafe { std::slice::from_raw_parts(from as *const u8, LONG) };
                    assert!(
                        row.iter().all(|byte| *byte == *sample as u8 ^ 0x5a),
                        "{sample} of batch {number}"
                    );
                }
                found.extend(of);
            }
            found.sort_unstable();
            assert_eq!(found, (0..rows).collect::<Vec<_>>());
            found.clear();
        }
    }
}

// promise: FEED-5
#[test]
fn batches_of_a_disk_are_begun_together_as_far_as_as_many_more_may_be_ahead() {
    const MIB: usize = 1 << 20;
    assert_eq!([5, 30, 64, 65].map(|each| together(64 * MIB, each * MIB, 100)), [13, 3, 1, 1]);
    assert_eq!([0, 1, 2, 3, 4, 9].map(|ahead| together(64 * MIB, 5 * MIB, ahead)), [1, 1, 1, 2, 2, 5]);
    assert_eq!([together(0, 5 * MIB, 100), together(64 * MIB, 0, 9)], [1, 5]);
    let file = numbered(4096);
    let open = |limit_bytes, shuffle| {
        let loader =
            Loader::open(Spec { limit_bytes, prefetch: None, shuffle, ..spec(&file, 4096, 1024) }).unwrap();
        (loader.together, loader.of_disk, loader.prefetch)
    };
    // Of 64 KiB each.
    let (whole, _, prefetch) = open(None, Shuffle::None);
    assert_eq!((whole, open(None, Shuffle::Rows)), (TOGETHER_MAX, (1, prefetch, prefetch)));
    // Whoever allows little memory has as many batches as fit.
    assert_eq!(open(Some(4 * MIB), Shuffle::None), (31, 61, prefetch));
}

// promise: FEED-9
#[test]
fn a_rank_that_gets_none_of_the_last_few_long_rows_has_an_empty_batch() {
    // So that blocks have few.
    const LONG: usize = 600 << 10;
    let rows = 2 * 3 * 3 + 1;
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(&vec![7; rows as usize * LONG]).unwrap();
    file.as_file().sync_all().unwrap();
    fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    let lengths = |rank| {
        let spec = Spec {
            columns: vec![Column { bytes: LONG, step: LONG as u64 }],
            shuffle: Shuffle::Blocks,
            prefetch: Some(4),
            share: Share { batch: 2, rank, world: 3, drop_last: false },
            ..spec(&file, rows, 2)
        };
        let loader = Loader::open(spec).unwrap();
        std::iter::from_fn(|| next(&loader).unwrap().map(|batch| batch.rows)).collect::<Vec<_>>()
    };
    assert_eq!([0, 1, 2].map(lengths), [[2, 2, 2, 1], [2, 2, 2, 0], [2, 2, 2, 0]]);
}

// promise: FEED-5
#[test]
fn of_cached_samples_no_more_is_read_ahead_than_stays_in_the_cache() {
    assert_eq!(ahead_of_cached(1 << 10, 16), 16);
    let least = processors::to_host_soonest().max(2) - 1;
    assert_eq!((ahead_of_cached(usize::MAX, 16), ahead_of_cached(usize::MAX, 1)), (least, 1));
    let file = numbered(2000);
    let mut loader = Loader::open(Spec { prefetch: Some(4), ..spec(&file, 2000, 10) }).unwrap();
    loader.of_cached = 1;
    let begun = || {
        next(&loader).unwrap().unwrap();
        loader.inner().ahead.len()
    };
    if loader.table.cached_share_of(0) != Some(1.0) {
        eprintln!("skipped: the system doesn't tell what is cached");
        return;
    }
    // One is asked for, and one is ahead; of what comes from a disk so many as were asked for.
    assert_eq!([begun(), begun()], [1, 1]);
    file.as_file().sync_all().unwrap();
    fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    if loader.table.cached_share_of(0) == Some(0.0) {
        assert_eq!(begun(), 4);
    }
}
