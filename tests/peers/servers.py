"""Real HTTP/2 servers as processes: nghttpd, granian, envoy, node, Go.

A server that is not installed skips its tests, or fails them where H2PING_REQUIRE_PEERS is set.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.stage import Certificates

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_SECONDS = 30.0
POLL_SECONDS = 0.05


class MissingPeer(Exception):
    """The program of that name is not there."""


def program(name: str) -> str:
    """The path of a program, beside this interpreter or on PATH."""
    beside = Path(sys.executable).parent / name
    found = (
        str(beside) if beside.exists() else shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    )
    if found is None:
        raise MissingPeer(name)
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass
class Peer:
    """A running server. `chat` is False for the one that serves files and echoes only."""

    name: str
    port: int
    folder: Path
    chat: bool = True
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def spawn(self, *command: str, env: dict[str, str] | None = None, port: int) -> None:
        """Start a process and wait until it accepts on `port`."""
        inherited = {**os.environ}
        inherited.pop("LD_PRELOAD", None)  # a sanitizer's runtime, for h2ping
        with (self.folder / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT,
                env={**inherited, **(env or {})}, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert process.poll() is None, self.log
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(POLL_SECONDS)  # another program's listener has no event to wait for
        raise AssertionError(f"{self.name} does not listen:\n{self.log}")

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def close(self) -> None:
        for process in self.processes:
            # Its session: granian leaves a worker behind when only its parent is killed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def start_nghttpd(peer: Peer, chain: str, key: str) -> None:
    peer.chat = False
    files = peer.folder / "files"
    files.mkdir()
    (files / "large").write_bytes(LARGE)
    peer.spawn(
        program("nghttpd"), "--address=127.0.0.1", f"--htdocs={files}", "--echo-upload",
        str(peer.port), key, chain, port=peer.port,
    )  # fmt: skip


def _granian(peer: Peer, port: int, *flags: str) -> None:
    peer.spawn(
        program("granian"), "--interface=asgi", "--host=127.0.0.1", f"--port={port}", "--no-ws",
        "--log-level=error", *flags, "tests.peers.openai_app:app", port=port,
    )  # fmt: skip


def start_granian(peer: Peer, chain: str, key: str) -> None:
    _granian(peer, peer.port, "--http=2", f"--ssl-certificate={chain}", f"--ssl-keyfile={_pkcs8(peer, key)}")


def _pkcs8(peer: Peer, key: str) -> Path:
    """The same key in the one form that granian reads."""
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), password=None)
    file = peer.folder / "granian.key"
    file.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return file


def start_envoy(peer: Peer, chain: str, key: str) -> None:
    """Envoy ends TLS and HTTP/2; the application behind it is granian over HTTP/1.1."""
    envoy = program("envoy")
    behind = free_port()
    _granian(peer, behind, "--http=1")
    kinds = "type.googleapis.com/envoy.extensions"

    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    route = {"match": {"prefix": "/"}, "route": {"cluster": "app", "timeout": "0s"}}
    manager = {
        "@type": f"{kinds}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{kinds}.filters.http.router.v3.Router"}}
        ],
    }
    tls = {
        "@type": f"{kinds}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": [
                {"certificate_chain": {"filename": chain}, "private_key": {"filename": key}}
            ],
        },
    }
    listener = {
        "address": address(peer.port),
        "filter_chains": [
            {
                "filters": [{"name": "http", "typed_config": manager}],
                "transport_socket": {"name": "tls", "typed_config": tls},
            }
        ],
    }
    cluster = {
        "name": "app",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "app",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(behind)}}]}],
        },
    }
    config = peer.folder / "envoy.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    peer.spawn(
        envoy, "--config-path", str(config), "--disable-hot-restart",
        "--concurrency", "1", "--log-level", "error", port=peer.port,
    )  # fmt: skip


def start_node(peer: Peer, chain: str, key: str) -> None:
    peer.spawn(program("node"), str(HERE / "node_origin.js"), str(peer.port), chain, key, port=peer.port)


def start_go(peer: Peer, chain: str, key: str) -> None:
    """Built on first use; the toolchain's own cache makes the next build quick."""
    go = program("go")
    binary = peer.folder / "go_origin"
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "", "CGO_ENABLED": "0"}
    done = subprocess.run(
        [go, "build", "-o", str(binary), "."], cwd=HERE / "go_origin", env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    peer.spawn(str(binary), str(peer.port), chain, key, port=peer.port)


STARTERS = {
    "nghttpd": start_nghttpd,
    "granian": start_granian,
    "envoy": start_envoy,
    "node": start_node,
    "go": start_go,
}
CHAT_PEERS = [name for name in STARTERS if name != "nghttpd"]
LARGE = bytes(range(256)) * (40 * 1_000_000 // 256)
"""40 MB."""


@contextlib.contextmanager
def running(name: str, certificates: Certificates, folder: Path) -> Iterator[Peer]:
    """The server, started; skipped or failed when it is not there."""
    peer = Peer(name, free_port(), folder)
    try:
        STARTERS[name](peer, *certificates.good)
        yield peer
    except MissingPeer as missing:
        if os.environ.get("H2PING_REQUIRE_PEERS", "") not in ("", "0"):
            pytest.fail(f"the peer {missing} is not installed, and H2PING_REQUIRE_PEERS is set")
        pytest.skip(f"the peer {missing} is not installed")
    finally:
        peer.close()
