"""One run of MCP-RL: its folder, the models that it asks, rollouts at scenarios, and its report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from art.environments.measure import MEASURE, Measure, mean_of_known, measured_value
from art.errors import ConfigurationError
from art.runs.folder import JudgedRunFolder
from art.runs.report import Costs, RunReport
from art.runs.training_run import TASK_METADATA, OnProgress, TaskRollouts, TrainingRun
from art.tracking.folders import stored_name
from art.trajectories import Trajectory, TrajectoryGroup
from art_extensions.scenarios.generator import generator_channel
from art_extensions.scenarios.judges import Candidate, Judges, judges_of
from art_extensions.scenarios.mcp.rollout import rollout
from art_extensions.scenarios.mcp.server_address import Server, StdioServer, parse_server
from art_extensions.scenarios.mcp.types import PlannedScenario
from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioSet, clean_finish, learnable_first
from art_extensions.scenarios.mcp_rl.generate_scenarios import COST_SOURCE
from art_extensions.scenarios.mcp_rl.settings import (
    TrainSettings,
    generate_scenario_set,
    require_same_scenarios,
    split_own_scenarios,
    tools_and_documents,
)
from art_extensions.scenarios.run_costs import channel_costs

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.rewards.llm.budget import Budget
    from art.rewards.llm.cache import AnswerCache
    from art.rewards.llm.channel import Channel
    from art_extensions.scenarios.mcp_rl.settings import Scenarios


COMPARED_METRICS = ("task_completed", "success", "ran_out_of_turns", "num_turns", "tool_errors")
"""The metrics of a rollout that are compared."""
CLEAN_FINISH = "clean_finish"


class ScenarioRollouts(TaskRollouts[PlannedScenario]):
    """A task is a scenario; a rollout has a session of its own."""

    def __init__(self, model: TrainableModel[Any, Any], settings: TrainSettings, server: Any) -> None:
        super().__init__(model, settings)
        self._settings, self._server = settings, server

    async def rollout(self, task: PlannedScenario, *, seed: int | None) -> Trajectory:
        chosen = self._settings
        return await rollout(
            self.model,
            task,
            self._server,
            max_turns=chosen.max_turns,
            deadline=chosen.deadline,
            call_timeout=chosen.call_timeout,
            result_limit=chosen.result_limit,
            allow_writes=chosen.allow_writes,
            system_prompt=chosen.system_prompt,
            temperature=chosen.temperature,
            max_tokens=chosen.max_tokens,
            seed=seed,
        )

    def text_of(self, task: PlannedScenario) -> str:
        return task.task

    def metadata_of(self, task: PlannedScenario) -> dict[str, float | int | str | bool | None]:
        return {"difficulty": task.difficulty}

    def figures_of(self, trajectory: Trajectory) -> dict[str, float]:
        return compared_metrics(trajectory)


def compared_metrics(trajectory: Trajectory) -> dict[str, float]:
    """The rollout's own figures, and whether it ended cleanly."""
    metrics = trajectory.metrics
    return {
        **{name: float(metrics[name]) for name in COMPARED_METRICS if name in metrics},
        CLEAN_FINISH: clean_finish(trajectory),
    }


@dataclass(frozen=True, kw_only=True)
class McpReport(RunReport):
    """A finished run."""

    NOUN: ClassVar[str] = "scenario"
    LABELS: ClassVar[Mapping[str, str]] = {
        **RunReport.LABELS,
        **{name: f"{name} (less is better)" for name in ("ran_out_of_turns", "num_turns", "tool_errors")},
    }

    server: str
    scenarios: ScenarioSet

    @property
    def base_rate(self) -> float | None:
        """Mean pass rate of the base model on the training scenarios; None: not measured."""
        rates = [one.pass_rate for one in self.scenarios.train if one.pass_rate is not None]
        return sum(rates) / len(rates) if rates else None

    def to_dict(self) -> dict[str, Any]:
        made = self.scenarios
        return {
            **super().to_dict(),
            "scenarios": {
                "train": len(made.train),
                "test": len(made.test),
                "rejected": made.rejections,
                "unplanned": made.unplanned,
                "tools": dict(made.tools),
                "pass_rate": self.base_rate,
            },
        }

    def opening(self) -> list[str]:
        return [f"Server: `{self.server}`\n"]

    def material(self) -> list[str]:
        made = self.scenarios
        reasons = ", ".join(f"{name} {count}" for name, count in made.rejections.items()) or "none"
        lines = [
            f"## Scenarios\n\n{len(made.train)} to train on, {len(made.test)} held out. Rejected: {reasons}.",
            f"Without a plan, so hardly checked: {made.unplanned}.",
        ]
        if self.base_rate is not None:
            known = MEASURE in self.comparison.before.figures
            does = "does" if known else "cleanly ends (whether with the right answer is not known)"
            lines.append(f"The base model {does} {self.base_rate:.0%} of its rollouts of the former.")
        if made.tools:
            lines.append(
                "In plans: " + ", ".join(f"{name} {count}" for name, count in made.tools.items()) + "."
            )
        return [*lines, ""]


SCENARIOS_FILE = "scenarios.json"


@dataclass(frozen=True)
class McpRunFolder(JudgedRunFolder):
    """Scenarios are generated once."""

    def scenarios(self) -> ScenarioSet | None:
        """The scenarios, once there are any."""
        data = self.read(SCENARIOS_FILE)
        return None if data is None else ScenarioSet.from_dict(data)

    def save_scenarios(self, scenarios: ScenarioSet) -> None:
        self.write(SCENARIOS_FILE, scenarios.to_dict())


@dataclass(frozen=True, kw_only=True)
class AskedModels:
    """The models that a run asks: those that judge, one that generates."""

    judges: Judges
    generator: Channel | ConfigurationError
    """Why its model cannot be asked, where it cannot: it may not be needed."""

    def costs(self) -> Costs:
        """Returns the costs of the models in this process, by role."""
        writing = {} if isinstance(self.generator, ConfigurationError) else {"generator": self.generator}
        return {
            role: channel_costs(channel) for role, channel in {**writing, **self.judges.channels()}.items()
        }


def scenario_generator(
    generator: Any, generator_params: Mapping[str, Any] | None, *, cache: AnswerCache, budget: Budget | None
) -> Channel | ConfigurationError:
    """The way to the model that writes scenarios, or why there is none."""
    try:
        return generator_channel(
            generator, source=COST_SOURCE, params=generator_params, cache=cache, budget=budget
        )
    except ConfigurationError as error:
        return error


def run_judges(judge: Candidate, referee: Candidate | None, rubric: str | None) -> Judges:
    """Raises ConfigurationError for a rubric that no judge would go by."""
    from art.rewards.reward import Reward

    if rubric is not None and isinstance(judge.judge, Reward):
        raise ConfigurationError(
            f"rubric={rubric!r} is for a judge by name; give it to {judge.judge.name!r} itself"
        )
    return judges_of(judge, referee, rubric)


LONG_STARTS_S = 600.0
"""The seconds of starting servers, one after another, from which on the user is told."""


class McpRun:
    """One run: what is done already is read from its folder, the rest is done."""

    def __init__(
        self,
        server: Any,
        folder: McpRunFolder,
        settings: TrainSettings,
        asked: AskedModels,
        measure: Measure | None,
        tell: OnProgress,
    ) -> None:
        self._server, self._folder, self._settings = server, folder, settings
        self._asked, self._measure, self._tell = asked, measure, tell

    def open(self, base_model: str) -> None:
        """Starts a new run or resumes the one in the folder; a run without scenarios counts as new.

        Raises ConfigurationError where that one is of other settings, another server or base model.
        """
        now = {"base_model": base_model, "server": parse_server(self._server).label}
        if self._folder.scenarios() is None:
            self._folder.save_run({**now, "settings": self._settings.to_dict()})
        elif self._folder.open(now, self._settings):
            self._tell(f"going on with the run in {self._folder.path}")

    async def scenarios(self, own_scenarios: Scenarios | None) -> ScenarioSet:
        """Returns the scenarios of the folder, the given ones, or newly generated ones."""
        saved = self._folder.scenarios()
        if saved is not None:
            if own_scenarios is not None:
                require_same_scenarios(own_scenarios, saved, self._settings)
            return saved
        begin = time.monotonic()
        tools, resources = await tools_and_documents(self._server, self._settings)
        if hint := server_start_hint(parse_server(self._server), self._settings, time.monotonic() - begin):
            self._tell(hint)
        self._tell(
            f"{len(tools)} tools: {', '.join(tool.name for tool in tools)}; {len(resources)} resources"
        )
        if own_scenarios is not None:
            made = split_own_scenarios(own_scenarios, self._settings, tools)
        else:
            made = await generate_scenario_set(
                self._server, self._asked.generator, self._settings, tools, resources
            )
        rejected = ", ".join(f"{name} {count}" for name, count in made.rejections.items()) or "none"
        self._tell(
            f"{len(made.train)} scenarios to train on, {len(made.test)} held out; rejected: {rejected}"
        )
        self._folder.save_scenarios(made)
        return made

    async def learn(self, model: TrainableModel[Any, Any], made: ScenarioSet, begin: float) -> McpReport:
        """Runs all parts that need the model. begin: when the call began, on the monotonic clock."""
        rollouts = ScenarioRollouts(model, self._settings, self._server)
        made = await self._measure_difficulty(rollouts, made)
        training = TrainingRun(
            folder=self._folder,
            rollouts=rollouts,
            train=made.train,
            test=made.test,
            judge=self._asked.judges.training,
            referee=self._asked.judges.comparing,
            measure=self._measure,
            tell=self._tell,
        )
        outcome = await training.run()
        report = McpReport(
            server=parse_server(self._server).label,
            base_model=model.base_model,
            model=f"{model.project}/{stored_name(model)}",
            step=outcome.step,
            scenarios=made,
            steps=outcome.steps,
            comparison=outcome.comparison,
            same_judge=self._asked.judges.has_one_judge,
            costs=self._asked.costs(),
            seconds=time.monotonic() - begin,
            stopped=outcome.stopped,
            folder=self._folder.path,
        )
        self._folder.save_report(report.to_markdown(), report.to_dict())
        return report

    async def _measure_difficulty(self, rollouts: ScenarioRollouts, made: ScenarioSet) -> ScenarioSet:
        size = self._settings.difficulty_rollouts
        unknown = [one for one in made.train if one.pass_rate is None]
        if not size or not unknown or await rollouts.model.get_step():
            return made
        groups = await rollouts.groups(unknown, size, what="measuring difficulty", seeded=True)
        rates = {group.metadata[TASK_METADATA]: await pass_rate(group, self._measure) for group in groups}
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
                f"{rollouts.model.base_model} {does} {sum(known) / len(known):.0%} of its rollouts of the "
                f"training scenarios{f'; {spared} that it always does are left out' if spared else ''}"
            )
        self._folder.save_scenarios(made)
        return made


def server_start_hint(server: Server, chosen: TrainSettings, seconds: float) -> str | None:
    """Returns a hint on the time of starting a command for every rollout, if it is long; seconds: one
    start.
    """
    rollouts = chosen.total_steps(chosen.num_train) * chosen.groups_per_step * chosen.group_size
    rollouts += chosen.num_train * chosen.difficulty_rollouts + 2 * chosen.num_test * chosen.eval_group_size
    if not isinstance(server, StdioServer) or rollouts * seconds < LONG_STARTS_S:
        return None
    return (
        f"each of some {rollouts} rollouts starts the server, which took {seconds:.1f} s: where it can also "
        "be reached at an address (streamable HTTP), that is faster"
    )


async def pass_rate(group: TrajectoryGroup, measure: Measure | None) -> float | None:
    """Mean over the rollouts; None when all failed."""
    return mean_of_known([await measured_value(one, measure or clean_finish) for one in group])
