"""Which `*base_url` values of a Gym configuration point at an instance's upstream, and what they become.

Theory of operation
-------------------
1. Looked at: each key that ends in `base_url`, a text or a list of texts, of each server under
   `responses_api_models` of each top-level entry. Nothing else, so top-level keys such as `policy_base_url`
   stay.
2. A value counts as it *resolves*: `${policy_base_url}` and `${oc.env:JUDGE_URL}` were looked through by
   whoever hands in the mapping. What does not resolve is left for the server to report.
3. A URL is replaced when its scheme is `https` and its host (case ignored) and port are an instance's.
   Scheme, host and port change; path, query and fragment stay.
4. A list becomes a new list: the one it may be an alias of never changes.
5. A URL that cannot be parsed is an error with its place, before anything has started.

Pure: mappings in, a plan out. Whoever holds the mapping writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from h2ping.errors import ConfigError

if TYPE_CHECKING:
    from h2ping.gym.sidecar import Instance

MODELS = "responses_api_models"
SUFFIX = "base_url"


@dataclass(frozen=True)
class Change:
    """One URL that changes. `place` is `TOP.responses_api_models.SERVER.base_url[0]`."""

    place: str
    old: str
    new: str


@dataclass
class Plan:
    """What to write: `values` has a whole new value for each key that changes, by its path."""

    changes: list[Change] = field(default_factory=list)
    values: dict[tuple[str, str, str, str], str | list[str]] = field(default_factory=dict)
    unused: list[Instance] = field(default_factory=list)
    """Instances that no URL points at."""


def plan(config: Mapping[Any, Any], instances: Sequence[Instance]) -> Plan:
    """Find every URL to rewrite. Raises ConfigError for one that cannot be parsed."""
    found = Plan()
    used: set[str] = set()
    for path, value in _base_urls(config):
        place = ".".join(path)
        new_value: str | list[str]
        if isinstance(value, str):
            new_value = _rewrite(place, value, instances, found.changes, used)
        else:
            new_value = [
                _rewrite(f"{place}[{index}]", url, instances, found.changes, used)
                for index, url in enumerate(value)
            ]
        if new_value != value:
            found.values[path] = new_value
    found.unused = [instance for instance in instances if instance.name not in used]
    return found


def _base_urls(config: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, str, str, str], str | list[str]]]:
    for top, entry in _items(config):
        if not isinstance(entry, Mapping):
            continue
        servers = _value(entry, MODELS)
        if not isinstance(servers, Mapping):
            continue
        for server, settings in _items(servers):
            if not isinstance(settings, Mapping):
                continue
            for key, value in _items(settings):
                if not str(key).endswith(SUFFIX):
                    continue
                texts = _texts(value)
                if texts is not None:
                    yield (str(top), MODELS, str(server), str(key)), texts


def _items(mapping: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for key in mapping:
        yield key, _value(mapping, key)


def _value(mapping: Mapping[Any, Any], key: object) -> Any:
    """The value, or None where reading it fails: an interpolation raises whatever its resolver raises."""
    try:
        return mapping.get(key)
    except Exception:
        return None


def _texts(value: object) -> str | list[str] | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) or not isinstance(value, Sequence):
        return None
    try:
        items = [value[index] for index in range(len(value))]
    except Exception:  # an item that does not resolve: the server will say so
        return None
    return items if all(isinstance(item, str) for item in items) else None


def _rewrite(
    place: str, url: str, instances: Sequence[Instance], changes: list[Change], used: set[str]
) -> str:
    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise ConfigError(place, f"not a URL: {error}") from None
    for instance in instances:
        if parts.scheme == "http" and parts.netloc.lower() == str(instance.listen):
            used.add(instance.name)  # pointed at the proxy by hand
        if parts.scheme == "https" and host == instance.host and (port or 443) == instance.port:
            used.add(instance.name)
            user, at, _ = parts.netloc.rpartition("@")
            new = parts._replace(scheme="http", netloc=f"{user}{at}{instance.listen}").geturl()
            changes.append(Change(place, shown(parts), shown(urlsplit(new))))
            return new
    return url


def shown(url: SplitResult) -> str:
    """The URL without a user's name and password, for people."""
    user, at, host = url.netloc.rpartition("@")
    return url._replace(netloc=f"***@{host}" if user or at else host).geturl()
