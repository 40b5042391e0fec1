"""One cell of the matrix: what is broken, when, and what came of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Moment(enum.Enum):
    """When the fault strikes."""

    BEFORE_SETTINGS = "before SETTINGS"
    HALF_SENT = "request half sent"
    WAITING = "waiting"
    HALF_RECEIVED = "response half received"
    IDLE = "idle"
    DRAINING = "draining"


RACES = {(Moment.IDLE, "RST"), (Moment.IDLE, "relay cut")}
"""The request and the news of the lost connection are under way at the same time. Whichever is first, the request is
answered, and one that went into a dead connection is not executed and not sent again, for the origin may have it."""
RACE_OUTCOMES = (("200", "0", "1"), ("502 connection-lost", "0", "0"))
"""Answer, sent again, executed; no other combination."""


@dataclass
class Result:
    """What one cell showed. All but the times and `tries` is the same in each run."""

    fault: str
    moment: Moment
    answer: str = ""
    """Status of the whole answer, with the cause when it is h2ping's own; `cut` for a connection that ended."""
    resent: int = 0
    executed: int = 0
    following: str = ""
    """Answer to the next request; `refused` where the proxy drains."""
    tries: int = 0
    """How often the next request was made until it was answered 200."""
    seconds: float = 0.0
    """From the fault to the answer."""
    following_seconds: float = 0.0
    """Of the next request, over all its tries."""
    wrong: list[str] = field(default_factory=list)
    """What may be in no cell."""

    @property
    def key(self) -> tuple[str, str]:
        return self.moment.value, self.fault

    @property
    def stable(self) -> tuple[str, str, str, str]:
        """What a run must reproduce; of a race, that it ended in one of its outcomes."""
        outcome = (self.answer, str(self.resent), str(self.executed))
        if (self.moment, self.fault) in RACES and outcome in RACE_OUTCOMES:
            outcome = ("200 (or 502 connection-lost)", "0", "1 (or 0)")
        return *outcome, self.following
