"""Tie a program that knows nothing of it to the life of its parent: `tether.py PARENT_PID SIGNAL PROGRAM
[WORD ...]`.

Linux only: the kernel sends SIGNAL to a process whose parent ended (prctl PR_SET_PDEATHSIG), also across the
`execve` that turns this script into PROGRAM. Elsewhere the program is started plainly, and may outlive a
parent that is killed with SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def prefix(python: str, parent: int, number: int = signal.SIGKILL) -> list[str]:
    """Words to put before a command so that it gets the signal when process `parent` ends; none elsewhere.

    SIGKILL is the default: a proxy that drains for a minute would hold its memory for a run that is over, and
    its parent had its chance to stop it gently.
    """
    if not sys.platform.startswith("linux"):
        return []
    return [python, "-I", "-S", os.path.abspath(__file__), str(parent), str(int(number))]


def main(argv: list[str]) -> int:
    parent, number, program = int(argv[0]), int(argv[1]), argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        return 1  # it ended before we asked to be told
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"cannot execute {program[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
