"""The proxies that are compared: how each is started, with the settings that make it comparable.

All listen on a free port of loopback, verify the origin's certificate and run one worker, but Go, which takes all cores
as it does wherever nobody tells it otherwise.
h2ping, Go and Envoy send PING at an interval; nghttpx has none, it asks only before it uses an idle connection again.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rig import Rig

START_LIMIT = 20.0


@dataclass(frozen=True)
class Tuning:
    """What an item of work sets alike in all proxies that have a setting for it."""

    memory: str = "1GiB"
    """h2ping's limit."""
    ping_seconds: float = 60.0
    streams: int = 128
    """The origin's limit of streams, which Envoy and nghttpx must be told."""
    one_connection: bool = False
    """Only h2ping must be told: the others open another when one is full."""


DEFAULTS = Tuning()


@dataclass
class Running:
    """A proxy that accepts connections."""

    name: str
    port: int
    pid: int
    start_seconds: float


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _h2ping(rig: Rig, port: int, tuning: Tuning) -> list[str]:
    return [
        sys.executable, "-m", "h2ping", "--listen", f"127.0.0.1:{port}",
        "--upstream", f"https://localhost:{rig.upstream_port}", "--ca-file", str(rig.certificate.authority),
        "--log-level", "error", "--max-memory", tuning.memory,
        "--ping-interval", f"{tuning.ping_seconds * 1000:.0f}ms",
        *(["--max-conns", "1", "--max-requests-per-conn", "0"] if tuning.one_connection else []),
    ]  # fmt: skip


def _go(rig: Rig, port: int, tuning: Tuning) -> list[str]:
    return [
        str(rig.program), "proxy", "-listen", f"127.0.0.1:{port}",
        "-upstream", f"https://localhost:{rig.upstream_port}", "-ca-file", str(rig.certificate.authority),
        "-ping-interval", f"{tuning.ping_seconds * 1000:.0f}ms",
    ]  # fmt: skip


def _nghttpx(rig: Rig, port: int, tuning: Tuning) -> list[str]:
    return [
        "nghttpx", "--conf=/dev/null", f"--frontend=127.0.0.1,{port};no-tls",
        f"--backend=localhost,{rig.upstream_port};;proto=h2;tls", f"--cacert={rig.certificate.authority}",
        "--workers=1", "--errorlog-file=/dev/null", f"--backend-http2-max-concurrent-streams={tuning.streams}",
        "--backend-read-timeout=1h", "--backend-write-timeout=1h", "--frontend-read-timeout=1h",
        "--backend-http2-window-size=1M", "--backend-http2-connection-window-size=64M", "--no-via",
        "--no-add-x-forwarded-proto", "--no-server-rewrite",
    ]  # fmt: skip


def _envoy(rig: Rig, port: int, tuning: Tuning) -> list[str]:
    config = rig.folder / f"envoy-{port}.json"
    config.write_text(json.dumps(_envoy_config(rig, port, tuning)))
    return ["envoy", "-c", str(config), "--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]


def _envoy_config(rig: Rig, port: int, tuning: Tuning) -> dict[str, object]:
    types = "type.googleapis.com/envoy.extensions"
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "origin",
            "timeout": "0s",
            "host_rewrite_literal": f"localhost:{rig.upstream_port}",
        },
    }
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "generate_request_id": False,
        "stream_idle_timeout": "0s",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{types}.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            }
        ],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    most = 1_000_000
    http2 = {
        "connection_keepalive": {"interval": f"{tuning.ping_seconds:.3f}s", "timeout": "15s"},
        "max_concurrent_streams": tuning.streams,
        "initial_stream_window_size": 1 << 20,
        "initial_connection_window_size": 64 << 20,
    }
    cluster = {
        "name": "origin",
        "type": "STATIC",
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": most,
                    "max_pending_requests": most,
                    "max_requests": most,
                    "max_retries": most,
                }
            ]
        },
        "load_assignment": {
            "cluster_name": "origin",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(rig.upstream_port)}}]}],
        },
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{types}.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": "localhost",
                "common_tls_context": {
                    "alpn_protocols": ["h2"],
                    "validation_context": {"trusted_ca": {"filename": str(rig.certificate.authority)}},
                },
            },
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{types}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": http2},
            }
        },
    }
    listener = {
        "address": _address(port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


_COMMANDS = {"go": _go, "envoy": _envoy, "nghttpx": _nghttpx, "h2ping": _h2ping, "h2ping-plain": _h2ping}
NAMES = tuple(_COMMANDS)


def available() -> list[str]:
    """The proxies whose programs are here."""
    needs = {"envoy": "envoy", "nghttpx": "nghttpx"}
    return [name for name in NAMES if name not in needs or shutil.which(needs[name], path=_path())]


def engine_of(name: str) -> str:
    """`compiled` or `plain`: what h2ping says of itself when it is started as `name`."""
    command = [sys.executable, "-m", "h2ping", "--version"]
    said = subprocess.run(command, env=_environment(name), capture_output=True, text=True, check=True).stdout
    return "compiled" if "(compiled)" in said else "plain"


def _environment(name: str) -> dict[str, str]:
    own = {"h2ping-plain": {"H2PING_NO_EXTENSIONS": "1"}}
    return os.environ | {"PATH": _path()} | own.get(name, {})


def _path() -> str:
    return f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"


@contextmanager
def started(name: str, rig: Rig, tuning: Tuning = DEFAULTS) -> Iterator[Running]:
    """The proxy, running until the block ends."""
    port = free_port()
    rig.control("streams", most=tuning.streams)
    command = _COMMANDS[name](rig, port, tuning)
    begun = time.monotonic()
    process = subprocess.Popen(
        command, env=_environment(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=rig.folder
    )
    try:
        _await_listening(process, port, begun + START_LIMIT)
        yield Running(name, port, process.pid, time.monotonic() - begun)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_listening(process: subprocess.Popen[bytes], port: int, end: float) -> None:
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args!r} does not listen")
        time.sleep(0.001)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
