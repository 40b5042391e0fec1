"""A resolver for a proxy's process: names that the machine does not know, names that nobody answers for, a book."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SLOW = "slow.test"
"""A lookup that does not end."""
ABSOLUTE = "localhost."
"""With the dot that makes a name absolute, it is not in every /etc/hosts."""

_AT_START = f"""
import socket, time

system_resolve = socket.getaddrinfo

def getaddrinfo(host, *arguments, **settings):
    with open(BOOK, "a") as book:
        print(host, file=book)
    if host == {SLOW!r}:
        print("looking up", flush=True)
        time.sleep(1000)
    return system_resolve("127.0.0.1" if host == {ABSOLUTE!r} else host, *arguments, **settings)

socket.getaddrinfo = getaddrinfo
"""


def resolver(folder: Path) -> dict[str, str]:
    """The environment of a process that asks it."""
    (folder / "sitecustomize.py").write_text(f"BOOK = {str(folder / 'names')!r}\n{_AT_START}")
    return {"PYTHONPATH": str(folder)}


def looked_up(folder: Path) -> set[str]:
    """All names that it was asked for."""
    book = folder / "names"
    return set(book.read_text().split()) if book.exists() else set()
