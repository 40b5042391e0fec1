"""Bytes in C, each module with a plain Python twin. This file picks one of the two, once.

`H2PING_NO_EXTENSIONS=1` in the environment selects the plain twins even where the extension was built.
"""

import os
from typing import TYPE_CHECKING

NO_EXTENSIONS = os.environ.get("H2PING_NO_EXTENSIONS", "") not in ("", "0")

if TYPE_CHECKING or NO_EXTENSIONS:
    IMPLEMENTATION = "plain"
else:
    try:
        from h2ping._fast import hpack as _probe  # noqa: F401
    except ImportError:
        IMPLEMENTATION = "plain"
    else:
        IMPLEMENTATION = "compiled"

if TYPE_CHECKING or IMPLEMENTATION == "plain":
    from h2ping._fast.arena_py import Arena, Body, trim_heap
else:
    from h2ping._fast.arena import Arena, Body, trim_heap

__all__ = ["IMPLEMENTATION", "NO_EXTENSIONS", "Arena", "Body", "trim_heap"]
