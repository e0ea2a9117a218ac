"""The small files in a model's folder: `model.json`, `state.json` and `history.jsonl`.

`model.json` says what the model is. `state.json` is what a program wants to find again, complete at any
moment; the log keeps its sums over the run in it under `METRIC_SUMS`, which programs do not see and which
replacing the state keeps. `history.jsonl` has one JSON object a line and is only ever appended to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING, Any

from art.errors import CheckpointMissingError, ConfigurationError, StepMissingError, UnreadableFileError
from art.process.files import PRIVATE, make_private_folder, write_whole
from art.process.foreign_files import MOST_DEPTH, open_foreign, parse_json, read_lines, too_long
from art.tracking.folders import ModelPaths, NamedModel, lock_folder
from art.tracking.names import spellings
from art.wire.nested import deep_merge, without_keys

try:
    import orjson
except ImportError:  # which the light client lacks: three times as slow
    orjson = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from art.backend import AnyModel


METRIC_SUMS = "_metrics_builder_state"
_PATIENCE_S = 30.0
_STEP = b'"step":'
_END = 512
"""Bytes by which a history is known again."""


def read_state(folder: Path) -> dict[str, Any] | None:
    """The program's state, or None when it has written none."""
    stored = read_json(ModelPaths(folder).state)
    state = {key: value for key, value in (stored or {}).items() if key != METRIC_SUMS}
    return None if stored is None or (not state and METRIC_SUMS in stored) else state


def overwrite_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the program's state. Raises DeadlineError when another program holds the folder's lock."""
    with lock_folder(folder, _PATIENCE_S):
        _write_state(folder, state)


def merge_state(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Merge into the program's state, dicts key by key; returns the whole. Raises as `overwrite_state`."""
    with lock_folder(folder, _PATIENCE_S):
        merged = deep_merge(read_state(folder) or {}, state)
        _write_state(folder, merged)
    return merged


def read_sums(folder: Path) -> dict[str, Any]:
    """The log's sums over the run; empty when there are none."""
    sums: dict[str, Any] = (read_json(ModelPaths(folder).state) or {}).get(METRIC_SUMS, {})
    return sums


def write_sums(folder: Path, sums: Mapping[str, Any]) -> None:
    """Replace the log's sums, and nothing else. Call it inside `lock_folder(folder)`."""
    write_json(
        ModelPaths(folder).state, {**(read_json(ModelPaths(folder).state) or {}), METRIC_SUMS: dict(sums)}
    )


def _write_state(folder: Path, state: Mapping[str, Any]) -> None:
    file = ModelPaths(folder).state
    metric_sums = {key: value for key, value in (read_json(file) or {}).items() if key == METRIC_SUMS}
    write_json(file, {**metric_sums, **state})


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None when there is no file. Raises UnreadableFileError where it is another."""
    if not path.exists():
        return None
    with open_foreign(path) as file:
        content = file.read()
    try:
        value: dict[str, Any] = parse_json(content.decode("utf-8"))
    except ValueError as error:
        raise UnreadableFileError(f"{path} is no JSON ({error}): restore it, or move it away") from error
    if not isinstance(value, dict):
        raise UnreadableFileError(f"{path} holds no JSON object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A reader, or a kill, never meets half a file; only its owner reads it. A key in a model's dump is
    written as null.
    """
    write_whole(path, json.dumps(without_keys(value, names=()), indent=2))


def append_history_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row. Raises ValueError for a number that JSON has not."""
    append_line(path, json.dumps(row, allow_nan=False))


def append_line(path: Path, text: str) -> None:
    """Append one line with a single write, so that lines of several processes never mix.

    A line that a killed process left unfinished is closed first: it is lost, the new one is not.
    """
    make_private_folder(path.parent)
    line = f"{text}\n".encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def delete_logs(folder: Path) -> None:
    """Remove a model's trajectories, history, findings, state and `model.json`; checkpoints stay."""
    paths = ModelPaths(folder)
    for file in (paths.history, paths.findings, paths.state, paths.description):
        file.unlink(missing_ok=True)
    for logs in (paths.trajectories, paths.under_way("any").parent):
        if logs.is_dir():
            shutil.rmtree(logs)


def _has_step(line: bytes, steps: Collection[int]) -> bool:
    at = line.rfind(_STEP)  # it stands at the end of a row, and a long history is read again and again
    found = re.match(rb"\s*(\d+)", line[at + len(_STEP) :]) if at >= 0 else None
    return found is None or int(found[1]) in steps


def read_history(
    path: Path, *, names: Collection[str] = (), steps: Collection[int] | None = None
) -> Iterator[dict[str, Any]]:
    """The complete rows, in order; none when there is no file.

    names, steps: only rows that may have one of these names, and of these steps; no other row is parsed.
    Raises UnreadableFileError for what no log writes: no plain file, a line that is too long, too deep or no
    text.
    """
    if path.exists():
        with open_foreign(path) as file:
            yield from _rows(path, file, names, steps)


def _rows(
    path: Path, file: IO[bytes], names: Collection[str], steps: Collection[int] | None
) -> Iterator[dict[str, Any]]:
    """The rows from where the file stands."""
    wanted = [json.dumps(name).encode() for name in names]
    for number, line in read_lines(file):
        if line is not None and wanted and not any(name in line for name in wanted):
            continue
        if line is not None and steps is not None and not _has_step(line, steps):
            continue
        try:
            if line is None:
                raise too_long()
            row = _parse_row(line)
        except json.JSONDecodeError:
            continue  # torn by a kill
        except ValueError as error:
            raise UnreadableFileError(f"{path}, line {number}: {error}") from error
        if isinstance(row, dict):
            yield row


def _parse_row(line: bytes) -> Any:
    """The value of a line; integers beyond 64 bits may be floats. Raises ValueError."""
    if orjson is not None and line.count(b"{") + line.count(b"[") <= MOST_DEPTH:
        with suppress(orjson.JSONDecodeError):  # NaN, which others write, or damage
            return orjson.loads(line)
    return parse_json(line.decode("utf-8"))


class GrowingHistory:
    """The rows of a history, which only grows: none is read twice. names: as in `read_history`."""

    def __init__(self, path: Path, names: Collection[str] = ()) -> None:
        self._path, self._names = path, names
        self._at, self._end = 0, b""
        """The bytes that are read, and the last of them."""

    def new_rows(self, forget: Callable[[], object]) -> Iterator[dict[str, Any]]:
        """Yields the rows since the last reading; where it begins anew, `forget` is called before.

        Raises UnreadableFileError as `read_history`: after it, the next reading begins anew.
        """
        (at, end), self._at = (self._at, self._end), 0
        if not self._path.exists():
            forget()
            return
        with open_foreign(self._path) as file:
            if not at or os.pread(file.fileno(), len(end), at - len(end)) != end:  # another file
                at = 0
                forget()
            file.seek(at)
            try:
                yield from _rows(self._path, file, self._names, None)
            except UnreadableFileError:
                if not at:
                    raise
                yield from self.new_rows(forget)  # which counts lines from the start
                return
            at = file.tell()
            end = os.pread(file.fileno(), _END, max(0, at - _END))
        if end.endswith(b"\n"):  # else the last row may still grow
            self._at, self._end = at, end


class MetricHistory:
    """The values of a metric in a history."""

    def __init__(self, path: Path, metric: str) -> None:
        names = spellings(metric)
        self._found: dict[str, dict[int, list[float]]] = {name: {} for name in names}
        """The values by spelling and step."""
        self._history = GrowingHistory(path, names)

    def best_step(self) -> int | None:
        """Returns what the function `best_step` does."""
        for row in self._history.new_rows(self._forget):
            for name in self._found.keys() & row.keys():
                with suppress(KeyError, TypeError, ValueError, OverflowError):  # no log writes such a row
                    step, value = int(row["step"]), float(row[name])
                    self._found[name].setdefault(step, []).append(value)
        values = next((values for values in self._found.values() if values), {})
        return max(values, key=lambda step: (fmean(values[step]), step), default=None)

    def _forget(self) -> None:
        for values in self._found.values():
            values.clear()


def best_step(path: Path, metric: str) -> int | None:
    """The step with the highest mean of a metric (the later one of equals), or None when no row has it."""
    return MetricHistory(path, metric).best_step()


def closest_metrics(path: Path, metric: str) -> list[str]:
    """Returns at most three metrics of the rows, those whose names are closest."""
    names = {name for row in read_history(path) for name in row if "/" in name}
    return get_close_matches(metric, sorted(names), cutoff=0.0)


def check_config(config: Any) -> None:
    """Raises ConfigurationError when a model's config cannot be written down."""
    if config is None:
        return
    try:
        config.model_dump_json()
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            "The model config cannot be serialized to JSON. Use a pydantic model whose fields are plain "
            f"values, got {config!r}: {error}"
        ) from error


def write_model_file(model: AnyModel) -> None:
    """Write `model.json` into the model's folder, without its key and those of its settings."""
    described = model.model_dump(exclude={"inference_api_key", "config"})
    config = None if model.config is None else json.loads(model.config.model_dump_json())
    text = json.dumps(without_keys({**described, "config": config}), default=repr)
    write_json(ModelPaths(model._folder()).description, json.loads(text))


def choose_step(model: NamedModel, step: int | None = None, best: str | None = None) -> int:
    """Returns the step whose checkpoint is meant, which is here.

    Raises ConfigurationError for two choices at once, CheckpointMissingError, StepMissingError.
    """
    here = model.steps()
    choices = [one for one in (model.step, step, best) if one is not None]
    if len(choices) > 1:
        raise ConfigurationError(
            f"{choices[0]!r} and {choices[1]!r} both choose a step of {model.key}: leave one out"
        )
    if not here:
        raise CheckpointMissingError(f"model {model.key} has no checkpoint in {model.files.checkpoints}")
    if not choices:
        return here[-1]
    wanted = model.step if step is None else step
    if best is not None:
        wanted = best_step(model.files.history, best)
        if wanted is None:
            raise ConfigurationError(f"no row of {model.files.history} has the metric {best!r}")
    if wanted not in here:
        why = "" if best is None else f", the best by {best!r},"
        raise StepMissingError(
            f"step {wanted} of {model.key}{why} has no checkpoint here. Steps that have: "
            f"{', '.join(map(str, here))}"
        )
    return wanted
