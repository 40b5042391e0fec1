"""`h2ping gym -- gym env start`, on a fake Gym that has the real one's points, output and manners."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gym.conftest import Place

READY = "^fake gym polls$"
START = ("--", "gym", "env", "start")
WAYS = ["hooks", "overlay"]


@pytest.mark.parametrize("way", WAYS)
def test_servers_get_the_rewritten_url_and_proxies_outlive_them(place: Place, way: str) -> None:
    run = place.launch("--way", way, *START)
    run.wait_for(r"h2-ping-sidecar \S+: judge listening on 127\.0\.0\.1:\d+ -> https://judge\.example$")
    run.wait_for(
        rf"judge\.responses_api_models\.vllm_model\.base_url\[0\]: https://judge\.example/v1 -> "
        rf"http://127\.0\.0\.1:{place.port}/v1$"
    )
    run.wait_for(READY)
    assert f"- http://127.0.0.1:{place.port}/v1" in place.servers()
    assert "judge_url: https://judge.example/v1" in place.servers()
    assert run.end(signal.SIGINT) == 0
    assert "NeMo Gym finished!" in run.text
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]
    assert not list(place.logs.glob("*.ready"))
    (log,) = place.logs.glob(f"h2ping-judge-{socket.gethostname()}-*.log")
    assert "stopped" in log.read_text()


@pytest.mark.parametrize("way", WAYS)
def test_users_file_is_never_edited(place: Place, way: str) -> None:
    before = (place.folder / "env.yaml").read_text()
    run = place.launch("--way", way, *START)
    run.wait_for(READY)
    run.end(signal.SIGINT)
    assert (place.folder / "env.yaml").read_text() == before


@pytest.mark.parametrize("way", WAYS)
def test_sigterm_stops_gym_as_ctrl_c_does(place: Place, way: str) -> None:
    """Ray's own SIGTERM handler aborts the process (exit code 134) and leaves servers to themselves."""
    run = place.launch("--way", way, *START)
    run.wait_for(READY)
    assert run.end(signal.SIGTERM) == 0
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_terminal_stops_gym_as_ctrl_c_does(place: Place, way: str) -> None:
    run = place.launch("--way", way, *START)
    run.wait_for(READY)
    assert run.end(signal.SIGHUP) == 0
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]


@pytest.mark.parametrize("way", WAYS)
def test_one_ctrl_c_to_the_whole_group_is_one_interrupt(place: Place, way: str) -> None:
    run = place.launch("--way", way, *START)
    run.wait_for(READY)
    assert run.end(signal.SIGINT, group=True) == 0
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]
    assert run.text.count("NeMo Gym finished!") == 1


@pytest.mark.parametrize("way", WAYS)
def test_sigkill_of_the_launcher_ends_the_proxy(
    place: Place, until: Callable[[Callable[[], bool]], None], way: str
) -> None:
    """Helix kills Gym after 30 s; the next run must find the port free."""
    run = place.launch("--way", way, *START)
    run.wait_for(READY)
    run.process.kill()
    until(place.port_is_free)


@pytest.mark.parametrize("way", WAYS)
def test_a_proxy_that_dies_stops_the_run_with_the_end_of_its_log(place: Place, way: str) -> None:
    run = place.launch("--way", way, *START)
    run.wait_for(READY)
    os.kill(place.proxy_pid(), signal.SIGKILL)
    assert run.end() == 1
    assert "the proxy judge was killed by signal 9 while it was needed" in run.text
    assert "line 29" in run.text
    assert "line 5\n" not in run.text
    assert "server stopped" in place.events()


@pytest.mark.parametrize("way", WAYS)
def test_a_proxy_that_exits_with_0_counts_as_a_death(place: Place, way: str) -> None:
    run = place.launch("--way", way, *START, FAKE_SIDECAR="dies with 0")
    assert run.end() == 1
    assert "the proxy judge exited with code 0 while it was needed" in run.text


@pytest.mark.parametrize("way", WAYS)
def test_a_taken_port_is_named_and_nothing_starts(place: Place, way: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", place.port))
        holder.listen()
        run = place.launch("--way", way, *START)
        assert run.end() == 1
    assert f"(is 127.0.0.1:{place.port} already in use?)" in run.text
    assert "cannot bind" in run.text
    assert not (place.folder / "servers.yaml").exists()


def test_one_instance_that_cannot_start_stops_the_others(place: Place) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        place.replace(
            "  instances:\n",
            f'  instances:\n    - {{name: p, upstream: "https://p.example", listen: "127.0.0.1:{taken}"}}\n',
        )
        run = place.launch(*START)
        assert run.end() == 1
    assert place.port_is_free()
    assert not list(place.logs.glob("*.ready"))


def test_a_proxy_that_never_gets_ready_is_given_up(place: Place) -> None:
    place.replace("startup_timeout_seconds: 20", "startup_timeout_seconds: 0.5")
    run = place.launch(*START, FAKE_SIDECAR="never ready")
    assert run.end() == 1
    assert "not ready after 0.5s (startup_timeout_seconds): judge" in run.text


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_block_is_refused_before_ray_starts(place: Place, way: str) -> None:
    place.replace("shutdown_grace: 5s", "shutdown_grace: 5 parsecs\n  ping_intervall: 1s")
    run = place.launch("--way", way, *START)
    assert run.end() == 1
    assert "sidecar.shutdown_grace: " in run.text
    assert "sidecar.ping_intervall: unknown key; did you mean ping_interval?" in run.text
    assert "ray started" not in place.events()
    assert "Traceback" not in run.text


@pytest.mark.parametrize("way", WAYS)
def test_a_url_that_cannot_be_parsed_is_refused_with_its_place(place: Place, way: str) -> None:
    place.replace("judge_url: https://judge.example/v1", "judge_url: https://judge.example:port/v1")
    run = place.launch("--way", way, *START)
    assert run.end() == 1
    assert "judge.responses_api_models.vllm_model.base_url[0]: not a URL" in run.text
    assert place.events() == []


def test_command_line_overrides_win(place: Place) -> None:
    run = place.launch(*START, "++judge_url=https://judge.example/other?x=1")
    run.wait_for(READY)
    assert f"http://127.0.0.1:{place.port}/other?x=1" in place.servers()
    run.end(signal.SIGINT)


@pytest.mark.parametrize("way", WAYS)
def test_block_of_a_config_file_is_read(place: Place, way: str) -> None:
    block = place.folder / "env.yaml"
    block.rename(place.folder / "other.yaml")
    run = place.launch("--way", way, *START, "--config", "other.yaml")
    run.wait_for(READY)
    assert f"http://127.0.0.1:{place.port}/v1" in place.servers()
    run.end(signal.SIGINT)


def test_env_yaml_of_an_extra_root_comes_first(place: Place) -> None:
    (place.folder / "root").mkdir()
    (place.folder / "env.yaml").rename(place.folder / "root" / "env.yaml")
    place.write("env.yaml", "sidecar: {enabled: false}\n")
    run = place.launch(*START, NEMO_GYM_EXTRA_ROOTS=str(place.folder / "root"))
    run.wait_for(READY)
    assert f"http://127.0.0.1:{place.port}/v1" in place.servers()
    run.end(signal.SIGINT)


def test_aliases_become_literals_and_what_they_point_at_stays(place: Place) -> None:
    place.replace(
        "judge_url: https://judge.example/v1\n",
        "judge_url: https://judge.example/v1\n"
        "urls: [https://judge.example/v1, https://other.example/v1]\n"
        "shared: {entrypoint: app.py, openai_base_url: '${oc.env:JUDGE}'}\n"
        "second: {responses_api_models: {openai_model: {entrypoint: app.py, base_url: '${urls}'}}}\n"
        "third: {responses_api_models: {openai_model: '${shared}'}}\n",
    )
    run = place.launch(*START, JUDGE="https://JUDGE.example:443/v2")
    run.wait_for("All 3 / 3 servers ready!")
    run.wait_for(READY)
    servers = place.servers()
    assert "urls:\n- https://judge.example/v1\n- https://other.example/v1\n" in servers
    assert (
        f"base_url:\n      - http://127.0.0.1:{place.port}/v1\n      - https://other.example/v1\n" in servers
    )
    assert "shared:\n  entrypoint: app.py\n  openai_base_url: ${oc.env:JUDGE}\n" in servers
    assert f"openai_base_url: http://127.0.0.1:{place.port}/v2" in servers
    run.end(signal.SIGINT)


def test_interpolations_inside_the_block_are_resolved(place: Place) -> None:
    place.replace("sidecar:\n", "judge_host: https://judge.example\nsidecar:\n")
    place.replace('"https://Judge.Example/ignored"', "'${judge_host}'")
    place.replace("shutdown_grace: 5s", "shutdown_grace: ${oc.env:GRACE}")
    run = place.launch(*START, GRACE="4")
    run.wait_for(READY)
    run.end(signal.SIGINT)
    assert place.events()[-1] == "proxy stopped"


def test_moved_points_make_it_take_the_second_way(place: Place) -> None:
    run = place.launch(*START, FAKE_GYM="moved points")
    run.wait_for(r"the hooks do not fit this Gym \(RunHelper has no poll\); taking the overlay way")
    run.wait_for(r"sidecar block by overrides on Gym's command line")
    run.wait_for(READY)
    assert f"http://127.0.0.1:{place.port}/v1" in place.servers()
    assert run.end(signal.SIGINT) == 0
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]


def test_a_gym_that_is_no_python_script_takes_the_second_way(place: Place) -> None:
    place.gym.rename(place.bin / "real-gym")
    place.gym.write_text(f'#!/bin/sh\nexec {place.bin}/real-gym "$@"\n')
    place.gym.chmod(0o755)
    run = place.launch(*START)
    run.wait_for(r"sidecar block by overrides on Gym's command line")
    run.wait_for(READY)
    assert run.end(signal.SIGINT) == 0


def test_a_gym_with_its_own_block_is_left_to_it(place: Place) -> None:
    run = place.launch(*START, FAKE_GYM="own block")
    run.wait_for("this Gym reads the sidecar block itself")
    run.wait_for(READY)
    assert "https://judge.example/v1" in place.servers()
    assert run.end(signal.SIGINT) == 0
    assert not list(place.logs.glob("*"))


def test_an_interrupted_start_of_an_older_gym_leaves_no_server_behind(place: Place) -> None:
    """Gym before 0.7 does not shut down what it started when its start is interrupted."""
    run = place.launch(*START, FAKE_GYM="slow start")
    run.wait_for("0 / 1 servers ready")
    run.end(signal.SIGINT)
    assert place.events() == ["ray started", "server stopped", "proxy stopped"]


def test_a_proxy_that_dies_during_the_start_stops_the_run(place: Place) -> None:
    run = place.launch(*START, FAKE_GYM="slow start")
    run.wait_for("0 / 1 servers ready")
    os.kill(place.proxy_pid(), signal.SIGKILL)
    assert run.end() == 1
    assert "the proxy judge was killed by signal 9" in run.text
    assert "server stopped" in place.events()


def test_a_block_that_is_not_enabled_changes_nothing(place: Place) -> None:
    place.replace("enabled: true", "enabled: false")
    run = place.launch(*START)
    run.wait_for("no sidecar block is enabled")
    run.wait_for(READY)
    assert "https://judge.example/v1" in place.servers()
    assert run.end(signal.SIGINT) == 0


def test_an_instance_that_nothing_points_at_gets_a_warning(place: Place) -> None:
    place.replace("judge_url: https://judge.example/v1", "judge_url: https://elsewhere.example/v1")
    run = place.launch(*START)
    run.wait_for(
        r"^WARNING: h2-ping-sidecar is running but no model base URL points at its upstream "
        r"\(judge: https://judge\.example\)$"
    )
    run.wait_for(READY)
    assert run.end(signal.SIGINT) == 0


def test_a_listener_that_is_not_loopback_gets_a_warning(place: Place) -> None:
    place.replace(f"127.0.0.1:{place.port}", f"0.0.0.0:{place.port}")
    run = place.launch(*START)
    run.wait_for(r"^WARNING: sidecar\.instances\[0\]\.listen: 0\.0\.0\.0:\d+ is not a loopback address")
    run.wait_for(READY)
    assert run.end(signal.SIGINT) == 0


def test_a_command_that_starts_no_servers_needs_no_proxy(place: Place) -> None:
    run = place.launch("--", "gym", "--version")
    assert run.end() == 0
    assert run.text == "NeMo Gym v0.7.0"


def test_exit_code_of_the_command_is_ours(place: Place) -> None:
    place.gym.write_text("#!/bin/sh\nexit 7\n")
    assert place.launch("--", "gym", "list").end() == 7


def test_a_program_that_calls_gym_itself_is_pointed_at_the_shim(place: Place) -> None:
    run = place.launch("--", "sh", "run.sh")
    assert run.end() == 1
    assert "h2ping gym shim DIR" in run.text


def test_concurrent_runs_keep_their_files_apart(place: Place) -> None:
    first = place.launch(*START)
    first.wait_for(READY)
    port = place.port
    place.replace(f"127.0.0.1:{port}", f"127.0.0.2:{port}")
    second = place.launch(*START)
    second.wait_for(READY)
    assert len(list(place.logs.glob("*.ready"))) == 2
    assert second.end(signal.SIGINT) == 0
    assert len(list(place.logs.glob("*.ready"))) == 1
    assert first.end(signal.SIGINT) == 0
    assert len(list(place.logs.glob("*.log"))) == 2
