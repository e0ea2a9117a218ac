"""The way from what a user names as a judge to something that can be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from art.errors import ConfigurationError
from art.llm.budget import Budget
from art.llm.cache import AnswerCache
from art.llm.channel import Channel
from art.llm.names import base_of, resolve_llm
from art.llm.pace import Pace
from art.llm.request import Llm
from art.spelling import did_you_mean

if TYPE_CHECKING:
    from art.prompted_model import Model

    JudgeModel = str | Model | Llm | Callable[..., Any]

DEFAULT_JUDGE = "openai/o3"
DEADLINE_S = 120.0
Cache = AnswerCache | str | Path | bool


class JudgeOptions(TypedDict, total=False):
    """How a judge is asked: keywords of `Ruler`, `Rubric`, `Pairwise` and of what else has a judge."""

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
    from art.prompted_model import Model

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
