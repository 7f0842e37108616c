"""Guests with real Linux kernels, in QEMU without KVM: what the tests of NVMe over TCP meet as a peer.

`packages` fetches kernels into target/vm (nothing is installed), `image` makes the file system that a guest starts
from, `guest` starts one and runs commands in it, `linux` speaks to the kernel's own NVMe host and target there.
`python -m vm --help`, from the tests' folder, gives a shell in one.
"""
