"""Tasksets of verifiers 0.4: `find_environment("verifiers:wordle", harness="mini_swe_agent")`.

A taskset has the tasks, a harness is the program that works on one (an agent of its own, such as Claude
Code), and a runtime is where that program runs. Each rollout is an `art.rollout`: the harness speaks to the
model's endpoint by way of verifiers, and the trajectory is what the server has answered, sub-agents and
compacted histories as branches. The trace's reward and its parts are the trajectory's. All rollouts run in
an event loop of their own, in a thread: what blocks or ends there keeps nothing else waiting.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
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
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment, takes_options
from art_extensions.environments.verifiers import PREFIX, TASKSETS_EXTRA, LoopThread

if TYPE_CHECKING:
    from art.client.rollout import rollout
    from art.model import Model
    from art.trajectories import Trajectory

EXTRA = TASKSETS_EXTRA
RUNTIME = {"type": "subprocess"}
HELD_OUT = 10
"""A taskset has no split: one of so many tasks is held out."""
KEY = "ART_ROLLOUT_API_KEY"
"""Begins the name of the variable with a rollout's key. verifiers takes keys by the name of a variable, and
gives those with API_KEY in their names to no program that it starts."""


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

    HARNESS_OPTION = "harness"

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
        self._tasks = self._load(name, dict(taskset or {}))
        given = {"id": harness} if isinstance(harness, str) else harness
        self._agent: dict[str, Any] = {
            **({"harness": dict(given)} if given else {}),
            "runtime": dict(runtime or RUNTIME),
            **({} if max_turns is None else {"max_turns": max_turns}),
        }
        self._taskset = {**(taskset or {}), "id": name}
        self._thread_of_loop: LoopThread | None = None
        self._check_settings(name)

    def _load(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Returns the tasks by their keys, in the order of the seed. Raises: ConfigurationError."""
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils.loaders import environment_class, taskset_class, taskset_config_type

        try:
            kind = environment_class(name)
            taskset = taskset_class(name)(taskset_config_type(name)(id=name, **settings))
            most = self._sizes["train"] + self._sizes["val"]
            tasks = list(taskset if taskset.bounded else islice(taskset, most))
        except Exception as error:
            raise ConfigurationError(
                f"environment {self.name!r}: verifiers cannot load this taskset: {type(error).__name__}: "
                f"{error}"
            ) from error
        self._check_agents(kind, kind is SingleAgentEnv)
        if not tasks:
            raise ConfigurationError(f"environment {self.name!r} has no task")
        ordered = sorted(tasks, key=lambda task: content_id(str(self._seed), str(task.key)))
        return {str(task.key): task for task in ordered}

    def _check_agents(self, kind: type, is_single: bool) -> None:
        """Raises ConfigurationError for a taskset with several agents."""
        if not is_single:
            raise ConfigurationError(
                f"environment {self.name!r} has several agents ({kind.__name__}), and one is trained here: "
                f"`art policies --environment {self.name}` trains a model for each"
            )

    def _check_settings(self, name: str) -> None:
        """Chooses the taskset's harness where none is given. Raises: ConfigurationError."""
        from verifiers.v1.utils.loaders import default_harness_id

        self._agent.setdefault("harness", {"id": str(default_harness_id(name))})
        self._agent_config("check", "http://127.0.0.1/v1", KEY, {})

    def _agent_config(self, model: str, base_url: str, key: str, sampling: Mapping[str, Any]) -> Any:
        """Returns verifiers' settings of an agent. Raises: ConfigurationError for options that it refuses."""
        client = self._library.EvalClientConfig(base_url=base_url, api_key_var=key)
        timeout = {"timeout": {"rollout": self._deadline_s}}
        try:
            config = self._library.AgentConfig(
                **self._agent, **timeout, model=model, client=client, sampling=sampling
            )
            self._library.Agent(config)  # finds the harness
        except Exception as error:
            raise self._refusal(error) from error
        return config

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
        """Runs the harness on a task; see `NamedEnvironment.rollout`. Each request has the same seed.

        Raises: ConfigurationError for a model without a server of ours, which keeps what was sampled.
        """
        from art.client.rollout import rollout

        if not model.trainable:
            raise ConfigurationError(
                f"environment {self.name!r}: the harness's completions are kept by ART's server: use a "
                "registered art.TrainableModel"
            )
        task = self._tasks[str(scenario.data["task"])]
        sampling = sampling_of(seed, temperature, max_tokens)
        _, at, step = model.get_inference_name().rpartition("@")
        async with rollout(model, step=int(step) if at else None) as scope:  # type: ignore[arg-type]
            with key_set(scope) as key:
                config = self._agent_config(scope.model_name, scope.base_url, key, sampling)
                trace = await self._run(self._library.Agent(config).run(task))
        return self._finish(scope.trajectory, scenario, trace)

    async def close(self) -> None:
        """Ends the loop in which the rollouts run."""
        if self._thread_of_loop is not None:
            self._thread_of_loop.stop()
            self._thread_of_loop = None

    async def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._thread_of_loop is None:
            self._thread_of_loop = LoopThread(f"environment {self.name}")
        running = self._thread_of_loop.start(work)
        try:
            return await end_within(self._deadline_s, f"environment {self.name!r}: a rollout", running)
        except EnvironmentTimeoutError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailedError(
                f"environment {self.name!r} failed: {type(error).__name__}: {error}"
            ) from error

    def _finish(self, trajectory: Trajectory, scenario: Scenario, trace: Any) -> Trajectory:
        """Gives the trajectory what the trace has. Raises: EnvironmentFailedError where nothing was
        sampled.
        """
        failures = [f"{one.type}: {one.message}" for one in trace.errors]
        if not trajectory.messages_and_choices:
            raise EnvironmentFailedError(
                f"environment {self.name!r} ended before the model said anything: "
                f"{'; '.join(failures) or trace.stop_condition}"
            )
        scored = {name: one.score for name, one in trace.rewards.items() if one is not None}
        reward: float | Unscored = float(trace.reward)
        if not trace.ok:
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
