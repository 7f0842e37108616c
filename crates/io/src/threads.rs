//! A worker's thread: its CPUs, and the precision of its timers.

#![allow(unsafe_code, reason = "pinning threads and their memory to processors and nodes")]

use forebay_model::job::{JobSpec, Priorities};
use forebay_model::units::parse_cpu_list;
use forebay_model::Error;
use std::path::Path;

/// Pins the calling thread and its memory. The caller has checked that both exist.
///
/// # Errors
/// Containers may forbid either, and a process may be kept from a node's CPUs.
pub fn settle_thread_in(cpu: Option<u32>, numa: Option<u32>) -> Result<(), Error> {
    // SAFETY: prctl with integers; 1 ns of slack makes timed waits as sharp as the hardware allows.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64, 0u64, 0u64, 0u64) };
    match (cpu, numa) {
        (Some(cpu), _) => pin(&[cpu]).map_err(|e| refused(format!("‹cpus› {cpu}"), e))?,
        (None, Some(node)) => pin(&cpus_of_node(node)).map_err(|e| refused(format!("‹numa› {node}"), e))?,
        (None, None) => {}
    }
    numa.map_or(Ok(()), |node| bind_memory(node).map_err(|e| refused(format!("‹numa› {node}"), e)))
}

/// The calling thread as a worker of this job: where it runs, where its memory lies, and how soon its I/Os come to the device.
///
/// # Errors
/// As `settle_thread_in` and `spread_over`; a priority may need a privilege.
pub fn settle_thread_as(job: &JobSpec, cpu: Option<u32>) -> Result<(), Error> {
    settle_thread_in(cpu, job.numa)?;
    spread_over(job.numa_interleave.as_deref())?;
    let Some(text) = &job.priority else { return Ok(()) };
    let Some(all) = Priorities::parse(text)?.all else { return Ok(()) };
    const IOPRIO_WHO_PROCESS: i32 = 1;
    // SAFETY: ioprio_set with integers, of the calling thread.
    answer(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, u32::from(all.bits())) })
        .map_err(|e| refused(format!("‹priority› {text}"), e))
}

/// Spreads what the calling thread allocates from now on over NUMA nodes, page by page.
///
/// # Errors
/// As `nodes_named`; containers may forbid it.
pub(crate) fn spread_over(nodes: Option<&str>) -> Result<(), Error> {
    const MPOL_INTERLEAVE: i32 = 3;
    let Some(list) = nodes else { return Ok(()) };
    set_memory(MPOL_INTERLEAVE, &named_numa_nodes(list)?)
        .map_err(|e| refused(format!("‹numa_interleave› {list}"), e))
}

fn refused(asked: String, e: std::io::Error) -> Error {
    let found = format!("the system refuses it: {e}");
    Error::machine(asked, found, "taskset -p $$; a container may need --cap-add SYS_NICE")
}

/// Keeps the calling thread on a node's CPUs, as far as this process may use them, and its memory there while
/// it has any. False where the system won't have it: then the thread runs as before.
pub fn settle_thread_near(node: u32) -> bool {
    let allowed = allowed_cpus();
    let cpus: Vec<u32> = cpus_of_node(node).into_iter().filter(|cpu| allowed.contains(cpu)).collect();
    const MPOL_PREFERRED: i32 = 1;
    !cpus.is_empty() && pin(&cpus).is_ok() && set_memory(MPOL_PREFERRED, &[node]).is_ok()
}

/// NUMA nodes that have processors.
pub fn numa_nodes() -> usize {
    let entries = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.strip_prefix("node")?.parse().ok());
    numbers.filter(|node| !cpus_of_node(*node).is_empty()).count()
}

fn answer(result: i64) -> std::io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn pin(cpus: &[u32]) -> std::io::Result<()> {
    // SAFETY: a zeroed cpu_set_t on the stack; CPU_SET checks its index.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        answer(libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &set).into())
    }
}

fn bind_memory(node: u32) -> std::io::Result<()> {
    const MPOL_BIND: i32 = 2;
    set_memory(MPOL_BIND, &[node])
}

fn set_memory(policy: i32, nodes: &[u32]) -> std::io::Result<()> {
    let mut mask = [0u64; 16];
    for node in nodes {
        let word = mask.get_mut((node / 64) as usize);
        *word.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (node % 64);
    }
    // SAFETY: the mask lives on this stack frame and its length in bits is given.
    answer(unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), 1025u64) })
}

/// The NUMA nodes of a list such as `0-1,3`, all of them there.
///
/// # Errors
/// `Request`: it is no list, or names a node that this machine hasn't got.
pub fn named_numa_nodes(list: &str) -> Result<Vec<u32>, Error> {
    let refused = |found: String| Error::request(format!("‹numa_interleave› {list}"), found, "0-1; lscpu");
    let nodes = parse_cpu_list(list).map_err(refused)?;
    match nodes.iter().find(|node| !Path::new(&format!("/sys/devices/system/node/node{node}")).is_dir()) {
        Some(node) => Err(refused(format!("there is no NUMA node {node}"))),
        None => Ok(nodes),
    }
}

/// CPUs of a NUMA node; empty where the node isn't there.
pub fn cpus_of_node(node: u32) -> Vec<u32> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    std::fs::read_to_string(path).ok().and_then(|t| parse_cpu_list(&t).ok()).unwrap_or_default()
}

fn cpus_of_nodes(nodes: &[u32]) -> Result<Vec<u32>, String> {
    let of_each: Vec<Vec<u32>> = nodes.iter().map(|node| cpus_of_node(*node)).collect();
    match nodes.iter().zip(&of_each).find(|(_, cpus)| cpus.is_empty()) {
        Some((node, _)) => Err(format!("there is no NUMA node {node} with processors")),
        None => Ok(of_each.concat()),
    }
}

/// Logical processors of the machine that are online.
pub fn online_cpus() -> u32 {
    // SAFETY: sysconf with a name it knows.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32
}

/// CPUs that this process may use.
pub fn allowed_cpus() -> Vec<u32> {
    // SAFETY: sched_getaffinity fills a zeroed set on the stack.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as u32).filter(|c| libc::CPU_ISSET(*c as usize, &set)).collect()
    }
}

/// The CPUs of a list, `0-3,8` or `nodes:0-1`, for who stays on them in turn. `asked`: what holds the list, such as `--cpus`.
///
/// # Errors
/// `Request`: it is no list, or names one that this process may not use.
pub fn named_cpus(asked: &str, list: &str) -> Result<Vec<u32>, Error> {
    let refused = |found: String, next: &str| Error::request(format!("{asked} {list}"), found, next);
    let numbers = |text: &str| parse_cpu_list(text).map_err(|why| refused(why, "0-3,8, or nodes:0-1"));
    let cpus = match list.strip_prefix("nodes:") {
        Some(nodes) => cpus_of_nodes(&numbers(nodes)?).map_err(|why| refused(why, "lscpu"))?,
        None => numbers(list)?,
    };
    let allowed = allowed_cpus();
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(refused(format!("CPU {cpu} isn't one that this process may use"), "taskset -p $$")),
        None => Ok(cpus),
    }
}
