//! Our kernels against a simpler truth on the host: the model's content, and
//! CRC32C bit by bit.

use forebay_io::{
    find_nvrtc, Arena, ContentChecker, ContentFiller, ContentFinding, ContentLists, ContentRange, Cuda,
    CudaDevice, CudaStream, DeviceMemory, GpuCrc32c, GpuRows, GpuSums, Pulling, RowPiece, Scattering,
    ROW_ELSEWHERE,
};
use forebay_model::content;
use forebay_model::job::Pages;
use forebay_rigs::gpu::Scenario;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::sync::Arc;

const ROOM: usize = 192 << 10;
/// Bytes that rows are fetched from.
const TABLE: usize = 1 << 20;

struct Bench {
    gpu: Arc<CudaDevice>,
    stream: CudaStream,
    memory: DeviceMemory,
}

impl Bench {
    fn new() -> Bench {
        let gpu = CudaDevice::open(0).unwrap();
        let (stream, memory) = (CudaStream::on(&gpu).unwrap(), gpu.allocate(ROOM).unwrap());
        Bench { gpu, stream, memory }
    }

    fn held(&self) -> Vec<u8> {
        let mut bytes = vec![0; ROOM];
        self.gpu.read_back(self.memory.address(), &mut bytes).unwrap();
        bytes
    }

    fn hold(&self, bytes: &[u8]) {
        self.gpu.write(self.memory.address(), bytes).unwrap();
    }

    fn done(&self, queued: Cuda<()>) {
        queued.and_then(|()| self.stream.synchronize()).unwrap();
    }
}

/// Runs `body` over inputs; a failure prints the input that failed, made as small as it can be.
fn for_any<S: Strategy>(inputs: S, body: impl Fn(S::Value)) {
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let checked = |input| {
        body(input);
        Ok(())
    };
    runner.run(&inputs, checked).unwrap();
}

/// (address's distance from the memory's start, offset in the file, bytes): aligned, or not at all.
fn places() -> impl Strategy<Value = (usize, u64, usize)> {
    let alike = (0..64u64, 0..40_000usize).prop_map(|(block, bytes)| (0, block * 4096, bytes));
    let shifted = (0..9000u64, 0..40_000usize).prop_map(|(at, bytes)| ((at % 16) as usize, at, bytes));
    let any = (0..4097usize, any::<u32>(), 1..60_000usize).prop_map(|(skew, at, n)| (skew, u64::from(at), n));
    prop_oneof![alike, shifted, any]
}

// promise: VER-2
#[test]
fn content_made_on_the_device_is_the_hosts_and_a_check_finds_each_wrong_block() {
    let name = "kernels::content_made_on_the_device_is_the_hosts_and_a_check_finds_each_wrong_block";
    Scenario::new(name).run(|| {
        let bench = Bench::new();
        let (checker, filler) =
            (ContentChecker::open(&bench.gpu).unwrap(), ContentFiller::open(&bench.gpu).unwrap());
        let lists = ContentLists::new(&bench.gpu, 1, 1).unwrap();
        let wrong = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
        for_any(
            (places(), any::<u64>(), any::<u64>(), wrong),
            |((skew, offset, bytes), seed, file, wrong)| {
                let at = bench.memory.address() + skew as u64;
                let range = ContentRange { at, bytes: bytes as u64, seed, file, offset };
                let mut expected = vec![0xAA; ROOM];
                bench.hold(&expected);
                // SAFETY: the range lies in the memory, and nobody else uses it or the list.
                bench.done(unsafe { filler.queue(&bench.stream, &lists, 0, &[range]) });
                content::fill(&mut expected[skew..skew + bytes], seed, file, offset);
                assert!(bench.held() == expected, "filled {range:?}");

                let wrong: BTreeSet<usize> =
                    wrong.iter().filter(|_| bytes > 0).map(|i| i.index(bytes)).collect();
                wrong.iter().for_each(|i| expected[skew + i] ^= 0x10);
                bench.hold(&expected);
                // SAFETY: as above.
                bench.done(unsafe { checker.queue(&bench.stream, &lists, 0, &[range]) });
                let blocks: BTreeSet<u64> = wrong.iter().map(|i| (offset + *i as u64) / 4096).collect();
                let finding = lists.finding(0, 0);
                let first_bad = blocks.first().map(|b| b * 4096);
                assert_eq!(
                    finding,
                    ContentFinding { blocks_bad: blocks.len() as u64, first_bad },
                    "{range:?} {wrong:?}"
                );
            },
        );
    });
}

// promise: VER-1
#[test]
fn one_launch_checks_many_slots_and_says_which_is_wrong() {
    Scenario::new("kernels::one_launch_checks_many_slots_and_says_which_is_wrong").run(|| {
        let bench = Bench::new();
        let checker = ContentChecker::open(&bench.gpu).unwrap();
        let lists = ContentLists::new(&bench.gpu, 2, 40).unwrap();
        let (slot, count) = (4096usize, 40usize);
        let mut bytes = vec![0; ROOM];
        let range = |i: usize| ContentRange {
            at: bench.memory.address() + (i * slot) as u64,
            bytes: slot as u64,
            seed: 7,
            file: 1 + i as u64 % 2,
            offset: (i * slot) as u64,
        };
        let ranges: Vec<ContentRange> = (0..count).map(range).collect();
        for (i, r) in ranges.iter().enumerate() {
            // Slot 23 holds another file's block.
            let file = if i == 23 { 99 } else { r.file };
            content::fill(&mut bytes[i * slot..(i + 1) * slot], 7, file, r.offset);
        }
        bench.hold(&bytes);
        // SAFETY: the ranges lie in the memory, and nobody else uses the list.
        bench.done(unsafe { checker.queue(&bench.stream, &lists, 1, &ranges) });
        for i in 0..count {
            assert_eq!(lists.finding(1, i).is_good(), i != 23, "slot {i}: {:?}", lists.finding(1, i));
        }
        assert_eq!(lists.finding(1, 23), ContentFinding { blocks_bad: 1, first_bad: Some(23 * 4096) });
    });
}

/// Bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |s, _| (s >> 1) ^ if s & 1 == 1 { 0x82F6_3B78 } else { 0 })
    })
}

// promise: VER-5
#[test]
fn crc32c_of_any_range_is_the_standards() {
    Scenario::new("kernels::crc32c_of_any_range_is_the_standards").run(|| {
        let bench = Bench::new();
        let crc = std::cell::RefCell::new(GpuCrc32c::open(&bench.gpu).unwrap());
        let sums = std::cell::RefCell::new(GpuSums::new(&bench.gpu, 2).unwrap());
        let mut bytes = vec![0; ROOM];
        content::fill(&mut bytes, 3, 4, 5);
        bytes[..9].copy_from_slice(b"123456789");
        bench.hold(&bytes);
        let check = |skew: usize, len: usize| {
            let at = bench.memory.address() + skew as u64;
            // SAFETY: the range lies in the memory, which doesn't change; the sum is this call's.
            bench.done(unsafe {
                crc.borrow_mut().queue(&bench.stream, &mut sums.borrow_mut(), 1, at, len as u64)
            });
            assert_eq!(
                sums.borrow().checksum(1),
                crc32c(&bytes[skew..skew + len]),
                "{len} bytes from {skew}"
            );
        };
        check(0, 9);
        check(0, 0);
        check(0, ROOM);
        for_any((0..2000usize, 0..150_000usize), |(skew, len)| check(skew, len));
        for_any((0..40usize, 0..1100usize), |(skew, len)| check(skew, len));
    });
}

#[test]
fn a_kernel_is_compiled_once_and_loaded_while_it_is_used() {
    let books = Scenario::new("kernels::a_kernel_is_compiled_once_and_loaded_while_it_is_used").run(|| {
        let gpu = CudaDevice::open(0).unwrap();
        let (a, b) = (GpuCrc32c::open(&gpu).unwrap(), GpuCrc32c::open(&gpu).unwrap());
        drop((a, b));
        drop(GpuCrc32c::open(&gpu).unwrap());
        assert!(find_nvrtc().unwrap().contains("from"));
    });
    if let Some(books) = books {
        assert_eq!(
            books.calls("cuModuleLoadData"),
            2,
            "once for both at a time, and again when all were gone"
        );
    }
}

// promise: VER-4
#[test]
fn a_compiler_that_fails_is_quoted() {
    Scenario::new("kernels::a_compiler_that_fails_is_quoted")
        .settings("gpus=1")
        .variable("FOREBAY_STUB_NVRTC", "compile=6")
        .run(|| {
            let why = GpuCrc32c::open(&CudaDevice::open(0).unwrap()).err().unwrap();
            assert!(why.found.contains("NVRTC_ERROR_COMPILATION (6)"), "{why}");
            assert!(why.found.contains("the stand-in was told to fail"), "{why}");
        });
}

#[test]
fn a_gpu_newer_than_the_compiler_gets_ptx_of_the_newest_that_it_knows() {
    let name = "kernels::a_gpu_newer_than_the_compiler_gets_ptx_of_the_newest_that_it_knows";
    Scenario::new(name).settings("gpus=1").variable("FOREBAY_STUB_NVRTC", "arch=80").run(|| {
        GpuCrc32c::open(&CudaDevice::open(0).unwrap()).unwrap();
    });
}

// promise: VER-4
#[test]
fn without_nvrtc_the_error_says_what_to_install() {
    Scenario::new("kernels::without_nvrtc_the_error_says_what_to_install")
        .settings("gpus=1")
        .variable("FOREBAY_LIBNVRTC", "/nowhere/libnvrtc.so")
        .run(|| {
            let why = ContentChecker::open(&CudaDevice::open(0).unwrap()).err().unwrap();
            assert!(why.found.contains("NVRTC") && why.found.contains("FOREBAY_LIBNVRTC"), "{why}");
            assert!(why.next.contains("nvidia-cuda-nvrtc"), "{why}");
        });
}

// promise: PYT-13
#[test]
fn rows_go_from_registered_memory_to_their_places_and_nothing_beside_them() {
    Scenario::new("kernels::rows_go_from_registered_memory_to_their_places_and_nothing_beside_them").run(
        || {
            let bench = Bench::new();
            let kernel = GpuRows::open(&bench.gpu).unwrap();
            let table = Arena::new(1, TABLE, Pages::Small).unwrap();
            let base = table.slot(0).host_ptr();
            // SAFETY: the arena's one slot, which nobody writes to from here on.
            let held = unsafe { std::slice::from_raw_parts_mut(base, TABLE) };
            content::fill(held, 1, 2, 0);
            let rows = (1u64..9000, 0usize..33, prop::collection::vec((any::<u32>(), 0..8u8), 0..60));
            let pinned = bench.gpu.pin(&table).unwrap();
            let offsets = bench.gpu.allocate(8 * 60).unwrap();
            for_any(rows, |(row_bytes, skew, draws)| {
                let row = row_bytes as usize;
                let draws = &draws[..draws.len().min((ROOM - skew) / row)];
                let offset =
                    |n: u32| (u64::from(n) % (TABLE as u64 - row_bytes)) & if n % 3 == 0 { !15 } else { !0 };
                let laid: Vec<u64> = draws
                    .iter()
                    .map(|(n, kind)| if *kind == 0 { ROW_ELSEWHERE } else { offset(*n) })
                    .collect();
                let mut expected = vec![0xAA; ROOM];
                bench.hold(&expected);
                let bytes: Vec<u8> = laid.iter().flat_map(|offset| offset.to_ne_bytes()).collect();
                if laid.is_empty() {
                    return;
                }
                bench.gpu.write(offsets.address(), &bytes).unwrap();
                let (to, count) = (bench.memory.address() + skew as u64, laid.len() as u64);
                // SAFETY: the table is pinned, and rows and offsets lie inside; nobody else uses the memory.
                bench.done(unsafe {
                    kernel.queue(&bench.stream, base, 1, offsets.address(), to, count, row_bytes)
                });
                for (i, from) in laid.iter().enumerate().filter(|(_, offset)| **offset != ROW_ELSEWHERE) {
                    expected[skew + i * row..][..row].copy_from_slice(&held[*from as usize..][..row]);
                }
                assert!(bench.held() == expected, "{} rows of {row_bytes} from {skew} on", laid.len());
            });
            drop(pinned);
        },
    );
}

// promise: GPU-7
#[test]
fn pieces_go_from_wherever_they_lie_to_their_places_and_nothing_beside_them() {
    Scenario::new("kernels::pieces_go_from_wherever_they_lie_to_their_places_and_nothing_beside_them").run(
        || {
            let bench = Bench::new();
            let lists = Scattering::new(&bench.gpu, 64).unwrap();
            let table = Arena::new(1, TABLE, Pages::Small).unwrap();
            let base = table.slot(0).host_ptr();
            // SAFETY: the arena's one slot, which nobody writes to from here on.
            let held = unsafe { std::slice::from_raw_parts_mut(base, TABLE) };
            content::fill(held, 1, 2, 0);
            let pinned = bench.gpu.pin(&table).unwrap();
            let draws = prop::collection::vec((any::<u32>(), 0..9u32, 1..3000u32), 1..64);
            for_any(draws, |draws| {
                let mut expected = vec![0xAA; ROOM];
                bench.hold(&expected);
                let mut at = 0;
                let mut pieces = Vec::new();
                for (from, gap, bytes) in draws {
                    let (from, gap, bytes) =
                        (from as usize % (TABLE - bytes as usize), gap as usize * 4, bytes as usize);
                    expected[at + gap..][..bytes].copy_from_slice(&held[from..][..bytes]);
                    let to = bench.memory.address() + (at + gap) as u64;
                    pieces.push(RowPiece { from: base as u64 + from as u64, to, bytes: bytes as u64 });
                    at += gap + bytes;
                }
                let list = lists.take().unwrap();
                // SAFETY: the table is pinned, pieces and places lie inside; nobody else uses the memory or the list.
                bench.done(unsafe { lists.queue(&bench.stream, list, pieces.iter().copied()) });
                lists.give(list);
                assert!(bench.held() == expected, "{pieces:?}");
            });
            drop(pinned);
        },
    );
}

// promise: GPU-7
#[test]
fn a_piece_that_is_pulled_comes_whole_and_nothing_beside_it() {
    Scenario::new("kernels::a_piece_that_is_pulled_comes_whole_and_nothing_beside_it").run(|| {
        let bench = Bench::new();
        let pulling = Pulling::new(&bench.gpu).unwrap();
        let table = Arena::new(1, TABLE, Pages::Small).unwrap();
        let base = table.slot(0).host_ptr();
        // SAFETY: the arena's one slot, which nobody writes to from here on.
        let held = unsafe { std::slice::from_raw_parts_mut(base, TABLE) };
        content::fill(held, 1, 2, 0);
        let pinned = bench.gpu.pin(&table).unwrap();
        for_any((any::<u32>(), 0..999usize, 1024..11_000usize), |(from, gap, words)| {
            let (gap, bytes) = (gap * 16, words * 16);
            let from = from as usize % ((TABLE - bytes) / 16) * 16;
            let mut expected = vec![0xAA; ROOM];
            bench.hold(&expected);
            expected[gap..][..bytes].copy_from_slice(&held[from..][..bytes]);
            let (at, to) = (base.wrapping_add(from), bench.memory.address() + gap as u64);
            assert!(Pulling::takes(at, to, bytes));
            assert!(!Pulling::takes(at, to, bytes + 1) && !Pulling::takes(at, to + 8, bytes));
            // SAFETY: the table is pinned, piece and place lie inside; nobody else uses the memory.
            bench.done(unsafe { pulling.queue(&bench.stream, at, to, bytes) });
            assert!(bench.held() == expected, "{from} {gap} {bytes}");
        });
        drop(pinned);
    });
}
