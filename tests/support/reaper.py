"""`python reaper.py COMMAND ...`: a command of which nothing is left behind, whoever is killed.

Theory of operation
-------------------
1. The reaper adopts: what its command leaves behind, daemons too, becomes its own child (prctl(2),
   PR_SET_CHILD_SUBREAPER), whatever session or process group it made for itself.
2. Its standard input is a pipe whose other end the test holds. The end of that pipe, by a `close` or because the
   test's process is gone, ends everything. So does the end of the command.
3. Only children are ended, each by its own id, which cannot be another process's before it was waited for. The
   children of one that ended are adopted and come next, until none is left.
4. SIGINT and SIGTERM go on to the command; its exit code (128 + N for signal N) becomes the reaper's.

Linux only, and standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    arrivals, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    child = os.posix_spawnp(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 0)], setsid=True
    )
    try:
        return watch(child, arrivals)
    finally:
        end_all()


def watch(child: int, arrivals: int) -> int:
    """Until the command or the test is gone."""
    while True:
        readable, _, _ = select.select([0, arrivals], [], [])
        if 0 in readable:
            return 128 + signal.SIGKILL
        for number in os.read(arrivals, 64):
            if number != signal.SIGCHLD:
                os.kill(child, number)
        ended = child
        while ended:  # the command is among those to wait for until this returns
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def children() -> list[int]:
    """Our own, adopted ones among them; ended ones that were not waited for as well (proc(5))."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listed:
        return [int(word) for word in listed.read().split()]


def end_all() -> None:
    """SIGKILL for each child, wait for it, and again for those that it left to us."""
    while found := children():
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        for pid in found:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
