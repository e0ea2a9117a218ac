"""One rollout at a scenario: a model with the tools of an MCP server, until it says that it is done."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from art.environments.tasks import turn_seed
from art.errors import ConfigurationError, McpTimeoutError
from art.process.foreign_files import parse_json
from art.types import completion_call
from art_extensions.scenarios.mcp.session import START_S, Session, Writes, connect
from art_extensions.scenarios.mcp.types import GeneratedScenario, MCPTool, ToolResult, complete_task_tool

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory
    from art_extensions.scenarios.mcp.cassette import Cassette


NAME_LIMIT = 64
"""Characters of a tool's name that OpenAI-compatible endpoints take."""
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")


class OfferedTools:
    """A server's tools and `complete_task`, under names that every endpoint takes.

    The protocol allows names such as `files/read.text`; the model sees `files_read_text`.
    """

    def __init__(self, tools: Sequence[MCPTool]) -> None:
        self.tools_by_name: dict[str, str] = {}
        """The servers' names of tools, by the names that the model calls."""
        self.schemas: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {complete_task_tool.name: 1}
        """How many tools have a name, by the names that are taken."""
        for tool in tools:
            shown = self._free(_FORBIDDEN.sub("_", tool.name)[:NAME_LIMIT])
            self.tools_by_name[shown] = tool.name
            self.schemas.append(replace(tool, name=shown).to_tool_schema())
        self.schemas.append(complete_task_tool.to_tool_schema())

    @property
    def has_tools(self) -> bool:
        """Returns whether the server has any tool to offer."""
        return bool(self.tools_by_name)

    @property
    def names(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [*self.tools_by_name, complete_task_tool.name]

    def _free(self, name: str) -> str:
        free = name
        while free in self._numbers:
            self._numbers[name] += 1
            ending = f"_{self._numbers[name]}"
            free = name[: NAME_LIMIT - len(ending)] + ending
        self._numbers[free] = 1
        return free


SYSTEM_PROMPT = (
    "You complete tasks with the tools that you have. You have at most {max_turns} turns. When the task is "
    "done, call complete_task with a summary of what you did and what you found."
)
"""What the agent is told where nothing else is given; `{max_turns}` is filled in."""


@dataclass(frozen=True, kw_only=True)
class _RolloutLimits:
    """The limits of one rollout."""

    max_turns: int
    deadline: float
    call_timeout: float
    result_limit: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ConfigurationError(f"{name}={value!r}: must be above 0")


async def rollout(
    model: Model,
    scenario: GeneratedScenario | Mapping[str, Any] | str,
    server: Any,
    *,
    max_turns: int = 10,
    deadline: float = 300.0,
    call_timeout: float = 60.0,
    result_limit: int = 8000,
    allow_writes: Writes = (),
    system_prompt: str | None = None,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
    cassette: Cassette | None = None,
) -> Trajectory:
    """Runs `model` on `scenario` in a session of its own with `server`; the trajectory is not judged yet.

    scenario: a `GeneratedScenario`, a dict of one, or the task's text. server: as `parse_server` takes it;
    None with a cassette that replays. max_turns: completions. deadline: seconds for the whole rollout;
    call_timeout: seconds for one tool call. result_limit: characters of a tool's answer that the model sees.
    allow_writes: tools that it may call though they may write; other writing tools are not offered and are
    refused. system_prompt: None: `SYSTEM_PROMPT`; "": none. max_tokens: of one completion. seed: the same
    seed asks for the same sampling.

    What goes wrong with a call (its arguments, the tool's own error, its deadline) is told to the model,
    which goes on. Metrics: task_completed (it called complete_task), success (and said what it did),
    ran_out_of_turns, num_turns, tool_errors. Metadata: scenario (the task's
    text), difficulty where it is known, server.

    Raises McpError when the server cannot be reached or is gone, McpTimeoutError at the deadline,
    ConfigurationError when there is no tool to offer, and what the model's client raises: the rollout failed,
    which says nothing about the agent.
    """
    limits = _RolloutLimits(
        max_turns=max_turns, deadline=deadline, call_timeout=call_timeout, result_limit=result_limit
    )
    task, difficulty = _task_of(scenario)
    sampling: dict[str, Any] = {"temperature": temperature}
    if max_tokens is not None:
        sampling["max_tokens"] = max_tokens
    try:
        async with (
            asyncio.timeout(deadline) as clock,
            connect(
                server, timeout=min(deadline, START_S), allow_writes=allow_writes, cassette=cassette
            ) as session,
        ):
            made = await _Rollout.begin(model, session, task, limits, system_prompt)
            made.trajectory.metadata.update(difficulty)
            return await made.run(sampling, seed)
    except TimeoutError as error:
        if isinstance(error, McpTimeoutError) or not clock.expired():
            raise
        raise McpTimeoutError(f"the rollout of {task[:80]!r} took longer than {deadline:g} s") from error


def _task_of(scenario: GeneratedScenario | Mapping[str, Any] | str) -> tuple[str, dict[str, int]]:
    """The task's text, and its difficulty where it has one."""
    if isinstance(scenario, str):
        return scenario, {}
    known = GeneratedScenario.from_dict(scenario) if isinstance(scenario, Mapping) else scenario
    return known.task, {"difficulty": known.difficulty}


class _Rollout:
    """The conversation, turn by turn."""

    def __init__(
        self,
        model: Model,
        session: Session,
        offered: OfferedTools,
        trajectory: Trajectory,
        limits: _RolloutLimits,
    ) -> None:
        self._model, self._session, self._offered = model, session, offered
        self.trajectory, self._limits = trajectory, limits
        self._record: list[Any] = trajectory.messages_and_choices
        self._tool_errors = 0
        self._completed = self._summarised = False

    @classmethod
    async def begin(
        cls,
        model: Model,
        session: Session,
        task: str,
        limits: _RolloutLimits,
        system_prompt: str | None,
    ) -> _Rollout:
        """Open the conversation with the tools that may be called."""
        from art.trajectories import Trajectory

        allowed = [tool for tool in await session.tools() if session.allows(tool.name)]
        offered = await asyncio.to_thread(OfferedTools, allowed)  # a server may list very many
        if not offered.has_tools and await session.tools():
            raise ConfigurationError(
                f"no tool of {session.label!r} may be called: the server marks none as read-only. Name those "
                f"that only read in the server's read_only=(...), or allow_writes=[...]"
            )
        system = SYSTEM_PROMPT.format(max_turns=limits.max_turns) if system_prompt is None else system_prompt
        # A plain dict of the shape that OpenAI's message types describe, as all that is added later.
        opening: list[Any] = [{"role": "system", "content": system}] if system else []
        trajectory = Trajectory(
            messages_and_choices=[*opening, {"role": "user", "content": task}],
            tools=cast("list[Any]", offered.schemas),
            reward=0.0,
            metadata={"scenario": task, "server": session.label},
        )
        return cls(model, session, offered, trajectory, limits)

    async def run(self, sampling: Mapping[str, Any], seed: int | None) -> Trajectory:
        """Turns until the agent is done, has nothing to call, or has no turns left."""
        completions = self._model.openai_client().chat.completions
        turn, stopped = 0, False
        while turn < self._limits.max_turns and not stopped:
            optional: dict[str, Any] = {} if seed is None else {"seed": turn_seed(seed, turn)}
            completion = await completions.create(
                model=self._model.get_inference_name(),
                messages=self.trajectory.messages(),
                tools=cast("Any", self.trajectory.tools),
                timeout=self._limits.deadline,
                **{**sampling, **optional},
            )
            choice = completion.choices[0]
            self._record.append(choice)
            turn += 1
            stopped = await self._answer(choice)
        self.trajectory.metrics.update(
            task_completed=self._completed,
            success=self._completed and self._summarised,
            ran_out_of_turns=not stopped,
            num_turns=turn,
            tool_errors=self._tool_errors,
        )
        return self.trajectory.finish()

    async def _answer(self, choice: Any) -> bool:
        """Carry out the calls of a turn in their order; whether the rollout has ended."""
        calls, times = choice.message.tool_calls or [], completion_call(choice).setdefault("tools", {})
        for call in calls:
            function = getattr(call, "function", None)
            name = str(getattr(function, "name", ""))
            arguments = _arguments(getattr(function, "arguments", None))
            if name == complete_task_tool.name and isinstance(arguments, dict):
                self._completed = True
                self._summarised = bool(str(arguments.get("summary") or "").strip())
                return True
            started_at = time.time()
            result = await self._call(name, arguments)
            times[call.id] = (started_at, time.time())
            self._tool_errors += result.is_error
            self._record.append({"role": "tool", "tool_call_id": call.id, "content": result.text})
        return not calls

    async def _call(self, name: str, arguments: dict[str, Any] | str) -> ToolResult:
        tool = self._offered.tools_by_name.get(name)
        if isinstance(arguments, str):
            return _refused(f"the arguments of {name!r} are {arguments}")
        if tool is None:
            return _refused(f"there is no tool {name!r}; the tools are: {', '.join(self._offered.names)}")
        limits = self._limits
        try:
            return await self._session.call(
                tool, arguments, timeout=limits.call_timeout, limit=limits.result_limit
            )
        except McpTimeoutError:
            return _refused(f"{name!r} did not answer within {limits.call_timeout:g} s")


def _arguments(text: Any) -> dict[str, Any] | str:
    """A call's arguments, or what is wrong with them."""
    try:
        arguments = parse_json(text or "{}")
    except (TypeError, ValueError) as error:
        return f"no valid JSON: {error}"
    return arguments if isinstance(arguments, dict) else "no JSON object"


def _refused(reason: str) -> ToolResult:
    return ToolResult(text=f"Error: {reason}", is_error=True)
