"""Options that the verbs which train for a while share: whose run it is, who is asked, what it may cost, and
the settings of the run, which are the fields of its settings model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

BaseModel = Annotated[str, typer.Option(help="The model to train: a hub name, a folder, a built-in one.")]
Name = Annotated[str, typer.Option(help="The model's name; the same name goes on with its run.")]
Project = Annotated[str, typer.Option(help="The project's name.")]
Referee = Annotated[
    str | None, typer.Option(help="Compares before and after instead of the judge: provider/model.")
]
JudgeUrl = Annotated[
    str | None, typer.Option(help="Its address; key in ART_JUDGE_API_KEY. Default: the provider's own.")
]
GeneratorUrl = Annotated[
    str | None, typer.Option(help="Its address; key in ART_GENERATOR_API_KEY. Default: the provider's own.")
]
BudgetCalls = Annotated[int | None, typer.Option(min=1, help="Calls of all that are asked, at most.")]
BudgetTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of them, at most.")]
BudgetUsd = Annotated[float | None, typer.Option(help="US dollars for them, at most.")]
DataDir = Annotated[Path, typer.Option(help="Runs, models, and the answers that are kept.")]
JsonFile = Annotated[Path | None, typer.Option(help="Also write the report, as JSON, to this file.")]
DATA_DIR = Path(".art")


def settings_verb(
    app: typer.Typer,
    model: str,
    *,
    only: Collection[str] = (),
    leave_out: Collection[str] = (),
    unset: Collection[str] = (),
    **command: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that makes a verb of a function whose `**settings` are the fields of a settings model.

    Each field is an option: its type, bounds and default are the model's, its help is the text below the
    field. model: `module:class`, imported when the verb is run or asked for help: `art --help` needs none.
    unset: fields that are None unless given, since the run chooses their values. command: what `app.command`
    takes.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.cache
        def whole() -> TyperCommand:
            fields = _setting_parameters(model, only, leave_out, unset)
            one = typer.Typer(add_completion=False)
            one.command(**command)(_with_parameters(function, fields))
            made = typer.main.get_command(one)
            assert isinstance(made, TyperCommand)
            return made

        class SettingsVerb(TyperCommand):
            def get_params(self, ctx: Any) -> Any:
                return whole().get_params(ctx)

            def invoke(self, ctx: Any) -> Any:
                return whole().invoke(ctx)

        def listed() -> None: ...

        listed.__doc__ = function.__doc__
        app.command(function.__name__, cls=SettingsVerb, **command)(listed)
        return function

    return decorate


def _setting_parameters(
    model: str, only: Collection[str], leave_out: Collection[str], unset: Collection[str]
) -> list[inspect.Parameter]:
    from art.remote.keywords import declared_keywords, field_docstrings

    module, _, name = model.partition(":")
    kind = getattr(import_module(module), name)
    texts, found = field_docstrings(kind), []
    for field, declared in declared_keywords(kind).items():
        if field in leave_out or (only and field not in only):
            continue
        free = field in unset
        option = typer.Option(
            None if free else declared.default,
            min=declared.said.least,
            max=declared.said.most,
            help=texts.get(field),
            rich_help_panel="Settings of the run",
        )
        annotation = declared.type | None if free else declared.type
        by_name = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(field, by_name, default=option, annotation=annotation))
    return found


def _with_parameters(function: Callable[..., None], more: list[inspect.Parameter]) -> Callable[..., None]:
    """The function with parameters by name in place of its `**settings`."""
    own = inspect.signature(function, eval_str=True)
    places = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]

    @functools.wraps(function)
    def called(**options: Any) -> None:
        function(**options)

    signature = own.replace(parameters=[*places, *more])
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    return called
