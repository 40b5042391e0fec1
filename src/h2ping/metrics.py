"""Counters and histograms, and how they are written for Prometheus (text format 0.0.4).

Theory of operation
-------------------
1. What happens is counted where it happens, by a method that adds to a number: no lock, no clock, no I/O.
2. What *is* (requests in flight, connections, memory) is not counted up and down: it is read from the state
   that `/connections` shows, at the moment somebody asks. Two sets of books would drift apart.
3. Label values are an instance's name, a cause from errors.CAUSES and a status: never text that a peer chose.

This module serves nothing and imports no sibling.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from h2ping.timers import ACCELERATOR_IDLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

DURATION_BUCKETS: Final = (
    0.01,
    0.1,
    0.5,
    1.0,
    5.0,
    15.0,
    30.0,
    60.0,
    120.0,
    240.0,
    ACCELERATOR_IDLE,
    480.0,
    600.0,
    900.0,
    1800.0,
)
"""Seconds. Judge calls take minutes; where the accelerator cuts is a bound of its own."""

ROUND_TRIP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


class Histogram:
    """How many observations were at most each bound."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def dump(self) -> list[float]:
        """The total, then the counts: for `add`."""
        return [self.total, *self._counts]

    def add(self, dump: Sequence[float]) -> None:
        """Count another process's observations too."""
        self.total += dump[0]
        for slot, count in enumerate(dump[1:]):
            self._counts[slot] += int(count)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def samples(self, name: str, labels: Mapping[str, object]) -> Iterator[str]:
        """The lines of the exposition: buckets are cumulative there."""
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            below += count
            bound_text = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield _sample(f"{name}_bucket", {**labels, "le": bound_text}, below)
        yield _sample(f"{name}_sum", labels, self.total)
        yield _sample(f"{name}_count", labels, below)


class InstanceMetrics:
    """What one instance counts."""

    __slots__ = ("connections_lost", "durations", "failures", "name", "requests", "resends", "round_trips")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: dict[int, int] = {}
        self.failures: dict[str, int] = {}
        self.resends: dict[str, int] = {}
        self.connections_lost: dict[str, int] = {}
        self.durations = Histogram(DURATION_BUCKETS)
        self.round_trips = Histogram(ROUND_TRIP_BUCKETS)

    def dump(self) -> dict[str, Any]:
        """All of it, as JSON can say it."""
        return {
            "requests": self.requests,
            "failures": self.failures,
            "resends": self.resends,
            "connections_lost": self.connections_lost,
            "durations": self.durations.dump(),
            "round_trips": self.round_trips.dump(),
        }

    def add(self, dump: Mapping[str, Any]) -> None:
        """Count what another process counted."""
        for status, count in dump["requests"].items():
            self.requests[int(status)] = self.requests.get(int(status), 0) + count
        for column in ("failures", "resends", "connections_lost"):
            mine = getattr(self, column)
            for cause, count in dump[column].items():
                mine[cause] = mine.get(cause, 0) + count
        self.durations.add(dump["durations"])
        self.round_trips.add(dump["round_trips"])

    def finished(self, status: int | None, cause: str | None, elapsed: float) -> None:
        """A request has its outcome. `status` is 499 when the client had left, None when it was told none."""
        status = status or 0
        self.requests[status] = self.requests.get(status, 0) + 1
        if cause is not None:
            self.failures[cause] = self.failures.get(cause, 0) + 1
        self.durations.observe(elapsed)

    def retried(self, cause: str) -> None:
        """A request is sent again because of `cause`."""
        self.resends[cause] = self.resends.get(cause, 0) + 1

    def connection_lost(self, cause: str) -> None:
        """A connection to the upstream that was in use ended because of `cause`."""
        self.connections_lost[cause] = self.connections_lost.get(cause, 0) + 1

    def round_trip(self, seconds: float) -> None:
        """A PING came back."""
        self.round_trips.observe(seconds)


class Metrics:
    """The whole process."""

    def __init__(self, version: str = "", engine: str = "") -> None:
        self._info = {"version": version, "engine": engine}
        self._instances: dict[str, InstanceMetrics] = {}

    def instance(self, name: str) -> InstanceMetrics:
        """The books of the instance of that name, the same ones each time."""
        return self._instances.setdefault(name, InstanceMetrics(name))

    def counts(self) -> dict[str, Any]:
        """What all instances counted, as JSON can say it."""
        return {name: books.dump() for name, books in self._instances.items()}

    def add(self, counts: Mapping[str, Mapping[str, Any]]) -> None:
        """Count what another process counted."""
        for name, dump in counts.items():
            self.instance(name).add(dump)

    def render(self, state: Mapping[str, Any] | None = None) -> str:
        """All of it. `state` is what `/connections` shows."""
        lines: list[str] = []
        _family(
            lines,
            "h2ping_info",
            "gauge",
            "What runs here; always 1.",
            [_sample("h2ping_info", self._info, 1)],
        )
        self._render_counts(lines)
        if state is not None:
            _render_memory(lines, state.get("memory", {}))
            _render_instances(lines, state.get("instances", ()))
        return "\n".join(lines) + "\n"

    def _render_counts(self, lines: list[str]) -> None:
        books = list(self._instances.values())
        _family(
            lines, "h2ping_requests_total", "counter",
            "Finished requests by the status the client was told; 499: it had left; 0: it was told none.",
            (
                _sample("h2ping_requests_total", {"instance": each.name, "status": status}, count)
                for each in books for status, count in sorted(each.requests.items())
            ),
        )  # fmt: skip
        for name, text, column in (
            (
                "h2ping_request_failures_total",
                "Requests that failed, by cause; see docs/causes.md.",
                "failures",
            ),
            ("h2ping_request_resends_total", "Requests that were sent again, by cause.", "resends"),
            (
                "h2ping_upstream_connections_lost_total",
                "Connections to the upstream that broke, with or without requests, by cause.",
                "connections_lost",
            ),
        ):
            _family(
                lines, name, "counter", text,
                (
                    _sample(name, {"instance": each.name, "cause": cause}, count)
                    for each in books for cause, count in sorted(getattr(each, column).items())
                ),
            )  # fmt: skip
        for name, text, column in (
            ("h2ping_request_duration_seconds", "From a request's head to its end.", "durations"),
            ("h2ping_ping_round_trip_seconds", "From a PING to its reply.", "round_trips"),
        ):
            samples = (
                line
                for each in books
                for line in getattr(each, column).samples(name, {"instance": each.name})
            )
            _family(lines, name, "histogram", text, samples)


_MEMORY: Final = (
    ("h2ping_memory_limit_bytes", "gauge", "limit", "Limit over bodies and unread responses; 0 is none."),
    ("h2ping_memory_used_bytes", "gauge", "used", "Memory that they hold or have reserved."),
    ("h2ping_memory_unread_bytes", "gauge", "unread", "Part of it: responses that clients do not read just now."),
    ("h2ping_memory_resident_bytes", "gauge", "resident", "Memory for bodies not given back to the system."),
    ("h2ping_memory_waiting_requests", "gauge", "waiting", "Requests that wait for memory."),
    (
        "h2ping_body_copies_given_up_total", "counter", "copies_given_up",
        "Kept bodies given up under memory pressure; their requests cannot be sent again.",
    ),
    (
        "h2ping_body_copies_compressed_total", "counter", "copies_compressed",
        "Kept bodies compressed under memory pressure; their requests can be sent again.",
    ),
    (
        "h2ping_readers_cut_off_total", "counter", "readers_cut_off",
        "Clients cut off under memory pressure because they did not read their responses.",
    ),
)  # fmt: skip

_INSTANCE: Final = (
    ("h2ping_client_connections", "gauge", "clients", "Open connections from clients."),
    ("h2ping_requests_in_flight", "gauge", "requests", "Requests that have no outcome yet."),
    ("h2ping_requests_waiting", "gauge", "waiting", "Requests that wait for an upstream connection."),
    ("h2ping_dials_total", "counter", "dialled", "Connections to the upstream that were begun."),
    (
        "h2ping_dials_failed_total",
        "counter",
        "dials_failed",
        "Connections to the upstream that failed to open.",
    ),
    (
        "h2ping_accept_pauses_total",
        "counter",
        "accept_pauses",
        "Times that clients had to wait outside for want of descriptors.",
    ),
)


def _render_memory(lines: list[str], memory: Mapping[str, Any]) -> None:
    for name, kind, key, text in _MEMORY:
        if key in memory:
            _family(lines, name, kind, text, [_sample(name, {}, memory[key])])


def _render_instances(lines: list[str], instances: Sequence[Mapping[str, Any]]) -> None:
    for name, kind, key, text in _INSTANCE:
        samples = [_sample(name, {"instance": each["name"]}, each[key]) for each in instances if key in each]
        _family(lines, name, kind, text, samples)
    connections = [(each["name"], each.get("connections", ())) for each in instances]
    name = "h2ping_upstream_connections"
    samples = [_sample(name, {"instance": label}, len(held)) for label, held in connections]
    _family(lines, name, "gauge", "Open connections to the upstream.", samples)
    name = "h2ping_upstream_streams"
    samples = [
        _sample(name, {"instance": label}, sum(one.get("streams", 0) for one in held))
        for label, held in connections
    ]
    _family(lines, name, "gauge", "Open streams on them.", samples)


def _family(lines: list[str], name: str, kind: str, text: str, samples: Iterable[str]) -> None:
    held = list(samples)
    if held:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *held]


def _sample(name: str, labels: Mapping[str, object], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
    number = str(value) if isinstance(value, int) else repr(float(value))
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
