"""From a description of a task to a trained model, offline: all but judge and generator is the real thing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import art
from art.environments.tasks import yes_no_maybe as task
from art.errors import ConfigurationError
from art.rewards.llm import Budget, Request, base_of, resolve_llm
from art_extensions.scenarios import autorl
from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either

pytestmark = pytest.mark.slow
STEPS = 6


class Stop(Exception):
    """A run that is killed."""


def quality(messages: Sequence[Mapping[str, Any]]) -> float:
    return task.worth(str(messages[-1].get("content") or ""))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[art.LocalBackend]:
    with art.LocalBackend(path=tmp_path_factory.mktemp("art")) as backend:
        yield backend


@pytest.fixture
def server() -> Iterator[LlmServer]:
    generator = ScriptedGenerator(
        inputs=[text for text in task.phrasings() if "'" not in text], rubric="- maybe is the best word"
    )
    with LlmServer(either(judge=TruthfulJudge(quality), generator=generator)) as server:
        yield server


def options(server: LlmServer, backend: art.LocalBackend, path: Path, **more: Any) -> dict[str, Any]:
    params = {"api_base": server.base_url, "api_key": server.key}
    return {
        **{"base_model": "art/nano-games", "backend": backend, "path": path, "system_prompt": ""},
        **{"generator": "writer", "generator_params": params, "judge": "judge", "judge_params": params},
        **{"num_train": 24, "num_test": 12, "similarity": 1.0, "groups_per_step": 8, "group_size": 8},
        **{"epochs": 2, "learning_rate": 1.5e-3, "warmup_steps": 1, "final_share": 0.2, "max_tokens": 4},
        "measure": lambda one: quality(one.messages()),
        **more,
    }


async def test_a_description_becomes_a_better_model_and_a_killed_run_goes_on(
    server: LlmServer, backend: art.LocalBackend, tmp_path: Path
) -> None:
    told: list[str] = []

    def until_step_two(text: str) -> None:
        told.append(text)
        if text.startswith("step 2/"):
            raise Stop

    chosen = options(server, backend, tmp_path, name="learner")
    with pytest.raises(Stop):
        await autorl.train("Answer with one of the words.", **chosen, tell=until_step_two)
    report = await autorl.train("Answer with one of the words.", **chosen, tell=told.append)

    assert [row.step for row in report.steps] == list(range(1, STEPS + 1)) and report.step == STEPS
    assert report.verdict == "better"
    measured = report.comparison.measured
    assert measured is not None and measured.low is not None and measured.low > 0
    assert report.comparison.unjudged == 0 and report.comparison.after.failed == 0
    bodies = [json.dumps(body, sort_keys=True) for body in server.requests]
    assert len(bodies) == len(set(bodies)), "nothing is asked twice, by either call"
    first, last = report.steps[0].reward, report.steps[-1].reward
    assert first is not None and last is not None and last > first

    folder = tmp_path / "autorl" / "autorl" / "learner"
    assert report.folder == folder and (folder / "report.md").read_text() == report.to_markdown()
    assert json.loads((folder / "report.json").read_text())["verdict"] == "better"
    asked = len(server.requests)
    again = await autorl.train("Answer with one of the words.", **chosen)
    assert again.comparison == report.comparison and len(server.requests) == asked
    (folder / "rubric.txt").write_text("- another\n")
    with pytest.raises(ConfigurationError, match=r"rubric\.txt in .* changed after the training began"):
        await autorl.train("Answer with one of the words.", **chosen)
    await the_base_judges_with_its_adapter_off(again, backend, tmp_path)


async def the_base_judges_with_its_adapter_off(
    report: autorl.AutoRLReport, backend: art.LocalBackend, path: Path
) -> None:
    """The trained model says maybe, its own base on the same server what it always said."""
    model = art.TrainableModel(name="learner", project="autorl", base_model="art/nano-games")
    await model.register(backend)

    async def words(llm: Any) -> list[str]:
        asked = [({"role": "user", "content": text},) for text in report.inputs.test]
        return [
            (await llm.complete(Request(messages=one, temperature=0.0, max_tokens=4))).text for one in asked
        ]

    trained, base = await words(resolve_llm(model)), await words(base_of(model))
    assert trained.count("maybe") > base.count("maybe")


async def test_a_budget_ends_the_training_and_the_report_says_so(
    server: LlmServer, backend: art.LocalBackend, tmp_path: Path
) -> None:
    # Sixteen inputs, each in one group alone: as many questions, and none that was asked before.
    own: dict[str, Any] = {
        "inputs": [text for text in task.phrasings() if "'" not in text][:28],
        "rubric": "- x",
    }
    chosen = options(server, backend, tmp_path, name="short", num_train=16, epochs=1, **own)
    report = await autorl.train("Answer with one of the words.", **chosen, budget=Budget(calls=12))
    assert len(server.requests) == 12 and report.step == 1
    assert report.stopped is not None and "calls=12" in report.stopped
    assert report.verdict == "not judged" and report.comparison.measured is not None
    assert "Training stopped before its end" in report.to_markdown()
