"""The two ends of an instance as a user writes them: the address to listen on and the upstream's URL.

Pure text: nothing here resolves a name or opens a socket. Parsers raise ValueError with the reason only, and
no reason repeats the text, because a URL may hold a password or a key.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit


class ProhibitedValue(ValueError):
    """A value that can be read and cannot work: exit code 1 where a plain ValueError means 2."""


@dataclass(frozen=True, slots=True)
class Address:
    """`host:port` to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, colon, port = text.strip().rpartition(":")
        if not colon:
            raise ValueError("missing port in address; write host:port")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            _ipv6(host)
        elif ":" in host:
            raise ValueError("too many colons; write an IPv6 address as [::1]:port")
        elif host and not HOST_NAME.fullmatch(host):
            raise ValueError("not a host name or IP address")
        return cls(host, _port(port, lowest=0))

    def with_port(self, port: int) -> Address:
        """The same host, the port that was really bound."""
        return Address(self.host, port)

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # the empty host is every interface; a name may be anything

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Upstream:
    """The one HTTPS origin that requests go to."""

    host: str
    port: int
    prefix: str
    """Path put before each request's path: empty, or `/v1` without a slash at its end."""
    authority: bytes
    """Value of `:authority` (RFC 9113 section 8.3.1); the port only when it is not 443."""
    url: str

    @classmethod
    def parse(cls, text: str) -> Upstream:
        """Read an https:// URL."""
        text = text.strip()
        if not text.lower().startswith("https://"):
            raise ProhibitedValue("must be an https:// URL: HTTP/2 is negotiated via ALPN, inside TLS")
        if any(character <= " " or character == "\x7f" for character in text):
            # urlsplit drops tabs and line ends without a word; a path with one would go to another place.
            raise ValueError("holds a blank or a control character")
        if not text[8:].partition("/")[2].isascii():
            raise ValueError("the path holds a character outside ASCII; percent-encode it")
        try:
            url = urlsplit(text)
        except ValueError as error:
            raise ValueError(f"not a URL: {error}") from None
        if "@" in url.netloc:
            raise ValueError("must not hold a user or password; send an Authorization field instead")
        if "?" in text or "#" in text:
            raise ValueError("must not hold a query or a fragment")
        host, port = _split_netloc(url.netloc)
        prefix = url.path.rstrip("/")
        segments = prefix.split("/")[1:]
        if "" in segments or "." in segments or ".." in segments:
            raise ValueError("the path must not hold empty segments, `.` or `..`")
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == 443 else f"{shown}:{port}"
        return cls(host, port, prefix, authority.encode("ascii"), f"https://{authority}{prefix}")

    def __str__(self) -> str:
        return self.url


HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def _port(text: str, lowest: int) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not lowest <= int(text) <= 65535:
        raise ValueError(f"the port must be a number from {lowest} to 65535")
    return int(text)


def _ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError("not an IPv6 address between the brackets") from None


def _split_netloc(netloc: str) -> tuple[str, int]:
    if netloc.startswith("["):
        host, bracket, rest = netloc[1:].partition("]")
        _ipv6(host)
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("not a host and port")
        port = rest[1:]
    else:
        host, _, port = netloc.partition(":")
    if not host:
        raise ValueError("the host is missing")
    if ":" not in host:
        host = _ascii_host(host)
    return host.lower(), _port(port, lowest=1) if port else 443


def _ascii_host(host: str) -> str:
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError("not a host name") from None
    if len(host) > 254 or not HOST_NAME.fullmatch(host):
        raise ValueError("not a host name or IP address")
    return host
