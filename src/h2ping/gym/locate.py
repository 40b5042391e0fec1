"""Which program a command line means by `gym`, and which interpreter runs it.

A shim written by `h2ping gym shim` is never taken for Gym: it bears a mark in its first lines, and looking
for `gym` goes on behind it. So a shim can be first on PATH, wrap a command that finds the shim, or both.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from h2ping.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

SHIM_MARK = "h2ping gym shim"
_GYM_NAMES = re.compile(r"gym|ng_\w+|nemo_gym_\w+")
_SH_TRICK = re.compile(
    rb"'''exec' (?P<word>\"[^\n]*?\"(?:/'[^'\n]*'|/[^\s\"]*)?|'[^'\n]*'|\S+) \"\$0\" \"\$@\""
)


@dataclass(frozen=True)
class GymCommand:
    """`words` up to and including Gym's own program, then what it is told to do."""

    words: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def script(self) -> Path | None:
        """The program itself, when nothing such as `uv run` stands before it."""
        return Path(self.words[0]) if len(self.words) == 1 else None


def gym_command(command: Sequence[str]) -> GymCommand:
    """Split a command line at Gym's program, found on PATH behind any shim."""
    for index, word in enumerate(command):
        if is_gym_name(word):
            words = list(command[: index + 1])
            if index == 0:
                words[0] = str(find(word))
            return GymCommand(tuple(words), tuple(command[index + 1 :]))
    raise ConfigError(
        command[0],
        "is not Gym's command. For a program that calls `gym` itself, put a shim on PATH:\n"
        "    h2ping gym shim DIR; PATH=DIR:$PATH " + shlex.join(command),
    )


def is_gym_name(word: str) -> bool:
    """Whether a word of a command line is Gym's program: `gym`, or one of its older names."""
    return _GYM_NAMES.fullmatch(os.path.basename(word)) is not None


def find(name: str = "gym") -> Path:
    """The real program of that name. Raises ConfigError when there is only a shim, or nothing."""
    if os.sep in name:
        path = Path(name).absolute()
        if not os.access(path, os.X_OK):
            raise ConfigError(name, "is not an executable file")
        if not is_shim(path):
            return path
        name = path.name
    shims = []
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which(name, path=folder or os.curdir)
        if found is None:
            continue
        if not is_shim(Path(found)):
            return Path(found).absolute()
        shims.append(found)
    reason = f"only shims of h2ping on PATH ({', '.join(shims)})" if shims else "not on PATH"
    raise ConfigError(name, f"{reason}; activate the environment that holds NeMo Gym")


def is_shim(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return SHIM_MARK.encode() in file.read(200)
    except OSError:
        return False


def interpreter(script: Path) -> list[str] | None:
    """Words that run a Python script, from its first line; None when it is no Python script.

    Installers write three forms: `#!/path/python`, `#!/usr/bin/env python3`, and a shell line that executes
    python (where the path is too long for the kernel, or relative to the script in a relocatable
    environment).
    """
    try:
        with script.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    words = head[2:].split(b"\n", 1)[0].decode(errors="replace").split()
    if not words:
        return None
    if os.path.basename(words[0]) == "sh":
        match = _SH_TRICK.search(head)
        return None if match is None else _python(_expand(match["word"].decode(errors="replace"), script))
    if os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
        found = shutil.which(words[0]) if words else None
        if found is None:
            return None
        words[0] = found
    return _python(words[0], words[1:])


def _expand(word: str, script: Path) -> str:
    """The path of the third form: quoted, and perhaps relative to the script."""
    word = re.sub(
        r'"\$\(dirname -- "\$\(realpath -- "\$0"\)"\)"', lambda _: str(script.resolve().parent), word
    )
    return word.replace('"', "").replace("'", "")


def _python(path: str, options: Sequence[str] = ()) -> list[str] | None:
    if not os.path.basename(path).startswith(("python", "pypy")) or not os.access(path, os.X_OK):
        return None
    return [path, *options]
