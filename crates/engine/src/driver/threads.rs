//! Where a worker's thread runs, and how precisely it sleeps.

use forebay_model::units::parse_cpu_list;
use forebay_model::Error;

/// Pins the calling thread and its memory. The driver has checked that both exist.
///
/// # Errors
/// Containers may forbid either, and a process may be kept from a node's CPUs.
pub fn settle_in(cpu: Option<u32>, numa: Option<u32>) -> Result<(), Error> {
    // SAFETY: prctl with integers; 1 ns of slack makes timed waits as sharp as the hardware allows.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64, 0u64, 0u64, 0u64) };
    let refused = |asked: String, e: std::io::Error| {
        Error::machine(
            asked,
            format!("the system refuses it: {e}"),
            "taskset -p $$; a container may need --cap-add SYS_NICE",
        )
    };
    match (cpu, numa) {
        (Some(cpu), _) => pin(&[cpu]).map_err(|e| refused(format!("--cpus {cpu}"), e))?,
        (None, Some(node)) => pin(&cpus_of_node(node)).map_err(|e| refused(format!("--numa {node}"), e))?,
        (None, None) => {}
    }
    numa.map_or(Ok(()), |node| bind_memory(node).map_err(|e| refused(format!("--numa {node}"), e)))
}

/// Keeps the calling thread on a node's CPUs, as far as this process may use them, and its memory there while
/// it has any. False where the system won't have it: then the thread runs as before.
pub fn settle_near(node: u32) -> bool {
    let allowed = allowed();
    let cpus: Vec<u32> = cpus_of_node(node).into_iter().filter(|cpu| allowed.contains(cpu)).collect();
    const MPOL_PREFERRED: i32 = 1;
    !cpus.is_empty() && pin(&cpus).is_ok() && set_memory(MPOL_PREFERRED, node).is_ok()
}

/// NUMA nodes that have processors.
pub fn nodes() -> usize {
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
    set_memory(MPOL_BIND, node)
}

fn set_memory(policy: i32, node: u32) -> std::io::Result<()> {
    if node >= 1024 {
        return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = [0u64; 16];
    mask[(node / 64) as usize] = 1 << (node % 64);
    // SAFETY: the mask lives on this stack frame and its length in bits is given.
    answer(unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), 1025u64) })
}

/// CPUs of a NUMA node; empty where the node isn't there.
pub fn cpus_of_node(node: u32) -> Vec<u32> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    std::fs::read_to_string(path).ok().and_then(|t| parse_cpu_list(&t).ok()).unwrap_or_default()
}

/// Logical processors of the machine that are online.
pub fn online() -> u32 {
    // SAFETY: sysconf with a name it knows.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32
}

/// CPUs that this process may use.
pub fn allowed() -> Vec<u32> {
    // SAFETY: sched_getaffinity fills a zeroed set on the stack.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as u32).filter(|c| libc::CPU_ISSET(*c as usize, &set)).collect()
    }
}

/// The CPUs of a list, for who stays on them in turn. `asked`: what holds the list, such as `--cpus`.
///
/// # Errors
/// `Request`: it is no list, or names one that this process may not use.
pub fn named(asked: &str, list: &str) -> Result<Vec<u32>, Error> {
    let refused = |found: String, next: &str| Error::request(format!("{asked} {list}"), found, next);
    let cpus = parse_cpu_list(list).map_err(|why| refused(why, "0-3,8"))?;
    let allowed = allowed();
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(refused(format!("CPU {cpu} isn't one that this process may use"), "taskset -p $$")),
        None => Ok(cpus),
    }
}
