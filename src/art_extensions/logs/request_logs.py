"""Logs of model calls become rows for supervised fine-tuning and scenarios; logged rollouts become such logs.

    read = LogImport([Path("calls.jsonl")], to="sft")
    for row in read.rows(): ...                         {"messages": [...], "tools": [...]}
    read.report.lines()                                 what was left out, by reason

A file is read piece by piece: a line of JSON Lines, an item of a JSON array. A JSON object that fills a whole
file is one piece. `.gz` files are unpacked. What an import must remember of all calls is on disk.

Of one conversation, the longest request with its reply is the row. Each reply is learned once: a turn that an
earlier row has, and a turn that the filters leave out, has the weight 0.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, cast

from art.client.sft.sft_rows import ROLES
from art.errors import ConfigurationError, did_you_mean, extra_needed
from art.process.files import open_whole
from art.tracking.folders import NamedModel, find_model
from art.tracking.sinks.sink import ReportedRun
from art.tracking.step_record import read_rollouts
from art.tracking.trajectory_log import LoggedSteps
from art.types import is_choice, known_reward, sample_id, unscored_reason
from art.wire.message_identity import prefix_keys, sorted_json
from art_extensions.logs.logged_calls import (
    REQUEST_LOGS,
    Document,
    Found,
    LeftOut,
    LogFormat,
    LoggedCall,
    LoggedReply,
    LoggedScore,
    Message,
    read_documents,
    read_message,
    seconds_of,
    shown_keys,
    usable,
)
from art_extensions.logs.trace_spans import OTLP

if TYPE_CHECKING:
    from art.trajectories import History, Trajectory, TrajectoryGroup
    from art.wire.rollout_record import RolloutRecord

FORMATS: Mapping[str, LogFormat] = MappingProxyType({"otlp": OTLP, **REQUEST_LOGS})
"""Name -> format, in the order in which "auto" tries them."""
TARGETS = ("sft", "scenarios")
KEPT = ("longest", "all")
UNKNOWN = "unknown format"
LONGER, SAID_BEFORE = "part of a longer conversation", "duplicates"
CUT_OFF, EMPTY = "reply cut off", "empty reply"
ASKED_BEFORE, NO_PROMPT = "scenario known already", "no prompt before the first reply"
OTHER_MODEL, OTHER_TAG, OTHER_TIME, LOW_SCORE = (
    "other model",
    "other tag",
    "other time",
    "score too low or missing",
)
EXAMPLES = 3
"""Places that a report names for each reason."""


def read_log(path: Path, format: str = "auto") -> Iterator[Found]:
    """Yields what the records of a file hold, in its order.

    Raises ConfigurationError when there is no such file or format, and in "auto" when the first record is of
    no known format; it lists the keys that were seen.
    """
    if format != "auto" and format not in FORMATS:
        raise _not_one_of("format", format, ("auto", *FORMATS))
    if not path.is_file():
        raise ConfigurationError(f"{str(path)!r} is no file: name the files of a log, such as logs/*.jsonl")
    recognised = format != "auto"
    for where, value in read_documents(path):
        if isinstance(value, LeftOut):
            yield value
            continue
        name: str | None = format
        if not isinstance(value, Mapping):
            value, name = {}, None
        elif format == "auto":
            name = next((name for name, one in FORMATS.items() if one.fits(value)), None)
        if name is not None:
            recognised = True
            yield from usable(where, FORMATS[name].read(value, where))
        elif recognised:
            yield LeftOut(where, UNKNOWN, f"its keys are {shown_keys(value)}", broken=True)
        else:
            raise _unknown_format(where, value)


def _unknown_format(where: str, document: Document) -> ConfigurationError:
    known = "\n".join(f"  {name:<10} {one.looks}" for name, one in FORMATS.items())
    return ConfigurationError(
        f"{where}: no known format has the keys {shown_keys(document)}. Known formats:\n{known}\n"
        'Convert each call to a line {"request": {"messages": [...]}, "response": {"choices": [...]}}'
    )


def _not_one_of(what: str, value: str, known: Sequence[str]) -> ConfigurationError:
    hint = did_you_mean(value, known)
    return ConfigurationError(f"{what} {value!r}{hint and f', {hint}'}: it is one of {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class CallFilter:
    """The calls that are wanted. Empty fields want all.

    models: names with `*`, one of which must fit. tags: NAME or NAME=VALUE, all of which must hold. since,
    until: seconds since the epoch. least_scores: name -> the least value, of a score or of a tag.
    """

    models: Sequence[str] = ()
    tags: Sequence[str] = ()
    since: float | None = None
    until: float | None = None
    least_scores: Mapping[str, float] = field(default_factory=dict)

    def refusal(self, call: LoggedCall, scores: Mapping[str, float]) -> str | None:
        """Returns why a call is not wanted, or None."""
        if self.models and not any(fnmatchcase(call.model or "", one) for one in self.models):
            return OTHER_MODEL
        if not all(_has_tag(call.tags, one) for one in self.tags):
            return OTHER_TAG
        if self.since is not None and (call.time is None or call.time < self.since):
            return OTHER_TIME
        if self.until is not None and (call.time is None or call.time >= self.until):
            return OTHER_TIME
        for name, least in self.least_scores.items():
            value = scores.get(name, _number(call.tags.get(name)))
            if value is None or not value >= least:
                return LOW_SCORE
        return None


def _has_tag(tags: Mapping[str, Any], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return wanted in tags or (name in tags and (not equals or str(tags[name]) == value))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def least_scores(words: Sequence[str]) -> dict[str, float]:
    """Returns the scores that NAME=VALUE ask for. Raises ConfigurationError."""
    found = {}
    for word in words:
        name, _, text = word.rpartition("=")
        value = _number(text)
        if not name or value is None:
            raise ConfigurationError(f"least score {word!r}: write NAME=VALUE, such as helpful=0.5")
        found[name] = value
    return found


def time_of(option: str, text: str | None) -> float | None:
    """Returns the time that an option names. Raises ConfigurationError."""
    seconds = None if text is None else seconds_of(text)
    if text is not None and seconds is None:
        raise ConfigurationError(f"{option} {text!r} is no time: write 2026-01-31 or 2026-01-31T12:00")
    return seconds


@dataclass
class ImportReport:
    """The fate of each call of an import, counted."""

    calls: int = 0
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    """Records that should have had a call."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the first places, with what to do."""

    def add(self, found: LeftOut) -> None:
        self.left_out[found.reason] += 1
        self.broken += found.broken
        places = self.examples.setdefault(found.reason, [])
        if found.detail and len(places) < EXAMPLES:
            places.append(f"{found.where}: {found.detail}")

    def lines(self) -> list[str]:
        """Returns the counts, each reason with its first places."""
        lines = [f"calls read: {self.calls:,}, rows made: {self.rows:,}"]
        for reason, count in self.left_out.most_common():
            lines.append(f"  left out {count:,}: {reason}")
            lines += [f"    {place}" for place in self.examples[reason]]
        return lines


class LogImport:
    """One import of files: `rows` yields what it makes, and `report` is complete when that has ended.

    to: "sft" or "scenarios". keep: "longest", or "all": each reply is a row, and the turns before it have the
    weight 0. Raises ConfigurationError for other words.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        to: str = "sft",
        format: str = "auto",
        keep: str = "longest",
        wanted: CallFilter | None = None,
    ) -> None:
        for what, value, known in (("to", to, TARGETS), ("keep", keep, KEPT)):
            if value not in known:
                raise _not_one_of(what, value, known)
        self.paths, self._to, self._format, self._keep = paths, to, format, keep
        self._wanted = wanted or CallFilter()
        self.report = ImportReport()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows. Raises ConfigurationError, as `read_log` does."""
        self.report = ImportReport()
        with closing(CallIndex()) as index:
            for found in self._found() if self._wanted.least_scores or self._to == "scenarios" else ():
                if isinstance(found, LoggedScore):
                    index.add_score(found)
            if self._to == "sft" and self._keep == "longest":
                self._index_turns(index)
            for found in self._found():
                if isinstance(found, LeftOut):
                    self.report.add(found)
                elif isinstance(found, LoggedCall):
                    self.report.calls += 1
                    for made in self._made_of(found, index):
                        if isinstance(made, LeftOut):
                            self.report.add(made)
                        else:
                            self.report.rows += 1
                            yield made

    def _found(self) -> Iterator[Found]:
        for path in self.paths:
            yield from read_log(path, self._format)

    def _index_turns(self, index: CallIndex) -> None:
        """Notes which conversations go on in a later request, and which replies must not be learned."""
        for call in self._found():
            if isinstance(call, LoggedCall):
                turns = turn_keys(call.messages)
                refused = self._wanted.refusal(call, index.scores(call.keys)) is not None
                for reply in call.replies:
                    useless = refused or _fault(reply) is not None
                    index.add("refused" if useless else "wanted", turn_keys([reply.message], turns[-1])[1:])
                    if not useless:
                        answered = (
                            at for at, one in enumerate(call.messages) if _speaker(one) == "assistant"
                        )
                        index.add("continued", (turns[at + 1] for at in answered))

    def _made_of(self, call: LoggedCall, index: CallIndex) -> Iterator[dict[str, Any] | LeftOut]:
        scores = index.scores(call.keys)
        if (refusal := self._wanted.refusal(call, scores)) is not None:
            yield LeftOut(call.where, refusal)
        elif self._to == "scenarios":
            yield _scenario(call, scores, index)
        else:
            turns = turn_keys(call.messages)
            for reply in call.replies:
                yield self._row(call, reply, turns, index)

    def _row(
        self, call: LoggedCall, reply: LoggedReply, turns: list[bytes], index: CallIndex
    ) -> dict[str, Any] | LeftOut:
        if (fault := _fault(reply)) is not None:
            return LeftOut(call.where, fault, f"finish_reason is {reply.finish_reason!r}")
        end = turn_keys([reply.message], turns[-1])[1]
        if self._keep == "longest":
            if index.has("continued", end):
                return LeftOut(call.where, LONGER)
            if index.has("learned", end):
                return LeftOut(call.where, SAID_BEFORE)
        messages = []
        for message, digest in zip(call.messages, turns[1:], strict=True):
            if _speaker(message) == "assistant" and "weight" not in message:
                refused = index.has("refused", digest) and not index.has("wanted", digest)
                if self._keep == "all" or refused or index.has("learned", digest):
                    message = {**message, "weight": 0}
                index.add("learned", [digest])
            messages.append(message)
        index.add("learned", [end])
        return _with_tools({"messages": [*messages, reply.message]}, call)


def write_rows(made: LogImport, path: Path) -> None:
    """Writes the rows of an import as JSON lines; nothing where there are none.

    Raises ConfigurationError, also when the file is one of those that are read.
    """
    if path.resolve() in {one.resolve() for one in made.paths}:
        raise ConfigurationError(f"{str(path)!r} is read: name another file for the rows")
    rows = made.rows()
    if (first := next(rows, None)) is not None:
        with open_whole(path) as file:
            for row in chain([first], rows):
                file.write(json.dumps(row) + "\n")


def _scenario(call: LoggedCall, scores: Mapping[str, float], index: CallIndex) -> dict[str, Any] | LeftOut:
    """The prompt up to the first turn of an assistant, once."""
    spoken = (at for at, one in enumerate(call.messages) if _speaker(one) == "assistant")
    prompt = call.messages[: next(spoken, len(call.messages))]
    if not prompt:
        return LeftOut(call.where, NO_PROMPT)
    digest = hashlib.blake2b(turn_keys(prompt)[-1] + sorted_json(call.tools).encode(), digest_size=8).digest()
    if index.has("asked", digest):
        return LeftOut(call.where, ASKED_BEFORE)
    index.add("asked", [digest])
    time = None if call.time is None else datetime.fromtimestamp(call.time, UTC).isoformat()
    facts = {"model": call.model, "time": time, "tags": dict(call.tags), "scores": dict(scores)}
    row = _with_tools({"id": digest.hex(), "messages": prompt}, call)
    return row | {"metadata": {name: value for name, value in facts.items() if value}}


def _fault(reply: LoggedReply) -> str | None:
    """Says why a reply cannot be learned from: it would teach to end where the model did not."""
    if reply.finish_reason in ("length", "content_filter"):
        return CUT_OFF
    said = reply.message.get("content") is not None or reply.message.get("tool_calls")
    return None if said else EMPTY


def _with_tools(row: dict[str, Any], call: LoggedCall) -> dict[str, Any]:
    fields = {"tools": call.tools, "tool_choice": call.tool_choice}
    return row | {name: value for name, value in fields.items() if value}


def _speaker(message: Message) -> str:
    return ROLES[str(message["role"]).lower()]


def turn_keys(messages: Sequence[Message], after: bytes = b"") -> list[bytes]:
    """Returns the key of each beginning of a conversation, from the empty one, `after`, to the whole.

    A program may send a reply back without its thoughts, and a log may call a speaker by another name.
    """
    return prefix_keys([{**message, "role": _speaker(message)} for message in messages], after)


def _stored(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class CallIndex:
    """Digests of turns by kind, and scores of calls, in a file that is deleted when it is closed."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")
        self._database.executescript(
            "PRAGMA journal_mode=OFF;"
            "CREATE TABLE seen(kind TEXT, digest BLOB, PRIMARY KEY(kind, digest)) WITHOUT ROWID;"
            "CREATE TABLE scores(key TEXT, name TEXT, value REAL, PRIMARY KEY(key, name)) WITHOUT ROWID;"
        )

    def add(self, kind: str, digests: Iterable[bytes]) -> None:
        self._database.executemany(
            "INSERT OR IGNORE INTO seen VALUES(?, ?)", ((kind, one) for one in digests)
        )

    def has(self, kind: str, digest: bytes) -> bool:
        found = self._database.execute("SELECT 1 FROM seen WHERE kind=? AND digest=?", (kind, digest))
        return found.fetchone() is not None

    def add_score(self, score: LoggedScore) -> None:
        row = (_stored(score.key), _stored(score.name), score.value)
        self._database.execute("INSERT OR REPLACE INTO scores VALUES(?, ?, ?)", row)

    def scores(self, keys: Sequence[str]) -> dict[str, float]:
        """Returns the scores under any of the keys; an earlier key wins."""
        found: dict[str, float] = {}
        for key in reversed(keys):
            found |= dict(
                self._database.execute("SELECT name, value FROM scores WHERE key=?", (_stored(key),))
            )
        return found

    def close(self) -> None:
        self._database.close()


LOG_FORMATS = ("openpipe", "otlp")


def write_log(
    model: str, to: Path, *, format: str = "openpipe", split: str | None = None, data_dir: Path = Path(".art")
) -> int:
    """Writes the logged rollouts of a model, `project/name` or `project/name@step`, and returns how many.

    openpipe: a line for each completion, its request and response. otlp: a line for each step, with the spans
    that `report_metrics=["otel"]` sends; needs the extra `otel`.

    Raises ConfigurationError when there is no such model or no log, TrajectoryLogError when one is damaged.
    """
    if format not in LOG_FORMATS:
        raise _not_one_of("format", format, LOG_FORMATS)
    found = find_model(model, data_dir)
    written = 0
    with open_whole(to) as file:
        write = _spans_writer(found, file) if format == "otlp" else _lines_writer(found, file)
        log = LoggedSteps(found.files.trajectories)
        for name, step in _chosen_steps(found, log, split):
            groups = list(log.groups(name, step))
            write(name, step, groups)
            written += sum(len(group.trajectories) for group in groups)
    return written


def _chosen_steps(model: NamedModel, log: LoggedSteps, split: str | None) -> list[tuple[str, int]]:
    steps = [(name, step) for name, known in log.by_split().items() for step in known]
    chosen = sorted(one for one in steps if split in (None, one[0]) and model.step in (None, one[1]))
    if not chosen:
        there = (
            ", ".join(f"{name} {step}" for name, step in sorted(steps)) or "none (`model.log` writes them)"
        )
        raise ConfigurationError(
            f"no such trajectories of {model.key} are logged. Splits and steps that are: {there}"
        )
    return chosen


Write = Callable[[str, int, "Sequence[TrajectoryGroup]"], None]


def _lines_writer(model: NamedModel, file: IO[str]) -> Write:
    def write(split: str, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        records = {one.rollout: one for one in read_rollouts(model.files.path, step)}
        for number, group in enumerate(groups):
            shared = {
                "project": model.project,
                "model": model.name,
                "split": split,
                "step": step,
                "group": number,
            }
            for trajectory in group.trajectories:
                record = records.get(trajectory.rollout_id or "")
                tags = {**shared, **_rollout_tags(trajectory, record)}
                for call in calls_of_rollout(trajectory, model.key, tags):
                    file.write(json.dumps(openpipe_record(call)) + "\n")

    return write


def _rollout_tags(trajectory: Trajectory, record: RolloutRecord | None) -> dict[str, Any]:
    tags: dict[str, Any] = {
        "rollout": trajectory.rollout_id,
        "reward": known_reward(trajectory),
        "unscored": unscored_reason(trajectory),
        **{f"metric.{name}": value for name, value in trajectory.metrics.items()},
    }
    if record is not None:
        tags |= {"fate": record.fate, "advantage": record.advantage, "scenario": record.scenario}
    return {name: value for name, value in tags.items() if value is not None}


def calls_of_rollout(trajectory: Trajectory, model: str, tags: Mapping[str, Any]) -> Iterator[LoggedCall]:
    """Yields a call for each completion of a rollout, in each of its histories.

    A history without any completion that ends with an assistant's message is one call.
    """
    histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    for history in histories:
        items = list(history.messages_and_choices)
        messages = [read_message(dict(one), "a message") for one in history.messages()]
        ends = [at for at, item in enumerate(items) if is_choice(item)]
        if not ends and messages and _speaker(messages[-1]) == "assistant":
            ends = [len(messages) - 1]
        for at in ends:
            reason = _finish_reason(items[at])
            earned = trajectory.turn_rewards.get(str(sample_id(items[at]))) if is_choice(items[at]) else None
            yield LoggedCall(
                messages=messages[:at],
                replies=[LoggedReply(messages[at], reason)],
                tools=cast(Any, history.tools) or None,
                model=model,
                tags=tags if earned is None else {**tags, "turn_reward": earned},
                time=trajectory.start_time.timestamp(),
            )


def _finish_reason(item: Any) -> str | None:
    return item.get("finish_reason") if isinstance(item, Mapping) else item.finish_reason


def openpipe_record(call: LoggedCall) -> dict[str, Any]:
    """Returns a call as a line of OpenPipe's export of request logs. Tags are texts there."""
    asked = {
        "model": call.model,
        "messages": call.messages,
        "tools": call.tools,
        "tool_choice": call.tool_choice,
    }
    choices = [
        {"index": at, "message": reply.message, "finish_reason": reply.finish_reason or "stop"}
        for at, reply in enumerate(call.replies)
    ]
    output: dict[str, Any] = {"object": "chat.completion", "model": call.model, "choices": choices}
    if call.time is not None:
        output["created"] = int(call.time)
    return {
        "input": {name: value for name, value in asked.items() if value is not None},
        "output": output,
        "tags": {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in call.tags.items()
        },
    }


def _spans_writer(model: NamedModel, file: IO[str]) -> Write:
    with extra_needed("otel", "an OTLP file"):
        from art_extensions.sinks.otel import OTelSink, SpanLines
    sink = OTelSink(SpanLines(file), content=True)
    folder = model.files.path
    sink.open(
        ReportedRun(entity=None, project=model.project, name=model.name, run_id=None, folder=folder), {}
    )
    return sink.rollouts
