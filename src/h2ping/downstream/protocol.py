"""A client as the event loop knows it: the bytes of its connection, by either twin, and whoever decides about them."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, TypeAlias

from h2ping._fast import NO_EXTENSIONS, client_py
from h2ping.downstream import head
from h2ping.downstream.client import Client

if TYPE_CHECKING:
    from h2ping.downstream.context import ClientContext


class PlainOctets(client_py.ClientBytes, asyncio.BufferedProtocol):
    """A client's bytes by the plain twin. The loop wants the base class, the twins do not know asyncio."""

    __slots__ = ()

    read_head = staticmethod(head.read_by_llhttp)


Octets: TypeAlias = PlainOctets
"""Either twin, for type checkers."""


def _compiled_class() -> type[Octets] | None:
    try:
        module = importlib.import_module("h2ping._fast.client")
    except ImportError:
        return None

    class CompiledOctets(module.ClientBytes, asyncio.BufferedProtocol):  # type: ignore[misc, name-defined]
        """A client's bytes by the compiled module."""

        __slots__ = ()

        read_head = staticmethod(head.read_by_table)

    return CompiledOctets


CompiledOctets: type[Octets] | None = None if NO_EXTENSIONS else _compiled_class()


def make_client(context: ClientContext, octets: type[Octets] = CompiledOctets or PlainOctets) -> Octets:
    """A protocol for `loop.create_server`, over the compiled module where there is one."""
    return Client(context, octets).octets
