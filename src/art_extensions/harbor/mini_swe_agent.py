"""mini-swe-agent as the agent of a task: the package's own loop and prompts, unmodified.

It runs in an interpreter of its own (`mini_worker.py`) and asks the model at the address of an
`art.rollout`, with litellm. Its commands run in the sandbox of the task.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from art.client.rollout import rollout
from art.environments.adapters.environment import REQUEST_S
from art.errors import ConfigurationError, EnvironmentFailedError
from art.model import Model
from art.process.environment import inherited_variables
from art.trajectories import Trajectory, is_choice
from art_extensions.harbor.sandbox import TaskSandbox
from art_extensions.harbor.task_folders import HarborTask

NAME = "mini-swe-agent"
CONFIG = ("mini_textbased.yaml", "model.model_class=litellm_textbased")
"""The package's prompts for models that write commands as text."""
CONFIGS = MappingProxyType({"small-model": str(Path(__file__).with_name("small-model.yaml"))})
"""Configurations of ours by name: a short prompt with two answered tasks."""
WORKER = Path(__file__).with_name("mini_worker.py")
LINE_BYTES = 64 << 20
SUBMITTED = "Submitted"
"""The package's word for an end at which the model gave its work up for the tests."""


@dataclass(frozen=True, kw_only=True)
class MiniSettings:
    """The settings of mini-swe-agent. config: as its own `-c` takes it, names, files and NAME=VALUE, in this
    order, or a name of `CONFIGS`. max_turns: completions of a rollout. command_s: seconds of a command.
    python: None is this interpreter, or else that of the command `mini`, whichever has the package.
    """

    python: str | None = None
    config: Sequence[str] = CONFIG
    max_turns: int = 20
    command_s: float = 30.0

    def __post_init__(self) -> None:
        """Raises: ConfigurationError where the interpreter is missing."""
        object.__setattr__(self, "config", [CONFIGS.get(one, one) for one in self.config])
        if self.python is None:
            object.__setattr__(self, "python", _installed_python())
        if self.python is None or not Path(self.python).is_file():
            found = "no interpreter is named" if self.python is None else f"{self.python!r} is no file"
            raise ConfigurationError(
                f"agent={NAME!r} needs the package mini-swe-agent, and {found}. Install it with "
                "`python -m venv agents && agents/bin/pip install mini-swe-agent`, and give "
                'agent_python="agents/bin/python", or put its command `mini` on the PATH'
            )


def _installed_python() -> str | None:
    if find_spec("minisweagent") is not None:
        return sys.executable
    if (command := shutil.which("mini")) is None:
        return None
    place = Path(command).resolve().parent
    has_package = any(place.parent.glob("lib/python*/site-packages/minisweagent"))
    return str(place / "python") if has_package else None


class MiniSweAgent:
    """The agent of one rollout. Its trajectory and figures are complete when `work` has ended."""

    def __init__(
        self,
        settings: MiniSettings,
        agents: MiniAgents,
        model: Model[Any, Any],
        request: Mapping[str, Any],
    ) -> None:
        """request: arguments of each completion (temperature, max_tokens, seed, extra_body).

        Raises: ConfigurationError for a model without a server of ours, which keeps what was sampled.
        """
        if not model.trainable:
            raise ConfigurationError(
                f"agent={NAME!r}: its completions are kept by ART's server: use a registered "
                "art.TrainableModel"
            )
        self._settings, self._agents = settings, agents
        self._model, self._request = model, request
        self.trajectory = Trajectory(reward=0.0)
        self.figures: dict[str, float] = {}
        """`turns`, `commands`, `malformed`, `submitted`; empty after an agent that did not end in time."""

    async def work(self, sandbox: TaskSandbox, task: HarborTask) -> None:
        """Runs the agent to its end. Raises: EnvironmentFailedError, and what `art.rollout` raises."""
        _, at, step = self._model.get_inference_name().rpartition("@")
        scope = rollout(self._model, step=int(step) if at else None)  # type: ignore[arg-type]
        self.trajectory = scope.trajectory
        async with scope:
            asked = {
                "task": task.instruction,
                "config": self._settings.config,
                "settings": self._merged(scope),
            }
            end = await self._agents.run_agent(asked, sandbox)
        if "error" in end or (end["problem"] and not self.turns):
            raise EnvironmentFailedError(f"{NAME}: {end.get('error') or end['problem']}")
        figures = {name: float(end[name]) for name in ("commands", "malformed")}
        self.figures = {"turns": self.turns, **figures, "submitted": float(end["status"] == SUBMITTED)}

    @property
    def turns(self) -> int:
        """Returns the number of completions that are in the trajectory."""
        parts = [one.messages_and_choices for one in self.trajectory.additional_histories]
        return sum(is_choice(one) for part in [self.trajectory.messages_and_choices, *parts] for one in part)

    def _merged(self, scope: rollout) -> dict[str, Any]:
        """Returns what no configuration file can know: the model's address, and the limits."""
        address = {"api_base": scope.base_url, "api_key": str(scope.api_key), "timeout": REQUEST_S}
        return {
            "agent": {"step_limit": self._settings.max_turns, "cost_limit": 0.0},
            "environment": {"timeout": max(1, round(self._settings.command_s))},
            "model": {
                "model_name": f"openai/{scope.model_name}",
                "model_kwargs": {**self._request, **address},
                "cost_tracking": "ignore_errors",
            },
        }


class MiniAgents:
    """The agents of all rollouts that are under way, which share a process."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._numbers = count()
        self._process: MiniProcess | None = None

    async def run_agent(self, asked: dict[str, Any], sandbox: TaskSandbox) -> dict[str, Any]:
        """Runs the commands that an agent asks for. Returns how it ended, or {"error": ...}."""
        if self._process is None or self._process.ended:
            self._process = MiniProcess(self._python)
        process, number = self._process, next(self._numbers)
        heard = process.open[number] = asyncio.Queue[dict[str, Any]]()
        try:
            await asyncio.shield(process.started)
            process.send(number, asked)
            while "end" not in (one := await heard.get()):
                done = await sandbox.run(one.pop("command"), **one)
                process.send(number, {"code": done.code, "output": done.output, "timed_out": done.timed_out})
            end: dict[str, Any] = one["end"]
            return end
        finally:
            await process.leave(number)


class MiniProcess:
    """One process. It ends with the last of its agents."""

    def __init__(self, python: str) -> None:
        self.open: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        """What the process says to each rollout."""
        self.ended = False
        self.started = asyncio.create_task(self._start(python))

    async def _start(self, python: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="art-mini-")
        self._process = await asyncio.create_subprocess_exec(
            python,
            str(WORKER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_BYTES,
            env={**inherited_variables(), **_VARIABLES, "MSWEA_GLOBAL_CONFIG_DIR": self._folder.name},
        )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            heard = json.loads(line)
            if waiting := self.open.get(heard.pop("number")):
                waiting.put_nowait(heard)
        self.ended = True
        for waiting in self.open.values():
            waiting.put_nowait({"end": {"error": "its process ended"}})

    def send(self, number: int, value: dict[str, Any]) -> None:
        """Writes a line to the process, which has started."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"number": number, **value}).encode() + b"\n")

    async def leave(self, number: int) -> None:
        """Stops an agent, if it has not ended. Ends the process of the last one."""
        del self.open[number]
        if self.open:
            if self.started.done() and not self.ended:
                self.send(number, {"stop": True})
            return
        self.ended = True
        await self.started
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader
        self._folder.cleanup()


_VARIABLES = {
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""The package starts without a greeting, and litellm without a look-up of prices."""
