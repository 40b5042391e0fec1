"""`python -m h2ping.lab.census FLAGS...`: h2ping that counts its own objects when SIGUSR1 comes, for the soak.

One line on standard error, `census {...}`: live objects by the name of their type, as the collector knows them, and
segments, which it does not know. SIGUSR2 makes names fail to resolve, the next one makes them resolve again.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections import Counter
from typing import NoReturn

from h2ping._fast import IMPLEMENTATION

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
    if IMPLEMENTATION == "compiled":
        counts["Segment"] = importlib.import_module("h2ping._fast.segment").living()
    os.write(2, f"census {json.dumps(counts)}\n".encode())


_resolve = socket.getaddrinfo


def _fail(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_AGAIN, "the lab's resolver is down")


def toggle_names(*_: object) -> None:
    """The other of the two resolvers."""
    socket.getaddrinfo = _resolve if socket.getaddrinfo is _fail else _fail


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, count)
    signal.signal(signal.SIGUSR2, toggle_names)
    from h2ping.cli import main

    sys.exit(main())
