"""One trial of a task: the sandbox is made, an agent works in it, and the tests give the reward."""

from __future__ import annotations

import math
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from art.environments.adapters.environment import end_within
from art.errors import EnvironmentFailedError, EnvironmentTimeoutError
from art.process.foreign_files import parse_json
from art.types import Unscored
from art_extensions.harbor.sandbox import CommandResult, TaskSandbox
from art_extensions.harbor.task_folders import SCRIPTS, HarborTask

REWARD_TEXT, REWARD_JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"
REWARD_BYTES = 65_536
"""At most so much of a file of rewards is read."""
MAIN_REWARD = "reward"
"""The one of several rewards that is the rollout's."""

Work = Callable[[TaskSandbox], Awaitable[object]]
"""What an agent does in a sandbox that is ready."""


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """The end of a trial."""

    reward: float | Unscored
    rewards: Mapping[str, float] = field(default_factory=dict)
    """All that the tests gave."""
    agent_timed_out: bool = False
    tests: str = ""
    """What the tests printed."""


async def run_trial(task: HarborTask, sandbox: TaskSandbox, work: Work) -> TrialOutcome:
    """Runs a trial, and closes the sandbox. The deadlines are the task's: an agent that does not end in time
    is stopped, and its work is tested.

    Raises: EnvironmentFailedError, EnvironmentTimeoutError where the sandbox cannot be made or fails, and
    what `work` raises.
    """
    try:
        await end_within(task.setup_s, f"{task.name}: the setup", sandbox.start())
        late = False
        try:
            await end_within(task.agent_s, f"{task.name}: the agent", work(sandbox))
        except EnvironmentTimeoutError:
            late = True
        return await _verify(task, sandbox, late)
    finally:
        await sandbox.close()


async def _verify(task: HarborTask, sandbox: TaskSandbox, late: bool) -> TrialOutcome:
    """Runs the tests, and reads the rewards that they wrote. Rewards that the agent wrote are removed."""
    await sandbox.run(f"rm -rf {REWARD_TEXT} {REWARD_JSON}", timeout_s=task.verifier_s, workdir="/")
    await sandbox.upload(task.folder / "tests", "/tests")
    script = f"mkdir -p /logs/verifier; chmod +x /tests/{SCRIPTS['tests']}; exec /tests/{SCRIPTS['tests']}"
    done = await sandbox.run(script, timeout_s=task.verifier_s, variables=task.verifier_variables)
    if done.timed_out:
        reason = f"{task.name}: the tests did not end within {task.verifier_s:g} s"
        return TrialOutcome(reward=Unscored(reason), agent_timed_out=late, tests=done.output)
    try:
        rewards = await _read_rewards(task, sandbox, done)
    except ValueError as error:
        reason = f"{task.name}: {error}"
        return TrialOutcome(reward=Unscored(reason), agent_timed_out=late, tests=done.output)
    reward = rewards.get(MAIN_REWARD, next(iter(rewards.values())) if len(rewards) == 1 else None)
    if reward is None:
        named = ", ".join(rewards)
        reason = f"{task.name}: the tests gave {named}, and none is called {MAIN_REWARD!r}"
        return TrialOutcome(reward=Unscored(reason), rewards=rewards, agent_timed_out=late, tests=done.output)
    return TrialOutcome(reward=reward, rewards=rewards, agent_timed_out=late, tests=done.output)


async def _read_rewards(task: HarborTask, sandbox: TaskSandbox, done: CommandResult) -> dict[str, float]:
    """Raises: ValueError that says what is wrong with what the tests wrote."""
    for path, is_json in ((REWARD_JSON, True), (REWARD_TEXT, False)):
        command = f"if [ -f {path} ]; then head -c {REWARD_BYTES} {path}; else exit 3; fi"
        read = await sandbox.run(command, timeout_s=task.verifier_s, workdir="/")
        if read.code == 3:
            continue
        if read.code or not read.output.strip():
            raise ValueError(f"{path} is empty or cannot be read")
        return _rewards_of_json(read.output, path) if is_json else {MAIN_REWARD: _number(read.output, path)}
    raise ValueError(f"the tests wrote no reward (status {done.code}): {done.output[-500:]}")


def _rewards_of_json(text: str, path: str) -> dict[str, float]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        found = {MAIN_REWARD: found}
    if not found:
        raise ValueError(f"{path} has no reward")
    return {str(name): _number(value, path) for name, value in found.items()}


def _number(value: object, path: str) -> float:
    """A reward. Raises: ValueError for what is no finite number."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{path} has {value!r:.60}, which is no finite number")
    return number


async def solve(task: HarborTask, sandbox: TaskSandbox) -> CommandResult:
    """The oracle: runs the task's own solution. Raises: EnvironmentFailedError where there is none."""
    if not (task.folder / "solution" / SCRIPTS["solution"]).is_file():
        raise EnvironmentFailedError(f"{task.name} has no solution/{SCRIPTS['solution']}")
    await sandbox.upload(task.folder / "solution", "/solution")
    path = shlex.quote(f"/solution/{SCRIPTS['solution']}")
    return await sandbox.run(
        f"chmod +x {path}; exec {path}", timeout_s=task.agent_s, variables=task.solution_variables
    )


async def do_nothing(sandbox: TaskSandbox) -> None:
    """The agent that does nothing: what is left is the reward of the task as it is."""
