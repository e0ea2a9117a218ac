"""Tasksets of verifiers 0.4: `find_environment("verifiers:wordle", harness="mini_swe_agent")`.

A taskset has the tasks, a harness is the program that works on one (an agent of its own, such as Claude
Code), and a runtime is where that program runs. A rollout is an episode of verifiers, which the taskset's own
environment plays where it has one (`nemo_gym`, `openenv`, `textarena`, `harbor`), and an `art.rollout`: the
harness speaks to the model's endpoint by way of verifiers, and the trajectory is what the server has
answered, sub-agents and compacted histories as branches. The trace's reward and its parts are the
trajectory's. All rollouts run in an event loop of their own, in a thread: what blocks or ends there keeps
nothing else waiting.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import (
    MAX_TOKENS,
    ROLLOUT_S,
    SCENARIO_ID,
    Scenario,
    check_split,
    content_id,
    end_within,
    text_of_messages,
)
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError, extra_needed
from art.process.environment import variable_set
from art.types import SHOW, Unscored
from art_extensions.environments.installed_modules import TASKSET, modules_that_need
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment, takes_options
from art_extensions.environments.verifiers import PREFIX, TASKSETS_EXTRA, LoopThread

if TYPE_CHECKING:
    from art.client.rollout import rollout
    from art.model import Model
    from art.trajectories import Trajectory

EXTRA = TASKSETS_EXTRA
RUNTIME = {"type": "subprocess"}
COMMANDS = frozenset({"docker", "podman", "apptainer"})
"""Runtimes that are run by the command of the same name."""
CONTAINER = '{"type": "docker"}'
HELD_OUT = 10
"""A taskset has no split: one of so many tasks is held out."""
CLOSE_S = 30.0
"""The deadline of the end of what a taskset's environment serves, in seconds."""
KEY = "ART_ROLLOUT_API_KEY"
"""Begins the name of the variable with a rollout's key. verifiers takes keys by the name of a variable, and
gives those with API_KEY in their names to no program that it starts."""
_log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """Returns, as `ADAPTER`, the adapter of the release of verifiers that is installed."""
    if name != "ADAPTER":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        release = tuple(int(part) for part in version("verifiers").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        release = (0, 1)
    if release >= (0, 2):
        return TasksetEnvironment
    from art_extensions.environments.verifiers import VerifiersEnvironment

    return VerifiersEnvironment


class TasksetEnvironment(LibraryEnvironment):
    """A taskset by its id, as verifiers names it.

    harness: the program by its id ("null", "bash", "mini_swe_agent", ...), or a mapping with `id` and its own
    settings; None: the taskset's. runtime: verifiers' settings of where it runs, {"type": "subprocess"}.
    taskset: further settings of the taskset. max_turns: completions of a rollout. options: the deadline is
    that of a whole rollout; None of the options of requests is taken, as the harness makes them.
    """

    LIBRARY, HARNESS_OPTION = "verifiers", "harness"

    @classmethod
    def installed_names(cls) -> dict[str, str]:
        """Returns the package's own tasksets, which need settings, and modules that have one."""
        from verifiers.v1 import tasksets

        own = sorted(one.name for one in iter_modules(tasksets.__path__))
        settings = "settings: taskset={...}"
        return {**dict.fromkeys(own, settings), **modules_that_need(cls.LIBRARY, TASKSET)}

    @takes_options(leave_out=("system_prompt", "request"), deadline_s=ROLLOUT_S)
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        harness: str | Mapping[str, Any] | None = None,
        runtime: Mapping[str, Any] | None = None,
        taskset: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(PREFIX + name, options)
        with extra_needed(EXTRA, f"environment {self.name!r}"):
            import verifiers.v1 as library
        self._library = library
        self._loaded = self._load(name, dict(taskset or {}))
        self._tasks = self._read_tasks()
        given = {"id": harness} if isinstance(harness, str) else harness
        self._agent: dict[str, Any] = {
            **({"harness": dict(given)} if given else {}),
            "runtime": dict(runtime or RUNTIME),
            **({} if max_turns is None else {"max_turns": max_turns}),
        }
        self._taskset = {**(taskset or {}), "id": name}
        self._thread_of_loop: LoopThread | None = None
        self._served: ServedEnvironment | None = None
        self._check_settings(name)

    def _load(self, name: str, settings: dict[str, Any]) -> Any:
        """Returns the taskset. Raises: ConfigurationError."""
        from verifiers.v1.utils.loaders import environment_class, taskset_class, taskset_config_type

        try:
            kind = environment_class(name)
            taskset = taskset_class(name)(taskset_config_type(name)(id=name, **settings))
        except Exception as error:
            raise self._unloaded(error) from error
        self._check_agents(kind, [*self._seats(name)])
        return taskset

    def _read_tasks(self) -> dict[str, Any]:
        """Returns the tasks by their keys, in the order of the seed. Raises: ConfigurationError."""
        most = self._sizes["train"] + self._sizes["val"]
        try:
            tasks = list(self._loaded if self._loaded.bounded else islice(self._loaded, most))
        except Exception as error:
            raise self._unloaded(error) from error
        if not tasks:
            raise ConfigurationError(f"environment {self.name!r} has no task")
        ordered = sorted(tasks, key=lambda task: content_id(str(self._seed), str(task.key)))
        return {str(task.key): task for task in ordered}

    def _unloaded(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"environment {self.name!r}: verifiers cannot load this taskset: {type(error).__name__}: {error}"
        )

    def _seats(self, name: str) -> dict[str, Any]:
        """Returns the settings that the taskset's environment gives its agents, by their names."""
        from verifiers.v1.utils.loaders import env_config_type

        fields = {role: field.default for role, field in env_config_type(name).model_fields.items()}
        return {role: own for role, own in fields.items() if isinstance(own, self._library.AgentConfig)}

    def _check_agents(self, kind: type, roles: Sequence[str]) -> None:
        """Raises ConfigurationError for a taskset with several agents."""
        if len(roles) != 1:
            raise ConfigurationError(
                f"environment {self.name!r} has {len(roles)} agents ({kind.__name__}: {', '.join(roles)}), "
                f"and one is trained here: `art policies --environment {self.name}` trains a model for each"
            )

    def _check_settings(self, name: str) -> None:
        """Makes the environment that plays. Raises: ConfigurationError for options that verifiers refuses."""
        ((role, own),) = self._seats(name).items()
        self._own_sampling: dict[str, Any] = (
            {} if own.sampling is None else own.sampling.model_dump(exclude_unset=True)
        )
        # What the seat leaves open is said for each episode: the model's name, and its address and key.
        is_open: dict[str, Any] = {"model": None, "client": None, "sampling": None}
        environment = self._make_environment({role: {**is_open, "timeout": {"rollout": self._deadline_s}}})
        self._check_runtime(environment)
        environment.taskset = self._loaded  # by its settings, start() tells the tasks what it serves
        self._served = ServedEnvironment(environment)

    def _make_environment(self, agents: Mapping[str, Mapping[str, Any]]) -> Any:
        """Returns verifiers' environment of the taskset. agents: settings of agents by their names.

        Raises: ConfigurationError for options that verifiers refuses.
        """
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        seats = {role: {**self._agent, **more} for role, more in agents.items()}
        try:
            return load_environment(resolve_env_config({"taskset": self._taskset, **seats}))
        except Exception as error:
            raise self._refusal(error) from error

    def _check_runtime(self, environment: Any) -> None:
        """Raises ConfigurationError where the runtime can run no harness or no task of it."""
        from verifiers.v1.utils.loaders import harness_class

        runtime = str(self._agent["runtime"].get("type"))
        if runtime in COMMANDS and shutil.which(runtime) is None:
            raise ConfigurationError(
                f"environment {self.name!r}: the runtime {runtime!r} needs the command `{runtime}`, which is "
                "not on the PATH: install it, or give another runtime"
            )
        if runtime != RUNTIME["type"]:
            return
        names = dict.fromkeys(str(one.id) for one in environment.config.agent_harnesses().values())
        bound = [f"the harness {name!r}" for name in names if harness_class(name).NEEDS_CONTAINER]
        if any(task.NEEDS_CONTAINER or task.data.image is not None for task in self._tasks.values()):
            bound.append("a task of it")
        if bound:
            raise ConfigurationError(
                f"environment {self.name!r}: {' and '.join(bound)} runs in a container alone, and the "
                f"runtime is {runtime!r}, processes of this machine: give runtime={CONTAINER} to Python, or "
                f"--environment-option 'runtime={CONTAINER}' to a command, where Docker is; the harnesses "
                "null and bash need no container. Without one, run a coding agent's own command in an "
                "art.rollout, or mini-swe-agent on task folders: docs/guides/coding-agents.md"
            )

    def _refusal(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(f"environment {self.name!r}: verifiers refuses {self._agent}: {error}")

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the tasks of a split; verifiers has none, so that a part of the tasks is held out."""
        check_split(self.name, split)
        keys = list(self._tasks)
        held_out = min(self._sizes["val"], len(keys) // HELD_OUT or len(keys) // 2)
        chosen = keys[:held_out] if split == "val" else keys[held_out:][: self._sizes["train"]]
        if not chosen:
            raise ConfigurationError(f"{self.name} has {len(keys)} task: none is left for {split!r}")
        return [Scenario(f"{self.name}/{key}", {"task": key}) for key in chosen]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays a task; see `NamedEnvironment.rollout`. Each request has the same seed.

        Raises: ConfigurationError for a model without a server of ours, which keeps what was sampled;
        EnvironmentFailedError where the agent did not run, or ran more than once.
        """
        from verifiers.v1.clients import ModelContext

        from art.client.rollout import rollout

        if not model.trainable:
            raise ConfigurationError(
                f"environment {self.name!r}: the harness's completions are kept by ART's server: use a "
                "registered art.TrainableModel"
            )
        assert self._served is not None
        task = self._tasks[str(scenario.data["task"])]
        sampling = {**self._own_sampling, **sampling_of(seed, temperature, max_tokens)}
        _, at, step = model.get_inference_name().rpartition("@")
        async with rollout(model, step=int(step) if at else None) as scope:  # type: ignore[arg-type]
            with key_set(scope) as key:
                asked = ModelContext(
                    model=scope.model_name,
                    client=self._library.EvalClientConfig(base_url=scope.base_url, api_key_var=key),
                    sampling=self._library.SamplingConfig(**sampling),
                )
                episode = await self._run(self._served.play(task, asked))
        trace = self._only_trace(episode.traces, episode.errors, "its agent")
        return self._finish(scope.trajectory, scenario, trace, episode.errors)

    async def close(self) -> None:
        """Ends what is served, and the loop in which the rollouts run."""
        if self._thread_of_loop is None:
            return
        try:
            if self._served is not None:
                await self._run(self._served.close(), "the end of what it serves", CLOSE_S)
        except EnvironmentFailedError as error:
            _log.warning("%s", error)  # the rollouts are done
        finally:
            self._thread_of_loop.stop()
            self._thread_of_loop = None

    async def _run(
        self, work: Coroutine[Any, Any, Any], what: str = "a rollout", deadline_s: float | None = None
    ) -> Any:
        if self._thread_of_loop is None:
            self._thread_of_loop = LoopThread(f"environment {self.name}")
        running = self._thread_of_loop.start(work)
        try:
            return await end_within(
                deadline_s or self._deadline_s, f"environment {self.name!r}: {what}", running
            )
        except EnvironmentTimeoutError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailedError(
                f"environment {self.name!r} failed: {type(error).__name__}: {error}"
            ) from error

    def _only_trace(self, traces: Sequence[Any], errors: Sequence[Any], agent: str) -> Any:
        """Returns the one trace. Raises: EnvironmentFailedError where there are none or several."""
        if len(traces) != 1:
            said = "; ".join(f"{one.type}: {one.message}" for one in errors)
            ran = f"{agent} ran {len(traces)} times in an episode, and not once"
            raise EnvironmentFailedError(f"environment {self.name!r}: {said or ran}")
        return traces[0]

    def _finish(
        self, trajectory: Trajectory, scenario: Scenario, trace: Any, errors: Sequence[Any] = ()
    ) -> Trajectory:
        """Gives the trajectory what the trace has. errors: those of the episode.

        Raises: EnvironmentFailedError where nothing was sampled.
        """
        failures = [f"{one.type}: {one.message}" for one in (*trace.errors, *errors)]
        if not trajectory.messages_and_choices:
            raise EnvironmentFailedError(
                f"environment {self.name!r} ended before the model said anything: "
                f"{'; '.join(failures) or trace.stop_condition}"
            )
        scored = {name: one.score for name, one in trace.rewards.items() if one is not None}
        reward: float | Unscored = float(trace.reward)
        if errors or not trace.ok:
            reward = Unscored(f"{self.name}: {'; '.join(failures)[:1000] or trace.stop_condition}")
        elif not scored:
            reward = Unscored(f"{self.name} gave no reward")
        trajectory.reward = reward
        trajectory.metrics.update({f"reward/{name}": float(value) for name, value in scored.items()})
        trajectory.metrics.update({name: float(value) for name, value in trace.metrics.items()})
        trajectory.metrics["truncated"] = float(bool(trace.is_timeout))
        shown = reward.reason if isinstance(reward, Unscored) else format(reward, "g")
        trajectory.metadata.update(
            {
                SCENARIO_ID: scenario.id,
                SHOW: f"{text_of_messages(trajectory.messages())}\n\nreward: {shown}",
                "environment": self.name,
                "harness": str(trace.agent.config.harness.id),
                "stop_condition": str(trace.stop_condition),
                "trace": str(trace.id),
            }
        )
        return trajectory


class ServedEnvironment:
    """An environment of verifiers, and what it serves from its first episode on: servers of tools, and what
    its own start() makes. All calls are of one event loop.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._serving: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()

    async def play(self, task: Any, context: Any) -> Any:
        """Returns the episode. Raises what the start raises; the next episode starts again."""
        if self._serving is None or self._serving.done():
            self._ready, self._ended = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._serving = asyncio.create_task(self._serve(self._ready, self._ended))
        assert self._ready is not None
        await asyncio.shield(self._ready)  # an episode whose time is up ends no other
        return await self._environment.run_episode(task, context)

    async def close(self) -> None:
        """Ends what is served."""
        serving, self._serving = self._serving, None
        self._ended.set()
        if serving is not None:
            await serving

    async def _serve(self, ready: asyncio.Future[None], ended: asyncio.Event) -> None:
        try:
            async with self._environment.serving():
                ready.set_result(None)
                await ended.wait()
        except (Exception, SystemExit) as error:
            if ready.done():
                raise
            ready.set_exception(error)


@contextmanager
def key_set(scope: rollout) -> Iterator[str]:
    """Gives the name of the variable that has the rollout's key inside the block."""
    name = f"{KEY}_{content_id(scope.rollout_id).upper()}"
    with variable_set(name, str(scope.api_key)):
        yield name


def sampling_of(seed: int | None, temperature: float, max_tokens: int | None) -> dict[str, Any]:
    """Returns the settings of the requests of a rollout."""
    limit = MAX_TOKENS if max_tokens is None else max_tokens
    return {"temperature": temperature, "max_tokens": limit, **({} if seed is None else {"seed": seed})}
