"""Which of the path's timers a lost request looks like. Pure.

A proxy cannot know what cut a connection; it can compare what it saw with the timers that are known to be on the
path. So the words are "looks like", with the evidence beside them.

| timer                       | value                          | moved by PING? |
|-----------------------------|--------------------------------|----------------|
| AWS Global Accelerator idle | 340 s, fixed                   | yes            |
| NLB or NAT gateway idle     | 350 s                          | yes            |
| ALB idle                    | 60 s by default, 1200 or 3600 s on NVCF hosts | no (AWS documents it) |
| ALB connection age, count   | 3600 s, 10,000 requests        | no             |
| NVCF-POLL-SECONDS           | 60 s by default, 300 s at the gateway, at most 3600 s | no |
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """What is known of a request that was lost. Seconds."""

    waited: float
    """From the request's last attempt to its loss."""
    silent: float
    """Since the last byte received on the connection, PING acknowledgements included."""
    age: float
    """Of the connection."""
    requests: int
    """Sent on the connection."""
    poll_seconds: float | None = None
    """Value of the request's NVCF-POLL-SECONDS field."""


ALB_AGE = 3600.0
"""An ALB closes a connection at this age whatever passes on it, so a connection must be retired before."""
ALB_IDLE = (60.0, 1200.0, 3600.0)
ALB_REQUESTS = 10_000
ACCELERATOR_IDLE = 340.0
"""Global Accelerator drops a connection after this much silence; fixed, any byte moves it."""
NAT_IDLE = 350.0
POLL_DEFAULTS = (60.0, 300.0)
POLL_MARGIN = 2.0
"""NVCF answers or resets this long after its poll time."""


def looks_like(seen: Evidence) -> str:
    """A short phrase with its evidence, or nothing when no known timer fits."""
    if _near(seen.silent, ACCELERATOR_IDLE):
        what = f"the accelerator's idle limit of {ACCELERATOR_IDLE:g}s"
        return f"looks like {what} (silent for {seen.silent:.0f}s): use a shorter -ping-interval"
    if _near(seen.silent, NAT_IDLE):
        what = f"a NAT's or NLB's idle limit of {NAT_IDLE:g}s"
        return f"looks like {what} (silent for {seen.silent:.0f}s): use a shorter -ping-interval"
    if _near(seen.age, ALB_AGE):
        what = f"the balancer's connection age of {ALB_AGE:g}s"
        return f"looks like {what} (connection {seen.age:.0f}s old): lower -max-conn-age"
    if abs(seen.requests - ALB_REQUESTS) <= ALB_REQUESTS // 200:
        return (
            f"looks like the balancer's 10,000 requests a connection ({seen.requests} sent): "
            "lower -max-requests-per-conn"
        )
    polls = (seen.poll_seconds,) if seen.poll_seconds else POLL_DEFAULTS
    for poll in polls:
        if poll <= seen.waited <= poll + 2 * POLL_MARGIN and (seen.poll_seconds or poll != ALB_IDLE[0]):
            return f"looks like NVCF-POLL-SECONDS of {poll:g} (waited {seen.waited:.0f}s): raise it, at most 3600"
    for idle in ALB_IDLE:
        if _near(seen.waited, idle):
            return (
                f"looks like a balancer's idle timeout of {idle:g}s (waited {seen.waited:.0f}s), "
                "which PING does not move: raise it there, or NVCF-POLL-SECONDS"
            )
    return ""


def _near(value: float, timer: float) -> bool:
    """Within 1 % below (a timer does not fire early) and 3 s + 1 % above."""
    return timer * 0.99 <= value <= timer * 1.01 + 3
