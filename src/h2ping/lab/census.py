"""`python -m h2ping.lab.census FLAGS...`: h2ping that counts its own objects when SIGUSR1 comes, for the soak.

One line on standard error, `census {...}`: live objects by the name of their type, as the collector knows them.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections import Counter

COUNTED = (
    "Task", "TimerHandle", "Exchange", "Connection", "Body", "Stream", "MuxStream", "PlainStream", "Client",
    "CompiledOctets", "PlainOctets",
)  # fmt: skip
"""Types of which a leak would show: asyncio's and uvloop's, and ours by either engine."""


def count(*_: object) -> None:
    """Write the line."""
    gc.collect()
    found = Counter(type(each).__name__ for each in gc.get_objects())
    counts = {name: found[name] for name in COUNTED if found[name]}
    counts["all"] = sum(found.values())
    os.write(2, f"census {json.dumps(counts)}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, count)
    from h2ping.cli import main

    sys.exit(main())
