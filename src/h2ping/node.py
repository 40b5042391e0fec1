"""`h2ping node [FLAG ...] -run COMMAND ...`: a command with its proxy beside it.

For a Slurm job step, a container's entry point or a CI step. The proxy starts, the command runs once it is
ready, the proxy drains when the command has ended, and the command's exit code is ours. Every flag of h2ping
may stand before `-run`; `-config FILE` gives several instances.

The proxy's log goes to standard error. A proxy that dies is started again, after a wait that doubles each
time: clients that were refused a connection try again, while a command that is stopped has lost its work.
Five deaths in a row within ten seconds of their starts stop the command.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from h2ping import foreground
from h2ping.arguments import parse_arguments
from h2ping.child import Running, StartError, environment
from h2ping.config import PROGRAM
from h2ping.errors import ConfigError, H2pingError
from h2ping.sources import load

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
EARLY = 10.0
MOST_EARLY_DEATHS = 5

_USAGE = """\
Usage: h2ping node [FLAG ...] -run COMMAND [ARGUMENT ...]

Start the proxy, wait until it is ready, run COMMAND, drain, and exit with its code.

  FLAG     any flag of h2ping (h2ping -h), such as -upstream https://HOST -listen 127.0.0.1:1250,
           or -config FILE for several instances
  COMMAND  gets H2PING_BASE_URL=http://HOST:PORT in its environment; signals are passed on to it
"""


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["-help"], ["--help"]):
        print(_USAGE, end="")
        return 0
    try:
        return run(*_split(argv))
    except H2pingError as error:
        print(f"h2ping node: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    for index, word in enumerate(argv):
        if word in ("-run", "--run", "--"):
            own, command = argv[:index], argv[index + 1 :]
            if command[:1] == ["--"]:
                command = command[1:]
            if command:
                return own, command
            break
    raise ConfigError("-run", "needs a command; see h2ping node -h", exit_code=2)


def run(flags: list[str], command: list[str]) -> int:
    # What the proxy would refuse is told once, and as what it is: a mistake in our own command line.
    arguments = parse_arguments(flags)
    load(arguments.values, os.environ, PROGRAM, arguments.config)
    proxy = Running(flags, stop_timeout=None, echo=sys.stderr)
    proxy.start()
    try:
        for address, upstream in proxy.listening:
            _say(f"{address} -> {upstream}")
        return foreground.run(command, look=Nurse(proxy, time.monotonic).look, environment=environment(proxy))
    finally:
        proxy.stop()


class Nurse:
    """Starts a proxy that died again, each time after a longer wait."""

    def __init__(self, proxy: Running, now: Callable[[], float]) -> None:
        self._proxy = proxy
        self._now = now
        self._born = now()
        self._early_deaths = 0
        self._due: float | None = None

    def look(self) -> str:
        """Called again and again. Returns why the command must stop, or nothing."""
        self._proxy.echo_log()
        if self._due is not None:
            return self._start() if self._now() >= self._due else ""
        if self._proxy.exit_code is None:
            return ""
        _say(f"the proxy exited with code {self._proxy.exit_code}")
        return self._after_a_death(self._now() - self._born)

    def _after_a_death(self, age: float) -> str:
        self._early_deaths = self._early_deaths + 1 if age < EARLY else 1
        if self._early_deaths >= MOST_EARLY_DEATHS:
            return f"h2ping node: the proxy died {MOST_EARLY_DEATHS} times in a row; stopping the command"
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._early_deaths - 1))
        _say(f"starting it again in {wait:g} s")
        self._due = self._now() + wait
        return ""

    def _start(self) -> str:
        self._due = None
        self._proxy.stop(0)
        self._born = self._now()
        try:
            self._proxy.start()
        except StartError as error:
            _say(str(error))
            return self._after_a_death(0.0)
        return ""


def _say(text: str) -> None:
    print(f"h2ping node: {text}", file=sys.stderr, flush=True)
