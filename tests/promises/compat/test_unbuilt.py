"""A name without code behind it can be imported; using it says so."""

from __future__ import annotations

import copy
import importlib
import inspect
import subprocess
import sys
import types
from typing import Any

import pytest

from art.compat.finder import Unbuilt
from art.errors import ARTError, NotBuiltError

NAMES = [
    "art.loss.loss_fn",
    "art.preprocessing.tokenize.tokenize_trajectory_groups",
    "art.preprocessing.pack.packed_tensors_from_tokenized_results",
    "art.preprocessing.inputs.anything",
    "art.tinker.TinkerBackend",
    "art.tinker.prefix_cache.LRUTrieCache",
    "art.tinker.renderers.get_renderer_name",
    "art.tinker_native.TinkerNativeBackend",
    "art.megatron.MegatronBackend",
    "art.tinker.backend.TinkerBackend",
    "art.tinker_native.backend.TinkerNativeBackend",
    "art.megatron.backend.MegatronBackend",
    "art.megatron.train.anything",
    "art.megatron.anything",
    "art.distributed.anything",
    "art.trainer_rank.anything",
    "art.serving_capabilities.discover_serving_capabilities",
    "art.tau_bench.TauBenchClient",
    "art.runtime_diagnostics.anything",
    "art.preprocessing.policy_spans.PolicyTokenSpan",
    "art.MegatronRuntimeConfig",
    "art.MegatronTopologyConfig",
    "art.get_megatron_runtime_config",
    "art.init_megatron_runtime_config",
    "art.local.service.anything",
    "art.local.adapter_leases.anything",
    "art.local.checkpoints.anything",
    "art.vllm.get_llm",
    "art.serverless.client.Client",
    "art.pipeline_trainer.state.PipelineState",
    "art.utils.convert_moe_lora.anything",
    "art.utils.lifecycle.anything",
    "art.utils.s3.pull_model_from_s3",
    "art.utils.old_benchmarking.types.BenchmarkedModelKey",
]


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", NAMES)
def test_calling_says_what_is_missing_and_what_to_do(path: str) -> None:
    with pytest.raises(NotBuiltError, match=rf"^{path} is not built yet: .{{20,}}"):
        named(path)(1, two=2)


@pytest.mark.parametrize("path", NAMES)
def test_subclassing_and_attributes_say_so_too(path: str) -> None:
    thing = named(path)
    with pytest.raises(NotBuiltError, match="is not built yet"):
        types.new_class("Mine", (thing,))
    with pytest.raises(NotBuiltError, match="is not built yet"):
        _ = thing.some_method
    with pytest.raises(NotBuiltError, match="is not built yet"):
        isinstance(1, thing)
    with pytest.raises(NotBuiltError, match="is not built yet"):
        list(thing)


def test_annotations_and_inspection_still_work() -> None:
    thing: Any = Unbuilt("art.somewhere.Thing", "use the other thing")

    assert thing[int] is thing and (thing | None) is Any and (None | thing) is Any
    assert inspect.unwrap(thing) is thing
    assert repr(copy.copy(thing)) == "<art.somewhere.Thing: not built yet>"
    assert thing.__name__ == "Thing" and thing.__module__ == "art.somewhere"


def test_it_is_both_of_the_house_and_of_python() -> None:
    with pytest.raises(NotImplementedError):
        named("art.loss.loss_fn")([])
    assert issubclass(NotBuiltError, ARTError)


def test_a_name_that_nobody_knows_is_an_import_error() -> None:
    module = importlib.import_module("art.tinker_native")
    with pytest.raises(AttributeError, match=r"no attribute 'Cloud'; it has TinkerNativeBackend"):
        _ = module.Cloud
    with pytest.raises(ImportError):
        from art.loss import no_such_loss  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("first", ["art.mcp", "art.mcp.generate_scenarios"])
def test_generate_scenarios_is_a_module_and_a_function(first: str) -> None:
    importlib.import_module(first)
    import art.mcp
    from art.mcp import generate_scenarios
    from art.mcp.generate_scenarios import preview_scenarios

    assert callable(generate_scenarios) and not inspect.ismodule(generate_scenarios)
    assert inspect.isfunction(preview_scenarios)
    assert art.mcp.generate_scenarios is generate_scenarios


def test_ruler_is_a_module_and_a_function() -> None:
    from art.rewards import ruler
    from art.rewards.ruler import DEFAULT_RUBRIC, Response, TrajectoryScore

    assert not inspect.ismodule(ruler)
    assert DEFAULT_RUBRIC.count("\n- ") == 3 and DEFAULT_RUBRIC.startswith("- ")
    answer = '{"scores": [{"trajectory_id": "1", "explanation": "good", "score": 0.5}]}'
    score = TrajectoryScore(trajectory_id="1", explanation="good", score=0.5)
    assert Response.model_validate_json(answer).scores == [score]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto_trajectory", "yield_trajectory"])
@pytest.mark.parametrize("module_first", [True, False])
def test_a_function_of_the_root_can_be_called_whatever_is_imported(name: str, module_first: bool) -> None:
    program = f"""
import importlib, art
if {module_first}:
    importlib.import_module("art.{name}")
function = art.{name}
importlib.import_module("art.{name}")
from art.{name} import {name} as other
try:
    print([called(*arguments) for called in (function, art.{name}, other)])
except RuntimeError as error:
    print(error)
"""
    arguments = "arguments = ()\n" if name == "auto_trajectory" else "arguments = (art.Trajectory(),)\n"
    program = program.replace("try:", arguments + "try:")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    expected = "[None, None, None]" if name == "auto_trajectory" else "nobody captures this trajectory"
    assert expected in done.stdout, done.stdout


def test_the_package_for_patched_engines_is_not_there() -> None:
    importlib.import_module("art")
    with pytest.raises(
        ImportError, match=r"no package art_inference: vLLM runs unpatched.*docs/guides/vllm\.md"
    ):
        importlib.import_module("art_inference.vllm")
