"""One listener and its upstream: what the exchanges of an instance share."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from h2ping import log
from h2ping.clock import Deadlines
from h2ping.errors import CLIENT_GONE
from h2ping.exchange import Exchange
from h2ping.memory import give_back_heap
from h2ping.upstream.dial import tls_context
from h2ping.upstream.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.clock import Clock
    from h2ping.config import Settings
    from h2ping.downstream.client import Client
    from h2ping.errors import DownstreamError, UpstreamError
    from h2ping.headers import Request
    from h2ping.memory import Memory
    from h2ping.metrics import InstanceMetrics

END_STREAM_PATIENCE = 5.0
"""Seconds between the last byte that a response announced and END_STREAM."""


class Instance:
    """Settings, pool, books and labels of one listener. The memory is the process's."""

    def __init__(self, settings: Settings, clock: Clock, memory: Memory, metrics: InstanceMetrics) -> None:
        self.settings = settings
        self.clock = clock
        self.memory = memory
        self.metrics = metrics
        self.authority = settings.upstream.authority
        self.pool = Pool(
            settings,
            tls_context(settings),
            clock,
            metrics.round_trip,
            metrics.connection_lost,
            give_back_heap,
        )
        self.exchanges: dict[Exchange, None] = {}
        self.first_byte = Deadlines(clock, settings.first_byte_timeout, Exchange.on_first_byte_timeout)
        self.endings = Deadlines(clock, END_STREAM_PATIENCE, Exchange.on_no_end)
        self.next_ident: Callable[[], int] = itertools.count(1).__next__
        self._empty: asyncio.Future[None] | None = None

    def make_exchange(self, request: Request, client: Client) -> Exchange:
        """The factory that the listener's clients are given."""
        return Exchange(self, request, client)

    def on_refused(self, error: DownstreamError, method: bytes, path: bytes) -> None:
        """A client was answered before its bytes became a request."""
        self.metrics.finished(error.cause.status, error.cause.token, 0.0)
        log.request_failed(
            self.settings,
            log.AccessRecord(
                ident=None, method=method, path=path, status=error.cause.status,
                cause=error.cause.token, detail=error.detail,
            ),
        )  # fmt: skip

    def on_finished(self, exchange: Exchange, error: UpstreamError | DownstreamError | None) -> None:
        """The exchange has its outcome."""
        self.exchanges.pop(exchange, None)
        elapsed = self.clock.now() - exchange.started
        cause = error.cause.token if error is not None else None
        status = 499 if error is not None and error.cause is CLIENT_GONE else exchange.status or 0
        self.metrics.finished(status, cause, elapsed)
        if error is not None:
            log.request_failed(self.settings, exchange.record(error))
        elif exchange.attempts > 1 or self.settings.access_log:
            log.request_done(self.settings, exchange.record(None))
        if not self.exchanges and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def until_empty(self) -> None:
        """Return once no exchange is left."""
        if self.exchanges:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def cut_all(self) -> int:
        """End what is left; how many exchanges that were."""
        left = list(self.exchanges)
        for exchange in left:
            exchange.cut()
        return len(left)

    async def close(self) -> None:
        """Close the connections to the upstream."""
        self.first_byte.close()
        self.endings.close()
        await self.pool.close()
