"""What the lab's origin does, knob by knob: `Script` for all requests, `Steer` for one of them.

Every time here is in seconds of the path; the origin's `Scale` divides it. A `Script` may be changed while
the origin runs: the next connection or request obeys it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Fields: TypeAlias = list[tuple[bytes, bytes]]

PREFIX = b"x-lab-"


@dataclass
class Script:
    """The origin's behaviour. Counts of "every n-th" are over all connections; 0 means never."""

    # --- connections ---
    alpn: tuple[str, ...] = ("h2",)
    """Offered in this order; with "http/1.1" it has an HTTP/1.1 face too. Empty: it answers no ALPN."""
    settings: dict[int, int] = field(default_factory=dict)
    """Further SETTINGS of the first frame, after MAX_CONCURRENT_STREAMS and INITIAL_WINDOW_SIZE."""
    max_streams: int = 128
    """Announced, and enforced with REFUSED_STREAM as a balancer does. 128 is what AWS's announces."""
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    give_credit: bool = True
    """False: no WINDOW_UPDATE is ever sent for request bodies."""
    max_age: float = 0.0
    """GOAWAY when a connection is this old."""
    max_requests: int = 0
    """GOAWAY when a connection has carried this many requests."""
    goaway_style: str = "two-step"
    """"two-step": GOAWAY(2^31-1), a round trip later the real last id (RFC 9113 section 6.8). "one-step"."""

    # --- PING ---
    ignore_pings: bool = False
    ack_delay: float = 0.0

    # --- every n-th request ---
    refuse_every: int = 0
    """REFUSED_STREAM: the request was not executed."""
    goaway_every: int = 0
    """GOAWAY whose last id is below the request: it was not executed, and the connection drains."""
    reset_every: int = 0
    """RST_STREAM(reset_code) after execution."""
    reset_code: int = 2
    half_every: int = 0
    """Half of the answer, then RST_STREAM(reset_code)."""
    refuse_at: str = "end"
    """"end": refused after the whole body came. "head": at once."""

    # --- answers ---
    delay: float | Callable[[], float] = 0.0
    """Time until the answer begins: fixed, or asked for each executed request."""
    response_bytes: int = 0
    """Size of the answer's body; 0: just what the path answers."""
    events: int = 5
    event_gap: float = 0.05
    """Server-sent events of one stream, and the time between two."""
    hold_until: int = 0
    """No answer begins before this many requests wait at the same time."""
    hold_patience: float = 120.0
    """... or until this time has passed since the first began to wait."""
    hash_bodies: bool = False
    """sha256 over each request body, also without `x-lab-hash`."""

    # --- books ---
    keep_records: bool = True
    keep_bodies: bool = False
    keep_frames: bool = False


@dataclass
class Steer:
    """One request's own wishes, from its `x-lab-*` fields. They pass any proxy unchanged."""

    id: str = ""
    """`x-lab-id`: the name under which executions are counted."""
    delay: float | None = None
    size: int | None = None
    status: int = 200
    refuse: int = 0
    """`x-lab-refuse: N`: the first N attempts of this id get REFUSED_STREAM."""
    goaway: int = 0
    """`x-lab-goaway: N`: the first N attempts of this id get GOAWAY with a last id below."""
    reset: int | None = None
    """`x-lab-reset: CODE`: RST_STREAM(CODE) when the answer is due, after `x-lab-half` bytes if it is set."""
    half: int | None = None
    """`x-lab-half: N`: the head, N bytes of the body, then `x-lab-reset` or `x-lab-cut`."""
    cut: str = ""
    """`x-lab-cut: fin|rst`: the whole connection ends when the answer is due."""
    early: str = ""
    """`x-lab-early: reset|wait`: answer at the head; then RST_STREAM(NO_ERROR), or go on reading the body."""
    hash: bool = False
    interim: int = 0
    """`x-lab-interim: N`: N interim responses (103) first."""
    trailers: bool = False
    events: int | None = None
    event_gap: float | None = None


def steer(fields: Fields) -> Steer:
    """Read the `x-lab-*` fields; a value that cannot be read raises ValueError."""
    wishes = Steer()
    for name, value in fields:
        if not name.startswith(PREFIX):
            continue
        key, text = name[len(PREFIX) :].decode().replace("-", "_"), value.decode()
        if key in ("id", "cut", "early"):
            setattr(wishes, key, text)
        elif key in ("delay", "event_gap"):
            setattr(wishes, key, float(text))
        elif key in ("size", "status", "refuse", "goaway", "reset", "half", "interim", "events"):
            setattr(wishes, key, int(text))
        elif key in ("hash", "trailers"):
            setattr(wishes, key, text not in ("", "0"))
    return wishes
