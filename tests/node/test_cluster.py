"""`h2ping ray`: a proxy on every node of a Ray cluster; here a cluster of three nodes on one machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from h2ping import cluster
from tests.support.sanitizers import SANITIZED

HANG = 500.0

pytestmark = [
    pytest.mark.skipif(
        (importlib.util.find_spec("ray") is None and not os.environ.get("H2PING_REQUIRE_PEERS"))
        or os.environ.get("H2PING_NO_EXTENSIONS", "") not in ("", "0"),
        reason="Ray is not installed, or was tested with the compiled engine",
    ),
    pytest.mark.skipif(
        SANITIZED, reason="Ray's own processes take minutes to start on a sanitizer's runtime"
    ),
    pytest.mark.timeout(600),  # the scenario is one test's set-up
]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the scenario saw; it takes half a minute, so it runs once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.ray_scenario"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(lines[0].removeprefix("SEEN "))
    return found


def test_every_node_gets_one_proxy(seen: dict[str, Any]) -> None:
    rows = seen["up"]
    assert len(rows) == len({row["node"] for row in rows}) == len({row["pid"] for row in rows}) == 3
    assert all(row["base_url"].startswith("http://127.0.0.1:") for row in rows)


def test_a_second_up_changes_nothing(seen: dict[str, Any]) -> None:
    assert seen["again"]


def test_other_flags_are_refused_while_proxies_are_up(seen: dict[str, Any]) -> None:
    code, text = seen["other flags"]
    assert code == 1
    assert "run `h2ping ray down` first" in text


def test_status_lists_every_node(seen: dict[str, Any]) -> None:
    code, text = seen["status"]
    assert code == 0
    assert text.count("http://127.0.0.1:") == 3


def test_a_proxy_that_dies_is_restarted_on_its_node_and_the_others_stay(seen: dict[str, Any]) -> None:
    assert seen["restarted"]
    assert seen["others kept"]


def test_a_node_that_joins_gets_a_proxy(seen: dict[str, Any]) -> None:
    assert seen["joined"]


def test_down_leaves_nothing(seen: dict[str, Any]) -> None:
    assert seen["down"] == [0, "4 proxies stopped\n"]
    assert seen["left"] == []
    assert seen["names left"] == []
    assert seen["status after"] == [1, "no proxies are up\n"]


def test_a_list_of_addresses_is_taken_instead_of_all(seen: dict[str, Any]) -> None:
    assert seen["chosen"]
    assert seen["nowhere"][1] == []


def test_proxies_that_are_not_detached_end_with_the_job(seen: dict[str, Any]) -> None:
    assert seen["end with the job"]


@pytest.mark.pure
def test_wanted_nodes_are_alive_and_listed() -> None:
    nodes = [
        {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "one"},
        {"NodeID": "b", "Alive": True, "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "two"},
        {"NodeID": "c", "Alive": False, "NodeManagerAddress": "10.0.0.3", "NodeManagerHostname": "three"},
    ]
    assert cluster.wanted_nodes(nodes, []) == {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert cluster.wanted_nodes(nodes, ["10.0.0.1", "two"]) == {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert cluster.wanted_nodes(nodes, ["10.0.0.3"]) == {}
