"""The options of judge, generator and budget, which both commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.process import environment

if TYPE_CHECKING:
    from art.rewards.llm.budget import Budget

Name = Annotated[str, typer.Option(help="The model's name. The same name continues its run.")]
Referee = Annotated[
    str | None,
    typer.Option(help="The judge that compares before and after: provider/model. Default: the judge."),
]
JudgeUrl = Annotated[
    str | None,
    typer.Option(help="The judge's URL, with its key in ART_JUDGE_API_KEY. Default: the provider's own."),
]
GeneratorUrl = Annotated[
    str | None,
    typer.Option(
        help="The generator's URL, with its key in ART_GENERATOR_API_KEY. Default: the provider's own."
    ),
]
BudgetCalls = Annotated[
    int | None, typer.Option(min=1, help="The most calls to judge and generator together.")
]
BudgetTokens = Annotated[
    int | None, typer.Option(min=1, help="The most tokens of judge and generator together.")
]
BudgetUsd = Annotated[
    float | None, typer.Option(help="The most US dollars for judge and generator together.")
]


def judge_params(base_url: str | None) -> dict[str, Any]:
    """Options of a judge by name."""
    return _endpoint_params(base_url, environment.JUDGE_API_KEY)


def generator_params(base_url: str | None) -> dict[str, Any]:
    """Options of a generator by name."""
    return _endpoint_params(base_url, environment.GENERATOR_API_KEY)


def _endpoint_params(base_url: str | None, variable: str) -> dict[str, Any]:
    """An address has a key of its own."""
    if base_url is None:
        return {}
    key = environment.variable(variable)
    return {"base_url": base_url, **({"api_key": key} if key else {})}


def budget_from(*, calls: int | None, tokens: int | None, usd: float | None) -> Budget | None:
    """Returns the budget; None without a limit."""
    from art.rewards.llm.budget import Budget

    if calls is None and tokens is None and usd is None:
        return None
    return Budget(calls=calls, tokens=tokens, usd=usd)
