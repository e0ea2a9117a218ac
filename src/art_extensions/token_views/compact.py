"""`compact_dump`: trajectories as JSON in which what is repeated stands once.

    {"format": "art.trajectories", "version": 1, "kind": "trajectory", "strings": ['"a long text"', ...],
     "data": {..., "content": {"$": 0}, ...}}

Each call of a conversation repeats the messages before it, so a plain dump grows with the square of the
turns. Here `{"$": n}` stands for the JSON in `strings[n]`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from art.errors import ConfigurationError
from art.process.foreign_files import MOST_BYTES, parse_json
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import kind_of

FORMAT, VERSION = "art.trajectories", 1
_KINDS: Mapping[str, type[Trajectory | TrajectoryGroup]] = {
    "trajectory": Trajectory,
    "trajectory_group": TrajectoryGroup,
}
_LISTS = {f"{kind}s": kind for kind in _KINDS}
_MARK = "$"
_SHORTEST = 24
"""Characters of JSON; what is shorter stands where it is."""


def compact_dump(given: Any) -> dict[str, Any]:
    """Returns a trajectory, a group, or a list of either as compact JSON. Raises: TypeError."""
    kind, data = _kind_and_data(given)
    counts = Counter(_spelled(data))
    strings: dict[str, int] = {}
    written = _write_compactly(data, counts, strings)
    return {"format": FORMAT, "version": VERSION, "kind": kind, "strings": list(strings), "data": written}


def compact_validate(payload: Any, *, type: Any = None, device: Any = None) -> Any:
    """Returns what `compact_dump` was given. type: the class of the trajectories or groups, for subclasses.
    device: None alone, as tensors are not dumped.

    Raises: ConfigurationError for another format, version or kind, and for wrong fields.
    """
    if device is not None:
        raise ConfigurationError(
            f"compact_validate(device={device!r}): the dump has no tensors; leave it out"
        )
    if not isinstance(payload, Mapping) or payload.get("format") != FORMAT:
        raise ConfigurationError(f"no dump of {FORMAT}: {payload!r:.200}")
    if payload.get("version") != VERSION:
        raise ConfigurationError(
            f"a dump of version {payload.get('version')!r}; this release reads {VERSION}"
        )
    kind = payload.get("kind")
    single = _LISTS.get(str(kind), str(kind))
    if single not in _KINDS:
        raise ConfigurationError(f"a dump of kind {kind!r}; known: {', '.join((*_KINDS, *_LISTS))}")
    wanted = type or _KINDS[single]
    if not issubclass(wanted, _KINDS[single]):
        raise ConfigurationError(f"the dump is of kind {kind!r}, not of {wanted.__name__}")
    try:
        strings = [parse_json(text) for text in payload["strings"]]
        if _size(payload["data"], [len(text) for text in payload["strings"]]) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES} characters")
        data = _read(payload["data"], strings)
        return [_valid(one, wanted) for one in data] if kind in _LISTS else _valid(data, wanted)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"a damaged dump of {FORMAT}: {error!r:.500}") from error


def compact_validate_json(text: str | bytes, **options: Any) -> Any:
    """Does what `compact_validate` does, of JSON text."""
    return compact_validate(parse_json(text), **options)


def _kind_and_data(given: Any) -> tuple[str, Any]:
    for kind, of_kind in _KINDS.items():
        if isinstance(given, of_kind):
            return kind, _fields(given)
        if isinstance(given, list | tuple) and given and all(isinstance(one, of_kind) for one in given):
            return f"{kind}s", [_fields(one) for one in given]
    raise TypeError(
        f"compact_dump() was given {kind_of(given)}: give it a trajectory, a group, or a list of them"
    )


def _fields(one: Trajectory | TrajectoryGroup) -> dict[str, Any]:
    fields = one.model_dump(mode="json")
    if isinstance(one, Trajectory):
        return {**fields, "start_time": one.start_time.isoformat()}
    return {**fields, "trajectories": [_fields(each) for each in one]}


def _valid(
    fields: dict[str, Any], wanted: type[Trajectory | TrajectoryGroup]
) -> Trajectory | TrajectoryGroup:
    if issubclass(wanted, TrajectoryGroup):
        trajectories = [_valid(each, Trajectory) for each in fields.pop("trajectories")]
        exceptions = wanted.model_validate_json(
            json.dumps({"exceptions": fields.pop("exceptions")})
        ).exceptions
        return wanted(trajectories, exceptions=exceptions, **fields)
    return wanted.model_validate_json(json.dumps(fields))


def _spelled(value: Any) -> Iterator[str]:
    """The JSON of each part that may stand once."""
    if isinstance(value, dict):
        yield json.dumps(value)
        for one in value.values():
            yield from _spelled(one)
    elif isinstance(value, list):
        for one in value:
            yield from _spelled(one)
    elif isinstance(value, str):
        yield json.dumps(value)


def _write_compactly(value: Any, counts: Counter[str], strings: dict[str, int]) -> Any:
    if isinstance(value, list):
        return [_write_compactly(one, counts, strings) for one in value]
    if not isinstance(value, dict | str):
        return value
    text = json.dumps(value)
    is_like_a_mark = isinstance(value, dict) and value.keys() == {_MARK}
    if is_like_a_mark or (counts[text] > 1 and len(text) >= _SHORTEST):
        return {_MARK: strings.setdefault(text, len(strings))}
    if isinstance(value, dict):
        return {name: _write_compactly(one, counts, strings) for name, one in value.items()}
    return value


def _size(value: Any, sizes: Sequence[int]) -> int:
    """Returns the characters of the strings that a value names, each as often as it is named."""
    if isinstance(value, dict) and isinstance(value.get(_MARK), int):
        return sizes[value[_MARK]]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(_size(one, sizes) for one in inner)


def _read(value: Any, strings: list[Any]) -> Any:
    if isinstance(value, list):
        return [_read(one, strings) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_MARK}:
        if type(value[_MARK]) is not int or value[_MARK] < 0:
            raise ValueError(f"{value!r:.100} names no string")
        return json.loads(json.dumps(strings[value[_MARK]]))  # each place has a copy of its own
    return {name: _read(one, strings) for name, one in value.items()}
