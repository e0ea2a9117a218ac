"""What the commands that train share: options, exit codes and reports."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from typer.core import TyperCommand

from art.errors import ARTError, ConfigurationError
from art.process.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console


BaseModel = Annotated[str, typer.Option(help="The model to train: a hub name, a folder, a built-in one.")]
Project = Annotated[str, typer.Option(help="The project's name.")]
DataDir = Annotated[Path, typer.Option(help="The folder of runs, models and cached answers.")]
DATA_DIR = Path(".art")
Engine = Annotated[str, typer.Option(help="The engine: builtin or vllm (run `art runtime install` first).")]
JsonFile = Annotated[Path | None, typer.Option(help="Also write the report, as JSON, to this file.")]


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
    unset: fields that are None unless given, since the run chooses them. command: what `app.command` takes.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.cache
        def full_command() -> TyperCommand:
            fields = _setting_parameters(model, only, leave_out, unset)
            one = typer.Typer(add_completion=False)
            one.command(**command)(_with_parameters(function, fields))
            made = typer.main.get_command(one)
            assert isinstance(made, TyperCommand)
            return made

        class SettingsVerb(TyperCommand):
            def get_params(self, ctx: Any) -> Any:
                return full_command().get_params(ctx)

            def invoke(self, ctx: Any) -> Any:
                return full_command().invoke(ctx)

        def listed() -> None: ...

        listed.__doc__ = function.__doc__
        app.command(function.__name__, cls=SettingsVerb, **command)(listed)
        return function

    return decorate


def _setting_parameters(
    model: str,
    only: Collection[str],
    leave_out: Collection[str],
    unset: Collection[str],
) -> list[inspect.Parameter]:
    from art.client.options.declared_options import declared_options, field_docstrings

    module, _, name = model.partition(":")
    kind = getattr(import_module(module), name)
    texts, found = field_docstrings(kind), []
    for field, declared in declared_options(kind).items():
        if field in leave_out or (only and field not in only):
            continue
        free = field in unset
        option = typer.Option(
            None if free else declared.default,
            min=declared.keyword.least,
            max=declared.keyword.most,
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


def run_reported(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run it, and turn every expected failure into one readable line. Returns the exit code."""
    import asyncio  # the command line starts without it

    try:
        asyncio.run(work())
    except (ARTError, OSError) as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def run_resumable(work: Callable[[], Coroutine[Any, Any, None]], console: Console) -> int:
    """`run_reported`; an interrupted command is told how it goes on."""
    code = run_reported(work)
    if code == INTERRUPTED:
        again = shlex.join(["art", *sys.argv[1:]])
        console.print(f"\nStopped. Nothing committed is lost; go on with:\n  {again}", markup=False)
    return code


def print_error(error: Exception) -> None:
    """One line on standard error."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{type(error).__name__}: {error}", markup=False)


def plain_console() -> Console:
    """Text as it is: nothing coloured by guess, no line broken."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def options_from(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Returns the values of KEY=VALUE words, each as JSON or else as text. Raises ConfigurationError, which
    names the option.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"{option} {word!r} is not KEY=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def environment_options_from(name: str, words: Sequence[str], harness: str | None) -> dict[str, Any]:
    """Returns the options of an environment by name: its KEY=VALUE words, and its harness. Raises
    ConfigurationError.
    """
    from art.environments.adapters.registry import harness_option

    found = options_from("--environment-option", words)
    if harness is None:
        return found
    option = harness_option(name)
    if option in found:
        raise ConfigurationError(f"--harness is the environment's option {option}: give one of the two")
    return {**found, option: harness}


class ReportInFolder(Protocol):
    """A report of a run, with the folder that has it."""

    @property
    def folder(self) -> Path: ...

    def to_markdown(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


def show_report(console: Console, report: ReportInFolder, json_file: Path | None) -> None:
    """Prints the report on the terminal, and writes it as JSON if requested."""
    from rich.markdown import Markdown

    console.print(Markdown(report.to_markdown()), soft_wrap=False)
    console.print(f"\n{report.folder / 'report.md'}", markup=False)
    if json_file is not None:
        write_json(json_file, report.to_dict())


def write_json(path: Path, data: Any) -> None:
    """Writes JSON that people can read too; folders are created."""
    from art.process.files import write_whole

    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", mode=0o666, durable=False)
