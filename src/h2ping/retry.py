"""May a failed request be sent again, and when? Pure: no clocks, no connections.

Theory of operation
-------------------
1. NEVER_SENT and REFUSED requests are sent again, whatever the method (RFC 9113 sections 6.8 and 8.7).
2. MAYBE processed requests are sent again only if the method is idempotent and the connection was lost (RFC 9110
   section 9.2.2: "a communication failure"), and once. A peer that reset the stream or answered nonsense has been
   reached: asking it twice doubles its work and cures nothing.
3. Nothing is sent again after a byte of the response went to the client, or without exactly the same body.
4. At most MAX_ATTEMPTS, spread in time: at once after a GOAWAY (another connection is the cure), after a growing
   delay otherwise (the peer sheds load).
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2ping.errors import CONNECTION_LOST, GOAWAY_REFUSED, PING_TIMEOUT, Processed

if TYPE_CHECKING:
    from h2ping.errors import UpstreamError

MAX_ATTEMPTS = 8
"""A GOAWAY seldom hits a request twice; eight in a row is an endpoint that takes nothing."""
FIRST_DELAY = 0.05
LONGEST_DELAY = 5.0

IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})
"""RFC 9110 section 9.2.2."""

LOST = frozenset({CONNECTION_LOST.token, PING_TIMEOUT.token})
"""The path failed, not the peer."""


class Verdict(enum.Enum):
    """What becomes of the request."""

    AGAIN = enum.auto()
    ANSWER = enum.auto()
    """No byte of a response went out: tell the client what happened."""
    CUT = enum.auto()
    """A response has begun: only a cut connection says that it is not whole (RFC 9112 section 8)."""
    NOT_KEPT = enum.auto()
    """It could be sent again if its body were still at hand."""


@dataclass(frozen=True)
class Attempted:
    """What was tried so far."""

    method: bytes
    attempts: int
    """Streams opened for it."""
    lost: int
    """Of these, those that ended as maybe processed, this one included."""
    response_begun: bool
    body_kept: bool
    """True also for a request without a body."""


def decide(attempted: Attempted, error: UpstreamError) -> Verdict:
    """The one table."""
    if attempted.response_begun:
        return Verdict.CUT
    if error.processed is Processed.MAYBE and not _may_repeat(attempted, error):
        return Verdict.ANSWER
    if attempted.attempts >= MAX_ATTEMPTS:
        return Verdict.ANSWER
    if not attempted.body_kept:
        # Only of a request that was not processed may the answer say that it was refused.
        return Verdict.ANSWER if error.processed is Processed.MAYBE else Verdict.NOT_KEPT
    return Verdict.AGAIN


def _may_repeat(attempted: Attempted, error: UpstreamError) -> bool:
    return attempted.method in IDEMPOTENT and attempted.lost == 1 and error.cause.token in LOST


def delay(attempts: int, error: UpstreamError) -> float:
    """Seconds until attempt number `attempts` + 1."""
    if error.cause is GOAWAY_REFUSED and attempts < 3:
        return 0.0
    longest: float = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (attempts - 1))
    return longest * random.uniform(0.5, 1.0)
