"""The process towards those who started it: ready file, systemd, its parent, who holds a port, file limit.

Each piece works alone and does nothing where the system lacks what it needs. macOS has no table of sockets to
read: a taken port has no name there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from h2ping import STARTED_BY, log
from h2ping.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from h2ping.address import Address

PARENT_POLL: Final = 0.5
"""Seconds between two looks at the parent where the kernel cannot tell: well below the 2 s in which an orphan
must end."""

FEWEST_FILES: Final = 32
"""What one client and one connection take beside the program's own, and some to spare."""

MAC_OPEN_MAX: Final = 10240
"""macOS refuses a soft limit above OPEN_MAX though the hard limit says unlimited."""


def open_standard_streams() -> None:
    """Where the starter closed standard input, output or error (`2>&-`), open /dev/null in its place.

    Else sockets get these numbers: the log would be written to a client, and libuv aborts when it closes one.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # open(2) takes the lowest free number
        os.set_inheritable(number, True)
    os.close(number)


class ReadyFile:
    """Holds the process id and a newline while the program is ready. Make it when every listener is bound."""

    def __init__(self, path: str) -> None:
        self._path = path
        draft = f"{path}.{os.getpid()}.tmp"
        try:
            # A name of our own first, then rename: a reader sees the whole content or no file.
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, b"%d\n" % os.getpid())
            finally:
                os.close(descriptor)
            os.replace(draft, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft)
            reason = error.strerror or str(error)
            raise ConfigError("", log.cannot_write_ready_file(path, reason)) from None

    def remove(self) -> None:
        """Take the file away, unless another process has put its own there."""
        try:
            with open(self._path, "rb") as file:
                is_ours = file.read(32) == b"%d\n" % os.getpid()
            if is_ours:
                os.unlink(self._path)
        except OSError:
            pass  # gone already, or its folder is: nothing is left that says we are ready


def forget_stale_ready_file(path: str) -> None:
    """Take away what a process that is gone left behind: until we are ready it would say that we are.

    In a container our own number may be that of the one before. Raises ConfigError where the name is that of something
    else than a file: a device would be replaced, a FIFO waited for.
    """
    with suppress(OSError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError("", log.cannot_write_ready_file(path, "it exists and is not a regular file"))
    with suppress(OSError, ValueError):
        with open(path, "rb") as file:
            process = int(file.read(32))
        try:
            if process != os.getpid():
                os.kill(process, 0)
                return
        except ProcessLookupError:
            pass
        os.unlink(path)


def ignore_user_signals() -> None:
    """SIGUSR1 and SIGUSR2 end a process by default. Slurm's --signal=USR1@60 goes to all of a step, and us it tells
    nothing. By a handler: what we start gets the default back.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, lambda: None)


def notify(state: str) -> bool:
    """Tell systemd, when NOTIFY_SOCKET says that it listens (sd_notify(3)). True when it was told."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    # "@" stands for the NUL byte that opens the name of an abstract socket.
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode("utf-8"), address)
    except OSError:
        return False  # a service manager that does not listen must not stop the service
    return True


# --- the parent -----------------------------------------------------------------------------------


class ParentWatch:
    """Calls back, once, in the running loop, when the process that started this one is gone.

    Not prctl(PR_SET_PDEATHSIG): that signal comes when the *thread* that started us ends (prctl(2)), and
    launchers and Ray start processes from threads that end long before they do. A pidfd stands for the
    process. Where there is none (macOS, Linux before 5.3) the parent's number is looked at again and again.
    """

    def __init__(self, on_gone: Callable[[], object], parent: int) -> None:
        self._on_gone = on_gone
        self._parent = parent
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pidfd = _open_pidfd(parent)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._gone)
        self._look()  # it may have gone before the watch stood

    def _look(self) -> None:
        self._timer = None
        if os.getppid() != self._parent:  # orphans get another parent: init or a subreaper
            self._gone()
        elif self._pidfd is None:
            self._timer = self._loop.call_later(PARENT_POLL, self._look)

    def _gone(self) -> None:
        self.close()
        self._on_gone()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _open_pidfd(process: int) -> int | None:
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        with suppress(OSError):  # an older kernel, or a sandbox that forbids it
            return os.pidfd_open(process)
    return None


def exit_with_parent(on_gone: Callable[[], object], parent: int = STARTED_BY) -> ParentWatch | None:
    """Watch the parent. None when there is none to see: we are process 1, or it is in another namespace."""
    return ParentWatch(on_gone, parent) if parent else None


# --- ports and files ------------------------------------------------------------------------------


def cannot_bind(address: Address, error: OSError) -> ConfigError:
    """The error for a listener that could not be had, with the holder of a taken port where it can be seen."""
    # asyncio words the error itself, with the address in it; the number has the system's own words.
    code = error.errno or 0
    reason = os.strerror(code).lower() if code > 0 else error.strerror or str(error)
    if code == errno.EADDRINUSE and (holder := port_holder(address)):
        reason += f" (held by {holder})"
    return ConfigError("", log.cannot_bind(address, reason))


def port_holder(address: Address) -> str | None:
    """Name the process that listens on a port, where the system shows it (Linux, same user or root)."""
    inodes = set(_listening_inodes(address.port))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in _processes():
        folder = f"/proc/{process}/fd"
        with suppress(OSError):  # somebody else's process, or one that has just ended
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{descriptor}") in wanted:
                        return f"process {process}{_command_name(process)}"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    """Sockets in the state LISTEN (0A) of /proc/net/tcp and tcp6 (proc(5))."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii", errors="replace") as lines:
            for line in lines:
                columns = line.split()
                if len(columns) > 9 and columns[3] == "0A" and columns[1].endswith(f":{port:04X}"):
                    yield columns[9]


def _processes() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []


def _command_name(process: int) -> str:
    """Its short name only: the command line may hold keys."""
    with suppress(OSError), open(f"/proc/{process}/comm", "rb") as file:
        return f" ({log.safe(file.read(64).strip())})"
    return ""


SPARE_DESCRIPTORS = 64
"""For the loop, the log, listeners, the second listener, resolving names."""


def room_for_clients(connections: int) -> int:
    """How many clients may be open at a time: what `connections` to upstreams and our own needs leave."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - connections - SPARE_DESCRIPTORS, soft // 2)


def leave_no_core() -> None:
    """No core dump of a process that holds keys and prompts. The soft limit only, so that an operator who wants one
    can say so while it runs (`prlimit --core=unlimited --pid`); debuggers and profilers can still attach."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def raise_file_limit() -> int:
    """Allow as many open files as the hard limit does: each client and connection is one. The new limit.

    Raises ConfigError where it is below FEWEST_FILES.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
        why = f"open files are limited to {hard} (ulimit -Hn); at least {FEWEST_FILES} are needed"
        raise ConfigError("", why)
    wanted = hard
    if sys.platform == "darwin" and (hard == resource.RLIM_INFINITY or hard > MAC_OPEN_MAX):
        wanted = MAC_OPEN_MAX
    if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > soft):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft
