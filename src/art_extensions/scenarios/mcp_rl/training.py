"""MCP-RL: from an MCP server to a model that has learned to use it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.runs.training_run import model_to_train, runs_root, serve_model
from art_extensions.scenarios.generator import DEFAULT_GENERATOR
from art_extensions.scenarios.judges import JUDGE, Candidate
from art_extensions.scenarios.mcp_rl.mcp_run import (
    AskedModels,
    McpRun,
    McpRunFolder,
    run_judges,
    scenario_generator,
)
from art_extensions.scenarios.mcp_rl.settings import TrainSettings
from art_extensions.scenarios.run_costs import answer_cache_in, keep_budget

if TYPE_CHECKING:
    from art.backend import Backend
    from art.environments.measure import Measure
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.llm.budget import Budget
    from art.rewards.llm.cache import AnswerCache
    from art.runs.training_run import OnProgress
    from art_extensions.scenarios.mcp_rl.mcp_run import McpReport
    from art_extensions.scenarios.mcp_rl.settings import Scenarios

logger = logging.getLogger(__name__)

BASE_AS_JUDGE = "base"
"""The judge's name that means the model's own base."""


async def train(
    server: Any,
    *,
    base_model: str,
    name: str = "mcp-agent",
    project: str = "mcp",
    judge: Any = JUDGE,
    judge_params: Mapping[str, Any] | None = None,
    referee: Any = None,
    referee_params: Mapping[str, Any] | None = None,
    generator: Any = DEFAULT_GENERATOR,
    generator_params: Mapping[str, Any] | None = None,
    scenarios: Scenarios | None = None,
    measure: Measure | None = None,
    backend: Backend | None = None,
    path: str | Path | None = None,
    cache: AnswerCache | None = None,
    budget: Budget | None = None,
    checks: JudgeChecks | None = None,
    tell: OnProgress | None = None,
    **settings: Any,
) -> McpReport:
    """Teach `base_model` to use the tools of an MCP server, without labels, and compare before and after.

    server: as `art.mcp.connect` takes it. judge, generator: names ("openai/o3"), functions,
    models; a judge is also a `Reward`, or "base": the base model, its adapter off. referee: compares before
    and after in the judge's place. *_params: litellm's options of a name.
    scenarios: your own instead of generated ones: a list, of which `num_test` are held out, or a
    `ScenarioSet`. measure: the true quality of a trajectory, 0 to 1, where you know it: reported, never
    trained on. backend: None is a `LocalBackend` under `path` (None: ./.art), closed at the end. cache: None
    is `llm-cache.sqlite3` under `path`. budget: of judge and generator together, over all calls that go on
    with the run; when it is spent, training ends with what is learned. checks: what the judge undergoes
    meanwhile. tell: is given lines about the progress. settings: those of `TrainSettings`.

    All is written to `<path>/<project>/mcp/<name>`; the same call goes on where a run ended, and pays for no
    answer twice. Raises ConfigurationError, McpError, LlmErrors, and what rollouts and the backend raise.
    """
    begin, root = time.monotonic(), runs_root(path)
    shared: dict[str, Any] = {"cache": cache or answer_cache_in(root), "budget": budget}
    model = model_to_train(root, name, project, base_model)
    folder, on_progress = McpRunFolder(root / project / "mcp" / name), tell or logger.info
    chosen = folder.settings(TrainSettings, base_model, settings)
    judging = Candidate.from_judge(
        model if judge == BASE_AS_JUDGE else judge, judge_params, checks=checks, **shared
    )
    comparing = (
        None
        if referee is None
        else Candidate.from_judge(model if referee == BASE_AS_JUDGE else referee, referee_params, **shared)
    )
    asked = AskedModels(
        judges=run_judges(judging, comparing, chosen.rubric),
        generator=scenario_generator(generator, generator_params, **shared),
    )
    run = McpRun(server, folder, chosen, asked, measure, on_progress)
    run.open(base_model)
    keep_budget(budget, folder.path, on_progress)
    made = await run.scenarios(scenarios)
    async with serve_model(model, backend, root):
        return await run.learn(model, made, begin)
