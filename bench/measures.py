"""What is measured of one proxy, once: each function does one piece of work and returns its figures by name.

CPU is the proxy's own, as the operating system accounts it; so it does not matter to it how busy the machine is
otherwise, nor how long the client and the origin take.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench import account
from bench.rig import finish
from h2ping.lab.trace import JUDGE

if TYPE_CHECKING:
    from bench.proxies import Running
    from bench.rig import Rig

Figures = dict[str, float]

MIB = 1 << 20
_IN_LIMIT_MS = 60_000


def requests(
    rig: Rig, proxy: Running, *, clients: int, body: int, reply: int, seconds: float, straight: bool = False
) -> Figures:
    """Clients that send one request after the other; also how much of a core each of the three programs took."""
    rig.control("mode", reply=reply)
    flags = {"clients": clients, "seconds": seconds, "body": body}
    without = rig.load(rig.straight_port, **flags) if straight else None
    rig.load(proxy.port, clients=clients, requests=clients, body=body)
    origin_before, before = account.cpu_seconds(rig.origin_pid), account.cpu_seconds(proxy.pid)
    seen = rig.load(proxy.port, **flags)
    spent = account.cpu_seconds(proxy.pid) - before
    origin_spent = account.cpu_seconds(rig.origin_pid) - origin_before
    count = max(seen["count"], 1)
    figures = {
        "cpu_us": spent / count * 1e6,
        "client_cpu_us": seen["cpu_seconds"] / count * 1e6,
        "origin_cpu_us": origin_spent / count * 1e6,
        "proxy_cores": spent / seen["seconds"],
        "client_cores": seen["cpu_seconds"] / seen["seconds"],
        "origin_cores": origin_spent / seen["seconds"],
        "per_second": seen["count"] / seen["seconds"],
        "p50_us": seen["p50_us"],
        "p99_us": seen["p99_us"],
        "failed": seen["failed"],
    }
    if without is not None:
        figures["added_p50_us"] = seen["p50_us"] - without["p50_us"]
        figures["added_p99_us"] = seen["p99_us"] - without["p99_us"]
    return figures


def bulk(rig: Rig, proxy: Running, *, streams: int, up: int, down: int, each: int) -> Figures:
    """Large bodies, `each` of them on every stream."""
    rig.control("mode", reply=min(down, 8 * MIB))
    rig.load(proxy.port, clients=streams, requests=streams, body=min(up, 8 * MIB))
    rig.control("mode", reply=down)
    before = account.cpu_seconds(proxy.pid)
    count = streams * each
    seen = rig.load(proxy.port, clients=streams, requests=count, body=up)
    spent = account.cpu_seconds(proxy.pid) - before
    gigabytes = count * max(up, down) / 1e9
    return {
        "cpu_s_per_gb": spent / gigabytes,
        "gb_per_second": gigabytes / seen["seconds"],
        "failed": seen["failed"],
    }


def events(rig: Rig, proxy: Running, *, streams: int, rate: int, seconds: float) -> Figures:
    """Responses of 1 KB events, each stamped when it was sent."""
    count = int(rate * seconds)
    rig.control("mode", events=count, every_us=1_000_000 // rate)
    flags = {"clients": streams, "requests": streams, "events": True}
    without = rig.load(rig.straight_port, **flags)
    before = account.cpu_seconds(proxy.pid)
    seen = rig.load(proxy.port, **flags)
    spent = account.cpu_seconds(proxy.pid) - before
    return {
        "cpu_us": spent / max(seen["count"], 1) * 1e6,
        "added_p50_us": seen["p50_us"] - without["p50_us"],
        "added_p99_us": seen["p99_us"] - without["p99_us"],
        "failed": seen["failed"] + streams * count - seen["count"],
    }


def in_flight(
    rig: Rig, proxy: Running, *, count: int, body: int, settle: float = 1.0, cold: bool = False
) -> Figures:
    """So many requests that wait for their answer at once, and what they cost in memory; then all are answered."""
    dialled = rig.control("counts")["dialled"]
    rig.control("mode", reply=1024)
    if not cold:
        rig.load(proxy.port, clients=1, requests=2, body=body)
    idle = account.memory_bytes(proxy.pid)
    rig.control("mode", reply=1024, hold=1)
    begun = time.time()
    clients = rig.start_load(proxy.port, clients=count, requests=count, body=body)
    reached = rig.control("wait", executed=count, ms=_IN_LIMIT_MS)
    time.sleep(settle)
    full = account.memory_bytes(proxy.pid)
    counts = rig.control("counts")
    rig.control("release")
    seen = finish(clients, 45)
    return {
        "kb_per_request": (full["rss"] - idle["rss"]) / count / 1000,
        "pss_kb_per_request": (full["pss"] - idle["pss"]) / count / 1000,
        "in_seconds": reached["at_us"] / 1e6 - begun,
        "peak_mb": account.peak_bytes(proxy.pid) / 1e6,
        "idle_mb": idle["rss"] / 1e6,
        "dialled": counts["dialled"] - dialled,
        "open": counts["open"],
        "not_in": max(count - reached["executed"], 0),
        "failed": seen["failed"],
        "executed_twice": max(rig.control("counts")["executed"] - count, 0),
    }


def open_streams(rig: Rig, proxy: Running, *, held: int, requests: int) -> Figures:
    """CPU of a 1 KB / 1 KB request of one client while others wait.

    One client, because several share reads and TLS records the less, the more connections the others have opened.
    """
    rig.control("mode", reply=1024)
    rig.load(proxy.port, clients=1, requests=1)  # so that there is a connection which all may share
    rig.control("mode", reply=1024, hold=1)
    waiting = rig.start_load(proxy.port, clients=held, requests=held)
    reached = rig.control("wait", executed=held, ms=_IN_LIMIT_MS)
    rig.control("mode", reply=1024)
    rig.load(proxy.port, clients=1, requests=requests // 4, body=1024)
    before = account.cpu_seconds(proxy.pid)
    seen = rig.load(proxy.port, clients=1, requests=requests, body=1024)
    spent = account.cpu_seconds(proxy.pid) - before
    connections = rig.control("counts")["open"]
    rig.control("release")
    others = finish(waiting, 60)
    return {
        "cpu_us": spent / max(seen["count"], 1) * 1e6,
        "open": connections,
        "not_in": held - reached["executed"],
        "failed": seen["failed"] + others["failed"],
    }


def judge(
    rig: Rig, proxy: Running, *, calls: int, clients: int, scale: float, body: int, reply: int
) -> Figures:
    """Calls that wait as a judge's do, `scale` times shorter, so many at once."""
    dialled = rig.control("counts")["dialled"]
    delays = "+".join(f"{delay / scale * 1000:.0f}" for delay in JUDGE.samples(calls))
    rig.control("mode", reply=reply, delays_ms=delays)
    before = account.cpu_seconds(proxy.pid)
    seen = rig.load(proxy.port, clients=clients, requests=calls, body=body)
    spent = account.cpu_seconds(proxy.pid) - before
    counts = rig.control("counts")
    return {
        "cpu_us": spent / calls * 1e6,
        "peak_mb": account.peak_bytes(proxy.pid) / 1e6,
        "dialled": counts["dialled"] - dialled,
        "p50_us": seen["p50_us"],
        "failed": calls - seen["count"],
        "executed_twice": max(counts["executed"] - calls, 0),
    }


def silent(rig: Rig, proxy: Running, *, held: int, seconds: float) -> Figures:
    """CPU and memory while requests wait and nothing moves but PING."""
    rig.control("mode", reply=1024, hold=1)
    waiting = rig.start_load(proxy.port, clients=held, requests=held, body=1024)
    rig.control("wait", executed=held, ms=_IN_LIMIT_MS)
    account.await_quiet(proxy.pid)
    time.sleep(2.5)  # what a proxy tidies up after a burst is not idling
    before = account.cpu_seconds(proxy.pid)
    time.sleep(seconds)
    spent = account.cpu_seconds(proxy.pid) - before
    memory = account.memory_bytes(proxy.pid)
    rig.control("release")
    seen = finish(waiting, 60)
    return {
        "cpu_ms_per_s": spent / seconds * 1000,
        "mb": memory["rss"] / 1e6,
        "pss_mb": memory["pss"] / 1e6,
        "failed": seen["failed"],
    }


def goaways(rig: Rig, proxy: Running, *, rate: int, seconds: float, times: int) -> Figures:
    """The origin asks every connection to go, several times, under load."""
    rig.control("mode", reply=1024, delay_us=100_000)
    clients = rig.start_load(proxy.port, clients=128, rate=rate, seconds=seconds, body=1024)
    for _ in range(times):
        time.sleep(seconds / (times + 1))
        rig.control("goaway")
    seen = finish(clients, seconds + 60)
    executed = rig.control("counts")["executed"]
    return {
        "failed": seen["failed"],
        "per_second": seen["count"] / seen["seconds"],
        "executed_twice": max(executed - seen["count"] - seen["failed"], 0),
    }


def start(rig: Rig, proxy: Running) -> Figures:
    """Until it listens, and what it takes when it has nothing to do."""
    account.await_quiet(proxy.pid)
    memory = account.memory_bytes(proxy.pid)
    return {
        "start_ms": proxy.start_seconds * 1000,
        "start_cpu_ms": account.cpu_seconds(proxy.pid) * 1000,
        "idle_mb": memory["rss"] / 1e6,
        "idle_pss_mb": memory["pss"] / 1e6,
    }
