"""A released NeMo Gym, when H2PING_GYM_BIN names the folder with its `gym`: real servers, the lab as the judge.

H2PING_GYM_BIN=/path/to/gym/bin python -m pytest tests/gym/test_real_gym.py
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gym import conftest
from tests.gym.conftest import Run, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from h2ping.lab.origin import LabOrigin

GYM_BIN = os.environ.get("H2PING_GYM_BIN", "")
START = ("gym", "env", "start", "--resources-server", "simpleqa", "--model-type", "inference_provider")
SERVERS = (
    "resources_servers/simpleqa",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
    "responses_api_models/inference_provider",
    "environment_servers/legacy_agent",
)
ENV_YAML = """\
policy_base_url: http://127.0.0.1:{policy}/v1
policy_api_key: sk-none
policy_model_name: policy
genrm_model:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: ["https://localhost:{origin}/v1"]
      api_key: sk-none
      model: judge
      return_token_id_information: false
      uses_reasoning_parser: false
sidecar:
  enabled: true
  shutdown_grace: 2s
  log_dir: {logs}
  instances:
    - {{name: genrm, upstream: "https://localhost:{origin}", listen: "127.0.0.1:{listen}"}}
uv_venv_dir: {venvs}
skip_venv_if_present: true
model_endpoint_readiness_timeout_seconds: 60
nemo_gym_log_dir: {logs}
head_server: {{port: {head}}}
"""

pytestmark = [
    pytest.mark.skipif(not GYM_BIN, reason="H2PING_GYM_BIN names no Gym"),
    pytest.mark.timeout(900),  # Ray and five servers start; minutes on a busy machine
]


class GymPlace:
    """A working folder as a user of that Gym has it."""

    def __init__(self, folder: Path, origin: LabOrigin, policy: int) -> None:
        self.folder = folder
        self.listen = free_port()
        for server in SERVERS:
            link = folder / "venvs" / server / ".venv"
            link.parent.mkdir(parents=True)
            link.symlink_to(Path(GYM_BIN).resolve().parent)
        (folder / "env.yaml").write_text(
            ENV_YAML.format(
                policy=policy, origin=origin.port, logs=folder / "logs", listen=self.listen,
                venvs=folder / "venvs", head=free_port(),
            )
        )  # fmt: skip
        self.environment = {
            **os.environ,
            "PATH": f"{GYM_BIN}:/usr/bin:/bin",
            "SSL_CERT_FILE": str(origin.ca_file),
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",
            "no_proxy": "127.0.0.1,localhost",
        }

        self.runs: list[Run] = []

    def launch(self, *words: str) -> Run:
        """`h2ping gym WORDS`, under a reaper: Ray and Gym's servers have sessions of their own."""
        command = [sys.executable, "-m", "h2ping", "gym", *words]
        run = Run(command, self.folder, self.environment, reaped=True)
        self.runs.append(run)
        return run

    def close(self) -> None:
        for run in self.runs:
            run.close()


@pytest.fixture
def policy() -> Iterator[int]:
    """Answers whatever is asked: Gym only probes it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def place(
    tmp_path: Path, h2ping_origin: LabOrigin, policy: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GymPlace]:
    monkeypatch.setattr(conftest, "HANG", 240.0)
    here = GymPlace(tmp_path, h2ping_origin, policy)
    yield here
    here.close()


@pytest.mark.parametrize("way", ["hooks", "overlay"])
def test_check_shows_the_judges_url(place: GymPlace, way: str) -> None:
    run = place.launch("check", "--way", way, "--", *START)
    assert run.end() == 0, run.text
    assert f"genrm_model.responses_api_models.vllm_model.base_url[0]: {'https'}://localhost:" in run.text
    assert f"-> http://127.0.0.1:{place.listen}/v1" in run.text


@pytest.mark.parametrize("way", ["hooks", "overlay"])
def test_real_servers_start_behind_the_proxy_and_stop_before_it(
    place: GymPlace, h2ping_origin: LabOrigin, until: Callable[[Callable[[], bool]], None], way: str
) -> None:
    """Gym's own start-up probe, `GET {base_url}/models`, is the first request that the origin sees."""
    run = place.launch("--way", way, "--", *START)
    run.wait_for(rf"base_url\[0\]: https://localhost:\d+/v1 -> http://127\.0\.0\.1:{place.listen}/v1")
    run.wait_for(r"All \d+ / \d+ servers ready!")
    until(lambda: h2ping_origin.arrived >= 1)
    run.wait_for("^####")
    run.process.send_signal(signal.SIGINT)
    run.wait_for("NeMo Gym finished!")
    # 1 when the interrupt met Gym between its probe and its loop.
    assert run.process.wait(conftest.HANG) in (0, 1), run.text
    assert not list((place.folder / "logs").glob("*.ready"))
    (log,) = (place.folder / "logs").glob("h2ping-genrm-*.log")
    assert log.read_text().rstrip().endswith("stopped")
