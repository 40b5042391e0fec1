"""What the launcher prints. Each line has one place here; people search for them and scripts match them."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from h2ping.gym.rewrite import Plan
    from h2ping.gym.sidecar import Block

NOTHING_POINTS = "h2-ping-sidecar is running but no model base URL points at its upstream"


def say(text: str) -> None:
    """A line of the launcher's own, apart from what Gym prints."""
    print(f"h2ping: {text}", file=sys.stderr, flush=True)


def line(text: str) -> None:
    print(text, flush=True)


def way(name: str, block: Block) -> None:
    """How the block is put to work, or that there is none to put to work."""
    if not block.enabled:
        say("no sidecar block is enabled in this configuration; Gym runs as it is")
        return
    say(f"sidecar block by {name}; {len(block.instances)} instance(s)")
    for warning in block.warnings:
        line(f"WARNING: {warning}")


def listening(block: Block, host: str = "") -> None:
    for instance in block.instances:
        line(
            f"h2-ping-sidecar {host or socket.gethostname()}: {instance.name} listening on "
            f"{instance.listen} -> {instance.upstream}"
        )


def rewritten(plan: Plan) -> None:
    for change in plan.changes:
        line(f"h2-ping-sidecar: {change.place}: {change.old} -> {change.new}")
    for instance in plan.unused:
        line(f"WARNING: {NOTHING_POINTS} ({instance.name}: {instance.upstream})")


def plan(block: Block, found: Plan) -> None:
    """`h2ping gym check`: the instances and each URL that would change."""
    for instance in block.instances:
        line(f"{instance.name}: {instance.listen} -> {instance.upstream}")
    if not block.enabled:
        line("the block is not enabled; nothing would start")
        return
    if not block.rewrite_base_urls:
        line("rewrite_base_urls is false; no URL would change")
        return
    for change in found.changes:
        line(f"{change.place}: {change.old} -> {change.new}")
    for instance in found.unused:
        line(f"WARNING: no model base URL points at {instance.upstream} ({instance.name})")
    line(f"{len(found.changes)} URL(s) would be rewritten")
