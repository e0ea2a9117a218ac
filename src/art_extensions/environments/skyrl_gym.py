"""Environments of SkyRL-Gym: `find_environment("skyrl-gym:gsm8k", data="train.parquet")`.

A scenario is a row of a dataset of SkyRL: the prompt, and what the environment's class is given as `extras`.
The model's reply is the action, and the reward of a rollout is the sum over its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import (
    Scenario,
    check_split,
    load_module,
    text_of_messages,
)
from art.environments.tasks import Message
from art.errors import ConfigurationError, EnvironmentFailedError, did_you_mean, extra_needed
from art_extensions.environments.dataset_rows import Rows, read_rows, split_rows
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment, takes_options

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "skyrl-gym:"
PROMPT, CLASS = "prompt", "env_class"
"""The columns of a row that are not for the environment."""
MOST_TURNS = 32
"""Replies after which a rollout ends as truncated, where `max_turns` gives no other number."""


class SkyRLGymEnvironment(LibraryEnvironment):
    """An environment by its id in SkyRL-Gym's registry; "module:id" imports the module first.

    data, val_data: the rows of "train" and "val"; without `val_data` a part of `data` is kept for "val". Rows
    of another `env_class` are left out. max_turns: as the environment is given it, and the limit of replies.
    turn_rewards: each reply earns the reward of its step, for algorithms of turns. config: the environment's
    `env_config`.
    """

    LIBRARY = "skyrl-gym"

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the ids of the registry, each with what it needs."""
        import skyrl_gym

        return dict.fromkeys(sorted(skyrl_gym.registry), "data=FILE, a dataset of SkyRL")

    @takes_options()
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        data: Rows | None = None,
        val_data: Rows | None = None,
        max_turns: int | None = None,
        turn_rewards: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(PREFIX + name, options)
        if max_turns is not None and max_turns < 1:
            raise ConfigurationError(f"{self.name}: max_turns={max_turns} allows no turn; give 1 or more")
        self._make, self._id = self._find(name)
        if data is None:
            raise ConfigurationError(
                f"{self.name} has no rows of its own: give data=FILE, a dataset of SkyRL with the columns "
                f"{PROMPT!r} and those that the environment needs, such as 'reward_spec'"
            )
        self._max_turns, self._turn_rewards, self._config = max_turns, turn_rewards, dict(config or {})
        self._found = split_rows(
            self.name,
            self._rows(data),
            None if val_data is None else self._rows(val_data),
            sizes=self._sizes,
            seed=self._seed,
        )

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of a split: different rows, in the order of the seed."""
        check_split(self.name, split)
        return self._found[split]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays one episode in a world of its own; see `NamedEnvironment.rollout`.

        A reply that the environment would rewrite (`postprocessed_action`) stays as the model wrote it, and
        is counted in the metric `rewritten`.
        """
        total, done, rewritten = 0.0, False, 0
        with self._thread() as thread:
            world = await thread.call("making it", self._new_world, scenario.data["row"])
            try:
                seen = await thread.call("init", _init, world, scenario.data["row"][PROMPT])
                conversation = self._conversation(
                    model, seed=seed, temperature=temperature, max_tokens=max_tokens
                )
                while not done and conversation.turns < (self._max_turns or MOST_TURNS):
                    conversation.add(*seen)
                    reply = await conversation.ask()
                    seen, reward, done, kept = await thread.call("step", _step, self.name, world, reply)
                    if self._turn_rewards:
                        conversation.reward_turn(reward)
                    total += reward
                    rewritten += kept not in (None, reply)
                counted = await thread.call("get_metrics", getattr(world, "get_metrics", dict))
            finally:
                await thread.close_world(world)
        said = text_of_messages([*conversation.trajectory.messages(), *seen])
        return conversation.finish(
            scenario,
            reward=total,
            metrics={
                "turns": float(conversation.turns),
                "truncated": float(not done),
                "rewritten": float(rewritten),
                **{
                    str(name): float(value)
                    for name, value in counted.items()
                    if isinstance(value, int | float)
                },
            },
            show=f"{said}\n\nreward: {total:g}",
            environment=self.name,
        )

    def _find(self, name: str) -> tuple[Any, str]:
        """Returns the library's `make`, and an id that it knows."""
        with extra_needed("skyrl-gym", f"environment {self.name!r}"):
            import skyrl_gym
        module, colon, known = name.rpartition(":")
        if colon:
            load_module("environment", name, module)
        if known not in skyrl_gym.registry:
            hint = did_you_mean(known, skyrl_gym.registry)
            raise ConfigurationError(
                f"SkyRL-Gym has no environment {known!r}: {f'{hint} ' if hint else ''}known: "
                f"{', '.join(sorted(skyrl_gym.registry))}. skyrl-gym:MODULE:ID imports a module "
                "of yours that registers one"
            )
        return skyrl_gym.make, known

    def _new_world(self, row: Mapping[str, Any]) -> Any:
        from omegaconf import OmegaConf  # comes with the library

        extras = {key: deepcopy(value) for key, value in row.items() if key not in (PROMPT, CLASS)}
        if self._max_turns is not None:
            extras["max_turns"] = self._max_turns
        return self._make(self._id, env_config=OmegaConf.create(self._config), extras=extras)

    def _rows(self, data: Rows) -> list[dict[str, Any]]:
        """Returns the environment's rows. Raises ConfigurationError where there are none."""
        rows = read_rows(self.name, data)
        own = [row for row in rows if row.get(CLASS) in (None, self._id)]
        if not own or any(not isinstance(row.get(PROMPT), str | list) for row in own):
            raise ConfigurationError(
                f"{self.name}: {len(rows)} rows, {len(own)} of this environment: each needs a {PROMPT!r}, a "
                "text or a list of messages"
            )
        return own


def _init(world: Any, prompt: str | list[Message]) -> list[Message]:
    opening, _ = world.init(
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else deepcopy(prompt)
    )
    return list(opening)


def _step(full: str, world: Any, action: str) -> tuple[list[Message], float, bool, str | None]:
    """Returns observations, reward, whether it ended, and what the environment made of the action."""
    output = world.step(action)
    try:
        return (
            [dict(message) for message in output["observations"]],
            float(output["reward"]),
            bool(output["done"]),
            output.get("postprocessed_action"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EnvironmentFailedError(
            f"environment {full!r}: step gave {output!r}, without observations, reward or done"
        ) from error
