"""What a Wire did, in a form that is the same for two runs that did the same.

DATA may reach a receiver in pieces of any size, and may leave in frames of any size; window updates may be
collected differently. All else must be alike: what each receiver heard in its order, what the owner heard,
what was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.frames import DATA, GOAWAY, SETTINGS, WINDOW_UPDATE, Sent

if TYPE_CHECKING:
    from h2ping.errors import UpstreamError
    from tests.support.wires import Ears, Rig


def told(error: UpstreamError) -> tuple[Any, ...]:
    """What counts of an error; its detail is free."""
    return (error.cause.token, error.processed, error.code)


def heard(ears: Ears) -> list[Any]:
    """A receiver's calls, the pieces of its body joined."""
    calls: list[Any] = []
    for call in ears.heard:
        if call[0] == "data":
            if calls and calls[-1][0] == "data":
                calls[-1] = ("data", calls[-1][1] + call[1])
                continue
            calls.append(call)
        elif call[0] == "failed":
            calls.append(("failed", told(call[1])))
        else:
            calls.append(call)
    return calls


def owner_heard(rig: Rig) -> list[Any]:
    """The owner's calls."""
    return [entry[1:] for entry in rig.log if entry[0] == 0]


def sent_of(frames: list[Sent]) -> dict[str, Any]:
    """Frames, without what the engines may choose."""
    uploads: dict[int, bytes] = {}
    ends: list[int] = []
    order: list[Any] = []
    for one in frames:
        if one.kind == DATA:
            uploads[one.stream] = uploads.get(one.stream, b"") + one.payload
            if one.end:
                ends.append(one.stream)
        elif one.fields:
            order.append((one.kind, one.stream, one.end, one.fields, one.never_indexed))
        elif one.kind != WINDOW_UPDATE:
            order.append((one.kind, one.flags, one.stream, one.payload))
    if len(order) > 1 and order[-1][0] == GOAWAY and order[-2][:2] == (SETTINGS, 0x1):
        del order[-2]  # whether SETTINGS that end the connection are acknowledged before
    return {"uploads": uploads, "ends": sorted(ends), "order": order}
