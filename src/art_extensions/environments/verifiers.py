"""Environments of the library verifiers: `find_environment("verifiers:wordle", max_turns=6)`.

NAME is that of an environment's package, as `verifiers.load_environment` takes it: "wordle" and
"owner/wordle" load the module `wordle`. A scenario is a row of its dataset. Its rubric gives the reward, and
each function of the rubric a metric. Single-turn, multi-turn, tool and stateful tool environments run as they
are, and so do several of them in one.

All rollouts of an environment run in one event loop of its own, in a thread beside the caller's: what blocks
there keeps nothing else waiting. `sft_rows` makes rows for supervised training of what verifiers saved.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import random
import re
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import (
    MAX_TOKENS,
    SCENARIO_ID,
    Scenario,
    check_split,
    content_id,
    load_module,
)
from art.errors import (
    ConfigurationError,
    EnvironmentFailedError,
    EnvironmentTimeoutError,
    extra_needed,
    install_command,
)
from art.process.foreign_files import parse_json
from art.process.imports import import_lock
from art.types import SHOW, Unscored, is_choice, sample_id
from art_extensions.environments.installed_modules import LOADS, modules_that_need
from art_extensions.environments.library_environment import (
    AdapterOptions,
    LibraryEnvironment,
    takes_options,
    text_of_turns,
)
from art_extensions.environments.model_requests import ModelRequests

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "verifiers:"
EXTRA = "verifiers-hub"
TASKSETS_EXTRA = "verifiers-tasksets"
CONTEXT_EXCEEDED = "context_length_exceeded"
"""The code of a refused prompt, of OpenAI's API and of ours: the rollout ends there, and is scored."""
HELD_OUT = 5
"""The part of the rows (one in so many) that "val" has at most where there is no dataset for evaluation."""
RESERVED = frozenset({"reward", "reward_std_dev", "exception_rate", "unscored_rate"})
"""Names of metrics that a step has already."""
FAILED_FUNCTIONS: ContextVar[dict[str, str] | None] = ContextVar("art_failed_reward_functions", default=None)
"""The functions of the rubric that raised, and what they raised, of the rollout that is scored here."""


STEPS: ContextVar[list[tuple[str, float]] | None] = ContextVar("art_rewarded_steps", default=None)
"""The ids of the replies of the rollout that is scored here, with the rewards of their steps."""
_log = logging.getLogger(__name__)


class LoopThread:
    """An event loop in a thread of its own, a daemon, which does not delay the end of the process."""

    def __init__(self, name: str) -> None:
        self._loop, self._is_stopped = asyncio.new_event_loop(), False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Returns the caller's future of what runs there, with the caller's context."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        try:
            while not self._is_stopped:
                with suppress(SystemExit):  # of a task of the environment's: the other rollouts go on
                    self._loop.run_forever()
        finally:
            self._loop.close()


class VerifiersEnvironment(LibraryEnvironment):
    """An environment by the name of its package.

    options: the deadline is that of the time between two requests. turn_rewards: each reply earns the reward
    of its step, for algorithms of turns. arguments: those of its `load_environment` whose names are options
    here. config: its other arguments.
    """

    LIBRARY, HARNESS_OPTION = "verifiers", "harness"
    installed_names = staticmethod(partial(modules_that_need, LIBRARY, LOADS))

    @takes_options(leave_out=("system_prompt",))
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        turn_rewards: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        super().__init__(PREFIX + name, options)
        if self.HARNESS_OPTION in config:
            raise ConfigurationError(
                f"environment {self.name!r}: harness={config[self.HARNESS_OPTION]!r} needs verifiers 0.4, "
                f"which has harnesses. Run: {install_command(TASKSETS_EXTRA)}. An argument of "
                "`load_environment` of this name goes into arguments={...}"
            )
        self._library = _find_library(self.name)
        self._world = _load(self._library, self.name, name, {**config, **(arguments or {})})
        rubrics = _rubrics(self._world)
        if self._world.requires_group_rollouts or any(rubric.has_group_rewards for rubric in rubrics):
            raise ConfigurationError(
                f"{self.name}: its rubric scores the rollouts of a group together, and here each rollout is "
                "scored alone: give its rubric functions of one rollout"
            )
        for rubric in rubrics:
            rubric.funcs[:] = [_watched(function) for function in rubric.funcs]
        self._turn_rewards, self._has_warned = turn_rewards, False
        if turn_rewards:
            self._world.rubric.score_rollout = _noting_steps(self._world.rubric.score_rollout)
        self._thread_of_loop: LoopThread | None = None

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the different rows of a split. Raises ConfigurationError where there is none for it, and
        EnvironmentFailedError where the dataset cannot be made.
        """
        check_split(self.name, split)
        found = self._found[split]
        if not found:
            raise ConfigurationError(
                f"{self.name} has no rows for {split!r}: its dataset has too few, or it has one for "
                "evaluation alone, which is 'val'"
            )
        return found

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Runs one rollout of a row; see `NamedEnvironment.rollout`.

        The conversations of a trainable model are those that its server has kept. The reward is Unscored
        where a function of the rubric failed, which verifiers counts as 0.
        """
        from art.client.rollout import rollout
        from art.recording.recorder import Recorder
        from art.trajectories import Trajectory

        row = self._datasets[scenario.data["dataset"]][scenario.data["row"]]
        sampling = self._sampling(temperature, max_tokens)
        if model.trainable:
            _, at, step = model.get_inference_name().rpartition("@")
            async with rollout(model, step=int(step) if at else None) as scope:  # type: ignore[arg-type]
                requests = ModelRequests(seed, None)
                output = await self._run(row, scope.openai_client(), scope.model_name, sampling, requests)
            trajectory = scope.trajectory
        else:
            trajectory = Trajectory()
            recorder = Recorder(trajectory)
            requests = ModelRequests(seed, recorder)
            name = model.get_inference_name()
            output = await self._run(row, model.openai_client(), name, sampling, requests)
            recorder.close()
            trajectory.finish()
        return self._finish(trajectory, scenario, output)

    async def close(self) -> None:
        """Ends what the environment has started, with its own teardown. Raises EnvironmentFailedError."""
        thread = self._thread_of_loop or LoopThread(f"environment {self.name}")
        self._thread_of_loop = None
        try:
            async with asyncio.timeout(self._deadline_s):
                await thread.start(self._world._teardown())
        except TimeoutError as late:
            raise EnvironmentTimeoutError(
                f"environment {self.name!r}: its teardown did not end within {self._deadline_s:g} s"
            ) from late
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.name!r}: its teardown failed: {type(error).__name__}: {error}"
            ) from error
        finally:
            thread.stop()

    async def _run(
        self, row: Any, client: Any, model_name: str, sampling: dict[str, Any], requests: ModelRequests
    ) -> Mapping[str, Any]:
        """Returns verifiers' output. Raises the error of a request as it is, others as
        EnvironmentFailedError.
        """
        if self._thread_of_loop is None:
            self._thread_of_loop = LoopThread(f"environment {self.name}")
        asking = _client_class(self._library)(client, requests)

        steps: list[tuple[str, float]] = []

        async def run() -> tuple[Any, dict[str, str]]:
            failed: dict[str, str] = {}
            FAILED_FUNCTIONS.set(failed)
            STEPS.set(steps)
            return await self._world.run_rollout(row, asking, model_name, sampling), failed

        running = self._thread_of_loop.start(run())
        try:
            await self._wait(running, requests)
            output, failed = running.result()
        except SystemExit as end:
            raise EnvironmentFailedError(f"environment {self.name!r} failed: SystemExit: {end}") from end
        except (EnvironmentTimeoutError, asyncio.CancelledError):
            running.cancel()
            raise
        except Exception as error:
            if error is requests.error:
                raise
            raise EnvironmentFailedError(
                f"environment {self.name!r} failed: {type(error).__name__}: {error}"
            ) from error
        if (failure := output.get("error")) is not None:
            if requests.error is not None and type(requests.error).__name__ in failure["error_chain_repr"]:
                raise requests.error
            raise EnvironmentFailedError(f"environment {self.name!r} failed: {failure['error_chain_str']}")
        if not requests.answered:
            raise EnvironmentFailedError(
                f"environment {self.name!r} ended before the model said anything: "
                f"{output.get('stop_condition')}"
            ) from requests.error
        earned = {asking.samples[reply]: reward for reply, reward in steps if reply in asking.samples}
        return {**output, "failed functions": failed, "earned": earned}

    async def _wait(self, running: asyncio.Future[Any], requests: ModelRequests) -> None:
        while not running.done():
            left_s = requests.left_s(self._deadline_s)
            if left_s <= 0:
                raise EnvironmentTimeoutError(
                    f"environment {self.name!r} did nothing within {self._deadline_s:g} s of the model's "
                    "last reply: give deadline_s if its tools or judges take longer"
                )
            await asyncio.wait({running}, timeout=left_s)

    def _sampling(self, temperature: float, max_tokens: int | None) -> dict[str, Any]:
        """Returns the arguments of a rollout's requests: the environment's own, then the user's."""
        own = {key: value for key, value in self._world.sampling_args.items() if key != "n"}
        body = {**own.pop("extra_body", {}), **self._request.get("extra_body", {})}
        merged = {**own, **self._request, **({"extra_body": body} if body else {})}
        limit = merged.pop("max_tokens", MAX_TOKENS) if max_tokens is None else max_tokens
        return {**merged, "temperature": temperature, "max_tokens": limit}

    def _finish(self, trajectory: Trajectory, scenario: Scenario, output: Mapping[str, Any]) -> Trajectory:
        failed: dict[str, str] = output["failed functions"]
        weighted = [f"{name}: {why}" for name, why in failed.items() if name in _weighted(self._world)]
        reward: float | Unscored
        if weighted:
            reward = Unscored(f"{self.name}: a reward function failed: {'; '.join(weighted)}")
        elif output.get("reward") is None:
            reward = Unscored(f"{self.name} gave no reward")
        else:
            reward = float(output["reward"])
        parts = output.get("metrics") or {}
        self._reward_turns(trajectory, output["earned"])
        trajectory.reward = reward
        trajectory.metrics.update(
            {metric_name(name): float(value) for name, value in parts.items() if name not in failed},
            truncated=float(bool(output.get("is_truncated"))),
        )
        listing = "\n".join(f"{name}: {value:g}" for name, value in parts.items() if name not in failed)
        shown = reward if isinstance(reward, Unscored) else format(reward, "g")
        trajectory.metadata.update(
            {
                SCENARIO_ID: scenario.id,
                SHOW: f"{text_of_turns(trajectory.messages())}\n\n{listing}\nreward: {shown}",
                "environment": self.name,
                "stop_condition": str(output.get("stop_condition")),
            }
        )
        return trajectory

    def _reward_turns(self, trajectory: Trajectory, earned: Mapping[str, float]) -> None:
        """Gives the turns the rewards of their steps, by their samples."""
        histories: list[Any] = [trajectory, *trajectory.additional_histories]
        said = [
            (sample, item)
            for history in histories
            for item in history.messages_and_choices
            if is_choice(item) and (sample := sample_id(item)) is not None
        ]
        for sample, item in said:
            if sample in earned:
                trajectory.reward_turn(item, earned[sample])
        if self._turn_rewards and said and not earned and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: no step of a rollout has a reward, so with turn_rewards=True its last turn earns the "
                "whole reward. Said once",
                self.name,
            )

    @cached_property
    def _datasets(self) -> dict[str, Any]:
        """The datasets that it has, "train" and "eval"; the environment makes them once."""
        try:
            made = {"train": self._world.build_dataset(), "eval": self._world.build_eval_dataset()}
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.name!r}: its dataset cannot be made: {type(error).__name__}: {error}"
            ) from error
        if _same_rows(made["train"], made["eval"]):
            made["eval"] = None
        return {name: dataset for name, dataset in made.items() if dataset is not None}

    @cached_property
    def _found(self) -> dict[str, list[Scenario]]:
        """The scenarios of both splits. Those of "val" are drawn first, so that a small dataset has some."""
        seen: set[str] = set()
        held_out, most = "eval", self._sizes["val"]
        if held_out not in self._datasets:
            held_out = "train"
            most = min(most, max(1, len(self._datasets[held_out]) // HELD_OUT))
        val = self._draw(held_out, most, seen)
        train = self._draw("train", self._sizes["train"], seen) if "train" in self._datasets else []
        return {"train": train, "val": val}

    def _draw(self, dataset: str, most: int, seen: set[str]) -> list[Scenario]:
        """Returns rows that were not seen, in the order of the seed."""
        rows = self._datasets[dataset]
        order = list(range(len(rows)))
        random.Random(f"{self._seed}").shuffle(order)
        drawn: list[Scenario] = []
        for place in order:
            if len(drawn) == most:
                break
            content = row_id(rows[place]) or f"{dataset}-{place}"
            if content not in seen:
                seen.add(content)
                drawn.append(Scenario(f"{self.name}/{content}", {"dataset": dataset, "row": place}))
        return drawn


def row_id(row: Mapping[str, Any]) -> str | None:
    """Returns an id of a row's content; None for a row with values that JSON does not have (images)."""
    try:
        return content_id(json.dumps({key: row[key] for key in row if key != "example_id"}, sort_keys=True))
    except TypeError:
        return None


def _same_rows(one: Any, other: Any) -> bool:
    """Returns whether an environment has given one dataset for two: nothing is held out then."""
    if one is None or other is None or not len(one) == len(other) > 0:
        return False
    return all(row_id(one[place]) == row_id(other[place]) is not None for place in (0, len(one) - 1))


def metric_name(function: str) -> str:
    """Returns the metric of a function of a rubric: its name, unless a step has a metric of that name.

    >>> metric_name("reward"), metric_name("<lambda>"), metric_name("num_turns")
    ('reward_function', 'lambda', 'num_turns')
    """
    name = re.sub(r"[^\w.-]+", "_", function).strip("_") or "function"
    return f"{name}_function" if name in RESERVED else name


def sft_rows(
    outputs: Iterable[Mapping[str, Any]] | str | Path, *, least: float = 1.0
) -> list[dict[str, Any]]:
    """Returns rows for supervised training, {"messages", "tools"}, of rollouts that verifiers has made.

    outputs: what `Environment.generate` returned under "outputs", or the path of a `results.jsonl`. least:
    rollouts with a smaller reward are left out, as are those with an error and those that do not end with
    the assistant. Raises ConfigurationError for a file that cannot be read.
    """
    rows = []
    if isinstance(outputs, str | Path):
        try:
            return sft_rows(_read_outputs(outputs), least=least)
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"{outputs} is no results.jsonl of verifiers: {error!r:.300}") from error
    for output in outputs:
        said = [
            _openai_message(one) for one in [*(output.get("prompt") or []), *(output.get("completion") or [])]
        ]
        while said and said[-1]["role"] != "assistant":
            said.pop()
        bad = output.get("error") is not None or output.get("reward") is None or output["reward"] < least
        if bad or not said:
            continue
        tools = [{"type": "function", "function": _plain(one)} for one in output.get("tool_defs") or []]
        rows.append({"messages": said, **({"tools": tools} if tools else {})})
    return rows


def _read_outputs(path: str | Path) -> list[dict[str, Any]]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        return [dict(parse_json(line)) for line in lines if line.strip()]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} is no results.jsonl of verifiers: {error}") from error


def _plain(value: Any) -> dict[str, Any]:
    """Returns a message, call or tool as a dict without nulls, whichever way verifiers wrote it."""
    found = json.loads(value) if isinstance(value, str) else value
    fields = found.model_dump() if hasattr(found, "model_dump") else dict(found)
    return {key: one for key, one in fields.items() if one is not None}


def _openai_message(value: Any) -> dict[str, Any]:
    """Returns a message of verifiers, whose calls are flat, as OpenAI writes it."""
    message = _plain(value)
    if calls := [_plain(call) for call in message.pop("tool_calls", [])]:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": call.get("function") or {name: call[name] for name in ("name", "arguments")},
            }
            for call in calls
        ]
    return message


def _find_library(full: str) -> Any:
    """Returns the library. Raises MissingExtraError, ConfigurationError for a version of another kind."""
    with extra_needed(EXTRA, f"environment {full!r}"):
        import verifiers

        if verifiers.__spec__ is not None and verifiers.__spec__.origin is None:  # any folder of this name
            raise ModuleNotFoundError("a folder without code is found in its place", name="verifiers")
    if not hasattr(verifiers, "load_environment"):
        raise ConfigurationError(
            f"environment {full!r}: verifiers {verifiers.__version__} is installed, which has tasksets and "
            "harnesses in place of environments. Run: pip install 'verifiers>=0.1.14,<0.2'"
        )
    return verifiers


def _load(library: Any, full: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """Returns the environment, its module searched in the current folder first. Raises ConfigurationError."""
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            f"environment {full!r}: verifiers makes environments in the main thread alone, for it sets "
            "signal handlers: call find_environment there"
        )
    module = name.replace("-", "_").rpartition("/")[2]
    try:
        load_module("environment", full, module)
    except ConfigurationError as error:
        package = name if "/" in name else f"OWNER/{name}"
        raise ConfigurationError(
            f"environment {full!r}: {error.__cause__}. Install the package of the environment (`prime env "
            f"install {package}`), or run in the folder of {module}.py"
        ) from error
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return library.load_environment(name, **arguments)
    except Exception as error:
        raise ConfigurationError(
            f"environment {full!r} cannot be made with {dict(arguments)}: {error}"
        ) from error
    finally:
        for (
            number,
            handler,
        ) in handlers.items():  # it has put its own there, which end the process
            signal.signal(number, handler)


@functools.cache
def _client_class(library: Any) -> Callable[[Any, ModelRequests], Any]:
    """Returns verifiers' own client of chat completions, which notes what it asks and gets."""
    with import_lock:
        from openai import BadRequestError

    class RolloutClient(library.OpenAIChatCompletionsClient):  # type: ignore[misc]
        def __init__(self, client: Any, requests: ModelRequests) -> None:
            super().__init__(client)
            self._requests = requests
            self.samples: dict[str, str] = {}
            """Reply -> its sample, of those that ART's server has sampled."""

        async def get_native_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **given: Any
        ) -> Any:
            try:
                with self._requests.asking() as arguments:
                    reply = await super().get_native_response(
                        prompt, model, {**sampling_args, **arguments}, tools, **given
                    )
            except BadRequestError as error:
                if error.code == CONTEXT_EXCEEDED:  # verifiers looks for the words of other servers
                    raise library.OverlongPromptError from error
                raise
            for choice in getattr(reply, "choices", None) or ():
                if sample := sample_id(choice):
                    self.samples[reply.id] = sample
            return reply

        async def raise_from_native_response(self, response: Any) -> None:
            """Refuses what verifiers refuses, except for an empty reply: the policy gave it, so it counts."""
            try:
                await super().raise_from_native_response(response)
            except library.EmptyModelResponseError:
                if response is None or not response.choices:
                    raise
                response.choices[0].message.content = ""

        async def close(self) -> None:
            """Does nothing: the connections are those of all rollouts."""

    return RolloutClient


def _rubrics(world: Any) -> list[Any]:
    """Returns the rubrics that hold functions, each once: groups have several, one for each environment."""
    found: list[Any] = []
    waiting = [world.rubric]
    while waiting:
        rubric = waiting.pop()
        if not any(rubric is one for one in found):
            found.append(rubric)
            waiting += [*getattr(rubric, "rubrics", ())]
            waiting += [one.rubric for one in getattr(rubric, "env_map", {}).values()]
    return found


def _weighted(world: Any) -> set[str]:
    """Returns the names of the functions that count in the reward."""
    return {
        function.__name__
        for rubric in _rubrics(world)
        for function, weight in zip(rubric.funcs, rubric.weights, strict=True)
        if weight
    }


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of a rubric that notes when it fails: verifiers logs that and goes on with 0."""

    @functools.wraps(function)
    async def watched(*given: Any, **named: Any) -> Any:
        try:
            value = function(*given, **named)
            return float(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            failed = FAILED_FUNCTIONS.get()
            if failed is not None:
                failed[function.__name__] = f"{type(error).__name__}: {error}"
            raise

    return watched


def _noting_steps(score: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], Any]:
    """Returns verifiers' scoring of a rollout, which also notes the rewards that steps have by then."""

    @functools.wraps(score)
    async def scored(state: Any) -> None:
        await score(state)
        steps = STEPS.get()
        if steps is not None:
            found = ((step.get("response"), step.get("reward")) for step in state.get("trajectory") or ())
            steps += [
                (reply.id, float(reward))
                for reply, reward in found
                if reply is not None and reward is not None
            ]

    return scored
