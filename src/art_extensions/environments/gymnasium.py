"""Worlds of text and images with Gymnasium's `reset` and `step`, such as "gymnasium:my_module:MyWorld".

    observation, info = world.reset(seed=7)                        text, what the model is told
    observation, reward, terminated, truncated, info = world.step(action)         text, what the model replied

NAME is "module:Class", which needs no library, or an id of Gymnasium's registry such as "Guess-v0" or
"module:Guess-v0". The reward of a rollout is the sum over its steps; numbers in the last `info` are its
metrics.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import Scenario, load_module, load_object, text_of_messages
from art.errors import ConfigurationError, EnvironmentFailedError, extra_needed
from art.types import text_of_content
from art_extensions.environments.library_environment import (
    AdapterOptions,
    LibraryEnvironment,
    takes_options,
    text_in,
)
from art_extensions.environments.observed_images import Content, image_address, image_part, is_pixels

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "gymnasium:"
ID = re.compile(r"-v\d+$")
"""The end of an id in Gymnasium's registry."""


class GymnasiumEnvironment(LibraryEnvironment):
    """A class with `reset` and `step`, or an id of Gymnasium's registry.

    options: a scenario is a seed for `reset`. max_turns: replies after which a rollout ends as truncated.
    turn_rewards: each reply earns the reward of its step, for algorithms of turns; its `info` may have a
    "reason", and the `info` before it the name of the "state" that it is in, both texts.
    config: arguments of the class, or of `gymnasium.make`.
    """

    LIBRARY = "gymnasium"

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the ids of other packages: what Gymnasium itself brings observes numbers, no text."""
        import gymnasium

        modules = {
            name: one.entry_point if isinstance(one.entry_point, str) else one.entry_point.__module__
            for name, one in gymnasium.registry.items()
            if one.entry_point is not None
        }
        return {name: "" for name, module in sorted(modules.items()) if not module.startswith("gymnasium.")}

    @takes_options()
    def __init__(
        self,
        name: str,
        options: AdapterOptions,
        /,
        *,
        max_turns: int = 32,
        turn_rewards: bool = False,
        **config: Any,
    ) -> None:
        super().__init__(PREFIX + name, options)
        if max_turns < 1:
            raise ConfigurationError(f"{self.name}: max_turns={max_turns} allows no turn; give 1 or more")
        self._make, given = _maker(self.name, name)
        self._given, self._config = given, config
        self._max_turns, self._turn_rewards = max_turns, turn_rewards

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of a split: seeds for `reset`."""
        seeds = self._scenario_seeds(split)
        return [Scenario(f"{self.name}/{seed}", {"seed": seed}) for seed in seeds]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays one episode in a world of its own; see `NamedEnvironment.rollout`. The world's seed is the
        scenario's, so all rollouts of a scenario begin alike.
        """
        conversation = self._conversation(model, seed=seed, temperature=temperature, max_tokens=max_tokens)
        with self._thread() as thread:
            world = await thread.call("making it", self._new_world)
            try:
                observation, info = await thread.call(
                    "reset", _reset, self.name, world, scenario.data["seed"]
                )
                total, ended, truncated = 0.0, False, False
                while not ended and conversation.turns < self._max_turns:
                    state = text_in(info, "state")
                    conversation.add({"role": "user", "content": observation})
                    action = await conversation.ask()
                    outcome = await thread.call("step", _step, self.name, world, action)
                    observation, reward, ended, truncated, info = outcome
                    if self._turn_rewards:
                        conversation.reward_turn(reward, state=state, reason=text_in(info, "reason"))
                    total += reward
            finally:
                await thread.close_world(world)
        metrics = {
            "turns": float(conversation.turns),
            "truncated": float(truncated or not ended),
            **{str(name): float(value) for name, value in info.items() if isinstance(value, int | float)},
        }
        said = text_of_messages(conversation.trajectory.messages())
        return conversation.finish(
            scenario,
            reward=total,
            metrics=metrics,
            show=f"{said}\n\nenvironment: {text_of_content(observation)}\nreward: {total:g}",
            environment=self.name,
        )

    def _new_world(self) -> Any:
        try:
            return self._make(*self._given, **self._config)
        except TypeError as error:
            raise ConfigurationError(f"{self.name} cannot be made with {self._config}: {error}") from error


def _maker(full: str, name: str) -> tuple[Any, tuple[str, ...]]:
    """Returns what makes a world, and its first arguments."""
    if ID.search(name) is None:
        made = load_object("environment", name)
        missing = [one for one in ("reset", "step") if isinstance(made, type) and not hasattr(made, one)]
        if not callable(made) or missing:
            raise ConfigurationError(
                f"{full}: {name} is no environment: it needs reset(*, seed) and step(action)"
            )
        return made, ()
    with extra_needed("gymnasium", f"environment {full!r}"):
        import gymnasium
    module, colon, registered = name.rpartition(":")
    if colon:
        load_module("environment", name, module)
    try:
        gymnasium.spec(registered)
    except gymnasium.error.Error as error:
        raise ConfigurationError(f"{full}: {error}") from error
    return gymnasium.make, (registered,)


def _reset(full: str, world: Any, seed: int) -> tuple[Content, Mapping[str, Any]]:
    signature = inspect.signature(world.reset)
    if "seed" not in signature.parameters and not any(
        one.kind is one.VAR_KEYWORD for one in signature.parameters.values()
    ):
        raise ConfigurationError(
            f"{full}: reset{signature} takes no seed, so it has no scenarios: write "
            "reset(self, *, seed=None, options=None)"
        )
    result = world.reset(seed=seed)
    observation, *more = result if isinstance(result, tuple) else (result,)
    return _content(full, observation), (more[0] if more else None) or {}


def _step(full: str, world: Any, action: str) -> tuple[Content, float, bool, bool, Mapping[str, Any]]:
    """Returns observation, reward, whether it ended, whether it was cut, info; older worlds give four."""
    result = world.step(action)
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        raise EnvironmentFailedError(
            f"environment {full!r}: step gave {type(result).__name__}, not "
            "(observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, *truncated, info = result
    cut = bool(truncated and truncated[0])
    return _content(full, observation), float(reward), bool(terminated) or cut, cut, info or {}


def _content(full: str, observation: Any) -> Content:
    """Returns an observation as the content of a message: a text, or parts where there is an image."""
    if isinstance(observation, str):
        return observation
    shown = observation if isinstance(observation, tuple | list) and observation else [observation]
    if not all(isinstance(one, str) or is_pixels(one) for one in shown):
        raise EnvironmentFailedError(
            f"environment {full!r}: the observation is {type(observation).__name__}, not text, and no image: "
            "use a wrapper that describes it in words, such as gymnasium.wrappers.TransformObservation"
        )
    return [
        {"type": "text", "text": one} if isinstance(one, str) else image_part(image_address(full, one))
        for one in shown
    ]
