"""The `sidecar:` block: every key, its checks and the words of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import ConfigError
from h2ping.gym import sidecar, supervise

if TYPE_CHECKING:
    from pathlib import Path

JUDGE = {"name": "judge", "upstream": "https://Judge.Example:443/v1", "listen": "127.0.0.1:1250"}


def block(**keys: Any) -> sidecar.Block:
    return sidecar.read({"enabled": True, "instances": [JUDGE], **keys})


def refused(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        block(**keys)
    return str(caught.value)


def test_defaults_are_those_of_the_contract() -> None:
    found = block()
    assert found.flags(found.instances[0], "/x.ready") == [
        "-listen", "127.0.0.1:1250", "-upstream", "https://judge.example", "-ping-interval", "60s",
        "-ping-timeout", "15s", "-shutdown-grace", "60s", "-retry-body-limit", "16777216",
        "-max-conn-age", "50m", "-ready-file", "/x.ready",
    ]  # fmt: skip
    assert (found.startup_timeout_seconds, found.rewrite_base_urls, found.build_if_missing) == (
        30,
        True,
        True,
    )
    assert found.environment == {}


def test_the_switch_comes_last_and_bare() -> None:
    found = block(insecure_skip_verify=True)
    assert found.flags(found.instances[0], "x")[-1] == "-insecure-skip-verify"


def test_name_and_listen_have_defaults() -> None:
    found = sidecar.read({"enabled": True, "instances": [{"upstream": "https://a.example"}]})
    assert (found.instances[0].name, str(found.instances[0].listen)) == ("nvcf", "127.0.0.1:1250")


def test_no_block_and_an_empty_one_are_not_enabled() -> None:
    assert not sidecar.read(None).enabled
    assert not sidecar.read({}).enabled


@pytest.mark.parametrize(
    ("written", "passed_on"),
    [("1m30s", "1m30s"), (60, "60s"), (2.5, "2.5s"), ("45", "45s"), ("250ms", "250ms"), (" 30s ", "30s")],
)
def test_a_duration_is_passed_on_as_written_and_a_number_means_seconds(
    written: object, passed_on: str
) -> None:
    assert block(ping_timeout=written).ping_timeout == passed_on


def test_zero_disables_rotation() -> None:
    assert block(max_conn_age="0s").max_conn_age == "0s"
    assert block(max_conn_age=0).max_conn_age == "0s"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"enabled": "perhaps"}, "sidecar.enabled: not true or false"),
        ({"enabled": 2}, "sidecar.enabled: must be true or false, not 2"),
        ({"instances": []}, "sidecar.instances: is required when the block is enabled"),
        ({"instances": "x"}, "sidecar.instances: must be a list"),
        ({"instances": ["x"]}, "sidecar.instances[0]: must be a mapping"),
        ({"instances": [{"name": "a"}]}, "sidecar.instances[0].upstream: is required"),
        ({"instances": [{**JUDGE, "upstream": "http://a"}]}, "instances[0].upstream: must be an https://"),
        ({"instances": [{**JUDGE, "upstream": "https://a:b"}]}, "sidecar.instances[0].upstream: "),
        ({"instances": [{**JUDGE, "upstream": "https://u:p@a"}]}, "must not hold a user or password"),
        ({"instances": [{**JUDGE, "name": "a b"}]}, "sidecar.instances[0].name: must be letters, digits"),
        ({"instances": [{**JUDGE, "name": "-a"}]}, "sidecar.instances[0].name: must be letters, digits"),
        ({"instances": [{**JUDGE, "listen": "127.0.0.1:0"}]}, "instances[0].listen: the port must be"),
        ({"instances": [{**JUDGE, "listen": ":1250"}]}, "sidecar.instances[0].listen: needs a host"),
        ({"instances": [{**JUDGE, "nodes": 1}]}, "sidecar.instances[0].nodes: unknown key"),
        ({"instances": [JUDGE, {**JUDGE, "name": "b"}]}, "127.0.0.1:1250 is used twice"),
        ({"instances": [JUDGE, {**JUDGE, "listen": "127.0.0.1:1"}]}, "instances[1].name: judge is used"),
        ({"ping_interval": 0}, "sidecar.ping_interval: must be above 0 and below 340s"),
        ({"ping_interval": "5m40s"}, "sidecar.ping_interval: must be above 0 and below 340s"),
        ({"ping_interval": "soon"}, "sidecar.ping_interval: not a duration"),
        ({"ping_interval": True}, "sidecar.ping_interval: must be a duration"),
        ({"ping_timeout": "0s"}, "sidecar.ping_timeout: must be above 0"),
        ({"shutdown_grace": -1}, "sidecar.shutdown_grace: must not be negative"),
        ({"max_conn_age": "1h"}, "sidecar.max_conn_age: must be below 3600s"),
        ({"retry_body_limit": -1}, "sidecar.retry_body_limit: must be at least 0"),
        ({"retry_body_limit": 1.5}, "sidecar.retry_body_limit: must be a whole number"),
        ({"gomaxprocs": 0}, "sidecar.gomaxprocs: must be at least 1"),
        ({"gomemlimit": "much"}, "sidecar.gomemlimit: must be a size"),
        ({"startup_timeout_seconds": 0}, "sidecar.startup_timeout_seconds: must be above 0"),
        ({"log_dir": ["x"]}, "sidecar.log_dir: must be a text, not a list"),
        ({"memory": "1GiB"}, "sidecar.memory: unknown key"),
        ({"ping_intervall": 1}, "sidecar.ping_intervall: unknown key; did you mean ping_interval?"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_place(keys: dict[str, Any], words: str) -> None:
    assert words in refused(**keys)


def test_an_unknown_key_is_an_error_in_a_block_that_is_not_enabled_too() -> None:
    with pytest.raises(ConfigError, match=r"sidecar\.enabeld: unknown key; did you mean enabled\?"):
        sidecar.read({"enabeld": True})


def test_every_problem_is_reported_at_once() -> None:
    assert refused(ping_timeout=0, gomaxprocs=0, wrong=1).count("\n") == 2


def test_a_refused_text_is_not_repeated() -> None:
    """A value in the wrong place may be a key."""
    assert "nvapi-" not in refused(gomemlimit="nvapi-secret")


def test_a_value_that_does_not_resolve_is_named() -> None:
    class Failing(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise KeyError("Environment variable 'X' not found")

    with pytest.raises(ConfigError, match=r"sidecar\.enabled: .*'X' not found"):
        sidecar.read(Failing(enabled=None))


def test_texts_of_interpolations_are_read_as_values() -> None:
    found = block(enabled="true", retry_body_limit="1000", gomaxprocs="2", startup_timeout_seconds="5")
    assert (found.enabled, found.retry_body_limit, found.gomaxprocs, found.startup_timeout_seconds) == (
        True, 1000, 2, 5.0,
    )  # fmt: skip


def test_limits_of_go_become_environment_variables() -> None:
    found = block(gomemlimit="512MiB", gomaxprocs=2)
    assert found.environment == {"GOMEMLIMIT": "512MiB", "GOMAXPROCS": "2"}


def test_a_listener_beyond_loopback_is_a_warning_only() -> None:
    found = block(instances=[{**JUDGE, "listen": "0.0.0.0:1250"}])
    assert "0.0.0.0:1250 is not a loopback address" in found.warnings[0]


@pytest.mark.parametrize("key", ["sidecar.log_dir", "nemo_gym_log_dir"])
def test_a_log_folder_that_cannot_be_made_is_named_by_its_key(tmp_path: Path, key: str) -> None:
    file = tmp_path / "file"
    file.touch()
    own, gyms = (str(file / "logs"), None) if key == "sidecar.log_dir" else ("", str(file / "logs"))
    with pytest.raises(supervise.ProxyError, match=f"^{key}: cannot make {file}/logs: Not a directory$"):
        supervise.log_folder(block(log_dir=own), gyms)
    assert supervise.log_folder(block(log_dir=str(tmp_path / "a" / "b"))).is_dir()
