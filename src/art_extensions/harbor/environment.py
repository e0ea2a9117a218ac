"""Harbor's tasks as an environment: `find_environment("harbor:path/to/tasks")`.

A scenario is a task folder. Each rollout has a sandbox of its own; its reward is what the task's tests give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import (
    MAX_TOKENS,
    SCENARIO_ID,
    RolloutConversation,
    Scenario,
    check_sizes,
    check_split,
    content_id,
    load_object,
    text_of_messages,
)
from art.environments.tasks import turn_seed
from art.errors import ConfigurationError, did_you_mean
from art.types import SHOW, Unscored
from art_extensions.harbor.jail import ProcessJail
from art_extensions.harbor.mini_swe_agent import CONFIG, NAME, MiniAgents, MiniSettings, MiniSweAgent
from art_extensions.harbor.sandbox import TaskSandbox
from art_extensions.harbor.shell_agent import PROMPT, CommandTurns, ShellAgent
from art_extensions.harbor.task_folders import HarborTask, dataset_names, find_tasks
from art_extensions.harbor.trial import do_nothing, run_trial, solve

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "harbor:"
JAIL = "jail"
SHOWN_CHARS = 2000
SANDBOXES = (JAIL, "docker", "podman", "daytona", "e2b", "modal", "runloop")


def make_sandbox(
    task: HarborTask, sandbox: str = JAIL, *, keep_going: bool = False, python: str | None = None
) -> TaskSandbox:
    """Returns the sandbox of a task, which is not started.

    sandbox: "jail", or one of Harbor's environment types, which are Harbor's own classes. keep_going: of the
    jail: a RUN that fails does not end the setup. python: the interpreter that has Harbor installed. Raises:
    ConfigurationError.
    """
    if sandbox == JAIL:
        return ProcessJail(task, keep_going=keep_going)
    if sandbox not in SANDBOXES and ":" not in sandbox:
        hint = did_you_mean(sandbox, SANDBOXES)
        raise ConfigurationError(
            f"sandbox {sandbox!r}{hint and f', {hint}'}: it is one of {', '.join(SANDBOXES)}, or "
            "MODULE:CLASS, a class of Harbor's form"
        )
    from art_extensions.harbor.containers import HarborContainer

    return HarborContainer(task, sandbox, python=python)


class HarborEnvironment:
    """Tasks by a path, or by a dataset of a registry.

    sandbox, keep_going, python: see `make_sandbox`. registry: a file of Harbor's form. val: how many tasks
    are those of the split "val". seed: which ones. agent: "module:function", an agent of your own (see
    `ShellAgent`); "mini-swe-agent"; None: the model writes commands. max_turns, command_s, shown_chars: of
    that agent, replies, seconds of a command, characters of its output. system_prompt: what it is told.
    agent_python, agent_config: of mini-swe-agent, its interpreter and its configuration (see
    `MiniSettings`), which has its prompts. deadline_s: the most that any of a task's deadlines may be, in
    seconds.

    Raises: ConfigurationError, also for an option that has no effect with the agent.
    """

    LIBRARY, HARNESS_OPTION = "harbor", "agent"

    @staticmethod
    def installed_names(*, registry: str | None = None) -> dict[str, str]:
        """Returns the datasets of a registry, or without one the folders of tasks below this folder."""
        if registry is not None:
            return dict.fromkeys(dataset_names(Path(registry)), "registry=FILE, as here")
        tasks = [path for depth in ("*", "*/*", "*/*/*") for path in Path().glob(f"{depth}/task.toml")]
        return dict.fromkeys(sorted({str(path.parent.parent) for path in tasks}), "")

    def __init__(
        self,
        name: str,
        /,
        *,
        sandbox: str = JAIL,
        keep_going: bool = False,
        python: str | None = None,
        registry: str | None = None,
        seed: int = 0,
        val: int = 1,
        agent: str | None = None,
        max_turns: int = 20,
        command_s: float = 30.0,
        shown_chars: int = SHOWN_CHARS,
        system_prompt: str = PROMPT,
        agent_python: str | None = None,
        agent_config: str | Sequence[str] = CONFIG,
        request: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.name = PREFIX + name
        check_sizes(self.name, 1, val)
        folders = find_tasks(name, None if registry is None else Path(registry))
        self._tasks = {folder.name: _limited(HarborTask.read(folder), deadline_s) for folder in folders}
        self._order = sorted(self._tasks, key=lambda task: content_id(str(seed), task))
        self._val = val
        self._sandbox = {"sandbox": sandbox, "keep_going": keep_going, "python": python}
        self._turns = {"max_turns": max_turns, "command_s": command_s, "shown_chars": shown_chars}
        self._mini: MiniSettings | None = None
        self._agent: ShellAgent | None = None
        if agent == NAME:
            _refuse(
                agent, {"shown_chars": shown_chars != SHOWN_CHARS, "system_prompt": system_prompt != PROMPT}
            )
            config = [agent_config] if isinstance(agent_config, str) else agent_config
            self._mini = MiniSettings(
                python=agent_python, config=config, max_turns=max_turns, command_s=command_s
            )
            self._agents = MiniAgents(str(self._mini.python))
        else:
            given = {"agent_python": agent_python is not None, "agent_config": agent_config != CONFIG}
            _refuse(agent, given)
            self._agent = None if agent is None else load_object("agent", agent)
        self._opening = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._request = dict(request or {})
        for task in self._tasks.values():
            self._make_sandbox(task)

    def _make_sandbox(self, task: HarborTask) -> TaskSandbox:
        return make_sandbox(task, **self._sandbox)  # type: ignore[arg-type]

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the tasks of a split. The only task of a dataset is one of "train" and of none besides."""
        check_split(self.name, split)
        held_out = min(self._val, len(self._order) - 1)
        names = self._order[:held_out] if split == "val" else self._order[held_out:]
        return [Scenario(f"{self.name}/{name}", {"task": name}) for name in names]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Runs one trial with the model as the agent. Arguments as of `NamedEnvironment.rollout`.

        Metrics: `turns`, `commands`, `malformed` (replies without a command), `submitted`, `agent_timed_out`,
        and the tests' own rewards. Tests that give no reward leave it unscored.
        """
        task = self._tasks[str(scenario.data["task"])]
        if self._mini is not None:
            seeded = {} if seed is None else {"seed": turn_seed(seed, 0)}
            request = {**self._request, "temperature": temperature, **seeded}
            request["max_tokens"] = MAX_TOKENS if max_tokens is None else max_tokens
            return await self._run_mini(
                MiniSweAgent(self._mini, self._agents, model, request), scenario, task
            )
        conversation = RolloutConversation(
            model,
            [*self._opening, {"role": "user", "content": task.instruction}],
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens,
            request=self._request,
        )
        turns = CommandTurns(**self._turns)  # type: ignore[arg-type]
        agent = self._agent or turns.work
        outcome = await run_trial(
            task, self._make_sandbox(task), lambda sandbox: agent(conversation, sandbox, task)
        )
        reward = outcome.reward
        if not conversation.turns:
            reward = Unscored(f"{task.name}: the agent asked the model for nothing")
        figures = {
            "commands": turns.commands,
            "malformed": turns.malformed,
            "submitted": turns.submitted,
        }
        return conversation.finish(
            scenario,
            reward=reward,
            metrics={
                "turns": float(conversation.turns),
                "agent_timed_out": float(outcome.agent_timed_out),
                **({} if self._agent else {name: float(value) for name, value in figures.items()}),
                **{f"tests/{name}": value for name, value in outcome.rewards.items()},
            },
            environment=self.name,
            task=task.name,
        )

    async def _run_mini(self, agent: MiniSweAgent, scenario: Scenario, task: HarborTask) -> Trajectory:
        outcome = await run_trial(task, self._make_sandbox(task), lambda sandbox: agent.work(sandbox, task))
        trajectory, reward = agent.trajectory, outcome.reward
        if not agent.turns:
            reward = Unscored(f"{task.name}: the agent asked the model for nothing")
        trajectory.reward = reward
        trajectory.metrics.update(agent.figures, agent_timed_out=float(outcome.agent_timed_out))
        trajectory.metrics.update({f"tests/{name}": value for name, value in outcome.rewards.items()})
        trajectory.metadata.update({SCENARIO_ID: scenario.id, "environment": self.name, "task": task.name})
        trajectory.metadata[SHOW] = text_of_messages(trajectory.messages())
        return trajectory

    async def score(self, scenario: Scenario, agent: str) -> float | Unscored:
        """Returns the reward of a task without a model: of its solution ("oracle"), or of nothing ("nop").

        Raises: EnvironmentFailedError.
        """
        task = self._tasks[str(scenario.data["task"])]
        work = do_nothing if agent == "nop" else lambda sandbox: solve(task, sandbox)
        return (await run_trial(task, self._make_sandbox(task), work)).reward

    async def close(self) -> None:
        """Does nothing: each rollout ends its sandbox."""


def _refuse(agent: str | None, given: Mapping[str, bool]) -> None:
    """Raises: ConfigurationError for an option that was given and has no effect with the agent."""
    for option, was_given in given.items():
        if was_given:
            other = (
                f"agent_config of {NAME} has its prompts" if agent == NAME else f"it is for agent={NAME!r}"
            )
            raise ConfigurationError(f"{option} has no effect with agent={agent!r}: {other}; leave it out")


def _limited(task: HarborTask, deadline_s: float | None) -> HarborTask:
    if deadline_s is None:
        return task
    shorter = {name: min(getattr(task, name), deadline_s) for name in ("setup_s", "agent_s", "verifier_s")}
    return replace(task, **shorter)
