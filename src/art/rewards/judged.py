"""A reward from a judge that is watched while it trains, and the channel to the judge that a user names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from art.errors import ConfigurationError, did_you_mean
from art.rewards.judge_checks import JudgeChecks
from art.rewards.judge_view import DIGEST_CHARS, Scorer, View, views_of
from art.rewards.llm.budget import Budget
from art.rewards.llm.cache import AnswerCache
from art.rewards.llm.channel import Channel, Pace
from art.rewards.llm.names import base_of, resolve_llm
from art.rewards.llm.request import Llm
from art.rewards.reward import GroupScores, Judgement, Reward, Score, finite_scores
from art.tracking.metrics_builder import MetricsBuilder, active_builder
from art.trajectories import TrajectoryGroup
from art.types import Unscored

if TYPE_CHECKING:
    from art.model import Model

    JudgeModel = str | Model | Llm | Callable[..., Any]

DEFAULT_JUDGE = "openai/o3"
DEADLINE_S = 120.0
Cache = AnswerCache | str | Path | bool


class JudgeOptions(TypedDict, total=False):
    """The options of a judge: keywords of `Ruler`, `Rubric`, `Pairwise` and all other functions with a
    judge.
    """

    base_url: str | None
    """The judge's address, for a name of any kind."""
    api_key: str | None
    params: Mapping[str, Any] | None
    """litellm's options of a name: temperature, timeout, ..."""
    cache: Cache
    """True, the default, is the file `.art/llm-cache.sqlite3`; a path is another one; False asks anew."""
    budget: Budget | None
    pace: Pace | None
    attempts: int | None
    """At one question, before it has failed; None: the channel's own number."""
    deadline: float
    """Seconds of one attempt; by default 120."""


def judge_channel(
    judge_model: JudgeModel = DEFAULT_JUDGE, *, name: str, **asking: Unpack[JudgeOptions]
) -> Channel:
    """A channel whose costs are `costs/<context>/judge/<name>`.

    judge_model: a name ("openai/o3"; with `base_url` any name at that address); a function of the messages;
    an `art.Model`; an `art.TrainableModel`, which judges as its own base, the adapter off; an `Llm`. asking:
    see `JudgeOptions`. Raises ConfigurationError, also for an unknown one.
    """
    known = list(JudgeOptions.__annotations__)
    for option in asking:
        if option not in known:
            hint = did_you_mean(option, known)
            raise ConfigurationError(
                # Without its value: it may be a key under a misspelt name.
                f"{option} is no option of the judge of {name!r}{hint and f', {hint}'}; how it is "
                f"asked has: {', '.join(known)}"
            )
    return Channel(
        judge_llm(
            judge_model,
            base_url=asking.get("base_url"),
            api_key=asking.get("api_key"),
            params=asking.get("params"),
        ),
        cache=_cache(asking.get("cache", True)),
        budget=asking.get("budget"),
        pace=asking.get("pace"),
        attempts=asking.get("attempts"),
        deadline=asking.get("deadline", DEADLINE_S),
        source=f"judge/{name}",
    )


def judge_llm(
    judge_model: JudgeModel,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> Llm:
    """The model that is asked. Raises ConfigurationError."""
    from art.model import Model

    if not (isinstance(judge_model, str) and judge_model.strip()) and not (
        isinstance(judge_model, Model) or callable(judge_model) or hasattr(judge_model, "complete")
    ):
        raise ConfigurationError(
            f"judge_model={judge_model!r}: name a model such as 'openai/o3', or give a function, an "
            "art.Model or an art.TrainableModel (its own base judges)"
        )
    if isinstance(judge_model, Model) and getattr(judge_model, "base_model", None) is not None:
        given = {"api_base": base_url, "api_key": api_key, **(params or {})}
        chosen = {key: value for key, value in given.items() if value is not None}
        return base_of(judge_model, params=chosen)  # type: ignore[arg-type]  # it has a base model
    return resolve_llm(judge_model, base_url=base_url, api_key=api_key, params=params)


def _cache(cache: Cache) -> AnswerCache | None:
    if isinstance(cache, AnswerCache):
        return cache
    if isinstance(cache, bool):
        return AnswerCache() if cache else None
    return AnswerCache(cache)


class JudgedReward(Reward):
    """Shows a scorer the views of a group. `score_group` fits `after_each=`: groups are judged while others
    are still sampled.

    What the judge cost goes to the active MetricsBuilder; where none is active, into the group's metrics as
    `costs/judge/<name>`, which a row of the log adds up.
    """

    def __init__(
        self, scorer: Scorer, *, checks: JudgeChecks | None = None, digest_chars: int = DIGEST_CHARS
    ) -> None:
        """checks: what the judge undergoes; None: nothing. digest_chars: of a tool output, as it is shown.

        Raises ConfigurationError.
        """
        if digest_chars < 1:
            raise ConfigurationError(
                f"digest_chars={digest_chars!r}: characters of a tool output, at least 1"
            )
        self.name, self.scorer, self.digest_chars = scorer.name, scorer, digest_chars
        self.watch = checks.watch(scorer) if checks is not None else None

    @property
    def label(self) -> str:
        """Lines of older releases begin with "RULER"."""
        return "RULER" if self.name == "ruler" else self.name

    def views(self, group: TrajectoryGroup) -> list[View]:
        """Returns what the judge is shown of each trajectory."""
        return views_of(group, digest_chars=self.digest_chars)

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        """The scorer's, without checks."""
        return await self.scorer.score(self.views(group))

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        """The scores; the figures of the checks are metrics of the group."""
        views = self.views(group)
        with _costs() as costs:
            scores = finite_scores(self.name, await self.scorer.score(views), len(views))
            second: list[Score] = []
            watch = self.watch
            figures = {} if watch is None else await watch.check_scores(views, scores, group, second=second)
        return GroupScores(scores=self._with_judgements(scores, second), metrics={**figures, **costs})

    def _with_judgements(self, scores: Sequence[Score], second: Sequence[Score]) -> list[Score]:
        """The scores with what the judge said of each."""
        question = str(getattr(self.scorer, "question", ""))
        others: list[Score | None] = [*second] if second else [None] * len(scores)
        return [
            replace(
                one,
                judgements=(
                    Judgement(
                        source=self.name,
                        score=_value_of(one),
                        words=one.explanation,
                        order=one.order,
                        second=_value_of(other),
                        question=question,
                    ),
                ),
            )
            for one, other in zip(scores, others, strict=True)
        ]


def _value_of(score: Score | None) -> float | None:
    return None if score is None or isinstance(score.value, Unscored) else score.value


@contextmanager
def _costs() -> Iterator[dict[str, float]]:
    """Filled at the end with what judges cost inside, where no builder is active that is told anyway."""
    costs: dict[str, float] = {}
    if active_builder() is not None:
        yield costs
        return
    builder = MetricsBuilder("train")
    with builder.activate_context():
        yield costs
    for key, usd in builder.take_metrics().items():
        if key.startswith("costs/train/judge/"):
            costs[key.replace("costs/train/", "costs/", 1)] = usd
