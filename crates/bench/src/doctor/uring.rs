//! io_uring, each feature found out by setting up a ring that uses it.
//!
//! Versions say little: distributions backport, containers forbid by seccomp,
//! and `io_uring_disabled` forbids by sysctl. So this asks the kernel.

use forebay_io::{Check, CheckArea, CheckState, Roots};
use io_uring::{cqueue, opcode, squeue, types, Builder, IoUring, Probe};
use serde::Serialize;
use std::io;
use std::os::fd::AsRawFd;

const ENTRIES: u32 = 8;
const BUFFER_BYTES: usize = 64 << 10;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Uring {
    /// A plain ring can be set up.
    pub allowed: bool,
    /// The kernel's answer if it isn't supported.
    pub refused: Option<String>,
    /// `/proc/sys/kernel/io_uring_disabled`: 0 all, 1 only the group, 2 nobody.
    pub disabled_sysctl: Option<i64>,
    pub features: Vec<Feature>,
    /// Operation → the kernel knows it.
    pub operations: Vec<(&'static str, bool)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Feature {
    pub name: &'static str,
    pub works: bool,
    /// The kernel's answer.
    pub answer: Option<String>,
}

/// Purpose of each feature, in the order in which they are shown.
const FEATURES: [(&str, &str); 9] = [
    ("registered_files", "saves looking up the file on every I/O"),
    ("registered_buffers", "saves pinning the pages on every I/O: 25–50 % of the CPU at 64k–1m"),
    ("defer_taskrun", "completions run when the worker asks for them, not in the middle of its work"),
    ("sqpoll", "a kernel thread submits, at the price of a core"),
    ("iopoll", "completions are polled for instead of interrupting"),
    ("ext_arg", "waits with a time-out need no extra request"),
    ("min_timeout", "one wait gathers a batch of completions"),
    ("nodrop", "completions are never dropped when the queue is full"),
    ("sqe128", "large entries, for NVMe passthrough"),
];

const OPERATIONS: [(&str, u8); 14] = [
    ("read", opcode::Read::CODE),
    ("write", opcode::Write::CODE),
    ("read_fixed", opcode::ReadFixed::CODE),
    ("write_fixed", opcode::WriteFixed::CODE),
    ("fsync", opcode::Fsync::CODE),
    ("fallocate", opcode::Fallocate::CODE),
    ("timeout", opcode::Timeout::CODE),
    ("async_cancel", opcode::AsyncCancel::CODE),
    ("poll_add", opcode::PollAdd::CODE),
    ("recv", opcode::Recv::CODE),
    ("sendmsg", opcode::SendMsg::CODE),
    ("recvmsg", opcode::RecvMsg::CODE),
    ("send_zc", opcode::SendZc::CODE),
    ("uring_cmd", opcode::UringCmd80::CODE),
];

pub(crate) fn facts(roots: &Roots) -> Uring {
    let disabled_sysctl = Roots::number(&roots.proc("sys/kernel/io_uring_disabled"));
    let ring = match IoUring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => {
            let refused = Some(error.to_string());
            return Uring { refused, disabled_sysctl, ..Uring::default() };
        }
    };
    Uring {
        allowed: true,
        refused: None,
        disabled_sysctl,
        features: FEATURES.iter().map(|(name, _)| feature(name, &ring)).collect(),
        operations: operations(&ring),
    }
}

fn feature(name: &'static str, ring: &IoUring) -> Feature {
    let stated = |has: bool| if has { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) };
    let answer = match name {
        "registered_files" => register_file(ring),
        "registered_buffers" => register_buffer(ring),
        "defer_taskrun" => deferred(),
        "sqpoll" => submit_polled(),
        "iopoll" => plain(IoUring::builder().setup_iopoll()),
        "sqe128" => IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(ENTRIES).map(drop),
        "ext_arg" => stated(ring.params().is_feature_ext_arg()),
        "min_timeout" => stated(ring.params().is_feature_min_timeout()),
        "nodrop" => stated(ring.params().is_feature_nodrop()),
        other => unreachable!("{other} is not in FEATURES"),
    };
    Feature { name, works: answer.is_ok(), answer: answer.err().map(|e| e.to_string()) }
}

fn plain(builder: &Builder) -> io::Result<()> {
    builder.build(ENTRIES).map(drop)
}

fn register_file(ring: &IoUring) -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    ring.submitter().register_files(&[null.as_raw_fd()])?;
    ring.submitter().unregister_files()
}

fn register_buffer(ring: &IoUring) -> io::Result<()> {
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let iovec = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the buffer outlives its registration, which ends two lines down
    // (or with the ring, whose owner lives in our caller; no I/O is submitted).
    unsafe { ring.submitter().register_buffers(&[iovec]) }?;
    ring.submitter().unregister_buffers()
}

/// A no-op through a ring with DEFER_TASKRUN and SINGLE_ISSUER.
fn deferred() -> io::Result<()> {
    let mut ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
    nop(&mut ring)
}

/// A no-op that the kernel's thread picks up.
fn submit_polled() -> io::Result<()> {
    let mut ring = IoUring::builder().setup_sqpoll(1).build(ENTRIES)?;
    nop(&mut ring)
}

fn nop(ring: &mut IoUring) -> io::Result<()> {
    let entry = opcode::Nop::new().build();
    // SAFETY: a no-op refers to no memory.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    let limit = types::Timespec::new().nsec(500_000_000);
    let wait = types::SubmitArgs::new().timespec(&limit);
    ring.submitter().submit_with_args(1, &wait)?;
    let done = ring.completion().next().ok_or(io::ErrorKind::TimedOut)?;
    if done.result() < 0 {
        return Err(io::Error::from_raw_os_error(-done.result()));
    }
    Ok(())
}

fn operations(ring: &IoUring) -> Vec<(&'static str, bool)> {
    let mut probe = Probe::new();
    if ring.submitter().register_probe(&mut probe).is_err() {
        return Vec::new();
    }
    OPERATIONS.iter().map(|(name, code)| (*name, probe.is_supported(*code))).collect()
}

pub(crate) fn checks(uring: &Uring) -> Vec<Check> {
    let mut checks = vec![setup(uring)];
    if uring.allowed {
        checks.extend(uring.features.iter().map(feature_check));
        checks.push(operations_check(&uring.operations));
    }
    checks
}

fn setup(uring: &Uring) -> Check {
    let check =
        |state, found: String| Check::new(CheckArea::IoUring, "uring.setup", "io_uring", state, found);
    let Some(refused) = &uring.refused else {
        return check(CheckState::Works, "rings can be set up".into());
    };
    let (why, next) = match uring.disabled_sysctl {
        Some(1..) => (
            "the sysctl kernel.io_uring_disabled forbids it; files are then read by a pool of threads".to_string(),
            "sudo sysctl kernel.io_uring_disabled=0",
        ),
        _ if refused.contains("not permitted") => (
            "a container's seccomp profile forbids it; files are then read by a pool of threads".to_string(),
            "start the container with --security-opt seccomp=unconfined, or with a profile that allows io_uring_setup, io_uring_enter and io_uring_register",
        ),
        _ if refused.contains("allocate memory") => (
            "the locked-memory limit is used up".to_string(),
            "ulimit -l unlimited",
        ),
        _ => (
            "this kernel has none; files are then read by a pool of threads".to_string(),
            "run on Linux 5.11 or later with CONFIG_IO_URING=y",
        ),
    };
    check(CheckState::Missing, format!("refused: {refused}")).why(why).next(next)
}

fn feature_check(feature: &Feature) -> Check {
    let purpose = FEATURES.iter().find(|(name, _)| *name == feature.name).map_or("", |f| f.1);
    let title = feature.name.replace('_', " ");
    let id = format!("uring.{}", feature.name);
    let check = |state, found: String| Check::new(CheckArea::IoUring, id, title, state, found);
    let Some(answer) = &feature.answer else {
        return check(CheckState::Works, purpose.into());
    };
    if feature.name == "registered_buffers" && answer.contains("allocate memory") {
        return check(CheckState::Limited, format!("refused: {answer}"))
            .why("the locked-memory limit is used up")
            .next("ulimit -l unlimited");
    }
    let since = match feature.name {
        "defer_taskrun" => "6.1",
        "min_timeout" => "6.12",
        "sqe128" => "5.19",
        "sqpoll" => "5.11 (without privileges)",
        _ => "5.11",
    };
    check(CheckState::Missing, format!("refused: {answer}"))
        .why(format!("{purpose}; the engine does without it here"))
        .next(format!("Linux {since} or later has it"))
}

fn operations_check(operations: &[(&'static str, bool)]) -> Check {
    let lacking: Vec<&str> = operations.iter().filter(|o| !o.1).map(|o| o.0).collect();
    let check = |state, found| Check::new(CheckArea::IoUring, "uring.operations", "operations", state, found);
    if operations.is_empty() {
        return check(CheckState::Unknown, "not reported".into())
            .why("the kernel doesn't answer IORING_REGISTER_PROBE");
    }
    if lacking.is_empty() {
        let known: Vec<&str> = operations.iter().map(|o| o.0).collect();
        return check(CheckState::Works, known.join(", "));
    }
    check(CheckState::Limited, format!("without {}", lacking.join(", ")))
        .why("this kernel doesn't know them")
        .next("a later kernel has them; whatever needs them does without here")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever this kernel allows, what is said about it is coherent.
    // promise: DOC-2
    #[test]
    fn the_probe_says_for_each_feature_that_it_works_or_what_the_kernel_answered() {
        let uring = facts(&Roots::host());
        assert_eq!(uring.allowed, uring.refused.is_none());
        if uring.allowed {
            assert_eq!(uring.features.len(), FEATURES.len());
            assert!(uring.operations.contains(&("read", true)));
        }
        assert!(uring.features.iter().all(|f| f.works == f.answer.is_none()));
    }

    // promise: ENG-6
    #[test]
    fn each_way_to_forbid_it_has_its_own_remedy() {
        let refused = |text: &str, sysctl| Uring {
            refused: Some(text.into()),
            disabled_sysctl: sysctl,
            ..Uring::default()
        };
        let next = |uring: &Uring| checks(uring)[0].next.clone().unwrap();
        let not_permitted = "Operation not permitted (os error 1)";
        assert!(next(&refused(not_permitted, Some(2))).contains("sysctl kernel.io_uring_disabled=0"));
        assert!(next(&refused(not_permitted, Some(0))).contains("seccomp"));
        assert!(next(&refused("Function not implemented (os error 38)", None)).contains("CONFIG_IO_URING"));
        assert!(next(&refused("Cannot allocate memory (os error 12)", None)).contains("ulimit -l"));
    }
}
