"""Linux's own NVMe over fabrics in a guest: its host (nvme-cli) and its target (nvmet through configfs)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .guest import HOST, CommandFailed, Done, Guest

NVMET = "/sys/kernel/config/nvmet"
# So that a controller whose target went away for good is given up within a test.
LOSS_S = 30
# disk → its subsystem's NQN and its namespace; paths hidden below a multipath head have no node in /dev.
DISKS = """for place in /sys/block/nvme*; do
    name=${place##*/}
    [ -b /dev/$name ] || continue
    nqn=$(cat $place/device/subsysnqn 2>/dev/null) && echo "$name $nqn $(cat $place/nsid)"
done; true"""


def words(*given: object) -> str:
    """A command line for the guest's shell."""
    return " ".join(shlex.quote(str(word)) for word in given)


@dataclass(frozen=True)
class Association:
    """A controller that the guest's kernel is connected to."""

    guest: Guest
    controller: str  # nvme0
    nqn: str

    @property
    def device(self) -> str:
        return f"/dev/{self.controller}"

    def state(self) -> str:
        """live, connecting, …; empty once the kernel has forgotten it."""
        done = self.guest.run(f"cat /sys/class/nvme/{self.controller}/state", check=False)
        return done.output.strip() if done.ok else ""

    def disks(self) -> dict[int, str]:
        """Namespace → path of its block device, as the kernel has them now."""
        rows = [line.split() for line in self.guest.run(DISKS).output.splitlines()]
        return {int(nsid): f"/dev/{name}" for name, nqn, nsid in rows if nqn == self.nqn}

    def disk(self, nsid: int = 1, within: float = 20) -> str:
        """The block device of a namespace, waited for."""
        self.guest.until(DISKS, lambda out: f" {self.nqn} {nsid}" in f" {out} ".replace("\n", " "), within)
        return self.disks()[nsid]

    def until_state(self, wanted: str, within: float = 30) -> None:
        script = f"cat /sys/class/nvme/{self.controller}/state 2>/dev/null"
        self.guest.until(script, lambda out: out == wanted, within)

    def disconnect(self) -> None:
        self.guest.run(words("nvme", "disconnect", "-d", self.controller))


def connect_command(
    nqn: str,
    port: int,
    address: str = HOST,
    queues: int = 2,
    header_digest: bool = False,
    data_digest: bool = False,
    keep_alive_s: int = 5,
    reconnect_delay_s: int = 1,
    loss_s: int = LOSS_S,
    transport: str = "tcp",
    more: Sequence[str] = (),
) -> str:
    """What connects the guest's kernel to a target; `port` is as the guest sees it."""
    return words(
        *("nvme", "connect", "-o", "json", "-t", transport, "-a", address, "-s", port, "-n", nqn, "-i", queues),
        *("--keep-alive-tmo", keep_alive_s, "--reconnect-delay", reconnect_delay_s, "--ctrl-loss-tmo", loss_s),
        *(["--hdr-digest"] if header_digest else []),
        *(["--data-digest"] if data_digest else []),
        *more,
    )


def connect(guest: Guest, nqn: str, port: int, timeout: float = 60, **options: object) -> Association:
    """Connects the guest's kernel. Raises CommandFailed where it can't."""
    guest.run(f"modprobe -a nvme-{options.get('transport', 'tcp')} nvme-fabrics")
    done = guest.run(connect_command(nqn, port, **options), timeout)  # type: ignore[arg-type]
    return Association(guest, done.json["device"], nqn)


def refused(guest: Guest, nqn: str, port: int, timeout: float = 60, **options: object) -> Done:
    """What a connect says that must not succeed. Raises CommandFailed where it does."""
    guest.run("modprobe -a nvme-tcp nvme-fabrics")
    done = guest.run(connect_command(nqn, port, **options), timeout, check=False)  # type: ignore[arg-type]
    if done.ok:
        raise CommandFailed(f"`{done.script}` connected, which it must not: {done.output}")
    return done


def discover(guest: Guest, port: int, address: str = HOST, transport: str = "tcp") -> list[dict[str, str]]:
    """The records of the discovery log page, as nvme-cli gives them."""
    guest.run(f"modprobe -a nvme-{transport} nvme-fabrics")
    done = guest.run(words("nvme", "discover", "-o", "json", "-t", transport, "-a", address, "-s", port), 120)
    records: list[dict[str, str]] = done.json["records"]
    return records


def fio(
    disk: str,
    rw: str = "randrw",
    size: str = "8m",
    block: str = "4k",
    depth: int = 8,
    engine: str = "io_uring",
    more: Sequence[str] = (),
) -> str:
    """A fio that writes blocks with their checksums, and reads them back. Of a disk that went it doesn't make a file."""
    return words(
        *("fio", "--name=v", f"--filename={disk}", "--allow_file_create=0", "--direct=1", f"--rw={rw}", f"--bs={block}"),
        *(f"--size={size}", f"--iodepth={depth}", f"--ioengine={engine}", "--verify=crc32c"),
        *("--verify_fatal=1", "--do_verify=1", "--randrepeat=1", "--randseed=7", "--minimal", *more),
    )


def fio_passes(disk: str, seconds: float, **options: Any) -> str:
    """fio after fio for that long: each writes every block once, then reads every block back; prints the passes' number.

    One fio that goes on (--time_based with --verify_backlog) would be simpler, but would prove less: only so does fio
    compare each block's number in the order of writes, and with a seed for each pass, what an earlier pass left in place
    of a lost write isn't taken for the write.

    `depth` is the number of its processes, each with its own share of `size` and one I/O in flight. Debian's fio 3.33
    with an asynchronous engine dies at its very end in one of twenty passes where a target went away meanwhile: all is
    verified and said, and then it frees the engine's options (signal 6 or 11). psync has no options.
    """
    return f"end=$(($(date +%s) + {seconds:.0f}))\n" + _passes("[ $(date +%s) -lt $end ]", disk, **options)


def fio_until(path: str, disk: str, **options: Any) -> str:
    """As `fio_passes`, until there is such a file: what is done meanwhile takes as long as this machine needs."""
    return f"rm -f {path}\n" + _passes(f"[ ! -e {path} ]", disk, **options)


def _passes(
    as_long_as: str, disk: str, mib: int = 8, block: str = "4k", depth: int = 8, offset_mib: int = 0
) -> str:
    share = f"{mib * 1024 // depth}k"
    more = [f"--numjobs={depth}", "--group_reporting=1", f"--offset={offset_mib}m", f"--offset_increment={share}"]
    one = fio(disk, "randwrite", share, block, 1, "psync", [*more, "--end_fsync=1"])
    return f"""passes=0
    while [ $passes = 0 ] || {as_long_as}; do
        passes=$((passes + 1))
        said=$({one} --randseed=$passes 2>&1) || {{
            status=$?; echo "$said"; echo "fio ended with $status in pass $passes"; exit $status; }}
    done
    echo $passes"""


# The target ---------------------------------------------------------------------------------------


@dataclass
class Target:
    """The guest's own target, set up through configfs."""

    guest: Guest
    disks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guest.run("modprobe -a nvmet nvmet-tcp")

    def ram(self, mib: int = 64, block: int = 4096) -> str:
        """A disk in the guest's memory, all zeroes; its path."""
        self.guest.run("modprobe null_blk nr_devices=0")
        made = self.guest.run(
            f"""cd /sys/kernel/config/nullb && n=0
            while ! mkdir fb$n 2>/dev/null; do n=$((n + 1)); [ $n -lt 64 ] || exit 1; done
            cd fb$n && echo 1 >memory_backed && echo {mib} >size && echo {block} >blocksize
            [ ! -e discard ] || echo 1 >discard
            echo 1 >power && echo /dev/$(ls /sys/block | grep -x -e fb$n -e nullb$(cat index))"""
        )
        self.disks.append(made.output.strip())
        return self.disks[-1]

    def subsystem(
        self, nqn: str, namespaces: dict[int, str], any_host: bool = True, attributes: dict[str, object] | None = None
    ) -> None:
        """A subsystem with these namespaces (number → block device or file)."""
        lines = [f"mkdir {NVMET}/subsystems/{nqn}", f"cd {NVMET}/subsystems/{nqn}"]
        lines += [f"echo {int(any_host)} >attr_allow_any_host"]
        lines += [f"echo {value} >attr_{name}" for name, value in (attributes or {}).items()]
        self.guest.run(" && ".join(lines))
        for nsid, backing in namespaces.items():
            self.add_namespace(nqn, nsid, backing)

    def add_namespace(self, nqn: str, nsid: int, backing: str) -> None:
        place = f"{NVMET}/subsystems/{nqn}/namespaces/{nsid}"
        self.guest.run(
            f"mkdir {place} && cd {place} && printf %s {backing} >device_path && echo 1 >enable"
        )

    def remove_namespace(self, nqn: str, nsid: int) -> None:
        place = f"{NVMET}/subsystems/{nqn}/namespaces/{nsid}"
        self.guest.run(f"echo 0 >{place}/enable; rmdir {place}")

    def port(
        self, number: int, service: int, *nqns: str, address: str = "0.0.0.0", inline: int | None = None,
        transport: str = "tcp",
    ) -> None:
        """A port on which these subsystems are to be had."""
        lines = [f"mkdir {NVMET}/ports/{number}", f"cd {NVMET}/ports/{number}", f"echo {transport} >addr_trtype"]
        lines += ["echo ipv4 >addr_adrfam", f"echo {address} >addr_traddr", f"echo {service} >addr_trsvcid"]
        lines += [f"echo {inline} >param_inline_data_size"] if inline is not None else []
        self.guest.run(" && ".join(lines))
        for nqn in nqns:
            self.export(number, nqn)

    def access(self, number: int, state: str, group: int = 1) -> None:
        """Says how a port gives access to a group of namespaces: optimized, non-optimized, inaccessible (ANA)."""
        self.guest.run(f"echo {state} >{NVMET}/ports/{number}/ana_groups/{group}/ana_state")

    def export(self, number: int, nqn: str) -> None:
        self.guest.run(f"ln -s {NVMET}/subsystems/{nqn} {NVMET}/ports/{number}/subsystems/{nqn}")

    def unexport(self, number: int, nqn: str) -> None:
        """Takes the subsystem off the port: its connections end, and new ones are refused."""
        self.guest.run(f"rm {NVMET}/ports/{number}/subsystems/{nqn}")

    def allow(
        self, nqn: str, host: str, key: str | None = None, controller_key: str | None = None, group: str = "null",
        digest: str = "hmac(sha256)",
    ) -> None:
        """Lets a host in by its NQN; with `key` only if it proves that it has that DH-HMAC-CHAP secret."""
        lines = [f"mkdir -p {NVMET}/hosts/{host}", f"cd {NVMET}/hosts/{host}"]
        lines += [f"echo '{key}' >dhchap_key"] if key else []
        lines += [f"echo '{controller_key}' >dhchap_ctrl_key"] if controller_key else []
        lines += [f"echo '{digest}' >dhchap_hash", f"echo {group} >dhchap_dhgroup"] if key else []
        lines += [f"ln -sf {NVMET}/hosts/{host} {NVMET}/subsystems/{nqn}/allowed_hosts/{host}"]
        self.guest.run(" && ".join(lines))


# Back to an idle guest. Each step may have nothing to do.
TIDY = f"""pkill fio; umount /mnt 2>/dev/null
nvme disconnect-all >/dev/null 2>&1
cd {NVMET} 2>/dev/null || exit 0
rm -f ports/*/subsystems/* 2>/dev/null
rmdir ports/* 2>/dev/null
rm -f subsystems/*/allowed_hosts/* 2>/dev/null
for n in subsystems/*/namespaces/*; do [ -d $n ] && {{ echo 0 >$n/enable; rmdir $n; }}; done
rmdir subsystems/* hosts/* 2>/dev/null
cd /sys/kernel/config/nullb 2>/dev/null || exit 0
for d in fb*; do [ -d $d ] && {{ echo 0 >$d/power; rmdir $d; }}; done
true"""


def tidy(guest: Guest) -> None:
    """Disconnects the guest's host, and takes its target apart."""
    guest.run(TIDY, timeout=90)
