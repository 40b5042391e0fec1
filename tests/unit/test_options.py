"""Mistakes in the options of sub-commands: one line that names the option, and exit code 2."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from h2ping import cli

if TYPE_CHECKING:
    from collections.abc import Sequence

MISTAKES = [
    (["lab", "--idle-cut", "abc"], '--idle-cut: invalid value "abc": not a duration such as 300ms'),
    (["lab", "--idle-cut=-1"], '--idle-cut: invalid value "-1": must not be below 0'),
    (["lab", "--port", "70000"], '--port: invalid value "70000": must be from 0 to 65535'),
    (["lab", "--delay", "slow"], '--delay: invalid value "slow": not a duration'),
    (["lab", "--max-streams", "0"], '--max-streams: invalid value "0": must be at least 1'),
    (["lab", "--goaway-every", "x"], '--goaway-every: invalid value "x": not a whole number'),
    (["lab", "--scale", "0"], '--scale: invalid value "0": must be above 0'),
    (["lab", "--mode", "x"], "--mode: invalid choice: 'x'"),
    (["demo", "--call", "3"], "unrecognized arguments: --call 3"),
    (["lab", "nosuch"], "invalid choice: 'nosuch'"),
    (["lab", "memory", "--quoted", "7"], '--quoted: invalid value "7": must be from 0 to 1'),
    (["lab", "proof", "--cut", "nan"], '--cut: invalid value "nan": not a duration'),
    (["lab", "memory", "--body", "1x"], '--body: invalid value "1x": unknown unit x'),
    (["demo", "--calls", "0"], '--calls: invalid value "0": must be at least 1'),
    (["gym"], "nothing to run; write the command after --; see h2ping gym -h"),
    (["gym", "config"], "required: UPSTREAM; see h2ping gym config -h"),
    (["gym", "config", "--listen", "x", "https://a"], '--listen: invalid value "x": missing port'),
    (["env"], "required: UPSTREAM; see h2ping env -h"),
    (["env", "--listen", "x", "https://a"], "--listen: missing port in address"),
    (["env", "http://a"], "UPSTREAM: must be an https:// URL"),
    (["ray", "up", "-nope"], "flag provided but not defined: -nope"),
    (["node", "-upstream", "http://a", "--run", "true"], "-upstream must be an https:// URL"),
]


def ends_with(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(argv)
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return code, line


@pytest.mark.parametrize(("argv", "words"), MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_a_mistake_is_told_in_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = ends_with(argv, capsys)
    assert code == (1 if "-upstream must be" in line else 2)
    assert line.startswith("h2ping")
    assert words in line


def test_the_lab_on_a_taken_port_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, line = ends_with(["lab", "--port", str(port)], capsys)
    assert code == 1
    assert f"cannot bind 127.0.0.1:{port}: address already in use" in line
