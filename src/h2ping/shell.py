"""`eval "$(h2ping env https://HOST)"`: a proxy for this shell, and OPENAI_BASE_URL to reach it.

The text that is printed starts the proxy as a background job *of the shell that evaluates it*. So it is that
shell's child: `-exit-with-parent` ends it when the terminal is closed, and `kill $H2PING_PID` ends it
before. A second `eval` for the same upstream finds it running and only exports. `--no-start` only ever
exports, for a proxy that systemd or somebody else runs.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path

from h2ping.address import Address, Upstream
from h2ping.child import openai_url, reachable
from h2ping.errors import ConfigError
from h2ping.options import Parser

READY_TRIES = 150
"""Tenths of a second until the shell gives up waiting."""

_START = """\
if ! {{ [ -e {ready} ] && kill -0 "$(cat {ready})" 2>/dev/null; }}; then
  rm -f {ready}
  {command} >{log} 2>&1 &
  H2PING_PID=$!
  for _h2ping in $(seq {tries}); do
    [ -e {ready} ] && break
    kill -0 "$H2PING_PID" 2>/dev/null || break
    sleep 0.1
  done
  [ -e {ready} ] || {{ echo 'h2ping env: the proxy did not start:' >&2; tail -n 5 {log} >&2; }}
fi
"""


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="h2ping env",
        description='Print shell text that starts a proxy and exports OPENAI_BASE_URL: eval "$(h2ping env '
        'https://HOST)". The proxy is a background job of the shell and ends with it.',
        epilog="Any other flag is h2ping's own (h2ping -h).",
    )
    parser.add_argument("upstream", metavar="UPSTREAM", help="https://HOST or https://HOST/v1")
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:1250")
    parser.add_argument("--no-start", action="store_true", help="only export; the proxy is started elsewhere")
    options, flags = parser.parse_known_args(argv)
    print(text(options.upstream, options.listen, flags, start=not options.no_start), end="")
    return 0


def text(upstream: str, listen: str, flags: list[str], *, start: bool) -> str:
    """What the shell evaluates. POSIX sh, so that bash, zsh and dash all take it."""
    try:
        origin = Upstream.parse(upstream if "://" in upstream else f"https://{upstream}")
    except ValueError as error:
        raise ConfigError("UPSTREAM", str(error), exit_code=2) from None
    try:
        address = Address.parse(listen)
        if address.port == 0:
            raise ValueError("needs a port: the shell must know it before the proxy has picked one")
    except ValueError as error:
        raise ConfigError("--listen", str(error), exit_code=2) from None
    base = openai_url(f"http://{reachable(str(address))}", origin.url)
    lines = ""
    if start:
        stem = _folder() / f"{address.port}-{_safe(origin.url)}"
        ready, log = shlex.quote(f"{stem}.ready"), shlex.quote(f"{stem}.log")
        command = shlex.join([
            sys.executable, "-m", "h2ping", "-listen", str(address), "-upstream", origin.url,
            "-ready-file", f"{stem}.ready", "-exit-with-parent", *flags,
        ])  # fmt: skip
        lines = _START.format(ready=ready, log=log, command=command, tries=READY_TRIES)
    lines += f"export OPENAI_BASE_URL={shlex.quote(base)}\n"
    if any(os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        # Or the client would send its loopback requests to that proxy.
        lines += 'export NO_PROXY="${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost"\nexport no_proxy="$NO_PROXY"\n'
    return lines


def _safe(url: str) -> str:
    return "".join(character if character.isalnum() or character in ".-" else "_" for character in url[8:])


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime) / "h2ping" if runtime else Path(tempfile.gettempdir()) / f"h2ping-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(str(folder), "belongs to somebody else; set XDG_RUNTIME_DIR")
    return folder
