"""`h2ping ray up|down|status`: one proxy on every node of a Ray cluster. Placement and supervision are Ray's.

Theory of operation
-------------------
1. On each node there is one actor, pinned to it by node affinity, which needs no CPU of the cluster. It holds
   the proxy as a child process that ends with it.
2. A proxy that dies takes its actor with it, and Ray starts the actor again on the same node, without limit.
3. One more actor, the keeper, looks at the cluster's nodes every two seconds: a node that joined gets its
   actor, an actor of a node that left is forgotten. Ray restarts the keeper, too.
4. Actors are named in the namespace `h2ping`; `up` finds them by name, so a second `up` changes nothing. With
   other flags it refuses: run `down` first.
5. Detached actors live until `down` or until the cluster ends. With `--foreground` they are owned by this
   process and end with it, also when it is killed: the way for a job.

Needs `ray` where this runs and h2ping on every node, in the environment of Ray's workers. The name of this
module is not `ray`, because a script's folder is the first place where Python looks for that.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from h2ping.arguments import parse_arguments
from h2ping.child import STOP_TIMEOUT, Running
from h2ping.errors import ConfigError, H2pingError
from h2ping.options import Parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

NAMESPACE = "h2ping"
KEEPER = "keeper"
LOOK_INTERVAL = 2.0
WATCH_INTERVAL = 0.5
START_TIMEOUT = 90.0
"""Seconds that `up` waits for every node: a worker process of Ray takes some to start on a busy machine."""


class NodeProxy:
    """The actor on a node: a proxy, and a thread that ends this process when the proxy has ended."""

    def __init__(self, flags: list[str]) -> None:
        self._flags = flags
        self._running = Running(flags, startup_timeout=30.0).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._running.exit_code is None:
            time.sleep(WATCH_INTERVAL)
        # A death of this process, and not an orderly end of the actor, is what Ray answers with a restart.
        os._exit(1)

    def describe(self) -> dict[str, Any]:
        return {"pid": self._running.pid, "base_url": self._running.base_url, "flags": self._flags}

    def drain(self) -> None:
        """Stop the proxy gently; the watch then ends the process, which nobody restarts after `kill`."""
        self._running.stop()


class Keeper:
    """The actor that looks after the nodes."""

    def __init__(self, flags: list[str], addresses: list[str], detached: bool) -> None:
        self._flags = flags
        self._addresses = addresses
        self._detached = detached
        self._actors: dict[str, Any] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._keep, daemon=True).start()

    def settings(self) -> dict[str, Any]:
        return {"flags": self._flags, "nodes": self._addresses}

    def _keep(self) -> None:
        while True:
            with suppress(Exception):  # a cluster that is going down; whatever it was, the next look tells
                self.look()
            time.sleep(LOOK_INTERVAL)

    def look(self) -> dict[str, str]:
        """Give every node its actor. Returns the nodes with their addresses."""
        with self._lock:
            nodes = wanted_nodes(_nodes(), self._addresses)
            for node in [node for node in self._actors if node not in nodes]:
                del self._actors[node]
            for node in nodes:
                if node not in self._actors:
                    self._actors[node] = place(node, self._flags, self._detached)
        return nodes

    def status(self) -> list[dict[str, Any]]:
        """A row for each node: address, and what its proxy says of itself or why there is none."""
        import ray

        rows = []
        asked = [
            (node, address, self._actors[node].describe.remote()) for node, address in self.look().items()
        ]
        for node, address, answer in asked:
            row: dict[str, Any] = {"node": node, "address": address}
            try:
                row |= ray.get(answer, timeout=60)
            except Exception as error:  # an actor may be gone in as many ways as Ray has exceptions
                row["error"] = _reason(error)
                if isinstance(error, ray.exceptions.ActorDiedError):
                    # Its constructor failed, which Ray does not repeat; the next look makes a new one.
                    with self._lock:
                        self._actors.pop(node, None)
            rows.append(row)
        return rows


def _reason(error: BaseException) -> str:
    """The line of a remote traceback that says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "cannot bind" in line or "StartError" in line]
    return (telling or lines or [type(error).__name__])[-1]


def _nodes() -> list[dict[str, Any]]:
    import ray

    untyped: Any = ray
    nodes: list[dict[str, Any]] = untyped.nodes()
    return nodes


def wanted_nodes(nodes: Iterable[dict[str, Any]], addresses: Sequence[str]) -> dict[str, str]:
    """Alive nodes by id, with their addresses; all of them, or those whose address or name is listed."""
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in nodes
        if node["Alive"]
        and (
            not addresses
            or node["NodeManagerAddress"] in addresses
            or node.get("NodeManagerHostname") in addresses
        )
    }


def place(node: str, flags: list[str], detached: bool) -> Any:
    """The actor of a node, made unless it is there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(NodeProxy)
        .options(
            name=f"node-{node}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached" if detached else None,
            max_restarts=-1,
            max_concurrency=4,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        )
        .remote(flags)
    )


def up(flags: list[str], addresses: Sequence[str] = (), *, detached: bool = True) -> list[dict[str, Any]]:
    """Proxies on the nodes of the connected cluster. Returns a row for each node; raises H2pingError."""
    import ray

    keeper = find(KEEPER)
    if keeper is None:
        keeper = (
            ray.remote(Keeper)
            .options(
                name=KEEPER,
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached" if detached else None,
                max_restarts=-1,
                num_cpus=0,
            )
            .remote(flags, list(addresses), detached)
        )
    wanted = {"flags": flags, "nodes": list(addresses)}
    settings = ray.get(keeper.settings.remote(), timeout=START_TIMEOUT)
    if settings != wanted:
        raise H2pingError(
            f"proxies are up with other settings ({_brief(settings)}); run `h2ping ray down` first"
        )
    rows: list[dict[str, Any]] = ray.get(keeper.status.remote(), timeout=START_TIMEOUT)
    return rows


def down() -> int:
    """Stop every proxy of the connected cluster, gently. Returns how many there were."""
    import ray

    keeper = find(KEEPER)
    if keeper is not None:
        ray.kill(keeper, no_restart=True)
    actors = [find(name) for name in _names() if name.startswith("node-")]
    found = [actor for actor in actors if actor is not None]
    waiting = [actor.drain.remote() for actor in found]
    for answer in waiting:
        with suppress(ray.exceptions.RayError):  # its node left, or its proxy had never started
            ray.get(answer, timeout=STOP_TIMEOUT)
    for actor in found:
        ray.kill(actor, no_restart=True)
    return len(found)


def status() -> list[dict[str, Any]] | None:
    """A row for each node, or None when nothing is up."""
    import ray

    keeper = find(KEEPER)
    if keeper is None:
        return None
    rows: list[dict[str, Any]] = ray.get(keeper.status.remote(), timeout=START_TIMEOUT)
    return rows


def find(name: str) -> Any:
    import ray

    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:  # Ray's way to say that there is none
        return None


def _names() -> list[str]:
    from ray.util import list_named_actors

    return [
        entry["name"] for entry in list_named_actors(all_namespaces=True) if entry["namespace"] == NAMESPACE
    ]


_USAGE = """\
Usage: h2ping ray up [--address ADDRESS] [--nodes HOST,HOST] [--foreground] FLAG ...
       h2ping ray status [--address ADDRESS] [--json]
       h2ping ray down [--address ADDRESS]

One proxy on every alive node of a running Ray cluster, and on nodes that join. FLAG is any flag of h2ping,
such as -upstream https://HOST -listen 127.0.0.1:1250. Proxies live until `down` or until the cluster ends;
with --foreground until this command ends.
"""


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in ("up", "down", "status") or {"-h", "--help"} & set(argv):
        print(_USAGE, end="")
        return 0 if {"-h", "--help"} & set(argv) else 2
    parser = Parser(prog=f"h2ping ray {argv[0]}", add_help=False)
    parser.add_argument("--address", default=os.environ.get("RAY_ADDRESS") or "auto")
    parser.add_argument("--nodes", default="")
    parser.add_argument("--foreground", action="store_true")
    parser.add_argument("--json", action="store_true")
    options, flags = parser.parse_known_args(argv[1:])
    if flags and argv[0] != "up":
        raise ConfigError(flags[0], f"is not a flag of h2ping ray {argv[0]}", exit_code=2)
    parse_arguments(flags)  # a mistake is told here once, and not by an actor on every node
    try:
        return _connected(argv[0], options, flags)
    except H2pingError as error:
        print(f"h2ping ray: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _connected(command: str, options: argparse.Namespace, flags: list[str]) -> int:
    try:
        import ray
    except ImportError:
        raise H2pingError(
            "Ray is not installed in this environment; install h2ping in the cluster's own"
        ) from None
    try:
        ray.init(
            address=options.address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False
        )
    except ConnectionError as error:
        raise H2pingError(f"no Ray cluster at {options.address}: {error}") from None
    try:
        if command == "down":
            print(f"{down()} proxies stopped")
            return 0
        if command == "status":
            return _print(status(), as_json=options.json)
        addresses = [part.strip() for part in options.nodes.split(",") if part.strip()]
        rows = up(flags, addresses, detached=not options.foreground)
        code = _print(rows, as_json=options.json)
        if options.foreground:
            signal.sigwait({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
            down()
        return code
    finally:
        ray.shutdown()


def _print(rows: list[dict[str, Any]] | None, *, as_json: bool) -> int:
    """One line for each node. Returns 1 when a node has no proxy."""
    if as_json:
        print(json.dumps(rows or [], indent=2), flush=True)
    elif not rows:
        print("no proxies are up")
    else:
        for row in rows:
            print(f"{row['address']}  {row.get('base_url', 'no proxy: ' + row.get('error', ''))}", flush=True)
    return 1 if not rows or any("error" in row for row in rows) else 0


def _brief(settings: dict[str, Any]) -> str:
    nodes = f" on {', '.join(settings['nodes'])}" if settings["nodes"] else ""
    return shlex.join(settings["flags"]) + nodes
