//! Checksums of files that travel through pinned slots into GPU memory, against the host's.

use forebay_bench::{checksum_device_memory, run_checksum, ChecksumRecord, ChecksumSpec};
use forebay_model::content;
use forebay_model::Error;
use forebay_model::Kind;
use forebay_rigs::gpu::Scenario;
use std::path::{Path, PathBuf};

fn files(home: &Path) -> Vec<PathBuf> {
    let sizes = [0, 1, 4095, (4 << 20) - 1, 4 << 20, (9 << 20) + 123];
    let make = |(n, size): (usize, &usize)| {
        let mut bytes = vec![0; *size];
        content::fill(&mut bytes, 1, n as u64, 0);
        let file = home.join(format!("f{n}"));
        std::fs::write(&file, bytes).unwrap();
        file
    };
    sizes.iter().enumerate().map(make).collect()
}

fn go(files: &[PathBuf], gpu: Option<u32>) -> Result<ChecksumRecord, Error> {
    let files = files.iter().map(|f| f.display().to_string()).collect();
    let spec = ChecksumSpec { files, gpu, host: gpu.is_none(), workers: Some(3) };
    run_checksum(&spec, &mut || true)
}

fn sums(record: &ChecksumRecord) -> Vec<&str> {
    record.files.iter().map(|f| f.crc32c.as_str()).collect()
}

// promise: VER-6
#[test]
fn a_gpu_and_the_host_agree_about_any_file() {
    let books = Scenario::new("checksum::a_gpu_and_the_host_agree_about_any_file").run(|| {
        let home = forebay_rigs::gpu::home();
        let files = files(home.path());
        let (gpu, host) = (go(&files, Some(0)).unwrap(), go(&files, None).unwrap());
        assert_eq!(sums(&gpu), sums(&host));
        assert_eq!((gpu.computed_on.as_str(), gpu.path), ("gpu:0", "bounce"));
        assert_eq!((host.computed_on.as_str(), host.path), ("host", "host"));
    });
    if let Some(books) = books {
        assert!(books.count("launches") >= 7, "a launch for each piece");
    }
}

// promise: VER-6
#[test]
fn a_gpu_that_was_asked_for_and_has_no_compiler_is_an_error_and_a_chosen_one_a_reason() {
    let name = "checksum::a_gpu_that_was_asked_for_and_has_no_compiler_is_an_error_and_a_chosen_one_a_reason";
    Scenario::new(name).settings("gpus=1").variable("FOREBAY_LIBNVRTC", "/nowhere/libnvrtc.so").run(|| {
        let home = forebay_rigs::gpu::home();
        let files = files(home.path());
        assert_eq!(go(&files, Some(0)).unwrap_err().kind, Kind::Machine);
        let names = files.iter().map(|f| f.display().to_string()).collect();
        let spec = ChecksumSpec { files: names, gpu: None, host: false, workers: None };
        let record = run_checksum(&spec, &mut || true).unwrap();
        assert_eq!(record.computed_on, "host");
        assert!(record.reason.unwrap().contains("NVRTC"));
    });
}

// promise: VER-6
#[test]
fn a_copy_that_fails_ends_it_with_the_drivers_words() {
    let settings = "fail=cuMemcpyHtoDAsync_v2:6:719";
    Scenario::new("checksum::a_copy_that_fails_ends_it_with_the_drivers_words").settings(settings).run(
        || {
            let home = forebay_rigs::gpu::home();
            let why = go(&files(home.path()), Some(0)).unwrap_err();
            assert!(why.kind == Kind::Run && why.found.contains("719"), "{why}");
        },
    );
}

// promise: VER-7
#[test]
fn memory_that_is_not_the_gpus_is_refused() {
    Scenario::new("checksum::memory_that_is_not_the_gpus_is_refused").run(|| {
        let here = vec![0u8; 4096];
        let why = checksum_device_memory(0, here.as_ptr() as u64, 4096, 0).unwrap_err();
        assert_eq!(why.kind, Kind::Request);
        let gpu = forebay_io::CudaDevice::open(0).unwrap();
        let memory = gpu.allocate(9).unwrap();
        gpu.write(memory.address(), b"123456789").unwrap();
        assert_eq!(checksum_device_memory(0, memory.address(), 9, 0).unwrap(), 0xE306_9283);
    });
}
