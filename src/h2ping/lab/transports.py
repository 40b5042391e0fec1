"""Ending a transport whatever its state."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def abort(transport: asyncio.WriteTransport) -> None:
    """`transport.abort()`, also where asyncio's TLS transport has forgotten its protocol.

    In Python 3.11.0 to 3.11.2 (Debian 12's) it does once it is closed; may go with those versions.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()
