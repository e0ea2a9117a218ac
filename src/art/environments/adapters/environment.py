"""The protocol of an environment by name, and what its adapters have in common.

    environment = find_environment("tic-tac-toe")             art.environments.adapters.registry
    scenarios = environment.scenarios("train")
    trajectory = await environment.rollout(model, scenarios[0])

An adapter has a file of its own. It builds on two things here: `EnvironmentThread` calls foreign code with a
deadline, `RolloutConversation` asks the model and becomes the trajectory.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import queue
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from art.environments.tasks import Message, turn_seed
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError
from art.types import SHOW, is_choice, sample_id, text_of_content

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory
    from art.types import Unscored

T = TypeVar("T")
SPLITS = ("train", "val")
SCENARIO_ID = "scenario_id"
"""The key of a trajectory's metadata with the id of its scenario."""
CALL_S = 60.0
"""The deadline of one call of an environment's own code, in seconds."""
ROLLOUT_S = 3600.0
"""The deadline of a rollout whose calls have none, in seconds."""
REQUEST_S = 120.0
"""The deadline of one request to the model, in seconds."""
MAX_TOKENS = 256
"""Limit of one completion in tokens, where the caller gives none."""


@dataclass(frozen=True)
class Scenario:
    """One task instance of an environment."""

    id: str
    """The same scenario has the same id in every process."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """JSON values, of which the adapter makes it again."""
    weight: float = 1.0
    """How often its groups count in the loss."""


class NamedEnvironment(Protocol):
    """An environment with scenarios and rollouts; all adapters have this face."""

    name: str
    """The name with its prefix, such as `reasoning-gym:letter_counting`."""

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of "train" or "val": the same in every process, none in both. Raises
        ConfigurationError for another split.
        """
        ...

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Runs one rollout through the model's endpoint.

        The trajectory has a reward, the parts of the reward as metrics, and the scenario's id and a text for
        people in its metadata. With `seed` the environment and each request are seeded. `max_tokens`: limit
        of one completion. Raises what the model's client raises, and EnvironmentFailedError where the
        environment fails or does not answer in time.
        """
        ...

    async def close(self) -> None:
        """Ends what the environment has started."""
        ...


def check_split(name: str, split: str) -> None:
    """Raises ConfigurationError, which names the environment, unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise ConfigurationError(f"environment {name!r} has no split {split!r}: use 'train' or 'val'")


def check_sizes(name: str, train: int, val: int) -> None:
    """Raises ConfigurationError unless both splits have a scenario."""
    for split, size in (("train", train), ("val", val)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigurationError(
                f"environment {name!r}: {split}={size!r} is no number of scenarios; give 1 or more"
            )


def scenario_seed(seed: int, split: str, index: int) -> int:
    """Returns the seed of the scenario at `index` of a split of the stream `seed`, below 2**31.

    Seeds of "train" are even and those of "val" odd, so that no split has one of the other. It depends on
    neither size: a split that gets longer keeps its scenarios.
    """
    return (turn_seed(seed, index) >> 1 << 1) + SPLITS.index(split)


def load_object(option: str, text: str) -> Any:
    """Returns what "module:name" names, with the current folder searched first. Raises ConfigurationError."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ConfigurationError(f"{option} {text!r}: write module:name, such as rollout:rollout")
    loaded = load_module(option, text, module)
    try:
        return getattr(loaded, name)
    except AttributeError as error:
        raise ConfigurationError(f"{option} {text!r}: {error}") from error


def load_module(option: str, text: str, module: str) -> Any:
    """Returns a module, with the current folder searched first. Raises ConfigurationError, which says that
    `option` was given `text`.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{option} {text!r}: {error}. Run the command in the folder of {module.partition('.')[0]}.py"
        ) from error


async def end_within(deadline_s: float, what: str, work: Awaitable[T]) -> T:
    """Returns what the work gives. Raises EnvironmentTimeoutError where it does not end in time."""
    try:
        async with asyncio.timeout(deadline_s) as limit:
            return await work
    except TimeoutError as late:
        if not limit.expired():  # the work's own
            raise
        raise EnvironmentTimeoutError(f"{what} did not end within {deadline_s:g} s") from late


class _RandomTurn:
    """The turn with Python's global generator. A thread whose call is given up loses it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: int | None = None
        self._before: Any = None

    def take(self, state: Any) -> None:
        """Waits for the turn, and sets the generator to this state."""
        with self._changed:
            self._changed.wait_for(lambda: self._holder is None)
            self._holder, self._before = threading.get_ident(), random.getstate()
            random.setstate(state)

    def give_back(self, thread: int | None) -> Any:
        """Returns the generator's state, and sets it to what it was; None if it is not this thread's turn."""
        with self._changed:
            if thread is None or self._holder != thread:
                return None
            state = random.getstate()
            random.setstate(self._before)
            self._holder = None
            self._changed.notify_all()
            return state


_GLOBAL_RANDOM = _RandomTurn()


class OwnRandom:
    """A state of Python's global generator for a library that draws from it.

    Rollouts at the same time do not draw from each other's, nor from that of the user's program.
    """

    def __init__(self, seed: int | str | None) -> None:
        self._state = random.Random(seed).getstate()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Lets the global generator go on from this state inside the block. One block runs at a time."""
        _GLOBAL_RANDOM.take(self._state)
        try:
            yield
        finally:
            self._state = _GLOBAL_RANDOM.give_back(threading.get_ident()) or self._state


class EnvironmentThread:
    """Calls the code of one world in a thread of its own, each call with a deadline.

    The event loop goes on meanwhile, and all calls see the same thread. A call that misses its deadline fails
    its rollout and keeps nothing else waiting: the thread is a daemon, which does not delay the end of the
    process.

        with EnvironmentThread(name) as thread:
            observation = await thread.call("reset", world.reset)
    """

    def __init__(self, name: str, *, deadline_s: float = CALL_S) -> None:
        self.name = name
        self.deadline_s = deadline_s
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._abandoned = False
        """A call was not waited for until its end."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._work, name=f"environment {self.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._calls.put(None)

    async def call(self, action: str, function: Callable[..., Any], *given: Any) -> Any:
        """Returns what the function returns.

        action: what it does, for errors ("reset", "step"). Raises EnvironmentFailedError with the
        environment's error as its cause, EnvironmentTimeoutError after `deadline_s`.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def deliver(outcome: tuple[Any, BaseException | None]) -> None:
            if not answer.done():
                answer.set_result(outcome)

        def run() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = context.run(function, *given), None
            except BaseException as error:  # noqa: BLE001  # the environment's (sys.exit too): the waiter raises
                outcome = None, error
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(deliver, outcome)

        self._calls.put(run)
        try:
            async with asyncio.timeout(self.deadline_s):
                value, error = await answer
        except TimeoutError as late:
            self._abandon()
            raise EnvironmentTimeoutError(
                f"environment {self.name!r}: {action} did not answer within {self.deadline_s:g} s"
            ) from late
        except asyncio.CancelledError:
            self._abandon()
            raise
        if isinstance(error, ConfigurationError):
            raise error
        if error is not None:
            raise EnvironmentFailedError(
                f"environment {self.name!r}: {action} failed: {type(error).__name__}: {error}"
            ) from error
        return value

    def _abandon(self) -> None:
        self._abandoned = True
        _GLOBAL_RANDOM.give_back(self._thread.ident)

    async def close_world(self, world: Any) -> None:
        """Calls the world's `close`, if it has one. After a call that nobody waited for, nobody waits for
        this one either: it follows when that call ends.
        """
        if not hasattr(world, "close"):
            return
        if not self._abandoned:
            await self.call("close", world.close)
            return

        def close_quietly() -> None:
            with suppress(Exception):  # the rollout has failed already, and nobody hears of a second error
                world.close()

        self._calls.put(close_quietly)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class RolloutConversation:
    """One conversation of a model in an environment, which becomes a trajectory.

    request: further arguments of each request, such as {"extra_body": {"guided_regex": "[0-9]"}}.
    """

    def __init__(
        self,
        model: Model,
        opening: Sequence[Message],
        *,
        seed: int | None,
        temperature: float,
        max_tokens: int | None,
        request: Mapping[str, Any],
    ) -> None:
        from art.trajectories import Trajectory

        self.trajectory = Trajectory(messages_and_choices=list[Any](opening), reward=0.0)
        self.turns = 0
        """Completions so far."""
        self._model = model
        self._seed = seed
        self._request: dict[str, Any] = {
            **request,
            "temperature": temperature,
            "max_tokens": MAX_TOKENS if max_tokens is None else max_tokens,
        }

    def add(self, *messages: Message) -> None:
        """Appends messages of the environment."""
        cast("list[Any]", self.trajectory.messages_and_choices).extend(messages)

    async def ask(self) -> str:
        """Returns the text of the model's reply, which is appended. Raises what the client raises."""
        seeded = {} if self._seed is None else {"seed": turn_seed(self._seed, self.turns)}
        completion = await self._model.openai_client().chat.completions.create(
            model=self._model.get_inference_name(),
            messages=self.trajectory.messages(),
            timeout=REQUEST_S,
            **{**self._request, **seeded},
        )
        self.trajectory.messages_and_choices.append(completion.choices[0])
        self.turns += 1
        return text_of_content(completion.choices[0].message.content)

    def reward_turn(self, reward: float, *, state: str | None = None, reason: str | None = None) -> None:
        """Gives the newest reply a reward, if it can be trained. NaN is left to the reward of the whole.

        state, reason: see `Trajectory.reward_turn`.
        """
        newest: Any = next(filter(is_choice, reversed(self.trajectory.messages_and_choices)))
        if sample_id(newest) is not None and math.isfinite(reward):
            self.trajectory.reward_turn(newest, reward, state=state, reason=reason)

    def finish(
        self,
        scenario: Scenario,
        *,
        reward: float | Unscored,
        metrics: Mapping[str, float],
        show: str | None = None,
        **metadata: float | int | str | bool | None,
    ) -> Trajectory:
        """Returns the trajectory with its reward and metrics. show: the rollout for people; None: its
        messages.
        """
        trajectory = self.trajectory
        trajectory.reward = reward
        trajectory.metrics.update(metrics)
        trajectory.metadata.update(metadata)
        trajectory.metadata[SCENARIO_ID] = scenario.id
        trajectory.metadata[SHOW] = text_of_messages(trajectory.messages()) if show is None else show
        return trajectory


def text_of_messages(messages: Sequence[Any]) -> str:
    """Returns a conversation as plain text, for people: "user: ...", a paragraph each."""
    return "\n\n".join(f"{one['role']}: {text_of_content(one.get('content'))}" for one in messages)


def content_id(*parts: str) -> str:
    """Returns 16 hexadecimal digits that tell these texts from others, in every process."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
