"""What a key of a configuration does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from art.errors import ConfigurationError
from art.hidden_key import MASK, SECRETS, HiddenKey
from art.spelling import did_you_mean

_log = logging.getLogger(__name__)

Effect = Literal["acts", "noted", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key.

    acts: it does what `text` says. noted: other engines need it and nothing changes here, for the reason in
    `text`; one line in the log says so. refused: results would be others than the key asks for, so only
    `neutral` values pass, which ask for nothing; `text` says what to use instead. None always asks for
    nothing.
    """

    effect: Effect
    text: str
    neutral: tuple[Any, ...] = ()


Keys = Mapping[str, Key]


def acts(**texts: str) -> dict[str, Key]:
    """Keys that act, with what they do."""
    return {name: Key(effect="acts", text=text) for name, text in texts.items()}


def noted(text: str, names: str, *, neutral: Sequence[Any] = ()) -> dict[str, Key]:
    """Keys without effect here, for one reason. `neutral` values are not worth a line in the log."""
    return {name: Key(effect="noted", text=text, neutral=tuple(neutral)) for name in names.split()}


def refused(text: str, names: str, *, neutral: Sequence[Any] = ()) -> dict[str, Key]:
    """Keys that are refused, for one reason, unless their value asks for nothing."""
    return {name: Key(effect="refused", text=text, neutral=tuple(neutral)) for name in names.split()}


def read_keys(
    where: str, given: Mapping[str, Any] | None, keys: Keys, *, told: bool = True
) -> dict[str, Any]:
    """The values that act. Raises ConfigurationError for unknown and refused keys; `told`: logs the noted.

    where: how the section is called in messages, such as `_internal_config['peft_args']`.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} is {given!r}; it is a dict, such as one of `art.dev`")
    acting = {}
    for name, value in (given or {}).items():
        key = keys.get(name)
        if key is None:
            raise ConfigurationError(f"{where}[{name!r}]: no such key{meant(name, keys)}")
        if value is None or _among(value, key.neutral):
            continue
        if key.effect == "refused":
            shown = HiddenKey(MASK) if name in SECRETS else value
            raise ConfigurationError(f"{where}[{name!r}] = {shown!r}: {key.text}")
        if key.effect == "acts":
            acting[name] = value
        elif told:
            _log.warning("%s[%r] has no effect here: %s", where, name, key.text)
    return acting


def meant(name: str, known: Mapping[str, Any]) -> str:
    """`; did you mean 'x'? Known: ...`, the whole list only where it is short."""
    guess = did_you_mean(name, known)
    hint = f"; {guess}" if guess else ""
    if len(known) > 40:
        return f"{hint or ';'} docs/options.md lists the {len(known)} known ones"
    return f"{hint or ';'} known: {', '.join(sorted(known))}"


def _among(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value is one of these; True and 1 are two values."""
    return any(type(value) is type(one) and value == one for one in neutral)
