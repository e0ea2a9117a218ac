"""MCP-RL: from an MCP server to a model that has learned to use it."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.mcp.asked import Asked, generator_of, judge_of
from art.mcp.difficulty import Measure
from art.mcp.run import Run
from art.mcp.run_folder import RunFolder
from art.mcp.settings import TrainSettings

if TYPE_CHECKING:
    from art.backend import Backend
    from art.llm.budget import Budget
    from art.llm.cache import AnswerCache
    from art.mcp.report import McpReport
    from art.mcp.run import Tell
    from art.mcp.scenario_source import Scenarios
    from art.model import TrainableModel
    from art.rewards.checks.judge_checks import JudgeChecks

logger = logging.getLogger(__name__)

BASE = "base"
"""As a judge: the model's own base."""


async def train(
    server: Any,
    *,
    base_model: str,
    name: str = "mcp-agent",
    project: str = "mcp",
    judge: Any = "openai/o4-mini",
    judge_params: Mapping[str, Any] | None = None,
    generator: Any = "openai/gpt-4.1-mini",
    generator_params: Mapping[str, Any] | None = None,
    scenarios: Scenarios | None = None,
    measure: Measure | None = None,
    backend: Backend | None = None,
    path: str | Path | None = None,
    cache: AnswerCache | None = None,
    budget: Budget | None = None,
    checks: JudgeChecks | None = None,
    tell: Tell | None = None,
    **settings: Any,
) -> McpReport:
    """Teach `base_model` to use the tools of an MCP server, without labels, and compare before and after.

    server: as `art.mcp.connect` takes it. judge, generator: names ("openai/o3"), functions, models; a judge
    is also a `Reward`, or "base": the base model, its adapter off. *_params: litellm's options of a name.
    scenarios: your own instead of generated ones: a list, of which `num_test` are held out, or a
    `ScenarioSet`. measure: the true quality of a trajectory, 0 to 1, where you know it: reported, never
    trained on. backend: None is a `LocalBackend` under `path` (None: ./.art), closed at the end. cache: None
    is `llm-cache.sqlite3` under `path`. budget: of judge and generator together; when it is spent, training
    ends with what is learned. checks: what the judge undergoes meanwhile. tell: is given lines about the
    progress. settings: those of `TrainSettings`.

    All is written to `<path>/<project>/mcp/<name>`; the same call goes on where a run ended, and pays for no
    answer twice. Raises ConfigurationError, McpError, LlmErrors, and what rollouts and the backend raise.
    """
    chosen, begin = TrainSettings.of(settings), time.monotonic()
    root = Path(path) if path is not None else Path.cwd() / ".art"
    kept = cache or cache_in(root)
    model = model_of(root, name, project, base_model)
    judging = judge_of(
        model if judge == BASE else judge,
        judge_params,
        rubric=chosen.rubric,
        checks=checks,
        cache=kept,
        budget=budget,
    )
    writing = generator_of(generator, generator_params, cache=kept, budget=budget)
    asked = Asked(judge=judging, generator=writing)
    run = Run(server, RunFolder(root / project / "mcp" / name), chosen, asked, measure, tell or logger.info)
    run.open(base_model)
    made = await run.scenarios(scenarios)
    async with served(model, backend, root):
        return await run.learn(model, made, begin)


def cache_in(root: Path) -> AnswerCache:
    from art.llm.cache import DEFAULT_PATH, AnswerCache

    return AnswerCache(root / DEFAULT_PATH.name)


def model_of(root: Path, name: str, project: str, base_model: str) -> TrainableModel[Any, Any]:
    from art.model import TrainableModel

    return TrainableModel(name=name, project=project, base_model=base_model, base_path=str(root))


@asynccontextmanager
async def served(model: TrainableModel[Any, Any], backend: Backend | None, root: Path) -> AsyncIterator[None]:
    """The model is registered with the backend; a backend of our own lives as long as the block."""
    async with AsyncExitStack() as stack:
        if backend is not None:
            await model.register(backend)
        else:
            from art.local import LocalBackend

            await model.register(await stack.enter_async_context(LocalBackend(path=str(root))))
        yield
