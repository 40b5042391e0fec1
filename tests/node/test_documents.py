"""What README.md, docs/gym.md and docs/deploy.md tell the reader to type, typed."""

from __future__ import annotations

import ast
import asyncio
import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from h2ping.arguments import parse_arguments
from h2ping.gym import cli, rewrite, sidecar
from h2ping.sources import load
from tests.gym.conftest import HANG, Run, free_port

if TYPE_CHECKING:
    from h2ping.child import Running
    from h2ping.config import Settings
    from h2ping.lab.origin import LabOrigin

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOST = "https://abc123.invocation.api.nvcf.nvidia.com"

JUDGE = """
import os, urllib.error, urllib.request
base = os.environ.get("OPENAI_BASE_URL") or os.environ.get("H2PING_BASE_URL") or "http://127.0.0.1:@PORT@"
try:
    urllib.request.urlopen(base + "/models")
except urllib.error.HTTPError as error:
    print("judged through", error.headers["server"] or "", error.headers["h2ping-cause"], flush=True)
"""
SRUN = """#!/bin/sh
# A stand-in for srun: one task, here.
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


def blocks(document: str, language: str) -> list[str]:
    text = (DOCS / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def settings_of(words: list[str]) -> Settings:
    arguments = parse_arguments(words)
    return load(arguments.values, {}, "h2ping", arguments.config)[0].settings


@pytest.mark.pure
@pytest.mark.parametrize("document", ["../README.md", "gym.md", "deploy.md"])
@pytest.mark.parametrize("language", ["sh", "bash"])
def test_shell_blocks_are_shell(document: str, language: str) -> None:
    for block in blocks(document, language):
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr + block


@pytest.mark.pure
def test_python_blocks_are_python() -> None:
    for block in blocks("deploy.md", "python"):
        ast.parse(block)


# --- README.md -----------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["openai", "aiohttp", "httpx"])
def test_the_readmes_client_gets_its_answer(
    library: str, h2ping_proxy: Running, h2ping_origin: LabOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.environ.get("H2PING_REQUIRE_PEERS"):
        pytest.importorskip(library)
    monkeypatch.setenv("NVIDIA_API_KEY", "sk-none")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (block,) = [block for block in blocks("../README.md", "python") if f"import {library}\n" in block]
    names: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:1250", h2ping_proxy.base_url), names)
    if "judge" in names:
        answer = asyncio.run(names["judge"]("A or B?"))
    else:
        answer = names["answer"].json() if library == "httpx" else names["answer"].to_dict()
        names["client"].close()
    assert answer["object"] == "chat.completion"
    assert h2ping_origin.executed == 1


def test_the_readmes_curl_gets_its_answer(h2ping_proxy: Running, h2ping_origin: LabOrigin) -> None:
    (block,) = [block for block in blocks("../README.md", "sh") if "curl" in block]
    done = subprocess.run(
        ["bash", "-c", block.replace("http://127.0.0.1:1250", h2ping_proxy.base_url)],
        env={**os.environ, "NO_PROXY": "*"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"object":"list"' in done.stdout.replace(" ", "")
    assert h2ping_origin.executed == 1


@pytest.mark.pure
def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path, _, anchor in (link.partition("#") for link in re.findall(r"\]\((?!http)([^)]+)\)", text)):
        assert (ROOT / path).exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [title.lower().replace(" ", "-") for title in titles], (path, anchor)


# --- docs/gym.md ---------------------------------------------------------------------------------


@pytest.mark.pure
def test_the_printed_block_is_the_one_in_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", HOST]) == 0
    assert capsys.readouterr().out in blocks("gym.md", "yaml")


@pytest.mark.pure
def test_the_guides_judge_is_rewritten_by_the_guides_block() -> None:
    judge, block = (yaml.safe_load(text) for text in blocks("gym.md", "yaml"))
    instances = sidecar.read(block["sidecar"]).instances
    (change,) = rewrite.plan(judge, instances).changes
    assert f"{change.place}: {change.old} -> {change.new}" in (DOCS / "gym.md").read_text(encoding="utf-8")


@pytest.mark.pure
def test_every_key_of_the_block_is_in_the_guide() -> None:
    text = (DOCS / "gym.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \| ", text, re.MULTILINE)
    assert documented == list(sidecar._READERS)


# --- docs/deploy.md: manifests -------------------------------------------------------------------


def manifest() -> Any:
    (text,) = blocks("deploy.md", "yaml")
    return yaml.safe_load(text)


@pytest.mark.pure
def test_the_sidecar_is_a_native_one_that_outlives_its_pods_other_containers() -> None:
    pod = manifest()["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    assert container["restartPolicy"] == "Always"
    settings = settings_of(container["args"])
    assert settings.shutdown_grace < pod["terminationGracePeriodSeconds"]
    assert settings.listen.is_loopback
    assert pod["containers"][0]["env"][0]["value"] == f"http://{settings.listen}/v1"


@pytest.mark.pure
def test_probes_ask_the_second_listener() -> None:
    (container,) = manifest()["spec"]["template"]["spec"]["initContainers"]
    settings = settings_of(container["args"])
    assert settings.admin_listen is not None
    assert container["ports"] == [{"name": "admin", "containerPort": settings.admin_listen.port}]
    paths = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {
        "startupProbe": {"path": "/startup", "port": "admin"},
        "readinessProbe": {"path": "/readiness", "port": "admin"},
        "livenessProbe": {"path": "/liveness", "port": "admin"},
    }


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(blocks("deploy.md", "ini")[0])
    return parser["Service"]


@pytest.mark.pure
def test_the_unit_waits_for_the_grace() -> None:
    words = shlex.split(unit()["ExecStart"])
    assert settings_of(words[1:]).shutdown_grace < int(unit()["TimeoutStopSec"])


@pytest.mark.pure
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "h2ping.service"
    path.write_text(blocks("deploy.md", "ini")[0].replace("/opt/h2ping/bin/h2ping", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert "h2ping.service:" not in done.stderr, done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd")
def test_the_unit_type_is_right_it_tells_when_it_listens_and_when_it_stops(tmp_path: Path) -> None:
    """sd_notify(3)."""
    assert unit()["Type"] == "notify"
    words = [*shlex.split(unit()["ExecStart"])[1:], "-listen", f"127.0.0.1:{free_port()}"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(HANG)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        run = Run([sys.executable, "-m", "h2ping", *words], tmp_path, environment)
        assert manager.recv(100).startswith(b"READY=1")
        run.process.send_signal(signal.SIGTERM)
        assert manager.recv(100).startswith(b"STOPPING=1")
        assert run.end() == 0
        run.close()


# --- docs/deploy.md: commands --------------------------------------------------------------------


@pytest.fixture
def typed(tmp_path: Path) -> Any:
    """Run a block in a folder with `h2ping`, `srun` and `python judge.py`, on a port of its own."""
    port = free_port()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "h2ping").write_text(f'#!/bin/sh\nexec {sys.executable} -m h2ping "$@"\n')
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "srun").write_text(SRUN)
    for program in folder.iterdir():
        program.chmod(0o755)
    (tmp_path / "judge.py").write_text(JUDGE.replace("@PORT@", str(port)))

    def run(block: str) -> tuple[int, str]:
        script = block.replace(HOST, "https://localhost:1")
        environment = {
            **os.environ,
            "PATH": f"{folder}:/usr/bin:/bin",
            "H2PING_LISTEN": f"127.0.0.1:{port}",
            "XDG_RUNTIME_DIR": str(tmp_path),
            "SLURM_JOB_NUM_NODES": "1",
            "no_proxy": "*",
        }
        # `env` must know the port before there is a proxy, so it takes no variable.
        script = script.replace("h2ping env ", f"h2ping env --listen 127.0.0.1:{port} ")
        shell = Run(["bash", "-c", script], tmp_path, environment)
        code = shell.end()
        shell.close()
        return code, shell.text

    return run


def block_with(document: str, language: str, text: str) -> str:
    (found,) = [block for block in blocks(document, language) if text in block]
    return found


@pytest.mark.parametrize(
    ("language", "mark"),
    [
        ("sh", "h2ping node -upstream"),
        ("sh", "h2ping env"),
        ("sh", "-ready-file"),
        ("bash", "--kill-on-bad-exit=1"),
    ],
)
def test_the_example_runs_the_command_through_the_proxy(typed: Any, language: str, mark: str) -> None:
    code, text = typed(block_with("deploy.md", language, mark))
    assert code == 0, text
    assert "judged through h2ping connect-failed" in text or "judged through  connect-failed" in text, text
