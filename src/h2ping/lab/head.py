"""What the head of a request must look like in HTTP/2 (RFC 9113 sections 8.2 and 8.3), as strictly as a good server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2ping.lab.script import steer

if TYPE_CHECKING:
    from h2ping.lab.script import Fields, Steer

_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings")
)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A head that is in order."""

    method: str
    path: str
    content_length: int | None
    steer: Steer

    @classmethod
    def of(cls, fields: Fields) -> RequestHead:
        """Raises ValueError whose text is the breach."""
        pseudo: dict[bytes, bytes] = {}
        regular: Fields = []
        content_length: int | None = None
        for name, value in fields:
            if name.startswith(b":"):
                if regular or name in pseudo:
                    raise ValueError(f"pseudo-field {name!r} late or twice")
                pseudo[name] = value
                continue
            if name != name.lower() or name in _CONNECTION_FIELDS:  # RFC 9113 sections 8.2 and 8.2.2
                raise ValueError(f"field {name!r} in HTTP/2")
            if name == b"te" and value != b"trailers":
                raise ValueError(f"te: {value!r} in HTTP/2")
            regular.append((name, value))
            if name == b"content-length":
                if not value.isdigit() or content_length is not None:
                    raise ValueError(f"content-length {value!r} bad or twice")
                content_length = int(value)
        if b":method" not in pseudo or b":path" not in pseudo or b":scheme" not in pseudo:
            raise ValueError(f"pseudo-fields missing: {sorted(pseudo)}")
        try:
            wishes = steer(regular)
        except ValueError as error:
            raise ValueError(f"x-lab field: {error}") from None
        return cls(pseudo[b":method"].decode(), pseudo[b":path"].decode(), content_length, wishes)
