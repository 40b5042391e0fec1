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


@dataclass
class Result:
    """What one cell showed. All but `seconds` is the same in each run."""

    fault: str
    moment: Moment
    answer: str = ""
    """Status of the whole answer, with the cause when it is h2ping's own; `cut` for a connection that ended."""
    resent: int = 0
    executed: int = 0
    following: str = ""
    """Answer to the next request."""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """What may be in no cell."""

    @property
    def key(self) -> tuple[str, str]:
        return self.moment.value, self.fault

    @property
    def stable(self) -> tuple[str, str, str, str]:
        """What a run must reproduce."""
        return self.answer, str(self.resent), str(self.executed), self.following
