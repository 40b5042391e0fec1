"""What a run of the lab claims, what it saw, and whether it held: for people and for machines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Claim:
    """One sentence that the run checks."""

    what: str
    wanted: str
    seen: str
    held: bool


@dataclass
class Report:
    """Claims decide; facts are for the reader."""

    name: str
    claims: list[Claim] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def claim(self, what: str, wanted: object, seen: object, held: bool) -> None:
        """Add one."""
        self.claims.append(Claim(what, str(wanted), str(seen), held))

    @property
    def held(self) -> bool:
        """All claims held, and there was at least one."""
        return bool(self.claims) and all(claim.held for claim in self.claims)

    def json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "name": self.name,
                "held": self.held,
                "claims": [asdict(claim) for claim in self.claims],
                "facts": self.facts,
            }
        )

    def text(self) -> str:
        """A short table."""
        width = max((len(claim.what) for claim in self.claims), default=0)
        wide = max((len(claim.wanted) for claim in self.claims), default=0)
        lines = []
        for claim in self.claims:
            mark = "ok  " if claim.held else "FAIL"
            lines.append(f"  {mark}  {claim.what:<{width}}  wanted {claim.wanted:<{wide}}  saw {claim.seen}")
        lines += [f"        {name}: {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, f"{self.name}: {'held' if self.held else 'DID NOT HOLD'}"])


def mebibytes(count: int) -> str:
    """For a table."""
    return f"{count / 2**20:.1f} MiB"
