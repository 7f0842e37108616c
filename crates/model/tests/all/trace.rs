//! The order of samples, over many shapes of data sets and numbers of accelerators.

use forebay_model::training::{EmulateSpec, Loader, RuleSet, Stream, Trace, Workload};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
struct Shape {
    spec: EmulateSpec,
    files: u32,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let loader = prop_oneof![Just(Loader::PyTorch), Just(Loader::TensorFlow)];
    let rules = prop::sample::select(RuleSet::ALL.to_vec());
    let format = prop::sample::select(vec!["npz", "indexed_binary"]);
    let sizes = (1u32..40, 1u32..20, 1u32..9, 1u32..7, 1u32..6);
    (loader, rules, format, sizes, any::<(bool, bool, u64)>(), prop::option::of(1u32..9)).prop_map(
        |(
            loader,
            rules,
            format,
            (files, samples_per_file, batch, ranks, read_threads),
            shuffle,
            steps_max,
        )| {
            let (file_shuffle, sample_shuffle, seed) = shuffle;
            let workload = Workload {
                name: "w".into(),
                loader,
                format: format.into(),
                batch,
                record_bytes: 100.0,
                samples_per_file,
                file_shuffle,
                sample_shuffle,
                ..Workload::default()
            };
            let spec = EmulateSpec {
                workload,
                rules,
                data: vec!["/d".into()],
                accelerators: ranks,
                ranks,
                read_threads,
                seed,
                steps_max,
                ..EmulateSpec::default()
            };
            Shape { spec, files }
        },
    )
}

/// (file, record, number) of each sample.
fn samples(streams: &[Stream]) -> Vec<(u32, u32, u64)> {
    let of = |s: &Stream| {
        let s = *s;
        (0..s.samples)
            .map(move |j| (s.file, s.first + j * s.every, s.position + u64::from(j) * u64::from(s.stride)))
    };
    streams.iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Each rank's batches are full and have each number once; no record comes twice in an epoch, unless the rank has
    /// to go through its files again; and then all of them have come before.
    // promise: TRA-1
    #[test]
    fn every_sample_is_taken_once_and_every_batch_is_full(shape in shapes(), epoch in 0u32..3) {
        let Shape { spec, files } = shape;
        let Ok(trace) = Trace::new(&spec, files) else {
            let needed = u64::from(spec.workload.batch) * u64::from(spec.ranks);
            let there = u64::from(files) * u64::from(spec.workload.samples_per_file);
            prop_assert!(there < needed || spec.workload.loader == Loader::TensorFlow);
            return Ok(());
        };
        let per_file = u64::from(spec.workload.samples_per_file);
        let ideal = u64::from(files) * per_file / u64::from(spec.workload.batch) / u64::from(spec.ranks);
        prop_assert_eq!(u64::from(trace.steps()), ideal.min(u64::from(spec.steps_max.unwrap_or(u32::MAX))));
        let mut taken: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
        for rank in 0..spec.ranks {
            let streams: Vec<Stream> = trace.streams(epoch, rank).collect();
            prop_assert!(streams.windows(2).all(|w| w[0].position < w[1].position), "{:?}", streams);
            prop_assert!(streams.iter().all(|s| s.samples > 0 && s.file < files));
            let mut samples = samples(&streams);
            prop_assert!(samples.iter().all(|s| u64::from(s.1) < per_file));
            samples.sort_unstable_by_key(|s| s.2);
            let numbers: Vec<u64> = samples.iter().map(|s| s.2).collect();
            prop_assert!(numbers.into_iter().eq(0..trace.samples_per_rank()));
            for (file, record, _) in samples {
                taken.entry((file, record)).or_default().push(rank);
            }
        }
        let twice = taken.values().filter(|ranks| ranks.len() > 1).count();
        let goes_again = spec.workload.loader == Loader::TensorFlow && files % spec.ranks != 0;
        prop_assert!(twice == 0 || goes_again, "{} records twice", twice);
        // Never by two ranks.
        prop_assert!(taken.values().all(|ranks| ranks.windows(2).all(|w| w[0] == w[1])));
        // Nothing is left but what doesn't fill a batch of all ranks.
        if twice == 0 && spec.steps_max.is_none() {
            let dropped = u64::from(files) * per_file - taken.len() as u64;
            prop_assert!(dropped < u64::from(spec.workload.batch) * u64::from(spec.ranks));
        }
    }

    // promise: TRA-1
    #[test]
    fn the_same_seed_gives_the_same_order_on_every_rank_alone(shape in shapes(), epoch in 0u32..3) {
        let Shape { spec, files } = shape;
        let Ok(trace) = Trace::new(&spec, files) else { return Ok(()) };
        let part = EmulateSpec { accelerators: 1, first_rank: spec.ranks - 1, ..spec.clone() };
        let alone = Trace::new(&part, files).unwrap();
        let rank = spec.ranks - 1;
        prop_assert!(trace.streams(epoch, rank).eq(alone.streams(epoch, rank)));
    }
}

fn orders(rules: RuleSet, seed: u64) -> Vec<Vec<u32>> {
    let workload = Workload {
        name: "w".into(),
        format: "npz".into(),
        batch: 7,
        record_bytes: 100.0,
        samples_per_file: 1,
        sample_shuffle: true,
        ..Workload::default()
    };
    let data = vec!["/d".into()];
    let spec =
        EmulateSpec { workload, rules, data, accelerators: 2, ranks: 2, seed, ..EmulateSpec::default() };
    let trace = Trace::new(&spec, 168).unwrap();
    (0..3).map(|epoch| trace.streams(epoch, 0).map(|s| s.file).collect()).collect()
}

// promise: TRA-1
#[test]
fn epochs_differ_and_only_v1_0_gives_a_rank_other_files() {
    for rules in RuleSet::ALL {
        let epochs = orders(rules, 1);
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2], "{rules:?}");
        assert_ne!(epochs, orders(rules, 2), "{rules:?}");
        let sorted: Vec<Vec<u32>> = epochs
            .into_iter()
            .map(|mut files| {
                files.sort_unstable();
                files
            })
            .collect();
        assert_eq!(sorted[0] == sorted[1], rules != RuleSet::V10, "{rules:?}");
    }
}

#[test]
fn a_trace_of_billions_of_samples_starts_at_once() {
    let workload = Workload {
        name: "dlrm".into(),
        format: "parquet".into(),
        batch: 16384,
        record_bytes: 761.0,
        samples_per_file: 4_718_592,
        file_shuffle: true,
        sample_shuffle: true,
        ..Workload::default()
    };
    let data = vec!["/d".into()];
    let spec = EmulateSpec { workload, data, accelerators: 8, ranks: 8, ..EmulateSpec::default() };
    let trace = Trace::new(&spec, 1024).unwrap();
    assert_eq!(trace.steps(), 36864);
    assert_eq!(trace.streams(3, 7).map(|s| u64::from(s.samples)).sum::<u64>(), trace.samples_per_rank());
}
