"""A cluster of three nodes on this machine, put through its paces. Prints one JSON object: what was seen, by
step.

A process of its own: Ray's warnings are not ours, and its signal handlers are not the test runner's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.cluster_utils import Cluster

from h2ping import cluster as proxies

if TYPE_CHECKING:
    from collections.abc import Callable

FLAGS = ["--upstream", "https://localhost:1", "--listen", "127.0.0.1:0", "--shutdown-grace", "1s"]
HANG = 120.0


def until(condition: Callable[[], Any]) -> Any:
    clock = threading.Event()
    for _ in range(int(HANG / 0.2)):
        if found := condition():
            return found
        clock.wait(0.2)
    raise AssertionError("it did not happen")


def pids() -> dict[str, int]:
    return {row["node"]: row["pid"] for row in proxies.status() or [] if "pid" in row}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def command(address: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "h2ping", "ray", words[0], "--address", address, *words[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def main() -> None:
    seen: dict[str, Any] = {}
    nodes: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, namespace="a-users-own", log_to_driver=False)

    seen["up"] = proxies.up(FLAGS)
    first = pids()
    seen["again"] = {row["node"]: row.get("pid") for row in proxies.up(FLAGS)} == first
    seen["other flags"] = command(nodes.address, "up", "--upstream", "https://other.example")
    seen["status"] = command(nodes.address, "status")

    node, victim = next(iter(first.items()))
    os.kill(victim, signal.SIGKILL)
    seen["restarted"] = until(lambda: pids().get(node) not in (None, victim)) and len(pids()) == 3
    seen["others kept"] = {other: pid for other, pid in pids().items() if other != node} == {
        other: pid for other, pid in first.items() if other != node
    }

    nodes.add_node(num_cpus=1)
    seen["joined"] = until(lambda: len(pids()) == 4)

    last = list(pids().values())
    seen["down"] = command(nodes.address, "down")
    seen["left"] = [pid for pid in last if alive(pid)]
    seen["names left"] = proxies._names()
    seen["status after"] = command(nodes.address, "status")

    chosen = [row["address"] for row in proxies.up([*FLAGS], [proxies._nodes()[0]["NodeManagerAddress"]])]
    seen["chosen"] = len(set(chosen)) == 1
    seen["nowhere"] = (proxies.down(), proxies.up([*FLAGS], ["203.0.113.1"]), proxies.down())

    untyped: Any = ray
    owned = proxies.up(FLAGS, detached=False)
    untyped.shutdown()
    seen["end with the job"] = until(lambda: not any(alive(row["pid"]) for row in owned))
    nodes.shutdown()
    print("SEEN " + json.dumps(seen))


if __name__ == "__main__":
    main()
