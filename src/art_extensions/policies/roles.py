"""Environments with several roles, each played by the model that has it, and the training of those models.

    policies = {"red": red, "blue": blue}                 a model for each role, or one model for several
    async with art.LocalBackend() as backend:
        await red.register(backend)
        await blue.register(backend)
        await train_policies(environment, policies, steps=20)

An episode gives a trajectory for each role, with the reward of that role. The trajectories of a role in the
episodes of one scenario are a group: rewards are compared with those of the same role alone. Each model is
trained on the groups of its roles and on no other's. The roles in `frozen`, and those whose model cannot be
trained, are played and not trained.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, cast

from art.environments.adapters.environment import ROLLOUT_S, SCENARIO_ID, Scenario, end_within, load_object
from art.environments.adapters.registry import PYTHON
from art.environments.tasks import turn_seed
from art.errors import ConfigurationError, EnvironmentFailedError, did_you_mean
from art.extensions import ROLES, extension_points, load_extension
from art.model import Model, TrainableModel
from art.tracking.rollout_figures import scores
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.types import TrainConfig

ROLE = "role"
"""The key of a trajectory's and of a group's metadata with the role that it is of."""
PARTS = ("name", "roles", "scenarios", "play", "close")
"""What an environment with roles has."""
CONCURRENCY = 32
"""Episodes that are played at a time, unless the caller says how many."""


class RolesEnvironment(Protocol):
    """An environment with roles. Beside `play`, it has the face of a `NamedEnvironment`."""

    name: str
    roles: Sequence[str]

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of "train" or "val", as `NamedEnvironment.scenarios`."""
        ...

    async def play(
        self,
        policies: Mapping[str, Model[Any, Any]],
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Mapping[str, Trajectory]:
        """Plays one episode, and returns the trajectory of each role, with the reward of that role.

        policies: the model of each role. What several roles share is `art.Unscored` where it is unknown. The
        other arguments, and what is raised, are those of `NamedEnvironment.rollout`.
        """
        ...

    async def close(self) -> None:
        """Ends what the environment has started."""
        ...


@dataclass(frozen=True, kw_only=True)
class RolesStep:
    """One step of a training of several policies."""

    step: int
    """The step that the learners have now."""
    rewards: Mapping[str, float | None]
    """The mean reward of each role; None where no episode gave one."""
    trained: Sequence[str]
    """The names of the models that were trained. A model whose groups had equal rewards is none of them."""
    failed: int
    """Episodes that failed; each is a failed rollout of every role."""


def find_roles_environment(name: str, options: Mapping[str, Any]) -> RolesEnvironment:
    """Returns the environment with roles that "module:name" names, or what that makes of the options. The
    name may have the prefix of a library (`art.extensions`: roles), such as "verifiers:NAME".

    Raises ConfigurationError where it is none, or takes no such options.
    """
    prefix, _, rest = name.partition(":")
    found = (
        partial(load_extension(ROLES, prefix), rest)
        if prefix in extension_points(ROLES)
        else load_object("environment", name.removeprefix(f"{PYTHON}:"))
    )
    if callable(found) and not (hasattr(found, "play") and not isinstance(found, type)):
        try:
            inspect.signature(found).bind(**options)
        except TypeError as error:
            raise ConfigurationError(f"environment {name!r}: {error}") from error
        found = found(**options)
    elif options:
        raise ConfigurationError(f"environment {name!r} is an object: it takes no {', '.join(options)}")
    if missing := [part for part in PARTS if not hasattr(found, part)]:
        raise ConfigurationError(
            f"environment {name!r} has no {' and no '.join(missing)}: "
            "art_extensions.policies.roles.RolesEnvironment says what it needs"
        )
    return cast("RolesEnvironment", found)


def frozen_at(model: TrainableModel[Any, Any], step: int) -> Model[Any, Any]:
    """Returns a checkpoint of a registered model as a policy that is not trained, for roles of opponents."""
    client = model.openai_client()
    return Model(
        name=f"{model.name}-at-{step}",
        project=model.project,
        inference_model_name=model.get_inference_name(step),
        inference_base_url=str(client.base_url),
        inference_api_key=client.api_key,
    )


async def gather_roles(
    environment: RolesEnvironment,
    policies: Mapping[str, Model[Any, Any]],
    scenarios: Sequence[Scenario],
    *,
    group_size: int,
    seed: int | None = None,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    max_exceptions: int = 0,
    concurrency: int = CONCURRENCY,
    deadline_s: float = ROLLOUT_S,
) -> dict[str, list[TrajectoryGroup]]:
    """Returns a group for each scenario of each role, of `group_size` episodes.

    concurrency: episodes at a time. deadline_s: of an episode, in seconds. seed: each episode is seeded from
    it. max_exceptions: episodes that may fail; one more raises its error. A failed episode is in the group of
    each role as a failure. Raises ConfigurationError for roles without a model, and what `play` raises.
    """
    check_roles(environment, policies, ())
    slots = asyncio.Semaphore(concurrency)

    async def play(place: int, scenario: Scenario) -> Mapping[str, Trajectory] | Exception:
        seeded = None if seed is None else turn_seed(seed, place)
        try:
            async with slots:
                episode = environment.play(
                    policies, scenario, seed=seeded, temperature=temperature, max_tokens=max_tokens
                )
                played = await end_within(deadline_s, f"environment {environment.name!r}: a rollout", episode)
            if {*played} != {*environment.roles}:
                raise EnvironmentFailedError(
                    f"environment {environment.name!r} gave trajectories of {sorted(played)}, and its roles "
                    f"are {sorted(environment.roles)}"
                )
            return played
        except Exception as error:  # noqa: BLE001  # counted below
            return error

    wanted = [scenario for scenario in scenarios for _ in range(group_size)]
    episodes = await asyncio.gather(*(play(place, scenario) for place, scenario in enumerate(wanted)))
    failed = [one for one in episodes if isinstance(one, Exception)]
    if len(failed) > max_exceptions:
        raise failed[-1]
    return {
        role: [
            TrajectoryGroup(
                [_of_role(one, role) for one in episodes[first : first + group_size]],
                metadata={SCENARIO_ID: wanted[first].id, ROLE: role},
            )
            for first in range(0, len(wanted), group_size)
        ]
        for role in environment.roles
    }


def _of_role(episode: Mapping[str, Trajectory] | Exception, role: str) -> Trajectory | Exception:
    if isinstance(episode, Exception):
        return episode
    trajectory = episode[role]
    trajectory.metadata[ROLE] = role
    return trajectory


async def train_policies(
    environment: RolesEnvironment,
    policies: Mapping[str, Model[Any, Any]],
    *,
    steps: int,
    frozen: Collection[str] = (),
    groups_per_step: int = 8,
    group_size: int = 8,
    seed: int = 0,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    max_exceptions: int = 0,
    concurrency: int = CONCURRENCY,
    deadline_s: float = ROLLOUT_S,
    config: TrainConfig | None = None,
    on_step: Callable[[RolesStep], object] | None = None,
    **options: Any,
) -> list[RolesStep]:
    """Trains the models of the roles until each of them has made `steps` steps. Returns the steps made here.

    policies: the model of each role. Those that learn are registered. frozen: roles that are not trained.
    groups_per_step: scenarios of a step. config, options: as `TrainableModel.train` takes them, for each
    learner. on_step: is given each step when it is made. The same call goes on after a stop: a model that
    has made the step already plays and is not trained in it. Raises ConfigurationError where a role has no
    model, or no role is trained, and what `gather_roles` and `train` raise.
    """
    learners = _learners(environment, policies, frozen)
    scenarios = environment.scenarios("train")
    made: list[RolesStep] = []
    for step in range(min([await model.get_step() for model, _ in learners]), steps):
        drawn = random.Random(f"{seed}/{step}").sample(scenarios, min(groups_per_step, len(scenarios)))
        groups = await gather_roles(
            environment,
            policies,
            drawn,
            group_size=group_size,
            seed=turn_seed(seed, step),
            temperature=temperature,
            max_tokens=max_tokens,
            max_exceptions=max_exceptions,
            concurrency=concurrency,
            deadline_s=deadline_s,
        )
        trained = []
        for model, roles in learners:
            if await model.get_step() > step:
                continue
            result = await model.train(
                [one for role in roles for one in groups[role]], config=config, **options
            )
            if result.metrics.get("data/sheet/trained_rollouts"):
                trained.append(model.name)
        rewards = {role: _mean_reward(groups[role]) for role in environment.roles}
        failed = sum(len(one.exceptions) for one in groups[environment.roles[0]])
        made.append(RolesStep(step=step + 1, rewards=rewards, trained=trained, failed=failed))
        if on_step is not None:
            on_step(made[-1])
    return made


def _mean_reward(groups: Sequence[TrajectoryGroup]) -> float | None:
    rewards = scores([one for group in groups for one in group])
    return fmean(rewards) if rewards else None


def _learners(
    environment: RolesEnvironment, policies: Mapping[str, Model[Any, Any]], frozen: Collection[str]
) -> list[tuple[TrainableModel[Any, Any], list[str]]]:
    """Returns the models that learn, each with its roles. Raises ConfigurationError where there is none, or
    where a model learns in one role and is frozen in another.
    """
    check_roles(environment, policies, frozen)
    found: dict[tuple[str, str], tuple[TrainableModel[Any, Any], list[str]]] = {}
    for role in environment.roles:
        model = policies[role]
        if role not in frozen and isinstance(model, TrainableModel):
            found.setdefault((model.project, model.name), (model, []))[1].append(role)
    for role in frozen:
        if (policies[role].project, policies[role].name) in found:
            raise ConfigurationError(
                f"role {role!r} is frozen, and its model {policies[role].name!r} learns in another role: a "
                "checkpoint that stays is `frozen_at(model, step)`"
            )
    if not found:
        raise ConfigurationError(
            f"environment {environment.name!r}: no role is trained: give one of {list(environment.roles)} a "
            "TrainableModel, and leave it out of frozen"
        )
    return list(found.values())


def check_roles(environment: RolesEnvironment, policies: Collection[str], others: Collection[str]) -> None:
    """Raises ConfigurationError unless `policies` are the environment's roles, and `others` some of them."""
    roles = list(environment.roles)
    for role in (*policies, *others):
        if role not in roles:
            hint = did_you_mean(role, roles)
            raise ConfigurationError(
                f"environment {environment.name!r} has no role {role!r}: {f'{hint} ' if hint else ''}"
                f"roles: {', '.join(roles)}"
            )
    if missing := [role for role in roles if role not in policies]:
        raise ConfigurationError(
            f"environment {environment.name!r}: role {missing[0]!r} has no model: give policies a model for "
            f"each of {', '.join(roles)}"
        )


class RoleEnvironment:
    """One role as an environment by itself, against the models of the others, which are not trained.

    It is a `NamedEnvironment`, for `art.train_environment`, `art eval` and all else that takes one.
    """

    def __init__(
        self, environment: RolesEnvironment, role: str, others: Mapping[str, Model[Any, Any]]
    ) -> None:
        """others: the model of each other role. Raises ConfigurationError where one has none."""
        if role in others:
            raise ConfigurationError(f"role {role!r} is the one that is trained: it has no model in others")
        check_roles(environment, {**others, role: Model(name="learner", project="roles")}, ())
        self.name = f"{environment.name}/{role}"
        self.scenarios, self.close = environment.scenarios, environment.close
        self._environment, self._role, self._others = environment, role, dict(others)

    async def rollout(
        self,
        model: Model[Any, Any],
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays one episode, and returns the trajectory of the role."""
        played = await self._environment.play(
            {**self._others, self._role: model},
            scenario,
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens,
        )
        trajectory = played[self._role]
        trajectory.metadata[ROLE] = self._role
        return trajectory
