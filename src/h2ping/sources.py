"""Where values come from: command line over environment over file over GOMEMLIMIT over default.

Theory of operation
-------------------
1. A value is kept as its text and its place until the winner is known; only winners are read, and a message
   about one names the place where the user wrote it.
2. A file is YAML: a mapping of settings, or settings beside `instances:`, a list of mappings. What stands
   beside `instances` holds for all of them. An unknown or repeated key is an error with file and line.
3. YAML's own guesses are not used: `off`, `1:30` and `0x10` are read by the setting's grammar, as on the
   command line. Only a number for a duration means seconds, and yes, on, no, off are booleans for a switch.
4. An empty value in the environment or in the file is no value.

The YAML library is imported only when there is a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from h2ping.config import FLAGS, Settings, build, check_together, read
from h2ping.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Node: TypeAlias = Any
    """A node of PyYAML; its stubs leave out `id`."""

COMMAND_LINE: Final = "command line"
DEFAULT: Final = "default"
GO_MEMORY: Final = "GOMEMLIMIT"
CONFIG_VARIABLE: Final = "H2PING_CONFIG"

OF_ONE_INSTANCE: Final = ("upstream", "listen", "name")
"""What a flag or a variable cannot set for several instances at once."""

LARGEST_FILE_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody wrote it."""

    text: str
    origin: str
    setting: str = ""
    """How a message names it; empty for a flag."""
    is_number: bool = False
    """The file has it as a number."""


@dataclass(frozen=True, slots=True)
class Effective:
    """One instance and, for each of its settings, where the value came from."""

    settings: Settings
    origins: dict[str, str]


def load(
    flags: Mapping[str, str], environment: Mapping[str, str], program: str, config_file: str = ""
) -> list[Effective]:
    """Settings of every instance. `flags` are field names and texts of the command line."""
    path = config_file or environment.get(CONFIG_VARIABLE, "")
    layers = _read_file(path) if path else [{}]
    above = {**_environment(environment), **{name: Given(text, COMMAND_LINE) for name, text in flags.items()}}
    if len(layers) > 1:
        for name in OF_ONE_INSTANCE:
            if name in above:
                where = above[name].setting or f"-{name}"
                raise ConfigError("", f"{where} is for one instance and {path} has {len(layers)}")
    below = _go_memory(environment)
    found = [_instance({**below, **layer, **above}, program) for layer in layers]
    check_together([each.settings for each in found])
    return found


def _instance(given: Mapping[str, Given], program: str) -> Effective:
    values = {
        name: read(name, each.text, setting=each.setting, is_number=each.is_number)
        for name, each in given.items()
    }
    origins = {name: given[name].origin if name in given else DEFAULT for name in FLAGS}
    try:
        return Effective(build(values, program), origins)
    except ConfigError as error:
        raise _placed(error, origins) from None


def _placed(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """The error with the place of the value that it opens with, when that is not the command line."""
    for name, origin in origins.items():
        if error.reason.startswith(f"-{FLAGS[name].name} ") and origin not in (COMMAND_LINE, DEFAULT):
            return ConfigError("", f"{error.reason} (from {origin})", exit_code=error.exit_code)
    return error


# --- environment ----------------------------------------------------------------------------------


def _environment(environment: Mapping[str, str]) -> dict[str, Given]:
    return {
        name: Given(environment[flag.variable], f"environment {flag.variable}", flag.variable)
        for name, flag in FLAGS.items()
        if environment.get(flag.variable)
    }


def _go_memory(environment: Mapping[str, str]) -> dict[str, Given]:
    text = environment.get(GO_MEMORY)
    return {"max_memory": Given(text, GO_MEMORY, GO_MEMORY)} if text else {}


def misspelt_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that look like one of ours and are none, each with the one that was probably meant."""
    known = [flag.variable for flag in FLAGS.values()] + [CONFIG_VARIABLE]
    unknown = [name for name in environment if name.startswith("H2PING_") and name not in known]
    if not unknown:
        return []
    from difflib import get_close_matches

    close = [(name, get_close_matches(name, known, 1, 0.85)) for name in sorted(unknown)]
    return [(name, match[0]) for name, match in close if match]


def missing_trust(environment: Mapping[str, str]) -> list[str]:
    """Where OpenSSL is told to look for certificates and finds none, without a word."""
    found = []
    for name, is_there in (("SSL_CERT_FILE", os.path.isfile), ("SSL_CERT_DIR", os.path.isdir)):
        value = environment.get(name, "")
        paths = value.split(os.pathsep) if name == "SSL_CERT_DIR" else [value]
        if value and not any(is_there(path) for path in paths):
            found.append(f"{name}={value}: it is not there, and the certificates in it are not trusted")
    return found


# --- file -----------------------------------------------------------------------------------------


def _read_file(path: str) -> list[dict[str, Given]]:
    """One layer of values for each instance of the file."""
    import yaml

    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("", f"cannot read -config {path}: {error.strerror}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise ConfigError("", f"cannot read -config {path}: larger than 1 MiB")
    try:
        loader = yaml.SafeLoader(content)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    return _File(path).layers(root)


def _unreadable(path: str, error: Exception) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark is not None else path
    problem = getattr(error, "problem", None) or "not text in UTF-8"
    return ConfigError("", f"{place}: not YAML: {problem}", exit_code=2)


class _File:
    """Turns YAML's nodes, which know their lines, into values with places."""

    def __init__(self, path: str) -> None:
        self._path = path

    def layers(self, root: Node | None) -> list[dict[str, Given]]:
        if root is None:
            return [{}]
        entries = self._mapping(root, "the file")
        instances = entries.pop("instances", None)
        common = {name: given for key, node in entries.items() for name, given in self._setting(key, node)}
        if instances is None:
            return [common]
        nodes = instances[1].value if instances[1].id == "sequence" else None
        if not nodes:
            raise self._error(instances[1], "instances must be a list of at least one mapping")
        return [{**common, **self._instance(node, number)} for number, node in enumerate(nodes)]

    def _instance(self, node: Node, number: int) -> dict[str, Given]:
        entries = self._mapping(node, f"instances[{number}]")
        layer = {name: given for key, entry in entries.items() for name, given in self._setting(key, entry)}
        for key, (key_node, _) in entries.items():
            if FLAGS[key].shared:
                raise self._error(key_node, f'"{key}" is for the whole process; put it beside instances')
        return layer

    def _mapping(self, node: Node, what: str) -> dict[str, tuple[Node, Node]]:
        """Key -> its node and its value's node. Aliases are fine; merge keys (`<<`) are unknown keys."""
        if node.id != "mapping":
            raise self._error(node, f"{what} must be a mapping of settings")
        entries: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value).replace("-", "_") if key_node.id == "scalar" else ""
            if key not in FLAGS and not (key == "instances" and what == "the file"):
                raise self._error(key_node, f'unknown key "{_shown(key_node)}" in {what}{_hint(key)}', code=2)
            if key in entries:
                raise self._error(key_node, f'the key "{key}" stands twice in {what}', code=2)
            entries[key] = (key_node, value_node)
        return entries

    def _setting(self, name: str, entry: tuple[Node, Node]) -> list[tuple[str, Given]]:
        node = entry[1]
        place = self._place(node)
        if node.id != "scalar":
            raise self._error(node, f'the value of "{name}" must be one word or number', code=2)
        kind = str(node.tag).rpartition(":")[2]
        text = str(node.value)
        if kind == "null" or not text:
            return []
        if kind == "bool" and FLAGS[name].is_switch:
            text = "true" if text.lower() in ("true", "yes", "on") else "false"
        return [(name, Given(text, f"file {place}", f"{place}: {name}", kind in ("int", "float")))]

    def _place(self, node: Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _error(self, node: Node, reason: str, code: int = 1) -> ConfigError:
        return ConfigError("", f"{self._place(node)}: {reason}", exit_code=code)


def _shown(node: Any) -> str:
    return str(node.value)[:60] if node.id == "scalar" else node.id


def _hint(key: str) -> str:
    from difflib import get_close_matches

    match = get_close_matches(key, list(FLAGS), 1)
    return f"; did you mean {match[0]}?" if match else ""
