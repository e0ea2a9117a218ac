"""One run of MCP-RL: scenarios, attempts before, training, attempts after, the comparison."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from art.errors import BudgetExceededError, ConfigurationError
from art.mcp.attempts import Attempts
from art.mcp.checked_scenarios import ScenarioSet
from art.mcp.comparison import Comparison, compare, figures_of, side_of
from art.mcp.difficulty import Measure, clean_finish, learnable_first, value_of
from art.mcp.planned import PlannedScenario
from art.mcp.report import McpReport
from art.mcp.run_folder import RunFolder, StepRow
from art.mcp.scenario_source import generated, of_ones_own, offered, require_same
from art.mcp.server import parse_server
from art.mcp.settings import TrainSettings
from art.trajectories import TrajectoryGroup
from art.types import Unscored

if TYPE_CHECKING:
    from art.mcp.asked import Asked
    from art.mcp.scenario_source import Scenarios
    from art.model import TrainableModel


Tell = Callable[[str], None]


class Run:
    """One run: what is done already is read from its folder, the rest is done."""

    def __init__(
        self,
        server: Any,
        folder: RunFolder,
        settings: TrainSettings,
        asked: Asked,
        measure: Measure | None,
        tell: Tell,
    ) -> None:
        self._server, self._folder, self._settings = server, folder, settings
        self._asked, self._measure, self._tell = asked, measure, tell

    def open(self, base_model: str) -> None:
        """Begin a new run or go on with the one in the folder.

        Raises ConfigurationError where that one is of other settings, another server or base model.
        """
        now = {"base_model": base_model, "server": parse_server(self._server).label}
        saved = self._folder.run()
        if saved is not None:
            for key, value in now.items():
                if saved[key] != value:
                    raise ConfigurationError(
                        f"the run in {str(self._folder.path)!r} has {key}={saved[key]!r}, not {value!r}; "
                        "give this one another name"
                    )
            self._settings.resumed(TrainSettings.of(saved["settings"]))
            self._tell(f"going on with the run in {self._folder.path}")
        self._folder.save_run({**now, "settings": self._settings.to_dict()})

    async def scenarios(self, given: Scenarios | None) -> ScenarioSet:
        """Those of the folder, those that were given, or newly generated ones."""
        saved = self._folder.scenarios()
        if saved is not None:
            if given is not None:
                require_same(given, saved, self._settings)
            return saved
        tools, resources = await offered(self._server, self._settings)
        self._tell(
            f"{len(tools)} tools: {', '.join(tool.name for tool in tools)}; {len(resources)} resources"
        )
        if given is not None:
            made = of_ones_own(given, self._settings, tools)
        else:
            made = await generated(self._server, self._asked.generator, self._settings, tools, resources)
        rejected = ", ".join(f"{name} {count}" for name, count in made.rejections.items()) or "none"
        self._tell(
            f"{len(made.train)} scenarios to train on, {len(made.test)} held out; rejected: {rejected}"
        )
        self._folder.save_scenarios(made)
        return made

    async def learn(self, model: TrainableModel[Any, Any], made: ScenarioSet, begin: float) -> McpReport:
        """Everything that the model is needed for. begin: when the call began, on the monotonic clock."""
        attempts = Attempts(
            model=model,
            server=self._server,
            settings=self._settings,
            slots=asyncio.Semaphore(self._settings.concurrency),
        )
        made = await self._measure_difficulty(attempts, made)
        await self._evaluate(attempts, made, 0)
        stopped = None
        try:
            await self._train(attempts, made)
        except BudgetExceededError as error:
            stopped = str(error)
            self._tell(f"training ends here: {error}")
        step = await model.get_step()
        await self._evaluate(attempts, made, step)
        report = McpReport(
            server=parse_server(self._server).label,
            base_model=model.base_model,
            model=f"{model.project}/{model.name}",
            step=step,
            scenarios=made,
            steps=tuple(self._folder.steps()),
            comparison=await self._compare(made, step),
            costs=self._asked.costs(),
            seconds=time.monotonic() - begin,
            stopped=stopped,
            folder=self._folder.path,
        )
        self._folder.save_report(report.to_markdown(), report.to_dict())
        return report

    async def _measure_difficulty(self, attempts: Attempts, made: ScenarioSet) -> ScenarioSet:
        size = self._settings.difficulty_attempts
        unknown = [one for one in made.train if one.pass_rate is None]
        if not size or not unknown or await attempts.model.get_step():
            return made
        groups = await attempts.groups(unknown, size, what="measuring difficulty", seeded=True)
        rates = {group.metadata["scenario"]: await pass_rate(group, self._measure) for group in groups}
        measured = [
            one if rates.get(one.task) is None else one.measured(rates[one.task] or 0.0) for one in made.train
        ]
        made = made.with_train(measured)
        if self._measure is not None:  # who only ends cleanly may still have something to learn
            least = max(self._settings.groups, len(measured) // 2)
            made = made.with_train(learnable_first(measured, least=least))
        known = [one.pass_rate for one in measured if one.pass_rate is not None]
        if known:
            does = "does" if self._measure is not None else "cleanly ends"
            self._tell(
                f"{attempts.model.base_model} {does} {sum(known) / len(known):.0%} of its attempts at the "
                f"training scenarios; {len(measured) - len(made.train)} that it always does are left out"
            )
        self._folder.save_scenarios(made)
        return made

    async def _evaluate(self, attempts: Attempts, made: ScenarioSet, step: int) -> None:
        """Attempts at the test scenarios by the adapter of `step`, the newest; once."""
        if self._folder.evaluation(step) is not None:
            return
        if await attempts.model.get_step() != step:
            raise ConfigurationError(
                f"{attempts.model.project}/{attempts.model.name} has been trained already, but "
                f"{str(self._folder.path)!r} has no attempts of before: give this run another name"
            )
        size = self._settings.test_attempts
        groups = await attempts.groups(made.test, size, what=f"evaluating step {step}", seeded=True)
        by_task = {group.metadata["scenario"]: group.trajectories for group in groups}
        self._folder.save_evaluation(step, [by_task.get(one.task, []) for one in made.test])

    async def _train(self, attempts: Attempts, made: ScenarioSet) -> None:
        model, total = attempts.model, self._settings.total_steps(len(made.train))
        done = await model.get_step()
        if done < total:
            size = self._settings.group_size
            self._tell(
                f"{total - done} steps of {self._settings.groups} x {size} attempts; the judge is asked "
                f"about {(total - done) * self._settings.groups} groups, then {len(made.test)} to compare"
            )
        for step in range(done, total):
            row = await self._train_step(attempts, made, step, total)
            self._folder.add_step(row)
            reward = "no scores" if row.reward is None else f"reward {row.reward:.3f}"
            told = ", ".join(f"{name} {value:.2f}" for name, value in row.figures.items())
            self._tell(f"step {row.step}/{total}: {reward}, {told}; {row.trained} of {row.rollouts} trained")

    async def _train_step(self, attempts: Attempts, made: ScenarioSet, step: int, total: int) -> StepRow:
        chosen, begin = self._settings, time.monotonic()
        scenarios = scenarios_of_step(made.train, step, chosen.groups, chosen.seed)
        groups = await attempts.groups(
            scenarios,
            chosen.group_size,
            what=f"step {step + 1}/{total}",
            seeded=False,
            after_each=self._asked.judge.reward.score_group,
        )
        gathered = time.monotonic()
        rate = chosen.rate_at(step, total)
        result = await attempts.model.train(groups, learning_rate=rate)
        flat = [one for group in groups for one in group]
        scored = [one.reward for one in flat if not isinstance(one.reward, Unscored)]
        return StepRow(
            step=step + 1,
            reward=sum(scored) / len(scored) if scored else None,
            figures=await figures_of(flat, self._measure),
            rollouts=len(flat),
            failed=sum(len(group.exceptions) for group in groups),
            unscored=len(flat) - len(scored),
            trained=int(result.metrics.get("data/sheet/trained_rollouts", 0)),
            learning_rate=rate,
            seconds_rollouts=round(gathered - begin, 3),
            seconds_training=round(time.monotonic() - gathered, 3),
        )

    async def _compare(self, made: ScenarioSet, step: int) -> Comparison:
        before, after = self._folder.evaluation(0) or [], self._folder.evaluation(step) or []
        size = self._settings.test_attempts
        sides = (await side_of(before, size, self._measure), await side_of(after, size, self._measure))
        tasks = [one.task for one in made.test]
        score = self._asked.judge.comparing.score_group
        try:
            return await compare(tasks, before, after, sides=sides, score=score)
        except BudgetExceededError as error:
            self._tell(f"before and after are not judged: {error}")
            return await compare(tasks, before, after, sides=sides, score=None)


def scenarios_of_step(
    train: tuple[PlannedScenario, ...], step: int, count: int, seed: int
) -> list[PlannedScenario]:
    """Those of `step` (from 0): every epoch is a permutation of its own, and depends on the seed alone."""
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, index = divmod(place, len(train))
        order = list(range(len(train)))
        random.Random(f"order/{seed}/{epoch}").shuffle(order)
        chosen.append(train[order[index]])
    return chosen


async def pass_rate(group: TrajectoryGroup, measure: Measure | None) -> float | None:
    """Mean over the attempts; None when all failed."""
    values = [await value_of(one, measure or clean_finish) for one in group]
    return sum(values) / len(values) if values else None
