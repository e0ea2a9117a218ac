"""AutoRL: from the description of a task to a trained model."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.runs.training_run import model_to_train, runs_root, serve_model
from art.tracking.folders import stored_name
from art_extensions.scenarios.autorl.autorl_run import AutoRLFolder, AutoRLRun, AutoRLSettings, GivenTexts
from art_extensions.scenarios.autorl.preparation import GENERATOR_SOURCE
from art_extensions.scenarios.generator import DEFAULT_GENERATOR, generator_channel
from art_extensions.scenarios.judges import JUDGE, Candidate, judges_of
from art_extensions.scenarios.run_costs import answer_cache_in, keep_budget

if TYPE_CHECKING:
    from art.backend import Backend
    from art.environments.measure import Measure
    from art.model import TrainableModel
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.llm.budget import Budget
    from art.rewards.llm.cache import AnswerCache
    from art.rewards.llm.channel import Channel
    from art.runs.training_run import OnProgress
    from art_extensions.scenarios.autorl.autorl_run import AutoRLReport
    from art_extensions.scenarios.generator import Generator

_LOGGER = logging.getLogger(__name__)


async def train(
    task_description: str,
    *,
    base_model: str | None = None,
    model: TrainableModel[Any, Any] | None = None,
    name: str = "autorl",
    project: str = "autorl",
    backend: Backend | None = None,
    generator: Generator = DEFAULT_GENERATOR,
    generator_params: Mapping[str, Any] | None = None,
    judge: Any = JUDGE,
    judge_params: Mapping[str, Any] | None = None,
    referee: Any = None,
    referee_params: Mapping[str, Any] | None = None,
    inputs: Iterable[str] | None = None,
    system_prompt: str | None = None,
    rubric: str | None = None,
    measure: Measure | None = None,
    path: str | Path | None = None,
    cache: AnswerCache | None = None,
    budget: Budget | None = None,
    checks: JudgeChecks | None = None,
    tell: OnProgress | None = None,
    **settings: Any,
) -> AutoRLReport:
    """Teach a model a task from its description alone, and compare it before and after.

    base_model, or a `model` of your own (its name, project and folder are then the run's). generator, judge:
    names ("openai/o3"), functions, models, or (judge) a `Reward`; *_params: litellm's options of a name.
    referee: compares before and after in the judge's place. inputs, system_prompt ("" for none), rubric: your
    own instead of generated ones. measure: the true quality of a rollout, where you know it: reported, never
    trained on. backend: None is a `LocalBackend` under `path` (None: ./.art), closed at the end. budget: of
    all that are asked, together, over all calls that go on with the run. checks: of the judge. tell: is given
    lines about the progress. settings: those of `AutoRLSettings`. The same call goes on where a run ended.

    Raises ConfigurationError, LlmErrors, and what rollouts and the backend raise.
    """
    begin = time.monotonic()
    if model is not None:
        name, project, path = stored_name(model), model.project, path or model.base_path
    root = runs_root(path)
    shared: dict[str, Any] = {"cache": cache or answer_cache_in(root), "budget": budget}
    trained = _base_of(model, base_model)
    candidate = Candidate.from_judge(judge, judge_params, checks=checks, **shared)
    second = None if referee is None else Candidate.from_judge(referee, referee_params, **shared)
    channel = generator_channel(generator, source=GENERATOR_SOURCE, params=generator_params, **shared)
    folder = AutoRLFolder(root / project / "autorl" / name)
    run = _opened(task_description, trained, folder, channel, measure, tell, settings)
    keep_budget(budget, folder.path, run.tell)
    prepared = await run.prepare(GivenTexts(inputs=inputs, system_prompt=system_prompt, rubric=rubric))
    judges = judges_of(candidate, second, prepared[2])
    learner = model or model_to_train(root, name, project, trained)
    async with serve_model(learner, backend, root):
        return await run.learn(learner, prepared, judges, begin)


async def prepare(
    task_description: str,
    *,
    base_model: str,
    name: str = "autorl",
    project: str = "autorl",
    generator: Generator = DEFAULT_GENERATOR,
    generator_params: Mapping[str, Any] | None = None,
    inputs: Iterable[str] | None = None,
    system_prompt: str | None = None,
    rubric: str | None = None,
    path: str | Path | None = None,
    cache: AnswerCache | None = None,
    budget: Budget | None = None,
    tell: OnProgress | None = None,
    **settings: Any,
) -> Path:
    """The first part of `train` alone: inputs, system prompt and rubric, as files to read and to edit.

    Returns the folder; `train` with the same arguments goes on there. Raises ConfigurationError, LlmErrors.
    """
    root = runs_root(path)
    kept = cache or answer_cache_in(root)
    channel = generator_channel(
        generator, source=GENERATOR_SOURCE, params=generator_params, cache=kept, budget=budget
    )
    folder = AutoRLFolder(root / project / "autorl" / name)
    run = _opened(task_description, base_model, folder, channel, None, tell, settings)
    keep_budget(budget, folder.path, run.tell)
    await run.prepare(GivenTexts(inputs=inputs, system_prompt=system_prompt, rubric=rubric))
    return folder.path


def _opened(
    task: str,
    base_model: str,
    folder: AutoRLFolder,
    generator: Channel,
    measure: Measure | None,
    tell: OnProgress | None,
    settings: Mapping[str, Any],
) -> AutoRLRun:
    if not task.strip():
        raise ConfigurationError(
            "task_description is empty: say in a sentence or more what the model shall do"
        )
    run = AutoRLRun(
        task=task.strip(),
        folder=folder,
        settings=folder.settings(AutoRLSettings, base_model, settings),
        generator=generator,
        measure=measure,
        tell=tell or _LOGGER.info,
    )
    run.open(base_model)
    return run


def _base_of(model: TrainableModel[Any, Any] | None, base_model: str | None) -> str:
    if model is None and base_model is None:
        raise ConfigurationError("give base_model= (a hub name, a folder or a built-in one), or a model=")
    if model is not None and base_model not in {None, model.base_model}:
        raise ConfigurationError(
            f"base_model={base_model!r}, but model= has {model.base_model!r}: give one of them"
        )
    return model.base_model if model is not None else str(base_model)
