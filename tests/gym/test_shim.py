"""The `gym` shim, `h2ping gym check` and `h2ping gym config`."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from h2ping.gym import cli, locate, sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gym.conftest import Place

READY = "^fake gym polls$"


def write_shim(place: Place) -> Path:
    run = place.launch("shim", "shim-folder")
    assert run.end() == 0
    return place.folder / "shim-folder" / "gym"


def test_tools_that_start_gym_themselves_get_the_proxies(place: Place) -> None:
    shim = write_shim(place)
    path = f"{shim.parent}:{place.environment['PATH']}"
    run = place.start(["/bin/sh", "-c", "exec gym env start"], PATH=path)
    run.wait_for(rf"base_url\[0\]: https://judge\.example/v1 -> http://127\.0\.0\.1:{place.port}/v1$")
    run.wait_for(READY)
    assert run.end(signal.SIGINT, group=True) == 0
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]


def test_a_launcher_that_finds_the_shim_looks_behind_it(place: Place) -> None:
    shim = write_shim(place)
    run = place.launch("--", "gym", "env", "start", PATH=f"{shim.parent}:{place.environment['PATH']}")
    run.wait_for(READY)
    assert run.end(signal.SIGINT) == 0
    assert place.events().count("proxy stopped") == 1


def test_a_launcher_that_is_given_the_shim_looks_behind_it(place: Place) -> None:
    shim = write_shim(place)
    run = place.launch("--", str(shim), "--version")
    assert run.end() == 0
    assert run.text == "NeMo Gym v0.7.0"


def test_a_shim_alone_on_path_does_not_wrap_itself(place: Place) -> None:
    shim = write_shim(place)
    place.gym.unlink()
    run = place.start([str(shim), "env", "start"], PATH=f"{shim.parent}:/usr/bin:/bin")
    assert run.end() == 1
    assert "only shims of h2ping on PATH" in run.text


def test_a_shim_does_not_replace_a_real_gym(place: Place) -> None:
    run = place.launch("shim", str(place.bin))
    assert run.end() == 1
    assert "exists and is not a shim" in run.text


@pytest.mark.parametrize("way", ["hooks", "overlay"])
def test_check_shows_each_url_and_starts_nothing(place: Place, way: str) -> None:
    run = place.launch("check", "--way", way)
    assert run.end() == 0
    assert f"judge: 127.0.0.1:{place.port} -> https://judge.example" in run.text
    assert f"base_url[0]: https://judge.example/v1 -> http://127.0.0.1:{place.port}/v1" in run.text
    assert "1 URL(s) would be rewritten" in run.text
    assert place.events() == []
    assert not list(place.logs.glob("*"))


def test_check_takes_the_second_way_where_the_hooks_do_not_fit(place: Place) -> None:
    run = place.launch("check", FAKE_GYM="moved points")
    assert run.end() == 0
    assert "taking the overlay way" in run.text
    assert "1 URL(s) would be rewritten" in run.text
    assert place.events() == []


@pytest.mark.parametrize("way", ["hooks", "overlay"])
def test_check_refuses_a_bad_block(place: Place, way: str) -> None:
    place.replace("shutdown_grace: 5s", "shutdown_grace: 5 parsecs")
    run = place.launch("check", "--way", way)
    assert run.end() == 1
    assert "sidecar.shutdown_grace: not a duration" in run.text


@pytest.mark.pure
def test_config_prints_a_block_that_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "https://judge.example/v1", "judge.other.example"]) == 0
    block = sidecar.read(yaml.safe_load(capsys.readouterr().out)["sidecar"])
    assert [(each.name, each.upstream, str(each.listen)) for each in block.instances] == [
        ("judge", "https://judge.example", "127.0.0.1:1250"),
        ("judge-2", "https://judge.other.example", "127.0.0.1:1251"),
    ]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("#!{python}\nimport sys\n", []),
        ("#!{python} -sE\nimport sys\n", ["-sE"]),
        ("#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\n", []),
        ("#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\nimport sys\n", []),
        (
            "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n",
            [],
        ),
    ],
)
def test_the_interpreter_is_read_from_each_form_of_first_line(
    tmp_path: Path, head: str, options: list[str]
) -> None:
    beside = tmp_path / "python"
    beside.symlink_to(sys.executable)
    script = tmp_path / "gym"
    script.write_text(head.format(python=beside))
    assert locate.interpreter(script) == [str(beside), *options]


@pytest.mark.pure
@pytest.mark.parametrize("head", ["#!/bin/sh\nexec other\n", "\x7fELF", "", "#!\n", "#!/no/such/python\n"])
def test_what_is_no_python_script_has_no_interpreter(tmp_path: Path, head: str) -> None:
    script = tmp_path / "gym"
    script.write_text(head)
    assert locate.interpreter(script) is None


@pytest.mark.pure
def test_a_program_before_gym_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = locate.gym_command(["uv", "run", "gym", "env", "start"])
    assert (found.words, found.arguments, found.script) == (("uv", "run", "gym"), ("env", "start"), None)
