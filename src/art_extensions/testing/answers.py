"""What a test endpoint answers: the prompt read back, prepared answers, and what goes wrong with them.

Of a judge's prompt: the trajectories, and which kind of answer is wanted. `ScriptedGenerator` writes what it
was given to write: scenarios, inputs, a system prompt, a rubric. `either` makes one endpoint both judge and
generator, as real models are. `Mischief` says how often which trouble is met.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from art.errors import ConfigurationError

AnswerKind = Literal["scores", "verdicts", "winner"]
ANSWER_KINDS: tuple[AnswerKind, ...] = ("scores", "verdicts", "winner")
TRAJECTORY = re.compile(r'<trajectory id="([^"]+)">\n(.*?)\n</trajectory>', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JudgePrompt:
    """One question to a judge."""

    kind: AnswerKind
    trajectories: dict[str, list[dict[str, Any]]]
    """Id -> messages, in the order shown: the shared beginning, the rest, then further histories."""
    wanted: frozenset[str]
    """Ids of those that are asked about: all, or what stands under <scores_needed>."""
    criteria: tuple[str, ...] = ()
    """Names of what is to be judged, in a rubric's question."""
    turns: tuple[tuple[str, str], ...] = ()
    """Turn and criterion of each verdict that is asked for, in the question of a rubric of turns."""


def read_judge_prompt(body: Mapping[str, Any]) -> JudgePrompt:
    """Reads a chat request. Raises ValueError if it shows no trajectory."""
    texts = [(message["role"], text_of(message)) for message in body["messages"]]
    shown = next((text for role, text in texts if role == "user" and TRAJECTORY.search(text)), None)
    if shown is None:
        raise ValueError(
            'this judge is asked about no trajectory: no <trajectory id="..."> in a user message'
        )
    instructions = "\n".join(text for role, text in texts if role == "system")
    outside = TRAJECTORY.sub("", shown)
    shared = _block("context", outside) or []
    criteria = _block("criteria", outside) or _block("criteria", instructions) or []
    trajectories = {key: [*shared, *_messages(json.loads(data))] for key, data in TRAJECTORY.findall(shown)}
    needed = _block("scores_needed", outside)
    return JudgePrompt(
        kind=_kind(body, instructions, has_criteria=bool(criteria)),
        trajectories=trajectories,
        wanted=frozenset(trajectories if needed is None else (one["trajectory_id"] for one in needed)),
        criteria=tuple(str(one["name"]) for one in criteria),
        turns=tuple((one["turn"], one["criterion"]) for one in _block("verdicts_needed", outside) or ()),
    )


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whether its content is a text or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def asked_properties(body: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of the JSON schema that the answer must keep to; empty where none is given.

    It stands in `response_format`, or where that is not understood, after "JSON schema:" in the instructions.
    """
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    for message in body["messages"]:
        if schema is None and message["role"] == "system":
            _, _, text = text_of(message).rpartition("JSON schema:\n")
            schema = json.JSONDecoder().raw_decode(text)[0] if text.startswith("{") else None
    return dict((schema or {}).get("properties") or {})


def _messages(data: Any) -> list[dict[str, Any]]:
    if isinstance(data, list):
        return data
    return [*data["messages"], *(message for history in data["additional_histories"] for message in history)]


def _block(name: str, text: str) -> list[dict[str, Any]] | None:
    found = re.search(rf"<{name}>\n(.*?)\n</{name}>", text, re.DOTALL)
    return json.loads(found[1]) if found else None


def _kind(body: Mapping[str, Any], instructions: str, *, has_criteria: bool) -> AnswerKind:
    """Returns the kind by the schema; an endpoint without schemas has only the instructions."""
    asked = asked_properties(body)
    for kind in ANSWER_KINDS:
        if kind in asked:
            return kind
    if has_criteria:
        return "verdicts"
    return "winner" if '"winner"' in instructions else "scores"


ON_THE_WIRE = ("hang", "slow", "cut", "busy", "fault", "refusal", "truncated")
IN_THE_ANSWER = ("too_few", "too_many", "wrong_ids", "wrong_order", "out_of_range", "prose")
KINDS = (*ON_THE_WIRE, *IN_THE_ANSWER)
OTHER_ID = "zzzzzz"


@dataclass(frozen=True, kw_only=True)
class Mischief:
    """The share of requests that meet each kind of trouble; the rest is answered well."""

    hang: float = 0.0
    """Never answered: the client's deadline is all there is."""
    slow: float = 0.0
    """Answered after `slow_seconds`."""
    cut: float = 0.0
    """The connection ends in the middle of the answer."""
    busy: float = 0.0
    """429 with `Retry-After: retry_after`."""
    fault: float = 0.0
    """500."""
    refusal: float = 0.0
    """It declines to answer."""
    truncated: float = 0.0
    """Half of the answer, finish_reason "length"."""
    too_few: float = 0.0
    """One entry of the answer's list is missing (of an answer without one: everything)."""
    too_many: float = 0.0
    """One entry too many, about an id that was never shown."""
    wrong_ids: float = 0.0
    """Entries named 1, 2, 3 ... instead of by their ids."""
    wrong_order: float = 0.0
    """The right entries, reversed."""
    out_of_range: float = 0.0
    """A score of 7 among the scores."""
    prose: float = 0.0
    """The right answer with words around it and in a fence."""
    slow_seconds: float = 0.3
    retry_after: float = 0.05
    """Seconds."""
    seed: int = 0

    def __post_init__(self) -> None:
        rates = {kind: getattr(self, kind) for kind in KINDS}
        for kind, rate in rates.items():
            if not 0 <= rate <= 1:
                raise ConfigurationError(f"Mischief({kind}={rate!r}): a rate is a share, 0 to 1.")
        if sum(rates.values()) > 1 + 1e-9:
            raise ConfigurationError(
                f"The rates of a Mischief add up to {sum(rates.values()):.3g}: at most 1."
            )

    @classmethod
    def everything(cls, rate: float, **others: Any) -> Mischief:
        """All kinds equally often, `rate` of the requests together; `others` are fields set otherwise."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(others) - set(known)):
            raise ConfigurationError(f"Mischief has no {unknown[0]!r}; known: {', '.join(known)}.")
        return cls(**(dict.fromkeys(KINDS, rate / len(KINDS)) | others))

    def sequence(self) -> random.Random:
        """The dice for one server's life."""
        return random.Random(self.seed)

    def draw(self, dice: random.Random) -> str | None:
        """The kind of trouble that the next request meets; None: no trouble."""
        place = dice.random()
        for kind in KINDS:
            place -= getattr(self, kind)
            if place < 0:
                return kind
        return None


def spoil(answer: Any, kind: str) -> Any:
    """A right answer, wrong in one way of `IN_THE_ANSWER`. Answers that are text stay as they are.

    >>> spoil({"winner": "abcdef"}, "wrong_ids")
    {'winner': '1'}
    """
    if not isinstance(answer, dict):
        return answer
    spoiled: dict[str, Any] = copy.deepcopy(answer)
    entries: list[Any] | None = next((value for value in spoiled.values() if isinstance(value, list)), None)
    if entries is None:
        return spoiled_choice(spoiled, kind)
    if kind == "too_few":
        entries[:1] = []
    elif kind == "too_many" and entries:
        entries.append(renamed(entries[-1], OTHER_ID))
    elif kind == "wrong_ids":
        entries[:] = [renamed(entry, str(index)) for index, entry in enumerate(entries, 1)]
    elif kind == "wrong_order":
        entries.reverse()
    elif kind == "out_of_range":
        entries[:1] = [
            {**entry, "score": 7.0} if isinstance(entry, dict) and "score" in entry else entry
            for entry in entries[:1]
        ]
    return spoiled


def spoiled_choice(answer: dict[str, Any], kind: str) -> dict[str, Any]:
    """The same for an answer without a list: a winner, a text."""
    if kind == "too_few":
        return {}
    if kind in {"too_many", "wrong_ids"} and "winner" in answer:
        return {**answer, "winner": "1" if kind == "wrong_ids" else OTHER_ID}
    return answer


def renamed(entry: Any, name: str) -> Any:
    """An entry of a list under another id; one without a name is repeated as it is."""
    if not isinstance(entry, dict):
        return entry
    return {key: name if key in {"trajectory_id", "criterion"} else value for key, value in entry.items()}


FORMATS = ("json_schema", "json_object", "text")

Answer = Callable[[Mapping[str, Any]], Any]
"""Body of a chat request -> the content of the reply: a text, `ToolCalls`, or anything that becomes JSON."""


@dataclass(frozen=True)
class ToolCalls:
    """An answer without text that calls tools."""

    calls: Sequence[tuple[str, str | Mapping[str, Any]]]
    """Name and arguments of each; a text is sent as it is, JSON or not."""

    def as_openai(self, request: int) -> list[dict[str, Any]]:
        """The calls as a message has them. request: a number that makes their ids differ from others'."""
        return [
            {
                "id": f"call_{request}_{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for number, (name, arguments) in enumerate(self.calls)
        ]


@dataclass(frozen=True, kw_only=True)
class Served:
    """One request, and what came of it."""

    body: dict[str, Any]
    headers: dict[str, str]
    status: int
    trouble: str | None
    """The kind of mischief that it met."""


class AnsweringModel:
    """The model of a test endpoint: its answers, its clients, and the requests it got."""

    def __init__(
        self,
        answer: Answer,
        *,
        mischief: Mischief | None,
        key: str,
        model: str,
        formats: Sequence[str],
        capacity: int | None,
        delay: float,
    ) -> None:
        """See `LlmServer`. Raises ConfigurationError for an unknown format."""
        if unknown := sorted(set(formats) - set(FORMATS)):
            raise ConfigurationError(f"unknown response format {unknown[0]!r}; known: {', '.join(FORMATS)}")
        self.answer, self.mischief = answer, mischief or Mischief()
        self.key, self.model = key, model
        self.formats, self.capacity, self.delay = tuple(formats), capacity, delay
        self.served: list[Served] = []

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Bodies of the chat requests that ended or met mischief, in their order."""
        return [one.body for one in self.served]


def either(*, judge: Answer, generator: Answer) -> Answer:
    """`judge` answers what shows trajectories, `generator` all else."""

    def answer(body: Mapping[str, Any]) -> Any:
        shows = any(TRAJECTORY.search(text_of(message)) for message in body["messages"])
        return judge(body) if shows else generator(body)

    return answer


Source = str | Sequence[Any] | Callable[[Mapping[str, Any], int], Any]
"""A text; a list from which the next entries are taken, starting again at its end; a function of the request
and of the number of entries asked for."""


class ScriptedGenerator:
    """Answers each property of the requested JSON from the source of that name.

    ScriptedGenerator(scenarios=[{"task": "...", "difficulty": 2}, ...], rubric="Short answers are better.")

    How many entries are wanted is read from the schema (`maxItems`), or else from "exactly N" in the prompt.
    """

    def __init__(self, **sources: Source) -> None:
        self._sources = sources
        self._used = dict.fromkeys(sources, 0)

    def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat request. Raises ValueError where nothing that is asked for has a source."""
        asked = asked_properties(body)
        text = "\n".join(text_of(message) for message in body["messages"])
        names = [name for name in self._sources if name in asked or (not asked and f'"{name}"' in text)]
        if not names:
            raise ValueError(
                f"this generator has {', '.join(self._sources) or 'nothing'}; "
                f"asked for: {', '.join(asked) or 'text without a schema'}"
            )
        return {
            name: self._next_scripted(name, body, count_asked(asked.get(name) or {}, text)) for name in names
        }

    def _next_scripted(self, name: str, body: Mapping[str, Any], count: int) -> Any:
        source = self._sources[name]
        if isinstance(source, str):
            return source
        if callable(source):
            return source(body, count)
        start = self._used[name]
        self._used[name] = start + count
        return [source[index % len(source)] for index in range(start, start + count)]


def count_asked(schema: Mapping[str, Any], text: str) -> int:
    """Returns how many entries of a list are wanted; 1 where nothing says so."""
    if "maxItems" in schema:
        return int(schema["maxItems"])
    found = re.search(r"\bexactly (\d+)\b", text)
    return int(found[1]) if found else 1
