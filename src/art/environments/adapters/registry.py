"""Environments by name.

    find_environment("tic-tac-toe")                             a built-in task
    find_environment("gymnasium:my_module:MyWorld", train=50)   PREFIX:NAME, with options of the adapter
    find_environment("python:my_module:my_environment")         your own `NamedEnvironment`

The environments of other libraries are extensions (`art.extensions`) of the kind `environment`, by their
prefix: a class `Adapter(name, **options)`, `name` without the prefix, that makes a `NamedEnvironment`. It is
loaded when an environment of it is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from art.environments.adapters.environment import ROLLOUT_S, NamedEnvironment, end_within, load_object
from art.environments.tasks import NAMES
from art.errors import ConfigurationError, did_you_mean
from art.extensions import ENVIRONMENT, extension_points, load_extension

PYTHON = "python"
"""The prefix of a user's own environment."""
DEADLINE = "deadline_s"


def known_environments() -> list[str]:
    """Returns the names of the built-in tasks, then the prefixes as "prefix:NAME"."""
    return [*NAMES, *(f"{prefix}:NAME" for prefix in extension_points(ENVIRONMENT)), f"{PYTHON}:MODULE:NAME"]


def find_environment(name: str, /, **options: Any) -> NamedEnvironment:
    """Returns the environment called `name`, made with the adapter's options.

    Raises ConfigurationError, which lists what is known, for an unknown name or option, and MissingExtraError
    where the adapter's library is not installed.
    """
    prefix, colon, rest = name.partition(":")
    if not colon:
        if name not in NAMES:
            raise _unknown(name)
        from art.environments.adapters.builtin_tasks import TaskEnvironment

        return _make(name, TaskEnvironment, name, options)
    if prefix == PYTHON:
        return _own(name, load_object("environment", rest), options)
    if not rest or prefix not in extension_points(ENVIRONMENT):
        raise _unknown(name)
    return _make(name, load_extension(ENVIRONMENT, prefix), rest, options)


def harness_option(name: str) -> str:
    """Returns the option of an environment that names its harness, the program that asks the model. Raises
    ConfigurationError where its kind has none.
    """
    adapters = {prefix: load_extension(ENVIRONMENT, prefix) for prefix in extension_points(ENVIRONMENT)}
    options = {kind: getattr(adapter, "HARNESS_OPTION", None) for kind, adapter in adapters.items()}
    if option := options.get(name.partition(":")[0]):
        return str(option)
    known = ", ".join(f"{kind}:NAME" for kind, option in options.items() if option)
    raise ConfigurationError(f"environment {name!r} has no harnesses; kinds that have: {known}")


def _unknown(name: str) -> ConfigurationError:
    prefixes = (*extension_points(ENVIRONMENT), PYTHON)
    hint = did_you_mean(name, [*NAMES, *(f"{prefix}:" for prefix in prefixes)])
    return ConfigurationError(
        f"unknown environment {name!r}: {f'{hint} ' if hint else ''}known: {', '.join(known_environments())}"
    )


class OwnEnvironment:
    """A user's environment as it is, with a deadline of each rollout, in seconds."""

    def __init__(self, environment: Any, deadline_s: float) -> None:
        self._environment, self._deadline_s = environment, deadline_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    async def rollout(self, *given: Any, **limits: Any) -> Any:
        """See `NamedEnvironment.rollout`."""
        what = f"environment {self.name!r}: a rollout"
        return await end_within(self._deadline_s, what, self._environment.rollout(*given, **limits))


def _own(name: str, found: Any, options: Mapping[str, Any]) -> NamedEnvironment:
    """Returns a user's environment: what the name names, or what that makes when it is called. Its option
    `deadline_s` is that of a rollout.
    """
    deadline_s = options.get(DEADLINE, ROLLOUT_S)
    if not isinstance(deadline_s, int | float) or not deadline_s > 0:
        raise ConfigurationError(f"environment {name!r}: {DEADLINE}={deadline_s!r} is no number above 0")
    options = {option: value for option, value in options.items() if option != DEADLINE}
    if isinstance(found, type) or not hasattr(found, "rollout"):
        if not callable(found):
            raise ConfigurationError(
                f"environment {name!r} is {type(found).__name__}: name an object with `scenarios` and "
                "`rollout`, or a function that returns one"
            )
        _check_options(name, found, (), options)
        found = found(**options)
    elif options:
        raise ConfigurationError(f"environment {name!r} is an object: it takes no {', '.join(options)}")
    missing = [method for method in ("scenarios", "rollout", "close") if not hasattr(found, method)]
    if missing:
        raise ConfigurationError(
            f"environment {name!r} has no {' and no '.join(missing)}; "
            "art.environments.adapters.environment.NamedEnvironment says what it needs"
        )
    return cast("NamedEnvironment", OwnEnvironment(found, deadline_s))


def _make(name: str, adapter: Callable[..., Any], rest: str, options: Mapping[str, Any]) -> NamedEnvironment:
    _check_options(name, adapter, (rest,), options)
    return cast("NamedEnvironment", adapter(rest, **options))


def _check_options(
    name: str, function: Callable[..., Any], given: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """Raises ConfigurationError for an option that the adapter does not take, or one that it lacks."""
    signature = inspect.signature(function)
    try:
        signature.bind(*given, **options)
    except TypeError as error:
        known = [one.name for one in signature.parameters.values() if one.kind is one.KEYWORD_ONLY]
        hint = next((said for option in options if (said := did_you_mean(option, known))), "")
        raise ConfigurationError(
            f"environment {name!r}: {error}; {f'{hint} ' if hint else ''}"
            f"options: {', '.join(known) or 'none'}"
        ) from error
