"""One run of MCP-RL: its scenarios, then the course of every run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from art.mcp.attempts import ScenarioAttempts
from art.mcp.report import McpReport
from art.mcp.run_folder import McpFolder
from art.mcp.scenarios.checked import ScenarioSet
from art.mcp.scenarios.difficulty import clean_finish, learnable_first
from art.mcp.scenarios.origin import generated, of_ones_own, offered, require_same
from art.mcp.sessions.server import Server, StdioServer, parse_server
from art.mcp.settings import TrainSettings
from art.runs.attempts import TASK
from art.runs.course import Course, Tell
from art.runs.measure import Measure, mean, value_of
from art.trajectories import TrajectoryGroup

if TYPE_CHECKING:
    from art.mcp.asked import Asked
    from art.mcp.scenarios.origin import Scenarios
    from art.model import TrainableModel


LONG_S = 600.0
"""Of starting servers, one after another."""


class Run:
    """One run: what is done already is read from its folder, the rest is done."""

    def __init__(
        self,
        server: Any,
        folder: McpFolder,
        settings: TrainSettings,
        asked: Asked,
        measure: Measure | None,
        tell: Tell,
    ) -> None:
        self._server, self._folder, self._settings = server, folder, settings
        self._asked, self._measure, self._tell = asked, measure, tell

    def open(self, base_model: str) -> None:
        """Begin a new run or go on with the one in the folder; one that has no scenarios has not begun.

        Raises ConfigurationError where that one is of other settings, another server or base model.
        """
        now = {"base_model": base_model, "server": parse_server(self._server).label}
        if self._folder.scenarios() is None:
            self._folder.save_run({**now, "settings": self._settings.to_dict()})
        elif self._folder.open(now, self._settings):
            self._tell(f"going on with the run in {self._folder.path}")

    async def scenarios(self, given: Scenarios | None) -> ScenarioSet:
        """Those of the folder, those that were given, or newly generated ones."""
        saved = self._folder.scenarios()
        if saved is not None:
            if given is not None:
                require_same(given, saved, self._settings)
            return saved
        begin = time.monotonic()
        tools, resources = await offered(self._server, self._settings)
        if hint := about_starts(parse_server(self._server), self._settings, time.monotonic() - begin):
            self._tell(hint)
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
        attempts = ScenarioAttempts(model, self._settings, self._server)
        made = await self._measure_difficulty(attempts, made)
        course = Course(
            folder=self._folder,
            attempts=attempts,
            train=made.train,
            test=made.test,
            judge=self._asked.judges.training,
            referee=self._asked.judges.comparing,
            measure=self._measure,
            tell=self._tell,
        )
        outcome = await course.run()
        report = McpReport(
            server=parse_server(self._server).label,
            base_model=model.base_model,
            model=f"{model.project}/{model.name}",
            step=outcome.step,
            scenarios=made,
            steps=outcome.steps,
            comparison=outcome.comparison,
            same_judge=self._asked.judges.same,
            costs=self._asked.costs(),
            seconds=time.monotonic() - begin,
            stopped=outcome.stopped,
            folder=self._folder.path,
        )
        self._folder.save_report(report.to_markdown(), report.to_dict())
        return report

    async def _measure_difficulty(self, attempts: ScenarioAttempts, made: ScenarioSet) -> ScenarioSet:
        size = self._settings.difficulty_attempts
        unknown = [one for one in made.train if one.pass_rate is None]
        if not size or not unknown or await attempts.model.get_step():
            return made
        groups = await attempts.groups(unknown, size, what="measuring difficulty", seeded=True)
        rates = {group.metadata[TASK]: await pass_rate(group, self._measure) for group in groups}
        measured = [
            one if rates.get(one.task) is None else one.measured(rates[one.task] or 0.0) for one in made.train
        ]
        made = made.with_train(measured)
        if self._measure is not None:  # who only ends cleanly may still have something to learn
            least = max(self._settings.groups_per_step, len(measured) // 2)
            made = made.with_train(learnable_first(measured, least=least))
        known = [one.pass_rate for one in measured if one.pass_rate is not None]
        if known:
            does = "does" if self._measure is not None else "cleanly ends"
            spared = len(measured) - len(made.train)
            self._tell(
                f"{attempts.model.base_model} {does} {sum(known) / len(known):.0%} of its attempts at the "
                f"training scenarios{f'; {spared} that it always does are left out' if spared else ''}"
            )
        self._folder.save_scenarios(made)
        return made


def about_starts(server: Server, chosen: TrainSettings, seconds: float) -> str | None:
    """What starting a command for every attempt comes to, where that is long; seconds: one start."""
    attempts = chosen.total_steps(chosen.num_train) * chosen.groups_per_step * chosen.group_size
    attempts += chosen.num_train * chosen.difficulty_attempts + 2 * chosen.num_test * chosen.test_attempts
    if not isinstance(server, StdioServer) or attempts * seconds < LONG_S:
        return None
    return (
        f"each of some {attempts} attempts starts the server, which took {seconds:.1f} s: where it can also "
        "be reached at an address (streamable HTTP), that is faster"
    )


async def pass_rate(group: TrajectoryGroup, measure: Measure | None) -> float | None:
    """Mean over the attempts; None when all failed."""
    return mean([await value_of(one, measure or clean_finish) for one in group])
