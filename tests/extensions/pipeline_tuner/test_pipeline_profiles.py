"""Profiles in a model's folder, and the config that names them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

import art
from art.errors import ConfigurationError
from art_extensions.pipeline_tuner import PipelineTunerProfile, PipelineTunerProfileStore

CHOSEN = PipelineTunerProfile(
    settings=art.PipelineRuntimeConfig(num_rollout_workers=12, min_batch_size=3, queue_maxsize=40),
    measurements={12: {"groups_per_second": 1.5}, 14: {"groups_per_second": 1.51}},
)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return art.TrainableModel(
        name="agent", project="p", base_model="art/nano", base_path=str(tmp_path), report_metrics=[]
    )


def test_a_profile_is_saved_and_loaded(model: Any, tmp_path: Path) -> None:
    store = PipelineTunerProfileStore(model)
    assert store.names() == []
    path = store.save(CHOSEN)
    assert path == tmp_path / "p" / "models" / "agent" / "pipeline_profiles" / "latest.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [*path.parent.iterdir()] == [path]
    assert store.load() == PipelineTunerProfileStore(model).load("latest") == CHOSEN
    store.save(CHOSEN, "gpu.2")
    assert store.names() == ["gpu.2", "latest"]


def test_a_missing_profile_is_an_error_that_lists_the_others(model: Any) -> None:
    store = PipelineTunerProfileStore(model)
    with pytest.raises(ConfigurationError, match=r"no profile 'latest' .*profiles there: none"):
        store.load()
    store.save(CHOSEN, "nights")
    store.save(CHOSEN, "days")
    with pytest.raises(ConfigurationError, match=r"did you mean 'nights'\?; profiles there: days, nights"):
        store.load("night")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\0\1",
        "[" * 5000,
        "{}",
        '{"settings": {"num_rollout_workers": 0}}',
        '{"settings": {"num_workers": 3}}',
        '{"settings": {"min_batch_size": 8, "max_batch_size": 2}}',
        '{"settings": {}, "measurements": {"many": {}}}',
    ],
)
def test_a_damaged_profile_is_an_error_that_names_it(model: Any, content: str) -> None:
    store = PipelineTunerProfileStore(model)
    path = store.save(CHOSEN)
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"the profile 'latest' in '.*latest\.json' is damaged: "):
        store.load()
    store.save(CHOSEN)
    assert json.loads(path.read_text())["settings"]["num_rollout_workers"] == 12


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "a\\b", ".hidden", "a\0", "a b", "-x"])
def test_a_name_is_one_of_a_file(model: Any, name: str) -> None:
    store = PipelineTunerProfileStore(model)
    with pytest.raises(ConfigurationError, match="no name of a profile"):
        store.load(name)
    with pytest.raises(ConfigurationError, match="no name of a profile"):
        store.save(CHOSEN, name)
    for field in ("profile", "output_name"):
        with pytest.raises(ValueError, match="no name of a profile"):
            art.PipelineAutotuneConfig(**{field: name})


def test_the_config_has_the_defaults_of_the_library() -> None:
    assert art.PipelineAutotuneConfig().model_dump() == {
        "mode": "off",
        "profile": None,
        "output_name": "latest",
        "window_steps": 4,
        "warmup_ignore_steps": 3,
        "target_spill_probability": 0.03,
        "worker_step": 2,
    }
    from art.pipeline_tuner.config import PipelineAutotuneConfig

    assert art.PipelineAutotuneConfig is PipelineAutotuneConfig


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"window_step": 4}, r"window_step=4\): no such field, did you mean 'window_steps'\?; known: mode, "),
        ({"mode": "always"}, "'off', 'online' or 'profile'"),
        ({"window_steps": 0}, "window_steps"),
        ({"warmup_ignore_steps": -1}, "warmup_ignore_steps"),
        ({"worker_step": 0}, "worker_step"),
        ({"target_spill_probability": 1.5}, "target_spill_probability"),
    ],
)
def test_what_the_config_cannot_mean_is_an_error(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        art.PipelineAutotuneConfig(**fields)
