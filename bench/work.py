"""The list of work: what is measured, how often, and which figure of it the tables show."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench import measures
from bench.goals import BELOW_ALL, NONE_FAILED, PEERS, Goal
from bench.proxies import DEFAULTS, Tuning

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
    goal: Goal | None = None
    digits: int = 0
    headline: bool = False
    """In the README too."""
    ratios: bool = True
    """Not for counts, nor for a tail, which a round has too few samples of."""


@dataclass(frozen=True)
class Work:
    """One item; its name tells the shape."""

    name: str
    subject: str
    """What docs/performance.md discusses together."""
    measure: Callable[[Rig, Running], Figures]
    shown: tuple[Shown, ...]
    rounds: int = 3
    fresh: bool = False
    """A proxy of its own for every measurement, because the memory before counts or the work spoils it."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Proxies of which it would tell nothing, or would take too long."""
    once: frozenset[str] = field(default_factory=frozenset)
    """Proxies that take so long that one round must do."""
    tuning: Tuning = DEFAULTS


_PLAIN = frozenset({"h2ping-plain"})
_GO = frozenset({"go"})
_SIZES = {"1kb_1kb": (1024, 1024, "1 KB / 1 KB"), "64kb_34kb": (65536, 34816, "64 KB / 34 KB")}
_ONE_CLIENT = Goal(shares={"go": 0.45})
_REQUEST_GOALS = {
    ("1kb_1kb", 1): _ONE_CLIENT,
    ("64kb_34kb", 1): _ONE_CLIENT,
    ("1kb_1kb", 64): Goal(shares={"go": 0.35, "nghttpx": 1.0}),
    ("64kb_34kb", 64): Goal(shares={"go": 0.45, "nghttpx": 1.0}),
}


def _count(figure: str, title: str, goal: Goal | None = None, *, headline: bool = False) -> Shown:
    return Shown(figure, title, goal, headline=headline, ratios=False)


def _all_answered(title: str, *, headline: bool = False) -> tuple[Shown, ...]:
    return (
        _count("failed", f"failed, {title}", NONE_FAILED, headline=headline),
        _count("executed_twice", f"executed twice, {title}", NONE_FAILED),
    )


def _requests(quick: bool) -> list[Work]:
    items = []
    for clients in (1, 64) if quick else (1, 32, 64, 256):
        for key, (body, reply, size) in _SIZES.items():
            title = f"{size}, one client" if clients == 1 else f"{size}, {clients} clients"
            in_focus = clients in (1, 64)
            goal = _REQUEST_GOALS.get((key, clients))
            shown = [Shown("cpu_us", f"CPU us per request, {title}", goal, headline=in_focus)]
            if clients == 1:
                tail = BELOW_ALL if body > 1024 else None
                shown += [
                    Shown("added_p50_us", f"delay added, p50 us, {title}", BELOW_ALL),
                    Shown("added_p99_us", f"delay added, p99 us, {title}", tail, ratios=False),
                ]
            else:
                shown.append(Shown("per_second", f"requests per second, {title}"))
            measure = partial(
                measures.requests, clients=clients, body=body, reply=reply,
                seconds=0.5 if quick else 0.8, straight=clients == 1,
            )  # fmt: skip
            items.append(
                Work(
                    f"h1_to_h2_x{clients}_{key}",
                    f"{size} requests",
                    measure,
                    tuple(shown),
                    rounds=1 if quick else 5 if in_focus else 3,
                    without=frozenset() if in_focus else _PLAIN,
                )
            )
    return items


def _bulk(quick: bool) -> list[Work]:
    items = []
    for size in (8,) if quick else (8, 64):
        for streams in (8,) if quick else (1, 8):
            for way in ("up", "down"):
                sizes = {"up": 0, "down": 1024} | {way: size * measures.MIB}
                each = max(1, (64 if quick else 256) // (size * streams))
                title = f"CPU s per GB, {size} MB {way}, {streams} stream{'s' * (streams > 1)}"
                goal = Goal(shares=dict.fromkeys(PEERS, 0.75)) if streams == 8 else None
                shown = Shown("cpu_s_per_gb", title, goal, 2, streams == 8 and size == 8)
                measure = partial(
                    measures.bulk, streams=streams, each=each, up=sizes["up"], down=sizes["down"]
                )
                name = f"bulk_{way}_x{streams}_{size}mb"
                rounds = 1 if quick else 3
                items.append(Work(name, "large bodies", measure, (shown,), rounds, without=_PLAIN))
    return items


def _events(quick: bool) -> list[Work]:
    streams, seconds = (50, 1.0) if quick else (200, 3.0)
    title = f"SSE {streams} x 20/s"
    shown = (
        Shown("added_p50_us", f"{title}, delay added, p50 us", BELOW_ALL),
        Shown("added_p99_us", f"{title}, delay added, p99 us", ratios=False),
        Shown("cpu_us", f"{title}, CPU us per event", Goal(most=25), 0, True),
    )
    measure = partial(measures.events, streams=streams, rate=20, seconds=seconds)
    return [Work(f"sse_x{streams}_20_per_s", "events", measure, shown, 1 if quick else 3, without=_PLAIN)]


_MEMORY_GOALS = {
    0: Goal(most=4.5), 1: Goal(most=6, note="body kept"),
    2: Goal(most=8.5, note="body kept"), 64: Goal(most=72, note="body kept"),
}  # fmt: skip
"""KB per request, with 8,000 in flight."""


def _in_flight(quick: bool) -> list[Work]:
    items = []
    for count, sizes in ((2000, (1,)),) if quick else ((2000, (0, 1, 64)), (8000, (0, 1, 2, 64))):
        for kb in sizes:
            title = f"{count:,} in flight, " + (f"{kb} KB bodies" if kb else "no body")
            goal = _MEMORY_GOALS[kb] if count == 8000 else None
            shown = (
                Shown("kb_per_request", f"KB of memory per request, {title}", goal, 1, count == 8000),
                _count("dialled", f"connections dialled, {title}"),
                _count("open", f"connections open, {title}"),
                *_all_answered(title),
            )
            measure = partial(measures.in_flight, count=count, body=kb * 1024)
            rounds = 1 if quick or count == 8000 else 3
            name = f"in_flight_{count}_{kb}kb"
            # Go dials one connection for each; its memory stands beside no body, 1 KB and 64 KB.
            without = _PLAIN | _GO if kb == 2 else _PLAIN
            items.append(Work(name, "memory", measure, shown, rounds, True, without, _GO))
    if not quick:
        title = "2,000 x 512 KB in flight"
        shown = (
            Shown("peak_mb", f"peak MB, {title} (h2ping: limit 256 MiB)", Goal(most=335, must=True), 0, True),
            Shown("kb_per_request", f"KB of memory per request, {title}"),
            _count("dialled", f"connections dialled, {title}"),
            *_all_answered(title),
        )
        measure = partial(measures.in_flight, count=2000, body=512 << 10)
        name = "in_flight_2000_512kb"
        items.append(Work(name, "memory", measure, shown, 3, True, _PLAIN, _GO, Tuning(memory="256MiB")))
    return items


def _burst(quick: bool) -> list[Work]:
    count = 2048 if quick else 8192
    title = f"{count:,} x 64 KB at once"
    shown = (
        Shown("in_seconds", f"{title}: s until the origin has all", Goal(shares={"nghttpx": 1.0}), 2, True),
        _count("dialled", f"{title}: connections dialled", Goal(most=64, must=True)),
        Shown("peak_mb", f"{title}: peak MB", Goal(most=700)),
        *_all_answered(title),
    )
    measure = partial(measures.in_flight, count=count, body=64 << 10, settle=0)
    rounds = 1 if quick else 3
    return [Work(f"burst_{count}_64kb", "the burst", measure, shown, rounds, True, _PLAIN, _GO)]


def _judge(quick: bool) -> list[Work]:
    calls, clients, scale = (400, 200, 1000.0) if quick else (1200, 600, 100.0)
    title = f"judge trace at 1:{scale:.0f}, {clients} in flight"
    shown = (
        Shown("cpu_us", f"CPU us per call, {title}"),
        Shown("peak_mb", f"peak MB, {title}"),
        *_all_answered(title, headline=True),
    )
    measure = partial(
        measures.judge, calls=calls, clients=clients, scale=scale, body=64 << 10, reply=34 << 10
    )
    tuning = Tuning(ping_seconds=60 / scale)
    rounds = 1 if quick else 3
    without = _PLAIN if quick else frozenset()
    return [Work("judge_trace", "the judge trace", measure, shown, rounds, True, without, _PLAIN, tuning)]


def _growth(quick: bool) -> list[Work]:
    """CPU beside open streams: spread over connections as they come, and all of them on one."""
    items = []
    for one in (False, True):
        few, many = 100, 2000 if quick else 8000
        for held in (few, many) if quick or one else (1, few, 1000, many):
            name = f"open_streams_{held}" + "_on_one_connection" * one
            title = f"1 KB / 1 KB, one client beside {held:,} that wait" + " on the same connection" * one
            goal = None
            if held == many:
                goal = Goal(beside=(1.3, f"open_streams_{few}" + "_on_one_connection" * one), must=True)
            shown = [Shown("cpu_us", f"CPU us per request, {title}", goal)]
            if one:
                shown.append(_count("open", f"connections open, {title}"))
            items.append(
                Work(
                    name,
                    "growth",
                    partial(measures.open_streams, held=held, requests=500 if quick else 2000),
                    tuple(shown),
                    rounds=1 if quick else 3,
                    fresh=True,
                    without=_PLAIN | set(PEERS) if quick else _PLAIN,
                    once=_GO if held > 1000 and not one else frozenset(),
                    tuning=Tuning(streams=10_000, one_connection=True) if one else DEFAULTS,
                )
            )
    return items


def _idle() -> Work:
    shown = (
        Shown("cpu_ms_per_s", "CPU ms per second, 1,000 silent requests, PING every 20 s", None, 2),
        Shown("mb", "MB with 1,000 silent requests"),
        _count("failed", "failed, 1,000 silent requests", NONE_FAILED),
    )
    measure = partial(measures.silent, held=1000, seconds=45.0)
    return Work("idle_1000", "idle", measure, shown, 1, True, _PLAIN, tuning=Tuning(ping_seconds=20))


def _rest(quick: bool) -> list[Work]:
    return [
        Work(
            "goaway_600_per_s",
            "GOAWAY",
            partial(measures.goaways, rate=600, seconds=2.1 if quick else 7.0, times=6),
            _all_answered("six GOAWAYs under 600 requests/s", headline=True),
            rounds=1 if quick else 3,
            fresh=True,
            without=_PLAIN if quick else frozenset(),
            once=_PLAIN,
        ),
        Work(
            "cold_burst_300",
            "the cold burst",
            partial(measures.in_flight, count=300, body=1024, settle=0.2, cold=True),
            (
                _count(
                    "dialled", "connections dialled, cold burst of 300", Goal(19, must=True), headline=True
                ),
                *_all_answered("cold burst of 300"),
            ),
            rounds=1 if quick else 3,
            fresh=True,
            without=_PLAIN if quick else frozenset(),
        ),
        Work(
            "start",
            "the start",
            measures.start,
            (
                Shown("start_ms", "ms until it listens", Goal(most=250)),
                Shown("start_cpu_ms", "CPU ms of the start"),
                Shown("idle_mb", "MB when idle", Goal(most=30)),
            ),
            rounds=2 if quick else 5,
            fresh=True,
        ),
    ]


def all_work(quick: bool) -> list[Work]:
    """The whole list, in the order in which it is done."""
    return [
        *_requests(quick), *_bulk(quick), *_events(quick), *_in_flight(quick), *_burst(quick),
        *_judge(quick), *_growth(quick), *_rest(quick), *([] if quick else [_idle()]),
    ]  # fmt: skip
