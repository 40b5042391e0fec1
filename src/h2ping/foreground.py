"""One command run on the user's behalf: signals are passed on, its exit code becomes ours, it ends with us.

Theory of operation
-------------------
1. The command has a process group of its own, and the terminal while it runs. So Ctrl-C reaches it once, and
   not us; a signal sent to us is sent on once. In our group it would get both, and NeMo Gym, for one, does
   not survive a second SIGINT while it shuts down.
2. SIGINT goes to the whole group, as from a terminal; every other signal to the command alone, as from
   `kill`.
3. A signal may be translated: SIGTERM to SIGINT for programs that end well only on Ctrl-C.
4. `look` is called twice a second. A text that it returns is the reason to stop the command: it gets SIGINT,
   or the translation of SIGTERM, and SIGKILL after a while.
5. Stopped by Ctrl-Z, the command takes us with it, and goes on with us.

One thread, no sleeps: signals arrive as bytes on a pipe that one select waits for.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from h2ping import tether
from h2ping.errors import H2pingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LOOK_INTERVAL = 0.5
STOP_TIMEOUT = 30.0
"""Seconds that a command gets to end after it was told to stop because a proxy died."""

_TERMINAL = 0


def nothing_wrong() -> str:
    return ""


def run(
    command: Sequence[str],
    *,
    look: Callable[[], str] = nothing_wrong,
    translate: Mapping[signal.Signals, signal.Signals] | None = None,
    environment: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda reason: print(reason, file=sys.stderr, flush=True),
) -> int:
    """Run it to its end. Returns its exit code (128 + N: signal N ended it), or 1 when `look` stopped it."""
    translate = translate or {}
    on_death = translate.get(signal.SIGTERM, signal.SIGTERM)
    words = [*tether.prefix(sys.executable, os.getpid(), on_death), *command]
    with _signals() as arrivals:
        pid = _spawn(words, {**os.environ, **(environment or {})})
        with _terminal_of(pid):
            return _watch(pid, arrivals, look, translate, tell)


def _watch(
    pid: int,
    arrivals: int,
    look: Callable[[], str],
    translate: Mapping[signal.Signals, signal.Signals],
    tell: Callable[[str], None],
) -> int:
    stopping = False
    deadline = float("inf")
    while True:
        code = _exit_code(pid)
        if code is not None:
            return 1 if stopping else code
        readable, _, _ = select.select([arrivals], [], [], LOOK_INTERVAL)
        for byte in os.read(arrivals, 64) if readable else b"":
            number = signal.Signals(byte)
            if number in PASSED_ON:
                _send(pid, translate.get(number, number))
        if not stopping and (reason := look()):
            stopping = True
            tell(reason)
            deadline = time.monotonic() + STOP_TIMEOUT
            _send(pid, translate.get(signal.SIGTERM, signal.SIGTERM))
        if time.monotonic() >= deadline:
            deadline = float("inf")
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _spawn(words: Sequence[str], environment: Mapping[str, str]) -> int:
    # Ignored signals stay ignored across exec. SIGPIPE is ignored by Python, not by the user; SIGINT and
    # SIGQUIT are in a shell's background job, so that Ctrl-C spares it, but here they only ever come because
    # we send them.
    defaults = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT)
    try:
        return os.posix_spawnp(words[0], list(words), dict(environment), setpgroup=0, setsigdef=defaults)
    except OSError as error:
        raise H2pingError(f"cannot execute {words[0]}: {error.strerror}") from None


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        if number == signal.SIGINT:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _exit_code(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if found == 0:
        return None
    if os.WIFSTOPPED(status):
        _take_terminal(os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        _take_terminal(pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


@contextmanager
def _signals() -> Iterator[int]:
    """A file descriptor from which the numbers of the signals that arrive can be read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watched = (*PASSED_ON, signal.SIGCHLD)
    # One that was ignored when we started (nohup, a shell's background job) stays ignored, also for the
    # command.
    before = {number: signal.getsignal(number) for number in watched}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old_writer)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextmanager
def _terminal_of(group: int) -> Iterator[None]:
    try:
        owner = os.tcgetpgrp(_TERMINAL) == os.getpgrp()
    except OSError:
        owner = False
    if owner:
        _take_terminal(group)
    try:
        yield
    finally:
        if owner:
            _take_terminal(os.getpgrp())


def _take_terminal(group: int) -> None:
    before = signal.signal(
        signal.SIGTTOU, signal.SIG_IGN
    )  # or the kernel stops whoever does this from behind
    try:
        with suppress(OSError):
            os.tcsetpgrp(_TERMINAL, group)
    finally:
        signal.signal(signal.SIGTTOU, before)
