"""`h2ping gym`: NeMo Gym with the `sidecar:` block, for Gyms that ignore it.

h2ping gym [--way auto|hooks|overlay] -- gym env start ...
h2ping gym check [--way ...] [-- gym env start ...]
h2ping gym shim DIR
h2ping gym config UPSTREAM [UPSTREAM ...] [--listen HOST:PORT]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from h2ping.address import Address
from h2ping.errors import ConfigError, H2pingError
from h2ping.gym import bootstrap, locate, overlay, report, sidecar
from h2ping.options import Parser, option

if TYPE_CHECKING:
    from collections.abc import Sequence

WAYS = ("auto", "hooks", "overlay")
SUBCOMMANDS = ("check", "shim", "config")

_ABOUT = """\
Run a NeMo Gym command with the proxies that the `sidecar:` block of its configuration asks for, also with a
Gym that ignores the block (0.4 to 0.7). Your files are not changed: URLs are rewritten in Gym's own resolved
configuration (hooks), or by overrides on its command line (overlay) where the hooks do not fit.
"""


def main(argv: list[str]) -> int:
    try:
        if argv and argv[0] in SUBCOMMANDS:
            return {"check": _check, "shim": _shim, "config": _config}[argv[0]](argv[1:])
        return _launch(argv)
    except H2pingError as error:
        report.say(str(error))
        return getattr(error, "exit_code", 1)


def own_program() -> list[str]:
    """The command that is this h2ping, for processes that we start."""
    return [sys.executable, "-m", "h2ping"]


def _launch(argv: list[str]) -> int:
    own, command = _split(argv)
    parser = Parser(
        prog="h2ping gym",
        description=_ABOUT,
        usage="h2ping gym [--way auto|hooks|overlay] -- gym env start ...\n"
        "       h2ping gym check [-- gym env start ...]\n"
        "       h2ping gym shim DIR\n"
        "       h2ping gym config UPSTREAM [UPSTREAM ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_way(parser)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(own)
    if not command:
        parser.error("nothing to run; write the command after --")
    return _run(options.way, command, check=options.check)


def _check(argv: list[str]) -> int:
    own, command = _split(argv)
    parser = Parser(
        prog="h2ping gym check",
        description="Check the sidecar block and show each URL that would be rewritten. Starts nothing. "
        "Without a command it checks what `gym env start` would read here.",
    )
    _add_way(parser)
    options = parser.parse_args(own)
    return _run(options.way, command or ["gym", "env", "start"], check=True)


def _add_way(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--way",
        choices=WAYS,
        default="auto",
        help="hooks: at points inside Gym; overlay: overrides on Gym's command line; auto: hooks, or "
        "overlay where they do not fit",
    )


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Own options, and the command: what stands after `--`, or from the word on that is Gym's program."""
    for index, word in enumerate(argv):
        if word == "--":
            return list(argv[:index]), list(argv[index + 1 :])
        if locate.is_gym_name(word):
            return list(argv[:index]), list(argv[index:])
    return list(argv), []


def _run(way: str, command: Sequence[str], *, check: bool) -> int:
    gym = locate.gym_command(command)
    python = None if gym.script is None else locate.interpreter(gym.script)
    if way == "hooks" and python is None:
        raise ConfigError("--way hooks", f"{shlex.join(gym.words)} is not a Python script")
    if way == "overlay" or python is None:
        return overlay.run(gym, own_program(), check=check)
    order = json.dumps({"program": own_program(), "mode": "check" if check else "run"})
    return _become([*python, bootstrap.__file__, order, *gym.words, *gym.arguments])


def _become(words: Sequence[str]) -> NoReturn:
    """Exec: signals, terminal, process id and exit code are Gym's own, with nobody between."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execv(words[0], list(words))
    except OSError as error:
        raise H2pingError(f"cannot execute {words[0]}: {error.strerror}") from None


_SHIM = """\
#!/bin/sh
# {mark}: the real `gym`, with the proxies of its sidecar block. Written by `h2ping gym shim`.
exec {program} gym -- gym "$@"
"""


def _shim(argv: list[str]) -> int:
    parser = Parser(
        prog="h2ping gym shim",
        description="Write DIR/gym: the real gym under `h2ping gym`. Put DIR first on PATH for tools that "
        "start `gym` themselves, such as the Helix Gym runner.",
    )
    parser.add_argument("folder", metavar="DIR")
    folder = Path(parser.parse_args(argv).folder).expanduser().absolute()
    shim = folder / "gym"
    if shim.exists() and not locate.is_shim(shim):
        raise ConfigError(str(shim), "exists and is not a shim; name a folder of its own for it")
    folder.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(mark=locate.SHIM_MARK, program=shlex.join(_installed_program())))
    shim.chmod(0o755)
    print(shim)
    report.say(f'put it first on PATH: export PATH="{folder}:$PATH"')
    try:
        report.say(f"it will run {locate.find('gym')}")
    except ConfigError:
        report.say("no gym is on PATH yet; activate the environment that holds NeMo Gym before you use it")
    return 0


def _installed_program() -> list[str]:
    """The console script when there is one: `python -m` would look into the working folder first."""
    script = Path(sys.executable).with_name("h2ping")
    return [str(script)] if os.access(script, os.X_OK) else own_program()


def _config(argv: list[str]) -> int:
    parser = Parser(
        prog="h2ping gym config", description="Print a sidecar block for env.yaml, ready to paste."
    )
    parser.add_argument("upstreams", metavar="UPSTREAM", nargs="+", help="https://HOST, as in your base URLs")
    parser.add_argument(
        "--listen",
        type=option(Address.parse),
        metavar="HOST:PORT",
        default="127.0.0.1:1250",
        help="of the first instance",
    )
    parser.add_argument("--binary", metavar="PATH", nargs="?", const="", help="also name the program")
    options = parser.parse_args(argv)
    first: Address = options.listen
    lines = ["sidecar:", "  enabled: true"]
    if options.binary is not None:
        path = (
            options.binary
            or shutil.which("h2-ping-sidecar")
            or str(Path(sys.executable).with_name("h2-ping-sidecar"))
        )
        lines.append(f"  binary: {json.dumps(path)}")
    lines.append("  instances:")
    hosts: dict[str, int] = {}
    for index, upstream in enumerate(options.upstreams):
        url = upstream if "://" in upstream else f"https://{upstream}"
        block = {"instances": [{"upstream": url}]}
        instance = sidecar.read({"enabled": True, **block}).instances[0]
        name = instance.host.split(".")[0] or "nvcf"
        hosts[name] = hosts.get(name, 0) + 1
        if hosts[name] > 1:
            name = f"{name}-{hosts[name]}"
        lines += [
            f"    - name: {json.dumps(name)}",
            f"      upstream: {instance.upstream}",
            f"      listen: {Address(first.host, first.port + index)}",
        ]
    print("\n".join(lines))
    return 0
