"""What environments of tasks of the package inspect-evals share: splits, and a limit of turns.

Their solvers loop until somebody ends the conversation, and one of them goes on after a request that failed.
Here a rollout ends after so many replies, after a prompt that the model's context does not hold, and after a
request that failed: the model is asked no more and says nothing, and a simulated user, if there is one, ends
the conversation. The package then scores what there is, or the rollout fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import check_sizes
from art.errors import ConfigurationError, EnvironmentFailedError, did_you_mean, extra_needed
from art_extensions.environments.inspect_ai import InspectEnvironment
from art_extensions.environments.model_requests import ModelRequests

if TYPE_CHECKING:
    from art.environments.adapters.environment import Scenario
    from art.model import Model
    from art_extensions.environments.inspect_roles import RolePlayer

EXTRA = "inspect-evals"
MAX_TURNS = 50
"""Replies of the model in a rollout, where nothing else is given."""
STOP = "###STOP###"
"""What a simulated user says to end the conversation."""


@dataclass
class LimitedRequests(ModelRequests):
    """The requests of a rollout that ends after `most` replies."""

    most: int = MAX_TURNS
    over: bool = False
    """The model is asked no more."""
    failure: Exception | None = None
    """What ended it before its time."""


class InspectEvalsEnvironment(InspectEnvironment):
    """A task of inspect-evals for training: see the subclasses for `name`.

    seed: the order of the scenarios. train, val: the most scenarios of a split; None: all. max_turns: replies
    of the model after which a rollout ends, as truncated. task: arguments of the package's task. The other
    options are those of `InspectEnvironment`.
    """

    extra = EXTRA
    KNOWN: Sequence[str] = ()
    """The names that the package has."""
    LIBRARY = "inspect-evals"

    @classmethod
    def installed_names(cls) -> dict[str, str]:
        """Returns the names, none of which needs anything."""
        import inspect_ai  # noqa: F401
        import inspect_evals  # noqa: F401

        return dict.fromkeys(cls.KNOWN, "")

    def __init__(
        self,
        name: str,
        /,
        *,
        seed: int,
        train: int | None,
        val: int | None,
        max_turns: int,
        score: str | None,
        time_limit_s: int,
        request: Mapping[str, Any] | None,
        roles: Mapping[str, Model | str | RolePlayer] | None,
        task: Mapping[str, Any],
    ) -> None:
        full = self.prefix + name
        if name not in self.KNOWN:
            hint = did_you_mean(name, self.KNOWN)
            raise ConfigurationError(
                f"unknown environment {full!r}: {f'{hint} ' if hint else ''}known: "
                f"{', '.join(self.prefix + one for one in self.KNOWN)}"
            )
        check_sizes(full, 1 if train is None else train, 1 if val is None else val)
        if max_turns < 1:
            raise ConfigurationError(f"environment {full!r}: max_turns={max_turns}: give 1 or more")
        self._max_turns = max_turns
        with extra_needed(EXTRA, f"environment {full!r}"):
            super().__init__(
                name, score=score, time_limit_s=time_limit_s, request=request, roles=roles, arguments=task
            )
            halves = self._split_samples(random.Random(f"{seed}"))
        self._task = self._library.task_with(self._task, cleanup=_forget_store)
        for split, size in (("train", train), ("val", val)):
            self._places[split] = list(halves[split][:size])

    def _split_samples(self, chance: random.Random) -> Mapping[str, Sequence[int]]:
        """Returns the places of the samples of each split, in the order of the scenarios."""
        raise NotImplementedError

    def _new_requests(self, seed: int | None, listener: Any) -> LimitedRequests:
        return LimitedRequests(seed, listener, most=self._max_turns)

    def _limit(self, model: Any, roles: Mapping[str, Any], requests: ModelRequests) -> None:
        assert isinstance(requests, LimitedRequests)
        model.generate = self._ended(model.generate, requests, "")
        for role in roles.values():
            role.generate = self._ended(role.generate, requests, STOP)

    def _is_cut(self, sample: Any, requests: ModelRequests) -> bool:
        assert isinstance(requests, LimitedRequests)
        return requests.over or super()._is_cut(sample, requests)

    async def _play(
        self,
        scenario: Scenario,
        model_name: str,
        where: tuple[str | None, str | None],
        asked: Mapping[str, Any],
        requests: ModelRequests,
    ) -> Any:
        """Returns the sample as inspect logged it. Raises what a request or the user's function raised."""
        assert isinstance(requests, LimitedRequests)
        try:
            sample = await super()._play(scenario, model_name, where, asked, requests)
        except EnvironmentFailedError:
            if requests.failure is None:
                raise
        if requests.failure is not None:
            raise requests.failure
        return sample

    def _evaluate(self, tasks: list[Any]) -> dict[str, Any]:
        """Returns each sample as inspect logged it, without the worlds of the tasks.

        A world is a database of megabytes in the sample's store: to log it, and how it changed in each call
        of a tool, takes minutes.
        """
        from inspect_ai.util._store import suspend_store_events

        with suspend_store_events():
            return super()._evaluate(tasks)

    def _ended(
        self, generate: Callable[..., Any], requests: LimitedRequests, last: str
    ) -> Callable[..., Any]:
        """Returns a model's `generate` that says `last`, and asks nobody, once the rollout is over.

        last: "" for the model itself. A request that failed is kept in `requests.failure`.
        """
        from inspect_ai.model import ModelOutput

        def explain(error: Exception) -> Exception:
            if not last:
                return requests.error or error
            failed = EnvironmentFailedError(
                f"environment {self.name!r}: the user failed: {type(error).__name__}: {error}"
            )
            failed.__cause__ = error
            return failed

        async def generate_until_over(*given: Any, **named: Any) -> Any:
            requests.over |= not last and requests.answered >= requests.most
            if not requests.over:
                try:
                    output = await generate(*given, **named)
                except Exception as error:  # noqa: BLE001  # `_play` raises it
                    requests.failure, requests.over = explain(error), True
                else:
                    if output.stop_reason != "model_length":
                        return output
                    requests.over = True
            return ModelOutput.from_content("ended", last)

        return generate_until_over


async def _forget_store(state: Any) -> None:
    """Empties the store of a sample, which has been scored."""
    for key in list(state.store.keys()):
        state.store.delete(key)
