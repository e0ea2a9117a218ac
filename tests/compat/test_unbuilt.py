"""A name without code behind it can be imported; using it says so."""

from __future__ import annotations

import copy
import importlib
import inspect
import types
from typing import Any

import pytest

from art.errors import ARTError, NotBuiltError
from art.unbuilt import Unbuilt

NAMES = [
    "art.loss.loss_fn",
    "art.preprocessing.tokenize.tokenize_trajectory_groups",
    "art.preprocessing.pack.packed_tensors_from_tokenized_results",
    "art.preprocessing.inputs.anything",
    "art.skypilot.SkyPilotBackend",
    "art.tinker.TinkerBackend",
    "art.tinker.prefix_cache.LRUTrieCache",
    "art.tinker.renderers.get_renderer_name",
    "art.tinker_native.TinkerNativeBackend",
    "art.megatron.MegatronBackend",
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
    module = importlib.import_module("art.skypilot")
    with pytest.raises(AttributeError, match=r"no attribute 'Cloud'; it has SkyPilotBackend, stop_server"):
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
