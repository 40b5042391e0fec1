"""The list of work: what is measured, how often, and which figure of it the tables show."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench import measures

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measures import Figures
    from bench.proxies import Running
    from bench.rig import Rig


@dataclass(frozen=True)
class Shown:
    """One line of the tables."""

    figure: str
    title: str
    goal: str = ""
    digits: int = 0
    headline: bool = False
    """In the README too."""


@dataclass(frozen=True)
class Work:
    """One item; its name tells the shape."""

    name: str
    measure: Callable[[Rig, Running], Figures]
    shown: tuple[Shown, ...]
    rounds: int = 5
    fresh: bool = False
    """A proxy of its own for every measurement, because the memory before counts or the work spoils it."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Proxies that it would take too long, or that cannot."""
    memory: str = "1GiB"
    """h2ping's limit."""


_PLAIN = frozenset({"h2ping-plain"})
_SIZES = {"1kb_1kb": (1024, 1024, "1 KB / 1 KB"), "64kb_34kb": (65536, 34816, "64 KB / 34 KB")}
_GOALS = {
    ("1kb_1kb", 1): "0.45 x Go",
    ("64kb_34kb", 1): "0.45 x Go",
    ("1kb_1kb", 64): "0.35 x Go, below nghttpx",
    ("64kb_34kb", 64): "0.45 x Go, below nghttpx",
}


def _requests(quick: bool) -> list[Work]:
    items = []
    for clients in (1, 64) if quick else (1, 32, 64, 256):
        for key, (body, reply, title) in _SIZES.items():
            many = "one client" if clients == 1 else f"{clients} clients"
            shown = [
                Shown(
                    "cpu_us",
                    f"CPU us per request, {title}, {many}",
                    _GOALS.get((key, clients), ""),
                    0,
                    clients in (1, 64),
                )
            ]
            if clients == 1:
                shown += [
                    Shown("added_p50_us", f"delay added, p50 us, {title}, {many}", "below all"),
                    Shown(
                        "added_p99_us",
                        f"delay added, p99 us, {title}, {many}",
                        "below all" if body > 1024 else "",
                    ),
                ]
            else:
                shown.append(Shown("per_second", f"requests per second, {title}, {many}"))
            measure = partial(
                measures.requests, clients=clients, body=body, reply=reply,
                seconds=0.5 if quick else 0.8, straight=clients == 1,
            )  # fmt: skip
            items.append(Work(f"h1_to_h2_x{clients}_{key}", measure, tuple(shown), rounds=2 if quick else 5))
    return items


def _bulk(quick: bool) -> list[Work]:
    items = []
    for size in (8,) if quick else (8, 64):
        for streams in (8,) if quick else (1, 8):
            for way in ("up", "down"):
                sizes = {"up": 0, "down": 1024} | {way: size * measures.MIB}
                each = max(1, (64 if quick else 256) // (size * streams))
                items.append(
                    Work(
                        f"bulk_{way}_x{streams}_{size}mb",
                        partial(
                            measures.bulk, streams=streams, each=each, up=sizes["up"], down=sizes["down"]
                        ),
                        (
                            Shown(
                                "cpu_s_per_gb",
                                f"CPU s per GB, {size} MB {way}, {streams} streams",
                                "0.75 x the best" if streams == 8 else "",
                                2,
                                streams == 8 and size == 8,
                            ),
                        ),
                        rounds=1 if quick else 2,
                        without=_PLAIN,
                    )
                )
    return items


def _events(quick: bool) -> list[Work]:
    streams, seconds = (50, 1.0) if quick else (200, 3.0)
    shown = (
        Shown("added_p50_us", f"SSE {streams} x 20/s, delay added, p50 us", "below all"),
        Shown("added_p99_us", f"SSE {streams} x 20/s, delay added, p99 us"),
        Shown("cpu_us", f"SSE {streams} x 20/s, CPU us per event", "below 25", 0, True),
    )
    measure = partial(measures.events, streams=streams, rate=20, seconds=seconds)
    return [Work(f"sse_x{streams}_20_per_s", measure, shown, rounds=1 if quick else 3)]


def _in_flight(quick: bool) -> list[Work]:
    goals = {0: "4.5", 1: "6, body kept", 64: "72, body kept"}
    items = []
    for count in (2000,) if quick else (2000, 8000):
        for kb in (1,) if quick else (0, 1, 64):
            body = f"{kb} KB bodies" if kb else "no body"
            shown = [
                Shown(
                    "kb_per_request",
                    f"KB of memory per request in flight, {count:,}, {body}",
                    goals[kb],
                    1,
                    kb > 0,
                )
            ]
            shown.append(Shown("dialled", f"connections dialled, {count:,} at once, {body}"))
            shown.append(Shown("failed", f"failed, {count:,} at once, {body}", "0"))
            measure = partial(measures.in_flight, count=count, body=kb * 1024)
            items.append(
                Work(
                    f"in_flight_{count}_{kb}kb",
                    measure,
                    tuple(shown),
                    2 if count == 2000 and not quick else 1,
                    True,
                    _PLAIN,
                )
            )
    if not quick:
        shown_limit = (
            Shown("peak_mb", "peak MB, 2,000 x 512 KB in flight (h2ping: limit 256 MiB)", "335", 0, True),
            Shown("failed", "failed, 2,000 x 512 KB in flight", "0"),
        )
        measure = partial(measures.in_flight, count=2000, body=512 << 10)
        items.append(Work("in_flight_2000_512kb", measure, shown_limit, 1, True, _PLAIN, "256MiB"))
    return items


def _burst(quick: bool) -> list[Work]:
    count = 2048 if quick else 8192
    title = f"{count:,} x 64 KB at once"
    shown = (
        Shown("in_seconds", f"{title}: s until the origin has all", "below nghttpx", 2, True),
        Shown("dialled", f"{title}: connections dialled", "64"),
        Shown("peak_mb", f"{title}: peak MB", "700"),
        Shown("failed", f"{title}: failed", "0"),
    )
    measure = partial(measures.in_flight, count=count, body=64 << 10, settle=0)
    return [Work(f"burst_{count}_64kb", measure, shown, 1 if quick else 2, True, _PLAIN)]


def _growth(quick: bool) -> list[Work]:
    return [
        Work(
            f"open_streams_{held}",
            partial(measures.open_streams, held=held, requests=500 if quick else 2000),
            (
                Shown(
                    "cpu_us", f"CPU us per request, 1 KB / 1 KB, one client beside {held:,} that wait", "flat"
                ),
            ),
            1 if quick else 2,
            True,
            _PLAIN,
        )
        for held in ((100, 2000) if quick else (1, 100, 1000, 8000))
    ]


def _rest(quick: bool) -> list[Work]:
    seconds = 4.0 if quick else 60.0
    return [
        Work(
            "idle_1000",
            partial(measures.silent, held=1000, seconds=seconds),
            (Shown("cpu_ms_per_s", f"CPU ms per second over {seconds:.0f} s, 1,000 silent requests", "", 2),),
            1,
            True,
            _PLAIN,
        ),
        Work(
            "goaway_600_per_s",
            partial(measures.goaways, rate=600, seconds=2.1 if quick else 7.0, times=6),
            (Shown("failed", "failed requests, six GOAWAYs under 600 requests/s", "0", 0, True),),
            1 if quick else 2,
            True,
        ),
        Work(
            "cold_burst_300",
            partial(measures.in_flight, count=300, body=1024, settle=0.2, cold=True),
            (Shown("dialled", "connections dialled, cold burst of 300", "19", 0, True),),
            1,
            True,
        ),
        Work(
            "start",
            measures.start,
            (
                Shown("start_ms", "ms until it listens", "250"),
                Shown("start_cpu_ms", "CPU ms of the start"),
                Shown("idle_mb", "MB when idle", "30", 0),
            ),
            2 if quick else 5,
            True,
        ),
    ]


def all_work(quick: bool) -> list[Work]:
    """The whole list, in the order in which it is done."""
    return [
        *_requests(quick), *_bulk(quick), *_events(quick), *_in_flight(quick),
        *_burst(quick), *_growth(quick), *_rest(quick),
    ]  # fmt: skip
