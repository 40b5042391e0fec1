"""Where Gym reads its configuration: `--config` files, env.yaml, the command line; later ones win."""

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

NEMO_GYM_RESERVED_TOP_LEVEL_KEYS = ["config_paths", "nemo_gym_log_dir", "policy_base_url"]
if os.environ.get("FAKE_GYM") == "own block":
    NEMO_GYM_RESERVED_TOP_LEVEL_KEYS.append("sidecar")

_config: Any = None


def get_global_config_dict(global_config_dict_parser_config: Any = None) -> Any:
    global _config
    if _config is None:
        _config = _parse(sys.argv[1:])
    return _config


def _parse(words: list[str]) -> Any:
    files, overrides = [], []
    for word in words:
        name, _, value = word.lstrip("+").partition("=")
        if name == "config_paths":
            files = value.strip("[]").split(",")
        else:
            overrides.append(f"{name}={value}")
    parts = [OmegaConf.load(file) for file in files]
    roots = os.environ.get("NEMO_GYM_EXTRA_ROOTS", "").split(os.pathsep)
    for root in [*filter(None, roots), "."]:
        if (path := Path(root) / "env.yaml").exists():
            parts.append(OmegaConf.load(path))
            break
    return OmegaConf.merge(*parts, _from_words(overrides))


def _from_words(overrides: list[str]) -> Any:
    config = OmegaConf.create({})
    for override in overrides:
        key, _, value = override.partition("=")
        OmegaConf.update(config, key, dict(OmegaConf.create(f"value: {value}"))["value"])
    return config
