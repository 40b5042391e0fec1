"""Which URLs of a Gym configuration are rewritten, and to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import ConfigError
from h2ping.gym import overlay, rewrite, sidecar

if TYPE_CHECKING:
    from h2ping.gym.sidecar import Instance

BLOCK = {
    "enabled": True,
    "instances": [
        {"name": "judge", "upstream": "https://judge.example", "listen": "127.0.0.1:1250"},
        {"name": "other", "upstream": "https://other.example:8443", "listen": "[::1]:1251"},
    ],
}


def instances() -> tuple[Instance, ...]:
    return sidecar.read(BLOCK).instances


def server(**keys: Any) -> dict[str, Any]:
    return {"top": {"responses_api_models": {"model": {"entrypoint": "app.py", **keys}}}}


def rewritten(**keys: Any) -> Any:
    plan = rewrite.plan(server(**keys), instances())
    return {path[-1]: value for path, value in plan.values.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("https://judge.example/v1", "http://127.0.0.1:1250/v1"),
        ("https://JUDGE.Example/v1", "http://127.0.0.1:1250/v1"),
        ("https://judge.example:443/v1?a=b%2F#c", "http://127.0.0.1:1250/v1?a=b%2F#c"),
        ("https://judge.example", "http://127.0.0.1:1250"),
        ("HTTPS://judge.example/V1", "http://127.0.0.1:1250/V1"),
        ("https://other.example:8443/v1", "http://[::1]:1251/v1"),
        ("https://user:key@judge.example/v1", "http://user:key@127.0.0.1:1250/v1"),
    ],
)
def test_scheme_host_and_port_change_and_the_rest_stays(old: str, new: str) -> None:
    assert rewritten(base_url=old) == {"base_url": new}


@pytest.mark.parametrize(
    "url",
    [
        "http://judge.example/v1",
        "https://judge.example:444/v1",
        "https://a.judge.example/v1",
        "https://judge.example.org/v1",
        "https://other.example/v1",
        "",
        "???",
    ],
)
def test_another_origin_stays(url: str) -> None:
    assert rewritten(base_url=url) == {}


def test_every_key_that_ends_in_base_url_counts() -> None:
    url = "https://judge.example/v1"
    found = rewritten(
        openai_base_url=url, anthropic_base_url=[url], base_url_note=url, url=url, base_urls=url
    )
    assert set(found) == {"openai_base_url", "anthropic_base_url"}


def test_only_servers_under_responses_api_models_count() -> None:
    url = "https://judge.example/v1"
    config = {
        "policy_base_url": url,
        "top": {"resources_servers": {"x": {"base_url": url}}, "base_url": url},
        "list": [url],
        "nothing": None,
    }
    assert rewrite.plan(config, instances()).values == {}


def test_a_list_becomes_a_new_list() -> None:
    """What it is an alias of must not change: two servers may share one list, and one may be left alone."""
    shared = ["https://judge.example/v1", "https://elsewhere.example/v1"]
    plan = rewrite.plan(server(base_url=shared), instances())
    assert list(plan.values.values()) == [["http://127.0.0.1:1250/v1", "https://elsewhere.example/v1"]]
    assert shared[0] == "https://judge.example/v1"
    assert [change.place for change in plan.changes] == ["top.responses_api_models.model.base_url[0]"]


def test_a_users_key_in_a_url_is_not_shown() -> None:
    plan = rewrite.plan(server(base_url="https://user:key@judge.example/v1"), instances())
    assert (plan.changes[0].old, plan.changes[0].new) == (
        "https://***@judge.example/v1",
        "http://***@127.0.0.1:1250/v1",
    )


@pytest.mark.parametrize(
    "url", ["https://[judge.example/v1", "https://judge.example:port/v1", "http://a:99999/"]
)
def test_a_url_that_cannot_be_parsed_is_an_error_with_its_place(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^top\.responses_api_models\.model\.base_url\[1\]: not a URL: "):
        rewrite.plan(server(base_url=["https://judge.example", url]), instances())


def test_a_value_that_does_not_resolve_is_left_for_the_server() -> None:
    class Failing(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            raise ValueError("interpolation")

    config = {"top": {"responses_api_models": {"model": Failing(base_url="${nothing}")}}}
    assert rewrite.plan(config, instances()).values == {}


def test_instances_that_nothing_points_at_are_named() -> None:
    plan = rewrite.plan(server(base_url="https://judge.example"), instances())
    assert [instance.name for instance in plan.unused] == ["other"]


def test_a_url_that_points_at_the_proxy_already_is_use() -> None:
    plan = rewrite.plan(
        server(base_url="http://127.0.0.1:1250/v1", x_base_url="http://[::1]:1251"), instances()
    )
    assert plan.unused == []


def test_overrides_are_written_in_hydras_grammar() -> None:
    plan = rewrite.plan(
        server(base_url=["https://judge.example/it's"], a_base_url="https://judge.example"), instances()
    )
    assert overlay.overrides(plan) == [
        "++top.responses_api_models.model.base_url=['http://127.0.0.1:1250/it\\'s']",
        "++top.responses_api_models.model.a_base_url='http://127.0.0.1:1250'",
    ]


def test_a_key_that_no_override_can_name_is_an_error() -> None:
    config = {"a.b": server(base_url="https://judge.example")["top"]}
    with pytest.raises(ConfigError, match="cannot be named in an override"):
        overlay.overrides(rewrite.plan(config, instances()))


def test_named_parts_become_the_files_that_gym_takes_them_for() -> None:
    words = [
        "env", "start", "--resources-server", "simpleqa", "--model-type=vllm_model/fast", "--config", "a",
        "--model", "m", "--allow-unsupported-pairing", "++a.b=c", "~x", "--benchmark", "aime",
    ]  # fmt: skip
    assert overlay.resolve_arguments(words) == [
        "env", "resolve", "--config", "a", "--config", "benchmarks/aime/config.yaml",
        "--config", "resources_servers/simpleqa/configs/simpleqa.yaml",
        "--config", "responses_api_models/vllm_model/configs/fast.yaml",
        "+policy_model_name=m", "+allow_unsupported_pairing=true", "++a.b=c", "~x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        ("env start --model m", True),
        ("eval run", True),
        ("eval run --no-serve", False),
        ("env validate", False),
        ("--version", False),
    ],
)
def test_only_commands_that_start_servers_need_proxies(words: str, serves: bool) -> None:
    assert overlay.serves(words.split()) is serves
