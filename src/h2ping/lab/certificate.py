"""The lab's certificate: an authority made on the spot, and one certificate of it for loopback."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

import trustme

NAMES = ("localhost", "127.0.0.1", "::1")


class Certificate:
    """An authority whose public part lies in `ca_file`, and the server's certificate in memory.

    The directory of `ca_file` is removed by `close()` unless the caller named it.
    """

    def __init__(
        self, names: tuple[str, ...] = NAMES, *, directory: str | None = None, expired: bool = False
    ) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="h2ping-lab-") if directory is None else None
        folder = Path(self._own.name if self._own is not None else str(directory))
        authority = trustme.CA()
        self.ca_file = str(folder / "lab-ca.pem")
        authority.cert_pem.write_to_path(self.ca_file)
        now = datetime.datetime.now(datetime.timezone.utc)
        born = now - datetime.timedelta(days=2)
        ends = now + datetime.timedelta(days=-1 if expired else 30)
        self._leaf = authority.issue_cert(*names, not_before=born, not_after=ends)

    def write_chain(self) -> str:
        """The file, beside `ca_file`, of which another process makes a `Leaf`."""
        path = str(Path(self.ca_file).with_name("lab-origin.pem"))
        self._leaf.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def server_context(self, alpn: tuple[str, ...]) -> ssl.SSLContext:
        """TLS for an origin that offers `alpn` in that order; an empty `alpn` answers no ALPN at all."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._leaf.configure_cert(context)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    def client_context(self, alpn: tuple[str, ...]) -> ssl.SSLContext:
        """TLS for a client that trusts this authority only."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    def close(self) -> None:
        """Remove the file, when the directory is ours."""
        if self._own is not None:
            self._own.cleanup()
            self._own = None


class Leaf(Certificate):
    """The server's certificate alone, as another process wrote it."""

    ca_file = ""

    def __init__(self, chain_file: str) -> None:
        self._own = None
        self._chain_file = chain_file

    def server_context(self, alpn: tuple[str, ...]) -> ssl.SSLContext:
        """TLS for an origin that offers `alpn`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._chain_file)
        context.set_alpn_protocols(list(alpn))
        return context
