"""`art environments`: what `--environment` may name here, and what has to be installed for it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from art.cli.model_verbs import EnvironmentOption
from art.cli.run_options import options_from, print_error
from art.environments import tasks
from art.environments.adapters.registry import PYTHON, known_environments
from art.errors import (
    EXTRAS,
    ARTError,
    ConfigurationError,
    MissingExtraError,
    did_you_mean,
    install_command,
    require_extra,
)
from art.extensions import ENVIRONMENT, extension_points, load_extension

OWN = "An object of your own with `scenarios`, `rollout` and `close`"
INSTALLED_NAMES = "installed_names"
"""What an adapter has that knows the names: a function of options, which are names of environments here."""


@dataclass(frozen=True, kw_only=True)
class ListedEnvironment:
    """A name, or a form of names."""

    name: str
    what: str
    extra: str | None = None
    """None: it needs no package besides."""
    installed: bool = True
    library: str | None = None
    """The package of the library behind it; None: there is none."""
    version: str | None = None
    """The version of the library that is installed."""
    problem: str = ""
    """Why its adapter cannot be loaded."""


@dataclass(frozen=True, kw_only=True)
class InstalledName:
    """An environment that can be named here."""

    name: str
    needs: str = ""
    """What it needs besides its name, or why it cannot be used."""


def list_environments() -> list[ListedEnvironment]:
    """Returns the built-in tasks, then the forms by their prefixes. No library is loaded."""
    own = [ListedEnvironment(name=name, what=tasks.find(name).DESCRIPTION) for name in tasks.NAMES]
    kinds = [_describe_kind(prefix) for prefix in extension_points(ENVIRONMENT)]
    return [*own, *kinds, ListedEnvironment(name=f"{PYTHON}:MODULE:NAME", what=OWN)]


def _describe_kind(prefix: str) -> ListedEnvironment:
    name = f"{prefix}:NAME"
    try:
        adapter = load_extension(ENVIRONMENT, prefix)
        module = import_module(adapter.__module__)
    except Exception as error:  # noqa: BLE001  # somebody's package: the others are listed
        point = extension_points(ENVIRONMENT)[prefix]
        problem = f"cannot be loaded: {_text_of(error)}"
        return ListedEnvironment(name=name, what=point.value, installed=False, problem=problem)
    extra = getattr(module, "EXTRA", prefix)
    library = getattr(adapter, "LIBRARY", None)
    return ListedEnvironment(
        name=name,
        what=(module.__doc__ or "").partition("\n")[0].partition(":")[0],
        extra=extra if extra in EXTRAS else None,
        installed=extra not in EXTRAS or _has(extra),
        library=library,
        version=None if library is None else _version_of(library),
    )


def _has(extra: str) -> bool:
    try:
        require_extra(extra, "the environment")
    except MissingExtraError:
        return False
    return True


def _version_of(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, ARTError) else f"{type(error).__name__}: {error}"


def list_names(kind: str, options: Mapping[str, Any]) -> list[InstalledName]:
    """Returns the environments of a kind that can be named here. Its library is imported; where that fails,
    the only row says why.

    kind: a prefix, a built-in task, or one of them with a name. options: those of the environment that its
    names depend on. Raises ConfigurationError for an unknown kind or option.
    """
    prefix = kind.partition(":")[0]
    if prefix in tasks.NAMES and not options:
        return [InstalledName(name=prefix)]
    forms = {one.partition(":")[0]: one for one in known_environments()}
    form = forms.get(prefix)
    if form is None:
        hint = did_you_mean(prefix, forms)
        raise ConfigurationError(f"unknown kind {prefix!r}: {hint and f'{hint} '}known: {', '.join(forms)}")
    adapter = None if prefix in (PYTHON, *tasks.NAMES) else _load_adapter(prefix)
    function = getattr(adapter, INSTALLED_NAMES, None)
    _check_options(prefix, function, options)
    if function is None:
        needs = adapter if isinstance(adapter, str) else "a name: this kind does not list its environments"
        return [InstalledName(name=form, needs=needs)]
    try:
        found = function(**options)
    except ConfigurationError as error:
        return [InstalledName(name=form, needs=str(error))]
    except Exception as error:  # noqa: BLE001  # whatever a library raises as it is imported
        return [InstalledName(name=form, needs=_remedy(prefix, error))]
    return [InstalledName(name=f"{prefix}:{name}", needs=needs) for name, needs in found.items()]


def _load_adapter(prefix: str) -> Any:
    """Returns the adapter, or as a text why it cannot be loaded."""
    try:
        return load_extension(ENVIRONMENT, prefix)
    except Exception as error:  # noqa: BLE001  # somebody's package
        return f"cannot be loaded: {_text_of(error)}"


def _check_options(prefix: str, function: Any, options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for an option on which the names do not depend."""
    known = [] if function is None else [*inspect.signature(function).parameters]
    for option in options:
        if option not in known:
            raise ConfigurationError(
                f"the names of {prefix!r} do not depend on the option {option!r}; on: "
                f"{', '.join(known) or 'none'}"
            )


def _remedy(prefix: str, error: Exception) -> str:
    kind = _describe_kind(prefix)
    if kind.extra is not None and not kind.installed:
        return f"the extra {kind.extra}: {install_command(kind.extra)}"
    return f"{kind.library or prefix} cannot be imported: {_text_of(error)}"


def show_environments(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="List the environments of this kind, such as reasoning-gym."),
    ] = None,
    environment_option: EnvironmentOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments that `art train --environment` and `art eval --environment` take.

    Shows what each prefix stands for, and its library with the version that is installed, or the extra that
    it needs. With KIND it lists the names that its library has here, and what each needs besides: tasksets,
    datasets, games, categories. `--environment-option registry=FILE` lists the datasets of a registry of
    Harbor, and `python=gym/bin/python` the servers of NeMo-Gym in that interpreter.
    """

    try:
        options = options_from("--environment-option", environment_option or ())
        if kind is not None:
            names = list_names(kind, options)
            _show(names, ("name", "needs"), [(one.name, one.needs) for one in names], as_json)
            return
        if options:
            raise ConfigurationError("--environment-option is for the names of a kind: give KIND too")
    except ConfigurationError as error:
        print_error(error)
        raise typer.Exit(1) from error
    kinds = list_environments()
    rows = [(one.name, one.what, _library_of(one)) for one in kinds]
    _show(kinds, ("name", "what it is", "library"), rows, as_json)


def _library_of(one: ListedEnvironment) -> str:
    """Returns the library with its version, or what is missing."""
    if one.problem:
        return one.problem
    if one.extra is not None and not one.installed:
        return f"missing: the extra {one.extra}"
    return "" if one.library is None else f"{one.library} {one.version or 'is not installed'}"


def _show(
    listed: Sequence[Any], headings: Sequence[str], rows: Sequence[Sequence[str]], as_json: bool
) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in listed]))
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading == "name")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table if rows else "none here")
