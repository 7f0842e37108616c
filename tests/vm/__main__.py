"""A shell in a guest, as the tests start it: `python -m vm shell [KERNEL]` in the tests' folder, or `run KERNEL SCRIPT`."""

from __future__ import annotations

import argparse
import sys
import time

from .guest import Guest, GuestGone
from .packages import RELEASES, Unavailable, kernel


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vm", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, reported in (
        ("shell", "read lines from the terminal, run each in the guest (/tmp stays, a changed directory does not)"),
        ("run", "run one script there, and end with its status"),
    ):
        one = verbs.add_parser(verb, help=reported)
        one.add_argument("kernel", nargs="?" if verb == "shell" else None, choices=RELEASES, default="backports")
        if verb == "run":
            one.add_argument("script", help="a line of shell")
        one.add_argument("--limit", type=float, default=600, metavar="S", help="seconds that a command may take")
    return parser.parse_args()


def shell(guest: Guest, limit_s: float) -> None:
    while True:
        try:
            line = input(f"{guest.kernel.version}# ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line.strip() in ("exit", "logout"):
            return
        done = guest.run(line, limit_s, check=False)
        print(done.output, end="" if done.output.endswith("\n") or not done.output else "\n")
        if done.status:
            print(f"[status {done.status}]", file=sys.stderr)


def main() -> int:
    asked = parsed()
    began = time.monotonic()
    try:
        guest = Guest(kernel(asked.kernel))
    except Unavailable as e:
        print(f"vm: {e}", file=sys.stderr)
        return 3
    try:
        if asked.verb == "run":
            done = guest.run(asked.script, asked.limit, check=False)
            print(done.output, end="")
            return done.status
        ports = ", ".join(f"{inside} at 127.0.0.1:{outside}" for inside, outside in sorted(guest.ports.items()))
        print(
            f"up after {time.monotonic() - began:.1f} s; its ports {ports}; 127.0.0.1 here is 10.0.2.2 there\n"
            f"console: {guest.console}; exit or Ctrl-D ends it",
            file=sys.stderr,
        )
        shell(guest, asked.limit)
        return 0
    except GuestGone as e:
        print(f"vm: {e}", file=sys.stderr)
        return 4
    finally:
        guest.close()


if __name__ == "__main__":
    sys.exit(main())
