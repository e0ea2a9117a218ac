"""The reward of a reward model: the score that a step of `train_reward_model` gives a trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.client.requests.train_request import plain_messages, plain_tools
from art.errors import ConfigurationError
from art.process.imports import import_lock
from art.rewards.reward import Reward, Score
from art.types import Unscored
from art_extensions.preferences.questions import BAD, GOOD, QUESTION, question_behind, score_of

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory, TrajectoryGroup

AT_ONCE = 32
"""Requests of one group that are under way."""


class RewardModel(Reward):
    """Scores trajectories by a model that `train_reward_model` has trained.

    model: a registered model, or an `art.Model` with the address of one; its newest step scores, or that of
    `step`. question: the one that it was trained with. A score is log p("1") - log p("0") of the answer, any
    number; only differences of scores have a meaning. A trajectory that cannot be asked about is unscored.
    """

    def __init__(
        self,
        model: Model[Any, Any],
        *,
        step: int | None = None,
        question: str = QUESTION,
        name: str = "reward_model",
    ) -> None:
        """Raises ConfigurationError for an empty question."""
        if not question.strip():
            raise ConfigurationError(f"question is {question!r}: a reward model is asked something")
        self.name = name
        self._model, self._step, self._question = model, step, question

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        room = asyncio.Semaphore(AT_ONCE)

        async def scored(trajectory: Trajectory) -> Score:
            async with room:
                return await self._score(trajectory)

        return await asyncio.gather(*(scored(one) for one in group.trajectories))

    async def _score(self, trajectory: Trajectory) -> Score:
        with import_lock:
            from openai import OpenAIError

        messages = plain_messages("a trajectory", trajectory.messages_and_choices)
        asked = question_behind(messages, self._question)
        tools = plain_tools("a trajectory", trajectory.tools)
        request: dict[str, Any] = {"tools": tools, "tool_choice": "none"} if tools else {}
        request["messages"] = [{key: one[key] for key in one if key != "weight"} for one in asked]
        try:
            reply = await self._model.openai_client().chat.completions.create(
                model=self._model.get_inference_name(self._step),
                max_tokens=1,
                logprobs=True,
                top_logprobs=2,
                extra_body={"structured_outputs": {"choice": [GOOD, BAD]}},
                **request,
            )
        except OpenAIError as error:
            return Score(value=Unscored(f"{self.name}: {type(error).__name__}: {error}"))
        content = reply.choices[0].logprobs.content if reply.choices[0].logprobs else None
        found = {top.token: top.logprob for top in content[0].top_logprobs} if content else {}
        value = score_of(found)
        if value is None:
            return Score(value=Unscored(f"{self.name}: the answers' logprobs are {found!r}"))
        return Score(value=value)
