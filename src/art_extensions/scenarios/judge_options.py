"""The options of judge, generator and budget, which the commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from art.process import environment
from art_extensions.scenarios.generator import DEFAULT_GENERATOR
from art_extensions.scenarios.judges import JUDGE

Name = Annotated[str, typer.Option(help="The model's name. The same name continues its run.")]


@dataclass(frozen=True, kw_only=True)
class GeneratorOptions:
    """The generator of a command, and the budget of all that it asks; the texts are those of its help."""

    generator: Annotated[
        str, typer.Option(help="The model that writes scenarios, inputs and rubrics: provider/model.")
    ] = DEFAULT_GENERATOR
    generator_base_url: Annotated[
        str | None,
        typer.Option(
            help="The generator's URL, with its key in ART_GENERATOR_API_KEY. Default: the provider's own."
        ),
    ] = None
    budget_calls: Annotated[
        int | None, typer.Option(min=1, help="The most calls to judge and generator together.")
    ] = None
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of judge and generator together.")
    ] = None
    budget_usd: Annotated[
        float | None, typer.Option(help="The most US dollars for judge and generator together.")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Returns the keywords of the function that does the work. Raises ConfigurationError for a budget
        that is none.
        """
        from art.rewards.llm.budget import Budget

        limits = {"calls": self.budget_calls, "tokens": self.budget_tokens, "usd": self.budget_usd}
        limited = any(limit is not None for limit in limits.values())
        return {
            "generator": self.generator,
            "generator_params": _endpoint_params(self.generator_base_url, environment.GENERATOR_API_KEY),
            "budget": Budget(**limits) if limited else None,  # type: ignore[arg-type]  # each has its own
        }


@dataclass(frozen=True, kw_only=True)
class AskedOptions(GeneratorOptions):
    """The judge of a command that trains, beside its generator."""

    judge: Annotated[str, typer.Option(help="The judge (RULER) of the answers: provider/model.")] = JUDGE
    judge_base_url: Annotated[
        str | None,
        typer.Option(help="The judge's URL, with its key in ART_JUDGE_API_KEY. Default: the provider's own."),
    ] = None
    referee: Annotated[
        str | None,
        typer.Option(help="The judge that compares before and after: provider/model. Default: the judge."),
    ] = None

    def keywords(self) -> dict[str, Any]:
        params = _endpoint_params(self.judge_base_url, environment.JUDGE_API_KEY)
        return {**super().keywords(), "judge": self.judge, "judge_params": params, "referee": self.referee}


def takes_asked(verb: Callable[..., None]) -> Callable[..., None]:
    """A decorator for a verb: the fields of its keyword `asked` are options of the command in its place."""
    own = inspect.signature(verb, eval_str=True)
    kind = own.parameters["asked"].annotation
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name]
        )
        for one in fields(kind)
    ]

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        verb(asked=kind(**{one.name: given.pop(one.name) for one in options}), **given)

    places = [
        one for name, own_one in own.parameters.items() for one in (options if name == "asked" else [own_one])
    ]
    called.__signature__ = own.replace(parameters=places)  # type: ignore[attr-defined]
    return called


def _endpoint_params(base_url: str | None, variable: str) -> dict[str, Any]:
    """An address has a key of its own."""
    if base_url is None:
        return {}
    key = environment.variable(variable)
    return {"base_url": base_url, **({"api_key": key} if key else {})}
