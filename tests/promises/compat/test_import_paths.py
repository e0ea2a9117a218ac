"""The names and import paths that programs for older releases use."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

import art
from art.compat.finder import Unbuilt

ROOT_NAMES = """
    dev auto_trajectory capture_auto_trajectory gather_trajectories gather_trajectory_groups
    trajectory_group_batches Backend LocalBackend LocalTrainResult ServerlessBackend
    ServerlessTrainResult Messages MessagesAndChoices Tools Model TrainableModel retry
    TrainSFTConfig TrainConfig TrainResult Trajectory TrajectoryGroup capture_yielded_trajectory
    yield_trajectory
""".split()
HEAVY = ["pydantic", "openai", "httpx", "polars", "wandb", "fsspec", "numpy", "torch", "rich", "matplotlib"]


def in_new_process(program: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    return json.loads(done.stdout)


def test_the_root_has_every_name() -> None:
    assert set(ROOT_NAMES) <= set(art.__all__)
    assert all(getattr(art, name) is not None for name in ROOT_NAMES)


@pytest.mark.slow
def test_a_star_import_brings_them_all() -> None:
    program = (
        "import json\nfrom art import *\n"
        "print(json.dumps([name for name in dir() if not name.startswith('_') and name != 'json']))"
    )
    assert set(in_new_process(program)) == set(art.__all__)
    assert "PipelineRuntimeConfig" in art.__all__, "of an extension that is there"


def test_dir_lists_public_names_and_nothing_of_the_machinery() -> None:
    assert {"utils", "rewards", "openai", "trajectories", *ROOT_NAMES} <= set(dir(art))
    assert not {"Any", "TYPE_CHECKING", "annotations", "import_module"} & set(dir(art))


@pytest.mark.parametrize("name", [name for name in dir(art) if not name.startswith("_")])
def test_what_dir_lists_is_there_after_import_art_alone(name: str) -> None:
    value = getattr(art, name)
    if name not in art.__all__:
        assert value is importlib.import_module(f"art.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["art", "art.dev"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    program = (
        f"import json, sys\nimport {module}\nprint(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))"
    )
    assert in_new_process(program) == []


@pytest.mark.slow
def test_importing_the_small_functions_loads_nothing_heavy() -> None:
    program = (
        f"import json, sys\nimport art.utils\nprint(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))"
    )
    assert in_new_process(program) == []


@pytest.mark.parametrize("name", ["retry", "format_message", "iterate_dataset", "get_model_step"])
def test_functions_win_over_the_modules_of_their_names(name: str) -> None:
    module = importlib.import_module(f"art.utils.{name}")
    assert getattr(art.utils, name) is getattr(module, name)  # type: ignore[attr-defined]


def test_retry_is_the_decorator_in_both_places() -> None:
    assert art.retry is art.utils.retry  # type: ignore[attr-defined]


def test_words_of_the_types_module() -> None:
    from art.types import (  # noqa: F401
        Choice,
        Message,
        MessageOrChoice,
        Messages,
        MessagesAndChoices,
        Tools,
        TrainConfig,
        TrainResult,
        TrainSFTConfig,
        Verbosity,
    )

    assert art.types.Messages is art.Messages  # type: ignore[attr-defined]


def test_configs_of_training() -> None:
    assert art.TrainSFTConfig() == art.TrainSFTConfig(learning_rate=5e-5, batch_size="auto")
    assert art.TrainSFTConfig(learning_rate=[1e-4, 2e-4]).learning_rate == [1e-4, 2e-4]
    with pytest.raises(ValueError, match="batch_size"):
        art.TrainSFTConfig(batch_size=0)
    with pytest.raises(ValueError, match="no such field"):
        art.TrainSFTConfig(lr=1)  # type: ignore[call-arg]
    old: Any = art.TrainConfig
    assert old(learning_rate=1e-5, beta=0.2).kl_penalty_coef == 0.2
    result = art.ServerlessTrainResult(step=3, artifact_name="a:step3")
    assert (result.step, result.metrics, result.artifact_name) == (3, {}, "a:step3")
    assert art.LocalTrainResult(step=1).checkpoint_path is None


MOVED = """
    art.dev.model.get_model_config art.local.checkpoints.migrate_checkpoints_to_new_structure
    art.model.METRIC_SECTIONS art.model.METRIC_SPLITS art.gather.gather_context_var
    art.pipeline_trainer.types.RolloutFn art.pipeline_trainer.trainer.make_group_rollout_fn
    art.pipeline_trainer.checkpoint_retention.keep_recent_and_top
    art.utils.deployment.common.DeploymentResult art.utils.deployment.together.TogetherDeploymentConfig
    art.utils.deployment.wandb.WandbDeploymentConfig art.utils.deployment.legacy.LoRADeploymentProvider
    art.utils.benchmarking.charts.training_progress_chart.training_progress_chart
    art.utils.benchmarking.charts.percentage_comparison_bar_chart.percentage_comparison_bar_chart
    art.rewards.verifiers.CodeTests art.rewards.verifiers.RegexMatch art.rewards.verifiers.last_answer
    art.rewards.verifiers.code.CodeTests art.rewards.verifiers.limited_process.LimitedProcess
    art.rewards.verifiers.matches.ExactMatch art.rewards.verifiers.verifier.Verifier
    art.client.publish.export.export_model art.client.publish.export.Exported
    art.auto_trajectory.capture_auto_trajectory art.yield_trajectory.capture_yielded_trajectory
""".split()


@pytest.mark.parametrize("path", MOVED)
def test_a_name_is_the_one_of_its_room(path: str) -> None:
    module, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    assert not isinstance(value, Unbuilt)
    if callable(value) and getattr(value, "__module__", None):
        home = getattr(importlib.import_module(value.__module__), name, value)
        assert home is value


def test_a_chart_is_a_function_where_it_is_also_a_module() -> None:
    importlib.import_module("art.utils.benchmarking.charts.training_progress_chart")
    from art.utils.benchmarking import charts

    assert callable(charts.training_progress_chart) and callable(charts.percentage_comparison_bar_chart)
