//! NVMe over TCP: what this machine can serve and reach, with Forebay's own ends and with the kernel's host.

use super::uring::Uring;
use forebay_io::{Check, CheckArea, CheckState, Roots};
use serde::Serialize;

/// IANA's port for NVMe over TCP.
pub(crate) const PORT: u16 = 4420;
/// `st` of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvmeTcp {
    /// The kernel's host, which makes block devices of namespaces.
    pub kernel_host: Kernel,
    /// True if a process listens on port 4420 here.
    pub port_taken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    Loaded,
    /// A module of the running kernel, not loaded.
    Available,
    #[default]
    Absent,
}

pub(crate) fn facts(roots: &Roots, release: &str) -> NvmeTcp {
    let tables = ["net/tcp", "net/tcp6"].map(|t| Roots::text(&roots.proc(t)).unwrap_or_default());
    NvmeTcp { kernel_host: kernel_host(roots, release), port_taken: tables.iter().any(|t| listens(t, PORT)) }
}

fn kernel_host(roots: &Roots, release: &str) -> Kernel {
    if roots.sys("module/nvme_tcp").exists() {
        return Kernel::Loaded;
    }
    let modules = roots.root.join("lib/modules").join(release);
    let files = Roots::names(&modules.join("kernel/drivers/nvme/host"));
    // Compressed as the distribution likes: .ko.xz, .ko.zst.
    match files.iter().any(|name| name.starts_with("nvme-tcp.ko")) {
        true => Kernel::Available,
        false => Kernel::Absent,
    }
}

/// Returns whether a table such as /proc/net/tcp has a listener on `port`: `sl local_address rem_address st …`.
fn listens(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|address| address.rsplit_once(':'));
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            && words.nth(1) == Some(LISTENING)
    })
}

pub(crate) fn checks(found: &NvmeTcp, uring: &Uring) -> Vec<Check> {
    vec![ours(uring), kernel(found.kernel_host), port(found.port_taken)]
}

/// Both of our ends stand on io_uring with sockets.
fn ours(uring: &Uring) -> Check {
    let check =
        |state, found: &str| Check::new(CheckArea::Fabric, "nvme_tcp", "NVMe/TCP by Forebay", state, found);
    let lacks = |name| uring.operations.iter().any(|(n, works)| *n == name && !works);
    if !uring.allowed {
        return check(CheckState::Missing, "neither serving nor reading")
            .why("both ends work through io_uring, which is refused here: see uring.setup")
            .next("sudo sysctl kernel.io_uring_disabled=0   # in a container: --security-opt seccomp=unconfined");
    }
    if lacks("sendmsg") || lacks("recvmsg") {
        return check(CheckState::Missing, "neither serving nor reading")
            .why("this kernel's io_uring has no sendmsg and recvmsg")
            .next("run on Linux 5.11 or later");
    }
    check(CheckState::Works, "serves (forebay serve) and reads (nvme+tcp://HOST:4420/NQN)")
}

fn kernel(host: Kernel) -> Check {
    let check = |state, found: &str| {
        Check::new(CheckArea::Fabric, "nvme_tcp.kernel_host", "NVMe/TCP by the kernel", state, found)
    };
    match host {
        Kernel::Loaded => {
            check(CheckState::Works, "nvme-tcp is loaded: nvme connect -t tcp makes block devices")
        }
        // Nothing amiss: who wants a block device here loads it.
        Kernel::Available => {
            check(CheckState::Works, "can be loaded, for block devices: sudo modprobe nvme-tcp")
        }
        Kernel::Absent => check(
            CheckState::NotApplicable,
            "no nvme-tcp module for this kernel; reading nvme+tcp: sources needs none",
        ),
    }
}

fn port(taken: bool) -> Check {
    let check =
        |state, found: &str| Check::new(CheckArea::Fabric, "nvme_tcp.port", "port 4420", state, found);
    match taken {
        false => check(CheckState::Works, "free to listen on"),
        true => check(
            CheckState::Works,
            "something is listening there: ss -ltnp 'sport = :4420'; or serve on another port",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 00000000:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0
   1: 0100007F:1145 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0
";

    #[test]
    fn a_listener_is_told_from_a_connection() {
        assert!(listens(TABLE, 4420));
        assert!(!listens(TABLE, 4421), "a connection is no listener");
        assert!(!listens("", 4420) && !listens("head\n:\n x\n a:zz b 0A", 4420));
        let six = "head\n 0: 00000000000000000000000001000000:1144 0:0 0A 0";
        assert!(listens(six, 4420));
    }

    #[test]
    fn the_kernels_host_is_loaded_there_or_absent() {
        let machine = tempfile::tempdir().unwrap();
        let roots = Roots::under(machine.path());
        assert_eq!(facts(&roots, "6.12.1"), NvmeTcp::default());
        let modules = machine.path().join("lib/modules/6.12.1/kernel/drivers/nvme/host");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("nvme-tcp.ko.xz"), "").unwrap();
        assert_eq!(facts(&roots, "6.12.1").kernel_host, Kernel::Available);
        assert_eq!(facts(&roots, "6.12.2").kernel_host, Kernel::Absent);
        std::fs::create_dir_all(roots.sys("module/nvme_tcp")).unwrap();
        assert_eq!(facts(&roots, "6.12.2").kernel_host, Kernel::Loaded);
        for (host, said) in [
            (Kernel::Loaded, "nvme connect"),
            (Kernel::Available, "modprobe nvme-tcp"),
            (Kernel::Absent, "needs none"),
        ] {
            assert!(kernel(host).found.contains(said));
        }
    }

    #[test]
    fn without_io_uring_both_ends_are_missing_and_say_what_would_help() {
        let refused = Uring { refused: Some("Operation not permitted".into()), ..Uring::default() };
        assert_eq!(ours(&refused).state, CheckState::Missing);
        let old = Uring { allowed: true, operations: vec![("sendmsg", false)], ..Uring::default() };
        assert!(ours(&old).next.unwrap().contains("5.11"));
        let both = vec![("sendmsg", true), ("recvmsg", true)];
        assert_eq!(
            ours(&Uring { allowed: true, operations: both, ..Uring::default() }).state,
            CheckState::Works
        );
    }
}
