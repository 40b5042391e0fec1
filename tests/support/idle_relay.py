"""A TCP relay that acts like an accelerator: it resets a connection on which no byte passed for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct


class IdleRelay:
    """Between the proxy and an origin on the same host. `idle` in seconds."""

    def __init__(self, port: int, idle: float) -> None:
        self.target_port = port
        self.idle = idle
        self.port = 0
        self.cut = 0
        """Connections that were reset for silence."""
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> IdleRelay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        loop = asyncio.get_running_loop()
        last = loop.time()

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal last
            with contextlib.suppress(OSError):
                while piece := await source.read(65536):
                    last = loop.time()
                    sink.write(piece)
                    await sink.drain()
                sink.write_eof()

        pumps = asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        try:
            while not pumps.done():
                left = last + self.idle - loop.time()
                if left <= 0:
                    self.cut += 1
                    for end in (writer, far_writer):
                        sock = end.get_extra_info("socket")
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        end.transport.abort()
                    break
                await asyncio.wait([pumps], timeout=left)
        except asyncio.CancelledError:
            pass
        finally:
            pumps.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await pumps
            writer.transport.abort()
            far_writer.transport.abort()
            self._tasks.discard(task)
