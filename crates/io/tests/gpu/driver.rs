//! The driver's wrappers: what they make they unmake, and each error says which.

use forebay_io::{cuda_devices, Arena, CudaDevice, CudaEvent, CudaStream};
use forebay_model::job::Pages;
use forebay_model::Kind;
use forebay_rigs::gpu::{home, Scenario};
use std::sync::Arc;

fn gpu() -> Arc<CudaDevice> {
    CudaDevice::open(0).unwrap()
}

/// The pinned bytes of an arena.
fn bytes_of(arena: &mut Arena) -> &mut [u8] {
    let (at, bytes) = arena.whole();
    // SAFETY: the tests look at an arena only while no copy is under way, and from one place.
    unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) }
}

#[test]
fn memory_written_is_read_back_and_given_back() {
    let books = Scenario::new("driver::memory_written_is_read_back_and_given_back").run(|| {
        let gpu = gpu();
        let (free, total) = gpu.memory_info().unwrap();
        let memory = gpu.allocate(3 << 20).unwrap();
        let sent: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 7) as u8).collect();
        gpu.write(memory.address(), &sent).unwrap();
        let mut back = vec![0; sent.len()];
        gpu.read_back(memory.address(), &mut back).unwrap();
        assert!(back == sent);
        assert_eq!(gpu.owner_of(memory.address() + 4096), Some(0));
        assert_eq!(gpu.owner_of(back.as_ptr() as u64), None);
        drop(memory);
        assert!(total > 0 && gpu.memory_info().unwrap().0 >= free.min(total / 2));
    });
    if let Some(books) = books {
        assert_eq!(books.count("allocated_bytes_max"), 3 << 20);
        assert_eq!(books.count("pageable_copies"), 2);
    }
}

#[test]
fn a_stream_works_in_order_and_its_event_says_how_far() {
    Scenario::new("driver::a_stream_works_in_order_and_its_event_says_how_far").run(|| {
        let gpu = gpu();
        let mut arena = Arena::new(2, 1 << 20, Pages::Small).unwrap();
        let pinned = gpu.pin(&arena).unwrap();
        let memory = gpu.allocate(1 << 20).unwrap();
        let (stream, event) = (CudaStream::on(&gpu).unwrap(), CudaEvent::on(&gpu).unwrap());
        assert!(event.is_done().unwrap(), "an event that nobody recorded stands for nothing");
        for round in 0..20u8 {
            bytes_of(&mut arena)[..1 << 20].fill(round);
            // SAFETY: the arena and the memory outlive the copies, and are left alone until the event.
            unsafe {
                stream.copy_to_device(memory.address(), arena.slot(0).host_ptr(), 1 << 20).unwrap();
                stream.set_bytes(memory.address(), round ^ 0xFF, 4096).unwrap();
                stream.copy_to_host(arena.slot(1).host_ptr(), memory.address(), 1 << 20).unwrap();
            }
            stream.record(&event).unwrap();
            while !event.is_done().unwrap() {
                std::thread::yield_now();
            }
            let back = &bytes_of(&mut arena)[1 << 20..2 << 20];
            assert!(back[..4096].iter().all(|b| *b == round ^ 0xFF));
            assert!(back[4096..].iter().all(|b| *b == round));
        }
        drop(pinned);
    });
}

#[test]
fn a_slot_changed_under_its_copy_is_seen() {
    // Shows that the other tests would see it: the books aren't balanced.
    let caught = std::panic::catch_unwind(|| {
        Scenario::new("driver::a_slot_changed_under_its_copy_is_seen").settings("delay_us=200000").run(
            || {
                let gpu = gpu();
                let mut arena = Arena::new(1, 4096, Pages::Small).unwrap();
                let _pinned = gpu.pin(&arena).unwrap();
                let memory = gpu.allocate(4096).unwrap();
                let stream = CudaStream::on(&gpu).unwrap();
                bytes_of(&mut arena).fill(1);
                // SAFETY: live until the stream is synchronised.
                unsafe { stream.copy_to_device(memory.address(), arena.slot(0).host_ptr(), 4096).unwrap() };
                bytes_of(&mut arena).fill(2);
                stream.synchronize().unwrap();
                let mut back = vec![0; 4096];
                gpu.read_back(memory.address(), &mut back).unwrap();
                assert_eq!(back[0], 2, "the copy read its source when it was queued");
            },
        );
    });
    if !forebay_rigs::gpu::is_inside() && !forebay_rigs::gpu::on_real_gpu() {
        let why = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(why.contains("changed_under_copy"), "{why}");
    }
}

#[test]
fn a_copy_over_the_end_of_its_memory_is_refused() {
    let caught = std::panic::catch_unwind(|| {
        Scenario::new("driver::a_copy_over_the_end_of_its_memory_is_refused").settings("gpus=1").run(|| {
            let gpu = gpu();
            let memory = gpu.allocate(8192).unwrap();
            let why = gpu.write(memory.address() + 4096, &[0; 4097]).unwrap_err();
            assert_eq!(why.code, 1, "{why}");
        });
    });
    if !forebay_rigs::gpu::is_inside() && !forebay_rigs::gpu::on_real_gpu() {
        let why = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(why.contains("copies_outside"), "{why}");
    }
}

#[test]
fn memory_that_runs_out_says_how_much_is_free() {
    Scenario::new("driver::memory_that_runs_out_says_how_much_is_free").settings("memory=8m").run(|| {
        let gpu = gpu();
        let _first = gpu.slots(5, 1 << 20).unwrap();
        let why = gpu.slots(4, 1 << 20).err().unwrap().to_string();
        assert!(
            why.contains("CUDA_ERROR_OUT_OF_MEMORY (2)") && why.contains("3145728 bytes are free"),
            "{why}"
        );
        assert!(gpu.allocate(9 << 20).err().unwrap().is_out_of_memory());
    });
}

#[test]
fn a_pin_that_is_refused_says_what_it_was_for() {
    let settings = "fail=cuMemHostRegister_v2:1:2";
    Scenario::new("driver::a_pin_that_is_refused_says_what_it_was_for").settings(settings).run(|| {
        let gpu = gpu();
        let arena = Arena::new(4, 1 << 20, Pages::Small).unwrap();
        let why = gpu.pin(&arena).err().unwrap();
        assert_eq!(why.kind, Kind::Machine, "{why}");
        assert!(why.to_string().contains("pin 4194304 bytes of host memory for GPU 0"), "{why}");
        drop(gpu.pin(&arena).unwrap());
    });
}

#[test]
fn what_may_be_registered_is_checked() {
    Scenario::new("driver::what_may_be_registered_is_checked").settings("pin=1m").run(|| {
        let gpu = gpu();
        let file = tempfile::tempfile_in(home().path()).unwrap();
        file.set_len(8192).unwrap();
        use std::os::fd::AsRawFd;
        // SAFETY: a fresh mapping of our own file; it lives as long as the process.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 16384, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        }
        .cast::<u8>();
        // SAFETY: the mapping stays.
        let register =
            |from: usize, bytes, read_only| unsafe { gpu.register(at.add(from), bytes, read_only) };
        assert_eq!(register(0, 8192, false).err().unwrap().code, 1, "a read-only mapping to write to");
        assert_eq!(register(0, 12288, true).err().unwrap().code, 1, "pages behind the end of the file");
        let held = register(0, 8192, true).unwrap();
        assert_eq!(register(4096, 4096, true).err().unwrap().code, 712, "twice");
        let arena = Arena::new(1, 2 << 20, Pages::Small).unwrap();
        assert!(gpu.pin(&arena).is_err(), "more than may be pinned");
        drop(held);
    });
}

// promise: FLT-18
#[test]
fn a_context_destroyed_under_us_is_an_error_of_every_call() {
    let settings = "destroyed=20";
    Scenario::new("driver::a_context_destroyed_under_us_is_an_error_of_every_call").settings(settings).run(
        || {
            let gpu = gpu();
            let memory = gpu.allocate(4096).unwrap();
            let stream = CudaStream::on(&gpu).unwrap();
            let failed = (0..20).find_map(|_| stream.synchronize().err()).unwrap();
            assert_eq!(failed.code, 709);
            assert!(failed.to_string().contains("CUDA_ERROR_CONTEXT_IS_DESTROYED (709)"), "{failed}");
            assert_eq!(gpu.allocate(1).err().unwrap().code, 709);
            drop((memory, stream));
        },
    );
}

// promise: FLT-18
#[test]
fn a_fault_of_the_device_is_seen_by_the_next_to_ask() {
    let settings = "fail=copy:2:700";
    Scenario::new("driver::a_fault_of_the_device_is_seen_by_the_next_to_ask").settings(settings).run(|| {
        let gpu = gpu();
        let memory = gpu.allocate(4096).unwrap();
        gpu.write(memory.address(), &[1; 4096]).unwrap();
        assert_eq!(gpu.write(memory.address(), &[2; 4096]).unwrap_err().code, 700);
        assert_eq!(CudaEvent::on(&gpu).err().unwrap().code, 700, "the error stays");
    });
}

#[test]
fn several_gpus_have_memory_of_their_own() {
    Scenario::new("driver::several_gpus_have_memory_of_their_own").settings("gpus=2").run(|| {
        assert_eq!(cuda_devices().0, 2);
        let gpus = [gpu(), CudaDevice::open(1).unwrap()];
        let memories = gpus.each_ref().map(|g| g.allocate(4096).unwrap());
        for (i, (gpu, memory)) in gpus.iter().zip(&memories).enumerate() {
            gpu.write(memory.address(), &[i as u8 + 1; 4096]).unwrap();
            assert_eq!(gpus[0].owner_of(memory.address()), Some(i as u32));
        }
        let mut back = [0; 4096];
        gpus[0].read_back(memories[0].address(), &mut back).unwrap();
        assert_eq!(back, [1; 4096]);
        assert_ne!(gpus[0].bus_id().unwrap(), gpus[1].bus_id().unwrap());
        let why = CudaDevice::open(2).unwrap_err();
        assert!(
            why.kind == Kind::Request && why.to_string().contains("there are 2 GPUs, counted from 0"),
            "{why}"
        );
    });
}

#[test]
fn a_driver_that_will_not_start_says_why() {
    for (name, settings, said) in [
        ("driver::a_driver_that_will_not_start_says_why", "init=100", "CUDA_ERROR_NO_DEVICE (100)"),
        (
            "driver::a_driver_that_will_not_start_says_why",
            "init=803",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
        ),
        ("driver::a_driver_that_will_not_start_says_why", "gpus=0", "no CUDA-capable device"),
    ] {
        Scenario::new(name).settings(settings).variable("EXPECTED", said).run(|| {
            let (count, why) = cuda_devices();
            let expected = std::env::var("EXPECTED").unwrap();
            assert!(count == 0 && why.as_ref().is_some_and(|w| w.contains(&expected)), "{why:?}");
            assert_eq!(CudaDevice::open(0).unwrap_err().kind, Kind::Machine);
        });
    }
}

// promise: FLT-19
#[test]
fn a_child_of_a_fork_gets_a_clear_error() {
    Scenario::new("driver::a_child_of_a_fork_gets_a_clear_error").run(|| {
        let gpu = gpu();
        let memory = gpu.allocate(4096).unwrap();
        // SAFETY: the child only asks the driver, compares, and ends without running anything of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let why = gpu.allocate(4096).err().map(|e| e.to_string()).unwrap_or_default();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!why.contains("forked after CUDA was initialised"))) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child got no clear error");
        drop(memory);
    });
}
