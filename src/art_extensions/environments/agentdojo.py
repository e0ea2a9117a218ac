"""Agents with tools of AgentDojo, from inspect-evals: `find_environment("agentdojo:banking")`.

The model does what a user asks for in a mailbox, a bank account and the like. With `attack`, the data that
the tools give carry an instruction of somebody else, which the model should not follow.

A scenario is a user's task, with an attack one for each of the attacker's goals. A fifth of the user's tasks
is "val". The package's scorer says whether the task was done (`utility`) and, with an attack, whether the
attacker got what they wanted (`security`: 1 is bad). The reward is `utility`; with an attack it is
`utility_under_attack`, AgentDojo's own measure: the task was done, and the attacker's was not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from art.errors import ConfigurationError
from art_extensions.environments.inspect_ai import SAMPLE_S, figures_of_scores
from art_extensions.environments.inspect_evals import EXTRA as EXTRA
from art_extensions.environments.inspect_evals import MAX_TURNS, InspectEvalsEnvironment

SUITES = ("banking", "slack", "travel", "workspace")
IMPORTANT = "important_instructions"
"""The package's attack."""
HELD_OUT = 5
"""One of so many tasks of the user is for "val"."""


class AgentDojoEnvironment(InspectEvalsEnvironment):
    """A suite of AgentDojo: banking, slack, travel or workspace.

    attack: the package's attack; None: the tools give harmless data. attack_arguments: its arguments, such as
    {"user_name": "Emma Johnson"}. user_task_ids, injection_task_ids: numbers of the tasks and of the
    attacker's goals; None: all.
    """

    prefix, KNOWN = "agentdojo:", SUITES

    def __init__(
        self,
        suite: str,
        /,
        *,
        attack: str | None = None,
        attack_arguments: Mapping[str, Any] | None = None,
        user_task_ids: Sequence[int] | None = None,
        injection_task_ids: Sequence[int] | None = None,
        seed: int = 0,
        train: int | None = None,
        val: int | None = None,
        max_turns: int = MAX_TURNS,
        score: str | None = None,
        time_limit_s: int = SAMPLE_S,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._refuse_without_attack(
            attack, attack_arguments=attack_arguments, injection_task_ids=injection_task_ids
        )
        super().__init__(
            suite,
            seed=seed,
            train=train,
            val=val,
            max_turns=max_turns,
            score=score,
            time_limit_s=time_limit_s,
            request=request,
            roles=None,
            task={
                "workspace": suite,
                "with_sandbox_tasks": "no",
                "with_injections": attack is not None,
                "attack": attack or IMPORTANT,
                "attack_kwargs": dict(attack_arguments or {}),
                "user_task_ids": user_task_ids,
                "injection_task_ids": injection_task_ids,
            },
        )

    def _refuse_without_attack(self, attack: str | None, **given: Any) -> None:
        for option, value in given.items():
            if attack is None and value is not None:
                raise ConfigurationError(
                    f"{self.prefix} environments take {option} with an attack: give attack={IMPORTANT!r}"
                )

    def _find_task(self, name: str) -> Callable[..., Any]:
        from inspect_evals.agentdojo import agentdojo

        found: Callable[..., Any] = agentdojo
        return found

    def _split_samples(self, chance: random.Random) -> Mapping[str, Sequence[int]]:
        tasks = sorted({self._task_id(place) for place in range(len(self._samples))}, key=int)
        chance.shuffle(tasks)
        held_out = set(tasks[: max(1, len(tasks) // HELD_OUT)])
        order = list(range(len(self._samples)))
        chance.shuffle(order)
        return {
            "train": [place for place in order if self._task_id(place) not in held_out],
            "val": [place for place in order if self._task_id(place) in held_out],
        }

    def _task_id(self, place: int) -> str:
        return str(self._samples[place].metadata["task_id"])

    def _read_figures(self, sample: Any) -> dict[str, float]:
        figures = {
            name.rpartition("_")[2]: value for name, value in figures_of_scores(sample.scores or {}).items()
        }
        if "security" not in figures:
            return figures
        # AgentDojo, arXiv 2406.13352, section 3.4: solved "without any adversarial side effects".
        return {"utility_under_attack": figures["utility"] * (1 - figures["security"]), **figures}
