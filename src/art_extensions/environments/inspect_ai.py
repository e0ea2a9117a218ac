"""Tasks of inspect-ai: `find_environment("inspect:sums.py@sums")`, or `inspect:PACKAGE/TASK`.

A scenario is a sample of the task's dataset. The task's own solver plays it and its scorer scores it: the
reward is the first score as a number, and each score a metric.

A further model of the task, such as a grader or a simulated user, is a role of inspect. `roles` says who
plays it; its replies are in no trajectory.

inspect runs one evaluation at a time in a process. So the rollouts that are asked for while one runs are the
tasks of the next, and each of its tasks is one sample with a model of its own: the rollout's endpoint.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import math
import queue
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import (
    MAX_TOKENS,
    REQUEST_S,
    SCENARIO_ID,
    Scenario,
    check_split,
    end_within,
    text_of_messages,
)
from art.environments.tasks import turn_seed
from art.errors import (
    ConfigurationError,
    EnvironmentFailedError,
    EnvironmentTimeoutError,
    MissingExtraError,
    extra_needed,
)
from art.types import SHOW, Unscored
from art_extensions.environments.inspect_roles import RolePlayer, find_player, make_role
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment
from art_extensions.environments.model_requests import ModelRequests

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX, EXTRA = "inspect:", "inspect"
MOST_TASKS = 256
"""Rollouts of one evaluation."""
SAMPLE_S = 600
"""The time that a sample may take in an evaluation, in seconds."""
SCORING_S = 60.0
"""The time that a sample may take beside, in seconds: to be scored, and until inspect notices its limit."""
RETRIES = 3
"""The number of tries again of a request to the model."""
TOO_LONG = "model_length"
"""inspect's reason of a reply that was refused, as the prompt does not fit the model's context."""
GRADES = ("C", "I", "P", "N")
"""Words of inspect's scorers."""
TASK = re.compile(r"^@(?:\w+\.)?task\b[^\n]*\n(?:@[^\n]*\n)*def (\w+)", re.MULTILINE)
"""A task of inspect in the text of a module."""
RESERVED = frozenset({"reward", "turns", "truncated"})
"""Names of metrics that a rollout has already."""


@dataclass
class _Play:
    """A rollout that is asked for."""

    task: Any
    """inspect's: one sample, and the rollout's model."""
    outcome: asyncio.Future[Any]
    """The sample as inspect logged it, a future of the caller's loop."""
    begun: asyncio.Future[None]
    """Is done when its evaluation begins."""
    loop: asyncio.AbstractEventLoop

    def begin(self) -> None:
        """Says that its evaluation begins."""

        def set_begun() -> None:
            if not self.begun.done():
                self.begun.set_result(None)

        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self.loop.call_soon_threadsafe(set_begun)

    def deliver(self, answer: Any) -> None:
        """Lets the caller go on with a sample, or with an error."""

        def set_outcome() -> None:
            if self.outcome.done():
                return
            if isinstance(answer, Exception):
                self.outcome.set_exception(answer)
            else:
                self.outcome.set_result(answer)

        try:
            self.loop.call_soon_threadsafe(set_outcome)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            logging.getLogger(__name__).debug("a rollout of inspect ended after its caller")


class InspectEnvironment(LibraryEnvironment):
    """A task of inspect-ai: "FILE.py@TASK", or "PACKAGE/TASK" of an installed package such as inspect_evals.

    val: how many samples are evaluated, the first of the dataset; None: all. train: so many others are the
    scenarios of "train", which has none by default. seed: the order of the samples where train is given.
    score: the metric that is the reward; None: the first score. time_limit_s: of one sample; inspect scores
    what there is then. request: further arguments of each request, as inspect's GenerateConfig calls them.
    roles: role of the task -> who plays it, an `art.Model` or "module:function" (see `find_player`); those
    that are not here are the model's. arguments: those of the task whose names are options here. config: its
    other arguments.
    """

    prefix, extra = PREFIX, EXTRA
    LIBRARY = "inspect-ai"

    @classmethod
    def installed_names(cls) -> dict[str, str]:
        """Returns the tasks of installed packages and of the files in this folder. A package that cannot be
        imported is one name, with the reason.
        """
        import inspect_ai  # noqa: F401

        found: dict[str, str] = {}
        for package in entry_points(group="inspect_ai"):
            try:
                found |= {f"{package.name}/{task}": "" for task in _tasks_of(package.load())}
            except Exception as error:  # noqa: BLE001  # the package's own, and the others are listed
                found[f"{package.name}/TASK"] = f"cannot be imported: {type(error).__name__}: {error}"
        for path in sorted(Path.cwd().glob("*.py")):
            found |= {f"{path.name}@{task}": "" for task in TASK.findall(path.read_text("utf-8", "replace"))}
        return found

    def __init__(
        self,
        name: str,
        /,
        *,
        seed: int = 0,
        train: int = 0,
        val: int | None = None,
        score: str | None = None,
        time_limit_s: int = SAMPLE_S,
        request: Mapping[str, Any] | None = None,
        roles: Mapping[str, Model | str | RolePlayer] | None = None,
        arguments: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        held_out = 1 if val is None else val
        options = AdapterOptions(
            seed=seed, train=train or 1, val=held_out, request=request, deadline_s=time_limit_s
        )
        super().__init__(self.prefix + name, options)
        if train and val is None:
            raise ConfigurationError(f"{self.name}: train={train} needs val, the number of samples held out")
        with extra_needed(self.extra, f"environment {self.name!r}"):
            import inspect_ai
        self._library = inspect_ai
        self._roles = {role: find_player(self.name, role, one) for role, one in (roles or {}).items()}
        self._task = _make_task(self.name, self._find_task(name), {**config, **(arguments or {})})
        self._samples = list(self._task.dataset)
        if not self._samples:
            raise ConfigurationError(f"{self.name} has no samples")
        order = list(range(len(self._samples)))
        if train:
            random.Random(f"{seed}").shuffle(order)
        held_out = len(order) if val is None else val
        self._places = {"val": order[:held_out], "train": order[held_out : held_out + train]}
        self._score = score
        self._plays: queue.SimpleQueue[_Play | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._blocked: list[threading.Thread] = []
        """Workers whose evaluation did not end."""

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the samples of a split. Raises ConfigurationError for "train" where it has none."""
        check_split(self.name, split)
        if not (places := self._places[split]):
            raise ConfigurationError(
                f"{self.name} has no samples for {split!r}. To train on some of its {len(self._samples)} "
                "samples, give train=N and val=M"
            )
        return [Scenario(f"{self.name}/{self._id(place)}", {"sample": place}) for place in places]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Runs the task on a sample; see `NamedEnvironment.rollout`.

        The conversations of a trainable model are those that its server has kept. The reward is Unscored
        where the scorer gave no number.
        """
        from art.client.rollout import rollout
        from art.recording.recorder import Recorder
        from art.recording.taps import capture_foreign_clients
        from art.trajectories import Trajectory

        limit = self._request.get("max_tokens", MAX_TOKENS) if max_tokens is None else max_tokens
        asked = {**self._request, "temperature": temperature, "max_tokens": limit}
        if model.trainable:
            _, at, step = model.get_inference_name().rpartition("@")
            async with rollout(model, step=int(step) if at else None) as scope:  # type: ignore[arg-type]
                where: tuple[str | None, str | None] = scope.base_url, scope.api_key
                requests = self._new_requests(seed, None)
                sample = await self._play(scenario, scope.model_name, where, asked, requests)
            trajectory = scope.trajectory
        else:
            trajectory = Trajectory()
            recorder = Recorder(trajectory)
            where = model.inference_base_url, model.inference_api_key
            requests = self._new_requests(seed, recorder)
            with capture_foreign_clients():
                sample = await self._play(scenario, model.get_inference_name(), where, asked, requests)
            recorder.close()
            trajectory.finish()
        return self._finish(trajectory, scenario, sample, requests)

    async def close(self) -> None:
        """Ends the thread of the evaluations when the last one has ended."""
        if self._worker is not None:
            self._plays.put(None)
            self._worker = None

    def _find_task(self, name: str) -> Callable[..., Any]:
        """Returns the function that makes the task. Raises ConfigurationError."""
        file, at, task = name.rpartition("@")
        return _of_file(self.name, Path(file), task) if at else _of_package(self.name, name)

    def _new_requests(self, seed: int | None, listener: Any) -> ModelRequests:
        return ModelRequests(seed, listener)

    def _make_roles(self, requests: ModelRequests) -> dict[str, Any]:
        """Returns the roles of a rollout as models of inspect, each with seeds of its own."""
        made = {}
        for number, (role, player) in enumerate(self._roles.items(), 1):
            model = make_role(role, player)
            seed = None if requests.seed is None else turn_seed(requests.seed, -number)
            model.api.generate = watched(model.api.generate, ModelRequests(seed, None))
            made[role] = model
        return made

    def _id(self, place: int) -> str:
        named = self._samples[place].id
        return str(place + 1 if named is None else named)

    async def _play(
        self,
        scenario: Scenario,
        model_name: str,
        where: tuple[str | None, str | None],
        asked: Mapping[str, Any],
        requests: ModelRequests,
    ) -> Any:
        """Returns the sample as inspect logged it. Raises the error of a request as it is, others as
        EnvironmentFailedError.
        """
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.model import GenerateConfig, get_model

        config = GenerateConfig(max_retries=RETRIES, attempt_timeout=int(REQUEST_S), **asked)
        model = get_model(
            f"openai-api/art/{model_name}", base_url=where[0], api_key=where[1], memoize=False, config=config
        )
        model.api.generate = watched(model.api.generate, requests)
        roles = self._make_roles(requests)
        self._limit(model, roles, requests)
        task = self._library.task_with(
            copy(self._task),
            dataset=MemoryDataset([deepcopy(self._samples[scenario.data["sample"]])]),
            model=model,
            model_roles={**(self._task.model_roles or {}), **roles},
            epochs=1,
            name=f"rollout-{time.monotonic_ns()}",
        )
        loop = asyncio.get_running_loop()
        play = _Play(task, loop.create_future(), loop.create_future(), loop)
        self._plays.put(play)
        if self._worker is None:
            self._start_worker()
        await play.begun
        worker, what = self._worker, f"environment {self.name!r}: a rollout"
        try:
            sample = await end_within(self._deadline_s + SCORING_S, what, play.outcome)
        except EnvironmentTimeoutError:
            if worker is not None and self._worker is worker:  # its code blocks the loop of all rollouts
                self._blocked.append(worker)
                self._start_worker()
            raise
        if sample.error is not None:
            if requests.error is not None and str(requests.error) in sample.error.message:
                raise requests.error
            raise EnvironmentFailedError(f"environment {self.name!r} failed: {sample.error.message}")
        if not requests.answered:
            raise EnvironmentFailedError(
                f"environment {self.name!r} ended before the model said anything{_length_of(sample)}"
            )
        return sample

    def _limit(self, model: Any, roles: Mapping[str, Any], requests: ModelRequests) -> None:
        """Lets a subclass end a rollout; does nothing here."""

    def _start_worker(self) -> None:
        self._worker = threading.Thread(target=self._work, name=f"environment {self.name}", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        """Runs the evaluations, one after another."""
        while (first := self._plays.get()) is not None:
            plays, more = [first], True
            while more and len(plays) < MOST_TASKS:
                try:
                    following = self._plays.get_nowait()
                except queue.Empty:
                    break
                if more := following is not None:
                    plays.append(following)
            for play in plays:
                play.begin()
            try:
                found = self._evaluate([play.task for play in plays])
            except BaseException as error:  # noqa: BLE001  # each rollout that waits raises it, sys.exit too
                message = f"environment {self.name!r} failed: {type(error).__name__}: {error}"
                if any(one.is_alive() for one in self._blocked):
                    message += " The code of an earlier rollout blocks inspect in this process: restart it"
                found = {play.task.name: EnvironmentFailedError(message) for play in plays}
            for play in plays:
                play.deliver(found.get(play.task.name))
            if not more or threading.current_thread() in self._blocked:
                return

    def _evaluate(self, tasks: list[Any]) -> dict[str, Any]:
        """Returns, by the name of its task, each sample as inspect logged it, or an error."""
        with _logging_kept(), tempfile.TemporaryDirectory(prefix="art-inspect-") as folder:
            logs = self._library.eval(
                tasks,
                display="none",
                log_dir=folder,
                log_level="notset",  # it sets no levels of loggers then
                log_realtime=False,
                max_tasks=len(tasks),
                fail_on_error=False,
                time_limit=int(self._deadline_s),
                ctl_server=False,
                acp_server=False,
            )
            # The samples are read from the folder when they are looked at.
            return {log.eval.task: _sample_of(self.name, log) for log in logs}

    def _read_figures(self, sample: Any) -> dict[str, float]:
        """Returns the scores as numbers, the reward's first."""
        return figures_of_scores(sample.scores or {})

    def _is_cut(self, sample: Any, requests: ModelRequests) -> bool:
        """Returns whether a limit ended the rollout."""
        return sample.limit is not None

    def _finish(
        self, trajectory: Trajectory, scenario: Scenario, sample: Any, requests: ModelRequests
    ) -> Trajectory:
        figures = self._read_figures(sample)
        chosen = next(iter(figures), None) if self._score is None else self._score
        if self._score is not None and self._score not in figures:
            raise ConfigurationError(
                f"{self.name} has no score {self._score!r}: {', '.join(figures) or 'it gave none'}"
            )
        reward: float | Unscored
        if chosen is None or math.isnan(figures[chosen]):
            reward = Unscored(f"{self.name}: its scorer gave no number for sample {sample.id!r}")
        else:
            reward = figures[chosen]
        numbers = {name: value for name, value in figures.items() if not math.isnan(value)}
        trajectory.reward = reward
        cut = self._is_cut(sample, requests)
        trajectory.metrics.update(numbers, turns=float(requests.answered), truncated=float(cut))
        listing = "\n".join(f"{name}: {value:g}" for name, value in numbers.items())
        shown = f"{text_of_messages(trajectory.messages())}\n\n{listing}"
        trajectory.metadata.update({SCENARIO_ID: scenario.id, SHOW: shown, "environment": self.name})
        return trajectory


@contextmanager
def _logging_kept() -> Iterator[None]:
    """Takes away the handler that inspect adds to the program's log."""
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        yield
    finally:
        for handler in [one for one in root.handlers if one not in before]:
            if type(handler).__module__.startswith("inspect_ai."):
                root.removeHandler(handler)


def watched(generate: Callable[..., Any], requests: ModelRequests) -> Callable[..., Any]:
    """Returns a model's `generate` that seeds and notes its requests."""

    async def noted(input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        with requests.asking() as given:
            seeded = config.model_copy(update={"seed": given["seed"]}) if "seed" in given else config
            result = await generate(input, tools, tool_choice, seeded)
            answer = result[0] if isinstance(result, tuple) else result
            if isinstance(answer, Exception):
                raise answer
        requests.answered -= answer.stop_reason == TOO_LONG
        return result

    return noted


def _length_of(sample: Any) -> str:
    """Returns what to add where the prompt did not fit the model's context."""
    is_long = any(one.stop_reason == TOO_LONG for one in sample.output.choices)
    return ": the prompt is too long for the model's context" if is_long else ""


def _sample_of(full: str, log: Any) -> Any:
    """Returns the sample of a task's log, or why there is none as an error."""
    if log.samples:
        return log.samples[0]
    why = log.error.message if log.error is not None else "inspect has logged no sample"
    return EnvironmentFailedError(f"environment {full!r} failed: {why}")


def figures_of_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scores as numbers, the parts of a score by their names; NaN where one is no number."""
    from inspect_ai.scorer import value_to_float

    to_float = value_to_float()
    found: dict[str, float] = {}
    for scorer, score in scores.items():
        named = f"{scorer}_score" if scorer in RESERVED else scorer
        parts = score.value.items() if isinstance(score.value, dict) else [("", score.value)]
        for part, value in parts:
            found[f"{named}_{part}" if part else named] = to_float(value) if _is_score(value) else math.nan
    return found


def _is_score(value: Any) -> bool:
    """Returns whether inspect reads a number from a value; it counts other words as 0."""
    if not isinstance(value, str):
        return value is not None and not isinstance(value, list)
    if value in GRADES or value.lower() in ("yes", "true", "no", "false"):
        return True
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _make_task(full: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Returns the task, made with its arguments. Raises ConfigurationError."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ConfigurationError(
            f"{full}: {error}; the task is {function.__name__}{inspect.signature(function)}"
        ) from error
    try:
        return function(**arguments)
    except Exception as error:
        raise ConfigurationError(f"{full} cannot be made with {dict(arguments)}: {error}") from error


def _of_file(full: str, path: Path, task: str) -> Callable[..., Any]:
    if not path.is_file():
        raise ConfigurationError(f"{full}: there is no file {path}; write inspect:FILE.py@TASK")
    module = f"art_inspect_{path.stem}"
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.pop(0)
    return _found_task(full, loaded, task)


def _of_package(full: str, name: str) -> Callable[..., Any]:
    """Returns a task that a package registers with inspect (its entry point `inspect_ai`)."""
    package, _, task = name.partition("/")
    registered = {one.name: one for one in entry_points(group="inspect_ai")}
    if package not in registered or not task:
        known = ", ".join(sorted(registered)) or "none"
        raise ConfigurationError(
            f"{full}: no package {package!r} has tasks of inspect; installed: {known}. Write "
            "inspect:PACKAGE/TASK or inspect:FILE.py@TASK"
        )
    return _found_task(full, _import_tasks(full, registered[package]), task)


def _import_tasks(full: str, registered: EntryPoint) -> Any:
    """Returns the module of a package's tasks. Raises MissingExtraError where a module that it imports is not
    installed, as after `pip install --no-deps`, and ConfigurationError where its import fails otherwise.
    """
    package = registered.name if registered.dist is None else registered.dist.name
    try:
        return registered.load()
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{full}: the package {package!r} needs the module {error.name or str(error)!r}, which is not "
            f"installed. Install the package with what it depends on: pip install {package} (and the package "
            "of that module, where it is no dependency)"
        ) from error
    except Exception as error:  # the package's own
        raise ConfigurationError(
            f"{full}: the package {package!r} cannot be imported: {type(error).__name__}: {error}. Import "
            f"{registered.module!r} in Python to see where, and install what it needs: pip install {package}"
        ) from error


def _found_task(full: str, module: Any, task: str) -> Callable[..., Any]:
    known = _tasks_of(module)
    if task not in known:
        raise ConfigurationError(f"{full}: no task {task!r} there; tasks: {', '.join(known) or 'none'}")
    found: Callable[..., Any] = getattr(module, task)
    return found


def _tasks_of(module: Any) -> list[str]:
    """Returns the names of the tasks that a module has."""
    from inspect_ai.util import registry_info

    def is_task(value: Any) -> bool:
        try:
            return bool(registry_info(value).type == "task")
        except (ValueError, AttributeError):
            return False

    return [name for name, value in vars(module).items() if is_task(value)]
